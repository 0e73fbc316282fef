//! Whether a volume is in use. While it is not, the threads that look for work now and then sleep for long.
//!
//! What is true here:
//! * A volume may rest only where its front end reports each request before it is served ([`Rest::note_use`]).
//! * It rests [`REST_AFTER`] after the last request, and not while files are used without requests or a tier has failed. So whatever becomes due
//!   by time within that of a request is done in time; what becomes due later may be late by [`REST_PAUSE`].
//! * A request ends the rest and wakes all who sleep. Of a volume that is in use it costs one look at memory that is seldom written.

use std::time::Duration;

use polymux_types::sync::{AtomicBool, AtomicU32, Condvar, Mutex, Ordering};

/// Time without a request after which a volume rests.
pub(super) const REST_AFTER: Duration = Duration::from_secs(20);
/// Longest sleep of a thread of a volume that rests.
const REST_PAUSE: Duration = Duration::from_secs(20);

/// There was a request since the last look.
const IN_USE: u32 = 0;
/// There was none.
const QUIET: u32 = 1;
/// Nor for a long time.
const RESTING: u32 = 2;

/// Whether a volume rests, and those who sleep meanwhile.
#[derive(Debug, Default)]
pub(super) struct Rest {
    is_allowed: AtomicBool,
    state: AtomicU32,
    /// When the volume was in use last, as far as looks have seen.
    last_use: Mutex<Duration>,
    /// Times that sleepers were woken.
    wakes: Mutex<u64>,
    woken: Condvar,
}

impl Rest {
    /// Requests are reported from now on.
    pub(super) fn allow(&self) {
        self.is_allowed.store(true, Ordering::Release);
    }

    /// A request came.
    pub(super) fn note_use(&self) {
        if self.state.load(Ordering::Relaxed) != IN_USE && self.state.swap(IN_USE, Ordering::AcqRel) == RESTING {
            self.wake();
        }
    }

    /// Lets those who sleep look once; the volume rests on.
    pub(super) fn wake(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }

    pub(super) fn is_resting(&self) -> bool {
        self.state.load(Ordering::Acquire) == RESTING
    }

    /// Looks whether the volume was in use since the last look, and whether it rests from now on. `may_rest` is asked where that is so.
    pub(super) fn look(&self, now: Duration, may_rest: impl FnOnce() -> bool) {
        let mut last_use = self.last_use.lock();
        let seen = self.state.compare_exchange(IN_USE, QUIET, Ordering::AcqRel, Ordering::Acquire);
        if seen.is_ok() {
            *last_use = now;
            return;
        }
        let is_due = self.is_allowed.load(Ordering::Acquire) && now.saturating_sub(*last_use) >= REST_AFTER;
        if !is_due {
            return;
        }
        if may_rest() {
            // A request may come just now.
            let _ = self.state.compare_exchange(QUIET, RESTING, Ordering::AcqRel, Ordering::Acquire);
        } else {
            self.note_use();
        }
    }

    /// How often sleepers were woken so far.
    pub(super) fn wakes(&self) -> u64 {
        *self.wakes.lock()
    }

    /// Sleeps for long where the volume rests, unless sleepers were woken since `seen`. Returns whether the volume rested.
    pub(super) fn sleep(&self, seen: u64) -> bool {
        let mut wakes = self.wakes.lock();
        if !self.is_resting() {
            return false;
        }
        if *wakes == seen {
            self.woken.wait_for(&mut wakes, REST_PAUSE);
        }
        true
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LOOK: Duration = Duration::from_millis(200);

    /// One that rests.
    fn resting() -> Rest {
        let rest = Rest::default();
        rest.allow();
        let mut now = Duration::ZERO;
        while now <= REST_AFTER + LOOK {
            assert!(!rest.is_resting());
            rest.look(now, || true);
            now += LOOK;
        }
        assert!(rest.is_resting());
        rest
    }

    #[test]
    fn a_volume_rests_when_there_was_no_request_for_long() {
        let rest = resting();
        rest.note_use();
        assert!(!rest.is_resting() && !rest.sleep(rest.wakes()));
        // From here on the time begins anew.
        let used = REST_AFTER * 10;
        rest.look(used, || true);
        rest.look(used + REST_AFTER - LOOK, || true);
        assert!(!rest.is_resting());
        rest.look(used + REST_AFTER, || true);
        assert!(rest.is_resting());
    }

    #[test]
    fn it_does_not_rest_while_something_keeps_it_or_requests_are_not_reported() {
        let rest = Rest::default();
        for seconds in 0..100 {
            rest.look(Duration::from_secs(seconds), || true);
            assert!(!rest.is_resting(), "nobody reports requests");
        }
        rest.allow();
        rest.look(Duration::from_secs(100), || false);
        assert!(!rest.is_resting());
        let rest = resting();
        rest.look(Duration::from_secs(1000), || false);
        assert!(!rest.is_resting(), "what keeps it may come while it rests");
    }

    #[test]
    fn a_request_wakes_all_who_sleep() {
        let rest = Arc::new(resting());
        let began = Instant::now();
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                let rest = Arc::clone(&rest);
                thread::spawn(move || rest.sleep(0))
            })
            .collect();
        thread::sleep(Duration::from_millis(50));
        rest.note_use();
        // One that comes late finds that the volume does not rest.
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().is_ok()));
        assert!(began.elapsed() < REST_PAUSE);
    }

    #[test]
    fn one_who_was_woken_while_looking_looks_again_before_sleeping() {
        let rest = resting();
        let seen = rest.wakes();
        rest.wake();
        let began = Instant::now();
        assert!(rest.sleep(seen) && rest.is_resting());
        assert!(began.elapsed() < REST_PAUSE);
    }
}
