//! Whose turn it is to wait in the kernel for the next request of the classic transport.
//!
//! Invariants:
//! * One thread waits in the kernel, and the others rest here. The kernel wakes threads that wait there in turn, and so each
//!   request would be served by the one that has been idle for longest, mostly on another processor and with cold caches
//!   (docs/design/0016). The one that rests last is called first.
//! * A thread that got a request gives the turn back and calls no other: a request that needs no waiting is served sooner than
//!   another thread is awake. A thread that is about to wait calls the next one before, and so does a thread that finds requests
//!   waiting again and again.
//! * Where a thread waits without having announced it, one of the resting threads, the sentry, takes the turn after
//!   [`LOOK_INTERVAL`] to twice that. While nothing happens it sleeps, too.
//! * A turn that was called for is handed over with the call, so that each call wakes one thread and no other can come before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Shortest time without a thread that waits for requests after which the sentry waits for them.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// Looks without a request after which the sentry sleeps until there is one.
const QUIET_LOOKS: u32 = 50;

/// Where a thread rests.
#[derive(Default)]
pub(crate) struct Seat {
    /// Whether the turn was handed to it. Changed with the state locked.
    is_called: AtomicBool,
    woken: Condvar,
}

/// Whether a call found a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// A thread waits for requests now.
    Somebody,
    /// All are busy.
    Nobody,
}

#[derive(Default)]
struct State {
    /// A thread waits in the kernel, or is on the way there.
    is_taken: bool,
    is_ended: bool,
    /// Requests that were got so far; wraps around.
    got: u64,
    /// Those who rest, without the sentry; the last one came last.
    resting: Vec<Arc<Seat>>,
    sentry: Option<Sentry>,
}

struct Sentry {
    seat: Arc<Seat>,
    sleeps: bool,
}

/// The observation of the sentry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// Requests come, or it was woken.
    Disturbed,
    /// No thread has the turn, and none has had it for a while.
    NobodyWaits,
}

impl State {
    /// The one that has rested for longest becomes the sentry, where there is none.
    fn appoint_sentry(&mut self) {
        if self.sentry.is_none() && !self.resting.is_empty() {
            let seat = self.resting.remove(0);
            seat.woken.notify_one();
            self.sentry = Some(Sentry { seat, sleeps: false });
        }
    }

    fn is_sentry(&self, seat: &Arc<Seat>) -> bool {
        self.sentry.as_ref().is_some_and(|sentry| Arc::ptr_eq(&sentry.seat, seat))
    }
}

/// The turns of one connection.
#[derive(Default)]
pub(crate) struct Turns(Mutex<State>);

impl Turns {
    /// Waits for the turn. Returns whether there is a connection still.
    pub(crate) fn take(&self, seat: &Arc<Seat>) -> bool {
        let mut state = self.0.lock();
        if !state.is_taken && !state.is_ended {
            state.is_taken = true;
            return true;
        }
        state.resting.push(Arc::clone(seat));
        state.appoint_sentry();
        while !state.is_ended && !seat.is_called.load(Ordering::Relaxed) {
            if !state.is_sentry(seat) {
                seat.woken.wait(&mut state);
            } else if Self::keep_watch(&mut state, seat) == Watch::NobodyWaits {
                state.is_taken = true;
                state.sentry = None;
                // The thread that got a request last may not be the only one that does not come back.
                state.appoint_sentry();
                return true;
            }
        }
        Self::begin(&state, seat)
    }

    /// The watch of the sentry, until it sees that no thread waits for requests, or until it is woken.
    fn keep_watch(state: &mut MutexGuard<'_, State>, seat: &Seat) -> Watch {
        for _ in 0..QUIET_LOOKS {
            let got = state.got;
            let was_woken = !seat.woken.wait_for(state, LOOK_INTERVAL).timed_out();
            // A call may come just when the time is over.
            if was_woken || state.is_ended || seat.is_called.load(Ordering::Relaxed) || state.got != got {
                return Watch::Disturbed;
            }
            if !state.is_taken {
                return Watch::NobodyWaits;
            }
        }
        state.sentry.as_mut().expect("it is this thread").sleeps = true;
        seat.woken.wait(state);
        if let Some(sentry) = &mut state.sentry {
            sentry.sleeps = false;
        }
        Watch::Disturbed
    }

