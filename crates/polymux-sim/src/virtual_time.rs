//! Time that threads share and that passes only while all of them wait: programs, movers and devices of a simulation.
//!
//! Invariants:
//! * A thread that has slept on this clock, or is an [`Actor`], counts as running until it sleeps again. Time stands still while any thread
//!   runs, and goes on to the earliest end of a sleep when none does. So a computation takes no time, however slow the machine is.
//! * A thread may also wait for something else: for a lock that a sleeping thread holds, or for another thread. Where nothing has happened in two
//!   looks in a row, [`LOOK_INTERVAL`] apart, and the kernel says that every running thread sleeps, those count as waiting, and time goes on.
//!   They count as running again when they sleep on this clock, or when a look finds them at work: until then time may pass while they compute.
//!
//! ```text
//! thread ──► sleep_until_ns ──► sleepers, by the moment of their end ──► the earliest one runs, when none does
//! ```

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use polymux_types::{Clock, Timestamp};

/// How often it is looked whether all running threads wait for something else, in time of the machine.
const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// How often the end of a thread is looked for, in this time.
const JOIN_INTERVAL: Duration = Duration::from_micros(20);

/// Wall-clock time at the beginning, in seconds after 1970.
const BEGINNING_SECONDS: u64 = 1_000_000_000;

thread_local! {
    static WOKEN: OnceCell<Arc<Condvar>> = const { OnceCell::new() };
    static IS_ACTOR: Cell<bool> = const { Cell::new(false) };
}

/// Number that the kernel gives a thread.
type ThreadNumber = i32;

fn own_number() -> ThreadNumber {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// A thread that sleeps until a moment.
struct Sleeper {
    thread: ThreadNumber,
    woken: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    /// Threads that compute.
    running: BTreeSet<ThreadNumber>,
    /// Threads that wait for something else than this clock.
    elsewhere: BTreeSet<ThreadNumber>,
    /// Actors whose thread has not begun.
    expected: usize,
    /// Threads whose sleep has ended, and that the kernel has not begun yet.
    waking: usize,
    /// By the end of the sleep in nanoseconds, and in the order in which they began.
    sleepers: BTreeMap<(u64, u64), Sleeper>,
    /// Number of the next sleeper.
    next: u64,
    /// Changes whenever a thread begins or ends to sleep.
    events: u64,
}

/// Simulated time; see the module.
pub struct VirtualTime {
    now_ns: AtomicU64,
    state: Mutex<State>,
}

impl std::fmt::Debug for VirtualTime {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("VirtualTime").field("now", &self.elapsed()).finish_non_exhaustive()
    }
}

/// A place for one thread, for which time waits from now on, before the thread has begun. It is dropped by its thread, at the end of its work.
#[derive(Debug)]
pub struct Actor {
    time: Arc<VirtualTime>,
    thread: OnceLock<ThreadNumber>,
}

impl Actor {
    /// The calling thread is this actor from now on.
    ///
    /// # Panics
    /// If the thread is an actor already, or the actor has begun.
    pub fn begin(&self) {
        assert!(!IS_ACTOR.get() && self.thread.set(own_number()).is_ok(), "an actor is one thread");
        IS_ACTOR.set(true);
        let mut state = self.time.state.lock();
        state.expected -= 1;
        state.running.insert(own_number());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let mut state = self.time.state.lock();
        match self.thread.get() {
            Some(thread) => {
                state.running.remove(thread);
                state.elsewhere.remove(thread);
                if *thread == own_number() {
                    IS_ACTOR.set(false);
                }
            }
            None => state.expected -= 1,
        }
        self.time.go_on(&mut state);
    }
}

impl VirtualTime {
    /// A clock that stands at its beginning.
    ///
    /// # Panics
    /// If the machine has no more threads.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let time = Arc::new(Self { now_ns: AtomicU64::new(0), state: Mutex::default() });
        let watched = Arc::downgrade(&time);
        std::thread::Builder::new()
            .name("virtual-time".to_owned())
            .spawn(move || watch(&watched))
            .expect("a simulation has threads");
        time
    }

    /// Makes a place for a thread.
    #[must_use]
    pub fn actor(self: &Arc<Self>) -> Actor {
        self.state.lock().expected += 1;
        Actor { time: Arc::clone(self), thread: OnceLock::new() }
    }

    /// Nanoseconds since the beginning.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Acquire)
    }

    /// Returns at this moment, at once if it is past.
    pub fn sleep_until_ns(&self, end_ns: u64) {
        let thread = own_number();
        let mut state = self.state.lock();
        state.elsewhere.remove(&thread);
        if end_ns <= self.now_ns() {
            state.running.insert(thread);
            return;
        }
        state.running.remove(&thread);
        let key = (end_ns, state.next);
        state.next += 1;
        state.events += 1;
        let woken = WOKEN.with(|woken| Arc::clone(woken.get_or_init(Arc::default)));
        state.sleepers.insert(key, Sleeper { thread, woken: Arc::clone(&woken) });
        self.go_on(&mut state);
        while state.sleepers.contains_key(&key) {
            woken.wait(&mut state);
        }
        state.waking -= 1;
    }

    /// Waits for the end of a thread, in steps of [`JOIN_INTERVAL`] of this time.
    ///
    /// # Errors
    /// The panic of the thread.
    pub fn join<T>(&self, thread: ScopedJoinHandle<'_, T>) -> std::thread::Result<T> {
        while !thread.is_finished() {
            self.sleep(JOIN_INTERVAL);
        }
        thread.join()
    }

    /// Ends the earliest sleep if no thread runs.
    fn go_on(&self, state: &mut State) {
        if state.expected > 0 || !state.running.is_empty() {
            return;
        }
        let Some(((end_ns, _), sleeper)) = state.sleepers.pop_first() else { return };
        self.now_ns.fetch_max(end_ns, Ordering::AcqRel);
        state.events += 1;
        state.running.insert(sleeper.thread);
        state.waking += 1;
        sleeper.woken.notify_all();
    }
}

