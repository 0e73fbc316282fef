//! The operation of a request.

use polymux_types::Timestamp;

use super::bytes::{Malformed, Reader};
use super::init::InitRequest;
use super::opcode::Opcode;
use super::request::RequestForm;

/// The changes of a `SETATTR`; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// Type and permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Access time; the inner `None` is the present moment.
    pub accessed: Option<Option<Timestamp>>,
    /// Modification time; the inner `None` is the present moment.
    pub modified: Option<Option<Timestamp>>,
    /// Change time; sent only by a kernel that collects writes, and then keeps the times of regular files itself (`FATTR_CTIME`).
    pub changed: Option<Timestamp>,
    /// The open file that the change comes through.
    pub handle: Option<u64>,
    /// The set-id bits go (`FATTR_KILL_SUIDGID`).
    pub kills_set_id: bool,
}

/// Whether the kernel keeps pages of the bytes that it reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// The bytes are in pages of the file afterwards.
    Kept,
    /// A call past the page cache: it names the owner of locks, which pages do not have (`FUSE_READ_LOCKOWNER`, `FUSE_WRITE_LOCKOWNER`; `fuse_direct_io` in
    /// fs/fuse/file.c).
    None,
}

/// The owner of locks is named.
const LOCK_OWNER: u32 = 1 << 1;

fn page_use(flags: u32) -> PageUse {
    if flags & LOCK_OWNER != 0 { PageUse::None } else { PageUse::Kept }
}

/// Flags of a `WRITE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteFlags(pub u32);

impl WriteFlags {
    /// Write-back of cached pages: the handle is a guess, and the caller is unknown.
    #[must_use]
    pub const fn is_from_cache(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the kernel has the bytes in pages.
    #[must_use]
    pub fn page_use(self) -> PageUse {
        page_use(self.0)
    }

    /// The set-id bits go.
    #[must_use]
    pub const fn kills_set_id(self) -> bool {
        self.0 & (1 << 2) != 0
    }
}

/// Further flags of an `OPEN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequestFlags(pub u32);

impl OpenRequestFlags {
    /// The set-id bits go, because the file is emptied (`FUSE_OPEN_KILL_SUIDGID`).
    #[must_use]
    pub const fn kills_set_id(self) -> bool {
        self.0 & 1 != 0
    }
}

/// How the length of a copy is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWidth {
    /// In 32 bits.
    Short,
    /// In 64 bits (7.45).
    Long,
}

