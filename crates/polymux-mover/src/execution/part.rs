//! One file's range on its way to another tier: begin, copy, rounds, commit, give up (DESIGN section 8, M10).
//!
//! Invariants:
//! * From `begin` to `commit` or `give_up` the file has a ticket, the nodes are marked, and the inode is pinned.
//! * Nothing of the file is on the target within the part: the data there belongs to the mover, either because the whole
//!   object is named by no record, or because `claims` marks it durably as pending frees.
//! * The map is switched after the last byte was copied *and synced*, with no request inside the nodes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_records::blockmap::{Owner, Run, whole_nodes};
use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::{DisownedKind, DisownedRecord, ObjectEntry};
use polymux_types::{Block, TierId};
use polymux_volume::inode::{FileState, Inode, Layout, MoveTicket, reference_of};

use super::interrupt::Interrupt;
use crate::Mover;
use crate::queue::{ArrivedBytes, PaceOfJob};

/// Whether the record of the inode names the target's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetObject {
    Recorded,
    /// Made for this part; its record comes with the switch.
    New,
}

/// Whether the object on the target goes on behind gaps when all that is wanted has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gaps {
    Follow,
    /// All of the file comes. Space preallocated beforehand would keep XFS from giving back, when the object is closed, the blocks that it
    /// takes behind bytes that are appended later.
    None,
}

/// Whole nodes of one file that are being moved.
pub(crate) struct Part {
    pub(crate) inode: Arc<Inode>,
    pub(crate) ticket: Arc<MoveTicket>,
    /// Only data on this tier is moved; `None`: all data that is not on the target.
    pub(crate) from: Option<TierId>,
    pub(crate) target: ObjectEntry,
    pub(crate) target_object: TargetObject,
    pub(crate) gaps: Gaps,
    /// Whole nodes, in order, apart.
    pub(crate) ranges: Vec<Range<Block>>,
    /// Pending frees in the range on the target, not carried out while the part is under way.
    pub(crate) claims: Vec<DisownedRecord>,
    /// Error sequence of the file before the first byte was copied: a sync that failed since may have lost some.
    pub(crate) error_sequence: u32,
    pub(crate) bytes_copied: u64,
    /// Shared with its job: further moves are planned by it.
    pub(crate) arrived: ArrivedBytes,
    /// The last request that was written, which may still be on its way to the device.
    pub(crate) behind: Option<WriteBehind>,
    /// When it began, the file could still be read or written.
    pub(crate) began_wanted: bool,
    /// How it behaves beside others who use the devices.
    pub(crate) pace: PaceOfJob,
}

/// A request of a mover that was written and is being written back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteBehind {
    pub(crate) target: ObjectEntry,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The result of `begin`.
pub(crate) enum Beginning {
    Part(Box<Part>),
    /// The range has no block that could go to the target.
    NothingToMove,
    /// Another move of the file is under way.
    Busy,
}

impl Part {
    pub(crate) fn file(&self) -> &FileState {
        self.inode.file().expect("only regular files are moved")
    }

    pub(crate) fn selection(&self) -> Selection {
        Selection { from: self.from, target: self.target.tier }
    }

    /// Stops tracking writes to the nodes of the part.
    pub(crate) fn unmark(&self) {
        self.ranges.iter().for_each(|blocks| self.file().nodes.unmark_moving(blocks));
    }

    /// The blocks that were written since this was last asked.
    pub(crate) fn take_dirty(&self) -> Vec<Range<Block>> {
        self.ranges.iter().flat_map(|blocks| self.file().nodes.take_dirty(blocks)).collect()
    }

    /// Blocks that are dirty now.
    pub(crate) fn dirty_count(&self) -> u64 {
        self.ranges.iter().map(|blocks| self.file().nodes.dirty_count(blocks)).sum()
    }
}

/// Which blocks a part moves, by who owns them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    pub(crate) from: Option<TierId>,
    pub(crate) target: TierId,
}

impl Selection {
    fn takes(self, tier: TierId) -> bool {
        tier != self.target && self.from.is_none_or(|from| from == tier)
    }

    /// Whether the target has all of a file when everything was moved that is taken of it.
    pub(crate) fn leaves_nothing(self, inode: &Inode) -> bool {
        let stays = |tier: TierId| tier != self.target && !self.takes(tier);
        inode.file().is_some_and(|file| !file.layout.read().objects.iter().any(|entry| stays(entry.tier)))
    }

