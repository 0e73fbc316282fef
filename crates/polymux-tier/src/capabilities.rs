//! Capabilities and guarantees of the file system below a tier, probed and never assumed.

use std::fmt;

/// How the file system treats an overwrite of existing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverwriteStyle {
    /// In place: an overwrite needs no new space.
    InPlace,
    /// Copy-on-write (btrfs, ZFS, bcachefs): an overwrite may fail for lack of space.
    CopyOnWrite,
    /// Not known; treated like copy-on-write.
    Unknown,
}

/// The data that survives a crash after a successful sync (P21: a volume promises no more than its weakest tier).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Nothing: memory (tmpfs, ramfs).
    Volatile,
    /// All data that a server or another layer below reports as synced (NFS, FUSE).
    Remote,
    /// All data that a journal or a copy-on-write tree on a local device keeps.
    Durable,
}

/// Whether the device below a file system has parts that move, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// It has none: flash, memory.
    NonRotational,
    /// It seeks, and may be asleep.
    Rotational,
    /// Not known, as of a server, or of a file system over several devices; treated like one that seeks.
    Unknown,
}

/// Facts about the file system below a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name as `statfs` and the mount table give it (`ext4`, `xfs`, …).
    pub file_system: String,
    /// The guarantee of a sync.
    pub guarantee: Guarantee,
    /// Objects may have holes that take no space.
    pub sparse: bool,
    /// A range can be made a hole again.
    pub punch_hole: bool,
    /// Space can be reserved.
    pub preallocate: bool,
    /// An append gets space for more, which stays allocated where the object goes on behind a gap (XFS:
    /// `xfs_iomap_prealloc_size`). A caller that leaves gaps reserves the space that it needs before it writes.
    pub allocates_ahead: bool,
    /// Holes can be found (`SEEK_DATA`, `SEEK_HOLE`) exactly, not as one big run of data.
    pub seek_data: bool,
    /// Extended attributes in the `user.` name space.
    pub extended_attributes: bool,
    /// Reads can be asked not to wait (`RWF_NOWAIT`).
    pub nowait_read: bool,
    /// Data that a read brings from the device need not stay in memory (`RWF_DONTCACHE`, Linux 6.14).
    pub uncached_read: bool,
    /// Writes can be asked not to wait (`RWF_NOWAIT`); ext4 cannot.
    pub nowait_write: bool,
    /// Largest size of one file in bytes.
    pub file_size_max: u64,
    /// Unit of allocation in bytes.
    pub block_size: u32,
    /// Granularity of modification times in nanoseconds (2 s on FAT), as measured.
    pub timestamp_granularity_ns: u64,
    /// How overwrites are done.
    pub overwrite: OverwriteStyle,
    /// No more than a configured capacity is taken of the file system: writes past the tier are not checked against it.
    pub is_limited: bool,
    /// No operation could be tried out, because the file system had no space for a file: the facts are those of any file system of this
    /// name, with the least that may be counted on where they differ.
    pub is_assumed: bool,
    /// Whether its device seeks.
    pub rotation: Rotation,
    /// Device number of the file system: tiers that share it are counted once.
    pub device: u64,
}

impl Capabilities {
    /// Whether a part of a file may live here; without sparse files or hole punching only whole files may.
    #[must_use]
    pub fn holds_partial_files(&self) -> bool {
        self.sparse && self.punch_hole
    }

    /// Whether the sync of a new object's bytes makes its directory entry durable as well, so that its directory needs no
    /// sync of its own (docs/design/0005). ext4 and XFS make both in one transaction of a journal that keeps its order,
    /// and the sync of a new file commits that transaction.
    #[must_use]
    pub fn sync_covers_entry(&self) -> bool {
        matches!(self.file_system.as_str(), "ext4" | "xfs")
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Volatile => "volatile",
            Self::Remote => "remote",
            Self::Durable => "durable",
        })
    }
}
