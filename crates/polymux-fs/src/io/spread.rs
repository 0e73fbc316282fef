//! Files that grow on several tiers at once (P5-P8, docs/design/0018).
//!
//! What is true here:
//! * A range (2 MiB, `MountOptions::spread_range_bytes`) that the file has not reached is given to the tier that the policy names, when its first byte is written.
//!   Ranges that were left out are explicit holes until then, so that each of them can still go anywhere.
//! * While a file grows so, no tier is on record as its extender: after a crash it ends at its floor, and objects are cut
//!   there before anybody uses them. So an append that nobody synced is a prefix, whatever became durable on which tier, and
//!   a range behind the floor may change its tier without anything being disowned, copied or synced.
//! * Whatever makes the size exact (a sync, a settling, the upkeep every few seconds) notes the size, syncs all objects, and then
//!   logs the size as the floor. Until then the inode stays in memory.
//! * The extender that the file had before leaves its record either after a settling, or where nothing of the file was promised to
//!   be durable since it was put there. Both are decided under the record lock.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_policy::PolicyKind;
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Errno, TierId};

use super::layout_change::Company;
use super::{block_after, block_of, start_of};
use crate::blockmap::{END, MapChange, Owner};
use crate::core::Core;
use crate::counters::Counters;
use crate::error::Result;
use crate::inode::{FileState, Inode, Layout, reference_of};
use crate::placement::{Context, Request};
use crate::planted_faults::{PlantedFault, is_planted};
use crate::space::TierHandle;
use crate::store::ObjectEntry;

/// Holes that get an owner when the size is put on record; those behind are placed one by one, more slowly.
const HOLES_PLACED_MAX: usize = 4096;

/// What a range is before its first byte is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unplaced {
    /// The file has not reached it.
    Tail,
    /// The file goes on behind it.
    Hole,
}

/// Where data that is about to be written is after placement.
pub(super) enum Placed<'a> {
    /// In one range: this much of it.
    In(&'a [u8]),
    /// It fills a hole, and that has to wait for the end of a move of the file.
    AfterMove,
}

impl Core {
    /// Whether any file may be spread.
    fn may_spread(&self) -> bool {
        self.may_spread.load(Ordering::Acquire)
    }

    /// Blocks of a range.
    fn range_blocks(&self) -> u64 {
        (u64::from(self.options.spread_range_bytes) / BLOCK_SIZE).max(1)
    }

    /// Bytes of a range.
    fn range_bytes(&self) -> u64 {
        start_of(self.range_blocks())
    }

    /// What the range of a byte is, where it has to be placed before the byte is written. The first range is where the file
    /// has its home.
    fn unplaced(&self, file: &FileState, position: u64) -> Option<Unplaced> {
        let range_start = position / self.range_bytes() * self.range_bytes();
        if range_start >= start_of(block_after(file.size())) {
            return (range_start > 0).then_some(Unplaced::Tail);
        }
        let is_hole =
            file.grows_unsettled() && file.layout.read().map.run_at(block_of(position)).owner == Some(Owner::Hole);
        is_hole.then_some(Unplaced::Hole)
    }

    /// Whether a write begins a range that has to be placed.
    pub(super) fn has_range_to_place(&self, file: &FileState, offset: u64, length: usize) -> bool {
        if file.is_inline() || file.is_passed_through() || !self.may_spread() {
            return false;
        }
        let last = offset + (length as u64).saturating_sub(1);
        [offset, last].into_iter().any(|position| self.unplaced(file, position).is_some())
    }

    /// Waits until a tier has room for the range that a write begins. Called with no lock held.
    pub(super) fn wait_before_growth(&self, inode: &Inode, file: &FileState, offset: u64, length: usize) {
        if !file.spreads.load(Ordering::Relaxed) || !self.has_range_to_place(file, offset, length) {
            return;
        }
        if self.write_behind.wait_for_room(&self.tiers_to_spread_to(&self.context_of(inode))) {
            Counters::count(&self.counters.spread_waits);
        }
    }

    /// Tiers that may get new ranges of a file.
    fn tiers_to_spread_to(&self, context: &Context) -> Vec<Arc<TierHandle>> {
        let may_take = |tier: &&Arc<TierHandle>| {
            context.allowed >> tier.id.0 & 1 != 0
                && !tier.is_draining()
                && !tier.is_failing()
                && tier.present().is_some_and(|present| present.capabilities().holds_partial_files())
                && tier.headroom() >= self.range_bytes()
        };
        self.tiers.all().iter().filter(may_take).cloned().collect()
    }

