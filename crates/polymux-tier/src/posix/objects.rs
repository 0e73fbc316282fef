//! Operations on objects.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use polymux_types::file_system_space::inodes_left;
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Bucket, Errno, FileSystemSpace, ObjectId, Timestamp};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::ReadWriteFlags;

use super::capacity::{REMOVED, allocated_of};
use super::descriptors::OpenObject;
use super::early::ReadAhead;
use super::{OpenAccess, PosixTier, UNCACHED, io_error, labels};
use crate::capabilities::{Capabilities, Guarantee};
use crate::counters::{CounterSnapshot, Counters};
use crate::error::TierError;
use crate::label::Label;
use crate::measure::Ground;
use crate::object::{
    AllocateMode, Loan, LoanPurpose, MemoryReads, ObjectRef, ObjectStamp, ObjectStat, SeekTarget, Space, Wait,
};
use crate::tier::Tier;

/// A write that must not wait is let through on file systems without `RWF_NOWAIT` while less than this is unsynced.
const NOWAIT_UNSYNCED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Where the description of an object is.
const STAMP_ATTRIBUTE: &str = "user.polymux";
/// Directory entries that may be waiting to become durable.
const CREATED_MAX: usize = 65_536;

/// The work that a sync of an open object had to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Synced {
    /// The kernel was asked, and said that all is durable.
    Now,
    /// There was nothing to sync.
    Already,
}

pub(super) fn path_of(object: ObjectRef) -> String {
    format!("{:03x}/{:016x}", object.bucket.0, object.id)
}

fn offset_of(offset: u64) -> Result<i64, TierError> {
    i64::try_from(offset).map_err(|_| TierError::FileTooLarge)
}

