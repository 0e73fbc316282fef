//! The state of a regular file.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use polymux_meta::Sequence;
use polymux_records::blockmap::{BlockMap, NodeTable, Owner, Run};
use polymux_records::error::{Error, Result};
use polymux_records::passthrough::{BackingId, Obstacle};
use polymux_records::store::ObjectEntry;
use polymux_tier::{Loan, ObjectRef};
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::sync::{Mutex, RwLock};
use polymux_types::{ObjectId, TierId, Timestamp};

use super::SizeTrust;
use super::allocation::Allocation;
use super::expected_use::ExpectedUse;
use super::growth_history::GrowthHistory;
use super::inline::InlineData;
use super::io_mode::IoModes;
use super::moving::MoveTicketPlace;
use super::read_streams::ReadStreams;
use super::rewritten::Emptyings;
use super::small_syncs::SmallSyncs;
use super::write_streams::WriteStreams;

/// The contents of the record of a regular file. Changed only inside a transaction.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Which slot owns which blocks.
    pub map: BlockMap,
    /// The objects, by slot.
    pub objects: Vec<ObjectEntry>,
    /// Bytes that the record gives the file at least.
    pub size_floor: u64,
    /// Bit set of the slots whose object may be longer than the record says: none or one.
    pub extenders: u64,
    /// Grows with each write error, so that each description reports it once.
    pub error_sequence: u32,
    /// Ranges of bytes that were lost, in order.
    pub damaged: Vec<(u64, u64)>,
}

/// A transaction that removes the size authority of a file from its record.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedSwitch {
    /// The size authority until then.
    pub tier: TierId,
    /// From this byte on other tiers have the file.
    pub from: u64,
    /// The transaction that no longer names the tier.
    pub sequence: Sequence,
}

/// How the open descriptions of a file do their I/O, and the state of its passthrough grant.
#[derive(Debug, Default)]
pub struct PassedThrough {
    /// How the open descriptions do their I/O.
    pub modes: IoModes,
    /// The object as the kernel has it open.
    pub loan: Option<Box<dyn Loan>>,
    /// The number by which the kernel knows it.
    pub backing: Option<BackingId>,
    /// Why the last description that could have been passed through was not.
    pub refused: Option<Obstacle>,
    /// Space counted for it on its tier.
    pub granted_bytes: u64,
    /// Pages that the kernel had of it when it began to be passed through.
    pub pages_before: Option<PagesSeen>,
}

/// Pages of a file that the kernel had in memory at a moment, node after node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagesSeen {
    /// Since mounting.
    pub at: Duration,
    /// Pages in memory of each range node, at the last look.
    pub pages: Vec<u32>,
}

impl PagesSeen {
    /// Those of a node; none of one that was not looked at.
    pub fn pages_of(&self, node: u64) -> u32 {
        usize::try_from(node).ok().and_then(|node| self.pages.get(node)).copied().unwrap_or(0)
    }
}

