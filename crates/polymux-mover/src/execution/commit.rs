//! Validation and switch of a part (M10): data written meanwhile is copied again, and the map changes in one
//! transaction.
//!
//! Invariants:
//! * A small file that a part holds as a whole is switched under its barrier held alone, and its old object goes in the
//!   same transaction. Of a larger one only the nodes of the part are closed, and the append lock is held where the part
//!   holds the end of the file.
//! * The transaction is appended after the last sync of the target succeeded, and only if no sync of the file, by any
//!   caller, failed since the copy began.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_data::io::{Company, pending_free_of_blocks};
use polymux_records::blockmap::{ClosedNodes, MapChange, Owner};
use polymux_records::counters::Counters;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::{DisownedRecord, ObjectEntry};
use polymux_types::Block;
use polymux_types::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use polymux_volume::inode::{FileState, Layout};
use polymux_volume::space::PendingFree;
use polymux_volume::transaction::Transaction;

use super::interrupt::Interrupt;
use super::pace::StopRule;
use super::part::{Part, TargetObject, holds_end};
use crate::Mover;

/// Dirty blocks that are copied while their writers wait.
const LOCKED_BLOCKS_MAX: u64 = 32;

/// Rounds of copying again before the writers are kept out.
const ROUNDS_MAX: u32 = 4;

type Outcome<T> = std::result::Result<T, Interrupt>;

/// The lock that keeps writers out of a part while it is switched.
enum Hold<'a> {
    File(#[allow(dead_code, reason = "held, not used")] RwLockWriteGuard<'a, ()>),
    Nodes { _closed: Vec<ClosedNodes>, _append: Option<MutexGuard<'a, ()>>, _shared: RwLockReadGuard<'a, ()> },
}

fn hold<'a>(file: &'a FileState, ranges: &[Range<Block>]) -> Hold<'a> {
    let last = ranges.last().expect("a part has a range");
    let holds_all = |size| ranges.len() == 1 && last.start == Block(0) && holds_end(last, size);
    if holds_all(file.size()) {
        let alone = file.barrier.write();
        if holds_all(file.size()) {
            return Hold::File(alone);
        }
    }
    let shared = file.barrier.read();
    // A file that ends in the range, or with it, grows at its end: until the append lock is held, and then no more.
    let append = (file.size() <= last.end.first_byte()).then(|| file.append.lock());
    let closed = ranges.iter().map(|blocks| file.nodes.close(blocks)).collect();
    Hold::Nodes { _closed: closed, _append: append, _shared: shared }
}

/// Bytes of the blocks in which tiers say what an object takes.
const STAT_BLOCK_BYTES: u64 = 512;

/// A pending free of bytes that a move has copied, before its transaction has a number.
#[derive(Debug, PartialEq, Eq)]
struct SourceFree {
    record: DisownedRecord,
    /// As [`PendingFree::bytes`].
    bytes: u64,
}

/// The object goes as a whole, so its ranges need not.
fn free_whole(frees: &mut Vec<SourceFree>, entry: &ObjectEntry) {
    let mut bytes = 0_u64;
    frees.retain(|of_range| {
        let is_other = of_range.record.object != entry.object;
        bytes = bytes.saturating_add(if is_other { 0 } else { of_range.bytes });
        is_other
    });
    // Sparse files are longer than the space that they take.
    let allocated = entry.allocated_blocks.map_or(u64::MAX, |blocks| blocks.saturating_mul(STAT_BLOCK_BYTES));
    let bytes = bytes.min(allocated);
    frees.push(SourceFree { record: DisownedRecord::of_object(entry), bytes });
}

