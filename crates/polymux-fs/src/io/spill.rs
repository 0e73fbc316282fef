//! Spill: what a tier has no room for goes to the next one, block by block (DESIGN section 7).
//!
//! Two cases:
//! * *Tail switch*: the write begins in a block that the file never reached. The file is settled, and another tier owns
//!   everything from that block on. Nothing is replaced, so the record needs no sync of the new tier first.
//! * *Relocation*: the write needs room inside the file (a hole, or an overwrite on a copy-on-write tier). The whole
//!   blocks, old bytes and new, are written to another tier and synced, and only then the mapping is replaced; the old
//!   bytes are disowned in the same transaction.

use std::sync::atomic::Ordering;

use polymux_tier::Wait;
use polymux_types::TierId;
use polymux_types::limits::BLOCK_SIZE;

use super::layout_change::Company;
use super::write::{Obstacle, Step, publish_size};
use super::{block_after, block_of, start_of};
use crate::blockmap::{END, Owner};
use crate::core::Core;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{FileState, Inode, reference_of};
use crate::placement::Request;
use crate::sched::Direction;
use crate::store::{DisownedKind, DisownedRecord, ObjectEntry};

/// Most bytes relocated at once.
const RELOCATION_BYTES_MAX: usize = 2 * 1024 * 1024;

impl Core {
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
        let end_block = block_after(file.size());
        let first = block_of(position);
        let is_tail = first >= end_block;
        // A relocation ends with the file; what lies beyond is a tail switch, in the next round.
        let data = if is_tail {
            data
        } else {
            let limit = (start_of(end_block) - position).min((RELOCATION_BYTES_MAX as u64) - position % BLOCK_SIZE);
            &data[..data.len().min(usize::try_from(limit).expect("a limit of two MiB fits"))]
        };
        let last = block_after(position + data.len() as u64);
        if !has_append_lock && last >= end_block {
            return Ok(Step::Blocked(Obstacle::AppendLock));
        }
        let owner = {
            let layout = file.layout.read();
            match layout.map.run_at(first).owner {
                Some(Owner::Slot(slot)) => Some((slot, layout.object(slot))),
                Some(Owner::Hole) | None => None,
            }
        };
        if owner.is_some_and(|(_, entry)| file.is_moving_to(entry.tier)) {
            // What is disowned on the target now would be freed when the mover has brought the same blocks back.
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
        let data = self.what_fits(tier, position, data)?;
        let entry = self.give_tail_to(inode, file, tier, block_of(position))?;
        self.write_new_bytes(file, &entry, position, data)
    }

