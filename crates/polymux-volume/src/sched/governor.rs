//! The rate that a mover takes beside foreground I/O: halved when the foreground gets slower, raised by a tenth
//! otherwise.
//!
//! Invariants:
//! * The baseline of latency is the mean of intervals in which no mover was active.
//! * A device that is full stalls its users for a while before this is noticed, so the rate at which that happened is not
//!   tried again soon: up to [`BELOW_CEILING`] of it the rate rises, and stays there for [`HOLD`].
//! * A mover that comes to a device in use begins at [`RATE_START`].
//! * The rate never falls below [`RATE_MIN`]. If latency stays high at that rate, the mover is not the cause:
//!   then the baseline follows, and the rate rises again.

use std::time::Duration;

use super::meter::Interval;

/// Bytes per second that a mover always gets.
pub(crate) const RATE_MIN: f64 = 1e6;

/// Bytes per second with which a mover begins beside foreground I/O.
const RATE_START: f64 = 8e6;

/// How long a mover is away before it begins anew.
const AWAY: Duration = Duration::from_secs(2);

/// Share of the rate at which the foreground got slower that is used afterwards,
const BELOW_CEILING: f64 = 0.8;

/// and for how long.
const HOLD: Duration = Duration::from_secs(15);

/// How long a stall is felt.
const ECHO: Duration = Duration::from_secs(1);

/// A second without foreground I/O, and the mover goes as fast as it can.
const QUIET: Duration = Duration::from_secs(1);

/// Latency in terms of the quiet one from which on the mover slows down.
const LATENCY_FACTOR: f64 = 1.5;

/// A difference that is never held against a polite mover: that much a busy processor makes.
pub(crate) const LATENCY_SLACK_US: f64 = 200.0;

/// How fast the quiet latency follows, for each interval.
const FOLLOW_QUIET: f64 = 0.2;
const FOLLOW_AT_MINIMUM: f64 = 0.05;

/// Decides the rate of a tier's movers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Governor {
    /// Bytes per second; infinite: as fast as it can.
    rate: f64,
    quiet_us: Option<f64>,
    foreground_seen: Option<Duration>,
    mover_seen: Option<Duration>,
    /// Rate at which the foreground got slower, and when it last did.
    ceiling: Option<(f64, Duration)>,
}

impl Governor {
    pub fn new() -> Self {
        Self { rate: f64::INFINITY, quiet_us: None, foreground_seen: None, mover_seen: None, ceiling: None }
    }

    /// Bytes per second beside the foreground; `None`: no limit.
    pub fn rate(&self, now: Duration) -> Option<f64> {
        (self.rate.is_finite() && self.foreground_is_active(now)).then_some(self.rate)
    }

    /// Whether there was foreground I/O in the last second.
    pub fn foreground_is_active(&self, now: Duration) -> bool {
        self.foreground_seen.is_some_and(|seen| now.saturating_sub(seen) < QUIET)
    }

    /// How much longer a foreground request may take beside movers, in the mean and in microseconds, than the baseline without them.
    pub(crate) fn rise_us_max(baseline_us: f64, slack_us: f64) -> f64 {
        (baseline_us * (LATENCY_FACTOR - 1.0)).max(slack_us)
    }

    /// Latency that the present one is compared with, in microseconds; `None` until it is known.
    pub(crate) fn quiet_us(&self) -> Option<f64> {
        self.quiet_us
    }

    /// An interval ended. `mover_rate` is the rate of movers in it, in bytes per second; `service_rate` the speed of the
    /// tier; `slack_us` the allowed rise of the foreground's latency.
    pub fn note(
        &mut self,
        interval: &Interval,
        mover_rate: Option<f64>,
        service_rate: f64,
        slack_us: f64,
        now: Duration,
    ) {
        if interval.operations > 0 {
            self.foreground_seen = Some(now);
        }
        if mover_rate.is_some() {
            self.mover_seen = Some(now);
        } else if interval.operations > 0 && self.mover_seen.is_none_or(|seen| now.saturating_sub(seen) > AWAY) {
            self.rate = self.rate.min(RATE_START);
        }
        let Some(latency_us) = interval.latency_us else { return };
        // Microseconds of a latency are far below 2^52.
        let latency_us = latency_us as f64;
        match (mover_rate, self.quiet_us) {
            (None, quiet) => {
                let quiet = quiet.unwrap_or(latency_us);
                self.quiet_us = Some(quiet + (latency_us - quiet) * FOLLOW_QUIET);
            }
            // Nothing to compare with: an interval at a low rate tells nearly as much as a quiet one.
            (Some(mover_rate), None) if self.rate.is_infinite() => self.rate = (mover_rate / 8.0).max(RATE_MIN),
            (Some(_), None) => self.quiet_us = Some(latency_us),
            (Some(mover_rate), Some(quiet)) => {
                let limit_us = quiet + Self::rise_us_max(quiet, slack_us);
                if latency_us > limit_us {
                    self.slow_down(latency_us, quiet, mover_rate, now);
                } else {
                    self.speed_up(latency_us, quiet, service_rate, now);
                }
            }
        }
    }

    /// The politeness asked of the mover has changed, so the rate that was too high may not be so now.
    pub(crate) fn forget_ceiling(&mut self) {
        self.ceiling = None;
    }

    fn slow_down(&mut self, latency_us: f64, quiet: f64, mover_rate: f64, now: Duration) {
        if self.rate <= RATE_MIN {
            self.quiet_us = Some(quiet + (latency_us - quiet) * FOLLOW_AT_MINIMUM);
        }
        // Requests that wait at a full device make the intervals after the first slow too; they say nothing of their own rates.
        let is_echo = self.ceiling.is_some_and(|(_, since)| now.saturating_sub(since) < ECHO);
        let present = if self.rate.is_finite() { self.rate } else { mover_rate };
        let rate = self.ceiling.filter(|_| is_echo).map_or(present, |(rate, _)| rate);
        self.ceiling = Some((rate, now));
        self.rate = (present / 2.0).max(RATE_MIN);
    }

    fn speed_up(&mut self, latency_us: f64, quiet: f64, service_rate: f64, now: Duration) {
        if latency_us < quiet {
            self.quiet_us = Some(quiet + (latency_us - quiet) * FOLLOW_AT_MINIMUM);
        }
        let higher = self.rate * 1.1;
        self.ceiling = self.ceiling.filter(|(_, since)| now.saturating_sub(*since) < HOLD);
        self.rate = match self.ceiling {
            Some((ceiling, _)) => higher.min((ceiling * BELOW_CEILING).max(RATE_MIN)).max(self.rate),
            None => higher,
        };
        // Beyond the speed of the tier a rate limits nothing, and would take long to come down.
        if self.rate > 2.0 * service_rate.max(RATE_MIN) {
            self.rate = f64::INFINITY;
        }
    }
}