/// State of a regular file. Lock order: `passed`, `barrier`, `append`, range nodes, record lock, `layout`, `inline`,
/// `unsynced`. `Allocation::asking` comes before `layout`, and nothing else is taken with it.
#[derive(Debug)]
pub struct FileState {
    /// Held while a description begins or ends, as the kernel has them.
    pub passed: Mutex<PassedThrough>,
    /// The kernel uses the one object of the file for descriptions of this mount. Changes under `passed`; it becomes true for a file
    /// that is not held, and false, under the barrier alone.
    pub is_lent: AtomicBool,
    /// It may change it, too. Changes with the same locks.
    pub is_lent_for_changes: AtomicBool,
    /// The one object is in use without an open file description: by a mapping whose descriptor was closed, or by a program that has it
    /// open since an earlier mount.
    pub is_held: AtomicBool,
    /// A holder (`is_held`) may change the object.
    pub is_held_for_changes: AtomicBool,
    /// A program has the object open since an earlier mount, through open file descriptions whose requests do not arrive here; a mapping
    /// of this mount does not count.
    pub is_held_since_earlier_mount: AtomicBool,
    /// Whether such holders were looked for.
    pub holder_looked_for: AtomicBool,
    /// Directly changed bytes may not be durable, and it is unknown which ones.
    ///
    /// Counted down by syncs that succeed after the last change: the first one may have begun before it.
    pub has_direct_changes: AtomicU32,
    /// Modification time of the object, as last seen while it was changed directly. Held while the object is queried and its
    /// answer applied, so that no older answer follows a newer one.
    pub object_modified: Mutex<Timestamp>,
    /// Whether those who change it make it longer.
    pub growth: GrowthHistory,
    /// Pages that the kernel has of the file may be older than its object.
    pub pages_stale: AtomicBool,
    /// Writers share it; truncate, punch and friends have it alone.
    pub barrier: RwLock<()>,
    /// The move that is under way.
    pub(super) moving: MoveTicketPlace,
    /// Held to make the file longer.
    pub append: Mutex<()>,
    /// Range nodes: which blocks are being written or moved.
    pub nodes: NodeTable,
    /// Its new ranges are placed one by one: as the policy said when the last one was.
    pub spreads: AtomicBool,
    /// No tier is recorded as its size authority although it grows; see [`FileState::grows_unsettled`]. Set under the append lock.
    pub may_grow_unsettled: AtomicBool,
    /// When the upkeep first saw bytes that its record does not know, in milliseconds since mounting; 0: it has not.
    unsettled_since_ms: AtomicU64,
    /// Number of the next sync of the volume when the file got its home, while nothing of it was promised to be durable since;
    /// 0 where something may have been.
    pub unpromised: AtomicU64,
    /// Whether `switches` has something.
    pub awaits_switch: AtomicBool,
    /// Tiers removed from the record as its size authority, where that may not be durable yet. A leaf.
    pub switches: Mutex<Vec<AwaitedSwitch>>,
    /// Times that it was made shorter. Changes under the barrier alone.
    pub cuts: AtomicU64,
    /// End of the space reserved beyond the end of the file.
    pub reserved_end: AtomicU64,
    /// Objects that were made since it was loaded and not synced since: their directory entries may not be durable. A leaf.
    pub entries_unsynced: Mutex<Vec<ObjectId>>,
    /// Objects on absent tiers whose bytes beyond the end of the file were given up. A leaf.
    pub cut_off: Mutex<HashSet<(TierId, ObjectId)>>,
    /// Streams of reads, while it is on several tiers. A leaf.
    pub read_streams: Mutex<ReadStreams>,
    /// Streams of writes, while it is not spread. A leaf.
    pub write_streams: Mutex<WriteStreams>,
    /// Held while an object is added to the list, by writers of disjoint ranges.
    pub adding_object: Mutex<()>,
    /// Where the blocks are.
    pub layout: RwLock<Layout>,
    /// The log up to here determines which of several objects owns each block.
    pub layout_sequence: AtomicU64,
    /// The bytes, while no object holds them.
    pub inline: InlineData,
    /// A transaction with the record failed, so the state in memory is not in the store.
    pub uncommitted: AtomicBool,
    /// When the last description was closed, on the volume's clock in milliseconds; 0 before.
    pub closed_ms: AtomicU64,
    /// Size in bytes. Grows under `append`, shrinks under `barrier` alone.
    pub size: AtomicU64,
    /// Whether `size` is known: it may have to be queried from the object of the size authority.
    pub size_known: AtomicBool,
    /// A program wrote past the page cache of a kernel that collects writes, and keeps an older modification time than that.
    pub written_past_pages: AtomicBool,
    /// Held to find the size out.
    pub finding_size: Mutex<()>,
    /// How far the numbers of allocated blocks in the layout can be believed.
    pub allocation: Allocation,
    /// Per slot, the byte range written since the last successful sync, which a failed sync may have lost.
    pub unsynced: Mutex<Vec<(u8, u64, u64)>>,
    /// Shared by syncs until their losses are recorded; a caller that reports errors takes it exclusively first.
    pub sync_gate: RwLock<()>,
    /// Whether the file was emptied and not synced since.
    pub emptyings: Emptyings,
    /// Small syncs that programs asked for in a row.
    pub small_syncs: SmallSyncs,
    /// Its directory was notified that programs wait for its writes.
    pub is_told_waited_for: AtomicBool,
    /// Its directory was notified that it is a message.
    pub is_told_message: AtomicBool,
    /// It was made in a directory of files whose writes programs wait for.
    pub expected: ExpectedUse,
    /// The objects are to be described anew, and that is noted in `LateStamps`.
    pub(crate) stamp_due: AtomicBool,
    /// Highest error sequence of the layout, readable without its lock.
    pub error_sequence: AtomicU32,
}

