//! From a path to the name or the directory that it ends with.
//!
//! Invariants:
//! * A walk begins at the root of the volume and stays in it: `..` of the root is the root, and the target of an absolute symbolic link
//!   begins there again.
//! * Each directory on the way is searched with the rights of the caller (`FileSystem::lookup` checks them).
//! * A walk follows at most [`LINKS_MAX`] symbolic links (path_resolution(7)).

use polymux_fs::{Attributes, Caller, FileKind, FileSystem, Result};
use polymux_types::{Errno, Ino};

/// Symbolic links that are followed on the way of one path, as on Linux.
const LINKS_MAX: usize = 40;

/// Bytes of a path, the zero at its end not counted, as on Linux.
const PATH_LENGTH_MAX: usize = 4095;

/// Which file is meant where the last name of a path is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// The one that it leads to.
    Follow,
    /// The link itself, unless a slash comes after it.
    Keep,
}

/// Treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Follow,
    Keep,
    /// A regular file is to be made or opened there: no slash may come after its name.
    Make(LastLink),
    /// The name itself is asked for, to be made, removed or renamed: it is never followed.
    Name,
}

/// The last name of a path in its directory.
#[derive(Debug)]
pub struct Entry {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The file of this name, where there is one.
    pub found: Option<Attributes>,
    /// A slash comes after the name, so that only a directory is meant.
    pub needs_directory: bool,
}

impl Entry {
    /// Whether there is a file of this name that is no directory.
    pub fn is_other(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.kind != FileKind::Directory)
    }
}

/// The end of a path.
#[derive(Debug)]
pub enum PathEnd {
    /// A directory that the path names by `/`, `.` or `..`.
    Directory(Attributes),
    /// A name.
    Entry(Entry),
}

/// Resolves paths for a caller.
#[derive(Clone, Copy)]
pub struct Resolver<'a> {
    /// The file system.
    pub file_system: &'a FileSystem,
    /// The user whose rights count in directories on the way.
    pub caller: &'a Caller,
}

