//! The processor time that looks at page caches may take: 1 % of the time.

use std::time::Duration;

use polymux_types::Clock;
use polymux_types::sync::Mutex;

/// How many times as long as a look takes the next one waits.
const SHARE_DIVISOR: u32 = 100;

/// Time whose share may be used at once.
const BURST: Duration = Duration::from_secs(1);

/// Minimum time charged for a lookup, however coarse the clock is.
const LOOK_MIN: Duration = Duration::from_micros(1);

/// The time that looks for one purpose may take.
#[derive(Debug, Default)]
pub struct LookBudget {
    /// When the looks so far are paid for.
    paid_at: Mutex<Duration>,
}

impl LookBudget {
    fn is_due(&self, now: Duration) -> bool {
        *self.paid_at.lock() <= now
    }

    /// Looks, if the looks so far are paid for.
    pub fn look<T>(&self, clock: &dyn Clock, look: impl FnOnce() -> T) -> Option<T> {
        let began = clock.elapsed();
        let found = self.is_due(began).then(look)?;
        self.note(began, clock.elapsed());
        Some(found)
    }

    fn note(&self, began: Duration, ended: Duration) {
        let took = ended.saturating_sub(began).max(LOOK_MIN);
        let mut paid_at = self.paid_at.lock();
        *paid_at = (*paid_at).max(ended.saturating_sub(BURST)).saturating_add(took.saturating_mul(SHARE_DIVISOR));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_a_hundredth_of_the_time_and_a_burst() {
        let (looks, took) = (LookBudget::default(), Duration::from_micros(20));
        let (mut now, mut spent) = (Duration::from_secs(10), Duration::ZERO);
        let end = Duration::from_secs(20);
        while now < end {
            if looks.is_due(now) {
                looks.note(now, now + took);
                spent += took;
                now += took;
            } else {
                now += Duration::from_micros(5);
            }
        }
        assert!(spent <= Duration::from_millis(111), "{spent:?} of ten seconds, and of the one before");
        assert!(spent >= Duration::from_millis(105), "{spent:?}");
    }
}
