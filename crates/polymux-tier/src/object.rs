//! Words that the [`crate::Tier`] trait speaks in.

use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Ino, ObjectId, Timestamp, VolumeId};

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
}

/// What [`crate::Tier::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that were written.
    Data,
    /// Bytes that were not.
    Hole,
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
    /// Path from the root of the volume as of the last refresh, without a leading slash.
    pub path: Vec<u8>,
}
