//! Taking names away, and deleting inodes that have no name and no user any more.
//!
//! An inode without a name that is still referred to is an *orphan*: its record stays, with an orphan record beside it,
//! until the last reference goes, or until recovery finds it.

use polymux_types::{Errno, Ino};

use super::check_name;
use super::create::note_entry_change;
use crate::access::{EXECUTE, WRITE};
use crate::caller::Caller;
use crate::core::{Core, Transaction};
use crate::counters::Counters;
use crate::error::Result;
use crate::inode::{Inode, Layout};
use crate::space::disown_object;
use crate::store::{DisownedRecord, keys};

impl Core {
    /// Takes the name of a file that is not a directory away.
    pub(crate) fn unlink_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EISDIR.into());
        }
        check_name(name)?;
        let directory = self.directory_inode(parent)?;
        self.check_access(caller, &directory, EXECUTE)?;
        let lock = directory.directory().ok_or(Errno::ENOTDIR)?;
        let mut state = lock.write();
        let dirent = self.find_name(parent, name)?.ok_or(Errno::ENOENT)?;
        let inode = self.inode_of_entry(&dirent)?;
        self.check_access(caller, &directory, WRITE)?;
        self.check_sticky(caller, &directory, &inode)?;
        if inode.is_directory() {
            return Err(Errno::EISDIR.into());
        }
        self.transact(&[&directory, &inode], |transaction| {
            transaction.remove_name((parent, &mut *state), name, &dirent);
            note_entry_change(self, &directory, 0);
            self.drop_link(transaction, &inode);
            transaction.put_directory(&directory, &state);
            Ok(())
        })?;
        drop(state);
        Counters::count(&self.counters.unlinks);
        self.delete_if_unused(&inode)
    }

    /// One name less; with the last one gone the inode becomes an orphan.
    pub(crate) fn drop_link(&self, transaction: &mut Transaction, inode: &Inode) {
        let links = {
            let mut common = inode.common.write();
            common.links = common.links.checked_sub(1).expect("an inode with a name has a link");
            common.changed = self.now();
            common.links
        };
        if links == 0 {
            transaction.batch.put(keys::orphan(inode.ino), Vec::new());
        }
        transaction.put_inode(inode);
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        match name {
            b"." => return Err(Errno::EINVAL.into()),
            b".." => return Err(Errno::ENOTEMPTY.into()),
            _ => check_name(name)?,
        }
        let directory = self.directory_inode(parent)?;
        self.check_access(caller, &directory, EXECUTE)?;
        let lock = directory.directory().ok_or(Errno::ENOTDIR)?;
        let mut state = lock.write();
        let dirent = self.find_name(parent, name)?.ok_or(Errno::ENOENT)?;
        let inode = self.inode_of_entry(&dirent)?;
        self.check_access(caller, &directory, WRITE)?;
        self.check_sticky(caller, &directory, &inode)?;
        let child = inode.directory().ok_or(Errno::ENOTDIR)?.write();
        if child.entries > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.transact(&[&directory, &inode], |transaction| {
            transaction.remove_name((parent, &mut *state), name, &dirent);
            note_entry_change(self, &directory, -1);
            self.drop_directory(transaction, &inode, &child);
            transaction.put_directory(&directory, &state);
            Ok(())
        })?;
        drop((child, state));
        Counters::count(&self.counters.unlinks);
        self.delete_if_unused(&inode)
    }

    /// A directory that lost its only name becomes an orphan.
    pub(crate) fn drop_directory(
        &self,
        transaction: &mut Transaction,
        inode: &Inode,
        state: &crate::inode::DirectoryState,
    ) {
        {
            let mut common = inode.common.write();
            common.links = 0;
            common.changed = self.now();
        }
        transaction.batch.put(keys::orphan(inode.ino), Vec::new());
        transaction.put_directory(inode, state);
    }

    /// Deletes an inode that has no name, unless somebody still refers to it.
    pub(crate) fn delete_if_unused(&self, inode: &Inode) -> Result<()> {
        if inode.common.read().links > 0 {
            return Ok(());
        }
        {
            let mut lifecycle = inode.lifecycle.lock();
            // A link made through an open description may have given it a name again.
            if lifecycle.gone || lifecycle.in_use() || inode.common.read().links > 0 || self.is_read_only() {
                return Ok(());
            }
            lifecycle.gone = true;
        }
        let xattrs = self.metadata.xattr_names(inode.ino)?;
        let disowned = self.transact(&[inode], |transaction| {
            for name in &xattrs {
                transaction.batch.delete(keys::xattr(inode.ino, name));
            }
            let disowned = match inode.file() {
                Some(file) => disown_all(transaction, inode, &file.layout.read()),
                None => Vec::new(),
            };
            transaction.batch.delete(keys::orphan(inode.ino));
            transaction.batch.delete(keys::inode(inode.ino));
            Ok(disowned)
        })?;
        self.disowned.add(&disowned, inode.last_sequence());
        if let Some(file) = inode.file() {
            file.unsynced.lock().clear();
        }
        inode.times_dirty.store(false, std::sync::atomic::Ordering::Release);
        self.inodes.remove(inode.ino);
        Ok(())
    }
}

fn disown_all(transaction: &mut Transaction, inode: &Inode, layout: &Layout) -> Vec<DisownedRecord> {
    for extent in layout.map.exceptions() {
        transaction.batch.delete(keys::extent(inode.ino, extent.end));
    }
    let disowned: Vec<DisownedRecord> = layout.objects.iter().map(disown_object).collect();
    for record in &disowned {
        transaction.put_disowned(record);
    }
    disowned
}
