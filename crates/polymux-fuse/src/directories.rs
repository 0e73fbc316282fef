//! Listing of directories. It is stateless: an offset says everything, so that `seekdir`, NFS and a restart of a
//! listing work whatever was created or removed meanwhile.
//!
//! `.` and `..` are made here; they are never pinned, because the kernel does not count them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{FileAttr, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};
use polymux_fs::{Attributes, Caller, DirectoryEntry, FileSystem};

use crate::adapter::{Adapter, caller, ino};
use crate::convert::{self, OFFSET_AFTER_DOT, OFFSET_AFTER_DOT_DOT};
use crate::names::Reply;
use crate::requests::Debt;

/// Entries asked for at once: about what the kernel's usual buffer of 32 KiB holds.
const NAMES_AT_ONCE: usize = 512;
/// The same with attributes, which take more room.
const ENTRIES_AT_ONCE: usize = 128;

/// Whether the buffer of an answer has room left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Left,
    Full,
}

impl From<bool> for Room {
    /// From fuser's answer to adding an entry: true means that it did not fit.
    fn from(full: bool) -> Self {
        if full { Self::Full } else { Self::Left }
    }
}

impl Adapter {
    pub(crate) fn open_listing(&self, request: &Request, directory: INodeNo) -> Reply<()> {
        self.run("opendir", directory.0, |fs| fs.open_directory(&caller(request), ino(directory)))
    }

    pub(crate) fn sync_listing(&self, request: &Request, directory: INodeNo) -> Reply<()> {
        self.run("fsyncdir", directory.0, |fs| fs.sync_directory(&caller(request), ino(directory)))
    }

    pub(crate) fn list_names(
        &self,
        request: &Request,
        directory: INodeNo,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Reply<()> {
        self.run("readdir", directory.0, |fs| {
            let mut listing = Listing { fs, caller: caller(request), directory, offset };
            let dots = listing.dots(|attributes, offset, name| {
                let number = INodeNo(attributes.ino.get());
                reply.add(number, offset, convert::file_type(attributes.kind), name).into()
            })?;
            if dots == Room::Full {
                return Ok(());
            }
            listing.entries(NAMES_AT_ONCE, |entry, offset| {
                let name = OsStr::from_bytes(&entry.name);
                Ok(reply.add(INodeNo(entry.ino.get()), offset, convert::file_type(entry.kind), name).into())
            })
        })
    }

    /// Returns the inodes of the entries, which were pinned.
    pub(crate) fn list_entries(
        &self,
        request: &Request,
        directory: INodeNo,
        offset: u64,
        debt: &mut Debt<'_, ReplyDirectoryPlus>,
    ) -> Reply<Vec<INodeNo>> {
        self.run("readdirplus", directory.0, |fs| {
            let caller = caller(request);
            let mut pinned = Vec::new();
            let mut listing = Listing { fs, caller: caller.clone(), directory, offset };
            let dots = listing.dots(|attributes, offset, name| {
                add_entry(debt, self.keep(), &convert::file_attr(attributes), offset, name)
            })?;
            if dots == Room::Full {
                return Ok(pinned);
            }
            listing.entries(ENTRIES_AT_ONCE, |entry, offset| {
                let Some(attributes) = attributes_of_entry(fs, &caller, entry)? else { return Ok(Room::Left) };
                let attr = Self::entry(fs, &attributes);
                let room = add_entry(debt, self.keep(), &attr, offset, OsStr::from_bytes(&entry.name));
                match room {
                    Room::Full => fs.unpin(entry.ino, 1),
                    Room::Left => pinned.push(attr.ino),
                }
                Ok(room)
            })?;
            Ok(pinned)
        })
    }
}

/// `None`: the file was removed after its name was read, so that it is not part of the directory any more.
fn attributes_of_entry(
    fs: &FileSystem,
    caller: &Caller,
    entry: &DirectoryEntry,
) -> polymux_fs::Result<Option<Attributes>> {
    match fs.attributes(caller, entry.ino) {
        Ok(attributes) => Ok(Some(attributes)),
        Err(error) if *error.kind() == polymux_fs::ErrorKind::Posix(polymux_types::Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Full, too, where nobody takes the answer any more.
fn add_entry(
    debt: &mut Debt<'_, ReplyDirectoryPlus>,
    keep: Duration,
    attr: &FileAttr,
    offset: u64,
    name: &OsStr,
) -> Room {
    let generation = convert::generation_of(attr.ino.0);
    debt.with(|reply| reply.add(attr.ino, offset, name, &keep, attr, generation).into()).unwrap_or(Room::Full)
}

struct Listing<'a> {
    fs: &'a FileSystem,
    caller: Caller,
    directory: INodeNo,
    offset: u64,
}

impl Listing<'_> {
    fn dots(&mut self, mut add: impl FnMut(&Attributes, u64, &OsStr) -> Room) -> polymux_fs::Result<Room> {
        if self.offset < OFFSET_AFTER_DOT {
            let own = self.fs.attributes(&self.caller, ino(self.directory))?;
            if add(&own, OFFSET_AFTER_DOT, OsStr::new(".")) == Room::Full {
                return Ok(Room::Full);
            }
            self.offset = OFFSET_AFTER_DOT;
        }
        if self.offset < OFFSET_AFTER_DOT_DOT {
            let parent = self.fs.parent_of(&self.caller, ino(self.directory))?;
            if add(&parent, OFFSET_AFTER_DOT_DOT, OsStr::new("..")) == Room::Full {
                return Ok(Room::Full);
            }
            self.offset = OFFSET_AFTER_DOT_DOT;
        }
        Ok(Room::Left)
    }

    fn entries(
        &mut self,
        at_once: usize,
        mut add: impl FnMut(&DirectoryEntry, u64) -> polymux_fs::Result<Room>,
    ) -> polymux_fs::Result<()> {
        let mut after = convert::cookie_before(self.offset);
        loop {
            let entries = self.fs.read_directory(&self.caller, ino(self.directory), after, at_once)?;
            for entry in &entries {
                assert!(entry.cookie > after, "positions of a directory rise");
                if add(entry, convert::offset_after(entry.cookie)?)? == Room::Full {
                    return Ok(());
                }
                after = entry.cookie;
            }
            if entries.len() < at_once {
                return Ok(());
            }
        }
    }
}
