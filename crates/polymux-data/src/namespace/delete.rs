//! Taking names away, and deleting inodes that have no name and no user any more.
//!
//! Invariants:
//! * An inode without a name that is still referred to is an *orphan*: its record stays, with an orphan record beside it,
//!   until the last reference goes, or until recovery finds it.
//! * An inode that is not referred to goes in the transaction that takes its last name: it never has an orphan record.
//! * `Lifecycle::gone` is set, under its lock, before the transaction that deletes the records; from then on no thread opens the
//!   inode, links it, or writes a record of it.

use std::sync::Arc;

use polymux_records::caller::Caller;
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::parts::KernelConnection;
use polymux_records::store::{Dirent, keys};
use polymux_types::{Errno, Ino, Timestamp};
use polymux_volume::access::{EXECUTE, WRITE};
use polymux_volume::inode::{DirectoryState, Inode, check_removable};
use polymux_volume::transaction::Transaction;

use super::change::LinkChange;
use super::check_name;
use super::create::note_entry_change;
use crate::io::{Loss, delete_records};
use crate::namespace::Namespace;

impl Namespace {
    /// Takes the name of a file that is not a directory away.
    pub fn unlink_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.volume.check_writable()?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EISDIR.into());
        }
        check_name(name)?;
        let directory = self.directory_inode(parent)?;
        self.volume.check_access(caller, &directory, EXECUTE)?;
        let lock = directory.directory().ok_or(Errno::ENOTDIR)?;
        let mut state = lock.write();
        let (dirent, inode) = self.entry_to_remove(caller, &directory, name)?;
        if inode.is_directory() {
            return Err(Errno::EISDIR.into());
        }
        let now = self.volume.now();
        let loss = self.volume.transact(&[&directory, &inode], |transaction| {
            let xattrs = self.data.xattrs_to_delete(&inode)?;
            transaction.remove_name(parent, &mut state, name, &dirent);
            note_entry_change(&directory, 0, now);
            let loss = self.drop_name(transaction, &inode, None, &xattrs, now);
            self.put_names_changed(transaction, &directory, &mut state, LinkChange::Same);
            Ok(loss)
        })?;
        drop(state);
        Counters::count(&self.volume.counters.unlinks);
        self.data.finish_loss(&inode, loss);
        Ok(())
    }

    /// Takes one name away. With the last one gone (a directory has one only) the inode is deleted, or becomes an orphan if it is
    /// still referred to. `state` is that of a directory; `xattrs` comes from [`crate::data_path::DataPath::xattrs_to_delete`].
    pub fn drop_name(
        &self,
        transaction: &mut Transaction,
        inode: &Inode,
        state: Option<&DirectoryState>,
        xattrs: &[Vec<u8>],
        now: Timestamp,
    ) -> Loss {
        let links = {
            let mut common = inode.common.write();
            common.links = match state {
                Some(_) => 0,
                None => common.links.checked_sub(1).expect("an inode with a name has a link"),
            };
            common.changed = now;
            common.links
        };
        if links == 0 {
            let mut lifecycle = inode.lifecycle.lock();
            if self.volume.options.connection == KernelConnection::TakenOver {
                // The kernel knows the inode that loses a name, and counted references before this mount; it forgets them all at once.
                lifecycle.pins = lifecycle.pins.max(1);
            }
            if !lifecycle.in_use() {
                lifecycle.gone = true;
                drop(lifecycle);
                return Loss::Deleted(delete_records(transaction, inode, xattrs));
            }
            // The holder of the last reference finds no name and deletes the inode, in a transaction after this one.
            drop(lifecycle);
            transaction.batch.put(keys::orphan(inode.ino), []);
        }
        match state {
            Some(state) => transaction.put_directory(inode, state),
            None => transaction.put_inode(inode),
        }
        Loss::Kept
    }

    /// An entry of a directory, with its inode, that the caller may remove from it. Called with the directory's lock held.
    fn entry_to_remove(&self, caller: &Caller, directory: &Inode, name: &[u8]) -> Result<(Dirent, Arc<Inode>)> {
        let dirent = self.find_name(directory.ino, name)?.ok_or(Errno::ENOENT)?;
        let inode = self.inode_of_entry(&dirent)?;
        check_removable(directory, &inode)?;
        self.volume.check_access(caller, directory, WRITE)?;
        self.volume.check_sticky(caller, directory, &inode)?;
        Ok((dirent, inode))
    }

    /// Removes an empty directory.
    pub fn remove_directory_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.volume.check_writable()?;
        match name {
            b"." => return Err(Errno::EINVAL.into()),
            b".." => return Err(Errno::ENOTEMPTY.into()),
            _ => check_name(name)?,
        }
        let directory = self.directory_inode(parent)?;
        self.volume.check_access(caller, &directory, EXECUTE)?;
        let lock = directory.directory().ok_or(Errno::ENOTDIR)?;
        let mut state = lock.write();
        let (dirent, inode) = self.entry_to_remove(caller, &directory, name)?;
        let child = inode.directory().ok_or(Errno::ENOTDIR)?.write();
        if !self.is_empty(&inode, &child)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        let now = self.volume.now();
        let loss = self.volume.transact(&[&directory, &inode], |transaction| {
            let xattrs = self.data.xattrs_to_delete(&inode)?;
            transaction.remove_name(parent, &mut state, name, &dirent);
            note_entry_change(&directory, -1, now);
            let loss = self.drop_name(transaction, &inode, Some(&child), &xattrs, now);
            self.put_names_changed(transaction, &directory, &mut state, LinkChange::Changed);
            Ok(loss)
        })?;
        drop((child, state));
        Counters::count(&self.volume.counters.unlinks);
        self.placement.heat.synced_directories.forget(inode.ino);
        self.data.finish_loss(&inode, loss);
        Ok(())
    }
}
