//! Files that were emptied and rewritten: the state of each, and the queue of those that are closed and not durable yet.
//!
//! Invariants:
//! * A file waits on the list of one tier, or of none. Where it was moved to another list, the old one passes over it.
//! * An emptying is counted when it was carried out, after the description that did it was counted as a writer.
//!
//! Lock order: the lists are a leaf.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use polymux_types::TierId;
use polymux_types::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

use super::Inode;

/// How often a file was emptied, how many of these a sync came after, and where it waits for one.
#[derive(Debug, Default)]
pub(crate) struct Emptyings {
    count: AtomicU64,
    synced: AtomicU64,
    /// One more than the number of the tier; 0: it waits on no list.
    waits_on: AtomicU32,
}

impl Emptyings {
    /// The file was emptied, or has to be synced as if it just were.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether the file was emptied, and no sync for a program or for its new content began since.
    pub(crate) fn are_unsynced(&self) -> bool {
        self.count() != self.synced.load(Ordering::SeqCst)
    }

    /// Such a sync begins.
    pub(crate) fn note_sync(&self) {
        self.synced.store(self.count(), Ordering::SeqCst);
    }
}

/// Files that are synced in the background, each on the list of a tier.
#[derive(Debug, Default)]
pub(crate) struct RewrittenFiles {
    lists: Mutex<BTreeMap<TierId, Waiting>>,
    /// Tiers of which an earlier daemon may have had files in its queue when it died.
    of_the_dead: Mutex<BTreeSet<TierId>>,
}

#[derive(Debug, Default)]
struct Waiting {
    files: VecDeque<Arc<Inode>>,
    /// After a failure.
    rests_until: Duration,
}

fn number(tier: TierId) -> u32 {
    u32::from(tier.0) + 1
}

impl RewrittenFiles {
    /// An earlier daemon died, and its lists with it.
    pub(crate) fn note_death(&self, tier: TierId) {
        self.of_the_dead.lock().insert(tier);
    }

    /// Whether an earlier daemon may have had files on the list of a tier. The caller syncs everything there.
    pub(crate) fn take_death(&self, tier: TierId) -> bool {
        self.of_the_dead.lock().remove(&tier)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.lock().values().all(|waiting| waiting.files.is_empty())
    }

    /// Whether a sync on a tier failed just now.
    pub(crate) fn rests(&self, tier: TierId, now: Duration) -> bool {
        self.lists.lock().get(&tier).is_some_and(|waiting| waiting.rests_until > now)
    }

    /// Files that wait on the list of a tier.
    pub(crate) fn waiting_on(&self, tier: TierId) -> usize {
        self.lists.lock().get(&tier).map_or(0, |waiting| waiting.files.len())
    }

    /// Puts a file at the end of the list of a tier, unless it is there.
    pub(crate) fn add(&self, tier: TierId, inode: &Arc<Inode>) {
        let Some(file) = inode.file() else { return };
        if file.emptyings.waits_on.swap(number(tier), Ordering::SeqCst) != number(tier) {
            self.lists.lock().entry(tier).or_default().files.push_back(Arc::clone(inode));
        }
    }

    /// Takes the file that has waited longest. A release from now on puts it back.
    pub(crate) fn take(&self, tier: TierId) -> Option<Arc<Inode>> {
        let mut lists = self.lists.lock();
        let files = &mut lists.get_mut(&tier)?.files;
        while let Some(inode) = files.pop_front() {
            let waits_on = inode.file().map(|file| &file.emptyings.waits_on);
            let exchange =
                |waits_on: &AtomicU32| waits_on.compare_exchange(number(tier), 0, Ordering::SeqCst, Ordering::SeqCst);
            if waits_on.is_some_and(|waits_on| exchange(waits_on).is_ok()) {
                return Some(inode);
            }
        }
        None
    }

    /// A sync failed: the list of a tier rests until then.
    pub(crate) fn rest(&self, tier: TierId, until: Duration) {
        self.lists.lock().entry(tier).or_default().rests_until = until;
    }

    /// Forgets the files on the list of a tier.
    pub(crate) fn forget(&self, tier: TierId) {
        while self.take(tier).is_some() {}
    }
}
