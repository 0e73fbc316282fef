//! Durability of files: all tiers of a file and the log, side by side (M12, A14), and errors that are never forgotten.
//!
//! A failed sync, no matter which caller asked for it, raises the durable error sequence of the inode, which each open file
//! description compares with the value that it has reported, and marks the bytes that were written since the last good sync as damaged until
//! they are overwritten: the kernel may have dropped those pages (DESIGN section 6).

use std::sync::atomic::Ordering;

use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::ObjectEntry;
use polymux_tier::{Tier, TierError, Wait};
use polymux_types::Block;
use polymux_volume::inode::{FileState, Inode, reference_of};
use polymux_volume::space::{PendingSync, SyncTarget};
use smallvec::SmallVec;

use super::spread::{Recorded, join};
use super::waited_for::synced_bytes;
use crate::data_path::DataPath;

impl DataPath {
    /// Makes one object of a file durable; nothing is to be done for one that left the file before.
    pub fn sync_object(&self, inode: &Inode, file: &FileState, entry: &ObjectEntry) -> Result<()> {
        let _gate = file.durability.sync_gate.read();
        self.sync_object_under_gate(inode, file, entry)
    }

    /// As [`DataPath::sync_object`], with the sync gate held, so that no slot gets another number.
    fn sync_object_under_gate(&self, inode: &Inode, file: &FileState, entry: &ObjectEntry) -> Result<()> {
        // The bytes of an object that was moved off until now are durable where they went.
        let Some(slot) = file.layout.read().slot_of_object(entry.object) else { return Ok(()) };
        let written = file.take_unsynced(slot);
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let outcome = handle.present().map(|tier| tier.sync(reference_of(entry)));
        self.note_synced(inode, file, slot, *entry, written, outcome)
    }

    /// Takes the result of the sync of one object, `None` if its tier is missing; a failure is recorded. Called with the sync
    /// gate held since before `written` was taken.
    pub fn note_synced(
        &self,
        inode: &Inode,
        file: &FileState,
        slot: u8,
        entry: ObjectEntry,
        written: Option<(u64, u64)>,
        outcome: Option<std::result::Result<(), TierError>>,
    ) -> Result<()> {
        match (outcome, written) {
            (Some(Ok(())), _) => {
                file.durability.entries_unsynced.lock().retain(|object| *object != entry.object);
                if !file.is_changed_directly() && !file.direct.outside.may_be_unseen() {
                    let less = |left: u32| left.checked_sub(1);
                    let _ = file.direct.has_direct_changes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
                }
                Ok(())
            }
            (None, None) => Ok(()),
            (None, Some((start, end))) => {
                file.note_unsynced(slot, start, end);
                Err(ErrorKind::TierMissing(entry.tier).into())
            }
            // Emptied meanwhile: the object belongs to the file no more, and another one may have its slot.
            (Some(Err(TierError::NotFound(_))), _) if file.layout.read().slot_of_object(entry.object).is_none() => {
                Ok(())
            }
            (Some(Err(error)), written) => {
                let not_made = error == TierError::NotAnswering;
                let error = self.volume.tiers.by_id(entry.tier)?.note_error(error);
                // No bytes of the file itself waited for this sync: only the copy of a migration is lost.
                if written.is_none() && file.note_copy_lost(entry.tier) {
                    return Ok(());
                }
                if not_made {
                    // Nothing is lost yet: the written bytes wait for the next sync, as before.
                    if let Some((start, end)) = written {
                        file.note_unsynced(slot, start, end);
                    }
                    return Err(error);
                }
                self.note_lost_bytes(inode, file, slot, written)?;
                Err(error)
            }
        }
    }