    /// Clears the call of a thread that was woken; returns whether the thread goes on.
    fn begin(state: &State, seat: &Seat) -> bool {
        seat.is_called.store(false, Ordering::Relaxed);
        !state.is_ended
    }

    /// Gives the turn back, with a request that was got.
    pub(crate) fn give_back(&self) {
        let mut state = self.0.lock();
        state.is_taken = false;
        state.got = state.got.wrapping_add(1);
        let sleeper = state.sentry.as_mut().filter(|sentry| sentry.sleeps).map(|sentry| {
            sentry.sleeps = false;
            Arc::clone(&sentry.seat)
        });
        drop(state);
        if let Some(seat) = sleeper {
            seat.woken.notify_one();
        }
    }

    /// Calls a resting thread to take the turn, where no thread has it.
    pub(crate) fn call(&self) -> Called {
        let mut state = self.0.lock();
        if state.is_taken || state.is_ended {
            return Called::Somebody;
        }
        let next = state.resting.pop().or_else(|| state.sentry.take().map(|sentry| sentry.seat));
        let Some(seat) = next else { return Called::Nobody };
        state.is_taken = true;
        seat.is_called.store(true, Ordering::Relaxed);
        drop(state);
        seat.woken.notify_one();
        Called::Somebody
    }

    /// The connection is gone: no thread waits again.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.is_ended = true;
        let resting = std::mem::take(&mut state.resting);
        let sentry = state.sentry.take().map(|sentry| sentry.seat);
        drop(state);
        for seat in resting.into_iter().chain(sentry) {
            seat.woken.notify_one();
        }
    }
}

/// Ends the turns when a thread that serves ends, in whichever way.
pub(crate) struct EndsTurns<'a>(pub(crate) &'a Turns);

impl Drop for EndsTurns<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Requests between two looks whether more of them wait. Not a multiple of the number that a program sends for each file, so that
/// the looks do not always meet the same kind.
const REQUESTS_BETWEEN_LOOKS: u32 = 7;
/// Looks one after the other that have to find requests waiting. One may be a request that no program waits for (a release).
const LOOKS_BEHIND: u32 = 2;

/// Finds out that one thread is not enough, at a price that is not felt.
#[derive(Default)]
pub(crate) struct Backlog {
    requests: u32,
    looks_behind: u32,
}