    /// Gives the range of `position` to a tier, where it has none yet, and returns the data that belongs into it. Called with
    /// the blocks held, and with the append lock held where the file grows.
    pub(super) fn place_growth<'a>(
        &self,
        inode: &Inode,
        file: &FileState,
        position: u64,
        data: &'a [u8],
    ) -> Result<Placed<'a>> {
        if file.is_inline() || file.is_passed_through() || !self.may_spread() {
            return Ok(Placed::In(data));
        }
        let range_bytes = self.range_bytes();
        let range_end = (position / range_bytes + 1) * range_bytes;
        let data = &data[..usize::try_from(range_end - position).unwrap_or(usize::MAX).min(data.len())];
        let Some(unplaced) = self.unplaced(file, position) else { return Ok(Placed::In(data)) };
        let context = self.context_of(inode);
        file.spreads.store(context.policy == PolicyKind::Spread, Ordering::Release);
        // What a mover claimed on a tier would be freed under what is written there. No move begins while we are inside.
        if file.is_moving() {
            return Ok(if unplaced == Unplaced::Hole { Placed::AfterMove } else { Placed::In(data) });
        }
        if context.policy != PolicyKind::Spread {
            return Ok(Placed::In(data));
        }
        let file_end = position + data.len() as u64;
        let request = Request { length: range_bytes, file_end, partial: true, except: None };
        // Where none has room, the write finds out, and does what it does on any file.
        let Some(tier) = self.place_in(&context, inode, &request).first().copied() else { return Ok(Placed::In(data)) };
        let range = position / range_bytes;
        let placed = match unplaced {
            Unplaced::Tail => self.give_range_at_end(inode, file, tier, range)?,
            Unplaced::Hole => self.give_hole(inode, file, tier, range)?,
        };
        if let Some(entry) = placed {
            let handle = self.tiers.by_id(entry.tier)?;
            self.write_behind.claim(&handle, reference_of(&entry), range * range_bytes, range_bytes);
        }
        Ok(Placed::In(data))
    }

    /// Gives a range that the file has not reached, and all behind it, to a tier. Returns the object that has it.
    fn give_range_at_end(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: TierId,
        range: u64,
    ) -> Result<Option<ObjectEntry>> {
        let first = range * self.range_blocks();
        // The first range is never left out: it is where the file has its home.
        let reached = file.size().div_ceil(self.range_bytes()).max(1) * self.range_blocks();
        let left_out = reached..first;
        let tail = {
            let layout = file.layout.read();
            layout.tail_slot().map(|slot| layout.object(slot))
        };
        if let Some(tail) = tail.filter(|tail| tail.tier == tier && left_out.is_empty()) {
            // What was cut off there and could not be freed would be freed under what is written now.
            self.reclaim_object(inode, &tail)?;
            return Ok(Some(tail));
        }
        if !file.grows_unsettled() && !self.is_unpromised(file) {
            self.settle(inode, file)?;
        }
        let entry = self.ensure_object(inode, file, tier)?;
        let is_given = self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            if layout.extenders != 0 && !self.is_unpromised(file) {
                // A sync came between, and relies on the extender: another range will be the first.
                return Ok(false);
            }
            let slot = layout.slot_on(tier)?;
            file.nodes.mark_map_changed(left_out.start.min(first)..END);
            let mut change = MapChange::default();
            if !left_out.is_empty() {
                change.then(layout.map.assign(left_out.start, left_out.end, Owner::Hole));
            }
            change.then(layout.map.assign(first, END, Owner::Slot(slot)));
            layout.extenders = 0;
            file.may_grow_unsettled.store(true, Ordering::Release);
            transaction.put_map_change(inode.ino, &change);
            Ok(true)
        })?;
        if is_given {
            Counters::count(&self.counters.spread_switches);
        }
        Ok(is_given.then_some(entry))
    }

    /// Gives a range of a hole behind the floor to a tier, unless somebody else just did.
    fn give_hole(&self, inode: &Inode, file: &FileState, tier: TierId, range: u64) -> Result<Option<ObjectEntry>> {
        let blocks = range * self.range_blocks()..(range + 1) * self.range_blocks();
        let entry = self.ensure_object(inode, file, tier)?;
        let is_given = self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            let is_hole = layout.map.run_at(blocks.start);
            // Before the floor a crash would leave bytes that no record names (relocation).
            let is_behind = layout.extenders == 0 && start_of(blocks.start) >= layout.size_floor;
            if is_hole.owner != Some(Owner::Hole) || is_hole.end < blocks.end || !is_behind {
                return Ok(false);
            }
            let slot = layout.slot_on(tier)?;
            file.nodes.mark_map_changed(blocks.clone());
            let change = layout.map.assign(blocks.start, blocks.end, Owner::Slot(slot));
            transaction.put_map_change(inode.ino, &change);
            Ok(true)
        })?;
        if is_given {
            Counters::count(&self.counters.spread_holes_filled);
        }
        Ok(is_given.then_some(entry))
    }

    /// Whether nothing that was written to a file since it got its home was promised to be durable.
    fn is_unpromised(&self, file: &FileState) -> bool {
        let since = file.unpromised.load(Ordering::SeqCst);
        is_planted(PlantedFault::SpreadPromiseForgotten)
            || since != 0 && since == self.volume_syncs.load(Ordering::SeqCst) + 1
    }

    /// Puts the size of a spread file on record. Called with the append lock (or the barrier) held.
    pub(super) fn settle_tail(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if !file.has_unsettled_tail() {
            return Ok(());
        }
        file.unpromised.store(0, Ordering::SeqCst);
        let size = file.size();
        for (slot, entry) in self.unsynced_objects(file) {
            // What a missing tier has must not be settled without it.
            self.tiers.by_id(entry.tier)?.get()?;
            self.sync_slot(inode, file, slot, &entry)?;
        }
        self.record_floor(inode, file, size)
    }

    /// Logs a size that was noted before the objects were synced. Holes before it get their owners, so that whoever fills one
    /// later needs no copy. Called with the barrier held, shared at least.
    pub(super) fn record_floor(&self, inode: &Inode, file: &FileState, size: u64) -> Result<()> {
        if inode.lifecycle.lock().gone || is_planted(PlantedFault::SpreadSizeNotRecorded) {
            return Ok(());
        }
        let recorded = self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            if inode.lifecycle.lock().gone {
                // The record of a file that was deleted meanwhile must not come back.
                return Err(Errno::ENOENT.into());
            }
            if layout.extenders != 0 || layout.size_floor >= size || layout.objects.is_empty() {
                return Ok(());
            }
            let change = self.place_holes(file, layout, size);
            layout.size_floor = size;
            transaction.put_map_change(inode.ino, &change);
            Ok(())
        });
        match recorded {
            Err(error) if error.errno() == Errno::ENOENT && inode.lifecycle.lock().gone => return Ok(()),
            recorded => recorded?,
        }
        Counters::count(&self.counters.settles);
        Counters::count(&self.counters.spread_floors);
        Ok(())
    }

    /// Gives holes that were left out to the tiers that the file has, each as many as its bandwidth says.
    fn place_holes(&self, file: &FileState, layout: &mut Layout, size: u64) -> MapChange {
        let (mut change, range_blocks) = (MapChange::default(), self.range_blocks());
        let holes: Vec<Range<u64>> = layout
            .map
            .runs(block_of(layout.size_floor), block_after(size))
            .into_iter()
            .filter(|run| run.owner == Some(Owner::Hole))
            .flat_map(|run| (run.start..run.end).step_by(usize::try_from(range_blocks).unwrap_or(usize::MAX)))
            .map(|start| start..(start + range_blocks).min(block_after(size)))
            .take(HOLES_PLACED_MAX)
            .collect();
        if holes.is_empty() {
            return change;
        }
        let now = self.clock.elapsed();
        let bandwidth = |entry: &ObjectEntry| {
            let known = self.tiers.by_id(entry.tier).map(|tier| tier.write_lane.state(now).bytes_per_second);
            known.unwrap_or(0).max(1)
        };
        // Nobody looks at what is disowned on an object before he writes into a hole that has its owner already. Until a move
        // has ended, what it disowns is not known here; but it disowns no holes, and none is made meanwhile.
        let is_free =
            |entry: &&ObjectEntry| !self.disowned.holds(entry.tier, entry.object) && !file.is_moving_to(entry.tier);
        let mut shares: Vec<(u8, u64, u64)> = (0_u8..)
            .zip(&layout.objects)
            .filter(|(_, entry)| is_free(entry))
            .map(|(slot, entry)| (slot, bandwidth(entry), 0))
            .collect();
        for hole in holes {
            let done_soonest = |(_, bandwidth, given): &&mut (u8, u64, u64)| {
                u128::from(*given + 1) * (1 << 60) / u128::from(*bandwidth)
            };
            let Some((slot, _, given)) = shares.iter_mut().min_by_key(done_soonest) else { break };
            *given += 1;
            file.nodes.mark_map_changed(hole.clone());
            change.then(layout.map.assign(hole.start, hole.end, Owner::Slot(*slot)));
        }
        change
    }

    fn is_on_slow_tier(&self, file: &FileState) -> bool {
        let is_slow = |entry: &ObjectEntry| self.tiers.by_id(entry.tier).is_ok_and(|tier| tier.is_slow());
        file.layout.read().objects.iter().any(is_slow)
    }

    /// Puts the sizes of spread files on record every few seconds, so that a crash takes no more of an append that nobody
    /// synced than native file systems let it.
    pub(crate) fn settle_spread_files(&self) -> Result<()> {
        if !self.has_spread.load(Ordering::Acquire) {
            return Ok(());
        }
        let now_ms = self.elapsed_ms();
        if now_ms < self.settle_due_ms.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.settle_due_ms.store(now_ms.saturating_add(u64::from(self.options.flush_interval_ms)), Ordering::Relaxed);
        let mut outcome = Ok(());
        for inode in self.inodes.all() {
            // A tier that does not answer would keep the thread, and with it all that the volume does in the background.
            if let Some(file) = inode.file().filter(|file| file.has_unsettled_tail() && !self.is_on_slow_tier(file)) {
                outcome = outcome.and(self.sync_file(&inode, file));
            }
        }
        outcome
    }
}
