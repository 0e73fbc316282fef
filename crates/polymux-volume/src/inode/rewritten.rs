//! Files that were emptied and rewritten: the state of each, and the queue of those that are closed and not durable yet.
//!
//! Invariants:
//! * A file waits on the list of one tier, or of none. Where it was moved to another list, the old one passes over it.
//! * An emptying is counted when it was carried out, after the description that did it was counted as a writer.
//!
//! Lock order: the lists are a leaf.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use polymux_types::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use polymux_types::{Ino, TierId};

use super::Inode;

/// How often a file was emptied, how many of these a sync came after, and where it waits for one.
#[derive(Debug, Default)]
pub struct Emptyings {
    count: AtomicU64,
    synced: AtomicU64,
    /// One more than the number of the tier; 0: it waits on no list.
    waits_on: AtomicU32,
}

impl Emptyings {
    /// The file was emptied, or has to be synced as if it just were.
    pub fn note(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether the file was emptied, and no close or background sync of its new content began since.
    pub fn are_unsynced(&self) -> bool {
        self.count() != self.synced.load(Ordering::SeqCst)
    }

    /// Such a sync begins.
    pub fn note_sync(&self) {
        self.synced.store(self.count(), Ordering::SeqCst);
    }
}

/// Files that are synced in the background, each on the list of a tier.
#[derive(Debug, Default)]
pub struct RewrittenFiles {
    lists: Mutex<BTreeMap<TierId, Waiting>>,
    /// Tiers of which an earlier daemon may have had files in its queue when it died.
    of_the_dead: Mutex<BTreeSet<TierId>>,
    /// A file without objects was rewritten: the log has to be flushed.
    wants_flush: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    files: VecDeque<Arc<Inode>>,
    /// Those of `files`, some of which wait elsewhere now.
    members: HashSet<Ino>,
    /// The first so many were covered by a sync of the whole tier.
    covered: usize,
    /// After a failure.
    rests_until: Duration,
}

fn number(tier: TierId) -> u32 {
    u32::from(tier.0) + 1
}

impl RewrittenFiles {
    /// An earlier daemon died, and its lists with it.
    pub fn note_death(&self, tier: TierId) {
        self.of_the_dead.lock().insert(tier);
    }

    /// Whether an earlier daemon may have had files on the list of a tier. The caller syncs everything there.
    pub fn take_death(&self, tier: TierId) -> bool {
        self.of_the_dead.lock().remove(&tier)
    }

    /// Whether no such file waits.
    pub fn is_empty(&self) -> bool {
        !self.wants_flush.load(Ordering::Acquire) && self.lists.lock().values().all(|waiting| waiting.files.is_empty())
    }

    /// Whether a sync on a tier failed just now.
    pub fn rests(&self, tier: TierId, now: Duration) -> bool {
        self.lists.lock().get(&tier).is_some_and(|waiting| waiting.rests_until > now)
    }

    /// Files that wait on the list of a tier, and how many of them a sync of the whole tier covered.
    pub fn waiting_on(&self, tier: TierId) -> (usize, usize) {
        self.lists.lock().get(&tier).map_or((0, 0), |waiting| (waiting.files.len(), waiting.covered))
    }

    /// The whole tier was synced after so many files had come to its list.
    pub fn note_covered(&self, tier: TierId, files: usize) {
        self.lists.lock().entry(tier).or_default().covered = files;
    }

    /// The log is to be flushed soon, for a file that has no object.
    pub fn want_flush(&self) {
        self.wants_flush.store(true, Ordering::Release);
    }

    /// Whether the log is to be flushed for such files; asked once for each wish.
    pub fn take_flush(&self) -> bool {
        self.wants_flush.swap(false, Ordering::AcqRel)
    }

    /// Puts a file at the end of the list of a tier, unless it is there.
    pub fn add(&self, tier: TierId, inode: &Arc<Inode>) {
        let Some(file) = inode.file() else { return };
        if file.durability.emptyings.waits_on.swap(number(tier), Ordering::SeqCst) != number(tier) {
            let mut lists = self.lists.lock();
            let waiting = lists.entry(tier).or_default();
            if waiting.members.insert(inode.ino) {
                waiting.files.push_back(Arc::clone(inode));
            }
        }
    }

    /// Takes the file that has waited longest. A release from now on puts it back.
    pub fn take(&self, tier: TierId) -> Option<Arc<Inode>> {
        let mut lists = self.lists.lock();
        let waiting = lists.get_mut(&tier)?;
        while let Some(inode) = waiting.files.pop_front() {
            waiting.members.remove(&inode.ino);
            waiting.covered = waiting.covered.saturating_sub(1);
            let waits_on = inode.file().map(|file| &file.durability.emptyings.waits_on);
            let exchange =
                |waits_on: &AtomicU32| waits_on.compare_exchange(number(tier), 0, Ordering::SeqCst, Ordering::SeqCst);
            if waits_on.is_some_and(|waits_on| exchange(waits_on).is_ok()) {
                return Some(inode);
            }
        }
        None
    }

    /// A sync failed: the list of a tier rests until then.
    pub fn rest(&self, tier: TierId, until: Duration) {
        self.lists.lock().entry(tier).or_default().rests_until = until;
    }

    /// Forgets the files on the list of a tier.
    pub fn forget(&self, tier: TierId) {
        while self.take(tier).is_some() {}
    }
}