    /// The runs within `ranges` that are moved. The last one reaches to the end of all blocks where its range holds the end
    /// of the file; a range behind the end has none, so that the map keeps no leftovers of a file that was longer.
    pub(crate) fn runs(self, layout: &Layout, ranges: &[Range<Block>], size: u64) -> Vec<(Run, ObjectEntry)> {
        let movable = |run: Run| match run.owner {
            Some(Owner::Slot(slot)) if self.takes(layout.object(slot).tier) => Some((run, layout.object(slot))),
            Some(Owner::Slot(_) | Owner::Hole) | None => None,
        };
        let within = |blocks: &Range<Block>| {
            let end = if holds_end(blocks, size) { Block::END } else { blocks.end.min(Block::at_or_after(size)) };
            if blocks.start < end { layout.map.runs(blocks.start, end) } else { Vec::new() }
        };
        ranges.iter().flat_map(within).filter_map(movable).collect()
    }
}

/// Whether a file has no name any more and only the mover refers to it.
pub(crate) fn is_unwanted(inode: &Inode) -> bool {
    inode.common.read().links == 0 && inode.lifecycle.lock().handles == 0
}

/// Whether the last block of a file of this size lies in the range, or where it would lie.
pub(crate) fn holds_end(blocks: &Range<Block>, size: u64) -> bool {
    let last = Block::at_or_after(size).saturating_sub(1);
    blocks.contains(&last)
}

impl Mover {
    /// Begins to move the selected blocks of the nodes of `wanted`.
    pub(crate) fn begin_part(
        &self,
        inode: &Arc<Inode>,
        wanted: &[Range<Block>],
        selection: Selection,
        gaps: Gaps,
    ) -> std::result::Result<Beginning, Interrupt> {
        let Some(file) = inode.file() else { return Ok(Beginning::NothingToMove) };
        self.data.ensure_size(inode, file)?;
        let target = selection.target;
        let ranges: Vec<Range<Block>> = wanted.iter().map(whole_nodes).collect();
        self.check_sources(inode, file, selection, &ranges)?;
        let (ticket, runs) = {
            self.data.look_again(inode, file)?;
            let alone = file.lock_for_move();
            if file.is_passed_through() {
                return Err(Interrupt::PassedThrough);
            }
            // A move changes the times of objects.
            self.data.see_direct_changes(inode, file)?;
            let layout = file.layout.read();
            if layout.objects.is_empty() {
                return Ok(Beginning::NothingToMove);
            }
            let runs = selection.runs(&layout, &ranges, file.size());
            if runs.is_empty() {
                return Ok(Beginning::NothingToMove);
            }
            // Pinned in the same moment as it is seen to be there: an unlink beside this leaves the file to the mover.
            let mut lifecycle = inode.lifecycle.lock();
            if lifecycle.gone {
                return Ok(Beginning::NothingToMove);
            }
            let Some(ticket) = file.begin_move(target, &alone) else { return Ok(Beginning::Busy) };
            lifecycle.pins += 1;
            (ticket, runs)
        };
        Counters::count(&self.volume.counters.moves_begun);
        match self.prepare_target(inode, file, &ranges, &runs, target) {
            Ok((entry, target_object, claims)) => {
                ranges.iter().for_each(|blocks| file.nodes.mark_moving(blocks));
                Ok(Beginning::Part(Box::new(Part {
                    inode: inode.clone(),
                    ticket,
                    from: selection.from,
                    target: entry,
                    target_object,
                    gaps,
                    ranges,
                    claims,
                    error_sequence: file.durability.error_sequence.load(Ordering::Acquire),
                    bytes_copied: 0,
                    arrived: ArrivedBytes::default(),
                    behind: None,
                    began_wanted: !is_unwanted(inode),
                    pace: PaceOfJob::default(),
                })))
            }
            Err(error) => {
                file.end_move(&ticket);
                self.data.unpin(inode.ino, 1)?;
                Err(Interrupt::of(error, target))
            }
        }
    }

