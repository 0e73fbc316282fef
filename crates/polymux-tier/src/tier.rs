//! The narrow trait that every backend and every wrapper implements.

use std::ops::Range;
use std::sync::Weak;

use polymux_types::{Bucket, ObjectId};

use crate::capabilities::Capabilities;
use crate::counters::CounterSnapshot;
use crate::error::TierError;
use crate::label::Label;
use crate::measure::Ground;
use std::os::fd::OwnedFd;

use crate::object::{
    AllocateMode, Loan, LoanPurpose, MemoryReads, ObjectRef, ObjectStamp, ObjectStat, SeekTarget, Space, Wait,
};

/// One tier of a volume (M1: the same operations on every participating file system).
///
/// All methods may be called from any thread. Offsets and lengths are in bytes and below
/// [`polymux_types::limits::FILE_SIZE_MAX`]. No method waits for another object's I/O except [`Tier::sync_all`]. None has a default body: a
/// wrapper that forgets one does not compile ([`forward_to_tier!`](crate::forward_to_tier)).
pub trait Tier: Send + Sync {
    /// Capabilities of the file system below, as probed when the tier was opened (DESIGN section 4).
    fn capabilities(&self) -> &Capabilities;

    /// Space on the tier, within its `capacity` limit where it has one. May be a moment old.
    fn space(&self) -> Result<Space, TierError>;

    /// Makes an empty object, exclusively: one that is there already is [`TierError::AlreadyExists`], never adopted.
    fn create(&self, object: ObjectRef) -> Result<(), TierError>;

    /// Removes an object and forgets its unsynced bytes. One that is not there counts as removed, so that carrying out
    /// a pending free twice is harmless. The removal is durable after [`Tier::sync_all`].
    fn remove(&self, object: ObjectRef) -> Result<(), TierError>;

    /// Size, allocated bytes and modification time; [`TierError::NotFound`] where there is no such object.
    fn stat(&self, object: ObjectRef) -> Result<ObjectStat, TierError>;

    /// Reads into the whole buffer as far as the object's size allows; returns the number of bytes read. Holes read as
    /// zeros. With [`Wait::Never`], [`TierError::WouldBlock`] where bytes would have to come from the device, which may have begun to
    /// bring them then, and [`TierError::MayBlock`] where the object would first have to be opened, or that is not known.
    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError>;

