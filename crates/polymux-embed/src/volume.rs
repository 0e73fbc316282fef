//! A volume that this process has open, with its calls on paths.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polymux_fs::{
    Attributes, Caller, Error, FileKind, FileSystem, NodeKind, RenameMode, Result, SetAttributes, VolumeSpace,
    XattrMode,
};
use polymux_types::Errno;

use crate::directory::Directory;
use crate::file::{File, FileOptions};
use crate::open_error::OpenError;
use crate::opened::Opened;
use crate::options::VolumeOptions;
use crate::resolution::{LastLink, PathEnd, Resolver};

/// Permissions that mkdir(2) gives: the set-group-id bit is inherited only.
const MADE_DIRECTORY: u32 = 0o1777;

/// Times that a file is looked for which is to be opened or made, while others remove and make it.
const ATTEMPTS: usize = 16;

/// An open volume.
pub struct Volume {
    opened: Arc<Opened>,
}

/// Why a volume was not closed cleanly.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Files or directories of it are open; it stays open, and is closed with the last of them.
    #[error("volume `{}` stays open: files of it are in use", .0.name())]
    InUse(Volume),
    /// Something could not be written: the volume is closed, and as after a crash.
    #[error("the volume did not end cleanly: {0}")]
    Unclean(Error),
}

