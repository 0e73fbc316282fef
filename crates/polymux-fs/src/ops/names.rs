//! Creating, linking, removing and renaming.

use polymux_data::namespace::MovedDirectories;
use polymux_data::namespace::NewInode;
use polymux_records::attributes::HandleId;
use polymux_records::attributes::{Attributes, FileKind, NodeKind, OpenOptions, RenameMode};
use polymux_records::caller::{Caller, Wait};
use polymux_records::error::Result;
use polymux_types::{Errno, Ino, limits};
use polymux_volume::access::EXECUTE;
use polymux_volume::inode::{Body, Creation};

use crate::mounted::Mounted;

impl Mounted {
    /// Refuses an operation that may wait for a tier or a flush to a caller that must not.
    pub(crate) fn check_may_wait(&self, caller: &Caller) -> Result<()> {
        if caller.wait == Wait::Allowed {
            return Ok(());
        }
        Err(self.volume.would_block())
    }

    pub(crate) fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let directory = self.namespace.directory_inode(parent)?;
        self.volume.check_access(caller, &directory, EXECUTE)?;
        let inode = self.namespace.lookup_inode(&directory, name)?;
        self.check_answers_at_once(caller, &inode)?;
        self.attributes_of(&inode)
    }

    pub(crate) fn open_replacement(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Option<Ino> {
        let find = |(parent, name): (Ino, &[u8])| {
            let directory = self.namespace.directory_inode(parent).ok()?;
            self.namespace.lookup_inode(&directory, name).ok()
        };
        let source = find(from).filter(|source| self.data.is_open_for_changes(source.ino))?;
        find(to).map(|_| source.ino)
    }

    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: NodeKind,
        permissions: u32,
    ) -> Result<Attributes> {
        self.check_may_wait(caller)?;
        let new = match kind {
            NodeKind::Regular => NewInode::Regular,
            NodeKind::Fifo => NewInode::Special(FileKind::Fifo, 0),
            NodeKind::Socket => NewInode::Special(FileKind::Socket, 0),
            NodeKind::CharacterDevice(device) => NewInode::Special(FileKind::CharacterDevice, device),
            NodeKind::BlockDevice(device) => NewInode::Special(FileKind::BlockDevice, device),
        };
        let is_device = matches!(kind, NodeKind::CharacterDevice(_) | NodeKind::BlockDevice(_));
        if is_device && caller.checks_permissions() && !caller.is_privileged() {
            return Err(Errno::EPERM.into());
        }
        let inode = self.namespace.create_inode(caller, parent, name, &new, permissions)?;
        self.attributes_of(&inode)
    }

    pub(crate) fn make_directory(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        permissions: u32,
    ) -> Result<Attributes> {
        self.check_may_wait(caller)?;
        // Set-user-id means nothing on a directory; mkdir(2) keeps the sticky and set-group-id bits only.
        let inode = self.namespace.create_inode(caller, parent, name, &NewInode::Directory, permissions & 0o3777)?;
        self.attributes_of(&inode)
    }

    pub(crate) fn make_symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attributes> {
        self.check_may_wait(caller)?;
        if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if target.len() > limits::SYMLINK_LENGTH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let inode = self.namespace.create_inode(caller, parent, name, &NewInode::Symlink(target), 0o777)?;
        self.attributes_of(&inode)
    }

    pub(crate) fn read_symlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.volume.inode(ino)?;
        let Body::Symlink(target) = &inode.body else { return Err(Errno::EINVAL.into()) };
        self.data.note_accessed(&inode);
        Ok(target.clone())
    }

    pub(crate) fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        permissions: u32,
        options: OpenOptions,
    ) -> Result<(Attributes, HandleId)> {
        self.check_may_wait(caller)?;
        let made = self.namespace.create_inode(caller, parent, name, &NewInode::Regular, permissions);
        let inode = match made {
            Ok(inode) => inode,
            Err(error) if error.errno() == Errno::EEXIST && !options.exclusive => {
                let found = self.lookup(caller, parent, name)?;
                let handle = self.open(caller, found.ino, options)?;
                let inode = self.volume.inode(found.ino)?;
                return Ok((self.attributes_of(&inode)?, handle));
            }
            Err(error) => return Err(error),
        };
        // Its size is guessed for the kernel alone.
        let is_guessed = self.data.kernel.passthrough_port.get().is_some_and(|port| !port.refuses());
        let creation = is_guessed.then(|| Creation::of(parent, name, caller.stream));
        // The creator of a file may use it as asked for, whatever its mode says.
        let handle = self.add_handle(&inode, options, creation)?;
        Ok((self.attributes_of(&inode)?, handle))
    }

    pub(crate) fn create_unnamed(
        &self,
        caller: &Caller,
        parent: Ino,
        permissions: u32,
        options: OpenOptions,
    ) -> Result<(Attributes, HandleId)> {
        self.check_may_wait(caller)?;
        let inode = self.namespace.create_unnamed_inode(caller, parent, permissions)?;
        let handle = self.add_handle(&inode, options, None)?;
        Ok((self.attributes_of(&inode)?, handle))
    }

    pub(crate) fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        self.check_may_wait(caller)?;
        self.namespace.link_inode(caller, ino, parent, name)?;
        let inode = self.volume.inode(ino)?;
        self.attributes_of(&inode)
    }

    pub(crate) fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.check_may_wait(caller)?;
        self.namespace.unlink_name(caller, parent, name)
    }

    pub(crate) fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.check_may_wait(caller)?;
        self.namespace.remove_directory_name(caller, parent, name)
    }

    pub(crate) fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<MovedDirectories> {
        self.check_may_wait(caller)?;
        self.namespace.rename_name(caller, from, to, mode)
    }
}