/// Inodes that the kernel forgets, with how many references of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = Reader::new(self.0);
        let forget = (reader.u64().ok()?, reader.u64().ok()?);
        self.0 = reader.rest();
        Some(forget)
    }
}

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are named as the arguments of the system calls")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        inodes: Forgets<'a>,
    },
    GetAttr {
        /// The open file description that needs them, for a write through it or to find the end of the file.
        handle: Option<u64>,
    },
    Statx {
        mask: u32,
    },
    SetAttr {
        change: AttrChange,
    },
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
        further: OpenRequestFlags,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: i32,
    },
    CreateUnnamed {
        mode: u32,
        umask: u32,
        flags: i32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        pages: PageUse,
    },
    Write {
        handle: u64,
        offset: u64,
        flags: WriteFlags,
        open_flags: i32,
        data: &'a [u8],
    },
    Flush {
        handle: u64,
    },
    Release {
        handle: u64,
    },
    Sync {
        handle: u64,
        data_only: bool,
    },
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        offset: i64,
        whence: i32,
    },
    CopyRange {
        source: (u64, u64),
        target_node: u64,
        target: (u64, u64),
        length: u64,
        width: CopyWidth,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReadDirectoryPlus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReleaseDirectory {
        handle: u64,
    },
    SyncDirectory,
    StatFs,
    SyncVolume,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
        kills_set_group_id: Option<bool>,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Access,
    /// A command on an open file or directory, or on one that the kernel opened for it alone.
    Ioctl {
        handle: u64,
        command: u32,
        /// Data of the request.
        data: &'a [u8],
        /// How long the answer has to be.
        answer_length: u32,
    },
    Poll,
    Init {
        offer: InitRequest,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// A kind that is known and never served, or that came with a later kernel.
    Other,
}

impl<'a> Operation<'a> {
    pub(super) fn parse(
        opcode: u32,
        structure: &'a [u8],
        rest: &'a [u8],
        form: RequestForm,
    ) -> Result<Self, Malformed> {
        let Some(opcode) = Opcode::from_number(opcode) else { return Ok(Self::Other) };
        let mut fixed = Reader::new(structure);
        let mut rest = Reader::new(rest);
        match opcode {
            Opcode::Lookup
            | Opcode::Symlink
            | Opcode::MakeNode
            | Opcode::MakeDirectory
            | Opcode::Unlink
            | Opcode::RemoveDirectory
            | Opcode::Rename
            | Opcode::RenameWithFlags
            | Opcode::Link
            | Opcode::Create
            | Opcode::CreateUnnamed => Self::parse_names(opcode, fixed, rest),
            Opcode::Open => {
                let (flags, further) = (fixed.i32()?, OpenRequestFlags(fixed.u32()?));
                Ok(Self::Open { flags, further })
            }
            Opcode::Read
            | Opcode::Write
            | Opcode::Flush
            | Opcode::Release
            | Opcode::Sync
            | Opcode::Allocate
            | Opcode::Seek
            | Opcode::CopyRange
            | Opcode::CopyLongRange => Self::parse_file(opcode, fixed, rest),
            Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr | Opcode::RemoveXattr => {
                Self::parse_xattr(opcode, fixed, rest, form)
            }
            Opcode::GetAttr => Self::parse_attributes(fixed),
            Opcode::Statx => {
                fixed.skip(20)?;
                Ok(Self::Statx { mask: fixed.u32()? })
            }
            Opcode::SetAttr => Ok(Self::SetAttr { change: AttrChange::parse(fixed)? }),
            Opcode::ReadLink => Ok(Self::ReadLink),
            Opcode::OpenDirectory => Ok(Self::OpenDirectory),
            Opcode::ReadDirectory | Opcode::ReadDirectoryPlus => Self::parse_listing(opcode, fixed),
            Opcode::ReleaseDirectory => Ok(Self::ReleaseDirectory { handle: fixed.u64()? }),
            Opcode::SyncDirectory => Ok(Self::SyncDirectory),
            Opcode::StatFs => Ok(Self::StatFs),
            Opcode::SyncVolume => Ok(Self::SyncVolume),
            Opcode::Access => Ok(Self::Access),
            Opcode::Ioctl => Self::parse_ioctl(fixed, rest),
            Opcode::Poll => Ok(Self::Poll),
            Opcode::Init => Ok(Self::Init { offer: InitRequest::parse(fixed, rest)? }),
            Opcode::Interrupt => Ok(Self::Interrupt { unique: fixed.u64()? }),
            Opcode::Forget => Ok(Self::Forget { count: fixed.u64()? }),
            Opcode::BatchForget => {
                let length = fixed.u32()?.checked_mul(16).ok_or(Malformed("too many inodes"))?;
                Ok(Self::BatchForget { inodes: Forgets(rest.bytes(length)?) })
            }
            Opcode::Destroy => Ok(Self::Destroy),
            Opcode::GetLock
            | Opcode::SetLock
            | Opcode::SetLockWait
            | Opcode::MapBlock
            | Opcode::NotifyReply
            | Opcode::SetUpMapping
            | Opcode::RemoveMapping => Ok(Self::Other),
        }
    }

    fn parse_names(opcode: Opcode, mut fixed: Reader<'a>, mut rest: Reader<'a>) -> Result<Self, Malformed> {
        Ok(match opcode {
            Opcode::Symlink => Self::Symlink { name: rest.name()?, target: rest.string()? },
            Opcode::MakeNode => {
                let (mode, device, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
                Self::MakeNode { name: rest.name()?, mode, device, umask }
            }
            Opcode::MakeDirectory => {
                Self::MakeDirectory { mode: fixed.u32()?, umask: fixed.u32()?, name: rest.name()? }
            }
            Opcode::Unlink => Self::Unlink { name: rest.name()? },
            Opcode::RemoveDirectory => Self::RemoveDirectory { name: rest.name()? },
            Opcode::Rename => {
                Self::Rename { new_parent: fixed.u64()?, flags: 0, name: rest.name()?, new_name: rest.name()? }
            }
            Opcode::RenameWithFlags => {
                let (new_parent, flags) = (fixed.u64()?, fixed.u32()?);
                Self::Rename { new_parent, flags, name: rest.name()?, new_name: rest.name()? }
            }
            Opcode::Link => Self::Link { node: fixed.u64()?, name: rest.name()? },
            Opcode::Create => {
                let (flags, mode, umask) = (fixed.i32()?, fixed.u32()?, fixed.u32()?);
                Self::Create { name: rest.name()?, mode, umask, flags }
            }
            // The name that follows is the kernel's own and means nothing.
            Opcode::CreateUnnamed => {
                let (flags, mode, umask) = (fixed.i32()?, fixed.u32()?, fixed.u32()?);
                Self::CreateUnnamed { mode, umask, flags }
            }
            _ => Self::Lookup { name: rest.name()? },
        })
    }

    fn parse_file(opcode: Opcode, mut fixed: Reader<'a>, mut rest: Reader<'a>) -> Result<Self, Malformed> {
        let handle = fixed.u64()?;
        Ok(match opcode {
            Opcode::Read => {
                let (offset, size) = (fixed.u64()?, fixed.u32()?);
                Self::Read { handle, offset, size, pages: page_use(fixed.u32()?) }
            }
            Opcode::Write => {
                let (offset, size, flags) = (fixed.u64()?, fixed.u32()?, WriteFlags(fixed.u32()?));
                fixed.skip(8)?;
                let open_flags = fixed.i32()?;
                Self::Write { handle, offset, flags, open_flags, data: rest.bytes(size)? }
            }
            Opcode::Release => Self::Release { handle },
            Opcode::Sync => Self::Sync { handle, data_only: fixed.u32()? & 1 != 0 },
            Opcode::Allocate => {
                let (offset, length, mode) = (fixed.u64()?, fixed.u64()?, fixed.i32()?);
                Self::Allocate { handle, offset, length, mode }
            }
            Opcode::Seek => Self::Seek { handle, offset: fixed.i64()?, whence: fixed.i32()? },
            Opcode::CopyRange | Opcode::CopyLongRange => {
                let source = (handle, fixed.u64()?);
                let target_node = fixed.u64()?;
                let target = (fixed.u64()?, fixed.u64()?);
                let width = if opcode == Opcode::CopyRange { CopyWidth::Short } else { CopyWidth::Long };
                Self::CopyRange { source, target_node, target, length: fixed.u64()?, width }
            }
            _ => Self::Flush { handle },
        })
    }

    fn parse_ioctl(mut fixed: Reader<'a>, mut rest: Reader<'a>) -> Result<Self, Malformed> {
        let handle = fixed.u64()?;
        // Flags of programs of other word lengths: the commands that are served have one form.
        fixed.skip(4)?;
        let command = fixed.u32()?;
        // The argument as the program gave it.
        fixed.skip(8)?;
        let (length, answer_length) = (fixed.u32()?, fixed.u32()?);
        Ok(Self::Ioctl { handle, command, data: rest.bytes(length)?, answer_length })
    }

    fn parse_xattr(
        opcode: Opcode,
        mut fixed: Reader<'a>,
        mut rest: Reader<'a>,
        form: RequestForm,
    ) -> Result<Self, Malformed> {
        Ok(match opcode {
            Opcode::SetXattr => {
                let (size, flags) = (fixed.u32()?, fixed.i32()?);
                let kills_set_group_id = if form.long_set_xattr { Some(fixed.u32()? & 1 != 0) } else { None };
                Self::SetXattr { name: rest.string()?, value: rest.bytes(size)?, flags, kills_set_group_id }
            }
            Opcode::GetXattr => Self::GetXattr { size: fixed.u32()?, name: rest.string()? },
            Opcode::RemoveXattr => Self::RemoveXattr { name: rest.string()? },
            _ => Self::ListXattr { size: fixed.u32()? },
        })
    }

    fn parse_attributes(mut fixed: Reader<'a>) -> Result<Self, Malformed> {
        let has_handle = fixed.u32()? & 1 != 0;
        fixed.skip(4)?;
        let handle = fixed.u64()?;
        Ok(Self::GetAttr { handle: has_handle.then_some(handle) })
    }

    fn parse_listing(opcode: Opcode, mut fixed: Reader<'a>) -> Result<Self, Malformed> {
        let (handle, offset, size) = (fixed.u64()?, fixed.u64()?, fixed.u32()?);
        Ok(match opcode {
            Opcode::ReadDirectory => Self::ReadDirectory { handle, offset, size },
            _ => Self::ReadDirectoryPlus { handle, offset, size },
        })
    }
}

/// Bits that say which attributes a `SETATTR` changes.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ACCESSED: u32 = 1 << 4;
    pub(super) const MODIFIED: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ACCESSED_NOW: u32 = 1 << 7;
    pub(super) const MODIFIED_NOW: u32 = 1 << 8;
    pub(super) const CHANGED: u32 = 1 << 10;
    pub(super) const KILLS_SET_ID: u32 = 1 << 11;
}

/// A change time is always sent as a value.
const NEVER_NOW: u32 = 0;

impl AttrChange {
    fn parse(mut fixed: Reader<'_>) -> Result<Self, Malformed> {
        let bits = fixed.u32()?;
        let given = |bit: u32| bits & bit != 0;
        fixed.skip(4)?;
        let (handle, size) = (fixed.u64()?, fixed.u64()?);
        fixed.skip(8)?;
        let seconds = [fixed.i64()?, fixed.i64()?, fixed.i64()?];
        let nanoseconds = [fixed.u32()?, fixed.u32()?, fixed.u32()?];
        let mode = fixed.u32()?;
        fixed.skip(4)?;
        let (uid, gid) = (fixed.u32()?, fixed.u32()?);
        let time = |set: u32, now: u32, index: usize| -> Result<Option<Option<Timestamp>>, Malformed> {
            if given(set) && given(now) {
                return Ok(Some(None));
            }
            if !given(set) {
                return Ok(None);
            }
            if nanoseconds[index] >= 1_000_000_000 {
                return Err(Malformed("more nanoseconds than a second has"));
            }
            Ok(Some(Some(Timestamp::new(seconds[index], nanoseconds[index]))))
        };
        Ok(Self {
            mode: given(valid::MODE).then_some(mode),
            uid: given(valid::UID).then_some(uid),
            gid: given(valid::GID).then_some(gid),
            size: given(valid::SIZE).then_some(size),
            accessed: time(valid::ACCESSED, valid::ACCESSED_NOW, 0)?,
            modified: time(valid::MODIFIED, valid::MODIFIED_NOW, 1)?,
            changed: time(valid::CHANGED, NEVER_NOW, 2)?.flatten(),
            handle: given(valid::HANDLE).then_some(handle),
            kills_set_id: given(valid::KILLS_SET_ID),
        })
    }
}
