//! Files that were emptied and rewritten: the state of each, and the queue of those that are closed and not durable yet.
//!
//! Invariants:
//! * A file is in the queue at most once, on the list of one tier.
//! * An emptying is counted when it was carried out, after the description that did it was counted as a writer.
//!
//! Lock order: the queue is a leaf.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use polymux_types::TierId;
use polymux_types::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

use super::Inode;

/// How often a file was emptied, and how many of these a sync came after.
#[derive(Debug, Default)]
pub(crate) struct Emptyings {
    count: AtomicU64,
    synced: AtomicU64,
    is_queued: AtomicBool,
}

impl Emptyings {
    /// The file was emptied, or has to be synced as if it just were.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether the file was emptied and not synced since.
    pub(crate) fn are_unsynced(&self) -> bool {
        self.count() != self.synced.load(Ordering::SeqCst)
    }

    /// A sync of the file begins.
    pub(crate) fn note_sync(&self) {
        self.synced.store(self.count(), Ordering::SeqCst);
    }
}

/// Files that are synced in the background, each on the list of a tier.
#[derive(Debug, Default)]
pub(crate) struct RewrittenFiles {
    lists: Mutex<BTreeMap<TierId, Waiting>>,
    /// A daemon that died may have had files in its queue.
    may_have_lost_some: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    files: VecDeque<Arc<Inode>>,
    /// After a failure.
    rests_until: Duration,
}

impl RewrittenFiles {
    /// An earlier daemon died, and its queue with it.
    pub(crate) fn note_death(&self) {
        self.may_have_lost_some.store(true, Ordering::Release);
    }

    /// Whether an earlier daemon may have had files in its queue; asked once.
    pub(crate) fn take_death(&self) -> bool {
        self.may_have_lost_some.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.lock().values().all(|waiting| waiting.files.is_empty())
    }

    /// Files that wait on the list of a tier, unless it rests.
    pub(crate) fn waiting_on(&self, tier: TierId, now: Duration) -> usize {
        let lists = self.lists.lock();
        lists.get(&tier).filter(|waiting| waiting.rests_until <= now).map_or(0, |waiting| waiting.files.len())
    }

    /// Puts a file on the list of a tier, where it is on none.
    pub(crate) fn add(&self, tier: TierId, inode: &Arc<Inode>) {
        let Some(file) = inode.file() else { return };
        if !file.emptyings.is_queued.swap(true, Ordering::SeqCst) {
            self.lists.lock().entry(tier).or_default().files.push_back(Arc::clone(inode));
        }
    }

    /// Takes the file that has waited longest. A release from now on puts it back.
    pub(crate) fn take(&self, tier: TierId) -> Option<Arc<Inode>> {
        let inode = self.lists.lock().get_mut(&tier)?.files.pop_front()?;
        if let Some(file) = inode.file() {
            file.emptyings.is_queued.store(false, Ordering::SeqCst);
        }
        Some(inode)
    }

    /// A sync failed: the list of a tier rests until then.
    pub(crate) fn rest(&self, tier: TierId, until: Duration) {
        self.lists.lock().entry(tier).or_default().rests_until = until;
    }

    /// Forgets all files.
    pub(crate) fn clear(&self) {
        self.lists.lock().clear();
    }
}
