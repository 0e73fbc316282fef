//! Whether a volume is in use. While it is not, the threads that look for work now and then sleep for long.
//!
//! Invariants:
//! * A volume may rest only while its front end reports each request before it is served ([`Rest::note_use`]).
//! * It rests after a period ([`Rest::new`]) with neither a request nor background work: longer than the delay of any work that becomes
//!   due some time after a request. Work that becomes due later than that may be late by [`REST_PAUSE`].
//! * A request ends the rest and wakes all sleepers. In a volume that is in use it costs one look at memory that is seldom written.

use std::thread;
use std::time::Duration;

use polymux_records::parts::MountOptions;
use polymux_types::sync::{AtomicBool, AtomicU32, Condvar, Mutex, Ordering};

/// Least time without a request after which a volume rests.
const REST_AFTER_MIN: Duration = Duration::from_secs(20);
/// Time in which the background finishes the work that has become due.
const DUE_WITHIN: Duration = Duration::from_secs(5);

/// Longest sleep of a thread of a volume that rests.
const REST_PAUSE: Duration = Duration::from_secs(20);

/// State of a volume in use since the last look.
const IN_USE: u32 = 0;
/// State of a volume that was not used between the last two looks, but lately.
const QUIET: u32 = 1;
/// State of a volume that was not used for long, and whose threads sleep.
const RESTING: u32 = 2;

/// Time without use after which a volume with these options rests: all work due after the last request is done by then.
pub(super) fn rest_after(options: &MountOptions) -> Duration {
    let due_ms = options.flush_interval_ms.max(options.stamp_delay_ms);
    REST_AFTER_MIN.max(Duration::from_millis(due_ms.into()) + DUE_WITHIN)
}

/// Whether a volume rests, and those who sleep meanwhile.
#[derive(Debug)]
pub(super) struct Rest {
    is_allowed: AtomicBool,
    /// One of [`IN_USE`], [`QUIET`] and [`RESTING`].
    state: AtomicU32,
    /// Time without use after which it rests.
    rest_after: Duration,
    /// Moment of the last look that found the volume in use.
    last_seen_in_use: Mutex<Duration>,
    /// Locked to go to sleep, and to wake sleepers.
    sleepers: Mutex<()>,
    woken: Condvar,
}

impl Rest {
    /// A volume in use, which rests after so much time without.
    pub(super) fn new(rest_after: Duration) -> Self {
        Self {
            is_allowed: AtomicBool::new(false),
            state: AtomicU32::new(IN_USE),
            rest_after,
            last_seen_in_use: Mutex::new(Duration::ZERO),
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Requests are reported from now on.
    pub(super) fn allow(&self) {
        self.is_allowed.store(true, Ordering::Release);
    }

    /// The volume rests no more, and wakes all who sleep.
    pub(super) fn forbid(&self) {
        self.is_allowed.store(false, Ordering::Release);
        self.note_use();
    }

    /// A request came, or something was done. Returns whether that ended a rest.
    pub(super) fn note_use(&self) -> bool {
        let ends_rest =
            self.state.load(Ordering::Relaxed) != IN_USE && self.state.swap(IN_USE, Ordering::AcqRel) == RESTING;
        if ends_rest {
            // Every thread that saw the volume idle is asleep by now.
            drop(self.sleepers.lock());
            self.woken.notify_all();
        }
        ends_rest
    }

    pub(super) fn is_resting(&self) -> bool {
        self.state.load(Ordering::Acquire) == RESTING
    }

    /// Looks whether the volume was in use since the last look, and whether it rests from now on; `may_rest` tells whether nothing keeps it from
    /// that, and is asked only when enough time has passed.
    pub(super) fn look(&self, now: Duration, may_rest: impl FnOnce() -> bool) {
        let mut last_seen_in_use = self.last_seen_in_use.lock();
        let seen = self.state.compare_exchange(IN_USE, QUIET, Ordering::AcqRel, Ordering::Acquire);
        if seen.is_ok() {
            *last_seen_in_use = now;
            return;
        }
        let is_due = now.saturating_sub(*last_seen_in_use) >= self.rest_after;
        if is_due && self.is_allowed.load(Ordering::Acquire) && may_rest() {
            // A request may come just now.
            let _ = self.state.compare_exchange(QUIET, RESTING, Ordering::AcqRel, Ordering::Acquire);
        } else if is_due {
            self.note_use();
        }
    }

    /// Sleeps for `awake`, or for long where the volume rests. Returns whether it rested.
    pub(super) fn pause(&self, awake: Duration) -> bool {
        let rested = self.sleep();
        if !rested {
            thread::sleep(awake);
        }
        rested
    }

    /// Sleeps for long where the volume rests, unless that ends. Returns whether it rested.
    pub(super) fn sleep(&self) -> bool {
        let mut sleepers = self.sleepers.lock();
        if !self.is_resting() {
            return false;
        }
        self.woken.wait_for(&mut sleepers, REST_PAUSE);
        true
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    const LOOK: Duration = Duration::from_millis(200);
    const REST_AFTER: Duration = Duration::from_secs(20);

    /// A volume that rests.
    fn resting() -> Rest {
        let rest = Rest::new(REST_AFTER);
        rest.allow();
        let mut now = Duration::ZERO;
        while now <= REST_AFTER {
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
        assert!(rest.note_use());
        assert!(!rest.is_resting() && !rest.sleep());
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
        let rest = Rest::new(REST_AFTER);
        for seconds in 0..100 {
            rest.look(Duration::from_secs(seconds), || true);
            assert!(!rest.is_resting(), "requests are not reported");
        }
        rest.allow();
        for seconds in 100..200 {
            rest.look(Duration::from_secs(seconds), || false);
            assert!(!rest.is_resting());
        }
        let rest = resting();
        rest.look(Duration::from_secs(1000), || false);
        assert!(!rest.is_resting(), "something may keep it that began while it rested");
        let rest = resting();
        rest.forbid();
        rest.look(Duration::from_secs(1000), || true);
        rest.look(Duration::from_secs(2000), || true);
        assert!(!rest.is_resting(), "requests are not reported any more");
    }

    #[test]
    fn a_request_wakes_all_who_sleep() {
        let rest = Arc::new(resting());
        let began = Instant::now();
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                let rest = Arc::clone(&rest);
                thread::spawn(move || rest.sleep())
            })
            .collect();
        thread::sleep(Duration::from_millis(50));
        rest.note_use();
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().is_ok()));
        assert!(began.elapsed() < REST_PAUSE);
    }
}