    /// Zeros in place of data that an object lost at its end must not become the file on another tier: the loss is recorded, and
    /// the move fails. The next one takes the rest.
    fn check_sources(
        &self,
        inode: &Inode,
        file: &FileState,
        selection: Selection,
        ranges: &[Range<Block>],
    ) -> std::result::Result<(), Interrupt> {
        let mut sources: Vec<ObjectEntry> = {
            let layout = file.layout.read();
            selection.runs(&layout, ranges, file.size()).into_iter().map(|(_, source)| source).collect()
        };
        sources.sort_unstable_by_key(|source| source.tier);
        sources.dedup_by_key(|source| source.tier);
        for source in &sources {
            if let Err(error) = self.data.check_object_length(source) {
                if matches!(error.kind(), ErrorKind::ObjectShort { .. }) {
                    self.data.note_short_objects(inode, file)?;
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Makes the range on the target the mover's own.
    fn prepare_target(
        &self,
        inode: &Inode,
        file: &FileState,
        ranges: &[Range<Block>],
        runs: &[(Run, ObjectEntry)],
        target: TierId,
    ) -> Result<(ObjectEntry, TargetObject, Vec<DisownedRecord>)> {
        let known = {
            let layout = file.layout.read();
            layout.slot_of(target).map(|slot| layout.object(slot))
        };
        let Some(entry) = known else {
            let made = self.data.make_object(inode, target)?;
            self.stamps.stamp_new_object(inode, &made)?;
            return Ok((made, TargetObject::New, Vec::new()));
        };
        // The last run may reach to the end of all blocks, and nothing is copied behind the last node.
        let end = ranges.last().expect("a part has a range").end;
        // Older pending frees would free the data that is written there now.
        self.data.reclaim_object(inode, &entry)?;
        let claim = |(run, _): &(Run, ObjectEntry)| {
            DisownedRecord::of_range(&entry, run.start.first_byte(), run.end.min(end).first_byte())
        };
        // A run that begins behind the last node only gives the end of the file to the target.
        let claims: Vec<DisownedRecord> = runs.iter().filter(|(run, _)| run.start < end).map(claim).collect();
        self.volume.transact(&[inode], |transaction| {
            claims.iter().for_each(|claim| transaction.put_disowned(claim));
            Ok(())
        })?;
        let durable = if is_planted(PlantedFault::ClaimNotFlushed) { Ok(()) } else { self.volume.flush_inode(inode) };
        let ready = durable.and_then(|()| self.clear_claims(&entry, &claims));
        if let Err(error) = ready {
            // The claims are in the log all the same, and would later free data that is written there meanwhile.
            self.volume.disowned.add(&claims, inode.last_sequence());
            return Err(error);
        }
        Ok((entry, TargetObject::Recorded, claims))
    }

    /// Holes of the file must be holes on the target, whatever a lagging copy of the metadata forgot of its past.
    fn clear_claims(&self, entry: &ObjectEntry, claims: &[DisownedRecord]) -> Result<()> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let object = reference_of(entry);
        let size = handle.run(|tier| tier.stat(object))?.size;
        for claim in claims.iter().filter(|claim| claim.start < size) {
            let DisownedKind::Range { end } = claim.kind else { unreachable!("a claim is a range") };
            handle.run(|tier| tier.punch(object, claim.start, end.min(size) - claim.start))?;
        }
        Ok(())
    }

    /// Ends a part whose map was not switched: the file is as it was, and the copy belongs to no file.
    pub(crate) fn give_up_part(&self, part: &Part, interrupt: &Interrupt) {
        part.unmark();
        match part.target_object {
            TargetObject::Recorded => self.volume.disowned.add(&part.claims, part.inode.last_sequence()),
            // The switch may be in the log of a store that failed; recovery knows whether it is.
            TargetObject::New if interrupt.is_of_failed_store() => {}
            TargetObject::New => self.remove_unrecorded(part),
        }
        Counters::count(&self.volume.counters.moves_given_up);
        self.end_part(part);
    }

    /// No record names the object, so nothing has to be durable before it goes; after a crash recovery finds it.
    fn remove_unrecorded(&self, part: &Part) {
        let removed = self
            .volume
            .tiers
            .by_id(part.target.tier)
            .and_then(|handle| handle.run(|tier| tier.remove(reference_of(&part.target))));
        if let Err(error) = removed {
            log::warn!("tier {}: a copy that was given up stays for now: {error}", part.target.tier);
            self.data.discard_object(&part.inode, &part.target);
        }
    }

    /// Lets the file go.
    pub(crate) fn end_part(&self, part: &Part) {
        part.file().end_move(&part.ticket);
        if let Err(error) = self.data.unpin(part.inode.ino, 1) {
            log::warn!("inode {} is deleted at the next mount: {error}", part.inode.ino);
        }
    }
}