impl FileState {
    /// The state of a file that was just loaded or made.
    pub fn new(layout: Layout, size_known: bool, trust: SizeTrust) -> Self {
        Self {
            passed: Mutex::default(),
            is_lent: AtomicBool::new(false),
            is_lent_for_changes: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            is_held_for_changes: AtomicBool::new(false),
            is_held_since_earlier_mount: AtomicBool::new(false),
            holder_looked_for: AtomicBool::new(false),
            has_direct_changes: AtomicU32::new(0),
            object_modified: Mutex::new(Timestamp::new(0, 0)),
            growth: GrowthHistory::default(),
            pages_stale: AtomicBool::new(false),
            barrier: RwLock::new(()),
            moving: MoveTicketPlace::default(),
            append: Mutex::new(()),
            nodes: NodeTable::default(),
            read_streams: Mutex::default(),
            write_streams: Mutex::default(),
            spreads: AtomicBool::new(false),
            may_grow_unsettled: AtomicBool::new(false),
            unsettled_since_ms: AtomicU64::new(0),
            unpromised: AtomicU64::new(0),
            awaits_switch: AtomicBool::new(false),
            switches: Mutex::default(),
            cuts: AtomicU64::new(0),
            reserved_end: AtomicU64::new(0),
            entries_unsynced: Mutex::default(),
            cut_off: Mutex::default(),
            adding_object: Mutex::new(()),
            layout_sequence: AtomicU64::new(0),
            inline: InlineData::new(layout.objects.is_empty() && layout.size_floor > 0),
            uncommitted: AtomicBool::new(false),
            closed_ms: AtomicU64::new(0),
            size: AtomicU64::new(layout.size_floor),
            size_known: AtomicBool::new(size_known),
            written_past_pages: AtomicBool::new(false),
            finding_size: Mutex::new(()),
            allocation: Allocation::of_record(&layout.objects, trust),
            unsynced: Mutex::new(Vec::new()),
            sync_gate: RwLock::new(()),
            emptyings: Emptyings::default(),
            small_syncs: SmallSyncs::default(),
            is_told_waited_for: AtomicBool::new(false),
            is_told_message: AtomicBool::new(false),
            expected: ExpectedUse::default(),
            stamp_due: AtomicBool::new(false),
            error_sequence: AtomicU32::new(layout.error_sequence),
            layout: RwLock::new(layout),
        }
    }

    /// Whether programs wait for its writes at a moment of the volume's clock (docs/design/0034).
    pub fn is_waited_for(&self, now: Duration) -> bool {
        self.small_syncs.are_enough(now)
    }

    /// Whether the kernel uses the one object of the file, which owns all of it until then.
    pub fn is_passed_through(&self) -> bool {
        self.is_lent.load(Ordering::Acquire) || self.is_held.load(Ordering::Acquire)
    }

    /// Whether it may change it, too.
    pub fn is_changed_directly(&self) -> bool {
        self.is_lent_for_changes.load(Ordering::Acquire) || self.is_held_for_changes.load(Ordering::Acquire)
    }

