//! Whether writers keep a tier saturated: they hand it more than it takes, for longer than a burst lasts.
//!
//! Invariants:
//! * Asked where a decision needs it, and pure but for the state kept from the last questions: a tier that is not asked about
//!   for [`FORGOTTEN_AFTER`] begins anew.
//! * A stream is handed over at once when it is recognized as one (32 MiB, `inode/write_streams.rs`). A writer at two thirds of the speed
//!   of the device has worked that off after three times the time that the device needs for it, so a tier counts as saturated only where its
//!   backlog lasted longer.
//! * It stays so until nearly nothing is left: while growth is spread, the backlog is that of a tier among others.

use std::time::Duration;

use polymux_types::sync::Mutex;

use super::bandwidth::UNKNOWN_BYTES_PER_SECOND;

/// Backlog from which a tier may be saturated: half of the write-behind data that is begun on a device at once (`space/write_behind/queue.rs`).
const BACKLOG_LONG: Duration = Duration::from_millis(150);

/// Backlog below which it is not saturated any more.
const BACKLOG_SHORT: Duration = Duration::from_millis(30);

/// How long the backlog has to last, at least.
const LASTS_MIN: Duration = Duration::from_secs(1);

/// Bytes that are handed over at once, times three.
const BURST_BYTES: u64 = 3 * (32 << 20);

/// Questions that are further apart know nothing of each other.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2);

/// The observations of one tier.
#[derive(Debug, Default)]
pub struct Saturation(Mutex<Seen>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Since when the backlog has been long.
    since: Option<Duration>,
    last: Duration,
    is_saturated: bool,
}

fn time_of(bytes: u64, bytes_per_second: u64) -> Duration {
    let microseconds = u128::from(bytes) * 1_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_micros(u64::try_from(microseconds).unwrap_or(u64::MAX))
}

impl Saturation {
    /// Notes the backlog of a tier in bytes, and the bytes per second that it takes (0: unknown). Returns whether it is saturated.
    pub fn note(&self, backlog_bytes: u64, bytes_per_second: u64, now: Duration) -> bool {
        let bandwidth = if bytes_per_second == 0 { UNKNOWN_BYTES_PER_SECOND } else { bytes_per_second };
        let backlog = time_of(backlog_bytes, bandwidth);
        let lasts = LASTS_MIN.max(time_of(BURST_BYTES, bandwidth));
        let mut seen = self.0.lock();
        if now.saturating_sub(seen.last) > FORGOTTEN_AFTER {
            *seen = Seen::default();
        }
        seen.last = seen.last.max(now);
        if backlog < BACKLOG_SHORT {
            seen.is_saturated = false;
        }
        if backlog >= BACKLOG_LONG {
            let since = *seen.since.get_or_insert(now);
            seen.is_saturated |= now.saturating_sub(since) >= lasts;
        } else {
            seen.since = None;
        }
        seen.is_saturated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// A stream of so many bytes per second to a device of 120 MB/s, the first 32 MiB handed over at once; when the tier is saturated,
    /// in seconds, within ten.
    fn saturated_after(writer: u64) -> Option<f64> {
        let (saturation, device) = (Saturation::default(), 120 * MB);
        let mut backlog: u64 = 32 << 20;
        for step in 0..1000_u32 {
            let now = Duration::from_millis(u64::from(step) * 10);
            if saturation.note(backlog, device, now) {
                return Some(now.as_secs_f64());
            }
            backlog = (backlog + writer / 100).saturating_sub(device / 100);
        }
        None
    }

    #[test]
    fn a_stream_that_one_device_carries_saturates_nothing_and_a_faster_one_does_within_two_seconds() {
        assert_eq!(saturated_after(80 * MB), None);
        assert_eq!(saturated_after(60 * MB), None);
        let after = [140, 200, 2000].map(|writer| saturated_after(writer * MB));
        assert!(after.iter().all(|after| after.is_some_and(|seconds| seconds < 2.0)), "{after:?}");
    }

    #[test]
    fn it_lasts_until_the_backlog_is_short_and_is_forgotten_where_nobody_asks() {
        let saturation = Saturation::default();
        let at = |ms| Duration::from_millis(ms);
        for ms in (0..3000).step_by(50) {
            saturation.note(30 * MB, 100 * MB, at(ms));
        }
        assert!(saturation.note(5 * MB, 100 * MB, at(3000)), "50 ms are left");
        assert!(!saturation.note(2 * MB, 100 * MB, at(3050)));
        assert!(!saturation.note(30 * MB, 100 * MB, at(3100)), "it begins anew");
        for ms in (3100..6500).step_by(50) {
            saturation.note(30 * MB, 100 * MB, at(ms));
        }
        assert!(saturation.note(30 * MB, 100 * MB, at(6500)));
        assert!(!saturation.note(30 * MB, 100 * MB, at(9000)));
    }
}
