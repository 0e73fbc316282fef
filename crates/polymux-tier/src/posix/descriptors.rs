//! The descriptor cache: at most so many objects open, least recently used first out, none with unsynced bytes.

use std::collections::{HashMap, HashSet};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::ReadWriteFlags;

use crate::error::TierError;
use crate::object::{MemoryReads, ObjectRef};

const SHARDS_MAX: usize = 16;

/// An open object, shared by all its users.
pub(super) struct OpenObject {
    pub(super) descriptor: OwnedFd,
    /// Raised before and after every change of the object.
    change: AtomicU64,
    /// The change that the last successful sync covered.
    synced: AtomicU64,
    /// Bytes written since then, for the limit on writes that must not wait.
    pub(super) bytes_unsynced: AtomicU64,
    /// Bytes that the object takes, as last counted into the tier's sum.
    pub(super) allocated: AtomicU64,
    last_used: AtomicU64,
    /// One sync at a time, because the kernel reports a failure to one caller only; holds the last failure.
    pub(super) sync_turn: Mutex<Option<TierError>>,
    /// How many syncs through this descriptor failed.
    pub(super) sync_failures: AtomicU64,
    /// Passthrough opens for changes that this tier does not see.
    changers: AtomicU32,
    /// Passthrough opens of any kind. Changes while the number of passthrough-open objects of the tier is locked.
    pub(super) loans: AtomicU32,
    /// Read-ahead by the kernel is switched off.
    pub(super) reads_exactly: AtomicBool,
    /// Held while that changes.
    pub(super) advice_turn: Mutex<()>,
    /// Memory answered a read of it since it was last looked at as a victim.
    is_read_from_memory: AtomicBool,
}

impl OpenObject {
    pub(super) fn new(descriptor: OwnedFd, allocated: u64) -> Self {
        Self {
            descriptor,
            change: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            bytes_unsynced: AtomicU64::new(0),
            allocated: AtomicU64::new(allocated),
            last_used: AtomicU64::new(0),
            sync_turn: Mutex::default(),
            sync_failures: AtomicU64::new(0),
            changers: AtomicU32::new(0),
            loans: AtomicU32::new(0),
            reads_exactly: AtomicBool::new(false),
            advice_turn: Mutex::default(),
            is_read_from_memory: AtomicBool::new(false),
        }
    }

    /// Runs a change of the object. A sync that runs beside it does not cover it: the mark rises once more at its end.
    pub(super) fn changing<T>(&self, change: impl FnOnce() -> T) -> T {
        self.change.fetch_add(1, Ordering::SeqCst);
        let result = change();
        self.change.fetch_add(1, Ordering::SeqCst);
        result
    }

    pub(super) fn is_unsynced(&self) -> bool {
        self.changers.load(Ordering::SeqCst) > 0
            || self.change.load(Ordering::SeqCst) != self.synced.load(Ordering::SeqCst)
    }

