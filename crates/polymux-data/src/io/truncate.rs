//! Sizes set by `truncate`. Each form that changes anything is a barrier on the file.
//!
//! * To the size that it has: nothing, and a move of the file goes on.
//! * Of an inline file: in memory, unless it becomes too long for that.
//! * To zero: the file gives up its objects as they are and begins anew, so nothing is cut in place.
//! * Shorter, one object: the record must allow any size from the new one on (floor, size authority) durably before the
//!   object is cut, because recovery after a crash takes the size from the object.
//! * Shorter, several objects: map, floor and pending frees of the tails in one durable transaction; then the objects are cut
//!   and synced, and the pending frees are deleted.
//! * Longer: the tail's object is extended.

use std::sync::atomic::Ordering;

use polymux_records::blockmap::Owner;
use polymux_records::error::Result;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::DisownedRecord;
use polymux_types::limits::FILE_SIZE_MAX;
use polymux_types::{Block, Errno};
use polymux_volume::inode::{FileState, Inode, reference_of};
use polymux_volume::volume::Volume;

use super::layout_change::Company;
use crate::data_path::DataPath;
use crate::placement::Request;

impl DataPath {
    /// Sets the size of a file.
    pub fn truncate_file(&self, inode: &Inode, file: &FileState, size: u64) -> Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        self.ensure_size(inode, file)?;
        if self.has_size(inode, file, size)? {
            return Ok(());
        }
        let _alone = file.lock_alone();
        let _append = file.append.lock();
        let _changing = file.allocation.changing();
        self.see_direct_changes(inode, file)?;
        if self.truncate_inline(inode, file, size)? {
            return Ok(());
        }
        let present = file.size();
        if size < present {
            file.sizes.cuts.fetch_add(1, Ordering::AcqRel);
            file.spreading.reserved_end.store(0, Ordering::Release);
        }
        if size == 0 {
            // An emptied file is about to be written anew.
            file.direct.growth.note_growth();
        }
        if size == 0 && file.is_passed_through() {
            // A program that has it open goes on using the object that it has.
            self.cut_single(inode, file, 0)?;
            file.durability.emptyings.note();
            Ok(())
        } else if size == 0 {
            self.empty(inode, file)
        } else if size > present {
            self.extend(inode, file, size)
        } else if size < present {
            self.check_tiers_present(file)?;
            if file.layout.read().is_wholly_on_one() {
                self.cut_single(inode, file, size)
            } else {
                self.cut_several(inode, file, size)
            }
        } else {
            Ok(())
        }
    }

    /// Whether a file with objects is `size` bytes long. SQLite sets the size of its database, which it has, at each checkpoint of the log, several
    /// times a second: a move that stopped each time would hardly get on.
    fn has_size(&self, inode: &Inode, file: &FileState, size: u64) -> Result<bool> {
        // Emptying gives up objects, whatever the size.
        if size == 0 || size != file.size() || file.is_inline() {
            return Ok(false);
        }
        let _shared = file.barrier.read();
        let _append = file.append.lock();
        self.see_direct_changes(inode, file)?;
        Ok(size == file.size() && !file.is_inline())
    }

    fn check_tiers_present(&self, file: &FileState) -> Result<()> {
        for entry in &file.layout.read().objects {
            self.volume.tiers.by_id(entry.tier)?.get()?;
        }
        Ok(())
    }

    fn empty(&self, inode: &Inode, file: &FileState) -> Result<()> {
        let disowned: Vec<DisownedRecord> = file.layout.read().objects.iter().map(DisownedRecord::of_object).collect();
        if disowned.is_empty() && file.size() == 0 {
            return Ok(());
        }
        self.change_layout(inode, file, Company::Nobody, |transaction, layout| {
            file.nodes.mark_map_changed(Block(0)..Block::END);
            file.sizes.bytes.store(0, Ordering::Release);
            let change = layout.map.clear();
            layout.objects.clear();
            layout.size_floor = 0;
            layout.extenders = 0;
            layout.damaged.clear();
            file.durability.unsynced.lock().clear();
            transaction.put_map_change(inode.ino, layout, &change);
            for record in &disowned {
                transaction.put_disowned(record);
            }
            Ok(())
        })?;
        file.durability.emptyings.note();
        self.volume.disowned.add(&disowned, inode.last_sequence());
        Ok(())
    }

    /// Makes the file longer. Called under the barrier or the append lock.
    pub fn extend(&self, inode: &Inode, file: &FileState, size: u64) -> Result<()> {
        self.ensure_home(inode, file, &Request { length: 1, file_end: size, partial: false, except: None })?;
        let (slot, entry) = {
            let layout = file.layout.read();
            let slot = layout.tail_slot().ok_or_else(|| Volume::contradiction(inode, "it has a home and no tail"))?;
            (slot, layout.object(slot))
        };
        self.ensure_extender(inode, file, slot)?;
        file.note_unsynced(slot, file.size(), size);
        self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.truncate(reference_of(&entry), size))?;
        file.direct.growth.note_growth();
        file.sizes.bytes.store(size, Ordering::Release);
        Ok(())
    }

    fn cut_single(&self, inode: &Inode, file: &FileState, size: u64) -> Result<()> {
        let entry = file.layout.read().object(0);
        self.reclaim_object(inode, &entry)?;
        let bit = 1 << entry.tier.0;
        let ready = {
            let layout = file.layout.read();
            layout.size_floor <= size && layout.extenders == bit && layout.damaged.is_empty()
        };
        if !ready {
            self.volume.transact(&[inode], |transaction| {
                let mut layout = file.layout.write();
                layout.size_floor = layout.size_floor.min(size);
                layout.extenders = bit;
                cut_damage(&mut layout.damaged, size);
                drop(layout);
                transaction.put_inode(inode);
                Ok(())
            })?;
        }
        if !is_planted(PlantedFault::CutBeforeRecord) {
            self.volume.flush_inode(inode)?;
        }
        let present = file.size();
        self.publish(file, size);
        file.note_unsynced(0, size.saturating_sub(1), size);
        let cut = self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.truncate(reference_of(&entry), size));
        if cut.is_err() {
            self.publish(file, present);
        }
        cut
    }

    /// Readers that looked before see the change and look again.
    fn publish(&self, file: &FileState, size: u64) {
        let mut layout = file.layout.write();
        layout.cut_lengths(size);
        file.nodes.mark_map_changed(Block::holding(size)..Block::END);
        file.sizes.bytes.store(size, Ordering::Release);
    }

    fn cut_several(&self, inode: &Inode, file: &FileState, size: u64) -> Result<()> {
        let objects = file.layout.read().objects.clone();
        for entry in &objects {
            self.reclaim_object_from(inode, entry, size)?;
        }
        let disowned: Vec<DisownedRecord> = objects.iter().map(|entry| DisownedRecord::of_tail(entry, size)).collect();
        // The bytes before the new end must be durable before the floor says that they are there.
        for entry in &objects {
            self.sync_object(inode, file, entry)?;
        }
        self.change_layout(inode, file, Company::Nobody, |transaction, layout| {
            file.nodes.mark_map_changed(Block::holding(size)..Block::END);
            file.sizes.bytes.store(size, Ordering::Release);
            let change = layout.map.cut(Block::at_or_after(size));
            let mut change = change;
            if layout.objects.len() == 1 {
                // It has no holes on record.
                for hole in layout.map.holes() {
                    change.then(layout.map.assign(hole.start, hole.end, Owner::Slot(0)));
                }
            }
            layout.size_floor = size;
            layout.extenders = 0;
            layout.cut_lengths(size);
            cut_damage(&mut layout.damaged, size);
            transaction.put_map_change(inode.ino, layout, &change);
            for record in &disowned {
                transaction.put_disowned(record);
            }
            Ok(())
        })?;
        self.volume.disowned.add(&disowned, inode.last_sequence());
        // Carried out at once: the file may grow over these bytes in the next moment.
        for entry in &objects {
            self.reclaim_object_from(inode, entry, size)?;
        }
        Ok(())
    }
}

/// Removes everything behind the block of the end from damaged ranges.
pub(super) fn cut_damage(damaged: &mut Vec<(u64, u64)>, size: u64) {
    let end = Block::at_or_after(size).first_byte();
    damaged.retain(|(from, _)| *from < size);
    for (_, to) in damaged {
        *to = (*to).min(end);
    }
}
