//! The table of inodes in memory.
//!
//! Invariants:
//! * There is at most one `Inode` of a number in memory while references to it exist. A loaded one is inserted only if no
//!   inode left its shard since before the read: an inode whose record changes is in the table during the change.
//! * One that is open, deleted but still pinned, or has times or a size that are not in its record stays; and so does a directory of which the
//!   kernel may have an outdated listing.
//! * When a pinned inode leaves, its shard keeps the count (`PinCounts`), and the inode gets it back when it is loaded again. So the
//!   memory taken by inodes known to the kernel does not grow with `Inode` structures (the kernel knows millions after a walk).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polymux_records::error::Result;
use polymux_records::store::BLOCK_BITS;
use polymux_types::Ino;
use polymux_types::sync::RwLock;
use smallvec::SmallVec;

use super::Inode;
use super::number_hash::NumberMap;
use super::pin_counts::PinCounts;

/// Who refers to an inode, and whether it is being deleted.
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// References by number (FUSE lookup counts).
    pub pins: u64,
    /// Open descriptions.
    pub handles: u64,
    /// Those of them that may write.
    pub writers: u64,
    /// Deleted for good: its record is gone or going in the present transaction.
    pub gone: bool,
}

impl Lifecycle {
    pub fn in_use(&self) -> bool {
        self.pins > 0 || self.handles > 0
    }
}

/// Many more than threads, because a thread that the machine stops while it holds one keeps others out of it.
const SHARDS: usize = 256;

/// Inodes looked at when one comes in: more than one, so that a table that grew too large shrinks again.
const EVICTION_STEPS: usize = 3;

/// An inode in the table.
#[derive(Debug)]
struct Slot {
    inode: Arc<Inode>,
    /// It was asked for since it was last considered for eviction.
    is_used: AtomicBool,
}

impl Slot {
    fn take(&self) -> Arc<Inode> {
        // Checked first: storing the value that it already has would take the cache line from all other threads.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        self.inode.clone()
    }
}

#[derive(Debug, Default)]
struct Slots {
    inodes: NumberMap<Ino, Slot>,
    /// Numbers in the order in which they are considered for eviction (the clock algorithm). Some may be gone already.
    order: VecDeque<Ino>,
    /// Inodes that ever left.
    departures: u64,
    /// Pins of those that left.
    pins: PinCounts,
}

/// Locks of neighbouring shards are not on the same cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<Slots>);

impl Slots {
    fn insert(&mut self, inode: Arc<Inode>) {
        self.order.push_back(inode.ino);
        self.inodes.insert(inode.ino, Slot { inode, is_used: AtomicBool::new(true) });
    }

    /// Takes out inodes that are unreferenced and not asked for lately, a few steps at a time. The caller drops them without the lock.
    fn evict(&mut self, idle_max: usize) -> SmallVec<[Slot; EVICTION_STEPS]> {
        let mut evicted = SmallVec::new();
        for _ in 0..EVICTION_STEPS {
            let is_full = self.inodes.len() > idle_max;
            // Numbers of inodes that were deleted are taken out here, too.
            if !is_full && self.order.len() <= 2 * idle_max {
                break;
            }
            let Some(ino) = self.order.pop_front() else { break };
            let Some(slot) = self.inodes.get_mut(&ino) else { continue };
            let was_used = std::mem::take(slot.is_used.get_mut());
            if !is_full || was_used || Arc::strong_count(&slot.inode) > 1 || must_stay(&slot.inode) {
                self.order.push_back(ino);
            } else {
                let pins = std::mem::take(&mut slot.inode.lifecycle.lock().pins);
                self.pins.put(ino, pins);
                evicted.extend(self.inodes.remove(&ino));
                self.departures += 1;
            }
        }
        evicted
    }
}

/// All inodes in memory.
#[derive(Debug)]
pub struct InodeTable {
    shards: Box<[Shard]>,
    idle_per_shard_max: usize,
}

