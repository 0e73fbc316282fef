//! Threads that sync objects while the requesting thread flushes the log or syncs another tier (A14).
//!
//! Invariants:
//! * A thread is started only when every other one is busy, so that an fsync in the usual case starts none.
//! * A caller that waits for a sync which no thread has taken up carries it out itself: no caller waits for the pool, and a tier
//!   that hangs keeps the threads that it has and no other tier's syncs.
//! * No caller goes on waiting for a sync of a tier that became silent: it returns with that error, and a failure that
//!   comes to light later is kept for the next sync of that object.
//! * The threads know tiers and objects. The requesting thread decides the consequences of a failure for a file.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::Errno;
use polymux_types::sync::{Condvar, Mutex};

use super::watch::WatchedTier;

/// Most threads at once. More than this many syncs are under way only where their callers carry them out.
const THREADS_MAX: usize = 16;

/// How often a waiting caller looks whether the tier still answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

type Outcome = std::result::Result<(), TierError>;

/// Object or tier to make durable.
#[derive(Clone, Copy)]
pub enum SyncTarget {
    /// One object.
    Object(ObjectRef),
    /// Everything on the tier.
    All,
}

/// Released as soon as a sync has ended, although its caller may wait for others meanwhile: the mark that the tier has something urgent.
type Held = Box<dyn Send>;

struct Job {
    tier: Arc<WatchedTier>,
    target: SyncTarget,
    ticket: Arc<Ticket>,
    held: Option<Held>,
}

#[derive(Default)]
struct Ticket {
    state: Mutex<TicketState>,
    done: Condvar,
}

#[derive(Default)]
enum TicketState {
    #[default]
    Waiting,
    Done(Outcome),
    /// The caller has gone.
    Abandoned,
}

impl Ticket {
    /// Hands the outcome over, or keeps a failure whose caller has gone.
    fn complete(&self, job: &Job, outcome: Outcome) {
        let mut state = self.state.lock();
        match (&*state, outcome, job.target) {
            (TicketState::Abandoned, Err(error), SyncTarget::Object(object)) => job.tier.keep_untold(object, error),
            (TicketState::Abandoned, ..) => {}
            (_, outcome, _) => *state = TicketState::Done(outcome),
        }
        drop(state);
        self.done.notify_all();
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Threads that are carrying a sync out.
    busy: usize,
    threads: Vec<std::thread::JoinHandle<()>>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// The threads of one volume.
#[derive(Default)]
pub struct SyncPool {
    shared: Arc<Shared>,
}

/// A sync that was handed over. Not waiting for it is a mistake: its outcome would be lost.
#[must_use]
pub struct PendingSync {
    shared: Arc<Shared>,
    tier: Arc<WatchedTier>,
    ticket: Arc<Ticket>,
}

fn carry_out(job: &mut Job) -> Outcome {
    let sync = || match job.target {
        SyncTarget::Object(object) => job.tier.sync(object),
        SyncTarget::All => job.tier.sync_all(),
    };
    // The waiting caller must hear of it, whatever happens.
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(sync));
    drop(job.held.take());
    outcome.unwrap_or(Err(TierError::Io { operation: "syncing", errno: Errno::EIO }))
}

fn serve(shared: &Shared) {
    let mut state = shared.state.lock();
    while !state.closed {
        let Some(mut job) = state.waiting.pop_front() else {
            shared.wake.wait(&mut state);
            continue;
        };
        state.busy += 1;
        drop(state);
        let outcome = carry_out(&mut job);
        state = shared.state.lock();
        // Free before the caller hears of it, whose next sync would start another thread.
        state.busy -= 1;
        job.ticket.complete(&job, outcome);
    }
}

impl SyncPool {
    /// Hands a sync over.
    pub fn begin(&self, tier: Arc<WatchedTier>, target: SyncTarget) -> PendingSync {
        self.begin_job(tier, target, None)
    }

    /// As [`Self::begin`]; `held` is dropped when the sync has ended.
    pub fn begin_holding(&self, tier: Arc<WatchedTier>, target: SyncTarget, held: impl Send + 'static) -> PendingSync {
        self.begin_job(tier, target, Some(Box::new(held)))
    }

    fn begin_job(&self, tier: Arc<WatchedTier>, target: SyncTarget, held: Option<Held>) -> PendingSync {
        let ticket = Arc::new(Ticket::default());
        let mut state = self.shared.state.lock();
        state.waiting.push_back(Job { tier: tier.clone(), target, ticket: ticket.clone(), held });
        let free = state.threads.len() - state.busy;
        // The checker of schedules knows no such thread; there the waiting caller carries the sync out.
        if cfg!(not(shuttle)) && state.waiting.len() > free && state.threads.len() < THREADS_MAX {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new().name("polymux-sync".to_owned()).spawn(move || serve(&shared));
            match started {
                Ok(thread) => state.threads.push(thread),
                Err(error) => log::debug!("no thread for a sync, its caller carries it out: {error}"),
            }
        }
        drop(state);
        self.shared.wake.notify_one();
        PendingSync { shared: self.shared.clone(), tier, ticket }
    }

    /// Threads started so far.
    pub fn threads_started(&self) -> usize {
        self.shared.state.lock().threads.len()
    }
}

impl Drop for SyncPool {
    fn drop(&mut self) {
        let (threads, busy) = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            (std::mem::take(&mut state.threads), state.busy)
        };
        self.shared.wake.notify_all();
        if busy > 0 {
            // An abandoned sync hangs in its tier: its thread ends when the tier lets it go.
            return;
        }
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread that syncs tiers ended abnormally");
            }
        }
    }
}

