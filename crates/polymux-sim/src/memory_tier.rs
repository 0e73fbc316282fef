//! A tier in memory that stands for a disk, with crashes.
//!
//! Invariants:
//! * The pages of all current objects never take more than the capacity, except right after a crash that brought
//!   removed objects back.
//! * An object survives a crash as of its last sync; a removal survives only after a sync of the whole tier.
//! * Labels are durable at once, as the trait promises. Only requests for bytes wait, and only on a simulated device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_tier::measure::Ground;
use polymux_tier::{
    AllocateMode, Capabilities, CounterSnapshot, Counters, Guarantee, Label, Loan, LoanPurpose, ObjectRef, ObjectStamp,
    ObjectStat, OverwriteStyle, Rotation, SeekTarget, Space, Tier, TierError, Wait,
};
use polymux_types::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use polymux_types::sync::RwLock;
use polymux_types::{Bucket, Clock, Errno, ObjectId, SystemClock, Timestamp};

use crate::memory_ground::MemoryGround;
use crate::memory_object::{Image, MemoryObject};
use crate::simulated_device::SimulatedDevice;

/// Objects by directory, so that one bucket is one range.
type Key = (Bucket, ObjectId);

fn key(object: ObjectRef) -> Key {
    (object.bucket, object.id)
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, MemoryObject>,
    /// Removed since the last sync of the whole tier; a crash restores their durable state.
    removed: BTreeMap<Key, MemoryObject>,
    stamps: BTreeMap<Key, ObjectStamp>,
    pages_used: u64,
    pages_max: u64,
    label: Option<Label>,
}

/// A tier in memory. See the module.
pub struct MemoryTier {
    name: String,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    counters: Counters,
    state: RwLock<State>,
    /// Share of any range that the tier says is in its page cache, in percent; [`CACHED_UNKNOWN`]: it does not say.
    cached_percent: AtomicU64,
    /// Takes the time of requests.
    device: Option<Arc<SimulatedDevice>>,
}

/// The tier does not report the content of its page cache.
const CACHED_UNKNOWN: u64 = u64::MAX;

impl MemoryTier {
    /// An empty tier without a label that takes `capacity` bytes of objects, rounded down to whole blocks. Each tier
    /// counts as a device of its own.
    #[must_use]
    pub fn new(name: impl Into<String>, capacity: u64) -> Self {
        Self::with_clock(name, capacity, Arc::new(SystemClock::new()))
    }

    /// Like [`MemoryTier::new`], with modification times from this clock.
    #[must_use]
    pub fn with_clock(name: impl Into<String>, capacity: u64, clock: Arc<dyn Clock>) -> Self {
        static DEVICE_NEXT: AtomicU64 = AtomicU64::new(1);
        let capabilities = Capabilities {
            file_system: "memory".to_owned(),
            guarantee: Guarantee::Durable,
            sparse: true,
            punch_hole: true,
            preallocate: true,
            allocates_ahead: false,
            seek_data: true,
            extended_attributes: true,
            nowait_read: true,
            uncached_read: false,
            nowait_write: true,
            file_size_max: FILE_SIZE_MAX,
            block_size: u32::try_from(BLOCK_SIZE).expect("a block is small"),
            timestamp_granularity_ns: 1,
            overwrite: OverwriteStyle::InPlace,
            is_limited: false,
            is_assumed: false,
            rotation: Rotation::NonRotational,
            device: DEVICE_NEXT.fetch_add(1, Ordering::Relaxed),
        };
        let state = RwLock::new(State { pages_max: capacity / BLOCK_SIZE, ..State::default() });
        Self {
            name: name.into(),
            capabilities,
            clock,
            counters: Counters::default(),
            state,
            cached_percent: AtomicU64::new(CACHED_UNKNOWN),
            device: None,
        }
    }

    /// A tier as a crash left it: everything on it is durable.
    pub(crate) fn of_images(
        name: &str,
        capacity: u64,
        clock: Arc<dyn Clock>,
        label: Option<Label>,
        objects: &BTreeMap<Key, (Image, Timestamp)>,
    ) -> Self {
        let tier = Self::with_clock(name, capacity, clock);
        {
            let mut state = tier.state.write();
            state.label = label;
            let left = |(key, (image, modified)): (&Key, &(Image, Timestamp))| {
                (*key, MemoryObject::of_image(image.clone(), *modified))
            };
            state.objects = objects.iter().map(left).collect();
            state.pages_used = state.objects.values().map(|object| object.allocated() / BLOCK_SIZE).sum();
        }
        tier
    }

