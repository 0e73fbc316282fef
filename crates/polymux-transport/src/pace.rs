//! How a thread of the classic transport waits for the next request: awake for a moment, where requests come one upon the other.
//!
//! Design:
//! * A thread that sleeps in the kernel is woken on whichever processor is idle, and that processor has to be woken first; on a
//!   virtual machine that takes longer than serving most requests does. A program that makes one call after the other pays it for each.
//! * So the thread that has the turn polls for the next request for [`AWAKE_MAX`] before it sleeps, while that is found to pay: the requests before
//!   came as soon. It lets go of its processor between two looks, and so takes none from a thread that could use it.
//! * After one that did not come in time it sleeps at once, until several came quickly again.

use std::thread;
use std::time::{Duration, Instant};

/// For how long a thread stays awake for the next request: about the time to wake the program that asked, and for the program to
/// ask again.
const AWAKE_MAX: Duration = Duration::from_micros(100);
/// Requests that come within this one after the other are worth staying awake for: the time of waking up is part of it.
const QUICK: Duration = Duration::from_micros(200);
/// Quick requests in a row after which it stays awake.
const QUICK_MIN: u32 = 8;

/// Looks for a request until it is there or [`AWAKE_MAX`] is over, letting go of the processor between two looks.
fn came_in_time(began: Instant, mut has_request: impl FnMut() -> bool) -> bool {
    while !has_request() {
        if began.elapsed() >= AWAKE_MAX {
            return false;
        }
        thread::yield_now();
    }
    true
}

/// The pace of the requests that one thread gets.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When it began to wait.
    began: Instant,
    /// Quick requests in a row.
    quick: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { began: Instant::now(), quick: 0 }
    }
}

impl Pace {
    /// Waits for a request, awake, as long as that pays. The caller goes on to wait in the kernel.
    pub(crate) fn wait(&mut self, has_request: impl FnMut() -> bool) {
        self.began = Instant::now();
        if self.quick < QUICK_MIN {
            return;
        }
        if !came_in_time(self.began, has_request) {
            // It has to be earned again.
            self.quick = 0;
        }
    }

    /// A request came.
    pub(crate) fn got(&mut self) {
        self.quick = if self.began.elapsed() <= QUICK { self.quick.saturating_add(1) } else { 0 };
    }
}

/// Whether a thread that was held up by a request stays awake for the next request of the same program.
///
/// Another one waits in the kernel by then, and has slept there while the device worked: a program that calls `fsync` again and again
/// would wake it for each call. While the next request comes in time, the thread that is awake gets it; where it did not, twice
/// as many opportunities are let go each time before the next attempt.
#[derive(Debug, Default)]
pub(crate) struct Lingering {
    /// Opportunities to let go.
    left_out: u32,
    /// Attempts in a row that were of no use.
    useless: u32,
}

/// Most opportunities that are let go, as a power of two.
const USELESS_MAX: u32 = 8;

impl Lingering {
    /// Whether it is worth an attempt now.
    pub(crate) fn pays(&mut self) -> bool {
        if self.left_out == 0 {
            return true;
        }
        self.left_out -= 1;
        false
    }

    /// Looks for a request, awake, and returns whether there is one.
    pub(crate) fn wait(&mut self, has_request: impl FnMut() -> bool) -> bool {
        let came = came_in_time(Instant::now(), has_request);
        if came {
            self.useless = 0;
        } else {
            self.useless = (self.useless + 1).min(USELESS_MAX);
            self.left_out = (1 << self.useless) - 1;
        }
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staying_awake_in_vain_is_tried_ever_less_often_until_it_was_of_use() {
        let mut lingering = Lingering::default();
        let let_go = |lingering: &mut Lingering| (0..).take_while(|_| !lingering.pays()).count();
        for expected in [0, 1, 3, 7, 15] {
            assert_eq!(let_go(&mut lingering), expected);
            let began = Instant::now();
            assert!(!lingering.wait(|| false));
            assert!(began.elapsed() >= AWAKE_MAX);
        }
        assert_eq!(let_go(&mut lingering), 31);
        assert!(lingering.wait(|| true));
        assert_eq!(let_go(&mut lingering), 0);
        for _ in 0..20 {
            let_go(&mut lingering);
            lingering.wait(|| false);
        }
        assert_eq!(let_go(&mut lingering), (1 << USELESS_MAX) - 1);
    }

    /// One that got so many requests as fast as they can come. A thread that was held up begins anew.
    fn after_quick(requests: u32) -> Pace {
        loop {
            let mut pace = Pace::default();
            for _ in 0..requests {
                pace.wait(|| true);
                pace.got();
            }
            if pace.quick == requests {
                return pace;
            }
        }
    }

    #[test]
    fn nobody_looks_for_requests_before_several_came_one_upon_the_other() {
        let mut looks = 0;
        after_quick(QUICK_MIN - 1).wait(|| {
            looks += 1;
            true
        });
        assert_eq!(looks, 0);
        // Its time may pass between two looks, while other programs have the processor.
        let looks_three_times = |_| {
            let mut looks = 0;
            after_quick(QUICK_MIN).wait(|| {
                looks += 1;
                looks == 3
            });
            looks == 3
        };
        assert!((0..1000).any(looks_three_times));
    }

    #[test]
    fn one_that_does_not_come_in_time_ends_it_until_it_is_earned_again() {
        let mut pace = after_quick(QUICK_MIN);
        let began = Instant::now();
        pace.wait(|| false);
        assert!(began.elapsed() >= AWAKE_MAX);
        pace.wait(|| panic!("it sleeps in the kernel"));
    }

    #[test]
    fn a_slow_one_ends_it_too() {
        let mut pace = after_quick(QUICK_MIN);
        pace.wait(|| true);
        thread::sleep(QUICK);
        pace.got();
        pace.wait(|| panic!("it sleeps in the kernel"));
    }
}