impl PendingSync {
    /// Waits for the sync, or carries it out where no thread has begun with it.
    pub fn wait(self) -> Outcome {
        let own = {
            let mut state = self.shared.state.lock();
            let place = state.waiting.iter().position(|job| Arc::ptr_eq(&job.ticket, &self.ticket));
            place.and_then(|place| state.waiting.remove(place))
        };
        if let Some(mut job) = own {
            return carry_out(&mut job);
        }
        let mut state = self.ticket.state.lock();
        loop {
            if let TicketState::Done(outcome) = &*state {
                return outcome.clone();
            }
            if self.tier.refuses_syncs() {
                *state = TicketState::Abandoned;
                return Err(TierError::NotAnswering);
            }
            // The checker of schedules has no time, and no thread of the pool.
            if cfg!(shuttle) {
                self.ticket.done.wait(&mut state);
            } else {
                self.ticket.done.wait_for(&mut state, LOOK_INTERVAL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::Change;
    use super::*;
    use polymux_sim::{FaultyTier, MemoryTier, OperationKind};
    use polymux_types::{Bucket, ObjectId};

    fn tier_with_objects(count: u64) -> Arc<WatchedTier> {
        let tier = Arc::new(WatchedTier::new(Arc::new(MemoryTier::new("t", 1 << 20)), Duration::ZERO));
        for id in 0..count {
            let object = ObjectRef::new(ObjectId(id), Bucket(0));
            tier.create(object).unwrap();
            tier.write(object, 0, b"x", polymux_tier::Wait::Allowed).unwrap();
        }
        tier
    }

    #[test]
    fn one_sync_after_the_other_needs_one_thread() {
        let pool = SyncPool::default();
        let tier = tier_with_objects(1);
        let object = ObjectRef::new(ObjectId(0), Bucket(0));
        for _ in 0..1000 {
            pool.begin(tier.clone(), SyncTarget::Object(object)).wait().unwrap();
        }
        assert_eq!(pool.threads_started(), 1);
    }

    #[test]
    fn more_syncs_than_threads_are_all_carried_out() {
        let pool = SyncPool::default();
        let tier = tier_with_objects(200);
        let object = |id| ObjectRef::new(ObjectId(id), Bucket(0));
        let pending: Vec<_> = (0..200).map(|id| pool.begin(tier.clone(), SyncTarget::Object(object(id)))).collect();
        for sync in pending {
            sync.wait().unwrap();
        }
        assert!((0..200).all(|id| !tier.is_unsynced(object(id))));
        assert!(pool.threads_started() <= THREADS_MAX);
    }

    #[test]
    fn what_is_held_for_a_sync_is_let_go_with_its_end_although_nobody_asks_for_it_yet() {
        let slow = Arc::new(FaultyTier::new(tier_with_objects(1)));
        slow.hang(&[OperationKind::Sync]);
        let slow_tier = Arc::new(WatchedTier::new(slow.clone(), Duration::ZERO));
        let target = SyncTarget::Object(ObjectRef::new(ObjectId(0), Bucket(0)));
        let (pool, held) = (SyncPool::default(), [Arc::new(()), Arc::new(())]);
        let pending = [
            pool.begin_holding(slow_tier, target, held[0].clone()),
            pool.begin_holding(tier_with_objects(1), target, held[1].clone()),
        ];
        while Arc::strong_count(&held[1]) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&held[0]), 2, "this one is under way");
        slow.release();
        for sync in pending {
            sync.wait().unwrap();
        }
        assert_eq!(Arc::strong_count(&held[0]), 1);
    }

    #[test]
    fn a_failure_reaches_whoever_waits() {
        let pool = SyncPool::default();
        let object = ObjectRef::new(ObjectId(7), Bucket(0));
        let outcome = pool.begin(tier_with_objects(1), SyncTarget::Object(object)).wait();
        assert!(matches!(outcome, Err(TierError::NotFound(_))), "{outcome:?}");
    }

    #[test]
    fn nobody_waits_for_a_tier_that_does_not_answer_and_its_failure_is_told_to_the_next() {
        let faulty = Arc::new(FaultyTier::new(tier_with_objects(1)));
        let tier = Arc::new(WatchedTier::new(faulty.clone(), Duration::ZERO));
        let object = ObjectRef::new(ObjectId(0), Bucket(0));
        let pool = SyncPool::default();
        faulty.hang(&[OperationKind::Sync]);
        faulty.fail_always(OperationKind::Sync, TierError::Io { operation: "syncing", errno: Errno::EIO });
        let pending = pool.begin(tier.clone(), SyncTarget::Object(object));
        while faulty.hanging_calls() == 0 {
            std::thread::yield_now();
        }
        for moment in [1, 50, 100] {
            tier.look(Duration::from_secs(moment), 1000);
        }
        assert_eq!(pending.wait(), Err(TierError::NotAnswering));
        assert_eq!(tier.sync(object), Err(TierError::NotAnswering), "not made at all");
        faulty.release();
        while !matches!(tier.look(Duration::from_secs(101), 1000), Change::AnswersAgain) {
            std::thread::yield_now();
        }
        while !tier.has_untold(object) {
            std::thread::yield_now();
        }
        faulty.heal();
        assert!(matches!(tier.sync(object), Err(TierError::Io { .. })));
        assert_eq!(tier.sync(object), Ok(()));
    }
}
