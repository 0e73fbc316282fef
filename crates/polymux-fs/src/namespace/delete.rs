//! Taking names away, and deleting inodes that have no name and no user any more.
//!
//! Invariants:
//! * An inode without a name that is still referred to is an *orphan*: its record stays, with an orphan record beside it,
//!   until the last reference goes, or until recovery finds it.
//! * An inode that is not referred to goes in the transaction that takes its last name: it never has an orphan record.
//! * `Lifecycle::gone` is set, under its lock, before the transaction that deletes the records; from then on no thread opens the
//!   inode, links it, or writes a record of it.

use std::sync::atomic::Ordering;

use polymux_types::{Errno, Ino, Timestamp};

use super::change::LinkChange;
use super::check_name;
use super::create::note_entry_change;
use crate::access::{EXECUTE, WRITE};
use crate::caller::Caller;
use crate::core::{Core, Transaction};
use crate::counters::Counters;
use crate::error::Result;
use crate::inode::{DirectoryState, Inode, Layout, check_removable};
use crate::space::disown_object;
use crate::store::{DisownedRecord, keys};
use crate::volume::KernelConnection;

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
        check_removable(&directory, &inode)?;
        self.check_access(caller, &directory, WRITE)?;
        self.check_sticky(caller, &directory, &inode)?;
        if inode.is_directory() {
            return Err(Errno::EISDIR.into());
        }
        let now = self.now();
        let loss = self.transact(&[&directory, &inode], |transaction| {
            let xattrs = self.xattrs_to_delete(&inode)?;
            transaction.remove_name((parent, &mut *state), name, &dirent);
            note_entry_change(&directory, 0, now);
            let loss = self.drop_name(transaction, &inode, None, &xattrs, now);
            self.put_names_changed(transaction, &directory, &mut state, LinkChange::Same);
            Ok(loss)
        })?;
        drop(state);
        Counters::count(&self.counters.unlinks);
        self.finish_loss(&inode, loss);
        Ok(())
    }

    /// Names of the extended attributes that go with an inode if it loses its only name now. Called inside a transaction
    /// of the inode, before anything is changed.
    pub(crate) fn xattrs_to_delete(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let has_none = inode.lacks_xattrs.load(Ordering::Acquire);
        let stays = !inode.is_directory() && inode.common.read().links > 1;
        if has_none || stays { Ok(Vec::new()) } else { self.metadata.xattr_names(inode.ino) }
    }

    /// Takes one name away. With the last one gone (a directory has one only) the inode is deleted, or becomes an orphan if it is
    /// still referred to. `state` is that of a directory; `xattrs` comes from [`Core::xattrs_to_delete`].
    pub(crate) fn drop_name(
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
            if self.options.connection == KernelConnection::TakenOver {
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

    /// Completes a loss after the transaction of [`Core::drop_name`].
    pub(crate) fn finish_loss(&self, inode: &Inode, loss: Loss) {
        let Loss::Deleted(disowned) = loss else {
            // It may have been described by the name that it lost.
            return self.stamp_later(inode);
        };
        if !disowned.is_empty() {
            self.disowned.add(&disowned, inode.last_sequence());
        }
        if let Some(file) = inode.file() {
            file.unsynced.lock().clear();
            if let Some(notes) = self.metadata.notes() {
                file.inline.forget_note(notes);
            }
            self.heat.forget(inode.ino, file.size().div_ceil(polymux_types::limits::RANGE_NODE_SIZE));
        }
        inode.times_dirty.store(false, Ordering::Release);
        self.inodes.remove(inode.ino);
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
        check_removable(&directory, &inode)?;
        self.check_access(caller, &directory, WRITE)?;
        self.check_sticky(caller, &directory, &inode)?;
        let child = inode.directory().ok_or(Errno::ENOTDIR)?.write();
        if !self.is_empty(&inode, &child)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        let now = self.now();
        let loss = self.transact(&[&directory, &inode], |transaction| {
            let xattrs = self.xattrs_to_delete(&inode)?;
            transaction.remove_name((parent, &mut *state), name, &dirent);
            note_entry_change(&directory, -1, now);
            let loss = self.drop_name(transaction, &inode, Some(&child), &xattrs, now);
            self.put_names_changed(transaction, &directory, &mut state, LinkChange::Changed);
            Ok(loss)
        })?;
        drop((child, state));
        Counters::count(&self.counters.unlinks);
        self.heat.synced_directories.forget(inode.ino);
        self.finish_loss(&inode, loss);
        Ok(())
    }

    /// Deletes an orphan, unless it is still referred to.
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
        let loss = self.transact(&[inode], |transaction| {
            let xattrs = self.xattrs_to_delete(inode)?;
            transaction.batch.delete(keys::orphan(inode.ino));
            Ok(Loss::Deleted(delete_records(transaction, inode, &xattrs)))
        })?;
        self.finish_loss(inode, loss);
        Ok(())
    }
}

/// The state of an inode that lost a name.
pub(crate) enum Loss {
    /// The inode has another name, or is still referred to.
    Kept,
    /// It is gone; its bytes on tiers are still to be freed.
    Deleted(Vec<DisownedRecord>),
}

/// Deletes all records of an inode except its orphan record, and turns its objects on tiers into pending frees.
fn delete_records(transaction: &mut Transaction, inode: &Inode, xattrs: &[Vec<u8>]) -> Vec<DisownedRecord> {
    for name in xattrs {
        transaction.batch.delete(keys::xattr(inode.ino, name));
    }
    if inode.file().is_some_and(|file| file.inline.is_stored()) {
        transaction.batch.delete(keys::inline(inode.ino));
    }
    transaction.batch.delete(keys::inode(inode.ino));
    match inode.file() {
        Some(file) => disown_all(transaction, inode, &file.layout.read()),
        None => Vec::new(),
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