    /// Records in the layout that bytes of a file may be lost, and counts the error for descriptions that are open.
    pub fn note_lost_bytes(
        &self,
        inode: &Inode,
        file: &FileState,
        slot: u8,
        written: Option<(u64, u64)>,
    ) -> Result<()> {
        Counters::count(&self.volume.counters.file_sync_failures);
        if is_planted(PlantedFault::FailedSyncForgotten) {
            return Ok(());
        }
        let (start, end) = written.unwrap_or((0, file.size()));
        self.volume.damaged_files.lock().files.insert(inode.ino);
        self.volume.transact(&[inode], |transaction| {
            if inode.lifecycle.lock().gone {
                return Ok(());
            }
            let mut layout = file.layout.write();
            // The place of the kernel's own writes is unknown: the error is reported, as by a native file system, and reads go on.
            let nobody_knows = written.is_none() && file.direct.has_direct_changes.load(Ordering::Acquire) > 0;
            let (start, end) = if nobody_knows { (0, 0) } else { (start, end) };
            let runs = layout.map.runs(Block::holding(start), Block::at_or_after(end.max(start + 1)));
            for run in runs.iter().filter(|run| run.owner == Some(polymux_records::blockmap::Owner::Slot(slot))) {
                layout.damage(start.max(run.start.first_byte()), end.min(run.end.first_byte()));
            }
            file.raise_error_sequence(&mut layout);
            drop(layout);
            transaction.put_inode(inode);
            Ok(())
        })?;
        self.volume.flush_inode(inode)
    }

    /// Makes the data of a file durable, and every record that concerns it.
    ///
    /// The tiers sync while this thread flushes the log; whichever has nothing to do is left out. Records that replace
    /// something were appended after a sync of their own, so it does not matter which of the two is done first.
    pub fn sync_file(&self, inode: &Inode, file: &FileState) -> Result<()> {
        // The times of changes past the daemon are in the record that becomes durable with them.
        self.see_outside_changes(inode, file);
        // Before anything is durable: a thread that would forget unpromised bytes sees this store, or its change is seen below.
        file.spreading.unpromised.store(0, Ordering::SeqCst);
        loop {
            let noted = file.spreading.may_grow_unsettled.load(Ordering::Acquire).then(|| self.note_before_sync(file));
            let synced = self.sync_data_and_log(inode, file);
            if !file.spreading.may_grow_unsettled.load(Ordering::Acquire) {
                return synced;
            }
            // Where there is nothing noted it began to be spread just now.
            let Some(noted) = noted else {
                synced?;
                continue;
            };
            // A concurrent sync may have received a loss that it has not recorded yet.
            drop(file.durability.sync_gate.write());
            // The file is not made shorter while its size goes on record. It may be while the devices work.
            let _steady = file.barrier.read();
            if !file.has_unsettled_tail() {
                // A concurrent sync put the size on record, and may not have made that durable. It is seen in memory before
                // its sequence is known, which the lock waits for.
                drop(inode.record_lock.lock());
                return join(synced, self.volume.flush_inode(inode));
            }
            let recorded = self.record_after_sync(inode, file, &noted, synced);
            if recorded != Ok(Recorded::NotCovered) {
                return join(recorded.map(drop), self.volume.flush_inode(inode));
            }
        }
    }

    fn sync_data_and_log(&self, inode: &Inode, file: &FileState) -> Result<()> {
        Counters::count(&self.volume.counters.file_syncs);
        self.log_inline(inode, file, Wait::Allowed)?;
        let mut dirty = self.unsynced_objects(file);
        let bytes = synced_bytes(file);
        // Once more: the file may just have got its home.
        file.spreading.unpromised.store(0, Ordering::SeqCst);
        if is_planted(PlantedFault::FsyncWithoutData) {
            dirty.clear();
        }
        let flush_log = self.volume.metadata.durable() < inode.last_sequence();
        // One sync is left to this thread where the log does not need it.
        let own = if flush_log { None } else { dirty.pop() };
        if dirty.is_empty() {
            return match &own {
                Some(entry) => {
                    let _waited_for = self.volume.tiers.by_id(entry.tier)?.waited_for(bytes);
                    self.sync_object(inode, file, entry)
                }
                None => self.volume.flush_inode(inode),
            };
        }
        let gate = file.durability.sync_gate.read();
        let mut pending = Vec::with_capacity(dirty.len());
        for entry in dirty {
            let Some(slot) = file.layout.read().slot_of_object(entry.object) else { continue };
            let written = file.take_unsynced(slot);
            let target = SyncTarget::Object(reference_of(&entry));
            let handle = self.volume.tiers.by_id(entry.tier)?;
            let begin = |tier| self.sync_pool.begin_holding(tier, target, handle.clone().waited_for(bytes));
            pending.push((slot, entry, written, handle.shared().map(begin)));
        }
        let mut outcome = match &own {
            Some(entry) => {
                let _waited_for = self.volume.tiers.by_id(entry.tier)?.waited_for(bytes);
                self.sync_object_under_gate(inode, file, entry)
            }
            None => self.volume.flush_inode(inode),
        };
        for (slot, entry, written, sync) in pending {
            let synced = sync.map(PendingSync::wait);
            outcome = join(outcome, self.note_synced(inode, file, slot, entry, written, synced));
        }
        drop(gate);
        outcome
    }