impl fmt::Debug for Volume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Volume").field("name", &self.opened.name).finish_non_exhaustive()
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Volume {
    pub(crate) fn new(opened: Opened) -> Self {
        Self { opened: Arc::new(opened) }
    }

    /// Opens a volume as its configuration says, for the user of this process; see [`VolumeOptions`] for other ways.
    ///
    /// # Errors
    /// See [`OpenError::errno`].
    pub fn open(volume: &str) -> std::result::Result<Self, OpenError> {
        VolumeOptions::new().open(volume)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Sentences about anything that its user should know, such as tiers that are missing.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.opened.warnings
    }

    /// The file system below, with everything that the mount can do: moves, explanations, status. Its calls take inodes and callers. From then on the
    /// volume does not rest while it is not used, because such calls are not noticed.
    ///
    /// # Errors
    /// `ENOTCONN`: this process is a child of the one that opened the volume.
    pub fn file_system(&self) -> Result<&FileSystem> {
        self.opened.file_system().inspect(|file_system| file_system.forbid_rest())
    }

    /// Whether this process may use the volume.
    ///
    /// # Errors
    /// `ENOTCONN`: it is a child of the one that opened it.
    pub fn check_process(&self) -> Result<()> {
        self.opened.file_system().map(drop)
    }

    fn caller(&self) -> &Caller {
        self.opened.caller()
    }

    fn resolver(&self) -> Result<Resolver<'_>> {
        Ok(Resolver { file_system: self.opened.file_system()?, caller: self.caller() })
    }

    /// Closes it: everything is written back, and others may use the volume.
    ///
    /// # Errors
    /// Files of it are open, or something could not be written.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        match Arc::try_unwrap(self.opened) {
            Ok(mut opened) => opened.end().map_err(CloseError::Unclean),
            Err(opened) => Err(CloseError::InUse(Self { opened })),
        }
    }

    /// Makes everything durable (`syncfs`).
    ///
    /// # Errors
    /// `EIO`: something could not be written.
    pub fn sync(&self) -> Result<()> {
        self.opened.file_system()?.sync_volume()
    }

    /// Space of the volume (`statvfs`).
    ///
    /// # Errors
    /// `EIO`: a tier cannot be asked.
    pub fn space(&self) -> Result<VolumeSpace> {
        self.opened.file_system()?.space()
    }

    /// Opens a regular file, or makes it where the options say so.
    ///
    /// # Errors
    /// As open(2); `EISDIR` for a directory, also where it is to be read ([`Volume::open_directory`] opens it); `ENXIO` for pipes,
    /// sockets and devices; `EINVAL`: neither to be read nor to be written.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File> {
        if !options.open.read && !options.open.write {
            return Err(Errno::EINVAL.into());
        }
        let path = bytes(path.as_ref());
        for _ in 0..ATTEMPTS {
            if let Some(file) = self.open_once(path, options)? {
                return Ok(file);
            }
        }
        Err(Errno::ENOENT.into())
    }

    /// `None`: the file was there, and is gone, and another one is to be made.
    fn open_once(&self, path: &[u8], options: &FileOptions) -> Result<Option<File>> {
        let (resolver, caller) = (self.resolver()?, self.caller());
        let place = match options.made_with {
            Some(_) => resolver.place_of_file(path, options.last_link()),
            None => resolver.end(path, options.last_link()),
        };
        let entry = match place? {
            PathEnd::Directory(_) if options.open.exclusive => return Err(Errno::EEXIST.into()),
            PathEnd::Directory(_) => return Err(Errno::EISDIR.into()),
            PathEnd::Entry(entry) => entry,
        };
        let (file_system, open) = (resolver.file_system, options.effective());
        let (handle, ino) = match (entry.found, options.made_with) {
            (Some(_), Some(_)) if open.exclusive => return Err(Errno::EEXIST.into()),
            (Some(found), made_with) => {
                check_can_be_opened(found.kind)?;
                match file_system.open(caller, found.ino, open) {
                    Err(error) if made_with.is_some() && error.errno() == Errno::ENOENT => return Ok(None),
                    opened => (opened?, found.ino),
                }
            }
            (None, Some(permissions)) => {
                let made = file_system.create(caller, entry.parent, &entry.name, permissions, open)?;
                (made.1, made.0.ino)
            }
            (None, None) => return Err(Errno::ENOENT.into()),
        };
        Ok(Some(File::new(Arc::clone(&self.opened), (handle, ino), open)))
    }

    /// A new file without a name in the directory `path` (`O_TMPFILE`); [`Volume::link_file`] can give it one.
    ///
    /// # Errors
    /// As open(2); `ENOTDIR`: not a directory.
    pub fn open_unnamed(&self, path: impl AsRef<Path>, permissions: u32, options: &FileOptions) -> Result<File> {
        if !options.open.write {
            return Err(Errno::EINVAL.into());
        }
        let resolver = self.resolver()?;
        let (directory, open) = (resolver.directory(bytes(path.as_ref()), LastLink::Follow)?, options.effective());
        let made = resolver.file_system.create_unnamed(self.caller(), directory, permissions, open)?;
        Ok(File::new(Arc::clone(&self.opened), (made.1, made.0.ino), open))
    }

    /// Gives an open file a name.
    ///
    /// # Errors
    /// As linkat(2); `EXDEV`: the file is on another volume.
    pub fn link_file(&self, file: &File, path: impl AsRef<Path>) -> Result<Attributes> {
        if !Arc::ptr_eq(&self.opened, file.opened()) {
            return Err(Errno::EXDEV.into());
        }
        let resolver = self.resolver()?;
        let entry = resolver.new_file_name(bytes(path.as_ref()))?;
        resolver.file_system.link(self.caller(), file.ino(), entry.parent, &entry.name)
    }

    /// Opens a directory to list it or to sync its names.
    ///
    /// # Errors
    /// As opendir(3); `ENOTDIR` for a symbolic link that is not followed.
    pub fn open_directory(&self, path: impl AsRef<Path>, last: LastLink) -> Result<Directory> {
        let directory = self.resolver()?.directory(bytes(path.as_ref()), last)?;
        Directory::open(Arc::clone(&self.opened), directory)
    }

    /// Attributes of a file (`stat`, `lstat`).
    ///
    /// # Errors
    /// As stat(2).
    pub fn attributes(&self, path: impl AsRef<Path>, last: LastLink) -> Result<Attributes> {
        self.resolver()?.file(bytes(path.as_ref()), last)
    }

    /// Changes attributes of a file (`chmod`, `chown`, `truncate`, `utimensat`); returns them all.
    ///
    /// # Errors
    /// As these calls.
    pub fn set_attributes(&self, path: impl AsRef<Path>, last: LastLink, change: &SetAttributes) -> Result<Attributes> {
        let found = self.attributes(path, last)?;
        let is_sized = change.size.is_some();
        match found.kind {
            FileKind::Directory if is_sized => return Err(Errno::EISDIR.into()),
            FileKind::Symlink if change.permissions.is_some() => return Err(Errno::EOPNOTSUPP.into()),
            FileKind::Regular => {}
            _ if is_sized => return Err(Errno::EINVAL.into()),
            _ => {}
        }
        self.opened.file_system()?.set_attributes(self.caller(), found.ino, change)
    }

    /// Whether the user of the volume may do all of `mask`: 4 read, 2 write, 1 execute or search; 0: the file exists (`access`, with the
    /// effective user).
    ///
    /// # Errors
    /// `EACCES`: not all of it; otherwise as access(2).
    pub fn check_access(&self, path: impl AsRef<Path>, mask: u32) -> Result<()> {
        let found = self.attributes(path, LastLink::Follow)?;
        self.opened.file_system()?.access(self.caller(), found.ino, mask)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn make_directory(&self, path: impl AsRef<Path>, permissions: u32) -> Result<Attributes> {
        let resolver = self.resolver()?;
        let entry = resolver.new_name(bytes(path.as_ref()))?;
        resolver.file_system.make_directory(self.caller(), entry.parent, &entry.name, permissions & MADE_DIRECTORY)
    }

    /// Makes an empty file, a pipe, a socket or a device node. Pipes, sockets and devices are only stored: they cannot be opened here.
    ///
    /// # Errors
    /// As mknod(2).
    pub fn make_node(&self, path: impl AsRef<Path>, kind: NodeKind, permissions: u32) -> Result<Attributes> {
        let resolver = self.resolver()?;
        let entry = resolver.new_file_name(bytes(path.as_ref()))?;
        resolver.file_system.make_node(self.caller(), entry.parent, &entry.name, kind, permissions)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn make_symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attributes> {
        let target = bytes(target.as_ref());
        if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        let resolver = self.resolver()?;
        let entry = resolver.new_file_name(bytes(path.as_ref()))?;
        resolver.file_system.make_symlink(self.caller(), entry.parent, &entry.name, target)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlink(2); `EINVAL`: it is none.
    pub fn read_symlink(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let found = self.attributes(path, LastLink::Keep)?;
        if found.kind != FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let target = self.opened.file_system()?.read_symlink(self.caller(), found.ino)?;
        Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&target)))
    }

    /// Gives a file another name; a symbolic link is linked itself, as link(2) does on Linux.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&self, existing: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attributes> {
        let resolver = self.resolver()?;
        let found = resolver.file(bytes(existing.as_ref()), LastLink::Keep)?;
        let entry = resolver.new_file_name(bytes(path.as_ref()))?;
        resolver.file_system.link(self.caller(), found.ino, entry.parent, &entry.name)
    }

    /// Removes the name of a file that is no directory.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        let resolver = self.resolver()?;
        let entry = resolver.name(bytes(path.as_ref()), Errno::EISDIR)?;
        resolver.file_system.unlink(self.caller(), entry.parent, &entry.name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn remove_directory(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(path.as_ref());
        let last = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
        let of_directory = match last {
            Some(b".") => Errno::EINVAL,
            Some(b"..") => Errno::ENOTEMPTY,
            _ => Errno::EBUSY,
        };
        let resolver = self.resolver()?;
        let entry = resolver.name(path, of_directory)?;
        resolver.file_system.remove_directory(self.caller(), entry.parent, &entry.name)
    }

    /// Renames a file or directory.
    ///
    /// # Errors
    /// As rename(2) and renameat2(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let resolver = self.resolver()?;
        let (from, to) = (resolver.any_name(bytes(from.as_ref()))?, resolver.any_name(bytes(to.as_ref()))?);
        // In the order of Linux (`do_renameat2`).
        let PathEnd::Entry(from) = from else { return Err(Errno::EBUSY.into()) };
        let is_kept = mode.refuses_to_replace();
        let PathEnd::Entry(to) = to else { return Err(if is_kept { Errno::EEXIST } else { Errno::EBUSY }.into()) };
        let is_directory = from.found.as_ref().ok_or(Errno::ENOENT)?.kind == FileKind::Directory;
        if is_kept && to.found.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let needs_directory = if mode == RenameMode::Exchange {
            if to.found.is_none() {
                return Err(Errno::ENOENT.into());
            }
            from.needs_directory && !is_directory || to.needs_directory && to.is_other()
        } else {
            (from.needs_directory || to.needs_directory) && !is_directory
        };
        if needs_directory {
            return Err(Errno::ENOTDIR.into());
        }
        resolver.file_system.rename(self.caller(), from.parent, &from.name, to.parent, &to.name, mode)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn xattr(&self, path: impl AsRef<Path>, last: LastLink, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.attributes(path, last)?;
        self.opened.file_system()?.xattr(self.caller(), found.ino, name)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        last: LastLink,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Result<()> {
        let found = self.attributes(path, last)?;
        self.opened.file_system()?.set_xattr(self.caller(), found.ino, name, value, mode)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, last: LastLink, name: &[u8]) -> Result<()> {
        let found = self.attributes(path, last)?;
        self.opened.file_system()?.remove_xattr(self.caller(), found.ino, name)
    }

    /// Names of the extended attributes of a file.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn list_xattrs(&self, path: impl AsRef<Path>, last: LastLink) -> Result<Vec<Vec<u8>>> {
        let found = self.attributes(path, last)?;
        self.opened.file_system()?.list_xattrs(self.caller(), found.ino)
    }
}

fn check_can_be_opened(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        FileKind::Symlink => Err(Errno::ELOOP.into()),
        FileKind::Fifo | FileKind::Socket | FileKind::CharacterDevice | FileKind::BlockDevice => {
            Err(Errno::ENXIO.into())
        }
    }
}
