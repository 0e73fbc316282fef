//! The size of a spread file on record.
//!
//! Invariants:
//! * Whatever makes the size exact (a sync, a settling, the upkeep every few seconds) notes the size and the objects together,
//!   syncs the objects, and then logs the size as the floor. Until then the inode stays in memory.
//! * The owners of all blocks before the logged size were among the objects that were noted: one that joined meanwhile may not be
//!   durable at all. Otherwise all of it is done again, also if the file was made shorter meanwhile. Neither is prevented.
//! * A loss that a sync reported is logged before the floor that covers it. The bytes on other tiers are not given up for it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use polymux_records::blockmap::{MapChange, Owner};
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::parts::ReaderLayout;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::ObjectEntry;
use polymux_tier::TierError;
use polymux_types::{Block, Errno, ObjectId};
use polymux_volume::inode::{FileState, Inode, Layout};
use smallvec::SmallVec;

use super::super::layout_change::Company;
use super::shares::{Share, Shares};
use crate::data_path::DataPath;

/// Times in which is looked for files that grow, until one is due: how exact that is.
const LOOKS_PER_INTERVAL: u64 = 5;

/// Holes that get an owner when the size is put on record; those behind are placed one by one, more slowly.
const HOLES_PLACED_MAX: usize = 4096;

/// The state that a sync which begins now makes durable.
pub(in crate::io) struct Noted {
    size: u64,
    /// Times that the file was made shorter.
    cuts: u64,
    objects: SmallVec<[ObjectId; 4]>,
}

/// Whether a size is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::io) enum Recorded {
    Yes,
    /// The sync did not cover everything it had to and must be repeated.
    NotCovered,
}

/// Whether a sync reported lost bytes. The loss is recorded by then, and nothing waits for another sync.
fn is_told_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Tier { source, .. } if *source != TierError::NotAnswering)
}

/// Joins the outcomes of two syncs: a sync that was not made counts more than a loss on record, after which nothing waits for a sync.
pub(in crate::io) fn join(first: Result<()>, second: Result<()>) -> Result<()> {
    match (&first, &second) {
        (Err(earlier), Err(later)) if is_told_loss(earlier) && !is_told_loss(later) => second,
        (Err(_), _) => first,
        (Ok(()), _) => second,
    }
}

impl DataPath {
    /// Notes the state that a sync which begins now covers.
    pub(in crate::io) fn note_before_sync(&self, file: &FileState) -> Noted {
        let cuts = file.sizes.cuts.load(Ordering::Acquire);
        let layout = file.layout.read();
        // Read under the lock: the writer of a byte before this end had its object in the list.
        Noted { size: file.size(), cuts, objects: layout.objects.iter().map(|entry| entry.object).collect() }
    }

    /// Puts the size of a spread file on record. Called with the append lock (or the barrier) held.
    pub(in crate::io) fn settle_tail(&self, inode: &Inode, file: &FileState) -> Result<()> {
        while file.has_unsettled_tail() {
            file.spreading.unpromised.store(0, Ordering::SeqCst);
            let noted = self.note_before_sync(file);
            let mut synced = Ok(());
            for entry in self.unsynced_objects(file) {
                synced = join(synced, self.sync_object(inode, file, &entry));
            }
            drop(file.durability.sync_gate.write());
            if self.record_after_sync(inode, file, &noted, synced)? == Recorded::Yes {
                break;
            }
        }
        Ok(())
    }

    /// Logs the size that was noted before a sync, unless the sync failed for another reason than bytes that are lost. Called with
    /// the barrier held, shared at least, and after concurrent syncs have put their losses on record.
    pub(in crate::io) fn record_after_sync(
        &self,
        inode: &Inode,
        file: &FileState,
        noted: &Noted,
        synced: Result<()>,
    ) -> Result<Recorded> {
        if let Err(error) = &synced
            && !is_told_loss(error)
        {
            return Err(error.clone());
        }
        let recorded = self.record_floor(inode, file, noted)?;
        synced.map(|()| recorded)
    }