impl Resolver<'_> {
    /// The file that a path names.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG` as path_resolution(7) says; `EINVAL` for a zero byte.
    pub fn file(self, path: &[u8], last: LastLink) -> Result<Attributes> {
        match self.end(path, last)? {
            PathEnd::Directory(attributes) => Ok(attributes),
            PathEnd::Entry(Entry { found, .. }) => found.ok_or_else(|| Errno::ENOENT.into()),
        }
    }

    /// The end of a path whose last name may be absent.
    ///
    /// # Errors
    /// As [`Resolver::file`], for all names but the last.
    pub fn end(self, path: &[u8], last: LastLink) -> Result<PathEnd> {
        self.walk(path, if last == LastLink::Follow { AtEnd::Follow } else { AtEnd::Keep })
    }

    /// The end of a path at which a regular file is to be made, or opened where there is one.
    ///
    /// # Errors
    /// As [`Resolver::end`]; `EISDIR` where a slash comes after the last name.
    pub fn place_of_file(self, path: &[u8], last: LastLink) -> Result<PathEnd> {
        self.walk(path, AtEnd::Make(last))
    }

    /// The last name of a path, to make it: there is no such name yet.
    ///
    /// # Errors
    /// As [`Resolver::file`]; `EEXIST` where there is one.
    pub fn new_name(self, path: &[u8]) -> Result<Entry> {
        match self.walk(path, AtEnd::Name)? {
            PathEnd::Entry(entry) if entry.found.is_none() => Ok(entry),
            PathEnd::Entry(_) | PathEnd::Directory(_) => Err(Errno::EEXIST.into()),
        }
    }

    /// As [`Resolver::new_name`], for a file that will be no directory.
    ///
    /// # Errors
    /// As there; `ENOENT` where a slash comes after the name.
    pub fn new_file_name(self, path: &[u8]) -> Result<Entry> {
        let entry = self.new_name(path)?;
        if entry.needs_directory { Err(Errno::ENOENT.into()) } else { Ok(entry) }
    }

    /// The directory that a path names.
    ///
    /// # Errors
    /// As [`Resolver::file`]; `ENOTDIR` for anything else.
    pub fn directory(self, path: &[u8], last: LastLink) -> Result<Ino> {
        let found = self.file(path, last)?;
        if found.kind == FileKind::Directory { Ok(found.ino) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// The last name of a path, to remove it; `of_directory` is the error for a path that ends with `/`, `.` or `..`.
    ///
    /// # Errors
    /// As [`Resolver::file`], for all names but the last; `ENOTDIR` where a slash comes after the name of anything else than a directory.
    pub fn name(self, path: &[u8], of_directory: Errno) -> Result<Entry> {
        match self.any_name(path)? {
            PathEnd::Directory(_) => Err(of_directory.into()),
            PathEnd::Entry(entry) if entry.needs_directory && entry.is_other() => Err(Errno::ENOTDIR.into()),
            PathEnd::Entry(entry) => Ok(entry),
        }
    }

    /// The end of a path of which the last name is not followed, for callers with rules of their own.
    ///
    /// # Errors
    /// As [`Resolver::file`], for all names but the last.
    pub fn any_name(self, path: &[u8]) -> Result<PathEnd> {
        self.walk(path, AtEnd::Name)
    }

    fn walk(self, path: &[u8], at_end: AtEnd) -> Result<PathEnd> {
        check(path)?;
        let mut directory = Ino::ROOT;
        let mut pending = Vec::new();
        push_names(&mut pending, path);
        let mut needs_directory = path.ends_with(b"/");
        let mut links = 0;
        while let Some(name) = pending.pop() {
            let is_last = pending.is_empty();
            if matches!(name.as_slice(), b"." | b"..") {
                directory = self.file_system.lookup(self.caller, directory, &name)?.ino;
                continue;
            }
            if is_last && needs_directory && matches!(at_end, AtEnd::Make(_)) {
                return Err(Errno::EISDIR.into());
            }
            let found = match self.file_system.lookup(self.caller, directory, &name) {
                Ok(found) => Some(found),
                Err(error) if is_last && error.errno() == Errno::ENOENT => None,
                Err(error) => return Err(error),
            };
            let is_followed = match at_end {
                _ if !is_last => true,
                AtEnd::Follow | AtEnd::Make(LastLink::Follow) => true,
                AtEnd::Keep => needs_directory,
                AtEnd::Make(LastLink::Keep) | AtEnd::Name => false,
            };
            match found {
                Some(link) if link.kind == FileKind::Symlink && is_followed => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::ELOOP.into());
                    }
                    let target = self.file_system.read_symlink(self.caller, link.ino)?;
                    check(&target)?;
                    if target.starts_with(b"/") {
                        directory = Ino::ROOT;
                    }
                    needs_directory |= is_last && target.ends_with(b"/");
                    push_names(&mut pending, &target);
                }
                Some(inner) if !is_last => {
                    if inner.kind != FileKind::Directory {
                        return Err(Errno::ENOTDIR.into());
                    }
                    directory = inner.ino;
                }
                found => {
                    let entry = Entry { parent: directory, name, found, needs_directory };
                    if needs_directory && entry.is_other() && at_end != AtEnd::Name {
                        return Err(Errno::ENOTDIR.into());
                    }
                    return Ok(PathEnd::Entry(entry));
                }
            }
        }
        self.file_system.attributes(self.caller, directory).map(PathEnd::Directory)
    }
}

fn check(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if path.len() > PATH_LENGTH_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if path.contains(&0) { Err(Errno::EINVAL.into()) } else { Ok(()) }
}

/// Puts the names of a path on the stack of names to come, the first one on top.
fn push_names(pending: &mut Vec<Vec<u8>>, path: &[u8]) {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    pending.extend(names.rev().map(<[u8]>::to_vec));
}
