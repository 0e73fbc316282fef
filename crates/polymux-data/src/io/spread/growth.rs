//! Which tier gets a range that a file grows by, or that it left out.

use std::sync::atomic::Ordering;

use polymux_policy::Growth;
use polymux_records::blockmap::{MapChange, Owner};
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::ObjectEntry;
use polymux_tier::{Tier, TierError};
use polymux_types::{Block, StreamId, TierId};
use polymux_volume::inode::{AwaitedSwitch, FileState, Inode, Layout, reference_of};

use super::super::layout_change::Company;
use super::{Placed, Unplaced};
use crate::data_path::DataPath;
use crate::placement::Request;

/// Ranges of a file that may be off the record when it begins to spread.
const UNSETTLED_BEGINNING_RANGES_MAX: u64 = 16;

impl DataPath {
    /// Gives the range of `position` to a tier, where it has none yet, and returns the data that belongs into it. Called with
    /// the blocks held, and with the append lock held where the file grows.
    pub(in crate::io) fn place_growth<'a>(
        &self,
        inode: &Inode,
        file: &FileState,
        position: u64,
        data: &'a [u8],
        stream: StreamId,
    ) -> Result<Placed<'a>> {
        if file.is_inline() || file.is_passed_through() || !self.may_spread() {
            return Ok(Placed::In(data));
        }
        let range_bytes = self.range_bytes();
        let range_end = (position / range_bytes + 1) * range_bytes;
        let data = &data[..usize::try_from(range_end - position).unwrap_or(usize::MAX).min(data.len())];
        let Some(unplaced) = self.unplaced(file, position) else { return Ok(Placed::In(data)) };
        self.check_growth(file)?;
        let context = self.placement.context_of(inode);
        let file_end = position + data.len() as u64;
        let request = Request { length: range_bytes, file_end, partial: true, except: None };
        // A file that was spread before is left to the policy's placement.
        let spreads = context.policy.spreads()
            && (file.grows_unsettled() || self.placement.growth_in(&context, inode, &request) == Growth::IsSpread);
        file.spreading.is_spread.store(spreads, Ordering::Release);
        // Claims of a mover on a tier would free bytes that are written there. No migration begins while this write holds the barrier.
        if file.is_moving() {
            return Ok(if unplaced == Unplaced::Hole { Placed::AfterMove } else { Placed::In(data) });
        }
        if !spreads {
            return Ok(Placed::In(data));
        }
        let range = position / range_bytes;
        let mapped = self.tier_of_writer(&context, inode, stream);
        for tier in self.placement.place_mapped(&context, inode, &request, mapped) {
            let placed = match unplaced {
                Unplaced::Tail => self.give_range_at_end(inode, file, tier, range),
                Unplaced::Hole => self.give_hole(inode, file, tier, range),
            };
            match placed {
                Ok(Some(entry)) => {
                    let handle = self.volume.tiers.by_id(entry.tier)?;
                    self.write_behind.claim(&handle, reference_of(&entry), range * range_bytes, range_bytes);
                    return Ok(Placed::In(data));
                }
                Ok(None) => return Ok(Placed::In(data)),
                // The metadata store refused: no other tier helps.
                Err(error) if matches!(error.kind(), ErrorKind::Store(_)) => return Err(error),
                Err(error) if error.is_out_of_room() || is_of_tier(&error, tier) => {
                    log::debug!(
                        "tier {tier} cannot take a range of inode {}, the next one is asked: {error}",
                        inode.ino
                    );
                }
                Err(error) => return Err(error),
            }
        }
        // If none has free space, the write finds out and proceeds as on any other file.
        Ok(Placed::In(data))
    }

    /// Fails where a file must not grow: an object with unsynced bytes is on a tier that is away or does not answer. Its size
    /// could not be put on record, and a crash would take whatever other tiers got meanwhile (DESIGN section 6).
    pub(in crate::io) fn check_growth(&self, file: &FileState) -> Result<()> {
        if !file.grows_unsettled() {
            return Ok(());
        }
        let layout = file.layout.read();
        for (slot, entry) in (0_u8..).zip(&layout.objects) {
            let handle = self.volume.tiers.by_id(entry.tier)?;
            if handle.present().is_some() && !handle.is_silent() {
                continue;
            }
            // A sync that is under way has taken the note, and the tier keeps it until it has come to its end.
            let is_unsynced = file.durability.unsynced.lock().iter().any(|(of, ..)| *of == slot)
                || handle.watched().is_some_and(|tier| tier.is_unsynced(reference_of(entry)));
            if is_unsynced {
                handle.get()?;
                return Err(ErrorKind::Tier { tier: entry.tier, source: TierError::NotAnswering }.into());
            }
        }
        Ok(())
    }

    /// Gives a range that the file has not reached, and all behind it, to a tier. Returns the object that has it.
    fn give_range_at_end(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: TierId,
        range: u64,
    ) -> Result<Option<ObjectEntry>> {
        let first = Block(range * self.range_blocks());
        let left_out = self.reached_blocks(file)..first;
        let tail = {
            let layout = file.layout.read();
            layout.tail_slot().map(|slot| (slot, layout.object(slot)))
        };
        // A tier that is the recorded size authority has to leave the record first, although the file goes on there: recovery would
        // take the size from its object, and nothing orders the write-back of one range after that of the range before it.
        let has_left_record = file.grows_unsettled() || is_planted(PlantedFault::SpreadExtenderGoesOn);
        if let Some((_, tail)) = tail.filter(|(_, tail)| tail.tier == tier && left_out.is_empty() && has_left_record) {
            // Bytes that were cut off there and could not be freed would be freed later, under the data that is written now.
            self.reclaim_object(inode, &tail)?;
            return Ok(Some(tail));
        }
        if let Some((slot, tail)) = tail.filter(|_| !file.spreading.may_grow_unsettled.load(Ordering::Acquire)) {
            self.trim_before_gap(file, slot, &tail);
        }
        let changed_from = left_out.start.min(first);
        let is_given = self.give_end(inode, file, &[tier], changed_from, |layout| {
            let slot = layout.slot_on(tier)?;
            let mut change = MapChange::default();
            if !left_out.is_empty() {
                change.then(layout.map.assign(left_out.start, left_out.end, Owner::Hole));
            }
            change.then(layout.map.assign(first, Block::END, Owner::Slot(slot)));
            Ok(change)
        })?;
        if is_given && tail.is_none_or(|(_, tail)| tail.tier != tier) {
            Counters::count(&self.volume.counters.spread_switches);
        }
        let layout = file.layout.read();
        Ok(if is_given { Some(layout.object(layout.slot_on(tier)?)) } else { None })
    }

    /// Gives blocks that the file has not reached, from one on, to objects on `tiers` as `assign` says, and removes the size authority
    /// from the record. `false`, with nothing changed, if a concurrent sync relies on the size authority. Called with the append lock
    /// (or the barrier) held.
    pub(in crate::io) fn give_end(
        &self,
        inode: &Inode,
        file: &FileState,
        tiers: &[TierId],
        first: Block,
        assign: impl FnOnce(&mut Layout) -> Result<MapChange>,
    ) -> Result<bool> {
        let former = file.possible_extenders();
        // If a file begins to spread late, a crash would cut off all its earlier bytes, even those synced or written back long ago.
        let has_much_behind = file.size() > UNSETTLED_BEGINNING_RANGES_MAX * self.range_bytes();
        if !file.grows_unsettled() && (has_much_behind || !self.is_unpromised(file)) {
            self.settle(inode, file)?;
        }
        for tier in tiers {
            self.ensure_object(inode, file, *tier)?;
        }
        let cut_off = self.tails_to_cut_off(file);
        let is_given = self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            if layout.extenders != 0 && !self.is_unpromised(file) {
                // A concurrent sync relies on the size authority: another range will be the first.
                return Ok(false);
            }
            let change = assign(layout)?;
            cut_off.iter().for_each(|record| transaction.put_disowned(record));
            file.nodes.mark_map_changed(first..Block::END);
            layout.extenders = 0;
            file.spreading.may_grow_unsettled.store(true, Ordering::Release);
            transaction.put_map_change(inode.ino, layout, &change);
            Ok(true)
        })?;
        if is_given {
            file.spreading.cut_off.lock().extend(cut_off.iter().map(|record| (record.tier, record.object)));
            self.volume.disowned.add(&cut_off, inode.last_sequence());
            let (from, sequence) = (first.first_byte(), inode.last_sequence());
            former.iter().for_each(|tier| file.await_switch(AwaitedSwitch { tier: *tier, from, sequence }));
        }
        Ok(is_given)
    }

    /// Gives a range of a hole behind the logged size to a tier, unless another thread just did.
    fn give_hole(&self, inode: &Inode, file: &FileState, tier: TierId, range: u64) -> Result<Option<ObjectEntry>> {
        let blocks = Block(range * self.range_blocks())..Block((range + 1) * self.range_blocks());
        let entry = self.ensure_object(inode, file, tier)?;
        let is_given = self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            let is_hole = layout.map.run_at(blocks.start);
            // Before the floor a crash would leave bytes that no record names (relocation).
            let is_behind = layout.extenders == 0 && blocks.start.first_byte() >= layout.size_floor;
            if is_hole.owner != Some(Owner::Hole) || is_hole.end < blocks.end || !is_behind {
                return Ok(false);
            }
            let slot = layout.slot_on(tier)?;
            file.nodes.mark_map_changed(blocks.clone());
            let change = layout.map.assign(blocks.start, blocks.end, Owner::Slot(slot));
            transaction.put_map_change(inode.ino, layout, &change);
            Ok(true)
        })?;
        if is_given {
            Counters::count(&self.volume.counters.spread_holes_filled);
        }
        Ok(is_given.then_some(entry))
    }

    /// Whether nothing that was written to a file since it got its home was promised to be durable.
    fn is_unpromised(&self, file: &FileState) -> bool {
        let since = file.spreading.unpromised.load(Ordering::SeqCst);
        is_planted(PlantedFault::SpreadPromiseForgotten)
            || since != 0 && since == self.volume_syncs.load(Ordering::SeqCst) + 1
    }

    /// The end of the blocks that the file has reached, in whole ranges. The first range always counts: it is on the file's home tier. The
    /// part of the last range on an absent tier is not available until the tier is back.
    pub(super) fn reached_blocks(&self, file: &FileState) -> Block {
        let size = file.size();
        let tail = file.layout.read().tail_tier();
        let is_away =
            tail.is_some_and(|tier| self.volume.tiers.by_id(tier).is_ok_and(|handle| handle.present().is_none()));
        if is_away && size > 0 {
            return Block::at_or_after(size);
        }
        Block(size.div_ceil(self.range_bytes()).max(1) * self.range_blocks())
    }
}

/// Whether an error is about one tier and no other.
fn is_of_tier(error: &Error, tier: TierId) -> bool {
    match error.kind() {
        ErrorKind::Tier { tier: of, .. } | ErrorKind::TierMissing(of) => *of == tier,
        _ => false,
    }
}
