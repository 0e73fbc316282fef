//! Objects of a file: choosing a home, adding an object on another tier.

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::store::{ObjectEntry, keys};
use polymux_tier::TierError;
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Errno, Ino, TierId};
use polymux_volume::inode::{FileState, Inode, Layout};
use polymux_volume::transaction::Transaction;
use polymux_volume::volume::Volume;

use crate::data_path::DataPath;
use crate::placement::Request;

/// Rounds of freeing for one write that finds no free space.
const ROUNDS_OF_FREEING_MAX: u32 = 16;

/// Time between two attempts to free bytes of an object that a program holds.
const HELD_PAUSE: Duration = Duration::from_millis(5);

impl DataPath {
    /// Gives a file a home tier, where it has none yet, and moves its inline bytes there. Called by operations that may extend the file.
    pub(crate) fn ensure_home(&self, inode: &Inode, file: &FileState, request: &Request) -> Result<()> {
        if file.layout.read().map.home().is_some() {
            return Ok(());
        }
        let content = self.inline_content(inode, file)?;
        let mut refusal = ErrorKind::NoSpace.into();
        for candidate in self.place_or_reclaim(inode, request)? {
            let made = self.make_object(inode, candidate);
            match made.and_then(|entry| self.fill_home(inode, file, &entry, &content)) {
                Ok(()) => {
                    self.charge_message(file, candidate, request.length);
                    return Ok(());
                }
                // The metadata store refused: no other tier helps.
                Err(error) if matches!(error.kind(), ErrorKind::Store(_)) => return Err(error),
                Err(error) if error.is_out_of_room() => refusal = error,
                Err(error) => {
                    log::warn!("tier {candidate} cannot take a new object, the next one is tried: {error}");
                    refusal = error;
                }
            }
        }
        Err(refusal)
    }

    /// Candidate tiers for new blocks. Where none has free space, pending frees are carried out first, and frees that are under way are
    /// waited for. Returns none also where that gave free space to the tier that the request leaves out.
    pub(crate) fn place_or_reclaim(&self, inode: &Inode, request: &Request) -> Result<Vec<TierId>> {
        self.place_with_room(inode, request, BLOCK_SIZE)
    }

    /// As [`DataPath::place_or_reclaim`]; candidates are tiers with at least `bytes` of free space.
    pub(crate) fn place_with_room(&self, inode: &Inode, request: &Request, bytes: u64) -> Result<Vec<TierId>> {
        let has_room = |tier: &TierId| self.volume.tiers.by_id(*tier).is_ok_and(|tier| tier.headroom() >= bytes);
        // More than one round: each frees a bounded number of ranges, and other writers may take the freed space.
        for round in 0..=ROUNDS_OF_FREEING_MAX {
            // Read first: space that is freed while the tiers are looked at is worth another round.
            let before = self.volume.tiers.room_generation();
            let mut candidates = self.placement.place_now(inode, request);
            candidates.retain(has_room);
            let left_out_has_room = || round > 0 && request.except.as_ref().is_some_and(has_room);
            if !candidates.is_empty() || left_out_has_room() {
                return Ok(candidates);
            }
            if !self.volume.free_for_writer(before)? {
                break;
            }
        }
        if self.every_tier_is_too_small_for(request.file_end) {
            return Err(Errno::EFBIG.into());
        }
        Ok(Vec::new())
    }

    fn every_tier_is_too_small_for(&self, file_end: u64) -> bool {
        self.volume
            .tiers
            .all()
            .iter()
            .filter_map(|tier| tier.present())
            .all(|tier| tier.capabilities().file_size_max < file_end)
    }

    /// The object of a file on a tier, made and recorded where the file has none.
    pub(crate) fn ensure_object(&self, inode: &Inode, file: &FileState, tier: TierId) -> Result<ObjectEntry> {
        // Writers of disjoint ranges may come here together, and a file has one object a tier.
        let _one_at_a_time = file.adding_object.lock();
        let layout = file.layout.read();
        if let Some(slot) = layout.slot_of(tier) {
            let entry = layout.object(slot);
            drop(layout);
            self.reclaim_object(inode, &entry)?;
            return Ok(entry);
        }
        drop(layout);
        let entry = self.make_object(inode, tier)?;
        self.volume.transact(&[inode], |transaction| {
            let mut layout = file.layout.write();
            self.begin_extents(transaction, inode, &layout)?;
            file.durability.entries_unsynced.lock().push(entry.object);
            layout.objects.push(entry);
            drop(layout);
            transaction.put_inode(inode);
            Ok(())
        })?;
        Ok(entry)
    }

