//! A wrapper over a tier that fails on request.
//!
//! Invariant: an operation that is made to fail has no effect on the tier below, except a write that runs out
//! of space in its middle. Without a request the wrapper is transparent.

use std::ops::Range;
use std::sync::Arc;

use polymux_tier::{AllocateMode, Label, ObjectRef, ObjectStamp, ObjectStat, SeekTarget, Space, Tier, TierError, Wait};
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::sync::{Condvar, Mutex, RwLock};
use polymux_types::{Bucket, ObjectId};

use crate::faults::{Faults, OperationKind};

type SyncHook = Box<dyn Fn(ObjectRef) + Send + Sync>;

/// A tier that fails on request. See the module.
pub struct FaultyTier {
    inner: Arc<dyn Tier>,
    faults: Mutex<Faults>,
    /// Wakes operations that hang.
    released: Condvar,
    on_failed_sync: RwLock<Option<SyncHook>>,
}

impl FaultyTier {
    /// A wrapper that passes every operation through until a failure is requested.
    #[must_use]
    pub fn new(inner: Arc<dyn Tier>) -> Self {
        Self { inner, faults: Mutex::default(), released: Condvar::default(), on_failed_sync: RwLock::new(None) }
    }

    /// The next `count` operations of this kind fail with `error`. Replaces an earlier request for the kind.
    pub fn fail_next(&self, kind: OperationKind, count: u64, error: TierError) {
        self.faults.lock().fail_next(kind, count, error);
    }

    /// All operations of this kind fail with `error` until [`FaultyTier::heal`].
    pub fn fail_always(&self, kind: OperationKind, error: TierError) {
        self.faults.lock().fail_always(kind, error);
    }

    /// Clears all requested failures, the space limit and dropped writes. A tier that vanished stays away.
    pub fn heal(&self) {
        self.faults.lock().heal();
    }

    /// Limits the space that writes and reservations may take from now on, in bytes; `None` lifts the limit. Space taken
    /// is the growth of the object's allocated bytes. Near the limit a hole, also a reserved one, counts as a block.
    /// Space freed by removing, cutting or punching is not credited.
    pub fn room(&self, bytes: Option<u64>) {
        self.faults.lock().room = bytes;
    }

    /// Sets the hook that is called with an object when a sync of it was made to fail: `MemoryTier::lose_unsynced` drops the
    /// bytes that the failed sync should have written, as a kernel may.
    pub fn on_failed_sync(&self, hook: impl Fn(ObjectRef) + Send + Sync + 'static) {
        *self.on_failed_sync.write() = Some(Box::new(hook));
    }

    /// Every operation fails with `EIO`, like those on a disk that was pulled out.
    pub fn vanish(&self) {
        self.faults.lock().vanished = true;
    }

    /// Ends [`FaultyTier::vanish`].
    pub fn come_back(&self) {
        self.faults.lock().vanished = false;
    }

    /// Operations of these kinds do not return from now on, until [`FaultyTier::release`]; then they are carried out. Nor does
    /// [`Tier::probe`]: the tier hangs.
    pub fn hang(&self, kinds: &[OperationKind]) {
        self.faults.lock().hanging.extend(kinds);
    }

    /// Whether programs have objects of this tier open from now on.
    pub fn give_objects_to_programs(&self, given: bool) {
        self.faults.lock().programs_have_objects = given;
    }

    /// As [`FaultyTier::hang`], and the tier works: somebody holds the objects.
    pub fn hold(&self, kinds: &[OperationKind]) {
        self.faults.lock().held.extend(kinds);
    }

    /// No operation returns from now on, like on a server that is gone, until [`FaultyTier::release`].
    pub fn hang_all(&self) {
        self.hang(&OperationKind::ALL);
    }

    /// Ends [`FaultyTier::hang`] and [`FaultyTier::hold`]: hanging operations continue.
    pub fn release(&self) {
        let mut faults = self.faults.lock();
        faults.hanging.clear();
        faults.held.clear();
        drop(faults);
        self.released.notify_all();
    }

