//! The size of a file (DESIGN section 6): at least the floor; beyond it, the size of the size authority's object.
//!
//! Invariants:
//! * `extenders` is empty or holds one tier (docs/design/0001). Its bit is logged before the first write that extends
//!   the file there, and another tier takes its place only after the file was settled.
//! * A spread file grows with an empty set (docs/design/0018); then its size is the one in memory, and the floor follows.
//! * After the daemon alone died, the objects of a spread file say where it ends.
//! * Settling syncs the size authority, then logs the size noted before the sync; it empties the set only if nothing extended
//!   the file meanwhile (the append lock is held).

use std::sync::atomic::Ordering;

use polymux_records::blockmap::{Owner, Run};
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::ObjectEntry;
use polymux_tier::{ObjectRef, ObjectStat, Tier, TierError, Wait};
use polymux_types::Block;
use polymux_volume::inode::{AwaitedSwitch, FileState, Inode, reference_of};
use polymux_volume::transaction::Transaction;

use super::allocation::answer_of;
use super::layout_change::Company;
use super::spread::{OwnedBytes, give_back_room};
use super::truncate::cut_damage;
use crate::data_path::DataPath;

/// Who may have reserved space behind the end of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomBehind {
    OfGrowth,
    /// A program may have reserved it.
    OfAnybody,
}