    /// Logs a size that was noted before the objects were synced. Holes before it get their owners, so that a later write into one
    /// needs no copy.
    fn record_floor(&self, inode: &Inode, file: &FileState, noted: &Noted) -> Result<Recorded> {
        if inode.lifecycle.lock().gone || is_planted(PlantedFault::SpreadSizeNotRecorded) {
            return Ok(Recorded::Yes);
        }
        let alone = {
            let layout = file.layout.read();
            layout.objects.first().copied().filter(|_| layout.objects.len() == 1 && layout.map.has_exceptions())
        };
        if let Some(entry) = alone {
            // It gets all holes, and later frees on it would free bytes in them.
            self.reclaim_object(inode, &entry)?;
        }
        let recorded = self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            if inode.lifecycle.lock().gone {
                // The record of a file that was deleted meanwhile must not come back.
                return Err(Errno::ENOENT.into());
            }
            if layout.extenders != 0 || layout.size_floor >= noted.size || layout.objects.is_empty() {
                return Ok(None);
            }
            if file.sizes.cuts.load(Ordering::Acquire) != noted.cuts || !is_covered(layout, noted) {
                return Ok(Some(Recorded::NotCovered));
            }
            let change = self.place_holes(file, layout, noted);
            layout.size_floor = noted.size;
            transaction.put_map_change(inode.ino, layout, &change);
            Ok(Some(Recorded::Yes))
        });
        match recorded {
            Err(error) if error.errno() == Errno::ENOENT && inode.lifecycle.lock().gone => return Ok(Recorded::Yes),
            Ok(Some(Recorded::Yes)) => {}
            recorded => return Ok(recorded?.unwrap_or(Recorded::Yes)),
        }
        file.unsettled_anew();
        Counters::count(&self.volume.counters.settles);
        Counters::count(&self.volume.counters.spread_floors);
        if self.volume.options.reader_layout == ReaderLayout::WhenWritten {
            self.placement.grown_files.note(inode.ino);
        }
        Ok(Recorded::Yes)
    }

    /// Gives holes that were left out to the tiers that the file has, each as many as its bandwidth says.
    fn place_holes(&self, file: &FileState, layout: &mut Layout, noted: &Noted) -> MapChange {
        let (mut change, range_blocks) = (MapChange::default(), self.range_blocks());
        let end = Block::at_or_after(noted.size);
        let holes: Vec<Range<Block>> = layout
            .map
            .runs(Block::holding(layout.size_floor), end)
            .into_iter()
            .filter(|run| run.owner == Some(Owner::Hole))
            .flat_map(|run| (run.start.0..run.end.0).step_by(usize::try_from(range_blocks).unwrap_or(usize::MAX)))
            .map(|start| Block(start)..(Block(start) + range_blocks).min(end))
            .collect();
        if holes.is_empty() {
            return change;
        }
        let now = self.volume.clock.elapsed();
        let known = |entry: &ObjectEntry| {
            let tier = self.volume.tiers.by_id(entry.tier);
            tier.map_or(0, |tier| tier.speed.write_lane.state(now).bytes_per_second)
        };
        // A file with one object has no holes on record.
        let is_alone = layout.objects.len() == 1;
        let takes =
            |entry: &ObjectEntry| is_alone || noted.objects.contains(&entry.object) && self.takes_holes(file, entry);
        let share = |(slot, entry): (u8, &ObjectEntry)| Share {
            key: slot,
            bandwidth: known(entry),
            room_below_mark: u64::MAX,
            room: u64::MAX,
        };
        let mut shares = Shares::new((0_u8..).zip(&layout.objects).filter(|(_, entry)| takes(entry)).map(share));
        for hole in holes.into_iter().take(if is_alone { usize::MAX } else { HOLES_PLACED_MAX }) {
            let Some(slot) = shares.give(Block::bytes_of(range_blocks)) else { break };
            file.nodes.mark_map_changed(hole.clone());
            change.then(layout.map.assign(hole.start, hole.end, Owner::Slot(slot)));
        }
        change
    }

    /// Whether an object of a file may get holes. A write into a hole that has its owner already does not look for pending frees of
    /// that object. Until a migration has ended, its pending frees are not known here; but they include no holes, and none is made
    /// meanwhile.
    fn takes_holes(&self, file: &FileState, entry: &ObjectEntry) -> bool {
        let Ok(handle) = self.volume.tiers.by_id(entry.tier) else { return false };
        !self.volume.disowned.holds(entry.tier, entry.object)
            && !file.is_moving_to(entry.tier)
            && handle.present().is_some()
            && !handle.is_draining()
            && !handle.is_failing()
            && handle.headroom() >= self.range_bytes()
    }

    /// Whether an object with bytes that are to be put on record is on a tier that is slow at the moment.
    fn waits_for_slow_tier(&self, file: &FileState) -> bool {
        let is_slow = |entry: &ObjectEntry| self.volume.tiers.by_id(entry.tier).is_ok_and(|tier| tier.is_slow());
        self.unsynced_objects(file).iter().any(is_slow)
    }

    /// Logs the size of each spread file whose end was in memory only for a few seconds, so that a crash takes no more of an unsynced
    /// append than native file systems let it. Not sooner: ranges that were left out get their tiers then, and the speed of the tiers
    /// is seldom known when a file begins to grow.
    pub fn settle_spread_files(&self) -> Result<()> {
        if !self.placement.has_spread.load(Ordering::Acquire) {
            return Ok(());
        }
        let now_ms = self.volume.elapsed_ms();
        if now_ms < self.upkeep.settle_due_ms.load(Ordering::Relaxed) {
            return Ok(());
        }
        let interval_ms = u64::from(self.volume.options.flush_interval_ms);
        let look_ms = interval_ms / LOOKS_PER_INTERVAL;
        self.upkeep.settle_due_ms.store(now_ms.saturating_add(look_ms), Ordering::Relaxed);
        let mut outcome = Ok(());
        let may_grow =
            |inode: &Inode| inode.file().is_some_and(|file| file.spreading.may_grow_unsettled.load(Ordering::Acquire));
        for inode in self.volume.inodes.all_where(may_grow) {
            let Some(file) = inode.file() else { continue };
            let Some(since_ms) = file.unsettled_since_ms(now_ms) else { continue };
            // It may have been one look before it was seen, and the next one may come late.
            let is_due = now_ms.saturating_sub(since_ms) >= interval_ms - 2 * look_ms;
            // A tier that does not answer would keep the thread, and with it all that the volume does in the background.
            if is_due && !self.waits_for_slow_tier(file) {
                outcome = outcome.and(self.sync_file(&inode, file));
            }
        }
        outcome
    }
}

/// Whether the owners of all blocks between the logged size and the noted size were noted, too.
fn is_covered(layout: &Layout, noted: &Noted) -> bool {
    let is_noted = |owner: Option<Owner>| match owner {
        Some(Owner::Slot(slot)) => noted.objects.contains(&layout.object(slot).object),
        Some(Owner::Hole) | None => true,
    };
    layout
        .map
        .runs(Block::holding(layout.size_floor), Block::at_or_after(noted.size))
        .iter()
        .all(|run| is_noted(run.owner))
}