pub(super) fn seek_in(descriptor: &OwnedFd, offset: u64, target: SeekTarget) -> Result<Option<u64>, rustix::io::Errno> {
    let position = match target {
        SeekTarget::Data => SeekFrom::Data(offset),
        SeekTarget::Hole => SeekFrom::Hole(offset),
    };
    match rustix::fs::seek(descriptor, position) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl PosixTier {
    pub(super) fn error(&self, operation: &'static str, object: ObjectRef, errno: rustix::io::Errno) -> TierError {
        let error = TierError::from_errno(operation, object.id, Errno::from_raw(errno.raw_os_error()));
        self.count_error(&error);
        error
    }

    fn count_error(&self, error: &TierError) {
        match error {
            TierError::WouldBlock | TierError::MayBlock => Counters::count(&self.counters.would_block),
            error if error.is_out_of_room() => Counters::count(&self.counters.no_space),
            _ => Counters::count(&self.counters.errors),
        }
    }

    pub(super) fn flags(&self) -> OFlags {
        let access = match self.options.access {
            OpenAccess::ReadWrite => OFlags::RDWR,
            OpenAccess::ReadOnly => OFlags::RDONLY,
        };
        access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME
    }

    pub(super) fn open_path(&self, path: &str, flags: OFlags) -> Result<OwnedFd, rustix::io::Errno> {
        self.open_path_below(self.objects.as_fd(), path, flags)
    }

    pub(super) fn open_path_below(
        &self,
        directory: BorrowedFd<'_>,
        path: &str,
        flags: OFlags,
    ) -> Result<OwnedFd, rustix::io::Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::openat(directory, path, flags, mode) {
            // The kernel refuses `O_NOATIME` to a process that does not own the object.
            Err(rustix::io::Errno::PERM) => rustix::fs::openat(directory, path, flags - OFlags::NOATIME, mode),
            other => other,
        }
    }

    pub(super) fn object(&self, object: ObjectRef) -> Result<Arc<OpenObject>, TierError> {
        if let Some(open) = self.descriptors.get(object) {
            return Ok(open);
        }
        let descriptor = self
            .open_path(&path_of(object), self.flags())
            .map_err(|errno| self.error("opening an object", object, errno))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| self.error("looking at an object", object, errno))?;
        Counters::count(&self.counters.descriptors_opened);
        let open = self.descriptors.insert(object, OpenObject::new(descriptor, allocated_of(&stat)));
        self.close_surplus(object);
        Ok(open)
    }

    /// Whether memory alone answers a read that asks for it.
    fn has_memory_reads(&self) -> bool {
        self.capabilities().nowait_read && self.capabilities().guarantee != Guarantee::Volatile
    }

    /// An object that can be read without waiting. One that is not open cannot: opening it asks the device, and may have to
    /// sync another object before that one is closed.
    fn open_without_waiting(&self, object: ObjectRef) -> Result<Arc<OpenObject>, TierError> {
        let in_memory = self.capabilities().guarantee == Guarantee::Volatile;
        let may_read = self.capabilities().nowait_read || in_memory;
        self.descriptors.get(object).filter(|_| may_read).ok_or_else(|| {
            self.count_error(&TierError::MayBlock);
            TierError::MayBlock
        })
    }

    /// Closes the least recently used objects where too many are open. One with unsynced bytes is synced first, and a
    /// failure stays recorded for it.
    fn close_surplus(&self, newest: ObjectRef) {
        while let Some((object, victim)) = self.descriptors.victim(newest) {
            if victim.is_unsynced() && self.sync_before_close(object, &victim).is_err() {
                // Kept open and recorded; closing it would let the kernel forget.
                return;
            }
            let before = victim.allocated.load(Ordering::Acquire);
            if self.descriptors.close(object, victim).is_none() {
                return;
            }
            // Closing may give back space allocated beyond the end.
            if self.options.capacity.is_some()
                && before != REMOVED
                && let Ok(stat) = rustix::fs::statat(&self.objects, path_of(object), AtFlags::SYMLINK_NOFOLLOW)
            {
                self.add_used(before, allocated_of(&stat));
            }
        }
    }

    /// Many small files make many unsynced descriptors: one sync of the tier, whose errors are watched through a
    /// descriptor older than all of them, frees them all at once. A remote file system does not pass such a sync on.
    fn sync_before_close(&self, object: ObjectRef, victim: &OpenObject) -> Result<(), TierError> {
        Counters::count(&self.counters.descriptors_synced_early);
        if self.capabilities().guarantee != Guarantee::Remote {
            self.sync_all()?;
        }
        if !victim.is_unsynced() {
            return Ok(());
        }
        let synced = self.sync_open(object, victim);
        synced.map(|_| ()).inspect_err(|error| self.descriptors.record_failure(object, error.clone()))
    }

    fn sync_open(&self, object: ObjectRef, open: &OpenObject) -> Result<Synced, TierError> {
        let failures_before = open.sync_failures.load(Ordering::SeqCst);
        let mut last_failure = open.sync_turn.lock();
        // A sync that ended while this one waited may have received the error for bytes that the caller counts on.
        if let (false, Some(failure)) =
            (open.sync_failures.load(Ordering::SeqCst) == failures_before, last_failure.as_ref())
        {
            return Err(failure.clone());
        }
        if !open.is_unsynced() {
            return Ok(Synced::Already);
        }
        let mark = open.mark();
        let bytes = open.bytes_unsynced.swap(0, Ordering::AcqRel);
        subtract(&self.bytes_unsynced, bytes);
        Counters::count(&self.counters.syncs);
        match rustix::fs::fdatasync(&open.descriptor) {
            Ok(()) => {
                open.note_synced(mark);
                // Writing back may take blocks for the object's map.
                self.account(open);
                Ok(Synced::Now)
            }
            Err(errno) => {
                // The kernel marks the pages clean: a second attempt would succeed without having written them.
                open.note_synced(mark);
                Counters::count(&self.counters.sync_failures);
                let error = self.error("syncing an object", object, errno);
                *last_failure = Some(error.clone());
                open.sync_failures.fetch_add(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    fn sync_entry(&self, object: ObjectRef) -> Result<(), TierError> {
        let bucket = self
            .open_path(&format!("{:03x}", object.bucket.0), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
            .map_err(|errno| self.error("opening a bucket", object, errno))?;
        rustix::fs::fsync(&bucket).map_err(|errno| self.error("syncing a bucket", object, errno))?;
        self.descriptors.forget_created(&[object]);
        Ok(())
    }

    fn read_with(
        &self,
        object: ObjectRef,
        offset: u64,
        buffer: &mut [u8],
        wait: Wait,
        (mut flags, read_ahead): (ReadWriteFlags, Option<ReadAhead>),
    ) -> Result<usize, TierError> {
        offset_of(offset)?;
        let open = match wait {
            Wait::Allowed => self.object(object)?,
            Wait::Never => self.open_without_waiting(object)?,
        };
        if wait == Wait::Never && self.capabilities().nowait_read {
            flags |= ReadWriteFlags::NOWAIT;
        }
        if let Some(by) = read_ahead {
            open.set_read_ahead(by);
        }
        let mut filled = 0;
        while filled < buffer.len() {
            let (rest, position) = (&mut buffer[filled..], offset + filled as u64);
            // The call with flags takes a vector, which costs the kernel a sixth more for a small read.
            let read = match flags.is_empty() {
                true => rustix::io::pread(&open.descriptor, rest, position),
                false => rustix::io::preadv2(&open.descriptor, &mut [IoSliceMut::new(rest)], position, flags),
            };
            match read {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.error("reading", object, errno)),
            }
        }
        Counters::count(&self.counters.reads);
        Counters::add(&self.counters.bytes_read, filled);
        Ok(filled)
    }

    fn write_waiting(
        &self,
        open: &OpenObject,
        object: ObjectRef,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, TierError> {
        let mut written = 0;
        while written < data.len() {
            match rustix::io::pwrite(&open.descriptor, &data[written..], offset + written as u64) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) if written > 0 => break,
                Err(errno) => return Err(self.error("writing", object, errno)),
            }
        }
        Ok(written)
    }

    /// Writes without waiting, or says that it would wait, before anything was written.
    fn write_at_once(
        &self,
        open: &OpenObject,
        object: ObjectRef,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, TierError> {
        if self.capabilities().nowait_write {
            offset_of(offset)?;
            let slices = [IoSlice::new(data)];
            let first = rustix::io::pwritev2(&open.descriptor, &slices, offset, ReadWriteFlags::NOWAIT)
                .map_err(|errno| self.error("writing", object, errno))?;
            return match data.get(first..) {
                // Some was written already, so the rest follows in the ordinary way.
                Some(rest) if !rest.is_empty() => {
                    Ok(first + self.write_waiting(open, object, offset + first as u64, rest).unwrap_or(0))
                }
                _ => Ok(first),
            };
        }
        let whole = offset.is_multiple_of(BLOCK_SIZE) && (data.len() as u64).is_multiple_of(BLOCK_SIZE);
        let few = self.bytes_unsynced.load(Ordering::Acquire) < NOWAIT_UNSYNCED_BYTES_MAX;
        let stat =
            rustix::fs::fstat(&open.descriptor).map_err(|errno| self.error("looking at an object", object, errno))?;
        let inside = offset + data.len() as u64 <= u64::try_from(stat.st_size).unwrap_or(0);
        if !(whole && few && inside) {
            self.count_error(&TierError::WouldBlock);
            return Err(TierError::WouldBlock);
        }
        self.write_waiting(open, object, offset, data)
    }
}

fn subtract(counter: &AtomicU64, amount: u64) {
    let _ = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| Some(value.saturating_sub(amount)));
}

impl Tier for PosixTier {
    fn capabilities(&self) -> &Capabilities {
        self.probed.current()
    }

    fn space(&self) -> Result<Space, TierError> {
        let stat = rustix::fs::fstatvfs(&self.objects).map_err(io_error("asking for free room"))?;
        let file_system = FileSystemSpace::from(&stat);
        let (total, free) = (file_system.total, file_system.available);
        let root_reserve = match self.capabilities().file_system.as_str() {
            "ext4" if rustix::process::geteuid().is_root() => file_system.ext4_root_reserve(),
            _ => 0,
        };
        let objects_free = inodes_left(stat.f_favail, stat.f_files);
        Ok(match (self.options.capacity, self.bytes_used()) {
            (Some(capacity), Some(used)) => Space {
                total: capacity.0.min(total),
                free: capacity.0.saturating_sub(used).min(free),
                used,
                objects_free,
                file_system_total: total,
                file_system_free: free,
                root_reserve,
            },
            _ => Space {
                total,
                free,
                used: total.saturating_sub(file_system.free),
                objects_free,
                file_system_total: total,
                file_system_free: free,
                root_reserve,
            },
        })
    }

    fn create(&self, object: ObjectRef) -> Result<(), TierError> {
        self.require_writable()?;
        let flags = self.flags() | OFlags::CREATE | OFlags::EXCL;
        let descriptor =
            self.open_path(&path_of(object), flags).map_err(|errno| self.error("making an object", object, errno))?;
        Counters::count(&self.counters.creates);
        self.descriptors.note_created(object);
        self.descriptors.insert(object, OpenObject::new(descriptor, 0));
        self.close_surplus(object);
        self.probe_once_there_is_room();
        if self.descriptors.created_len() > CREATED_MAX {
            self.sync_all()?;
        }
        Ok(())
    }

    fn remove(&self, object: ObjectRef) -> Result<(), TierError> {
        self.require_writable()?;
        Counters::count(&self.counters.removes);
        let open = self.descriptors.forget(object);
        if self.options.capacity.is_some() {
            let counted = match &open {
                Some(open) => open.allocated.swap(REMOVED, Ordering::AcqRel),
                None => self.stat(object).map_or(0, |stat| stat.allocated),
            };
            self.add_used(counted, 0);
        }
        if let Some(open) = open {
            subtract(&self.bytes_unsynced, open.bytes_unsynced.swap(0, Ordering::AcqRel));
        }
        self.empty_if_opened_for_program(object);
        match rustix::fs::unlinkat(&self.objects, path_of(object), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("removing an object", object, errno)),
        }
    }

    fn stat(&self, object: ObjectRef) -> Result<ObjectStat, TierError> {
        Counters::count(&self.counters.looks);
        let stat = match self.descriptors.get(object) {
            Some(open) => rustix::fs::fstat(&open.descriptor),
            None => rustix::fs::statat(&self.objects, path_of(object), AtFlags::SYMLINK_NOFOLLOW),
        };
        let stat = stat.map_err(|errno| self.error("looking at an object", object, errno))?;
        Ok(ObjectStat {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            allocated: allocated_of(&stat),
            modified: Timestamp::new(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0).min(999_999_999)),
        })
    }

    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        self.read_with(object, offset, buffer, wait, (ReadWriteFlags::empty(), Some(ReadAhead::ByKernel)))
    }

    fn read_exactly(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        self.read_with(object, offset, buffer, wait, (ReadWriteFlags::empty(), Some(ReadAhead::ByCaller)))
    }

    fn read_for_keeper(
        &self,
        object: ObjectRef,
        offset: u64,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<usize, TierError> {
        let uncached = if self.capabilities().uncached_read { UNCACHED } else { ReadWriteFlags::empty() };
        self.read_with(object, offset, buffer, wait, (uncached, None))
    }

    fn memory_reads(&self, object: ObjectRef) -> Option<Weak<dyn MemoryReads>> {
        if !self.has_memory_reads() {
            return None;
        }
        let open: Arc<dyn MemoryReads> = self.descriptors.get(object)?;
        Some(Arc::downgrade(&open))
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize, TierError> {
        self.require_writable()?;
        offset_of(offset + data.len() as u64)?;
        let open = self.object(object)?;
        let allowed = self.allowed(&open, offset, data.len()).inspect_err(|error| self.count_error(error))?;
        let data = &data[..allowed];
        let written = open.changing(|| match wait {
            Wait::Allowed => self.write_waiting(&open, object, offset, data),
            Wait::Never => self.write_at_once(&open, object, offset, data),
        });
        self.account(&open);
        let written = written?;
        open.bytes_unsynced.fetch_add(written as u64, Ordering::AcqRel);
        self.bytes_unsynced.fetch_add(written as u64, Ordering::AcqRel);
        Counters::count(&self.counters.writes);
        Counters::add(&self.counters.bytes_written, written);
        Ok(written)
    }

    fn begin_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        self.begin_writing_back(object, offset, length);
    }

    fn wait_for_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        self.wait_for_writing_back(object, offset, length);
    }

    fn drop_behind(&self, object: ObjectRef, offset: u64, length: u64) {
        self.give_up_pages(object, offset, length);
    }

    fn cached_bytes(&self, object: ObjectRef, offset: u64, length: u64) -> Option<u64> {
        self.bytes_in_page_cache(object, offset, length)
    }

    fn read_ahead(&self, object: ObjectRef, offset: u64, length: u64) {
        self.begin_reading(object, offset, length);
    }

    fn lend(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<Box<dyn Loan>, TierError> {
        self.lend_object(object, purpose)
    }

    fn may_be_open_elsewhere(&self, object: ObjectRef) -> Result<bool, TierError> {
        self.object_may_be_open_elsewhere(object)
    }

    fn empty_for_removal(&self, object: ObjectRef) -> Result<(), TierError> {
        self.require_writable()?;
        self.empty_if_opened_for_program(object);
        Ok(())
    }

    fn open_for_program(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<OwnedFd, TierError> {
        self.open_object_for_program(object, purpose)
    }

    fn share_for_copy(&self, object: ObjectRef) -> Option<OwnedFd> {
        self.share(object)
    }

    fn copy_within_file_system(
        &self,
        object: ObjectRef,
        offset: u64,
        length: u64,
        source: &OwnedFd,
    ) -> Result<u64, TierError> {
        self.require_writable()?;
        offset_of(offset + length)?;
        let open = self.object(object)?;
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        let allowed = self.allowed(&open, offset, wanted).inspect_err(|error| self.count_error(error))?;
        let copied = self.copy_from(object, offset, allowed as u64, source)?;
        open.bytes_unsynced.fetch_add(copied, Ordering::AcqRel);
        self.bytes_unsynced.fetch_add(copied, Ordering::AcqRel);
        Counters::count(&self.counters.writes);
        Counters::add(&self.counters.bytes_written, usize::try_from(copied).unwrap_or(usize::MAX));
        Ok(copied)
    }

    fn truncate(&self, object: ObjectRef, size: u64) -> Result<(), TierError> {
        self.require_writable()?;
        offset_of(size)?;
        let open = self.object(object)?;
        Counters::count(&self.counters.truncates);
        let outcome = open.changing(|| rustix::fs::ftruncate(&open.descriptor, size));
        self.account(&open);
        outcome.map_err(|errno| self.error("setting the size of an object", object, errno))
    }

    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<(), TierError> {
        self.require_writable()?;
        let open = self.object(object)?;
        let length_in_memory = usize::try_from(length).unwrap_or(usize::MAX);
        if self.allowed(&open, offset, length_in_memory)? < length_in_memory {
            self.count_error(&TierError::NoSpace);
            return Err(TierError::NoSpace);
        }
        Counters::count(&self.counters.allocates);
        let flags = match mode {
            AllocateMode::Extend => FallocateFlags::empty(),
            AllocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
            AllocateMode::Zero => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        let outcome = open.changing(|| rustix::fs::fallocate(&open.descriptor, flags, offset, length));
        self.account(&open);
        outcome.map_err(|errno| self.error("reserve room", object, errno))
    }

    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<(), TierError> {
        self.require_writable()?;
        let open = self.object(object)?;
        Counters::count(&self.counters.punches);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let outcome = open.changing(|| rustix::fs::fallocate(&open.descriptor, flags, offset, length));
        self.account(&open);
        outcome.map_err(|errno| self.error("punch holes", object, errno))
    }

    fn seek(&self, object: ObjectRef, offset: u64, target: SeekTarget) -> Result<Option<u64>, TierError> {
        let open = self.object(object)?;
        let found =
            seek_in(&open.descriptor, offset, target).map_err(|errno| self.error("find holes", object, errno))?;
        if target == SeekTarget::Data {
            return Ok(found);
        }
        let stat =
            rustix::fs::fstat(&open.descriptor).map_err(|errno| self.error("looking at an object", object, errno))?;
        // The end of the object does not count as a hole.
        Ok(found.filter(|hole| *hole < u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn allocated(&self, object: ObjectRef, start: u64, end: u64) -> Result<Option<Range<u64>>, TierError> {
        self.allocated_blocks(object, start, end)
    }

    fn give_back_room_ahead(&self) -> Result<(), TierError> {
        self.free_blocks_behind_ends(&self.objects);
        Ok(())
    }

    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<(), TierError> {
        self.require_writable()?;
        if !self.capabilities().extended_attributes {
            return Ok(());
        }
        let open = self.object(object)?;
        let mut stamp = std::borrow::Cow::Borrowed(stamp);
        loop {
            let value = super::stamp_format::encode(&stamp);
            match rustix::fs::fsetxattr(&open.descriptor, STAMP_ATTRIBUTE, &value, rustix::fs::XattrFlags::empty()) {
                Ok(()) => return Ok(()),
                // Many file systems keep attributes in one block: the names next to the file matter most.
                Err(rustix::io::Errno::NOSPC | rustix::io::Errno::TOOBIG | rustix::io::Errno::RANGE) => {
                    match stamp.without_upper_half() {
                        Some(shorter) => stamp = std::borrow::Cow::Owned(shorter),
                        None => return Ok(()),
                    }
                }
                Err(errno) => return Err(self.error("describing an object", object, errno)),
            }
        }
    }

    fn read_stamp(&self, object: ObjectRef) -> Result<Option<ObjectStamp>, TierError> {
        let open = self.object(object)?;
        // As much as Linux lets any attribute have.
        let mut value = vec![0; 65_536];
        match rustix::fs::fgetxattr(&open.descriptor, STAMP_ATTRIBUTE, &mut value[..]) {
            Ok(length) => Ok(super::stamp_format::decode(&value[..length]).ok()),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::RANGE) => Ok(None),
            Err(errno) => Err(self.error("reading the description of an object", object, errno)),
        }
    }

    fn sync(&self, object: ObjectRef) -> Result<(), TierError> {
        let mut outcome = Ok(Synced::Already);
        if let Some(open) = self.descriptors.get(object) {
            outcome = self.sync_open(object, &open);
        }
        let outcome = match outcome {
            Ok(synced) if self.descriptors.is_created(object) => match synced {
                Synced::Now if self.capabilities().sync_covers_entry() => {
                    self.descriptors.forget_created(&[object]);
                    Ok(())
                }
                Synced::Now | Synced::Already => self.sync_entry(object),
            },
            other => other.map(|_| ()),
        };
        match (outcome, self.descriptors.take_failure(object)) {
            (Ok(()), Some(earlier)) => Err(earlier),
            (outcome, _) => outcome,
        }
    }

    fn sync_all(&self) -> Result<(), TierError> {
        let _turn = self.sync_all_turn.lock();
        Counters::count(&self.counters.syncs_all);
        let open: Vec<_> = self.descriptors.all().into_iter().map(|(of, open)| (of, open.mark(), open)).collect();
        let created = self.descriptors.created();
        let bytes = self.bytes_unsynced.load(Ordering::Acquire);
        match self.sync_file_system() {
            Ok(()) => {
                for (_, mark, open) in &open {
                    open.note_synced(*mark);
                    self.account(open);
                }
                self.descriptors.forget_created(&created);
                subtract(&self.bytes_unsynced, bytes);
                Ok(())
            }
            Err(errno) => {
                Counters::count(&self.counters.sync_failures);
                let error = io_error("syncing the tier")(errno);
                // The error is one of the whole file system; each descriptor, older than its writes, knows of its own.
                for (object, _, open) in open.iter().filter(|(_, _, open)| open.is_unsynced()) {
                    if let Err(failure) = self.sync_open(*object, open) {
                        self.descriptors.record_failure(*object, failure);
                    }
                }
                Err(error)
            }
        }
    }

    fn is_unsynced(&self, object: ObjectRef) -> bool {
        self.descriptors.get(object).is_some_and(|open| open.is_unsynced())
            || self.descriptors.is_created(object)
            || self.descriptors.has_failure(object)
    }

    fn list(&self, bucket: Bucket) -> Result<Vec<ObjectId>, TierError> {
        let path = format!("{:03x}", bucket.0);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(&self.objects, path, flags, Mode::empty()).map_err(io_error("listing a bucket"))?;
        let mut objects = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(io_error("listing a bucket"))? {
            let entry = entry.map_err(io_error("listing a bucket"))?;
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            let id = name.to_str().filter(|name| name.len() == 16).and_then(|name| u64::from_str_radix(name, 16).ok());
            objects.extend(id.map(ObjectId));
        }
        Ok(objects)
    }

    fn read_label(&self) -> Result<Label, TierError> {
        labels::require_in(&self.own_directory, &self.path)
    }

    fn write_label(&self, label: &Label) -> Result<(), TierError> {
        self.require_writable()?;
        labels::write(&self.own_directory, label)
    }

    fn remove_label(&self) -> Result<(), TierError> {
        self.require_writable()?;
        labels::remove(&self.own_directory)?;
        // Directories that are not empty stay; a directory without a label is no tier, so that failing here does no harm.
        super::directory::remove_empty(&self.path);
        Ok(())
    }

    fn probe(&self) -> Result<(), TierError> {
        self.try_out()
    }

    fn measuring_ground(&self) -> Result<Box<dyn Ground>, TierError> {
        self.require_writable()?;
        self.make_measuring_ground()
    }

    fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }
}