    /// Operations that hang at this moment.
    #[must_use]
    pub fn hanging_calls(&self) -> usize {
        self.faults.lock().waiting
    }

    /// Every `period`-th write from now on claims success and writes nothing: a planted bug, to prove that a test
    /// would find one. Panics on zero.
    pub fn drop_every_nth_write(&self, period: u64) {
        assert!(period > 0, "there is no zeroth write");
        let mut faults = self.faults.lock();
        faults.drop_period = Some(period);
        faults.writes_seen = 0;
    }

    fn check(&self, kind: OperationKind) -> Result<(), TierError> {
        let mut faults = self.faults.lock();
        while faults.hanging.contains(&kind) || faults.held.contains(&kind) {
            faults.waiting += 1;
            self.released.wait(&mut faults);
            faults.waiting -= 1;
        }
        faults.strike(kind).map_or(Ok(()), Err)
    }

    /// Limits the objects that may be made from now on, as a file system with few inodes does; `None` lifts the limit.
    pub fn objects(&self, count: Option<u64>) {
        self.faults.lock().objects = count;
    }

    /// Runs a change of an object and charges the space that it took to the limit.
    fn charged<T>(&self, object: ObjectRef, change: impl FnOnce() -> Result<T, TierError>) -> Result<T, TierError> {
        let before = self.inner.stat(object)?.allocated;
        let result = change();
        let taken = self.inner.stat(object)?.allocated.saturating_sub(before);
        if let Some(room) = self.faults.lock().room.as_mut() {
            *room = room.saturating_sub(taken);
        }
        result
    }

    /// Space that a range could take at the most: all of its blocks that are holes.
    fn room_wanted(&self, object: ObjectRef, offset: u64, length: u64) -> Result<u64, TierError> {
        let mut wanted = 0;
        let mut block = offset / BLOCK_SIZE * BLOCK_SIZE;
        while block < offset + length {
            let data = self.inner.seek(object, block, SeekTarget::Data)?;
            if data.is_none_or(|data| data >= block + BLOCK_SIZE) {
                wanted += BLOCK_SIZE;
            }
            block += BLOCK_SIZE;
        }
        Ok(wanted)
    }

    fn write_within(
        &self,
        object: ObjectRef,
        offset: u64,
        data: &[u8],
        wait: Wait,
        room: u64,
    ) -> Result<usize, TierError> {
        let mut allowed = data.len() as u64;
        while allowed > 0 && self.room_wanted(object, offset, allowed)? > room {
            let last_block = (offset + allowed - 1) / BLOCK_SIZE * BLOCK_SIZE;
            allowed = last_block.saturating_sub(offset);
        }
        if allowed == 0 && !data.is_empty() {
            return Err(TierError::NoSpace);
        }
        let allowed = usize::try_from(allowed).expect("not more than the data");
        self.charged(object, || self.inner.write(object, offset, &data[..allowed], wait))
    }
}

impl Tier for FaultyTier {
    fn space(&self) -> Result<Space, TierError> {
        self.check(OperationKind::Space)?;
        let mut space = self.inner.space()?;
        if let Some(room) = self.faults.lock().room {
            space.free = space.free.min(room);
        }
        if let Some(objects) = self.faults.lock().objects {
            space.objects_free = space.objects_free.min(objects);
        }
        Ok(space)
    }

    fn create(&self, object: ObjectRef) -> Result<(), TierError> {
        self.check(OperationKind::Create)?;
        if self.faults.lock().objects == Some(0) {
            return Err(TierError::NoSpace);
        }
        self.inner.create(object)?;
        if let Some(objects) = self.faults.lock().objects.as_mut() {
            *objects = objects.saturating_sub(1);
        }
        Ok(())
    }

    fn remove(&self, object: ObjectRef) -> Result<(), TierError> {
        self.check(OperationKind::Remove)?;
        self.inner.remove(object)
    }

