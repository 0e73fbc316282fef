//! Copying the bytes of a part, holes kept, in requests that the devices of others hardly notice.
//!
//! Invariants: a block is read from the tier that owns it now, and written at the same offset of the target (M7). No lock
//! is held; a block that changes during the copy is dirty and copied again.
//!
//! Both devices work at the same time although one thread copies: while a request is written back, the one after it is
//! brought into memory. A mover never has more than two requests on their way to a device: other users of the device
//! wait for no more, and how long a request takes is seen where it is waited for.

use std::ops::Range;
use std::os::fd::OwnedFd;

use polymux_records::counters::Counters;
use polymux_records::store::ObjectEntry;
use polymux_tier::{AllocateMode, SeekTarget, TierError, Wait};
use polymux_types::Block;
use polymux_types::limits::BLOCK_SIZE;
use polymux_volume::inode::reference_of;
use polymux_volume::sched::{Direction, Sizing};
use polymux_volume::space::{PendingSync, SyncTarget, TierHandle};

use super::interrupt::Interrupt;
use super::pace::{MoveRequest, StopRule};
use super::part::{Gaps, Part, WriteBehind};
use crate::Mover;

/// Bytes behind data that a file system may have taken ahead of growth (XFS), and that no program reserved: they do not move.
const TAKEN_AHEAD_MAX: u64 = 256 << 10;

type Outcome<T> = std::result::Result<T, Interrupt>;

/// Waits until a request is on the device.
fn wait_for(to: &TierHandle, behind: Option<WriteBehind>) {
    if let (Some(WriteBehind { target, offset, length }), Some(tier)) = (behind, to.present()) {
        tier.wait_for_write_back(reference_of(&target), offset, length);
    }
}

/// A description of the source, where both tiers lie on one file system.
fn shared_source(from: &TierHandle, to: &TierHandle, source: &ObjectEntry) -> Option<OwnedFd> {
    let (from, to) = (from.present()?, to.present()?);
    let is_one = from.capabilities().device == to.capabilities().device;
    if is_one { from.share_for_copy(reference_of(source)) } else { None }
}

impl Mover {
    /// Copies the migrated data of some blocks.
    pub(crate) fn copy_blocks(&self, part: &mut Part, blocks: &Range<Block>, rule: StopRule) -> Outcome<()> {
        let size = part.file().size();
        let runs = {
            let layout = part.file().layout.read();
            part.selection().runs(&layout, std::slice::from_ref(blocks), size)
        };
        for (run, source) in runs {
            let end = run.end.min(blocks.end).first_byte().min(size);
            self.copy_range_of_part(part, &source, run.start.first_byte()..end, rule)?;
        }
        Ok(())
    }

    fn copy_range_of_part(
        &self,
        part: &mut Part,
        source: &ObjectEntry,
        range: Range<u64>,
        rule: StopRule,
    ) -> Outcome<()> {
        let mut position = range.start;
        while position < range.end {
            let data = self.next_data(source, position..range.end)?.unwrap_or(range.end..range.end);
            self.keep_reserved(part, source, position..data.start, rule)?;
            self.copy_data(part, source, data.clone(), rule)?;
            position = data.end;
        }
        Ok(())
    }

