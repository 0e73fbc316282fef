//! Durability of files: all tiers of a file and the log, side by side (M12, A14), and errors that are never forgotten.
//!
//! A failed sync, whoever asked for it, raises the durable error sequence of the inode, which each open description
//! compares with what it has reported, and marks what was written since the last good sync as damaged until it is
//! overwritten: the kernel may have dropped those pages (DESIGN section 6).

use std::sync::atomic::Ordering;

use polymux_tier::TierError;

use crate::core::Core;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{FileState, Inode, reference_of};
use crate::store::ObjectEntry;

impl Core {
    /// Makes one object of a file durable.
    pub(crate) fn sync_slot(&self, inode: &Inode, file: &FileState, slot: u8, entry: &ObjectEntry) -> Result<()> {
        let _gate = file.sync_gate.read();
        let written = file.take_unsynced(slot);
        let handle = self.tiers.by_id(entry.tier)?;
        let Some(tier) = handle.present() else {
            return match written {
                None => Ok(()),
                Some(_) => Err(ErrorKind::TierMissing(entry.tier).into()),
            };
        };
        match tier.sync(reference_of(entry)) {
            Ok(()) => Ok(()),
            // Emptied meanwhile: the object belongs to the file no more.
            Err(TierError::NotFound(_)) if file.layout.read().slot_of(entry.tier) != Some(slot) => Ok(()),
            Err(error) => {
                let error = handle.note_error(error);
                self.note_lost_bytes(inode, file, slot, written)?;
                Err(error)
            }
        }
    }

    fn note_lost_bytes(&self, inode: &Inode, file: &FileState, slot: u8, written: Option<(u64, u64)>) -> Result<()> {
        Counters::count(&self.counters.file_sync_failures);
        let (start, end) = written.unwrap_or((0, file.size()));
        self.transact(&[inode], |transaction| {
            if inode.lifecycle.lock().gone {
                return Ok(());
            }
            let mut layout = file.layout.write();
            let runs = layout.map.runs(super::block_of(start), super::block_after(end.max(start + 1)));
            for run in runs.iter().filter(|run| run.owner == Some(crate::blockmap::Owner::Slot(slot))) {
                layout.damage(start.max(super::start_of(run.start)), end.min(super::start_of(run.end)));
            }
            layout.error_sequence = layout.error_sequence.wrapping_add(1);
            file.error_sequence.store(layout.error_sequence, Ordering::Release);
            drop(layout);
            transaction.put_inode(inode);
            Ok(())
        })?;
        self.flush_inode(inode)
    }

    /// Makes the data of a file durable, and every record that concerns it.
    pub(crate) fn sync_file(&self, inode: &Inode, file: &FileState) -> Result<()> {
        Counters::count(&self.counters.file_syncs);
        file.emptied.store(false, Ordering::Release);
        let objects: Vec<(u8, ObjectEntry)> = {
            let layout = file.layout.read();
            (0_u8..).zip(layout.objects.iter().copied()).collect()
        };
        let wants_sync = |(_, entry): &&(u8, ObjectEntry)| {
            let tier = self.tiers.by_id(entry.tier).ok().and_then(|handle| handle.present());
            tier.is_none_or(|tier| tier.is_unsynced(reference_of(entry)))
        };
        let dirty: Vec<_> = objects.iter().filter(wants_sync).copied().collect();
        let flush_log = self.metadata.durable() < inode.last_sequence();
        if dirty.len() + usize::from(flush_log) <= 1 {
            for (slot, entry) in &dirty {
                self.sync_slot(inode, file, *slot, entry)?;
            }
            return self.flush_inode(inode);
        }
        std::thread::scope(|scope| {
            let syncs: Vec<_> = dirty
                .iter()
                .map(|(slot, entry)| scope.spawn(move || self.sync_slot(inode, file, *slot, entry)))
                .collect();
            let flushed = self.flush_inode(inode);
            let mut outcome = flushed;
            for sync in syncs {
                let synced = sync.join().unwrap_or_else(|_| Err(Core::contradiction(inode, "a sync ended abnormally")));
                outcome = outcome.and(synced);
            }
            outcome
        })
    }

    /// As `sync_file`, and reports what `error_seen` has not been told yet. While lost bytes have not been overwritten,
    /// no sync of the file succeeds.
    pub(crate) fn sync_and_report(
        &self,
        inode: &Inode,
        file: &FileState,
        error_seen: &std::sync::atomic::AtomicU32,
    ) -> Result<()> {
        let outcome = self.sync_file(inode, file);
        // A sync beside this one may have been told of a loss that concerns it and not have put it on record yet.
        drop(file.sync_gate.write());
        let sequence = file.error_sequence.load(Ordering::Acquire);
        let seen = error_seen.swap(sequence, Ordering::AcqRel);
        outcome?;
        if seen != sequence || !file.layout.read().damaged.is_empty() {
            return Err(lost_bytes(inode));
        }
        Ok(())
    }
}

/// The error of a description that was not told of a failed sync yet.
pub(crate) fn lost_bytes(inode: &Inode) -> Error {
    ErrorKind::Damaged(inode.ino).into()
}
