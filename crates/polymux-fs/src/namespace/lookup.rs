//! From names to inodes.

use std::sync::Arc;

use polymux_types::{Errno, Ino, limits};

use crate::core::Core;
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::store::Dirent;

/// Deepest path that is printed for a person.
const PATH_DEPTH_MAX: usize = 4096;

impl Core {
    /// A directory that is in use.
    pub(crate) fn directory_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.is_directory() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    pub(crate) fn find_name(&self, parent: Ino, name: &[u8]) -> Result<Option<Dirent>> {
        if name.len() > limits::NAME_LENGTH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        Counters::count(&self.counters.lookups);
        self.metadata.dirent(parent, name)
    }

    /// The inode of a name. One that is removed between the two look-ups is as good as absent.
    pub(crate) fn lookup_inode(&self, parent: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        match name {
            b"." => self.inode(parent.ino),
            b".." => self.parent_inode(parent),
            name => {
                let dirent = self.find_name(parent.ino, name)?.ok_or(Errno::ENOENT)?;
                self.inode(dirent.ino)
            }
        }
    }

    pub(crate) fn parent_inode(&self, inode: &Inode) -> Result<Arc<Inode>> {
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        self.inode(inode.parent())
    }

    /// The inode that an entry names, which must exist while its directory is locked.
    pub(crate) fn inode_of_entry(&self, dirent: &Dirent) -> Result<Arc<Inode>> {
        self.inode(dirent.ino).map_err(|error| match error.errno() {
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

    /// One path of an inode from the root, without a leading slash; `None` where it has no name.
    pub(crate) fn path_of(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let mut names = Vec::new();
        let mut present = ino;
        while present != Ino::ROOT {
            let Some((parent, name)) = self.metadata.any_name(present)? else { return Ok(None) };
            names.push(name);
            present = parent;
            if names.len() > PATH_DEPTH_MAX {
                return Ok(None);
            }
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }
}
