//! Files that grow on several tiers at once (P5-P8, docs/design/0018).
//!
//! Invariants:
//! * A range (2 MiB, `MountOptions::spread_range_bytes`) that the file has not reached is given to the tier that the policy names, when
//!   its first byte is written.
//!   Ranges that were left out are explicit holes until then, so that each of them can still go anywhere.
//! * While a file grows so, it has no size authority on record: after a crash it ends at its logged size, and objects are cut there before
//!   they are used. So an append that was not synced is a prefix, whatever became durable on which tier, and a range behind the logged size
//!   may change its tier without a pending free, a copy or a sync.
//! * `growth` gives ranges to tiers, `room` asks for the space of writes there, `switch` ensures the conditions under which a file gives up
//!   its size authority, `reserve` divides space that a program reserves, and `floor` logs sizes.
//! * A file that has unsynced bytes on a tier which is away or does not answer does not grow: no growth on other tiers could be
//!   logged.

mod floor;
mod growth;
mod reserve;
mod room;
mod shares;
mod switch;

pub(super) use floor::{Recorded, join};
pub(super) use reserve::SpreadReservation;
pub(super) use room::{OwnedBytes, give_back_room};

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_policy::{Device, Growth, LARGE_FILE_RANGES};
use polymux_records::blockmap::Owner;
use polymux_records::counters::Counters;
use polymux_tier::measure::Direction;
use polymux_types::{Block, StreamId, TierId};
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::space::TierHandle;

use crate::data_path::DataPath;
use crate::placement::{Context, Request};

/// Marks the stream that stands for write-back of a file from the page cache of the kernel, which comes in the name of no thread.
const WRITE_BACK_OF_FILE: u64 = 1 << 63;

/// The writer that a request comes from: the thread that the kernel names, or the write-back of the file.
fn writer_of(inode: &Inode, stream: StreamId) -> StreamId {
    if stream == StreamId(0) { StreamId(inode.ino.get() | WRITE_BACK_OF_FILE) } else { stream }
}

/// The kind of a range before its first byte is written.
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

impl DataPath {
    /// Whether any file may be spread.
    fn may_spread(&self) -> bool {
        self.placement.may_spread.load(Ordering::Acquire)
    }

    /// Blocks of a range.
    fn range_blocks(&self) -> u64 {
        Block::whole_in(u64::from(self.volume.options.spread_range_bytes)).max(1)
    }

    /// Bytes of a range.
    pub fn range_bytes(&self) -> u64 {
        Block::bytes_of(self.range_blocks())
    }

    /// The kind of the range of a byte if it has to be placed before the byte is written. The first range is on the file's home
    /// tier.
    fn unplaced(&self, file: &FileState, position: u64) -> Option<Unplaced> {
        let range_start = position / self.range_bytes() * self.range_bytes();
        if range_start >= Block::at_or_after(file.size()).first_byte() {
            // Reserved space is on the tier of the file's end.
            let is_reserved = position < file.spreading.reserved_end.load(Ordering::Acquire);
            return (range_start > 0 && !is_reserved).then_some(Unplaced::Tail);
        }
        let is_hole = file.grows_unsettled()
            && file.layout.read().map.run_at(Block::holding(position)).owner == Some(Owner::Hole);
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

    /// Waits until a tier has space for the range that a write begins. Called with no lock held.
    pub(super) fn wait_before_growth(
        &self,
        inode: &Inode,
        file: &FileState,
        offset: u64,
        length: usize,
        stream: StreamId,
    ) {
        let may_wait =
            file.spreading.is_spread.load(Ordering::Relaxed) || file.size() >= LARGE_FILE_RANGES * self.range_bytes();
        if !may_wait || !self.has_range_to_place(file, offset, length) {
            return;
        }
        let context = self.placement.context_of(inode);
        let mut tiers = if context.policy.spreads_by_load() {
            self.next_tier_of_growth(inode, file, &context, offset).into_iter().collect()
        } else if file.spreading.is_spread.load(Ordering::Relaxed) {
            self.tiers_to_spread_to(&context)
        } else {
            return;
        };
        if let Some(map) = self.placement.writer_maps.of(context.policy) {
            // A writer that has a tier waits for that one.
            let numbers: Vec<TierId> = tiers.iter().map(|handle| handle.id).collect();
            if let Some(mapped) = map.present_tier(&numbers, writer_of(inode, stream)) {
                tiers.retain(|handle| handle.id == mapped);
            }
        }
        if self.write_behind.wait_for_room(&tiers) {
            Counters::count(&self.volume.counters.spread_waits);
        }
    }

    /// The tier that gets the next range under a policy that keeps growth on one tier while that one carries it; none where no other
    /// one would help, so that there is nothing to wait for.
    fn next_tier_of_growth(
        &self,
        inode: &Inode,
        file: &FileState,
        context: &Context,
        offset: u64,
    ) -> Option<Arc<TierHandle>> {
        let length = self.range_bytes();
        let request = Request { length, file_end: offset.saturating_add(length), partial: true, except: None };
        let next = if file.grows_unsettled() {
            self.placement.place_in(context, inode, &request).first().copied()?
        } else {
            let may_spread = matches!(
                self.placement.growth_in(context, inode, &request),
                Growth::OneTierCarriesIt | Growth::IsSpread
            );
            file.layout.read().tail_tier().filter(|_| may_spread)?
        };
        self.volume.tiers.by_id(next).ok()
    }

    /// The tier of the writer that begins a range, where the policy maps writers.
    fn tier_of_writer(&self, context: &Context, inode: &Inode, stream: StreamId) -> Option<TierId> {
        let map = self.placement.writer_maps.of(context.policy)?;
        let now = self.volume.clock.elapsed();
        let device = |handle: &Arc<TierHandle>| Device {
            tier: handle.id,
            delivered_bytes: handle.speed.write_lane.state(now).delivered_bytes,
            bytes_per_second: handle.profile().bytes_per_second(Direction::Write).unwrap_or(0),
        };
        let devices: Vec<Device> = self.tiers_to_spread_to(context).iter().map(device).collect();
        map.tier_for_range(writer_of(inode, stream), &devices, now)
    }

    /// Tiers that may get new ranges of a file.
    pub fn tiers_to_spread_to(&self, context: &Context) -> Vec<Arc<TierHandle>> {
        let may_take = |tier: &&Arc<TierHandle>| {
            context.allowed >> tier.id.0 & 1 != 0
                && !tier.is_draining()
                && !tier.is_failing()
                && (!context.policy.spreads_by_load() || tier.takes_spread_growth())
                && tier.present().is_some_and(|present| present.capabilities().holds_partial_files())
                && tier.headroom() >= self.range_bytes()
        };
        self.volume.tiers.all().iter().filter(may_take).cloned().collect()
    }
}
