//! From names to inodes.

use std::sync::Arc;

use polymux_records::counters::Counters;
use polymux_records::error::{Error, Result};
use polymux_records::store::Dirent;
use polymux_types::{Errno, Ino, limits};
use polymux_volume::inode::Inode;

use crate::namespace::Namespace;

impl Namespace {
    /// A directory that is in use.
    pub fn directory_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.volume.inode(ino)?;
        if inode.is_directory() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    pub(crate) fn find_name(&self, parent: Ino, name: &[u8]) -> Result<Option<Dirent>> {
        if name.len() > limits::NAME_LENGTH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        Counters::count(&self.volume.counters.lookups);
        self.volume.metadata.dirent(parent, name)
    }

    /// The inode of a name. One that is removed between the two look-ups is as good as absent.
    pub fn lookup_inode(&self, parent: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        match name {
            b"." => self.volume.inode(parent.ino),
            b".." => self.parent_inode(parent),
            name => {
                let dirent = self.find_name(parent.ino, name)?.ok_or(Errno::ENOENT)?;
                self.volume.inode(dirent.ino)
            }
        }
    }

    pub(crate) fn parent_inode(&self, inode: &Inode) -> Result<Arc<Inode>> {
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        self.volume.inode(inode.parent())
    }

    /// The inode that an entry names, which must exist while its directory is locked.
    pub(crate) fn inode_of_entry(&self, dirent: &Dirent) -> Result<Arc<Inode>> {
        self.volume.inode(dirent.ino).map_err(|error| match error.errno() {
            Errno::ENOENT => Error::corrupted("a directory entry", format!("inode {} does not exist", dirent.ino)),
            _ => error,
        })
    }

    /// Whether `ancestor` is `directory` or one of the directories above it. The tree must stand still.
    pub(crate) fn is_ancestor(&self, ancestor: Ino, directory: Ino) -> Result<bool> {
        let mut present = directory;
        loop {
            if present == ancestor {
                return Ok(true);
            }
            if present == Ino::ROOT {
                return Ok(false);
            }
            let parent = self.directory_inode(present)?.parent();
            if parent == present {
                return Ok(false);
            }
            present = parent;
        }
    }
}
