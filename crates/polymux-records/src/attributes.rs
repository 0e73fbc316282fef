//! Attributes of files as callers see them.

use polymux_types::{Ino, Timestamp};

/// The file cannot be changed, renamed, linked or deleted; the bit of `FS_IOC_SETFLAGS` (as all below).
pub const ATTRIBUTE_IMMUTABLE: u32 = 0x10;
/// The file can only be appended to.
pub const ATTRIBUTE_APPEND_ONLY: u32 = 0x20;
/// Backup programs that ask pass the file over.
pub(crate) const ATTRIBUTE_NO_DUMP: u32 = 0x40;
/// Its access time stays as it is.
pub const ATTRIBUTE_NO_ATIME: u32 = 0x80;
/// All attribute flags that a record may have.
pub(crate) const ATTRIBUTE_FLAGS_KNOWN: u32 =
    ATTRIBUTE_IMMUTABLE | ATTRIBUTE_APPEND_ONLY | ATTRIBUTE_NO_DUMP | ATTRIBUTE_NO_ATIME;

/// Flags of a file or directory, as chattr(1) sets them: the bits of `FS_IOC_SETFLAGS`, of which only known ones are in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeFlags(u32);

impl AttributeFlags {
    /// The file cannot be changed, renamed, linked or deleted, and no name of the directory comes or goes.
    pub const IMMUTABLE: Self = Self(ATTRIBUTE_IMMUTABLE);
    /// The file can only be appended to, and names of the directory only come.
    pub const APPEND_ONLY: Self = Self(ATTRIBUTE_APPEND_ONLY);
    /// Backup programs that ask pass the file over.
    pub const NO_DUMP: Self = Self(ATTRIBUTE_NO_DUMP);
    /// Its access time stays as it is.
    pub const NO_ATIME: Self = Self(ATTRIBUTE_NO_ATIME);

    /// These bits; `None` where there are others than those above.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !ATTRIBUTE_FLAGS_KNOWN == 0 { Some(Self(bits)) } else { None }
    }

    /// Those of these bits that are known.
    pub const fn known(bits: u32) -> Self {
        Self(bits & ATTRIBUTE_FLAGS_KNOWN)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These, and none of the others.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether both have one in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Attributes that a new file or directory inherits from its parent directory.
    pub const fn inherited(self) -> Self {
        Self(self.0 & (ATTRIBUTE_NO_DUMP | ATTRIBUTE_NO_ATIME))
    }
}

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// The type bits of `st_mode`.
    #[must_use]
    pub const fn type_bits(self) -> u32 {
        match self {
            Self::Fifo => libc::S_IFIFO,
            Self::CharacterDevice => libc::S_IFCHR,
            Self::Directory => libc::S_IFDIR,
            Self::BlockDevice => libc::S_IFBLK,
            Self::Regular => libc::S_IFREG,
            Self::Symlink => libc::S_IFLNK,
            Self::Socket => libc::S_IFSOCK,
        }
    }

    /// The type that type bits of `st_mode` name.
    #[must_use]
    pub const fn from_type_bits(mode: u32) -> Option<Self> {
        match mode & libc::S_IFMT {
            libc::S_IFIFO => Some(Self::Fifo),
            libc::S_IFCHR => Some(Self::CharacterDevice),
            libc::S_IFDIR => Some(Self::Directory),
            libc::S_IFBLK => Some(Self::BlockDevice),
            libc::S_IFREG => Some(Self::Regular),
            libc::S_IFLNK => Some(Self::Symlink),
            libc::S_IFSOCK => Some(Self::Socket),
            _ => None,
        }
    }
}

/// Attributes of one file, answered by the collective inode for all tiers (M9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number; stable for the life of the file, also across remounts and migration.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, `0..=0o7777`.
    pub permissions: u32,
    /// Names of the file; for a directory 2 plus its subdirectories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub device: u64,
    /// Size in bytes: of the data, of a link's target, or of a directory's entries.
    pub size: u64,
    /// Units of 512 bytes allocated, summed over the tiers.
    pub blocks: u64,
    /// Last access (relatime).
    pub accessed: Timestamp,
    /// Last change of the data.
    pub modified: Timestamp,
    /// Last change of the attributes.
    pub changed: Timestamp,
    /// Creation.
    pub born: Timestamp,
}

/// A new value of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present moment (which a writer of the file may set, not only its owner).
    Now,
    /// A given moment.
    To(Timestamp),
}

/// Changes by `set_attributes`; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// New permission bits, `0..=0o7777`.
    pub permissions: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size.
    pub size: Option<u64>,
    /// New access time.
    pub accessed: Option<SetTime>,
    /// New modification time.
    pub modified: Option<SetTime>,
    /// Change time of this change, where a kernel keeps it itself (write-back); otherwise it is the present moment. It changes nothing by
    /// itself.
    pub changed: Option<Timestamp>,
    /// Handle the change comes through (`ftruncate`), which replaces the check for write permission.
    pub handle: Option<HandleId>,
    /// Whether set-id bits go. Judged by the mode at the time of the change: a mode that another caller set since the file was looked at
    /// is kept except for these bits.
    pub set_id: SetIdBits,
}

/// Change of the set-id bits of a file, beside any change of its mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetIdBits {
    /// They stay, as far as nothing else takes them.
    #[default]
    Keep,
    /// They go, by the rules of Linux (`setattr_should_drop_suidgid`).
    Clear {
        /// A group of which the caller is a member, or has the capability that counts as much: where it is that of the file and may
        /// not execute it, the set-group-id bit stays.
        member_of: Option<u32>,
    },
}