impl Mover {
    /// Copies data written meanwhile again while the writers go on, until little is left or it does not help.
    pub(crate) fn catch_up(&self, part: &mut Part) -> Outcome<()> {
        for round in 0..=ROUNDS_MAX {
            let dirty = part.dirty_count();
            if dirty > 0 && round == 0 {
                Counters::count(&self.volume.counters.move_conflicts);
            }
            if dirty <= LOCKED_BLOCKS_MAX || round == ROUNDS_MAX {
                if dirty > LOCKED_BLOCKS_MAX {
                    Counters::count(&self.volume.counters.move_lock_fallbacks);
                }
                // Most of it now, so that little is left for when the writers wait.
                return self.sync_sources(part);
            }
            Counters::count(&self.volume.counters.move_retries);
            for run in part.take_dirty() {
                self.copy_blocks(part, &run, StopRule::WhenAsked)?;
            }
            self.sync_part(part)?;
        }
        Ok(())
    }

    pub(crate) fn sync_part(&self, part: &mut Part) -> Outcome<()> {
        self.sync_parts(&mut [part]).pop().expect("one part has one outcome")
    }

    /// Moved blocks must be durable on their source: a loss that is found later would be put on record for blocks that the
    /// source does not own any more.
    fn sync_sources(&self, part: &Part) -> Outcome<()> {
        let file = part.file();
        let runs = part.selection().runs(&file.layout.read(), &part.ranges, file.size());
        for (_, source) in runs {
            let Some(slot) = file.layout.read().slot_of(source.tier) else { continue };
            let is_unsynced = file.durability.unsynced.lock().iter().any(|(of, ..)| *of == slot);
            if is_unsynced {
                self.data.sync_object(&part.inode, file, &source)?;
            }
        }
        Ok(())
    }

    /// Keeps writers out, copies the blocks that are still dirty, and switches the map.
    pub(crate) fn commit_part(&self, part: &mut Part) -> Outcome<()> {
        let inode = Arc::clone(&part.inode);
        let file = inode.file().expect("only regular files are moved");
        let hold = hold(file, &part.ranges);
        let dirty = part.take_dirty();
        if !dirty.is_empty() {
            Counters::count(&self.volume.counters.move_retries);
            for run in dirty {
                self.copy_blocks(part, &run, StopRule::Never)?;
            }
            if !is_planted(PlantedFault::CopiedAgainNotSynced) {
                self.sync_part(part)?;
            }
        }
        self.commit_held(part, file, hold)
    }

    /// The short locked form: one node is copied with its writers kept out from the first byte to the last. It cannot
    /// be stopped, and is bounded.
    pub(crate) fn move_locked(&self, part: &mut Part) -> Outcome<()> {
        Counters::count(&self.volume.counters.move_lock_fallbacks);
        let inode = Arc::clone(&part.inode);
        let file = inode.file().expect("only regular files are moved");
        let hold = hold(file, &part.ranges);
        drop(part.take_dirty());
        for blocks in part.ranges.clone() {
            self.copy_blocks(part, &blocks, StopRule::Never)?;
        }
        self.sync_part(part)?;
        self.commit_held(part, file, hold)
    }

    /// Commits a part whose ranges are held, all of them copied and synced.
    fn commit_held(&self, part: &mut Part, file: &FileState, hold: Hold<'_>) -> Outcome<()> {
        self.switch(part, file, &hold)?;
        part.unmark();
        drop(hold);
        Counters::count(&self.volume.counters.moves_committed);
        Ok(())
    }