    /// The name it was made with, for messages of tests.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Replaces the reported capabilities of the tier's file system, to simulate a lesser one. The behaviour of the tier stays the same.
    #[must_use]
    pub fn with_capabilities(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }

    /// Lets the requests for bytes take the time of a device.
    #[must_use]
    pub fn on_device(mut self, device: Arc<SimulatedDevice>) -> Self {
        self.device = Some(device);
        self
    }

    /// Changes the capacity in bytes; stored data stays, also beyond the new capacity.
    pub fn set_capacity(&self, capacity: u64) {
        self.state.write().pages_max = capacity / BLOCK_SIZE;
    }

    /// Bytes that are reserved in objects and were never written.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.state.read().objects.values().map(MemoryObject::reserved).sum()
    }

    /// From now on the tier says that this share of any range is in its page cache, in percent.
    pub fn set_cached_percent(&self, percent: u64) {
        self.cached_percent.store(percent, Ordering::Release);
    }

    /// Loses everything that was not made durable, as a power failure would.
    pub fn crash(&self) {
        self.crash_keeping(|_, _| false);
    }

    /// Like [`MemoryTier::crash`], but of the pages that no sync covered those survive, within the durable size of
    /// their object, for which `survives` (object, number of the block) is true: file systems write back on their own.
    pub fn crash_keeping(&self, mut survives: impl FnMut(ObjectRef, u64) -> bool) {
        let mut state = self.state.write();
        let current = std::mem::take(&mut state.objects);
        let removed = std::mem::take(&mut state.removed);
        for (key, object) in removed.into_iter().chain(current) {
            let reference = ObjectRef::new(key.1, key.0);
            if let Some(left) = object.after_crash(|page| survives(reference, page)) {
                state.objects.insert(key, left);
            }
        }
        state.pages_used = state.objects.values().map(|object| object.allocated() / BLOCK_SIZE).sum();
    }

    /// Replaces unsynced bytes of an object by the durable ones, a possible state after a failed sync.
    /// The hook for [`crate::FaultyTier::on_failed_sync`].
    pub fn lose_unsynced(&self, object: ObjectRef) {
        // An object that is not there has nothing to lose.
        let _ = self.change(object, |object, _| {
            object.lose_unsynced();
            Ok(())
        });
    }

    /// The last stamp of the object.
    #[must_use]
    pub fn stamp_of(&self, object: ObjectRef) -> Option<ObjectStamp> {
        self.state.read().stamps.get(&key(object)).cloned()
    }

    /// Takes the label away, as if the tier's file system were not mounted.
    pub fn remove_label(&self) {
        self.state.write().label = None;
    }

    fn look<T>(&self, object: ObjectRef, look: impl FnOnce(&MemoryObject) -> T) -> Result<T, TierError> {
        let state = self.state.read();
        state.objects.get(&key(object)).map(look).ok_or(TierError::NotFound(object.id)).inspect_err(|_| self.failed())
    }

    /// Changes an object, which learns how many pages are free, and keeps the sum of the pages in use.
    fn change<T>(
        &self,
        object: ObjectRef,
        change: impl FnOnce(&mut MemoryObject, u64) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let mut guard = self.state.write();
        let state = &mut *guard;
        let free = state.pages_max.saturating_sub(state.pages_used);
        let Some(entry) = state.objects.get_mut(&key(object)) else {
            self.failed();
            return Err(TierError::NotFound(object.id));
        };
        let before = entry.allocated() / BLOCK_SIZE;
        let result = change(entry, free);
        state.pages_used = state.pages_used - before + entry.allocated() / BLOCK_SIZE;
        match &result {
            Ok(_) => {}
            Err(error) if error.is_out_of_room() => Counters::count(&self.counters.no_space),
            Err(_) => self.failed(),
        }
        result
    }

    fn failed(&self) {
        Counters::count(&self.counters.errors);
    }
}

fn check_range(offset: u64, length: u64) -> Result<(), TierError> {
    match offset.checked_add(length) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(TierError::FileTooLarge),
    }
}