impl DataPath {
    /// Finds out the size where the record leaves it to an object, once per stay in memory.
    pub fn ensure_size(&self, inode: &Inode, file: &FileState) -> Result<()> {
        self.look_for_holder(inode, file)?;
        if file.is_changed_directly() {
            // The object is not cut below a program that goes on writing to it.
            return self.see_direct_changes(inode, file);
        }
        if file.sizes.is_known.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = file.sizes.finding.lock();
        if file.sizes.is_known.load(Ordering::Acquire) {
            return Ok(());
        }
        let (extender, objects, floor) = {
            let layout = file.layout.read();
            (layout.extender(), layout.objects.clone(), layout.size_floor)
        };
        let mut size = floor;
        if let Some((_, entry)) = extender {
            match self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(&entry))) {
                Ok(stat) => {
                    size = size.max(stat.size);
                    self.adopt_modification_time(inode, &stat);
                }
                Err(error) => {
                    file.sizes.bytes.store(floor, Ordering::Release);
                    self.size_without_object(inode, &entry, &error)?;
                }
            }
        }
        let may_be_longer = self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire)
            && self.volume.metadata.only_the_daemon_died();
        if may_be_longer && extender.is_none() && !is_planted(PlantedFault::SpreadSizeNotAsked) {
            size = self.end_after_death(inode, file, floor)?;
        }
        file.sizes.bytes.store(size, Ordering::Release);
        if self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire) && !self.volume.is_read_only() {
            self.cut_objects_to(inode, file, &objects, extender.map(|(slot, _)| slot), size)?;
            self.forget_damage_beyond(inode, file, size);
        }
        file.sizes.is_known.store(true, Ordering::Release);
        Ok(())
    }

    /// The end of a file that grew without a size authority when only the daemon died: no object has bytes behind the end in a
    /// range that it owns, and the last written byte is in the object that owns it (docs/design/0023). Logs the result.
    fn end_after_death(&self, inode: &Inode, file: &FileState, floor: u64) -> Result<u64> {
        let (objects, runs) = {
            let layout = file.layout.read();
            (layout.objects.clone(), layout.map.runs(Block::holding(floor), Block::END))
        };
        let mut end = floor;
        let mut written = Vec::new();
        for (slot, entry) in (0_u8..).zip(&objects) {
            let owned = || runs.iter().filter(|run| run.owner == Some(Owner::Slot(slot)));
            if owned().next().is_none() {
                continue;
            }
            if !self.volume.is_read_only() {
                // Bytes that were cut off and are not freed yet are no part of the file.
                self.reclaim_object(inode, entry)?;
            }
            let stat = match self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(entry))) {
                Err(error) if is_not_found(&error) => continue,
                stat => stat?,
            };
            let end_in = |run: &Run| stat.size.min(run.end.first_byte());
            let here = owned().filter(|run| run.start.first_byte() < stat.size).map(end_in).max();
            if here.is_some_and(|here| here > floor) {
                self.adopt_modification_time(inode, &stat);
                written.push(*entry);
            }
            end = end.max(here.unwrap_or(0));
        }
        if end > floor && !self.volume.is_read_only() {
            for entry in written {
                self.sync_object(inode, file, &entry)?;
            }
            self.change_layout(inode, file, Company::Writers, |_, layout| {
                layout.size_floor = end;
                Ok(())
            })?;
        }
        Ok(end)
    }

    /// As [`Self::ensure_size`], for a caller that only shows the size: if the tier that knows it is missing, fails or does not answer, the floor
    /// is shown. That must not be cached, and such a file is neither read nor written: it could look shorter than it is.
    pub fn ensure_size_or_guess(&self, inode: &Inode, file: &FileState) -> Result<()> {
        match self.ensure_size(inode, file) {
            Err(error) if error.is_about_tier() => {
                self.volume.size_recovery.has_guessed.store(true, Ordering::Release);
                Ok(())
            }
            other => other,
        }
    }

    /// The object that should know the size is not there.
    fn size_without_object(
        &self,
        inode: &Inode,
        entry: &ObjectEntry,
        error: &polymux_records::error::Error,
    ) -> Result<()> {
        match error.kind() {
            // Its record reached the log and its directory entry on the tier did not: no fsync of the file returned since
            // this tier began to extend it, so nothing beyond the floor was promised to be durable.
            ErrorKind::Tier { source: TierError::NotFound(_), .. }
                if self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire) =>
            {
                self.volume.note_recovery(format!(
                    "inode {}: what was appended on tier {} was never synced and is gone",
                    inode.ino, entry.tier
                ));
                if self.volume.is_read_only() {
                    return Ok(());
                }
                self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.create(reference_of(entry)))
            }
            _ => Err(error.clone()),
        }
    }

    /// After an unclean stop the object may have been written later than the record says.
    fn adopt_modification_time(&self, inode: &Inode, stat: &polymux_tier::ObjectStat) {
        if self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire) {
            self.adopt_newer_modification_time(inode, stat);
        }
    }

    /// Takes the modification time of an object that may have been written to without the daemon, if it is newer.
    pub(super) fn adopt_newer_modification_time(&self, inode: &Inode, stat: &polymux_tier::ObjectStat) {
        let mut common = inode.common.write();
        // The record is newer than the object where a time was set by hand, which always changes the attributes.
        if stat.modified > common.changed && stat.size > 0 {
            common.modified = stat.modified;
            common.changed = common.changed.max(stat.modified);
            inode.times_dirty.store(true, Ordering::Release);
        }
    }

    /// Cuts bytes that an unclean stop left beyond the file's end, which must not reappear when the file grows. Space preallocated for
    /// growth is freed too; behind the size authority's object it may have been reserved by a program.
    fn cut_objects_to(
        &self,
        inode: &Inode,
        file: &FileState,
        objects: &[ObjectEntry],
        extender: Option<u8>,
        size: u64,
    ) -> Result<()> {
        if is_planted(PlantedFault::GhostsNotCut) {
            return Ok(());
        }
        let _one_at_a_time = file.allocation.asking.lock();
        file.allocation.begin_asking();
        let quality = self.quality_of_answers(inode, file, objects);
        let mut answers = Vec::with_capacity(objects.len());
        let runs = file.layout.read().map.runs(Block(0), Block::at_or_after(size));
        for (slot, entry) in (0_u8..).zip(objects) {
            let handle = self.volume.tiers.by_id(entry.tier)?;
            if handle.present().is_none() {
                continue;
            }
            let owned = runs.iter().filter(|run| run.owner == Some(Owner::Slot(slot)));
            let owned = owned.fold(OwnedBytes::default(), |owned, run| OwnedBytes {
                bytes: owned.bytes + run.end.first_byte() - run.start.first_byte(),
                end: run.end.first_byte().min(size),
            });
            let room = match objects.len() {
                2.. if extender != Some(slot) => RoomBehind::OfGrowth,
                _ => RoomBehind::OfAnybody,
            };
            let is_durable = self.has_durable_length(file, entry);
            let left = handle.run(|tier| cut_object(tier, reference_of(entry), size, &owned, room))?;
            answers.extend(left.map(|stat| answer_of(file, entry, &stat, is_durable)));
        }
        // Objects that were left out, or cut, are asked when a caller needs the numbers.
        self.take_answers(inode, file, &answers, objects.len(), quality);
        Ok(())
    }

    /// Forgets damage beyond the new end of a file: bytes that a failed sync lost there are not part of the file any more; where it grows
    /// again, they are as good as any others. Damage whose removal cannot be logged stays: an error in place of zeros loses no byte.
    pub(super) fn forget_damage_beyond(&self, inode: &Inode, file: &FileState, size: u64) {
        let before = file.layout.read().damaged.clone();
        let mut left = before.clone();
        cut_damage(&mut left, size);
        if left == before {
            return;
        }
        let cut = |transaction: &mut Transaction| {
            file.layout.write().damaged = left;
            transaction.put_inode(inode);
            Ok(())
        };
        if let Err(error) = self.volume.transact_or_undo(&[inode], cut, || file.layout.write().damaged = before) {
            log::warn!("inode {}: lost bytes beyond its end stay noted: {error}", inode.ino);
        }
    }

    /// Logs that the tier of a slot may extend the file from now on. Called with the append lock (or the barrier) held.
    pub(crate) fn ensure_extender(&self, inode: &Inode, file: &FileState, slot: u8) -> Result<()> {
        let bit = {
            let layout = file.layout.read();
            1 << layout.object(slot).tier.0
        };
        if file.layout.read().extenders == bit {
            return Ok(());
        }
        self.settle(inode, file)?;
        let tier = file.layout.read().object(slot).tier;
        self.wait_for_switch(file, tier, u64::MAX, Wait::Allowed)?;
        // Pending frees that a cut left on this object would later free bytes that are appended now.
        let entry = file.layout.read().object(slot);
        self.reclaim_object(inode, &entry)?;
        self.volume.transact(&[inode], |transaction| {
            file.layout.write().extenders = bit;
            transaction.put_inode(inode);
            Ok(())
        })
    }

    /// Makes the size exact: syncs the size authority and logs the size. Called with the append lock (or the barrier) held, so
    /// that nothing extends the file meanwhile. The caller's next transaction may rely on an empty set.
    pub fn settle(&self, inode: &Inode, file: &FileState) -> Result<()> {
        let Some((_, entry)) = file.layout.read().extender() else { return self.settle_tail(inode, file) };
        // The size that a missing tier knows must not be settled without it.
        self.volume.tiers.by_id(entry.tier)?.get()?;
        let size = file.size();
        if !is_planted(PlantedFault::SettledBeforeSync) {
            self.sync_object(inode, file, &entry)?;
        }
        Counters::count(&self.volume.counters.settles);
        self.volume.transact(&[inode], |transaction| {
            let mut layout = file.layout.write();
            layout.size_floor = size;
            layout.extenders = 0;
            drop(layout);
            transaction.put_inode(inode);
            Ok(())
        })?;
        file.await_switch(AwaitedSwitch { tier: entry.tier, from: size, sequence: inode.last_sequence() });
        Ok(())
    }

    /// Whether nothing of a file is lost and the tier that extends it is there.
    fn may_settle(&self, file: &FileState) -> Result<bool> {
        if file.is_changed_directly() {
            return Ok(false);
        }
        let layout = file.layout.read();
        let present = match layout.extender() {
            Some((_, entry)) => self.volume.tiers.by_id(entry.tier)?.present().is_some(),
            None => true,
        };
        // The size of a spread file is known in memory only, damaged or not.
        let is_undamaged = layout.damaged.is_empty();
        drop(layout);
        Ok(present && (is_undamaged || file.has_unsettled_tail()))
    }

    /// After everything was synced: sizes that are known become exact in their records.
    pub fn settle_if_known(&self, inode: &polymux_volume::inode::Inode) -> Result<()> {
        match inode.file() {
            Some(file) if file.sizes.is_known.load(Ordering::Acquire) && self.may_settle(file)? => {
                self.settle(inode, file)
            }
            _ => Ok(()),
        }
    }
}

/// Cuts an object that an unclean stop left too long. Returns its state if it was left unchanged.
fn cut_object(
    tier: &dyn Tier,
    object: ObjectRef,
    size: u64,
    owned: &OwnedBytes,
    room: RoomBehind,
) -> std::result::Result<Option<ObjectStat>, TierError> {
    match tier.stat(object) {
        Ok(stat) if stat.size > size => tier.truncate(object, size).and_then(|()| tier.sync(object)).map(|()| None),
        Ok(stat) if room == RoomBehind::OfGrowth && give_back_room(tier, object, &stat, owned) => Ok(None),
        Ok(stat) => Ok(Some(stat)),
        // Recorded, made, not durable, and not needed for any byte yet: made again.
        Err(TierError::NotFound(_)) if owned.bytes == 0 => tier.create(object).map(|()| None),
        // A missing object that owns bytes shows when they are read.
        Err(TierError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Tier { source: TierError::NotFound(_), .. })
}
