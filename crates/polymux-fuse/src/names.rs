//! Operations on names and attributes: lookup, creation without opening, removal, rename, link, set attributes.
//!
//! An entry that does not exist is answered as inode 0 rather than as an error, so that the kernel remembers that too.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileAttr, INodeNo, RenameFlags, Request, TimeOrNow};
use polymux_fs::{FileSystem, HandleId, SetAttributes};
use polymux_types::Ino;

use crate::adapter::{Adapter, caller, caller_with_groups, caller_with_umask, ino};
use crate::convert::{self, PERMISSION_BITS};
use crate::set_id::{takes_set_id, without_set_id};

/// What a `SETATTR` request changes, in the form of the transport.
pub(crate) struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Option<TimeOrNow>,
    pub(crate) modified: Option<TimeOrNow>,
    pub(crate) handle: Option<fuser::FileHandle>,
}

impl Change {
    fn to_set_attributes(&self) -> SetAttributes {
        SetAttributes {
            permissions: self.mode.map(|mode| mode & PERMISSION_BITS),
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            accessed: self.accessed.map(convert::set_time),
            modified: self.modified.map(convert::set_time),
            handle: self.handle.map(|handle| HandleId(handle.0)),
        }
    }
}

impl Adapter {
    /// `None`: there is no such name. `.` and `..` are asked for by NFS export.
    pub(crate) fn lookup_name(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Reply<Option<FileAttr>> {
        self.run("lookup", parent.0, |fs| {
            let caller = caller(request);
            let found = match name.as_bytes() {
                b"." => fs.attributes(&caller, ino(parent)),
                b".." => fs.parent_of(&caller, ino(parent)),
                name => fs.lookup(&caller, ino(parent), name),
            };
            match found {
                Ok(attributes) => Ok(Some(Self::entry(fs, &attributes))),
                Err(error) if is_missing_name(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    pub(crate) fn forget_inode(&self, number: INodeNo, count: u64) {
        let _ = self.run("forget", number.0, |fs| {
            fs.unpin(ino(number), count);
            Ok(())
        });
    }

    pub(crate) fn get_attributes(&self, request: &Request, number: INodeNo) -> Reply<FileAttr> {
        self.run("getattr", number.0, |fs| {
            fs.attributes(&caller(request), ino(number)).map(|attributes| convert::file_attr(&attributes))
        })
    }

    pub(crate) fn set_attributes(&self, request: &Request, number: INodeNo, change: &Change) -> Reply<FileAttr> {
        self.run("setattr", number.0, |fs| {
            let sets_group_id = change.mode.is_some_and(|mode| mode & libc::S_ISGID != 0);
            let caller = if sets_group_id { caller_with_groups(request) } else { caller(request) };
            let mut set = change.to_set_attributes();
            let changes_owner = set.uid.is_some() || set.gid.is_some();
            if set.permissions.is_none() && (changes_owner || set.size.is_some() && takes_set_id(request)) {
                set.permissions = without_set_id(&fs.attributes(&caller, ino(number))?);
            }
            let attributes = fs.set_attributes(&caller, ino(number), &set)?;
            Ok(convert::file_attr(&attributes))
        })
    }

    pub(crate) fn read_link(&self, request: &Request, number: INodeNo) -> Reply<Vec<u8>> {
        self.run("readlink", number.0, |fs| fs.read_symlink(&caller(request), ino(number)))
    }

    pub(crate) fn make_node(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: ModeAndMask,
        rdev: u32,
    ) -> Reply<FileAttr> {
        self.run("mknod", parent.0, |fs| {
            let kind = convert::node_kind(mode.mode, rdev)?;
            let caller = caller_with_umask(request, mode.umask);
            let made = fs.make_node(&caller, ino(parent), name.as_bytes(), kind, mode.permissions())?;
            Ok(Self::entry(fs, &made))
        })
    }

    pub(crate) fn make_directory(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: ModeAndMask,
    ) -> Reply<FileAttr> {
        self.run("mkdir", parent.0, |fs| {
            let caller = caller_with_umask(request, mode.umask);
            let made = fs.make_directory(&caller, ino(parent), name.as_bytes(), mode.permissions())?;
            Ok(Self::entry(fs, &made))
        })
    }

    pub(crate) fn make_symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &OsStr,
    ) -> Reply<FileAttr> {
        self.run("symlink", parent.0, |fs| {
            let made = fs.make_symlink(&caller(request), ino(parent), name.as_bytes(), target.as_bytes())?;
            Ok(Self::entry(fs, &made))
        })
    }

    pub(crate) fn make_link(
        &self,
        request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
    ) -> Reply<FileAttr> {
        self.run("link", number.0, |fs| {
            let linked = fs.link(&caller(request), ino(number), ino(parent), name.as_bytes())?;
            Ok(Self::entry(fs, &linked))
        })
    }

    pub(crate) fn remove_name(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Reply<()> {
        self.run("unlink", parent.0, |fs| fs.unlink(&caller(request), ino(parent), name.as_bytes()))
    }

    pub(crate) fn remove_directory(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Reply<()> {
        self.run("rmdir", parent.0, |fs| fs.remove_directory(&caller(request), ino(parent), name.as_bytes()))
    }

    pub(crate) fn rename_name(
        &self,
        request: &Request,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Reply<()> {
        self.run("rename", from.0.0, |fs: &FileSystem| {
            let mode = convert::rename_mode(flags)?;
            let (parent, new_parent): (Ino, Ino) = (ino(from.0), ino(to.0));
            fs.rename(&caller(request), parent, from.1.as_bytes(), new_parent, to.1.as_bytes(), mode)
        })
    }
}

/// Result of a request as the transport sends it.
pub(crate) type Reply<T> = Result<T, Errno>;

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

fn is_missing_name(error: &polymux_fs::Error) -> bool {
    *error.kind() == polymux_fs::ErrorKind::Posix(polymux_types::Errno::ENOENT)
}