fn check_not_empty(operation: &'static str, length: u64) -> Result<(), TierError> {
    if length == 0 { Err(TierError::Io { operation, errno: Errno::EINVAL }) } else { Ok(()) }
}

impl Tier for MemoryTier {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn space(&self) -> Result<Space, TierError> {
        let state = self.state.read();
        let (total, used) = (state.pages_max * BLOCK_SIZE, state.pages_used * BLOCK_SIZE);
        let free = total.saturating_sub(used);
        Ok(Space {
            total,
            free,
            used,
            objects_free: u64::MAX,
            file_system_total: total,
            file_system_free: free,
            root_reserve: 0,
        })
    }

    fn cached_bytes(&self, _: ObjectRef, _: u64, length: u64) -> Option<u64> {
        let percent = self.cached_percent.load(Ordering::Acquire);
        (percent != CACHED_UNKNOWN).then(|| length / 100 * percent)
    }

    fn create(&self, object: ObjectRef) -> Result<(), TierError> {
        let mut state = self.state.write();
        if state.objects.contains_key(&key(object)) {
            self.failed();
            return Err(TierError::AlreadyExists(object.id));
        }
        state.objects.insert(key(object), MemoryObject::new(self.clock.now()));
        Counters::count(&self.counters.creates);
        Ok(())
    }

    fn remove(&self, object: ObjectRef) -> Result<(), TierError> {
        let mut state = self.state.write();
        state.stamps.remove(&key(object));
        if let Some(removed) = state.objects.remove(&key(object)) {
            state.pages_used -= removed.allocated() / BLOCK_SIZE;
            // Of several objects that had this name since the last sync of the tier, the first durable one counts.
            if removed.is_durable() {
                state.removed.insert(key(object), removed);
            }
            Counters::count(&self.counters.removes);
        }
        Ok(())
    }