impl InodeTable {
    /// A table that keeps about `idle_max` unreferenced inodes.
    pub fn new(idle_max: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, idle_per_shard_max: (idle_max / SHARDS).max(1) }
    }

    fn shard(&self, ino: Ino) -> &RwLock<Slots> {
        // Numbers of one block are made by one thread one after the other: it finds its shard in the cache.
        &self.shards[((ino.0 >> BLOCK_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize].0
    }

    /// The inode of a number, loaded by `load` where it is not in memory.
    pub(crate) fn get_or_load(&self, ino: Ino, load: impl Fn() -> Result<Option<Inode>>) -> Result<Option<Arc<Inode>>> {
        let shard = self.shard(ino);
        loop {
            let departures = {
                let slots = shard.read();
                match slots.inodes.get(&ino) {
                    Some(slot) => return Ok(Some(slot.take())),
                    None => slots.departures,
                }
            };
            // Loading may wait for a medium, so it is done without the lock.
            let loaded = load();
            let mut slots = shard.write();
            if let Some(slot) = slots.inodes.get(&ino) {
                return Ok(Some(slot.take()));
            }
            if slots.departures != departures {
                // One that was here meanwhile may have changed its records after they were read, or between.
                continue;
            }
            let Some(inode) = loaded?.map(Arc::new) else { return Ok(None) };
            inode.lifecycle.lock().pins = slots.pins.take(ino);
            slots.insert(inode.clone());
            let evicted = slots.evict(self.idle_per_shard_max);
            drop(slots);
            drop(evicted);
            return Ok(Some(inode));
        }
    }

    /// The inode of a number where it is in memory.
    #[inline]
    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).read().inodes.get(&ino).map(Slot::take)
    }

    /// Takes pins of an inode back where it is not in memory; where it is, it is returned, and nothing was done.
    pub fn unpin_absent(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        let mut slots = self.shard(ino).write();
        if let Some(slot) = slots.inodes.get(&ino) {
            return Some(slot.take());
        }
        let pins = slots.pins.take(ino);
        slots.pins.put(ino, pins.saturating_sub(count));
        None
    }

    /// Adds an inode that was just made.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut slots = self.shard(inode.ino).write();
        assert!(!slots.inodes.contains_key(&inode.ino), "inode numbers are never reused");
        slots.insert(inode);
        let evicted = slots.evict(self.idle_per_shard_max);
        drop(slots);
        drop(evicted);
    }

    /// Drops an inode that was deleted for good.
    pub fn remove(&self, ino: Ino) {
        let mut slots = self.shard(ino).write();
        let removed = slots.inodes.remove(&ino);
        slots.departures += 1;
        drop(slots);
        drop(removed);
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().inodes.len()).sum()
    }

    /// All inodes in memory, for flushing and reports.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.all_where(|_| true)
    }

    /// Those of which this is true. It is asked with a lock of the table held.
    pub fn all_where(&self, is_wanted: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let of = |shard: &Shard| {
            let shard = shard.0.read();
            let wanted = shard.inodes.values().filter(|slot| is_wanted(&slot.inode));
            wanted.map(|slot| slot.inode.clone()).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }
}

fn must_stay(inode: &Inode) -> bool {
    // Unsynced bytes are the tier's to remember: it keeps the mark, and a failure, until a sync of the object is asked for.
    // A size that is not on record is not.
    inode.times_dirty.load(Ordering::Acquire)
        || is_referred_to(inode)
        || inode.file().is_some_and(|file| file.has_unsettled_tail() || file.allocation.contradicts_record())
}