    /// Bytes were lost: each open file description receives the error once. Called with the layout locked; the next record of the file has it.
    pub fn raise_error_sequence(&self, layout: &mut Layout) {
        layout.error_sequence = layout.error_sequence.wrapping_add(1);
        self.error_sequence.store(layout.error_sequence, Ordering::Release);
    }

    /// The size, as far as it is known.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether the file grows without a recorded size authority: after a crash it ends at its floor, which is updated when it is
    /// synced (docs/design/0018).
    pub fn grows_unsettled(&self) -> bool {
        self.may_grow_unsettled.load(Ordering::Acquire) && self.layout.read().extenders == 0
    }

    /// Whether there are bytes of that kind behind the floor.
    pub fn has_unsettled_tail(&self) -> bool {
        if !self.may_grow_unsettled.load(Ordering::Acquire) {
            return false;
        }
        let layout = self.layout.read();
        layout.extenders == 0 && !layout.objects.is_empty() && self.size() > layout.size_floor
    }

    /// When such bytes were seen first, in milliseconds since mounting: now, where none were before. `None` where there are none.
    pub fn unsettled_since_ms(&self, now_ms: u64) -> Option<u64> {
        if !self.has_unsettled_tail() {
            self.unsettled_anew();
            return None;
        }
        let now_ms = now_ms.max(1);
        match self.unsettled_since_ms.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Some(now_ms),
            Err(since_ms) => Some(since_ms),
        }
    }

    /// Forgets since when the record lacks bytes; the time starts anew with the next look that sees some.
    pub fn unsettled_anew(&self) {
        self.unsettled_since_ms.store(0, Ordering::Relaxed);
    }

    /// Notes bytes written to a slot before they are submitted.
    pub fn note_unsynced(&self, slot: u8, start: u64, end: u64) {
        let mut unsynced = self.unsynced.lock();
        match unsynced.iter_mut().find(|(of, ..)| *of == slot) {
            Some((_, first, last)) => {
                *first = (*first).min(start);
                *last = (*last).max(end);
            }
            None => unsynced.push((slot, start, end)),
        }
    }

    /// Takes the range written to a slot since the last successful sync.
    pub fn take_unsynced(&self, slot: u8) -> Option<(u64, u64)> {
        let mut unsynced = self.unsynced.lock();
        let place = unsynced.iter().position(|(of, ..)| *of == slot)?;
        let (_, start, end) = unsynced.swap_remove(place);
        Some((start, end))
    }
}

impl Layout {
    /// A copy with an empty map.
    pub fn clone_without_map(&mut self) -> Self {
        let map = std::mem::take(&mut self.map);
        let copy = self.clone();
        self.map = map;
        copy
    }

    /// The object in a slot. Panics for a slot that no verified map names.
    pub fn object(&self, slot: u8) -> ObjectEntry {
        self.objects[usize::from(slot)]
    }

    /// Who has the bytes of a run, with its slot; `None` for a hole.
    pub fn owner_of(&self, run: &Run) -> Option<(u8, ObjectEntry)> {
        match run.owner {
            Some(Owner::Slot(slot)) => Some((slot, self.object(slot))),
            Some(Owner::Hole) | None => None,
        }
    }

    /// The slot of a tier, where the file has an object there.
    pub fn slot_of(&self, tier: TierId) -> Option<u8> {
        let place = self.objects.iter().position(|entry| entry.tier == tier)?;
        u8::try_from(place).ok()
    }

    /// The slot of an object, where the file still has it.
    pub fn slot_of_object(&self, object: ObjectId) -> Option<u8> {
        let place = self.objects.iter().position(|entry| entry.object == object)?;
        u8::try_from(place).ok()
    }

    /// The slot of a tier on which the file certainly has an object.
    pub fn slot_on(&self, tier: TierId) -> Result<u8> {
        let lost = || Error::corrupted(format!("the object of a file on tier {tier}"), "it was lost");
        self.slot_of(tier).ok_or_else(lost)
    }