    /// From now on the object may change without this tier seeing it.
    pub(super) fn begin_loan(&self) {
        self.changers.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a passthrough open for changes; the last of these changes are unsynced.
    pub(super) fn end_loan(&self) {
        self.changing(|| ());
        self.changers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The changes that a sync beginning now will cover.
    pub(super) fn mark(&self) -> u64 {
        self.change.load(Ordering::SeqCst)
    }

    /// A sync that began at `mark` succeeded.
    pub(super) fn note_synced(&self, mark: u64) {
        self.synced.fetch_max(mark, Ordering::SeqCst);
    }
}

impl MemoryReads for OpenObject {
    fn read_from_memory(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        // Most find it set already.
        if !self.is_read_from_memory.load(Ordering::Relaxed) {
            self.is_read_from_memory.store(true, Ordering::Relaxed);
        }
        rustix::io::preadv2(&self.descriptor, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).ok()
    }
}

#[derive(Default)]
struct Shard {
    open: HashMap<ObjectRef, Arc<OpenObject>>,
}

/// All open objects, and the state known of those that were closed.
pub(super) struct DescriptorCache {
    /// No more than descriptors allowed, so that one for each shard is within the limit.
    shards: Box<[Mutex<Shard>]>,
    per_shard_max: usize,
    clock: AtomicU64,
    /// Failed syncs that were not reported yet.
    failures: Mutex<HashMap<ObjectRef, TierError>>,
    /// Objects whose directory entry may not be durable.
    created: Mutex<HashSet<ObjectRef>>,
}

impl DescriptorCache {
    pub(super) fn new(descriptors_max: usize) -> Self {
        assert!(descriptors_max > 0, "at least one object must be open to be used");
        let shards = descriptors_max.min(SHARDS_MAX);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            per_shard_max: descriptors_max / shards,
            clock: AtomicU64::new(1),
            failures: Mutex::default(),
            created: Mutex::default(),
        }
    }

    fn shard(&self, object: ObjectRef) -> &Mutex<Shard> {
        let spread = object.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.shards[usize::try_from(spread).expect("four bits fit") % self.shards.len()]
    }

    fn touch(&self, object: &OpenObject) {
        object.last_used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn get(&self, object: ObjectRef) -> Option<Arc<OpenObject>> {
        let found = self.shard(object).lock().open.get(&object).cloned()?;
        self.touch(&found);
        Some(found)
    }

    /// Adds an object that was just opened; where another thread opened it meanwhile, its descriptor is returned.
    pub(super) fn insert(&self, object: ObjectRef, opened: OpenObject) -> Arc<OpenObject> {
        let mut shard = self.shard(object).lock();
        let entry = shard.open.entry(object).or_insert_with(|| Arc::new(opened)).clone();
        self.touch(&entry);
        entry
    }

    /// The object to close next in the shard of `object`, where that has too many open.
    pub(super) fn victim(&self, object: ObjectRef) -> Option<(ObjectRef, Arc<OpenObject>)> {
        let shard = self.shard(object).lock();
        if shard.open.len() <= self.per_shard_max {
            return None;
        }
        shard
            .open
            .values()
            .filter(|open| open.is_read_from_memory.swap(false, Ordering::Relaxed))
            .for_each(|open| self.touch(open));
        shard
            .open
            .iter()
            .filter(|(of, open)| **of != object && Arc::strong_count(open) == 1)
            .min_by_key(|(_, open)| open.last_used.load(Ordering::Relaxed))
            .map(|(of, open)| (*of, open.clone()))
    }

    /// Closes a victim, unless another thread took it up or changed it meanwhile. Returns it for the last accounting.
    pub(super) fn close(&self, object: ObjectRef, victim: Arc<OpenObject>) -> Option<OpenObject> {
        let mut shard = self.shard(object).lock();
        // One reference is the table's and one the caller's.
        if Arc::strong_count(&victim) != 2 || victim.is_unsynced() {
            return None;
        }
        shard.open.remove(&object);
        drop(shard);
        // A reader from memory may have it for the time of a call, and takes no lock for that.
        let mut victim = victim;
        loop {
            match Arc::try_unwrap(victim) {
                Ok(closed) => return Some(closed),
                Err(shared) => victim = shared,
            }
            std::thread::yield_now();
        }
    }

    /// Forgets a removed object.
    pub(super) fn forget(&self, object: ObjectRef) -> Option<Arc<OpenObject>> {
        self.failures.lock().remove(&object);
        self.created.lock().remove(&object);
        self.shard(object).lock().open.remove(&object)
    }

    /// All open objects.
    pub(super) fn all(&self) -> Vec<(ObjectRef, Arc<OpenObject>)> {
        let of_shard = |shard: &Mutex<Shard>| -> Vec<_> {
            shard.lock().open.iter().map(|(object, open)| (*object, open.clone())).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    pub(super) fn record_failure(&self, object: ObjectRef, error: TierError) {
        self.failures.lock().insert(object, error);
    }

    pub(super) fn take_failure(&self, object: ObjectRef) -> Option<TierError> {
        self.failures.lock().remove(&object)
    }

    pub(super) fn has_failure(&self, object: ObjectRef) -> bool {
        self.failures.lock().contains_key(&object)
    }

    pub(super) fn note_created(&self, object: ObjectRef) {
        self.created.lock().insert(object);
    }

    pub(super) fn is_created(&self, object: ObjectRef) -> bool {
        self.created.lock().contains(&object)
    }

    /// Objects whose directory entry may not be durable.
    pub(super) fn created(&self) -> Vec<ObjectRef> {
        self.created.lock().iter().copied().collect()
    }

    pub(super) fn created_len(&self) -> usize {
        self.created.lock().len()
    }

    /// Directory entries that became durable.
    pub(super) fn forget_created(&self, objects: &[ObjectRef]) {
        let mut created = self.created.lock();
        for object in objects {
            created.remove(object);
        }
    }
}
