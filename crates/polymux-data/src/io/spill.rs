//! Spill: data that does not fit on a tier goes to the next one, block by block (DESIGN section 7).
//!
//! Two cases:
//! * *Tail switch*: the write begins in a block that the file never reached. The file is settled, and another tier owns
//!   everything from that block on. Nothing is replaced, so the record needs no sync of the new tier first.
//! * *Relocation*: the write needs space inside the file (a hole, or an overwrite on a copy-on-write tier). The whole
//!   blocks, old bytes and new, are written to another tier, where a durable pending free covers them, and synced, and only
//!   then the mapping is replaced; the old blocks become a pending free in the same transaction.

use polymux_records::blockmap::Owner;
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::{DisownedRecord, ObjectEntry};
use polymux_tier::Wait;
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Block, TierId};
use polymux_volume::inode::{FileState, Inode, reference_of};
use polymux_volume::sched::Direction;

use super::layout_change::Company;
use super::pending_free_of_blocks;
use super::read::How;
use super::write::{Obstacle, Step, publish_size};
use crate::data_path::DataPath;
use crate::placement::Request;

/// Most bytes relocated at once.
const RELOCATION_BYTES_MAX: usize = 2 * 1024 * 1024;

impl DataPath {
    /// Places the beginning of `data` on another tier.
    ///
    /// Called with the blocks held. All blocks of `data` belong to one run of the map.
    pub(super) fn spill(
        &self,
        inode: &Inode,
        file: &FileState,
        position: u64,
        data: &[u8],
        has_append_lock: bool,
    ) -> Result<Step> {
        if file.is_passed_through() {
            // It stays where it is, and `write_run` tries there again if this freed space.
            self.volume.free_for_writer(self.volume.tiers.room_generation())?;
            return Err(ErrorKind::NoSpace.into());
        }
        let end_block = Block::at_or_after(file.size());
        let first = Block::holding(position);
        let is_tail = first >= end_block;
        // A relocation ends with the file; data beyond the end is a tail switch, in the next round.
        let data = if is_tail {
            data
        } else {
            let limit = (end_block.first_byte() - position).min((RELOCATION_BYTES_MAX as u64) - position % BLOCK_SIZE);
            &data[..data.len().min(usize::try_from(limit).expect("a limit of two MiB fits"))]
        };
        let last = Block::at_or_after(position + data.len() as u64);
        if !has_append_lock && last >= end_block {
            return Ok(Step::Blocked(Obstacle::AppendLock));
        }
        let owner = {
            let layout = file.layout.read();
            layout.owner_of(&layout.map.run_at(first))
        };
        if owner.is_some_and(|(_, entry)| file.is_moving_to(entry.tier)) {
            // Frees that become pending on the target now would be carried out after the mover has brought the same blocks back.
            return Ok(Step::Blocked(Obstacle::Move));
        }
        let request = Request {
            length: data.len() as u64,
            file_end: position + data.len() as u64,
            partial: true,
            except: owner.map(|(_, entry)| entry.tier),
        };
        let mut refusal: Error = ErrorKind::NoSpace.into();
        for candidate in self.place_or_reclaim(inode, &request)? {
            if file.is_moving_to(candidate) {
                return Ok(Step::Blocked(Obstacle::Move));
            }
            let placed = if is_tail {
                self.switch_tail(inode, file, candidate, position, data)
            } else {
                self.relocate(inode, file, candidate, position, data, owner.map(|(_, entry)| entry))
            };
            match placed {
                Ok(count) => return Ok(Step::Wrote(count)),
                // The metadata store refused: no other tier helps.
                Err(error) if matches!(error.kind(), ErrorKind::Store(_)) => return Err(error),
                Err(error) if error.is_out_of_room() => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    /// Gives everything from the block of `position` on to another tier and writes there.
    fn switch_tail(&self, inode: &Inode, file: &FileState, tier: TierId, position: u64, data: &[u8]) -> Result<usize> {
        let handle = self.volume.tiers.by_id(tier)?;
        let taken = handle.take_room(data.len());
        let data = what_fits(taken.left, position, data)?;
        let entry = self.give_tail_to(inode, file, tier, Block::holding(position))?;
        self.write_new_bytes(file, &entry, position, data)
    }

    /// Gives all blocks from `first` on, which the file has not reached yet, to another tier. Called with the append lock
    /// or the barrier held.
    pub(super) fn give_tail_to(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: TierId,
        first: Block,
    ) -> Result<ObjectEntry> {
        if file.is_passed_through() {
            return Err(ErrorKind::NoSpace.into());
        }
        if !is_planted(PlantedFault::SpreadAppendNotSettled) {
            self.settle(inode, file)?;
        }
        self.await_earlier_switch(file, tier)?;
        let entry = self.ensure_object(inode, file, tier)?;
        self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            let slot = layout.slot_on(tier)?;
            file.nodes.mark_map_changed(first..Block::END);
            let change = layout.map.assign(first, Block::END, Owner::Slot(slot));
            layout.extenders = 1 << tier.0;
            transaction.put_map_change(inode.ino, layout, &change);
            Ok(())
        })?;
        Counters::count(&self.volume.counters.tail_switches);
        Ok(entry)
    }

    fn write_new_bytes(&self, file: &FileState, entry: &ObjectEntry, position: u64, data: &[u8]) -> Result<usize> {
        self.wait_for_switch(file, entry.tier, position + data.len() as u64, Wait::Allowed)?;
        let slot = file.layout.read().slot_of(entry.tier);
        if let Some(slot) = slot {
            file.note_unsynced(slot, position, position + data.len() as u64);
        }
        let _changing = file.allocation.changing();
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let count = handle.transfer(
            Direction::Write,
            |count| *count,
            |tier| tier.write(reference_of(entry), position, data, Wait::Allowed),
        )?;
        handle.note_written(count);
        Ok(count)
    }

    /// Moves the blocks of a write to another tier, with the written bytes in them.
    fn relocate(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: TierId,
        position: u64,
        data: &[u8],
        old: Option<ObjectEntry>,
    ) -> Result<usize> {
        let handle = self.volume.tiers.by_id(tier)?;
        let taken = handle.take_room(data.len());
        let data = what_fits(taken.left, position, data)?;
        let (first, last) = (Block::holding(position), Block::at_or_after(position + data.len() as u64));
        let is_last = last >= Block::at_or_after(file.size());
        if is_last {
            // The tail moves along, so the old one must not remain the size authority.
            self.settle(inode, file)?;
        }
        let entry = self.ensure_object(inode, file, tier)?;
        let claim = self.claim_range(inode, &entry, first..last)?;
        // Nothing is written past the daemon to bytes that are copied, until they are mapped where they went.
        let _held_off = file.nodes.outside_users.hold_off();
        let copied = self.copy_for_relocation(inode, file, &entry, old, position, data);
        let owned_end = if is_last { Block::END } else { last };
        let switched = copied.and_then(|()| self.commit_relocation(inode, file, first..owned_end, &claim, old));
        if let Err(error) = switched {
            // No block maps there: the written bytes are a copy that no file owns.
            self.volume.disowned.add(&[claim], inode.last_sequence());
            return Err(error);
        }
        Counters::count(&self.volume.counters.relocations);
        publish_size(file, position + data.len() as u64);
        self.heal(inode, file, position, data.len())?;
        Ok(data.len())
    }

    /// Writes the whole blocks that `data` lies in, old bytes and new ones, and makes them durable.
    fn copy_for_relocation(
        &self,
        inode: &Inode,
        file: &FileState,
        entry: &ObjectEntry,
        old: Option<ObjectEntry>,
        position: u64,
        data: &[u8],
    ) -> Result<()> {
        let data_end = position + data.len() as u64;
        let (first, last) = (Block::holding(position), Block::at_or_after(data_end));
        let content_end = last.first_byte().min(file.size().max(data_end));
        let mut content = vec![0; usize::try_from(content_end - first.first_byte()).expect("two MiB fit")];
        if let Some(old) = &old {
            self.read_part(old, first.first_byte(), &mut content, How::own())?;
        }
        let within = usize::try_from(position - first.first_byte()).expect("less than a block");
        content[within..within + data.len()].copy_from_slice(data);
        let count = self.write_new_bytes(file, entry, first.first_byte(), &content)?;
        if count < content.len() {
            return Err(ErrorKind::NoSpace.into());
        }
        self.sync_object(inode, file, entry)
    }

    /// Records blocks of an object as a pending free, durably, before the first byte is written there: a crash before the
    /// switch leaves a copy that no file owns, which would show through when the file grows over it, and take up space
    /// until then. The record goes with the switch, or is carried out.
    pub(super) fn claim_range(
        &self,
        inode: &Inode,
        entry: &ObjectEntry,
        blocks: std::ops::Range<Block>,
    ) -> Result<DisownedRecord> {
        let claim = DisownedRecord::of_range(entry, blocks.start.first_byte(), blocks.end.first_byte());
        self.volume.transact(&[inode], |transaction| {
            transaction.put_disowned(&claim);
            Ok(())
        })?;
        if let Err(error) = self.volume.flush_inode(inode) {
            // It is in the log all the same.
            self.volume.disowned.add(&[claim], inode.last_sequence());
            return Err(error);
        }
        Ok(claim)
    }

    /// Maps blocks to the tier of a claim that holds them now, and disowns where they were.
    pub(super) fn commit_relocation(
        &self,
        inode: &Inode,
        file: &FileState,
        blocks: std::ops::Range<Block>,
        claim: &DisownedRecord,
        old: Option<ObjectEntry>,
    ) -> Result<()> {
        let disowned = old.map(|old| pending_free_of_blocks(&old, blocks.clone()));
        self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            let slot = layout.slot_on(claim.tier)?;
            file.nodes.mark_map_changed(blocks.clone());
            let change = layout.map.assign(blocks.start, blocks.end, Owner::Slot(slot));
            if blocks.end == Block::END {
                layout.extenders = 1 << claim.tier.0;
            }
            transaction.put_map_change(inode.ino, layout, &change);
            transaction.delete_disowned(claim);
            if let Some(record) = &disowned {
                transaction.put_disowned(record);
            }
            Ok(())
        })?;
        if let Some(record) = disowned {
            self.volume.disowned.add(&[record], inode.last_sequence());
        }
        Ok(())
    }
}

/// The prefix of `data` that fits into `headroom` bytes, cut at a block boundary.
fn what_fits(headroom: u64, position: u64, data: &[u8]) -> Result<&[u8]> {
    let whole = Block::at_or_after(position + data.len() as u64) - Block::holding(position);
    if Block::bytes_of(whole) <= headroom {
        return Ok(data);
    }
    let end = (Block::holding(position) + Block::whole_in(headroom)).first_byte();
    match usize::try_from(end.saturating_sub(position)) {
        Ok(length) if length > 0 => Ok(&data[..length.min(data.len())]),
        _ => Err(ErrorKind::NoSpace.into()),
    }
}