impl Backlog {
    /// To be called before each request; `has_request` says whether one waits already. Returns whether another thread should help.
    pub(crate) fn is_behind(&mut self, has_request: impl FnOnce() -> bool) -> bool {
        self.requests += 1;
        if self.requests < REQUESTS_BETWEEN_LOOKS {
            return false;
        }
        self.requests = 0;
        self.looks_behind = if has_request() { self.looks_behind + 1 } else { 0 };
        let is_behind = self.looks_behind >= LOOKS_BEHIND;
        if is_behind {
            self.looks_behind = 0;
        }
        is_behind
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Threads that take a turn each, and say so with their number and whether there is a connection.
    fn takers(turns: &Arc<Turns>, count: usize) -> Receiver<(usize, bool)> {
        let (sender, receiver) = channel();
        for number in 0..count {
            let (turns_of_thread, sender) = (Arc::clone(turns), sender.clone());
            thread::spawn(move || {
                let has_turn = turns_of_thread.take(&Arc::default());
                // The test may have seen enough.
                let _ = sender.send((number, has_turn));
            });
            while resting(turns) < number + 1 {
                thread::yield_now();
            }
        }
        receiver
    }

    fn resting(turns: &Turns) -> usize {
        let state = turns.0.lock();
        state.resting.len() + usize::from(state.sentry.is_some())
    }

    /// Turns that this thread has.
    fn taken() -> Arc<Turns> {
        let turns = Arc::new(Turns::default());
        assert!(turns.take(&Arc::default()));
        turns
    }

    #[test]
    fn the_one_that_rests_last_is_called_first_and_the_sentry_at_the_end() {
        let turns = taken();
        let takers = takers(&turns, 3);
        for expected in [2, 1, 0] {
            turns.give_back();
            assert_eq!(turns.call(), Called::Somebody);
            assert_eq!(takers.recv_timeout(SOON), Ok((expected, true)));
        }
        turns.give_back();
        assert_eq!(turns.call(), Called::Nobody);
        assert!(turns.take(&Arc::default()), "and it is nobody's");
    }

    #[test]
    fn nobody_is_called_while_somebody_has_the_turn() {
        let turns = taken();
        let takers = takers(&turns, 2);
        assert_eq!(turns.call(), Called::Somebody);
        assert!(takers.recv_timeout(LOOK_INTERVAL * 5).is_err());
        turns.end();
    }

    #[test]
    fn a_turn_that_was_handed_over_cannot_be_taken_by_somebody_else() {
        let turns = taken();
        let first = takers(&turns, 1);
        turns.give_back();
        turns.call();
        let later = {
            let turns = Arc::clone(&turns);
            thread::spawn(move || turns.take(&Arc::default()))
        };
        assert_eq!(first.recv_timeout(SOON), Ok((0, true)));
        thread::sleep(LOOK_INTERVAL);
        assert!(!later.is_finished());
        turns.end();
        assert!(!later.join().unwrap());
    }

    #[test]
    fn where_whoever_got_a_request_does_not_come_back_the_sentry_takes_the_turn_also_out_of_its_sleep() {
        for pause in [Duration::ZERO, LOOK_INTERVAL * QUIET_LOOKS * 2] {
            let turns = taken();
            let takers = takers(&turns, 2);
            thread::sleep(pause);
            turns.give_back();
            assert_eq!(takers.recv_timeout(SOON), Ok((0, true)), "after {pause:?}");
            turns.end();
            assert_eq!(takers.recv_timeout(SOON), Ok((1, false)));
        }
    }

    #[test]
    fn one_thread_at_a_time_has_the_turn_and_it_never_gets_lost() {
        const TURNS: usize = 20_000;
        let turns = Arc::new(Turns::default());
        let (holders, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |number: usize| {
            let (turns, holders, count) = (Arc::clone(&turns), Arc::clone(&holders), Arc::clone(&count));
            move || {
                let seat = Arc::default();
                while turns.take(&seat) {
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    let turn = count.fetch_add(1, Ordering::SeqCst);
                    holders.fetch_sub(1, Ordering::SeqCst);
                    turns.give_back();
                    match turn {
                        TURNS.. => turns.end(),
                        _ if turn.is_multiple_of(3) => {
                            turns.call();
                        }
                        _ if turn.is_multiple_of(1999) => thread::sleep(LOOK_INTERVAL * u32::try_from(number).unwrap()),
                        _ => {}
                    }
                }
            }
        };
        let threads: Vec<_> = (0..6).map(|number| thread::spawn(work(number))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(count.load(Ordering::SeqCst) > TURNS);
    }

    #[test]
    fn whoever_follows_one_that_does_not_come_back_may_not_come_back_either() {
        let turns = taken();
        let takers = takers(&turns, 4);
        for expected in 0..4 {
            turns.give_back();
            assert_eq!(takers.recv_timeout(SOON), Ok((expected, true)));
        }
    }

    #[test]
    fn all_end_with_the_connection() {
        let turns = taken();
        let takers = takers(&turns, 5);
        drop(EndsTurns(&turns));
        for _ in 0..5 {
            let (_, has_turn) = takers.recv_timeout(SOON).unwrap();
            assert!(!has_turn);
        }
        assert!(!turns.take(&Arc::default()));
        assert_eq!(turns.call(), Called::Somebody, "nobody has to be found any more");
    }

    #[test]
    fn help_is_asked_for_where_requests_wait_look_after_look() {
        let mut backlog = Backlog::default();
        let mut looks = 0;
        let per_look = usize::try_from(REQUESTS_BETWEEN_LOOKS).unwrap();
        assert!((0..per_look * 100).all(|_| !backlog.is_behind(|| {
            looks += 1;
            looks % 2 == 0
        })));
        assert_eq!(looks, 100);
        let asked = (0..per_look * 100).filter(|_| backlog.is_behind(|| true)).count();
        assert_eq!(asked, 50);
    }
}
