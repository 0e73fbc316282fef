//! Time is injected below the front ends, so that a whole system can be simulated (DESIGN section 3).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment of wall-clock time with nanoseconds, also before 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, `0..1_000_000_000`.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Builds a timestamp. Panics unless `nanoseconds` is below one second.
    #[must_use]
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        assert!(nanoseconds < 1_000_000_000);
        Self { seconds, nanoseconds }
    }

    /// Whether this moment lies before `later`, by at most `distance_max`.
    #[must_use]
    pub fn is_shortly_before(self, later: Self, distance_max: Duration) -> bool {
        let nanoseconds = |time: Self| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
        let distance = nanoseconds(later) - nanoseconds(self);
        u128::try_from(distance).is_ok_and(|distance| distance > 0 && distance <= distance_max.as_nanos())
    }

    /// Converts from the standard library's form.
    #[must_use]
    pub fn from_system_time(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self::new(i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
            Err(error) => {
                let before = error.duration();
                let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => Self::new(seconds, 0),
                    nanoseconds => Self::new(seconds - 1, 1_000_000_000 - nanoseconds),
                }
            }
        }
    }

    /// Converts to the standard library's form; `None` where that cannot hold it.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let whole = Duration::from_secs(self.seconds.unsigned_abs());
        let base = if self.seconds >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
        base?.checked_add(Duration::from_nanos(u64::from(self.nanoseconds)))
    }
}

/// Source of time.
pub trait Clock: Send + Sync {
    /// Wall-clock time, for timestamps of files.
    fn now(&self) -> Timestamp;
    /// Time since some fixed moment; never goes back. For intervals and deadlines.
    fn elapsed(&self) -> Duration;
    /// Returns once that much time has passed.
    fn sleep(&self, duration: Duration);
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose `elapsed` begins at zero now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_system_time(SystemTime::now())
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock that moves only on request. Each reading of `now` is one nanosecond later than the one before,
/// so that tests can tell the order of events.
#[derive(Debug)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `start` after 1970.
    #[must_use]
    pub fn new(start: Duration) -> Self {
        Self {
            nanoseconds: AtomicU64::new(u64::try_from(start.as_nanos()).expect("start lies within 584 years of 1970")),
        }
    }

    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).expect("a step is shorter than 584 years");
        self.nanoseconds.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let total = self.nanoseconds.fetch_add(1, Ordering::Relaxed);
        let seconds = i64::try_from(total / 1_000_000_000).expect("584 years of seconds fit");
        let nanoseconds = u32::try_from(total % 1_000_000_000).expect("a remainder below one second fits");
        Timestamp::new(seconds, nanoseconds)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// Moves time forward by itself: the thread that waits on this clock is the only one that could.
    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_conversion() {
        for time in [Timestamp::new(-1, 999_999_999), Timestamp::new(-5, 0), Timestamp::new(0, 0), Timestamp::new(9, 1)]
        {
            assert_eq!(Timestamp::from_system_time(time.to_system_time().unwrap()), time);
        }
    }

    #[test]
    fn a_moment_is_shortly_before_another_within_the_distance_only() {
        let moment = Timestamp::new(-1, 999_000_000);
        let distance = Duration::from_millis(2);
        assert!(moment.is_shortly_before(Timestamp::new(0, 1_000_000), distance));
        assert!(!moment.is_shortly_before(Timestamp::new(0, 1_000_001), distance));
        assert!(!moment.is_shortly_before(moment, distance));
        assert!(!moment.is_shortly_before(Timestamp::new(-2, 0), distance));
    }

    #[test]
    fn a_manual_clock_never_repeats_a_moment() {
        let clock = ManualClock::new(Duration::from_secs(5));
        assert!(clock.now() < clock.now());
    }

    #[test]
    fn sleeping_takes_as_long_as_asked_on_either_clock() {
        let manual = ManualClock::new(Duration::from_secs(5));
        manual.sleep(Duration::from_secs(3));
        assert_eq!(manual.elapsed(), Duration::from_secs(8));
        let system = SystemClock::new();
        system.sleep(Duration::from_millis(2));
        assert!(system.elapsed() >= Duration::from_millis(2));
    }
}