    /// Whether the file has one object, which owns all of it.
    pub fn is_wholly_on_one(&self) -> bool {
        self.objects.len() == 1 && !self.map.has_exceptions()
    }

    /// Slot of the tail, where there is one.
    pub fn tail_slot(&self) -> Option<u8> {
        match self.map.tail() {
            Some(Owner::Slot(slot)) => Some(slot),
            Some(Owner::Hole) | None => None,
        }
    }

    /// The tier that owns the tail of the file.
    pub fn tail_tier(&self) -> Option<TierId> {
        self.tail_slot().map(|slot| self.object(slot).tier)
    }

    /// Slot and object of the tier that may have extended the file since the floor was logged.
    pub fn extender(&self) -> Option<(u8, ObjectEntry)> {
        let found = (0_u8..).zip(&self.objects).find(|(_, entry)| self.extenders & (1 << entry.tier.0) != 0);
        found.map(|(slot, entry)| (slot, *entry))
    }

    /// Whether any byte of a range is damaged.
    pub fn is_damaged(&self, start: u64, end: u64) -> bool {
        self.damaged.iter().any(|(from, to)| *from < end && start < *to)
    }

    /// Takes whole blocks out of the damaged ranges, and the damaged part of the first block of one; returns whether anything
    /// changed.
    pub fn heal(&mut self, start: u64, end: u64) -> bool {
        let end = end / BLOCK_SIZE * BLOCK_SIZE;
        let mut left = Vec::new();
        for (from, to) in &self.damaged {
            let healed_from = if start <= *from { *from } else { start.next_multiple_of(BLOCK_SIZE) };
            let healed_to = end.max(healed_from);
            left.extend([(*from, (*to).min(healed_from)), ((*from).max(healed_to), *to)].iter().filter(|(a, b)| a < b));
        }
        let mut left = merged(left);
        std::mem::swap(&mut self.damaged, &mut left);
        self.damaged != left
    }

    /// Adds a damaged range, widened to whole blocks, and coalesces.
    pub fn damage(&mut self, start: u64, end: u64) {
        self.damage_from(start / BLOCK_SIZE * BLOCK_SIZE, end);
    }

    /// As [`Self::damage`], where the bytes before `start` are known to be good.
    pub(crate) fn damage_from(&mut self, start: u64, end: u64) {
        let end = end.next_multiple_of(BLOCK_SIZE);
        if start >= end {
            return;
        }
        self.damaged.push((start, end));
        self.damaged.sort_unstable();
        self.damaged = merged(std::mem::take(&mut self.damaged));
    }
}

/// Ascending ranges, those that touch as one.
fn merged(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges {
        match merged.last_mut() {
            Some((_, last)) if *last >= from => *last = (*last).max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// How a tier names the object.
pub fn reference_of(entry: &ObjectEntry) -> ObjectRef {
    ObjectRef::new(entry.object, entry.bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_coalesced_and_healed_by_whole_blocks_only() {
        let mut layout = Layout::default();
        layout.damage(5000, 5001);
        layout.damage(8192, 12288);
        assert_eq!(layout.damaged, [(4096, 12288)]);
        assert!(!layout.heal(4097, 8191));
        assert!(layout.heal(4097, 12288));
        assert_eq!(layout.damaged, [(4096, 8192)]);
        assert!(layout.is_damaged(0, 4097) && !layout.is_damaged(8192, 9000));
    }

    #[test]
    fn damage_that_begins_within_a_block_is_healed_from_there() {
        let mut layout = Layout::default();
        layout.damage_from(5000, 9000);
        assert_eq!(layout.damaged, [(5000, 12288)]);
        assert!(!layout.is_damaged(0, 5000));
        assert!(!layout.heal(5001, 8192) && !layout.heal(5000, 8191));
        assert!(layout.heal(5000, 8192));
        assert_eq!(layout.damaged, [(8192, 12288)]);
        assert!(layout.heal(0, 12288));
        assert_eq!(layout.damaged, []);
    }
}