    /// Objects of a file that a sync of it concerns: those with unsynced bytes, and those whose tier cannot be asked.
    pub(super) fn unsynced_objects(&self, file: &FileState) -> SmallVec<[ObjectEntry; 4]> {
        let wants_sync = |entry: &ObjectEntry| {
            let tier = self.volume.tiers.by_id(entry.tier).ok().and_then(|handle| handle.shared());
            tier.is_none_or(|tier| tier.is_unsynced(reference_of(entry)))
                // Of one that was never written only a spread file makes a promise.
                || file.spreading.may_grow_unsettled.load(Ordering::Acquire)
                    && file.durability.entries_unsynced.lock().contains(&entry.object)
        };
        file.layout.read().objects.iter().copied().filter(wants_sync).collect()
    }

    /// Makes everything that was written on any tier durable, and every record, all of them side by side. Failures are
    /// put on record by the syncs of the files concerned, which the caller asks for next.
    pub fn sync_tiers_and_log(&self) -> Result<()> {
        let tiers = self.volume.tiers.all();
        let syncs: Vec<_> = tiers
            .iter()
            .filter_map(|handle| Some((handle, self.sync_pool.begin(handle.shared()?, SyncTarget::All))))
            .collect();
        let mut outcome = self.volume.flush_through(self.volume.metadata.committed());
        for (handle, sync) in syncs {
            outcome = outcome.and(sync.wait().map_err(|error| handle.note_error(error)));
        }
        outcome
    }

    /// Forgets which bytes were written to objects that a sync of their whole tier has covered since.
    pub fn forget_synced(&self, file: &FileState) {
        let unsynced = self.unsynced_objects(file);
        let layout = file.layout.read();
        let is_unsynced = |slot: u8| unsynced.iter().any(|entry| layout.slot_of_object(entry.object) == Some(slot));
        file.durability.unsynced.lock().retain(|(slot, ..)| is_unsynced(*slot));
    }

    /// As `sync_file`, and reports errors that `error_seen` has not seen yet. While lost bytes have not been overwritten,
    /// no sync of the file succeeds.
    pub fn sync_and_report(
        &self,
        inode: &Inode,
        file: &FileState,
        error_seen: &std::sync::atomic::AtomicU32,
    ) -> Result<()> {
        let outcome = self.sync_file(inode, file);
        self.placement.heat.note_synced(inode.ino);
        // A concurrent sync may have received a loss that concerns this one and not have recorded it yet.
        drop(file.durability.sync_gate.write());
        let sequence = file.durability.error_sequence.load(Ordering::Acquire);
        let seen = error_seen.swap(sequence, Ordering::AcqRel);
        outcome?;
        if seen != sequence || !file.layout.read().damaged.is_empty() {
            return Err(lost_bytes(inode));
        }
        Ok(())
    }
}

/// The error for an open file description that has not received the error of a failed sync yet.
pub fn lost_bytes(inode: &Inode) -> Error {
    ErrorKind::Damaged(inode.ino).into()
}
