//! How a file lies on its tiers, what reading it takes on each, and which of its nodes move.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use polymux_policy::{ReadPart, Shift};
use polymux_tier::measure::Direction;
use polymux_types::TierId;
use polymux_types::limits::RANGE_NODE_SIZE;

use super::super::facts::bytes_mapped_on;
use super::super::planner::Bundle;
use crate::blockmap::{BLOCKS_PER_NODE, Owner, Run};
use crate::core::Core;
use crate::heat::ReadUse;
use crate::inode::FileState;
use crate::io::block_after;
use crate::report::TierProfile;
use crate::space::TierHandle;

/// Part of the bytes of streams that their first requests have at most.
const BEGINNINGS_DIVISOR: u64 = 20;

const PICOSECONDS: u128 = 1_000_000_000_000;

/// Picoseconds for each byte that is read in such a way, while the device has as much to do as it likes. `None` where that is not
/// known, or nothing was read.
fn picoseconds_per_byte(profile: &TierProfile, reads: &ReadUse) -> Option<u64> {
    let reads = without_beginnings(reads);
    let mut time = 0;
    if reads.stream_bytes > 0 {
        let bytes_per_second = profile.bytes_per_second(Direction::Read).filter(|bytes| *bytes > 0)?;
        time += u128::from(reads.stream_bytes) * PICOSECONDS / u128::from(bytes_per_second);
    }
    if let Some(mean) = reads.random_bytes.checked_div(reads.random_requests) {
        let measured = &profile.measured.as_ref()?.measurement;
        time += u128::from(measured.random_read_picoseconds(mean)?) * u128::from(reads.random_requests);
    }
    let per_byte = time.checked_div(u128::from(reads.bytes()))?;
    Some(u64::try_from(per_byte).unwrap_or(u64::MAX).max(1))
}

/// Each stream begins with a request that is none of it: a few of these among many bytes of streams are no random reads.
fn without_beginnings(reads: &ReadUse) -> ReadUse {
    if reads.random_bytes > reads.stream_bytes / BEGINNINGS_DIVISOR {
        return *reads;
    }
    ReadUse { stream_bytes: reads.bytes(), ..ReadUse::default() }
}

/// What all tiers have of a file, and how long each needs for a byte of it.
pub(super) fn parts_of(core: &Core, file: &FileState, reads: &ReadUse) -> Vec<ReadPart> {
    let part = |handle: &Arc<TierHandle>| ReadPart {
        tier: handle.id.0,
        bytes: bytes_mapped_on(file, handle.id),
        picoseconds_per_byte: handle.look_at_profile(|profile| picoseconds_per_byte(profile, reads)).unwrap_or(0),
    };
    core.tiers.all().iter().map(part).collect()
}

/// Whole nodes of a file that one tier owns, in order.
fn nodes_on(file: &FileState, tier: TierId) -> Vec<u64> {
    let end = block_after(file.size());
    let layout = file.layout.read();
    let Some(slot) = layout.slot_of(tier) else { return Vec::new() };
    let owned = layout.map.runs(0, end).into_iter().filter(|run| run.owner == Some(Owner::Slot(slot)));
    let whole = |run: Run| -> Range<u64> {
        // The last node may be short.
        let after = if run.end >= end { run.end.div_ceil(BLOCKS_PER_NODE) } else { run.end / BLOCKS_PER_NODE };
        run.start.div_ceil(BLOCKS_PER_NODE)..after
    };
    owned.flat_map(whole).collect()
}

/// So many of them, at equal distances: whoever reads any part of the file has all tiers.
fn spaced(nodes: &[u64], count: usize) -> impl Iterator<Item = u64> {
    let count = count.min(nodes.len());
    (0..count).map(move |index| nodes[index * nodes.len() / count.max(1)])
}

/// What moves where, in whole nodes. Each node once.
pub(super) fn bundles_of(file: &FileState, shifts: &[Shift]) -> BTreeMap<u16, Bundle> {
    let mut bundles: BTreeMap<u16, Bundle> = BTreeMap::new();
    let mut left: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for shift in shifts {
        let nodes = left.entry(shift.from).or_insert_with(|| nodes_on(file, TierId(shift.from)));
        let count = shift.bytes.saturating_add(RANGE_NODE_SIZE / 2) / RANGE_NODE_SIZE;
        let chosen: Vec<u64> = spaced(nodes, usize::try_from(count).unwrap_or(usize::MAX)).collect();
        nodes.retain(|node| chosen.binary_search(node).is_err());
        let bundle = bundles.entry(shift.to).or_default();
        chosen.iter().for_each(|node| bundle.add(*node, RANGE_NODE_SIZE));
    }
    bundles.retain(|_, bundle| bundle.bytes > 0);
    bundles
}

#[cfg(test)]
mod tests {
    use polymux_types::Timestamp;

    use super::*;
    use crate::report::LiveBandwidth;

    const MB: u64 = 1_000_000;

    #[test]
    fn streams_and_random_reads_count_as_each_takes_the_device() {
        let at = Timestamp::new(1, 0);
        let live = LiveBandwidth { direction: Direction::Read, bytes_per_second: 100 * MB, busy_seconds: 9, at };
        let profile = TierProfile { measured: None, live: vec![live] };
        let streams = ReadUse { stream_bytes: 8 * MB, ..ReadUse::default() };
        assert_eq!(picoseconds_per_byte(&profile, &streams), Some(10_000));
        let random = ReadUse { random_bytes: 4096, random_requests: 1, ..ReadUse::default() };
        assert_eq!(picoseconds_per_byte(&profile, &random), None, "nobody measured small reads");
        let begun = ReadUse { stream_bytes: 8 * MB, ..random };
        assert_eq!(picoseconds_per_byte(&profile, &begun), Some(10_000));
        assert_eq!(picoseconds_per_byte(&profile, &ReadUse::default()), None);
        assert_eq!(picoseconds_per_byte(&TierProfile::default(), &streams), None);
    }

    #[test]
    fn what_moves_is_taken_from_all_over_the_file() {
        let nodes: Vec<u64> = (100..200).collect();
        let chosen: Vec<u64> = spaced(&nodes, 4).collect();
        assert_eq!(chosen, [100, 125, 150, 175]);
        assert_eq!(spaced(&nodes, 1000).count(), 100);
        assert_eq!(spaced(&[], 3).count(), 0);
    }
}
