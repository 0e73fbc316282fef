//! `fallocate`: reserve space, punch holes, zero ranges. Each form is a barrier on the file.
//!
//! Punching and zeroing keep the map and go straight to the owners of the blocks; no other tier is involved.

use std::sync::atomic::Ordering;

use polymux_records::attributes::AllocateKind;
use polymux_records::blockmap::Owner;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::{AllocateMode, SeekTarget, TierError, Wait};
use polymux_types::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use polymux_types::{Block, Errno};
use polymux_volume::inode::{FileState, Inode, reference_of};

use super::spread::SpreadReservation;
use crate::data_path::DataPath;
use crate::placement::Request;

static ZEROS: [u8; 65_536] = [0; 65_536];

/// A part of the range that one object owns.
pub(super) struct Part {
    pub(super) slot: u8,
    pub(super) entry: ObjectEntry,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl DataPath {
    /// Carries out one form of `fallocate`. The offset and length were checked to be positive and below the limit.
    pub fn allocate_file(
        &self,
        inode: &Inode,
        file: &FileState,
        offset: u64,
        length: u64,
        kind: AllocateKind,
    ) -> Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        self.ensure_size(inode, file)?;
        let _alone = file.lock_alone();
        let _append = file.append.lock();
        self.see_direct_changes(inode, file)?;
        let _changing = file.allocation.changing();
        if file.is_inline() && file.size() > 0 {
            let only_zeroes = match kind {
                AllocateKind::PunchHole => true,
                AllocateKind::ZeroRange | AllocateKind::ZeroRangeKeepSize => end <= file.size(),
                AllocateKind::Extend | AllocateKind::KeepSize => false,
            };
            if only_zeroes {
                return self.zero_inline(inode, file, offset, end).map(|_| ());
            }
            // Space is reserved on a tier for later writes.
            let request = Request { length: end.max(file.size()), file_end: end, partial: false, except: None };
            self.ensure_home(inode, file, &request)?;
        }
        match kind {
            AllocateKind::PunchHole => self.punch_range(inode, file, offset, end.min(file.size())),
            AllocateKind::Extend => self.reserve_and_extend(inode, file, offset, end),
            AllocateKind::KeepSize => self.reserve(inode, file, offset, end),
            // The space is reserved first: without it no byte changes.
            AllocateKind::ZeroRange => {
                let old_size = file.size();
                self.reserve_and_extend(inode, file, offset, end)?;
                self.zero_range(inode, file, offset, end.min(old_size))
            }
            AllocateKind::ZeroRangeKeepSize => {
                self.reserve(inode, file, offset, end)?;
                self.zero_range(inode, file, offset, end.min(file.size()))
            }
        }
    }

    pub(super) fn parts(&self, file: &FileState, start: u64, end: u64) -> Vec<Part> {
        if start >= end {
            return Vec::new();
        }
        let layout = file.layout.read();
        let runs = layout.map.runs(Block::holding(start), Block::at_or_after(end));
        let part = |run: &polymux_records::blockmap::Run| match run.owner {
            Some(Owner::Slot(slot)) => Some(Part {
                slot,
                entry: layout.object(slot),
                start: start.max(run.start.first_byte()),
                end: end.min(run.end.first_byte()),
            }),
            Some(Owner::Hole) | None => None,
        };
        runs.iter().filter_map(part).collect()
    }

