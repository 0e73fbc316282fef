//! Threads that sync objects while the requesting thread flushes the log or syncs another tier (A14).
//!
//! What is true here:
//! * A thread is started only when every other one is busy, so that an fsync in the usual case starts none.
//! * Whoever waits for a sync that no thread has taken up carries it out itself: nobody waits for the pool, and a tier
//!   that hangs keeps the threads that it has and nobody else's syncs.
//! * The threads know tiers and objects. What a failure means for a file is the requesting thread's business.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::Errno;
use polymux_types::sync::{Condvar, Mutex};

/// Most threads at once. More than this many syncs are under way only where their callers carry them out.
const THREADS_MAX: usize = 16;

type Outcome = std::result::Result<(), TierError>;

/// What is to be made durable.
#[derive(Clone, Copy)]
pub(crate) enum SyncTarget {
    Object(ObjectRef),
    /// Everything on the tier.
    All,
}

struct Job {
    tier: Arc<dyn Tier>,
    target: SyncTarget,
    ticket: Arc<Ticket>,
}

#[derive(Default)]
struct Ticket {
    outcome: Mutex<Option<Outcome>>,
    done: Condvar,
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
pub(crate) struct SyncPool {
    shared: Arc<Shared>,
}

/// A sync that was handed over. Not waiting for it is a mistake: its outcome would be lost.
#[must_use]
pub(crate) struct PendingSync {
    shared: Arc<Shared>,
    ticket: Arc<Ticket>,
}

fn carry_out(job: &Job) -> Outcome {
    let sync = || match job.target {
        SyncTarget::Object(object) => job.tier.sync(object),
        SyncTarget::All => job.tier.sync_all(),
    };
    // Whoever waits must hear of it, whatever happens.
    std::panic::catch_unwind(AssertUnwindSafe(sync))
        .unwrap_or(Err(TierError::Io { operation: "syncing", errno: Errno::EIO }))
}

fn serve(shared: &Shared) {
    let mut state = shared.state.lock();
    while !state.closed {
        let Some(job) = state.waiting.pop_front() else {
            shared.wake.wait(&mut state);
            continue;
        };
        state.busy += 1;
        drop(state);
        let outcome = carry_out(&job);
        state = shared.state.lock();
        // Free before the caller hears of it, whose next sync would start another thread.
        state.busy -= 1;
        *job.ticket.outcome.lock() = Some(outcome);
        job.ticket.done.notify_all();
    }
}

impl SyncPool {
    /// Hands a sync over.
    pub(crate) fn begin(&self, tier: Arc<dyn Tier>, target: SyncTarget) -> PendingSync {
        let ticket = Arc::new(Ticket::default());
        let mut state = self.shared.state.lock();
        state.waiting.push_back(Job { tier, target, ticket: ticket.clone() });
        let free = state.threads.len() - state.busy;
        // The checker of schedules knows no such thread; there whoever waits carries the sync out.
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
        PendingSync { shared: self.shared.clone(), ticket }
    }

    /// Threads started so far.
    pub(crate) fn threads_started(&self) -> usize {
        self.shared.state.lock().threads.len()
    }
}

impl Drop for SyncPool {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread that syncs tiers ended abnormally");
            }
        }
    }
}

impl PendingSync {
    /// Waits for the sync, or carries it out where no thread has begun with it.
    pub(crate) fn wait(self) -> Outcome {
        let own = {
            let mut state = self.shared.state.lock();
            let place = state.waiting.iter().position(|job| Arc::ptr_eq(&job.ticket, &self.ticket));
            place.and_then(|place| state.waiting.remove(place))
        };
        if let Some(job) = own {
            return carry_out(&job);
        }
        let mut outcome = self.ticket.outcome.lock();
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            self.ticket.done.wait(&mut outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_sim::MemoryTier;
    use polymux_types::{Bucket, ObjectId};

    fn tier_with_objects(count: u64) -> Arc<MemoryTier> {
        let tier = Arc::new(MemoryTier::new("t", 1 << 20));
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
    fn a_failure_reaches_whoever_waits() {
        let pool = SyncPool::default();
        let object = ObjectRef::new(ObjectId(7), Bucket(0));
        let outcome = pool.begin(tier_with_objects(1), SyncTarget::Object(object)).wait();
        assert!(matches!(outcome, Err(TierError::NotFound(_))), "{outcome:?}");
    }
}
