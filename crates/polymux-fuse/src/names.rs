//! Operations on names and attributes: lookup, creation without opening, removal, rename, link, set attributes.
//!
//! An entry that does not exist is answered as inode 0 rather than as an error, so that the kernel remembers that too.

use polymux_fs::{Caller, HandleId, RenameMode, SetAttributes, SetIdBits, Wait};
use polymux_transport::wire::{Attr, AttrChange, Header};
use polymux_types::Ino;

use crate::adapter::{Adapter, Outcome, caller, caller_with_groups, caller_with_umask, ino};
use crate::convert::{self, PERMISSION_BITS};
use crate::set_id::{is_empty, keeps_set_id, set_id_change, set_id_change_of_writer};
use crate::write_back;

fn to_set_attributes(change: &AttrChange) -> SetAttributes {
    SetAttributes {
        permissions: change.mode.map(|mode| mode & PERMISSION_BITS),
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        accessed: change.accessed.map(convert::set_time),
        modified: change.modified.map(convert::set_time),
        changed: change.changed,
        handle: change.handle.map(HandleId),
        set_id: SetIdBits::Keep,
    }
}

impl Adapter {
    /// `None`: there is no such name. `.` and `..` are asked for by NFS export.
    pub(crate) fn lookup_name(&self, header: &Header, name: &[u8], wait: Wait) -> Outcome<Option<Attr>> {
        let parent = ino(header);
        self.run("lookup", parent, |fs| {
            let caller = Caller { wait, ..caller(header) };
            let found = match name {
                b"." => fs.attributes(&caller, parent),
                b".." => fs.parent_of(&caller, parent),
                name => fs.lookup(&caller, parent, name),
            };
            match found {
                Ok(attributes) => Ok(Some(Self::entry(fs, &attributes))),
                Err(error) if is_missing_name(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    pub(crate) fn forget_inode(&self, number: Ino, count: u64) {
        let _ = self.run("forget", number, |fs| {
            fs.unpin(number, count);
            Ok(())
        });
    }

    pub(crate) fn get_attributes(&self, header: &Header, wait: Wait) -> Outcome<Attr> {
        let caller = Caller { wait, ..caller(header) };
        self.run("getattr", ino(header), |fs| {
            fs.attributes(&caller, ino(header)).map(|attributes| convert::attr(&attributes))
        })
    }

    pub(crate) fn set_attributes(&self, header: &Header, change: &AttrChange, wait: Wait) -> Outcome<Attr> {
        self.run("setattr", ino(header), |fs| {
            if let Some((modified, changed)) = write_back::times_of_kernel(change) {
                let caller = Caller { wait, ..caller(header) };
                let attributes = fs.take_over_times(&caller, ino(header), modified, changed)?;
                return Ok(convert::attr(&attributes));
            }
            let sets_group_id = change.mode.is_some_and(|mode| mode & libc::S_ISGID != 0);
            let caller = if sets_group_id { caller_with_groups(header) } else { caller(header) };
            let caller = Caller { wait, ..caller };
            let mut set = to_set_attributes(change);
            if set.permissions.is_none() && change.kills_set_id {
                let old = fs.attributes(&caller, ino(header))?;
                if !keeps_set_id(header, change, &old) {
                    set.set_id = set_id_change(header, &old);
                }
            }
            if is_empty(change) {
                // `chown(-1, -1)` moves the change time, and says nothing of it in the message: where no bits go, that is left.
                set.set_id = set_id_change_of_writer(fs, header, ino(header))?;
            }
            let attributes = fs.set_attributes(&caller, ino(header), &set)?;
            Ok(convert::attr(&attributes))
        })
    }

    pub(crate) fn read_link(&self, header: &Header) -> Outcome<Vec<u8>> {
        self.run("readlink", ino(header), |fs| fs.read_symlink(&caller(header), ino(header)))
    }

    pub(crate) fn make_node(&self, header: &Header, new: NewName<'_>, device: u32) -> Outcome<Attr> {
        self.run("mknod", ino(header), |fs| {
            let kind = convert::node_kind(new.mode.mode, device)?;
            let caller = caller_with_umask(header, new.mode.umask);
            Self::make_once(fs, header, new.name, || {
                fs.make_node(&caller, ino(header), new.name, kind, new.mode.permissions())
            })
        })
    }

    pub(crate) fn make_directory(&self, header: &Header, new: NewName<'_>) -> Outcome<Attr> {
        self.run("mkdir", ino(header), |fs| {
            let caller = caller_with_umask(header, new.mode.umask);
            Self::make_once(fs, header, new.name, || {
                fs.make_directory(&caller, ino(header), new.name, new.mode.permissions())
            })
        })
    }

    pub(crate) fn make_symlink(&self, header: &Header, name: &[u8], target: &[u8]) -> Outcome<Attr> {
        self.run("symlink", ino(header), |fs| {
            Self::make_once(fs, header, name, || fs.make_symlink(&caller(header), ino(header), name, target))
        })
    }

    pub(crate) fn make_link(&self, header: &Header, file: Ino, name: &[u8]) -> Outcome<Attr> {
        self.run("link", file, |fs| {
            Self::make_once(fs, header, name, || fs.link(&caller(header), file, ino(header), name))
        })
    }

    pub(crate) fn remove_name(&self, header: &Header, name: &[u8]) -> Outcome<()> {
        self.run("unlink", ino(header), |fs| {
            Self::removal(fs, header, name)?.carry_out(|| fs.unlink(&caller(header), ino(header), name))
        })
    }

    pub(crate) fn remove_directory(&self, header: &Header, name: &[u8]) -> Outcome<()> {
        self.run("rmdir", ino(header), |fs| {
            Self::removal(fs, header, name)?.carry_out(|| fs.remove_directory(&caller(header), ino(header), name))
        })
    }

    pub(crate) fn rename_name(
        &self,
        header: &Header,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Outcome<()> {
        self.run("rename", ino(header), |fs| {
            let mode = convert::rename_mode(flags)?;
            let standing = match mode {
                RenameMode::Replace | RenameMode::NoReplace => Self::removal(fs, header, name)?,
                RenameMode::Exchange | RenameMode::Whiteout | RenameMode::WhiteoutNoReplace => {
                    self.exchange(fs, header, name)?
                }
            };
            let (from, to) = ((ino(header), name), (new_parent, new_name));
            standing.carry_out(|| {
                for moved in fs.rename_reporting_moves(&caller(header), from, to, mode)? {
                    // `..` of a directory that was moved is another one, and nothing else shows that its listing is outdated.
                    self.device.forget_listing(moved.get());
                }
                Ok(())
            })
        })
    }
}

/// A name to be made, with the mode of its file.
#[derive(Clone, Copy)]
pub(crate) struct NewName<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) mode: ModeAndMask,
}

/// Mode of a new file and the mask of the process that makes it. The kernel leaves applying the mask to the file
/// system, because a default ACL replaces it.
#[derive(Clone, Copy)]
pub(crate) struct ModeAndMask {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

impl ModeAndMask {
    pub(crate) fn permissions(self) -> u32 {
        self.mode & PERMISSION_BITS
    }
}

/// Whether an error says that there is no such name, or inode. A tier that reports ENOENT of an object says neither.
pub(crate) fn is_missing_name(error: &polymux_fs::Error) -> bool {
    *error.kind() == polymux_fs::ErrorKind::Posix(polymux_types::Errno::ENOENT)
}