    pub(super) fn punch_range(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Result<()> {
        for part in self.parts(file, start, end) {
            let handle = self.volume.tiers.by_id(part.entry.tier)?;
            let reference = reference_of(&part.entry);
            file.note_unsynced(part.slot, part.start, part.end);
            let tier = handle.get()?;
            match tier.punch(reference, part.start, part.end - part.start) {
                Err(TierError::Unsupported(_)) => self.write_zeros(&part)?,
                other => other.map_err(|error| handle.note_error(error))?,
            }
        }
        if start < end {
            self.heal(inode, file, start, usize::try_from(end - start).unwrap_or(usize::MAX))?;
        }
        Ok(())
    }

    /// Zeros a reserved range and keeps the reservation.
    fn zero_range(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Result<()> {
        for part in self.parts(file, start, end) {
            let handle = self.volume.tiers.by_id(part.entry.tier)?;
            file.note_unsynced(part.slot, part.start, part.end);
            let length = part.end - part.start;
            match handle.get()?.allocate(reference_of(&part.entry), part.start, length, AllocateMode::Zero) {
                Err(TierError::Unsupported(_)) => self.write_zeros(&part)?,
                other => other.map_err(|error| handle.note_error(error))?,
            }
        }
        if start < end {
            self.heal(inode, file, start, usize::try_from(end - start).unwrap_or(usize::MAX))?;
        }
        Ok(())
    }

    fn write_zeros(&self, part: &Part) -> Result<()> {
        let handle = self.volume.tiers.by_id(part.entry.tier)?;
        let mut position = part.start;
        while position < part.end {
            let length = usize::try_from(part.end - position).unwrap_or(usize::MAX).min(ZEROS.len());
            let reference = reference_of(&part.entry);
            position += handle.run(|tier| tier.write(reference, position, &ZEROS[..length], Wait::Allowed))? as u64;
        }
        Ok(())
    }

    /// Checks that all tiers together have space for a range, and reserves that of its part within the file. Returns the request for a place, and the
    /// end of that part.
    fn reserve_inside(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Result<(Request, u64)> {
        self.check_room_for_all(file, start, end)?;
        let request = Request { length: end - start, file_end: end, partial: false, except: None };
        self.ensure_home(inode, file, &request)?;
        let inside = end.min(Block::at_or_after(file.size()).first_byte());
        for part in self.parts(file, start, inside) {
            self.reserve_part(inode, file, &part)?;
        }
        Ok((request, inside))
    }

    /// Reserves space without changing the size. Beyond the end, one tier must take all of it.
    fn reserve(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Result<()> {
        let (request, inside) = self.reserve_inside(inode, file, start, end)?;
        let start = start.max(inside);
        if start >= end {
            return Ok(());
        }
        let bytes = end - start;
        if self.tail_headroom(file)? < bytes {
            let candidates =
                self.place_with_room(inode, &Request { length: bytes, partial: true, ..request }, bytes)?;
            let tier = *candidates.first().ok_or(ErrorKind::NoSpace)?;
            // The space freed meanwhile may be on the tier of the end.
            if self.tail_headroom(file)? < bytes {
                self.give_tail_to(inode, file, tier, Block::at_or_after(file.size()))?;
            }
        }
        for part in self.parts(file, start, end) {
            self.reserve_part(inode, file, &part)?;
        }
        // Growing writes up to there stay on the tier of the end of the file, which has the space.
        file.spreading.reserved_end.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    /// Reserves space and extends the file, on several tiers where its policy spreads growth; otherwise a part that does not fit on one
    /// tier goes to the next.
    fn reserve_and_extend(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Result<()> {
        let (request, inside) = self.reserve_inside(inode, file, start, end)?;
        if end <= file.size() {
            return Ok(());
        }
        let mut position = start.max(inside);
        if self.reserve_spread(inode, file, position, end)? == SpreadReservation::Made {
            return Ok(());
        }
        while position < end {
            let mut room = Block::bytes_of(Block::whole_in(self.tail_headroom(file)?));
            if room < (end - position).min(BLOCK_SIZE) {
                let rest = Request { length: end - position, partial: true, ..request };
                let tier = *self.place_or_reclaim(inode, &rest)?.first().ok_or(ErrorKind::NoSpace)?;
                self.extend_to_block(inode, file, position)?;
                self.give_tail_to(inode, file, tier, Block::at_or_after(file.size()))?;
                room = Block::bytes_of(Block::whole_in(self.tail_headroom(file)?));
                if room == 0 {
                    return Err(ErrorKind::NoSpace.into());
                }
            }
            let part_end = end.min(Block::at_or_after(position).first_byte().max(position).saturating_add(room));
            for part in self.parts(file, position, part_end) {
                self.reserve_part(inode, file, &part)?;
            }
            self.extend(inode, file, part_end)?;
            position = part_end;
        }
        if file.size() < end { self.extend(inode, file, end) } else { Ok(()) }
    }

    fn extend_to_block(&self, inode: &Inode, file: &FileState, position: u64) -> Result<()> {
        if file.size() < position { self.extend(inode, file, position) } else { Ok(()) }
    }

    /// Fails before anything is reserved if all tiers together have too little free space.
    fn check_room_for_all(&self, file: &FileState, start: u64, end: u64) -> Result<()> {
        let room = self.volume.tiers.all().iter().map(|tier| tier.headroom()).fold(0_u64, u64::saturating_add);
        if end - start <= room || self.volume.disowned.is_freeing_anything() {
            return Ok(());
        }
        let mut new = end.saturating_sub(start.max(file.size()));
        for part in self.parts(file, start, end.min(file.size())) {
            new += self.hole_bytes(&part.entry, part.start, part.end, room)?;
        }
        if new > room { Err(ErrorKind::NoSpace.into()) } else { Ok(()) }
    }

    /// Bytes of a range that are not allocated in an object yet, counted until they exceed `enough`.
    fn hole_bytes(&self, entry: &ObjectEntry, start: u64, end: u64, enough: u64) -> Result<u64> {
        let (mut position, mut bytes) = (start, 0);
        while position < end && bytes <= enough {
            let Some(hole) = self.seek_object(entry, position, end, SeekTarget::Hole)?.filter(|hole| *hole < end)
            else {
                break;
            };
            let data = self.seek_object(entry, hole, end, SeekTarget::Data)?.unwrap_or(end).min(end);
            bytes += (data - hole).saturating_sub(self.reserved_bytes(entry, hole, data)?);
            position = data;
        }
        Ok(bytes)
    }

    /// Bytes of a hole of an object that are allocated nevertheless.
    fn reserved_bytes(&self, entry: &ObjectEntry, start: u64, end: u64) -> Result<u64> {
        let (mut position, mut bytes) = (start, 0);
        while position < end {
            let Some(reserved) = self.allocated_in(entry, position..end)?.filter(|reserved| !reserved.is_empty())
            else {
                break;
            };
            bytes += reserved.end - reserved.start;
            position = reserved.end;
        }
        Ok(bytes)
    }

    /// Reserves space for a part on the tier that owns it. Holes that do not fit on that tier go to another one.
    fn reserve_part(&self, inode: &Inode, file: &FileState, part: &Part) -> Result<()> {
        match self.reserve_on(file, part.slot, &part.entry, part.start, part.end) {
            Err(error) if error.is_out_of_room() => self.reserve_holes(inode, file, part),
            other => other,
        }
    }

    pub(super) fn reserve_on(
        &self,
        file: &FileState,
        slot: u8,
        entry: &ObjectEntry,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        // Asked first: a file system gives all that it has, the reserve too, before it says that it is not enough.
        let room = handle.headroom().saturating_add(BLOCK_SIZE);
        if end - start > room && self.hole_bytes(entry, start, end, room)? > room {
            return Err(ErrorKind::NoSpace.into());
        }
        file.note_unsynced(slot, start, end);
        handle.run(|tier| tier.allocate(reference_of(entry), start, end - start, AllocateMode::KeepSize))?;
        handle.note_written(usize::try_from(end - start).unwrap_or(usize::MAX));
        Ok(())
    }

    /// Reserves the holes of a part one by one, on other tiers if needed. Ranges with data are allocated already.
    fn reserve_holes(&self, inode: &Inode, file: &FileState, part: &Part) -> Result<()> {
        let mut position = part.start;
        while position < part.end {
            let hole = self.seek_object(&part.entry, position, part.end, SeekTarget::Hole)?;
            let Some(hole) = hole.map(|hole| Block::at_or_after(hole).first_byte().max(position)) else {
                return Ok(());
            };
            if hole >= part.end {
                return Ok(());
            }
            let reserved = self.allocated_in(&part.entry, hole..part.end)?;
            let reaches = |end: u64| end >= part.end || Block::holding(end) > Block::holding(hole);
            if let Some(reserved) = reserved.filter(|reserved| reserved.start == hole && reaches(reserved.end)) {
                position = if reserved.end >= part.end { part.end } else { Block::holding(reserved.end).first_byte() };
                continue;
            }
            // A block of which the tier holds a part (its blocks may be smaller than ours) is no hole to be given away.
            let data =
                self.seek_object(&part.entry, hole, Block::at_or_after(part.end).first_byte(), SeekTarget::Data)?;
            if data.is_some_and(|data| Block::holding(data) == Block::holding(hole)) {
                let next = (Block::holding(hole) + 1).first_byte().min(part.end);
                self.reserve_on(file, part.slot, &part.entry, hole, next)?;
                position = next;
                continue;
            }
            let end = data.map_or(part.end, |data| Block::holding(data).first_byte()).min(part.end);
            match self.reserve_on(file, part.slot, &part.entry, hole, end) {
                Err(error) if error.is_out_of_room() => self.move_hole(inode, file, &part.entry, hole, end)?,
                other => other?,
            }
            position = end;
        }
        Ok(())
    }

    /// Gives a hole of a file to tiers with enough free space and reserves it there. The hole begins at a block.
    fn move_hole(&self, inode: &Inode, file: &FileState, owner: &ObjectEntry, start: u64, end: u64) -> Result<()> {
        let on_owner = |position| {
            let slot = file.layout.read().slot_on(owner.tier)?;
            self.reserve_on(file, slot, owner, position, end)
        };
        let mut position = Block::holding(start).first_byte();
        if file.is_passed_through() {
            self.volume.free_for_writer(self.volume.tiers.room_generation())?;
            return on_owner(position);
        }
        while position < end {
            let request = Request { length: end - position, file_end: end, partial: true, except: Some(owner.tier) };
            let Some(tier) = self.place_or_reclaim(inode, &request)?.first().copied() else {
                // Pending frees have been carried out by now, on the owner too.
                return on_owner(position);
            };
            let room = Block::bytes_of(Block::whole_in(self.volume.tiers.by_id(tier)?.headroom()));
            if room == 0 {
                return Err(ErrorKind::NoSpace.into());
            }
            let part_end = Block::at_or_after(end).first_byte().min(position.saturating_add(room));
            let entry = self.ensure_object(inode, file, tier)?;
            let slot = file.layout.read().slot_on(tier)?;
            // Bytes left there by a failed attempt must not show through the hole.
            let length = part_end - position;
            let blocks = Block::holding(position)..Block::holding(part_end);
            let claim = self.claim_range(inode, &entry, blocks.clone())?;
            let placed = self
                .volume
                .tiers
                .by_id(tier)?
                .run(|tier| tier.punch(reference_of(&entry), position, length))
                .and_then(|()| self.reserve_on(file, slot, &entry, position, part_end))
                .and_then(|()| self.commit_relocation(inode, file, blocks, &claim, Some(*owner)));
            if let Err(error) = placed {
                self.volume.disowned.add(&[claim], inode.last_sequence());
                return Err(error);
            }
            position = part_end;
        }
        Ok(())
    }

    fn tail_headroom(&self, file: &FileState) -> Result<u64> {
        let layout = file.layout.read();
        let Some(slot) = layout.tail_slot() else { return Ok(0) };
        Ok(self.volume.tiers.by_id(layout.object(slot).tier)?.headroom())
    }
}