    /// One transaction: the blocks belong to the target, the ranges claimed there are the file's, and the old bytes become
    /// pending frees.
    fn switch(&self, part: &Part, file: &FileState, hold: &Hold<'_>) -> Outcome<()> {
        let inode = &part.inode;
        let size = file.size();
        self.sync_sources(part)?;
        if part.ranges.iter().any(|blocks| holds_end(blocks, size)) {
            // Afterwards no tier extends the file; the next append names the one that does. The last block may have
            // another owner than the blocks after it, so this does not check the owners.
            self.data.settle(inode, file)?;
        }
        // A concurrent sync may have received the error of a loss that concerns the copy.
        let _no_sync = file.durability.sync_gate.write();
        if part.ticket.is_copy_lost() || file.durability.error_sequence.load(Ordering::Acquire) != part.error_sequence {
            return Err(Interrupt::SyncFailed(part.target.tier));
        }
        let company = if matches!(hold, Hold::File(_)) { Company::Nobody } else { Company::Writers };
        // Small files are moved whole, and need not be asked afterwards.
        let learned = matches!(hold, Hold::File(_)).then(|| self.data.settled_answer_of(file, &part.target)).flatten();
        file.allocation.note_change();
        let change = |transaction: &mut Transaction, layout: &mut Layout| {
            if inode.lifecycle.lock().gone {
                return Err(polymux_types::Errno::ENOENT.into());
            }
            let runs = part.selection().runs(layout, &part.ranges, size);
            if part.target_object == TargetObject::New {
                self.data.begin_extents(transaction, inode, layout)?;
                layout.objects.push(part.target);
            }
            let slot = layout.slot_on(part.target.tier)?;
            let mut change = MapChange::default();
            let mut disowned = Vec::new();
            for (run, source) in &runs {
                file.nodes.mark_map_changed(run.start..run.end);
                change.then(layout.map.assign(run.start, run.end, Owner::Slot(slot)));
                let bytes = run.end.first_byte().min(size).saturating_sub(run.start.first_byte());
                disowned.push(SourceFree { record: pending_free_of_blocks(source, run.start..run.end), bytes });
            }
            if let Hold::File(_) = hold {
                let (compacted, dropped) =
                    file.compact(layout, |entry| !self.volume.disowned.holds(entry.tier, entry.object));
                change.then(compacted);
                for entry in &dropped {
                    free_whole(&mut disowned, entry);
                }
            }
            let is_known = learned.is_some() && layout.objects.len() == 1 && layout.slot_of(part.target.tier).is_some();
            if let Some(answer) = learned.as_ref().filter(|_| is_known) {
                file.allocation.settle_single(layout, answer, size);
            }
            transaction.put_map_change(inode.ino, layout, &change);
            part.claims.iter().for_each(|claim| transaction.delete_disowned(claim));
            disowned.iter().for_each(|disowned| transaction.put_disowned(&disowned.record));
            Ok((disowned, is_known))
        };
        let (disowned, is_known) = self.data.change_layout(inode, file, company, change)?;
        if !is_known {
            file.allocation.note_change();
        }
        self.stamps.stamp_later(inode);
        self.note_parts_moved(part, size);
        let sequence = inode.last_sequence();
        let with_sequence = |SourceFree { record, bytes }| PendingFree { record, sequence, bytes };
        self.volume.disowned.add_all(disowned.into_iter().map(with_sequence));
        Ok(())
    }

    /// Recently moved nodes are harder to move again.
    fn note_parts_moved(&self, part: &Part, size: u64) {
        let now = self.placement.logical_clock.now();
        for blocks in &part.ranges {
            let nodes = blocks.start.node()..blocks.end.min(Block::at_or_after(size)).node_at_or_after();
            self.placement.heat.note_moved(part.inode.ino, nodes, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use polymux_types::{Bucket, ObjectId, TierId};

    use super::*;

    #[test]
    fn an_object_that_goes_as_a_whole_frees_what_its_ranges_would_but_not_its_holes() {
        let [dense, sparse] = [1, 2].map(|object| ObjectEntry::new(TierId(1), ObjectId(object), Bucket(0)));
        let sparse = ObjectEntry { allocated_blocks: Some(8), ..sparse };
        let range = |entry: &ObjectEntry, start: u64, bytes: u64| SourceFree {
            record: DisownedRecord::of_range(entry, start, start + bytes),
            bytes,
        };
        let mut frees = vec![range(&dense, 0, 8192), range(&sparse, 0, 1 << 30), range(&dense, 16_384, 4096)];
        free_whole(&mut frees, &dense);
        free_whole(&mut frees, &sparse);
        let whole = |entry: &ObjectEntry, bytes| SourceFree { record: DisownedRecord::of_object(entry), bytes };
        assert_eq!(frees, [whole(&dense, 12_288), whole(&sparse, 4096)]);
    }
}