    fn stat(&self, object: ObjectRef) -> Result<ObjectStat, TierError> {
        self.check(OperationKind::Stat)?;
        self.inner.stat(object)
    }

    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        self.check(OperationKind::Read)?;
        self.inner.read(object, offset, buffer, wait)
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize, TierError> {
        self.check(OperationKind::Write)?;
        let (dropped, room) = {
            let mut faults = self.faults.lock();
            (faults.drops_this_write(), faults.room)
        };
        match room {
            _ if dropped => Ok(data.len()),
            Some(room) => self.write_within(object, offset, data, wait, room),
            None => self.inner.write(object, offset, data, wait),
        }
    }

    fn truncate(&self, object: ObjectRef, size: u64) -> Result<(), TierError> {
        self.check(OperationKind::Truncate)?;
        self.inner.truncate(object, size)
    }

    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<(), TierError> {
        self.check(OperationKind::Allocate)?;
        let room = self.faults.lock().room;
        match room {
            Some(room) if self.room_wanted(object, offset, length)? > room => Err(TierError::NoSpace),
            Some(_) => self.charged(object, || self.inner.allocate(object, offset, length, mode)),
            None => self.inner.allocate(object, offset, length, mode),
        }
    }

    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<(), TierError> {
        self.check(OperationKind::Punch)?;
        self.inner.punch(object, offset, length)
    }

    fn seek(&self, object: ObjectRef, offset: u64, target: SeekTarget) -> Result<Option<u64>, TierError> {
        self.check(OperationKind::Seek)?;
        self.inner.seek(object, offset, target)
    }

    fn allocated(&self, object: ObjectRef, start: u64, end: u64) -> Result<Option<Range<u64>>, TierError> {
        self.check(OperationKind::Seek)?;
        self.inner.allocated(object, start, end)
    }

    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<(), TierError> {
        self.check(OperationKind::Stamp)?;
        self.inner.stamp(object, stamp)
    }

    fn give_back_room_ahead(&self) -> Result<(), TierError> {
        self.check(OperationKind::FreePreallocated)?;
        self.inner.give_back_room_ahead()
    }

    fn read_stamp(&self, object: ObjectRef) -> Result<Option<ObjectStamp>, TierError> {
        self.check(OperationKind::Stamp)?;
        self.inner.read_stamp(object)
    }

    fn sync(&self, object: ObjectRef) -> Result<(), TierError> {
        if let Err(error) = self.check(OperationKind::Sync) {
            if let Some(hook) = self.on_failed_sync.read().as_ref() {
                hook(object);
            }
            return Err(error);
        }
        self.inner.sync(object)
    }

    fn sync_all(&self) -> Result<(), TierError> {
        self.check(OperationKind::SyncAll)?;
        self.inner.sync_all()
    }

    fn list(&self, bucket: Bucket) -> Result<Vec<ObjectId>, TierError> {
        self.check(OperationKind::List)?;
        self.inner.list(bucket)
    }

    fn read_label(&self) -> Result<Label, TierError> {
        self.check(OperationKind::ReadLabel)?;
        self.inner.read_label()
    }

    fn write_label(&self, label: &Label) -> Result<(), TierError> {
        self.check(OperationKind::WriteLabel)?;
        self.inner.write_label(label)
    }

    fn remove_label(&self) -> Result<(), TierError> {
        self.check(OperationKind::WriteLabel)?;
        self.inner.remove_label()
    }

    fn may_be_open_elsewhere(&self, object: ObjectRef) -> Result<bool, TierError> {
        let is_given = self.faults.lock().programs_have_objects;
        Ok(is_given || self.inner.may_be_open_elsewhere(object)?)
    }

    fn probe(&self) -> Result<(), TierError> {
        let mut faults = self.faults.lock();
        while !faults.hanging.is_empty() {
            self.released.wait(&mut faults);
        }
        drop(faults);
        self.check(OperationKind::Write)?;
        self.check(OperationKind::Sync)?;
        self.inner.probe()
    }

    polymux_tier::forward_to_tier!(inner:
        capabilities, reads_as_read, begin_write_back, wait_for_write_back, read_ahead, cached_bytes, drop_behind, lend, empty_for_removal,
        share_for_copy, open_for_program, copy_within_file_system, is_unsynced, measuring_ground, counters);
}
