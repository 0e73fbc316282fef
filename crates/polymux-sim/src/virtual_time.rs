//! Time that threads share and that passes only while all of them wait: programs, movers and devices of a simulation.
//!
//! Invariants:
//! * A thread that is an [`Actor`] runs or sleeps on this clock. Time stands still while any actor runs, and goes on to the earliest end of a
//!   sleep when none does. So a computation takes no time, however slow the machine is.
//! * An actor may also wait for a lock that another, sleeping one holds, or for a thread. Where nothing has happened for [`LOOK_INTERVAL`] and
//!   the kernel says that every running actor is asleep, time goes on as well, and waits for these actors no more until their next sleep.
//!   An actor that wants to wait for a thread exactly uses [`VirtualTime::join`].
//! * Other threads may sleep on this clock, but time does not wait for them.
//!
//! ```text
//! actor ──► sleep_until ──► sleepers, by the moment of their end ──► the earliest one runs, when no actor does
//! ```

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use polymux_types::{Clock, Timestamp};

/// How often it is looked whether all running actors wait for locks, in time of the machine.
const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// How often the end of a thread is looked for, in this time.
const JOIN_INTERVAL: Duration = Duration::from_micros(20);

/// Wall-clock time at the beginning, in seconds after 1970.
const BEGINNING_SECONDS: u64 = 1_000_000_000;

thread_local! {
    /// Number of the actor, and that which the kernel gives its thread.
    static CURRENT: Cell<Option<(u64, i32)>> = const { Cell::new(None) };
    static WOKEN: OnceCell<Arc<Condvar>> = const { OnceCell::new() };
}

/// A thread that sleeps until a moment.
struct Sleeper {
    actor: Option<(u64, i32)>,
    woken: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    /// Actors that do not sleep, with the number that the kernel gives their thread; none before it begins.
    running: BTreeMap<u64, Option<i32>>,
    /// By the end of the sleep in nanoseconds, and in the order in which they began.
    sleepers: BTreeMap<(u64, u64), Sleeper>,
    /// Number of the next actor or sleeper.
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

/// A place for one thread among those for which time waits. It counts as running from its beginning on, so that time stands still until the
/// thread has begun. Dropped by its thread.
#[derive(Debug)]
pub struct Actor {
    time: Arc<VirtualTime>,
    number: u64,
}

impl Actor {
    /// The calling thread is this actor from now on.
    ///
    /// # Panics
    /// If the thread is an actor already.
    pub fn begin(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let before = CURRENT.replace(Some((self.number, thread)));
        assert!(before.is_none(), "a thread is one actor");
        self.time.state.lock().running.insert(self.number, Some(thread));
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if CURRENT.get().is_some_and(|(number, _)| number == self.number) {
            CURRENT.set(None);
        }
        let mut state = self.time.state.lock();
        state.running.remove(&self.number);
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
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.running.insert(number, None);
        Actor { time: Arc::clone(self), number }
    }

    /// Nanoseconds since the beginning.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Acquire)
    }

    /// Returns at this moment, at once if it is past.
    pub fn sleep_until_ns(&self, end_ns: u64) {
        let mut state = self.state.lock();
        if end_ns <= self.now_ns() {
            return;
        }
        let actor = CURRENT.get();
        if let Some((number, _)) = actor {
            state.running.remove(&number);
        }
        let key = (end_ns, state.next);
        state.next += 1;
        state.events += 1;
        let woken = WOKEN.with(|woken| Arc::clone(woken.get_or_init(Arc::default)));
        state.sleepers.insert(key, Sleeper { actor, woken: Arc::clone(&woken) });
        self.go_on(&mut state);
        while state.sleepers.contains_key(&key) {
            woken.wait(&mut state);
        }
    }

    /// Waits for the end of a thread, looking for it in steps of [`JOIN_INTERVAL`].
    ///
    /// # Errors
    /// The panic of the thread.
    pub fn join<T>(&self, thread: ScopedJoinHandle<'_, T>) -> std::thread::Result<T> {
        while !thread.is_finished() {
            self.sleep(JOIN_INTERVAL);
        }
        thread.join()
    }

    /// Ends the earliest sleeps for as long as no actor runs.
    fn go_on(&self, state: &mut State) {
        while state.running.is_empty() && self.wake_earliest(state) {}
    }

    /// Time goes on to the earliest end of a sleep. Returns whether there was one.
    fn wake_earliest(&self, state: &mut State) -> bool {
        let Some(((end_ns, _), sleeper)) = state.sleepers.pop_first() else { return false };
        self.now_ns.fetch_max(end_ns, Ordering::AcqRel);
        state.events += 1;
        if let Some((number, thread)) = sleeper.actor {
            state.running.insert(number, Some(thread));
        }
        sleeper.woken.notify_all();
        true
    }
}

/// Lets time go on where all actors that run wait for locks.
fn watch(time: &Weak<VirtualTime>) {
    let (lock, pause) = (Mutex::new(()), Condvar::new());
    let mut events_before = 0;
    loop {
        pause.wait_for(&mut lock.lock(), LOOK_INTERVAL);
        let Some(time) = time.upgrade() else { return };
        let mut state = time.state.lock();
        let is_stuck = state.events == events_before
            && !state.running.is_empty()
            && state.running.values().all(|thread| thread.is_some_and(is_asleep));
        if is_stuck {
            state.running.clear();
            time.go_on(&mut state);
        }
        events_before = state.events;
    }
}

/// Whether a thread of this process waits for something, as the kernel says.
fn is_asleep(thread: i32) -> bool {
    let line = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    let state = line.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('S' | 'D'))
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