    /// Gives all blocks from `first` on, which the file has not reached yet, to another tier. Called with the append lock
    /// or the barrier held.
    pub(super) fn give_tail_to(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: TierId,
        first: u64,
    ) -> Result<ObjectEntry> {
        self.settle(inode, file)?;
        let entry = self.ensure_object(inode, file, tier)?;
        self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            let slot = layout.slot_on(tier)?;
            file.nodes.mark_map_changed(first..END);
            let change = layout.map.assign(first, END, Owner::Slot(slot));
            layout.extenders = 1 << tier.0;
            transaction.put_map_change(inode.ino, &change);
            Ok(())
        })?;
        Counters::count(&self.counters.tail_switches);
        Ok(entry)
    }

    fn write_new_bytes(&self, file: &FileState, entry: &ObjectEntry, position: u64, data: &[u8]) -> Result<usize> {
        let slot = file.layout.read().slot_of(entry.tier);
        if let Some(slot) = slot {
            file.note_unsynced(slot, position, position + data.len() as u64);
        }
        file.blocks_stale.store(true, Ordering::Release);
        let handle = self.tiers.by_id(entry.tier)?;
        let count = handle.transfer(
            Direction::Write,
            |count| *count,
            |tier| tier.write(reference_of(entry), position, data, Wait::Allowed),
        )?;
        handle.note_written(count);
        Ok(count)
    }

    /// As much of `data` as a tier has room for, cut at a block.
    fn what_fits<'a>(&self, tier: TierId, position: u64, data: &'a [u8]) -> Result<&'a [u8]> {
        let headroom = self.tiers.by_id(tier)?.headroom();
        let whole = block_after(position + data.len() as u64) - block_of(position);
        if start_of(whole) <= headroom {
            return Ok(data);
        }
        let end = start_of(block_of(position) + block_of(headroom));
        match usize::try_from(end.saturating_sub(position)) {
            Ok(length) if length > 0 => Ok(&data[..length.min(data.len())]),
            _ => Err(ErrorKind::NoSpace.into()),
        }
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
        let data = self.what_fits(tier, position, data)?;
        let (first, last) = (block_of(position), block_after(position + data.len() as u64));
        let is_last = last >= block_after(file.size());
        if is_last {
            // The tail moves along, so the old one must not be an extender any more.
            self.settle(inode, file)?;
        }
        let entry = self.ensure_object(inode, file, tier)?;
        let content_end = start_of(last).min(file.size().max(position + data.len() as u64));
        let mut content = vec![0; usize::try_from(content_end - start_of(first)).expect("two MiB fit")];
        if let Some(old) = &old {
            self.read_part(old, start_of(first), &mut content, Wait::Allowed)?;
        }
        let within = usize::try_from(position - start_of(first)).expect("less than a block");
        content[within..within + data.len()].copy_from_slice(data);
        let count = self.write_new_bytes(file, &entry, start_of(first), &content)?;
        if count < content.len() {
            // Nothing maps here yet: what was written is a copy that nobody owns.
            self.disown_copy(inode, &entry, start_of(first), start_of(first) + count as u64)?;
            return Err(ErrorKind::NoSpace.into());
        }
        let slot = file.layout.read().slot_on(tier)?;
        if let Err(error) = self.sync_slot(inode, file, slot, &entry) {
            self.disown_copy(inode, &entry, start_of(first), start_of(last))?;
            return Err(error);
        }
        self.commit_relocation(inode, file, (first, if is_last { END } else { last }), &entry, old)?;
        Counters::count(&self.counters.relocations);
        publish_size(file, position + data.len() as u64);
        self.heal(inode, file, position, data.len())?;
        Ok(data.len())
    }

    pub(super) fn commit_relocation(
        &self,
        inode: &Inode,
        file: &FileState,
        blocks: (u64, u64),
        entry: &ObjectEntry,
        old: Option<ObjectEntry>,
    ) -> Result<()> {
        let (first, last) = blocks;
        let disowned = old.map(|old| DisownedRecord {
            tier: old.tier,
            object: old.object,
            bucket: old.bucket,
            start: start_of(first),
            kind: if last == END { DisownedKind::Tail } else { DisownedKind::Range { end: start_of(last) } },
        });
        self.change_layout(inode, file, Company::Writers, |transaction, layout| {
            let slot = layout.slot_on(entry.tier)?;
            file.nodes.mark_map_changed(first..last);
            let change = layout.map.assign(first, last, Owner::Slot(slot));
            if last == END {
                layout.extenders = 1 << entry.tier.0;
            }
            transaction.put_map_change(inode.ino, &change);
            if let Some(record) = &disowned {
                transaction.put_disowned(record);
            }
            Ok(())
        })?;
        if let Some(record) = disowned {
            self.disowned.add(&[record], inode.last_sequence());
        }
        Ok(())
    }

    /// A copy that was given up: its bytes on the target are nobody's.
    fn disown_copy(&self, inode: &Inode, entry: &ObjectEntry, start: u64, end: u64) -> Result<()> {
        if start == end {
            return Ok(());
        }
        let record = DisownedRecord {
            tier: entry.tier,
            object: entry.object,
            bucket: entry.bucket,
            start,
            kind: DisownedKind::Range { end: end.next_multiple_of(BLOCK_SIZE) },
        };
        self.transact(&[inode], |transaction| {
            transaction.put_disowned(&record);
            Ok(())
        })?;
        self.disowned.add(&[record], inode.last_sequence());
        Ok(())
    }
}