/// Set-user-id and set-group-id.
pub const SET_ID: u32 = 0o6000;
/// The extended attribute that holds the capabilities of a program (capabilities(7)).
pub const CAPABILITIES: &[u8] = b"security.capability";

/// The set-id bits that go from a file with these permission bits; one that the group cannot execute keeps the set-group-id bit for
/// its members.
pub fn set_id_taken(permissions: u32, is_member: impl FnOnce() -> bool) -> u32 {
    let group = permissions & libc::S_ISGID;
    let is_kept = group != 0 && permissions & libc::S_IXGRP == 0 && is_member();
    permissions & libc::S_ISUID | if is_kept { 0 } else { group }
}

impl Attributes {
    /// Whether a change would take set-id bits from this file.
    #[must_use]
    pub fn loses_set_id(&self, change: SetIdBits) -> bool {
        let SetIdBits::Clear { member_of } = change else { return false };
        self.kind != FileKind::Directory && set_id_taken(self.permissions, || member_of == Some(self.gid)) != 0
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Stable position: reading continues with the next entry, regardless of entries created or removed meanwhile.
    pub cookie: u64,
    /// The file.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// Its name, without a slash or a zero byte.
    pub name: Vec<u8>,
}

/// The names in a directory as a listing finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryNames {
    /// A number that stands for exactly these names: with another one, names were changed, or the directory got another parent. No number comes again
    /// during a mount.
    pub edition: u64,
    /// The position behind every name that is there: cookies of names made later are not smaller. A name that is renamed within its directory,
    /// or replaced, keeps its position.
    pub end: u64,
}

/// Operations allowed on an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Reading is allowed.
    pub read: bool,
    /// Writing is allowed.
    pub write: bool,
    /// Every write goes to the end of the file, atomically.
    pub append: bool,
    /// Opened with `O_APPEND` by a front end that finds the position of each append itself, and that hears when the flag is
    /// cleared. The kernel would go on appending to an object that it opened with the flag.
    pub positions_appends: bool,
    /// The file is emptied when it is opened.
    pub truncate: bool,
    /// Creation fails where the name exists.
    pub exclusive: bool,
    /// Each write is durable before it returns (`O_DSYNC`, `O_SYNC`).
    pub synchronous: bool,
    /// Opened to be executed: execute permission is checked instead of read permission.
    pub execute: bool,
}

/// A special file to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Empty regular file.
    Regular,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device with its number.
    CharacterDevice(u64),
    /// Block device with its number.
    BlockDevice(u64),
}

/// How `rename` treats a name that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename fails (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two names change places (`RENAME_EXCHANGE`).
    Exchange,
    /// It is replaced, and the old name becomes that of a whiteout (`RENAME_WHITEOUT`): a character device 0:0, by which overlayfs
    /// says that a name of a lower layer is gone.
    Whiteout,
    /// A whiteout is left, and the rename fails where the new name exists (`RENAME_WHITEOUT | RENAME_NOREPLACE`).
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Whether the rename fails where the new name exists.
    #[must_use]
    pub fn refuses_to_replace(self) -> bool {
        matches!(self, Self::NoReplace | Self::WhiteoutNoReplace)
    }

    /// Whether the old name becomes that of a whiteout.
    #[must_use]
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
}

/// Condition of `set_xattr` on the existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing.
    CreateOrReplace,
    /// That it does not exist.
    Create,
    /// That it exists.
    Replace,
}

/// How durable `sync` makes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Data and the metadata needed to read it back (`fdatasync`).
    Data,
    /// All attributes too (`fsync`).
    All,
}

/// Forms of `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateKind {
    /// Reserve space; the size grows to the end of the range.
    Extend,
    /// Reserve space; the size stays.
    KeepSize,
    /// Make the range a hole; the size stays.
    PunchHole,
    /// Make the range zeros; the size grows to its end.
    ZeroRange,
    /// Make the range zeros; the size stays.
    ZeroRangeKeepSize,
}

/// Where written bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    /// A call of a program.
    Call,
    /// A call of a program whose bytes are durable when it returns (`O_DSYNC`, `O_SYNC`, `RWF_DSYNC`, `RWF_SYNC`).
    DurableCall,
    /// Write-back of mapped pages: it carries no caller, is not checked, and never grows the file (DESIGN section 10).
    PageCache,
    /// Write-back of a kernel that collects writes (docs/design/0036): it carries no caller, was checked when the program wrote, may
    /// grow the file, whose size the kernel keeps, and leaves times to the kernel, which tells them.
    WriteBack,
}

impl WriteOrigin {
    /// Whether the bytes come from the page cache, some time after a program wrote them.
    #[must_use]
    pub const fn is_from_cache(self) -> bool {
        matches!(self, Self::PageCache | Self::WriteBack)
    }
}

/// Space on the volume, as `statfs` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    /// All bytes that the tiers can give; tiers that share a file system are counted once.
    pub total: u64,
    /// Bytes that are free, reserves included.
    pub free: u64,
    /// Bytes that can still be written.
    pub available: u64,
    /// Files that exist and could.
    pub files_total: u64,
    /// Files that can still be made.
    pub files_free: u64,
}

/// An open description. Never reused within one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);