    /// Space that a program reserved in a hole of the source, and has not written, is reserved on the target, too.
    fn keep_reserved(&self, part: &Part, source: &ObjectEntry, hole: Range<u64>, rule: StopRule) -> Outcome<()> {
        let (from, to) = (self.volume.tiers.by_id(source.tier)?, self.volume.tiers.by_id(part.target.tier)?);
        let takes_ahead = from.get()?.capabilities().allocates_ahead;
        let mut position = hole.start;
        while position < hole.end {
            if self.is_stopped(part, rule) {
                return Err(Interrupt::Stopped);
            }
            let Some(reserved) = self.data.allocated_in(source, position..hole.end)? else { return Ok(()) };
            position = reserved.end;
            let length = reserved.end - reserved.start;
            // Behind appended data lie blocks that the file system preallocated by itself, or that growth reserved.
            if takes_ahead && reserved.start == hole.start && length <= TAKEN_AHEAD_MAX {
                continue;
            }
            // It was copied before, and something else of it changed since.
            if self.data.allocated_in(&part.target, reserved.clone())?.is_some_and(|held| held == reserved) {
                continue;
            }
            if to.headroom() < length {
                return Err(Interrupt::NoRoom(to.id));
            }
            match to.get()?.allocate(reference_of(&part.target), reserved.start, length, AllocateMode::KeepSize) {
                // A file system without reservation keeps no space, and reservations on other tiers need none there.
                Err(TierError::Unsupported(_)) => return Ok(()),
                other => other.map_err(|error| Interrupt::of(to.note_error(error), to.id))?,
            }
            to.note_written(usize::try_from(length).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    /// The first run of data in a range of an object, in whole blocks; `None` where only a hole is left.
    fn next_data(&self, source: &ObjectEntry, range: Range<u64>) -> Outcome<Option<Range<u64>>> {
        let handle = self.volume.tiers.by_id(source.tier)?;
        let seek = |from, target| match handle.get()?.seek(reference_of(source), from, target) {
            // Who cannot tell holes from data has data.
            Err(TierError::Unsupported(_)) if target == SeekTarget::Data => Ok(Some(from)),
            Err(TierError::Unsupported(_)) => Ok(None),
            found => found.map_err(|error| handle.note_error(error)),
        };
        let Some(start) = seek(range.start, SeekTarget::Data)?.filter(|start| *start < range.end) else {
            return Ok(None);
        };
        let start = Block::holding(start).first_byte().max(range.start);
        // The next hole begins behind the block that data was found in.
        let end = seek((start + BLOCK_SIZE).min(range.end), SeekTarget::Hole)?.unwrap_or(range.end);
        Ok(Some(start..end.next_multiple_of(BLOCK_SIZE).min(range.end)))
    }

    fn copy_data(&self, part: &mut Part, source: &ObjectEntry, data: Range<u64>, rule: StopRule) -> Outcome<()> {
        let (from, to) = (self.volume.tiers.by_id(source.tier)?, self.volume.tiers.by_id(part.target.tier)?);
        let mut buffer = Vec::new();
        let mut shared = shared_source(&from, &to, source);
        let mut position = data.start;
        while position < data.end {
            if self.is_stopped(part, rule) {
                return Err(Interrupt::Stopped);
            }
            let (request_bytes, sizing) = self.request_bytes(&from, &to, part.pace.get());
            let length = (data.end - position).min(request_bytes);
            if let Some(descriptor) = &shared {
                let copied =
                    self.copy_on_file_system(part, &to, descriptor, position..position + length, sizing, rule)?;
                position += copied;
                // A short result means the end of the source, no space, or no support: the ordinary copy finds out which.
                shared = shared.filter(|_| copied == length);
                continue;
            }
            buffer.resize(usize::try_from(length).expect("a request fits into memory"), 0);
            let request = MoveRequest { direction: Direction::Read, bytes: length, sizing };
            let count = self.paced(part, &from, request, rule, |from| {
                Ok(from.run(|tier| tier.read(reference_of(source), position, &mut buffer, Wait::Allowed))?)
            })?;
            let next = position + length;
            self.read_ahead(&from, source, next..data.end.min(next + length));
            // The rest lies beyond the end of the source's object: a hole, unless that was longer when the part began.
            if (count as u64) < length {
                self.data.check_object_end(source, position + count as u64, Wait::Allowed)?;
            }
            let filled = &buffer[..count];
            let (target, behind, gaps) = (part.target, part.behind.take(), part.gaps);
            let request = MoveRequest { direction: Direction::Write, bytes: count as u64, sizing };
            self.paced(part, &to, request, rule, |to| {
                self.write_to_target(&target, gaps, to, position, filled)?;
                wait_for(to, behind);
                Ok(())
            })?;
            part.behind = Some(WriteBehind { target, offset: position, length: count as u64 });
            part.bytes_copied += count as u64;
            part.arrived.add(count as u64);
            position += length;
        }
        Ok(())
    }

    /// Lets the file system that both tiers lie on copy a range, or share it. Returns how many bytes it did.
    fn copy_on_file_system(
        &self,
        part: &mut Part,
        to: &TierHandle,
        source: &OwnedFd,
        range: Range<u64>,
        sizing: Sizing,
        rule: StopRule,
    ) -> Outcome<u64> {
        let length = range.end - range.start;
        if to.headroom() < length {
            return Err(Interrupt::NoRoom(to.id));
        }
        let target = reference_of(&part.target);
        let request = MoveRequest { direction: Direction::Write, bytes: length, sizing };
        let copied = self.paced(part, to, request, rule, |to| {
            match to.get()?.copy_within_file_system(target, range.start, length, source) {
                Err(TierError::Unsupported(_)) => Ok(0),
                other => other.map_err(|error| Interrupt::of(to.note_error(error), to.id)),
            }
        })?;
        to.note_written(usize::try_from(copied).unwrap_or(usize::MAX));
        part.bytes_copied += copied;
        part.arrived.add(copied);
        Counters::add(&self.volume.counters.bytes_moved, usize::try_from(copied).unwrap_or(usize::MAX));
        Counters::add(&self.volume.counters.bytes_offloaded, usize::try_from(copied).unwrap_or(usize::MAX));
        Ok(copied)
    }

    /// Brings the beginning of a range that is read next into memory, where that delays no foreground request.
    pub(crate) fn read_ahead(&self, from: &TierHandle, source: &ObjectEntry, range: Range<u64>) {
        if range.is_empty() || from.speed.schedule.foreground_is_active(self.volume.clock.elapsed()) {
            return;
        }
        if let Some(tier) = from.present() {
            tier.read_ahead(reference_of(source), range.start, range.end - range.start);
        }
    }

    /// As [`Self::read_ahead`], for the first bytes of a part.
    pub(crate) fn read_ahead_part(&self, part: &Part) {
        let size = part.file().size();
        let first = {
            let layout = part.file().layout.read();
            let blocks = part.ranges.first().map(std::slice::from_ref).unwrap_or_default();
            part.selection().runs(&layout, blocks, size).into_iter().next()
        };
        let Some((run, source)) = first else { return };
        let (Ok(from), Ok(to)) = (self.volume.tiers.by_id(source.tier), self.volume.tiers.by_id(part.target.tier))
        else {
            return;
        };
        // Nothing is read ahead beside programs, and alone requests have their full size.
        let first_bytes = from.speed.schedule.request_bytes().min(to.speed.schedule.request_bytes());
        let start = run.start.first_byte();
        let end = run.end.min(Block::at_or_after(size)).first_byte().min(start + first_bytes);
        self.read_ahead(&from, &source, start..end.max(start));
    }

    fn write_to_target(
        &self,
        target: &ObjectEntry,
        gaps: Gaps,
        to: &TierHandle,
        position: u64,
        data: &[u8],
    ) -> Outcome<()> {
        if data.is_empty() {
            return Ok(());
        }
        if to.headroom() < data.len() as u64 {
            return Err(Interrupt::NoRoom(to.id));
        }
        let reference = reference_of(target);
        if gaps == Gaps::Follow && to.get()?.capabilities().allocates_ahead {
            // The write would allocate more space than that behind the copy, and keep it where the next one leaves a gap. Where that fails
            // the write finds out why.
            let length = data.len() as u64;
            if let Err(error) = to.run(|tier| tier.allocate(reference, position, length, AllocateMode::KeepSize)) {
                log::debug!("tier `{}`: no room is made ahead of a copy: {error}", to.name);
            }
        }
        let mut written = 0;
        while written < data.len() {
            let offset = position + written as u64;
            let wrote = to.run(|tier| tier.write(reference, offset, &data[written..], Wait::Allowed));
            let count = wrote.map_err(|error| Interrupt::of(error, to.id))?;
            to.note_written(count);
            written += count;
        }
        to.run(|tier| {
            tier.begin_write_back(reference, position, data.len() as u64);
            Ok(())
        })?;
        Counters::add(&self.volume.counters.bytes_moved, data.len());
        Ok(())
    }

    /// Makes the copies of several parts durable, side by side.
    pub(crate) fn sync_parts(&self, parts: &mut [&mut Part]) -> Vec<Outcome<()>> {
        let mut pending = Vec::with_capacity(parts.len());
        for part in parts.iter() {
            let file = part.file();
            let gate = file.durability.sync_gate.read();
            let slot = file.layout.read().slot_of(part.target.tier);
            let written = slot.and_then(|slot| file.take_unsynced(slot));
            let sync = self.volume.tiers.by_id(part.target.tier).map(|handle| {
                let target = SyncTarget::Object(reference_of(&part.target));
                handle.shared().map(|tier| self.data.sync_pool.begin(tier, target))
            });
            pending.push((gate, slot, written, sync));
        }
        let mut outcomes = Vec::with_capacity(parts.len());
        for (part, (gate, slot, written, sync)) in parts.iter().zip(pending) {
            let synced = sync.map(|sync| sync.map(PendingSync::wait));
            let outcome = synced.map_err(Interrupt::from).and_then(|synced| match (synced, slot, written) {
                (Some(Ok(())), ..) => Ok(()),
                // Bytes of the file itself were among those that may be lost.
                (synced, Some(slot), Some(written)) => {
                    Ok(self.data.note_synced(&part.inode, part.file(), slot, part.target, Some(written), synced)?)
                }
                (Some(Err(error)), ..) => Err(self.volume.tiers.by_id(part.target.tier)?.note_error(error).into()),
                (None, ..) => Err(Interrupt::Offline(part.target.tier)),
            });
            drop(gate);
            outcomes.push(outcome);
        }
        outcomes
    }
}