    /// Makes the extents on record those of the map. Called inside the transaction that adds an object to a file, before that.
    ///
    /// While a file has one object its extents are not read, and those that older programs and repairs left would come back with the
    /// second object, over data that was written since.
    pub fn begin_extents(&self, transaction: &mut Transaction, inode: &Inode, layout: &Layout) -> Result<()> {
        if layout.objects.len() != 1 {
            return Ok(());
        }
        for end in self.volume.metadata.extent_ends(inode.ino)? {
            transaction.batch.delete(keys::extent(inode.ino, end));
        }
        layout.map.exceptions().for_each(|extent| transaction.put_extent(inode.ino, &extent));
        Ok(())
    }

    /// Carries out the pending frees of an object before its ranges are used again: later they would free the data that is written there
    /// now. The removal of the records becomes an unflushed record of the inode.
    pub fn reclaim_object(&self, inode: &Inode, entry: &ObjectEntry) -> Result<()> {
        self.reclaim_object_from(inode, entry, 0)
    }

    /// As [`DataPath::reclaim_object`] for use of the object from a position on: ranges before it that a tier refuses to free may stay. A
    /// full XFS cannot punch holes, because that needs blocks, but can truncate.
    pub(crate) fn reclaim_object_from(&self, inode: &Inode, entry: &ObjectEntry, position: u64) -> Result<()> {
        // Asked first, because a round that frees something else there may be waiting for another tier. Asked again, because a mover
        // may commit meanwhile, which disowns another range of the object.
        let is_held = || self.volume.disowned.holds_from(entry.tier, entry.object, position);
        let patience = Duration::from_millis(u64::from(self.volume.options.hang_after_ms));
        let held_since = OnceCell::new();
        let is_over = || {
            let now = self.volume.clock.elapsed();
            now.saturating_sub(*held_since.get_or_init(|| now)) >= patience && !patience.is_zero()
        };
        while is_held() {
            self.volume.check_writable()?;
            let round = self.volume.free_disowned_of(entry.tier, entry.object)?;
            inode.note_sequence(self.volume.metadata.committed());
            let Some(error) = round.refused.filter(|_| is_held()) else { continue };
            // The range must not be used under a record that would free it later.
            match error.kind() {
                // A program holds the object.
                ErrorKind::WouldBlock if !is_over() => self.volume.clock.sleep(HELD_PAUSE),
                ErrorKind::WouldBlock => return Err(Error::tier(entry.tier, TierError::NotAnswering)),
                _ => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes an object that no record names yet. Until one does, recovery takes it for leaked and removes it.
    pub fn make_object(&self, inode: &Inode, tier: TierId) -> Result<ObjectEntry> {
        let parent = match inode.parent.load(Ordering::Relaxed) {
            0 => self.volume.metadata.any_name(inode.ino)?.map_or(Ino::ROOT, |(parent, _)| parent),
            known => Ino(known),
        };
        let object = self.volume.metadata.allocate_object(|sequence| self.volume.flush_through_copy(sequence))?;
        let entry = ObjectEntry::new(tier, object, Volume::bucket_for_parent(parent));
        let handle = self.volume.tiers.by_id(tier)?;
        let reference = polymux_volume::inode::reference_of(&entry);
        match handle.run(|tier| tier.create(reference)) {
            // Checked after the object exists: a removal of the tier marks it as draining first and looks for objects then.
            Ok(()) if handle.is_draining() => {
                handle.run(|tier| tier.remove(reference))?;
                Err(ErrorKind::NoSpace.into())
            }
            Ok(()) => {
                self.stamps.note_late(inode);
                Ok(entry)
            }
            Err(error) => {
                if let ErrorKind::Tier { source: TierError::AlreadyExists(_), .. } = error.kind() {
                    log::error!(
                        "tier `{}`: object {:016x} exists although its number is new",
                        handle.name,
                        entry.object
                    );
                }
                Err(error)
            }
        }
    }
}
