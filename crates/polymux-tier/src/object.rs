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

/// What the file system below knows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Size in bytes, holes included.
    pub size: u64,
    /// Bytes that take room on the tier, in the granularity of its file system.
    pub allocated: u64,
    /// Last change of the bytes, in the tier's granularity.
    pub modified: Timestamp,
}

/// Room on a tier in bytes, within its capacity limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// All room that the tier can ever give to this volume.
    pub total: u64,
    /// Room that an ordinary user could still fill.
    pub free: u64,
    /// Room that objects of this volume take, where it is known (with a capacity limit), else what the file system
    /// says is in use by everybody.
    pub used: u64,
    /// Objects that can still be made (free inodes of the file system below); `u64::MAX` where it sets no limit.
    pub objects_free: u64,
    /// Size of the file system below, whatever the tier's limit.
    pub file_system_total: u64,
    /// Room on the file system below that an ordinary user could fill.
    pub file_system_free: u64,
    /// Room on the file system below that only root can fill, beside `file_system_free`; 0 where that is not known, and where this
    /// process is not root.
    pub root_reserve: u64,
}

/// Whether an operation may wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The ordinary, blocking form.
    Allowed,
    /// Return "would block" before any side effect rather than wait.
    Never,
}

/// What preallocation does with the size of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// The size grows to the end of the range.
    Extend,
    /// The size stays as it is.
    KeepSize,
    /// The size stays, and the range reads as zeros afterwards.
    Zero,
}

/// What [`crate::Tier::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that were written.
    Data,
    /// Bytes that were not.
    Hole,
}

/// What an object is lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoanPurpose {
    /// Reading alone.
    Read,
    /// Reading and changing: nobody here hears of the changes.
    Change,
    /// Somebody has it already, and may change it: nobody can refuse it to him.
    Held,
}

/// An object that somebody else uses directly until this is dropped.
pub trait Loan: std::fmt::Debug + Send + Sync {
    /// An open descriptor of it.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// What it was lent for.
    fn purpose(&self) -> LoanPurpose;
}

/// What an object says about itself in an extended attribute, for `rebuild` (DESIGN section 4).
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
    /// [`StampRefresh::directories`] where the tier had no room for all of it.
    pub path: Vec<u8>,
    /// What version 2 knows beside that; `None` where an older Polymux wrote the stamp.
    pub refresh: Option<StampRefresh>,
}

/// When an object was described, and what was true of its file then.
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
    /// It had extended attributes, which no stamp holds, or nobody knew that it had none.
    pub may_have_xattrs: bool,
    /// The directories on the path from the top: the first is where the first name of `path` lies, the last where the file
    /// does. As many as `path` has names.
    pub directories: Vec<StampDirectory>,
}

/// Place of a refresh in the order of all that happened to a volume. What a stamp says was true after that transaction.
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

    /// The same without the upper half of the path, for a tier that has no room for all of it; `None` where the path is
    /// one name, or nobody could tell where it begins.
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
