//! The state of a regular file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polymux_records::blockmap::{BlockMap, NodeTable, Owner, Run};
use polymux_records::error::{Error, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::ObjectRef;
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::sync::{Mutex, RwLock};
use polymux_types::{Block, ObjectId, TierId};

use super::SizeTrust;
use super::allocation::Allocation;
use super::direct::DirectState;
use super::durability::Durability;
use super::file_usage::FileUsage;
use super::inline::InlineData;
use super::moving::MoveTicketPlace;
use super::size_state::{SizeKnown, SizeState};
use super::spreading::Spreading;

/// The contents of the record of a regular file. Changed only inside a transaction.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Which slot owns which blocks.
    pub map: BlockMap,
    /// The objects, by slot.
    pub objects: Vec<ObjectEntry>,
    /// Bytes that the record gives the file at least.
    pub size_floor: u64,
    /// Tiers whose object may be longer than the record says, one bit for each tier number: none or one.
    pub extenders: u64,
    /// Grows each time bytes were lost, so that each description reports it once.
    pub error_sequence: u32,
    /// Ranges of bytes that were lost, in order.
    pub damaged: Vec<(u64, u64)>,
}

/// State of a regular file. Lock order: `DirectState::passed`, `barrier`, `append`, range nodes, record lock, `layout`, `inline`,
/// `Durability::unsynced`. `Allocation::asking` comes before `layout`, and nothing else is taken with it.
#[derive(Debug)]
pub struct FileState {
    /// Use of the one object of the file beside the daemon.
    pub direct: DirectState,
    /// Growth over several tiers.
    pub spreading: Spreading,
    /// The size.
    pub sizes: SizeState,
    /// Bytes and records that are not durable yet, and lost ones.
    pub durability: Durability,
    /// How programs use the file.
    pub usage: FileUsage,
    /// Writers share it; truncate, punch and friends have it alone.
    pub barrier: RwLock<()>,
    /// The move that is under way.
    pub(super) moving: MoveTicketPlace,
    /// Held to make the file longer.
    pub append: Mutex<()>,
    /// Range nodes: which blocks are being written or moved.
    pub nodes: NodeTable,
    /// Held while an object is added to the list, by writers of disjoint ranges.
    pub adding_object: Mutex<()>,
    /// Where the blocks are.
    pub layout: RwLock<Layout>,
    /// The bytes, while no object holds them.
    pub inline: InlineData,
    /// How far the numbers of allocated blocks in the layout can be believed.
    pub allocation: Allocation,
    /// The objects are to be described anew, and that is noted in `LateStamps`.
    pub(crate) stamp_due: AtomicBool,
}

impl FileState {
    /// The state of a file that was just loaded or made.
    pub fn new(layout: Layout, size_known: SizeKnown, trust: SizeTrust) -> Self {
        Self {
            direct: DirectState::default(),
            spreading: Spreading::default(),
            sizes: SizeState::new(layout.size_floor, size_known),
            durability: Durability::new(layout.error_sequence),
            usage: FileUsage::default(),
            barrier: RwLock::new(()),
            moving: MoveTicketPlace::default(),
            append: Mutex::new(()),
            nodes: NodeTable::default(),
            adding_object: Mutex::new(()),
            inline: InlineData::new(layout.objects.is_empty() && layout.size_floor > 0),
            allocation: Allocation::of_record(&layout.objects, trust),
            stamp_due: AtomicBool::new(false),
            layout: RwLock::new(layout),
        }
    }

    /// Whether programs wait for its writes at a moment of the volume's clock (docs/design/0034).
    #[inline]
    pub fn is_waited_for(&self, now: Duration) -> bool {
        self.usage.small_syncs.are_enough(now)
    }

    /// Whether the kernel uses the one object of the file, which owns all of it until then.
    #[inline]
    pub fn is_passed_through(&self) -> bool {
        self.direct.users.now().is_any()
    }

    /// Whether it may change it, too.
    #[inline]
    pub fn is_changed_directly(&self) -> bool {
        self.direct.users.now().may_change()
    }

    /// Bytes were lost: each open file description receives the error once. Called with the layout locked; the next record of the file has it.
    pub fn raise_error_sequence(&self, layout: &mut Layout) {
        // Readers by a copy of the map would not see the error.
        self.nodes.outside_users.recall_all();
        layout.error_sequence = layout.error_sequence.wrapping_add(1);
        self.durability.error_sequence.store(layout.error_sequence, Ordering::Release);
    }

    /// The size, as far as it is known.
    #[inline]
    pub fn size(&self) -> u64 {
        self.sizes.bytes.load(Ordering::Acquire)
    }

    /// Whether the file grows without a recorded size authority: after a crash it ends at its floor, which is updated when it is
    /// synced (docs/design/0018).
    #[inline]
    pub fn grows_unsettled(&self) -> bool {
        self.spreading.may_grow_unsettled.load(Ordering::Acquire) && self.layout.read().extenders == 0
    }

    /// Whether there are bytes of that kind behind the floor.
    pub fn has_unsettled_tail(&self) -> bool {
        if !self.spreading.may_grow_unsettled.load(Ordering::Acquire) {
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
        match self.spreading.unsettled_since_ms.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Some(now_ms),
            Err(since_ms) => Some(since_ms),
        }
    }

    /// Forgets since when the record lacks bytes; the time starts anew with the next look that sees some.
    pub fn unsettled_anew(&self) {
        self.spreading.unsettled_since_ms.store(0, Ordering::Relaxed);
    }

    /// Notes bytes written to a slot before they are submitted.
    pub fn note_unsynced(&self, slot: u8, start: u64, end: u64) {
        let mut unsynced = self.durability.unsynced.lock();
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
        let mut unsynced = self.durability.unsynced.lock();
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
    #[inline]
    pub fn object(&self, slot: u8) -> ObjectEntry {
        self.objects[usize::from(slot)]
    }

    /// Who has the bytes of a run, with its slot; `None` for a hole.
    #[inline]
    pub fn owner_of(&self, run: &Run) -> Option<(u8, ObjectEntry)> {
        match run.owner {
            Some(Owner::Slot(slot)) => Some((slot, self.object(slot))),
            Some(Owner::Hole) | None => None,
        }
    }

    /// The slot of a tier, where the file has an object there.
    #[inline]
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
    #[inline]
    pub fn tail_slot(&self) -> Option<u8> {
        match self.map.tail() {
            Some(Owner::Slot(slot)) => Some(slot),
            Some(Owner::Hole) | None => None,
        }
    }

    /// The tier that owns the tail of the file.
    #[inline]
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
        let end = Block::holding(end).first_byte();
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
        self.damage_from(Block::holding(start).first_byte(), end);
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
