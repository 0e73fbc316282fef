//! A token bucket whose burst is one request.

use std::time::Duration;

/// Lets through `rate` units in a second: in any window of time at most that much and one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    /// When the admitted requests are paid for.
    paid_at: Duration,
}

impl Bucket {
    /// How long a request has to wait. Zero: it may go.
    pub fn wait(&self, now: Duration) -> Duration {
        self.paid_at.saturating_sub(now)
    }

    /// A request goes. Panics where the rate is zero.
    pub fn take(&mut self, units: u64, rate_per_second: u64, now: Duration) {
        assert!(rate_per_second > 0, "a limit lets something through");
        let nanoseconds = (u128::from(units) * 1_000_000_000).div_ceil(u128::from(rate_per_second));
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.paid_at = self.paid_at.max(now).saturating_add(cost);
    }

    /// The rate rose: no caller has to wait longer than a request at the new rate takes.
    pub fn shorten(&mut self, now: Duration, wait_max: Duration) {
        self.paid_at = self.paid_at.min(now.saturating_add(wait_max));
    }
}
