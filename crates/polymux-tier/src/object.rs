//! Words that the [`crate::Tier`] trait speaks in.

use std::os::fd::BorrowedFd;

use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Epoch, Ino, ObjectId, Sequence, Timestamp, VolumeId};

/// Where an object is: its id and the directory it was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Number of the object, unique in its volume.
    pub id: ObjectId,
    /// Directory it lies in.
    pub bucket: Bucket,
}

impl ObjectRef {
    /// Names an object. Panics where the bucket is out of range, which no valid record contains.
    #[must_use]
    pub const fn new(id: ObjectId, bucket: Bucket) -> Self {
        assert!(bucket.0 < BUCKETS);
        Self { id, bucket }
    }
}

/// Attributes of an object in the file system below; the default is those of an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStat {
    /// Size in bytes, holes included.
    pub size: u64,
    /// Bytes that take space on the tier, in the granularity of its file system.
    pub allocated: u64,
    /// Last change of the bytes, in the tier's granularity.
    pub modified: Timestamp,
}

/// Reads of an open object that memory answers ([`crate::Tier::memory_reads`]).
pub trait MemoryReads: Send + Sync {
    /// Reads bytes that are in memory; returns how many, which is less than asked for at the end of the object and where the rest is
    /// not in memory. `None` where a device would have to be waited for, whose work begins then, and on any error: an ordinary read says which.
    fn read_from_memory(&self, offset: u64, buffer: &mut [u8]) -> Option<usize>;
}

/// Space on a tier in bytes, within its capacity limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// All space that the tier can ever give to this volume.
    pub total: u64,
    /// Space that an ordinary user could still fill.
    pub free: u64,
    /// Bytes that objects of this volume take, where that is known (with a capacity limit); otherwise all bytes in use
    /// on the file system below.
    pub used: u64,
    /// Objects that can still be made (free inodes of the file system below); `u64::MAX` where it sets no limit.
    pub objects_free: u64,
    /// Size of the file system below, whatever the tier's limit.
    pub file_system_total: u64,
    /// Space on the file system below that an ordinary user could fill.
    pub file_system_free: u64,
    /// Space on the file system below that only root can fill, beside `file_system_free`; 0 where that is not known, and where this
    /// process is not root.
    pub root_reserve: u64,
}

impl Space {
    /// Bytes that data cannot take any more, those that the file system keeps for root included: the bytes that marks are compared with.
    #[must_use]
    pub fn unavailable(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// Whether an operation may wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The ordinary, blocking form.
    Allowed,
    /// Return "would block" before any side effect rather than wait.
    Never,
}

/// How preallocation changes the size of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// The size grows to the end of the range.
    Extend,
    /// The size stays as it is.
    KeepSize,
    /// The size stays, and the range reads as zeros afterwards.
    Zero,
}

/// The target of a [`crate::Tier::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that were written.
    Data,
    /// Bytes that were not.
    Hole,
}

/// The purpose for which an object is given to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoanPurpose {
    /// Reading alone.
    Read,
    /// Reading and writing: the tier does not see the writes.
    Change,
    /// The object is externally open and may be written: access to it can no longer be refused.
    Held,
}

/// An object in direct use by the kernel, past the tier, until this is dropped.
pub trait Loan: std::fmt::Debug + Send + Sync {
    /// An open descriptor of it.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The purpose of the direct use.
    fn purpose(&self) -> LoanPurpose;
}

/// The description of an object in its extended attribute, for `rebuild` (DESIGN section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStamp {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// The inode it belongs to.
    pub ino: Ino,
    /// Which of the inode's objects on this tier it is.
    pub generation: u32,
    /// File type and permission bits as of the last refresh.
    pub mode: u32,
    /// Owner as of the last refresh.
    pub uid: u32,
    /// Group as of the last refresh.
    pub gid: u32,
    /// Modification time as of the last refresh.
    pub modified: Timestamp,
    /// Path as of the last refresh, without a leading slash: from the root of the volume, or from the first directory of
    /// [`StampRefresh::directories`] where the tier had no space for all of it.
    pub path: Vec<u8>,
    /// Further fields of version 2; `None` where an older Polymux wrote the stamp.
    pub refresh: Option<StampRefresh>,
}

/// Time of a description of an object, and the state of its file then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StampRefresh {
    /// Which of two stamps is the newer one, whatever clocks did.
    pub order: StampOrder,
    /// The moment, on the clock of the volume.
    pub at: Timestamp,
    /// Size of the file.
    pub size: u64,
    /// Its names.
    pub links: u32,
    /// The file had extended attributes, which no back-reference holds, or it was not known to have none.
    pub may_have_xattrs: bool,
    /// The directories on the path from the top: the first is where the first name of `path` lies, the last where the file
    /// does. As many as `path` has names.
    pub directories: Vec<StampDirectory>,
}

/// Position of a refresh in the order of all changes of a volume. The content of a stamp was true after that transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StampOrder {
    /// Epoch of the volume.
    pub epoch: Epoch,
    /// The last transaction before the refresh began.
    pub sequence: Sequence,
}

/// One directory on the path of a stamped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampDirectory {
    /// Its inode number.
    pub ino: Ino,
    /// Permission bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl ObjectStamp {
    /// The names of the path.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// This description without the upper half of the path, for a tier without space for all of it; `None` where the path is
    /// one name, or the directory that it begins in is not recorded.
    #[must_use]
    pub fn without_upper_half(&self) -> Option<Self> {
        let refresh = self.refresh.as_ref()?;
        let names: Vec<&[u8]> = self.names().collect();
        if names.len() < 2 {
            return None;
        }
        let cut = names.len().div_ceil(2);
        let directories = refresh.directories[cut..].to_vec();
        let path = names[cut..].join(&b'/');
        Some(Self { path, refresh: Some(StampRefresh { directories, ..refresh.clone() }), ..self.clone() })
    }
}
