//! Deleting inodes that have no name and no user any more.
//!
//! Invariants:
//! * An inode without a name that is still referred to is an *orphan*: its record stays, with an orphan record beside it,
//!   until the last reference goes, or until recovery finds it.
//! * `Lifecycle::gone` is set, under its lock, before the transaction that deletes the records; from then on no thread opens the
//!   inode, links it, or writes a record of it.

use std::sync::atomic::Ordering;

use polymux_records::error::Result;
use polymux_records::store::{DisownedRecord, keys};
use polymux_types::Ino;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_volume::inode::{Inode, Layout};
use polymux_volume::transaction::Transaction;

use crate::data_path::DataPath;

/// The state of an inode that lost a name.
pub enum Loss {
    /// The inode has another name, or is still referred to.
    Kept,
    /// It is gone; its bytes on tiers are still to be freed.
    Deleted(Vec<DisownedRecord>),
}

impl DataPath {
    /// Drops `count` lookup references to an inode, which goes where they were the last use of it.
    pub fn unpin(&self, ino: Ino, count: u64) -> Result<()> {
        let Some(inode) = self.volume.inodes.get(ino).or_else(|| self.volume.inodes.unpin_absent(ino, count)) else {
            return Ok(());
        };
        {
            let mut lifecycle = inode.lifecycle.lock();
            lifecycle.pins = lifecycle.pins.saturating_sub(count);
            if lifecycle.in_use() {
                return Ok(());
            }
        }
        self.delete_if_unused(&inode)
    }

    /// Deletes an orphan, unless it is still referred to.
    pub fn delete_if_unused(&self, inode: &Inode) -> Result<()> {
        if inode.common.read().links > 0 {
            return Ok(());
        }
        {
            let mut lifecycle = inode.lifecycle.lock();
            // A link made through an open description may have given it a name again.
            if lifecycle.gone || lifecycle.in_use() || inode.common.read().links > 0 || self.volume.is_read_only() {
                return Ok(());
            }
            lifecycle.gone = true;
        }
        let loss = self.volume.transact(&[inode], |transaction| {
            let xattrs = self.xattrs_to_delete(inode)?;
            transaction.batch.delete(keys::orphan(inode.ino));
            Ok(Loss::Deleted(delete_records(transaction, inode, &xattrs)))
        })?;
        self.finish_loss(inode, loss);
        Ok(())
    }

    /// Names of the extended attributes that go with an inode if it loses its only name now. Called inside a transaction
    /// of the inode, before anything is changed.
    pub(crate) fn xattrs_to_delete(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let has_none = inode.lacks_xattrs.load(Ordering::Acquire);
        let stays = !inode.is_directory() && inode.common.read().links > 1;
        if has_none || stays { Ok(Vec::new()) } else { self.volume.metadata.xattr_names(inode.ino) }
    }

    /// Completes a loss after the transaction of `Namespace::drop_name`.
    pub(crate) fn finish_loss(&self, inode: &Inode, loss: Loss) {
        let Loss::Deleted(disowned) = loss else {
            // It may have been described by the name that it lost.
            return self.stamps.stamp_later(inode);
        };
        if !disowned.is_empty() {
            self.volume.disowned.add(&disowned, inode.last_sequence());
        }
        if let Some(file) = inode.file() {
            file.durability.unsynced.lock().clear();
            if let Some(notes) = self.volume.metadata.notes() {
                file.inline.forget_note(notes);
            }
            self.upkeep.messages.forget(inode.ino);
            self.placement.heat.forget(inode.ino, file.size().div_ceil(RANGE_NODE_SIZE));
        }
        inode.times_dirty.store(false, Ordering::Release);
        self.volume.inodes.remove(inode.ino);
    }
}

/// Deletes all records of an inode except its orphan record, and turns its objects on tiers into pending frees.
pub(crate) fn delete_records(transaction: &mut Transaction, inode: &Inode, xattrs: &[Vec<u8>]) -> Vec<DisownedRecord> {
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
    let disowned: Vec<DisownedRecord> = layout.objects.iter().map(DisownedRecord::of_object).collect();
    for record in &disowned {
        transaction.put_disowned(record);
    }
    disowned
}