    fn stat(&self, object: ObjectRef) -> Result<ObjectStat, TierError> {
        Counters::count(&self.counters.looks);
        self.look(object, |object| ObjectStat {
            size: object.size(),
            allocated: object.allocated(),
            modified: object.modified,
        })
    }

    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        if let Some(device) = &self.device {
            if wait == Wait::Never {
                return Err(TierError::WouldBlock);
            }
            device.read(buffer.len() as u64);
        }
        let done = self.look(object, |object| object.read(offset, buffer))?;
        Counters::count(&self.counters.reads);
        Counters::add(&self.counters.bytes_read, done);
        Ok(done)
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], _wait: Wait) -> Result<usize, TierError> {
        let now = self.clock.now();
        let done = self.change(object, |object, room| {
            check_range(offset, data.len() as u64)?;
            let done = object.write(offset, data, room);
            if done == 0 && !data.is_empty() {
                return Err(TierError::NoSpace);
            }
            object.modified = now;
            Ok(done)
        })?;
        if let Some(device) = &self.device {
            device.write(done as u64);
        }
        Counters::count(&self.counters.writes);
        Counters::add(&self.counters.bytes_written, done);
        Ok(done)
    }

    fn truncate(&self, object: ObjectRef, size: u64) -> Result<(), TierError> {
        let now = self.clock.now();
        self.change(object, |object, _| {
            check_range(0, size)?;
            object.truncate(size);
            object.modified = now;
            Ok(())
        })?;
        Counters::count(&self.counters.truncates);
        Ok(())
    }

    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<(), TierError> {
        self.change(object, |object, room| {
            check_not_empty("reserving room", length)?;
            check_range(offset, length)?;
            if object.pages_missing(offset, length) > room {
                return Err(TierError::NoSpace);
            }
            if mode == AllocateMode::Zero {
                object.punch(offset, length);
            }
            object.reserve(offset, length);
            if mode == AllocateMode::Extend {
                object.extend(offset + length);
            }
            Ok(())
        })?;
        Counters::count(&self.counters.allocates);
        Ok(())
    }

    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<(), TierError> {
        let now = self.clock.now();
        self.change(object, |object, _| {
            check_not_empty("punching a hole", length)?;
            check_range(offset, length)?;
            object.punch(offset, length);
            object.modified = now;
            Ok(())
        })?;
        Counters::count(&self.counters.punches);
        Ok(())
    }

    fn seek(&self, object: ObjectRef, offset: u64, target: SeekTarget) -> Result<Option<u64>, TierError> {
        self.look(object, |object| object.seek(offset, target))
    }

    fn allocated(&self, object: ObjectRef, start: u64, end: u64) -> Result<Option<Range<u64>>, TierError> {
        self.look(object, |object| object.allocated_range(start, end))
    }

    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<(), TierError> {
        let mut state = self.state.write();
        if !state.objects.contains_key(&key(object)) {
            return Err(TierError::NotFound(object.id));
        }
        state.stamps.insert(key(object), stamp.clone());
        Ok(())
    }

    fn read_stamp(&self, object: ObjectRef) -> Result<Option<ObjectStamp>, TierError> {
        let state = self.state.read();
        if !state.objects.contains_key(&key(object)) {
            return Err(TierError::NotFound(object.id));
        }
        Ok(state.stamps.get(&key(object)).cloned())
    }

    fn sync(&self, object: ObjectRef) -> Result<(), TierError> {
        if let Some(device) = &self.device {
            device.sync();
        }
        self.change(object, |object, _| {
            object.sync();
            Ok(())
        })?;
        Counters::count(&self.counters.syncs);
        Ok(())
    }

    fn sync_all(&self) -> Result<(), TierError> {
        if let Some(device) = &self.device {
            device.sync();
        }
        let mut state = self.state.write();
        state.objects.values_mut().for_each(MemoryObject::sync);
        state.removed.clear();
        Counters::count(&self.counters.syncs_all);
        Ok(())
    }

    fn is_unsynced(&self, object: ObjectRef) -> bool {
        self.state.read().objects.get(&key(object)).is_some_and(MemoryObject::is_unsynced)
    }

    fn list(&self, bucket: Bucket) -> Result<Vec<ObjectId>, TierError> {
        let state = self.state.read();
        let range = (bucket, ObjectId(0))..=(bucket, ObjectId(u64::MAX));
        Ok(state.objects.range(range).map(|((_, id), _)| *id).collect())
    }

    fn read_label(&self) -> Result<Label, TierError> {
        let label = self.state.read().label.clone();
        label.ok_or_else(|| TierError::Label(format!("{}: has no label: not a Polymux tier", self.name)))
    }

    fn write_label(&self, label: &Label) -> Result<(), TierError> {
        self.state.write().label = Some(label.clone());
        Ok(())
    }

    fn remove_label(&self) -> Result<(), TierError> {
        self.state.write().label = None;
        Ok(())
    }

    fn measuring_ground(&self) -> Result<Box<dyn Ground>, TierError> {
        Ok(Box::new(MemoryGround::default()))
    }

    fn probe(&self) -> Result<(), TierError> {
        self.space().map(drop)
    }

    polymux_tier::forward_to_tier!(reads_as_read);

    // There is no device behind these bytes that a hint could save work, and no kernel that could use them.

    fn begin_write_back(&self, _: ObjectRef, _: u64, _: u64) {}

    fn wait_for_write_back(&self, _: ObjectRef, _: u64, _: u64) {}

    fn read_ahead(&self, _: ObjectRef, _: u64, _: u64) {}

    fn drop_behind(&self, _: ObjectRef, _: u64, _: u64) {}

    fn give_back_room_ahead(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn lend(&self, _: ObjectRef, _: LoanPurpose) -> Result<Box<dyn Loan>, TierError> {
        Err(TierError::Unsupported("lending an object"))
    }

    fn empty_for_removal(&self, _: ObjectRef) -> Result<(), TierError> {
        Ok(())
    }

    fn may_be_open_elsewhere(&self, _: ObjectRef) -> Result<bool, TierError> {
        Ok(false)
    }

    fn open_for_program(&self, _: ObjectRef, _: LoanPurpose) -> Result<OwnedFd, TierError> {
        Err(TierError::Unsupported("opening an object of memory for a program"))
    }

    fn share_for_copy(&self, _: ObjectRef) -> Option<OwnedFd> {
        None
    }

    fn copy_within_file_system(&self, _: ObjectRef, _: u64, _: u64, _: &OwnedFd) -> Result<u64, TierError> {
        Err(TierError::Unsupported("copying within the file system"))
    }

    fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }
}
