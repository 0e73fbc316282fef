//! Requests of the kernel that are under way, and who answers one whose thread is stuck (docs/design/0014).
//!
//! Invariants:
//! * A request is answered exactly once: by the thread that takes its reply out of its slot.
//! * A request is answered with `EIO` by the watcher only where its thread hangs in a tier that does not answer, or where it
//!   is about the same inode as such a request, behind which it waits. The late result of the thread is undone.
//! * An inode behind which [`CROWD`] requests hang already takes no more: they are answered with `EIO` at once. A program that tries
//!   again and again would otherwise take one thread after the other, until no thread serves the mount.
//! * Noting a request costs a few stores to memory that no other thread uses at the moment, and no look at a clock.

use std::num::NonZeroU64;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_transport::Reply;
use polymux_types::{Errno, InFlight, InFlightSlot, InFlightTable};

/// Requests that can be noted at once; more are served all the same, and wait for their tier however long it takes.
const SLOTS: usize = 1024;
/// A request that takes longer than this may be stuck.
pub(crate) const STALLED_MS: u64 = 100;

/// Requests that may hang behind one inode.
const CROWD: usize = 3;

/// A request under way. The word of its slot is the moment of its beginning in milliseconds plus one.
#[derive(Default)]
struct Request {
    ino: AtomicU64,
    owed: Mutex<Option<Reply>>,
}

type Slot = InFlightSlot<Request>;

/// All requests under way on one mount.
pub(crate) struct Requests {
    under_way: InFlightTable<Request>,
    /// The moment of the last look.
    now_ms: AtomicU64,
    /// Before this moment there was no look for long, and no request.
    rested_until_ms: AtomicU64,
    /// Inodes that take no more requests, and whether there are any.
    crowded: Mutex<Vec<u64>>,
    has_crowds: AtomicBool,
}

/// A request that is being served. Its slot is free again when this is dropped.
pub(crate) struct Debt<'a> {
    /// Freed after the reply was taken.
    slot: Option<InFlight<'a, Request>>,
    /// Where no slot was free.
    own: Option<Reply>,
}

impl Debt<'_> {
    /// The reply, to be answered now; `None` where the watcher has answered the request.
    pub(crate) fn take(mut self) -> Option<Reply> {
        match &self.slot {
            Some(slot) => lock(&slot.item.owed).take(),
            None => self.own.take(),
        }
    }
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            // Only after a panic a reply is still owed here: it fails before another thread gets the slot.
            drop(lock(&slot.item.owed).take());
        }
    }
}

/// Nothing that can panic runs under these locks.
fn lock<T>(owed: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    owed.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            under_way: InFlightTable::new(SLOTS),
            now_ms: AtomicU64::new(0),
            rested_until_ms: AtomicU64::new(0),
            crowded: Mutex::new(Vec::new()),
            has_crowds: AtomicBool::new(false),
        }
    }

    /// Notes a request about an inode on the calling thread; `None` where it was answered, because too many hang behind that
    /// inode.
    pub(crate) fn begin(&self, ino: u64, reply: Reply) -> Option<Debt<'_>> {
        if self.has_crowds.load(Ordering::Relaxed) && lock(&self.crowded).contains(&ino) {
            reply.error(Errno::EIO);
            return None;
        }
        Some(self.begin_always(ino, reply))
    }

    /// As [`Self::begin`], for a request that must be carried out in any case.
    pub(crate) fn begin_always(&self, ino: u64, reply: Reply) -> Debt<'_> {
        let began = NonZeroU64::MIN.saturating_add(self.now_ms.load(Ordering::Relaxed));
        let Some(slot) = self.under_way.take(began) else { return Debt { slot: None, own: Some(reply) } };
        slot.item.ino.store(ino, Ordering::Relaxed);
        *lock(&slot.item.owed) = Some(reply);
        Debt { slot: Some(slot), own: None }
    }

    /// Whether any request is under way.
    pub(crate) fn any_under_way(&self) -> bool {
        self.under_way.taken().next().is_some()
    }

    /// There was no request for long, nor a look at the time until now.
    pub(crate) fn rested_until(&self, now_ms: u64) {
        self.rested_until_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes the time; returns how many requests have been under way for longer than [`STALLED_MS`].
    pub(crate) fn look(&self, now_ms: u64) -> usize {
        self.now_ms.store(now_ms, Ordering::Relaxed);
        self.stalled(now_ms).count()
    }

    fn stalled(&self, now_ms: u64) -> impl Iterator<Item = (&Slot, NonZeroU64)> {
        let rested_until_ms = self.rested_until_ms.load(Ordering::Relaxed);
        self.under_way
            .taken()
            .filter(move |(_, began)| now_ms.saturating_sub((began.get() - 1).max(rested_until_ms)) >= STALLED_MS)
    }

    /// Answers the requests of these threads, and the requests that wait behind them, with `EIO`. Returns how many.
    pub(crate) fn fail_stuck(&self, stuck: &[usize], now_ms: u64) -> usize {
        let is_stuck = |slot: &Slot| stuck.contains(&slot.token());
        // The request that was found stalled is still there: another one would have begun later. Its inode is stored a moment after its thread; here
        // that was a tenth of a second ago.
        let inode_if_stuck = |(slot, began): (&Slot, NonZeroU64)| {
            let _owed = lock(&slot.item.owed);
            (slot.word() == Some(began) && is_stuck(slot)).then(|| slot.item.ino.load(Ordering::Relaxed))
        };
        let inos: Vec<u64> = self.stalled(now_ms).filter_map(inode_if_stuck).collect();
        self.note_crowds(&inos, now_ms);
        let mut failed = 0;
        for (slot, began) in self.stalled(now_ms) {
            let mut owed = lock(&slot.item.owed);
            // With a reply, which is stored after them, thread and inode are those of its request.
            let is_concerned = is_stuck(slot) || inos.contains(&slot.item.ino.load(Ordering::Relaxed));
            if slot.word() != Some(began) || !is_concerned {
                continue;
            }
            if let Some(owed) = owed.take() {
                owed.error(Errno::EIO);
                failed += 1;
            }
        }
        failed
    }

    /// Nothing hangs any more.
    pub(crate) fn forget_crowds(&self) {
        if self.has_crowds.swap(false, Ordering::Relaxed) {
            lock(&self.crowded).clear();
        }
    }

    /// Notes which of these inodes take no more requests.
    fn note_crowds(&self, inos: &[u64], now_ms: u64) {
        let hanging: Vec<u64> = self.stalled(now_ms).map(|(slot, _)| slot.item.ino.load(Ordering::Relaxed)).collect();
        let mut crowded = inos.to_vec();
        crowded.sort_unstable();
        crowded.dedup();
        crowded.retain(|ino| hanging.iter().filter(|other| *other == ino).count() >= CROWD);
        self.has_crowds.store(!crowded.is_empty(), Ordering::Relaxed);
        *lock(&self.crowded) = crowded;
    }
}