/// Whether more than a count has to be remembered of who refers to it.
fn is_referred_to(inode: &Inode) -> bool {
    let lifecycle = inode.lifecycle.lock();
    // Without a name, its last reference deletes it.
    lifecycle.handles > 0 || lifecycle.pins > 0 && (lifecycle.gone || inode.common.read().links == 0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use polymux_meta::Sequence;
    use polymux_types::{Bucket, ObjectId, TierId, Timestamp};

    use super::*;
    use crate::inode::SizeTrust;
    use polymux_records::attributes::FileKind;
    use polymux_records::store::{FileRecord, InodeBody, InodeRecord, ObjectEntry};

    fn inode(ino: u64, generation: u32) -> Inode {
        let time = Timestamp::default();
        let record = InodeRecord {
            permissions: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            generation,
            has_access_acl: false,
            has_default_acl: false,
            lacks_xattrs: true,
            attribute_flags: 0,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
            body: InodeBody::Special { kind: FileKind::Fifo, device: 0 },
        };
        Inode::from_record(Ino(ino), record, &[], Sequence(0), SizeTrust::Settled).expect("the record is sound")
    }

    #[test]
    fn an_inode_whose_record_has_numbers_that_are_too_old_stays() {
        let mut record = inode(1, 1).to_record(None);
        let entry = ObjectEntry::new(TierId(0), ObjectId(1), Bucket(0));
        let entry = ObjectEntry { allocated_blocks: Some(8), ..entry };
        record.body = InodeBody::Regular(FileRecord { home: Some(0), objects: vec![entry], ..FileRecord::default() });
        let inode = Inode::from_record(Ino(1), record, &[], Sequence(0), SizeTrust::Settled).expect("it is sound");
        assert!(!must_stay(&inode));
        inode.file().expect("it is a file").allocation.note_change();
        assert!(must_stay(&inode));
    }

    #[test]
    fn what_nobody_refers_to_goes_and_what_is_in_use_or_asked_for_stays() {
        let table = InodeTable::new(SHARDS);
        let held = Arc::new(inode(1, 1));
        table.insert(held.clone());
        let open = Arc::new(inode(2, 1));
        open.lifecycle.lock().handles = 1;
        table.insert(open);
        let deleted = Arc::new(inode(3, 1));
        deleted.common.write().links = 0;
        deleted.lifecycle.lock().pins = 1;
        table.insert(deleted);
        for ino in 4..20_000 {
            table.insert(Arc::new(inode(ino, 1)));
        }
        assert!(table.len() < SHARDS * 4, "{} inodes stay", table.len());
        assert!(table.get(Ino(1)).is_some_and(|found| Arc::ptr_eq(&found, &held)));
        assert!(table.get(Ino(2)).is_some() && table.get(Ino(3)).is_some());
    }

    #[test]
    fn of_what_is_pinned_the_count_stays_and_comes_back_with_it() {
        let table = InodeTable::new(SHARDS);
        for ino in 1..20_000 {
            let pinned = inode(ino, 1);
            pinned.lifecycle.lock().pins = 3;
            table.insert(Arc::new(pinned));
        }
        assert!(table.len() < SHARDS * 4, "{} inodes stay", table.len());
        let absent = (1..20_000).map(Ino).find(|ino| table.get(*ino).is_none()).expect("most have left");
        assert!(table.unpin_absent(absent, 1).is_none());
        let load = || Ok(Some(inode(absent.0, 1)));
        let back = table.get_or_load(absent, load).expect("loaded").expect("it exists");
        assert_eq!(back.lifecycle.lock().pins, 2);
        let present = table.unpin_absent(absent, 1).expect("it is in memory");
        assert!(Arc::ptr_eq(&present, &back));
        assert_eq!(back.lifecycle.lock().pins, 2, "whoever asks takes them back himself");
    }

    #[test]
    fn what_was_read_before_another_copy_left_is_read_again() {
        let table = InodeTable::new(SHARDS);
        let reads = Cell::new(0);
        let found = table.get_or_load(Ino(7), || {
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                // Meanwhile another thread loads it, changes its record, and it is evicted.
                table.insert(Arc::new(inode(7, 1)));
                table.remove(Ino(7));
            }
            Ok(Some(inode(7, reads.get())))
        });
        assert_eq!(found.expect("loaded").expect("it exists").generation, 2);
    }

    #[test]
    fn a_copy_that_came_in_meanwhile_is_the_truth() {
        let table = InodeTable::new(SHARDS);
        let first = Arc::new(inode(7, 1));
        let found = table.get_or_load(Ino(7), || {
            table.insert(first.clone());
            Ok(Some(inode(7, 2)))
        });
        assert!(Arc::ptr_eq(&found.expect("loaded").expect("it exists"), &first));
    }
}