/// Lets time go on where all threads that run wait for something else.
fn watch(time: &Weak<VirtualTime>) {
    let (lock, pause) = (Mutex::new(()), Condvar::new());
    let mut before = None;
    loop {
        pause.wait_for(&mut lock.lock(), LOOK_INTERVAL);
        let Some(time) = time.upgrade() else { return };
        // The kernel is asked without the lock: a thread that waits for that one is at work.
        let (events, running, elsewhere) = {
            let state = time.state.lock();
            (state.events, state.running.clone(), state.elsewhere.clone())
        };
        let back: Vec<ThreadNumber> = elsewhere.into_iter().filter(|thread| !is_asleep(*thread)).collect();
        let all_wait = back.is_empty() && running.iter().all(|thread| is_asleep(*thread));
        let mut state = time.state.lock();
        for thread in back {
            if state.elsewhere.remove(&thread) {
                state.running.insert(thread);
            }
        }
        let seen = all_wait.then_some((events, running));
        let is_same =
            seen.as_ref().is_some_and(|(events, running)| *events == state.events && *running == state.running);
        if is_same && seen == before && state.expected == 0 && state.waking == 0 {
            let waiting = std::mem::take(&mut state.running);
            state.elsewhere.extend(waiting.into_iter().filter(|thread| exists(*thread)));
            time.go_on(&mut state);
        }
        before = seen;
    }
}

fn line_of(thread: ThreadNumber) -> Option<String> {
    fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()
}

fn exists(thread: ThreadNumber) -> bool {
    line_of(thread).is_some()
}

/// Whether a thread of this process waits for a lock or another thread, as the kernel says, or has ended. One that waits for a page does not.
fn is_asleep(thread: ThreadNumber) -> bool {
    let state = |line: String| line.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    line_of(thread).is_none_or(|line| state(line) == Some('S'))
}

impl Clock for VirtualTime {
    /// Each reading is a nanosecond later than the one before, so that the order of events is known.
    fn now(&self) -> Timestamp {
        let total = self.now_ns.fetch_add(1, Ordering::AcqRel) + BEGINNING_SECONDS * 1_000_000_000;
        let seconds = i64::try_from(total / 1_000_000_000).expect("584 years of seconds fit");
        let nanoseconds = u32::try_from(total % 1_000_000_000).expect("a remainder below one second fits");
        Timestamp::new(seconds, nanoseconds)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    fn sleep(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).expect("a sleep is shorter than 584 years");
        self.sleep_until_ns(self.now_ns().saturating_add(nanoseconds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets two actors sleep for these many microseconds, each again and again, and returns how often each woke in ten milliseconds.
    fn wakes(sleeps_us: [u64; 2]) -> Vec<u64> {
        let time = VirtualTime::new();
        let actors = sleeps_us.map(|sleep_us| (time.actor(), sleep_us));
        std::thread::scope(|scope| {
            let threads = actors.map(|(actor, sleep_us)| {
                let time = &time;
                scope.spawn(move || {
                    actor.begin();
                    let mut wakes = 0;
                    while time.now_ns() < 10_000_000 {
                        time.sleep(Duration::from_micros(sleep_us));
                        wakes += 1;
                    }
                    wakes
                })
            });
            threads.map(|thread| thread.join().unwrap()).to_vec()
        })
    }

    #[test]
    fn each_actor_wakes_as_often_as_its_sleeps_fit_into_the_time() {
        assert_eq!(wakes([100, 1000]), [100, 10]);
        assert_eq!(wakes([10, 10]), [1000, 1000]);
    }

    #[test]
    fn time_stands_still_while_an_actor_computes() {
        let time = VirtualTime::new();
        let (busy, sleeper) = (time.actor(), time.actor());
        let begun = time.now_ns();
        std::thread::scope(|scope| {
            let time = &time;
            scope.spawn(move || {
                sleeper.begin();
                time.sleep(Duration::from_secs(5));
            });
            busy.begin();
            let mut sum = 0_u64;
            for number in 0..3_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(number));
            }
            assert_eq!(time.now_ns(), begun, "{sum}");
            drop(busy);
        });
        assert_eq!(time.elapsed(), Duration::from_secs(5));
    }

    #[test]
    fn time_goes_on_where_an_actor_waits_for_a_lock_that_a_sleeping_one_holds() {
        let time = VirtualTime::new();
        let (holder, waiter) = (time.actor(), time.actor());
        let lock = Mutex::new(());
        let (has_locked, locked) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (time, lock) = (&time, &lock);
            scope.spawn(move || {
                holder.begin();
                let _held = lock.lock();
                has_locked.send(()).unwrap();
                time.sleep(Duration::from_secs(1));
            });
            waiter.begin();
            locked.recv().unwrap();
            let _got = lock.lock();
            assert_eq!(time.elapsed(), Duration::from_secs(1));
            drop(waiter);
        });
    }
}