    /// As [`Tier::read`], for a short read by a caller that caches the bytes, as the kernel does with those of cached files: data brought
    /// from the device for it need not stay in memory here. Not for sequential reads: nothing is read ahead then.
    fn read_for_keeper(
        &self,
        object: ObjectRef,
        offset: u64,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<usize, TierError>;

    /// As [`Tier::read`], for a caller that does its own read-ahead, where that is worth it ([`Tier::read_ahead`]): no more is read from the
    /// device than was asked for. A tier that sees only a part of the reads of a file would guess wrongly.
    fn read_exactly(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError>;

    /// A way to read the bytes of an object that are in memory, past the counters of the tier and all bookkeeping of wrappers. `None` where the object is not
    /// open, where its file system does not tell which bytes are in memory, and where all of them are. It keeps the object open for no longer than the
    /// tier would.
    fn memory_reads(&self, object: ObjectRef) -> Option<Weak<dyn MemoryReads>>;

    /// Writes at an offset, extending the object as needed; returns how much was written, which is less than asked for
    /// only when space ran out in the middle (then at least one byte was written). With no byte written, running out of
    /// space is [`TierError::NoSpace`] or [`TierError::Quota`]. With [`Wait::Never`], [`TierError::WouldBlock`] before any
    /// byte is written where the write could wait.
    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize, TierError>;

    /// Begins to write the dirty data of a range out to the device, and does not wait for it. A hint: nothing is durable
    /// before [`Tier::sync`].
    fn begin_write_back(&self, object: ObjectRef, offset: u64, length: u64);

    /// Waits for the write-back that [`Tier::begin_write_back`] began in a range, so that no more than a caller wants is on its way to the
    /// device. This is a hint: it promises nothing, and [`Tier::sync`] reports failures.
    fn wait_for_write_back(&self, object: ObjectRef, offset: u64, length: u64);

    /// Begins to bring a range into memory, and does not wait for it. A hint.
    fn read_ahead(&self, object: ObjectRef, offset: u64, length: u64);

    /// Bytes of a range that the page cache of the file system below holds, in whole pages; `None` where that is not known. Asks no
    /// device, and brings nothing into memory.
    fn cached_bytes(&self, object: ObjectRef, offset: u64, length: u64) -> Option<u64>;

    /// A range was read by a caller that caches it itself, and need not stay in memory here. A hint.
    fn drop_behind(&self, object: ObjectRef, offset: u64, length: u64);

    /// Gives an object to the kernel for use past this tier, where a file is passed through to it (DESIGN section 10).
    /// It stays open while the [`Loan`] lives, and counts as unsynced while it is passthrough-open for changes.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] where objects are no files of this kernel.
    fn lend(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<Box<dyn Loan>, TierError>;

    /// Opens an object anew, to be read or overwritten by another process (docs/design/0046, 0048). One that is to be overwritten is lent for that as well.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] where objects are no files of this kernel, or are on another machine.
    fn open_for_program(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<OwnedFd, TierError>;

    /// Whether an object may be externally open: the kernel let a program use it before a daemon died (docs/design/0017).
    /// Where this cannot be determined, the answer is yes; for an object that does not exist it is no.
    ///
    /// # Errors
    /// As any other call.
    fn may_be_open_elsewhere(&self, object: ObjectRef) -> Result<bool, TierError>;

    /// Frees the space of an object that is to be removed, if it was opened for a program by [`Tier::open_for_program`], which goes on to nothing then. One that
    /// the kernel uses keeps its bytes. A hint.
    ///
    /// # Errors
    /// As any other call.
    fn empty_for_removal(&self, object: ObjectRef) -> Result<(), TierError>;

    /// A description of an object's own through which another tier on the same file system may copy from it; `None` where
    /// there is none to give.
    fn share_for_copy(&self, object: ObjectRef) -> Option<OwnedFd>;

    /// Copies bytes from another object of the same file system, at the same offset, without bringing them into this
    /// process; where the file system can, by sharing them. Returns how many, which is less than asked for only at the end
    /// of the source. [`TierError::Unsupported`] where it cannot be done; then nothing was changed.
    fn copy_within_file_system(
        &self,
        object: ObjectRef,
        offset: u64,
        length: u64,
        source: &OwnedFd,
    ) -> Result<u64, TierError>;

    /// Sets the size, cutting or extending with zeros.
    fn truncate(&self, object: ObjectRef, size: u64) -> Result<(), TierError>;

    /// Reserves space for a range, which reads as before (zeros where it was a hole) or, with [`AllocateMode::Zero`], as zeros;
    /// [`TierError::Unsupported`] where the file system cannot.
    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<(), TierError>;

    /// Makes a range a hole; the size stays. [`TierError::Unsupported`] where the file system cannot.
    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<(), TierError>;

    /// First byte at or after `offset` that is data (or hole); `None` where there is none before the end of the object.
    /// The end of the object does not count as a hole.
    fn seek(&self, object: ObjectRef, offset: u64, target: SeekTarget) -> Result<Option<u64>, TierError>;

    /// The first contiguous blocks from `start` on and before `end` that have space on the device, written or only
    /// reserved, so that a write there needs none. `None` where no block has, or where that is not known.
    fn allocated(&self, object: ObjectRef, start: u64, end: u64) -> Result<Option<Range<u64>>, TierError>;

    /// Makes the file system free, soon and as far as it can, the space it preallocated behind the ends of objects because they were appended to
    /// ([`Capabilities::allocates_ahead`]). Best effort.
    fn give_back_room_ahead(&self) -> Result<(), TierError>;

    /// Refreshes the description that `rebuild` would use if all metadata were lost (DESIGN section 4). Best effort:
    /// without extended attributes on the tier this does nothing.
    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<(), TierError>;

    /// The description that the object carries, perhaps with less of its path than was given; `None` where it has none, or
    /// none that verifies.
    fn read_stamp(&self, object: ObjectRef) -> Result<Option<ObjectStamp>, TierError>;

    /// Makes the object's bytes, its size and its directory entry durable. Reports a failure of any earlier sync of
    /// this object that was not reported yet.
    fn sync(&self, object: ObjectRef) -> Result<(), TierError>;

    /// Makes everything on the tier durable, removals included.
    fn sync_all(&self) -> Result<(), TierError>;

    /// Whether bytes were written to the object that no successful sync has covered yet.
    fn is_unsynced(&self, object: ObjectRef) -> bool;

    /// The objects in one bucket, in no particular order.
    fn list(&self, bucket: Bucket) -> Result<Vec<ObjectId>, TierError>;

    /// The label as it stands on the tier (the newer of its two valid copies).
    fn read_label(&self) -> Result<Label, TierError>;

    /// Replaces the label durably.
    fn write_label(&self, label: &Label) -> Result<(), TierError>;

    /// Takes the label away, durably: the directory is no tier from then on, and whatever else was made for it goes as far
    /// as it is empty. The tier must not be used any more but to be given a new label at once.
    fn remove_label(&self) -> Result<(), TierError>;

    /// Tries whether the tier takes writes and makes them durable, without changing any data of users; in the least whether it can be asked at
    /// all.
    ///
    /// # Errors
    /// The error of the attempt; [`TierError::Label`] where the tier's path leads to something else by now.
    fn probe(&self) -> Result<(), TierError>;

    /// A place on the tier's device to measure it with, beside all objects: a file of its own, which goes when this is dropped.
    /// A leftover of a crash is removed when the tier is opened for changes the next time.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] where there is no device to measure.
    fn measuring_ground(&self) -> Result<Box<dyn Ground>, TierError>;

    /// Operations, bytes and errors so far.
    fn counters(&self) -> CounterSnapshot;
}
