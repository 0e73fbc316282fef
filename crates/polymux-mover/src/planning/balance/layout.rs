//! The layout of a file on its tiers, the read time on each, and which of its nodes move.
//!
//! Invariant: of a file of more than [`NODES_MAX`] nodes a sample is looked at, and only nodes of the sample move; then another sample
//! is looked at, until each node was in one. So neither the look nor a job grows with the file.

use std::collections::BTreeMap;

use polymux_policy::{ReadPart, Shift};
use polymux_records::report::TierProfile;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Block, TierId};
use polymux_volume::heat::ReadUse;
use polymux_volume::inode::FileState;

use crate::Mover;
use crate::planning::bundle::Bundle;
use crate::planning::facts::blocks_of_node;

/// Nodes of a file that are looked at: all of one of 8 GiB.
const NODES_MAX: u64 = 4096;

/// Part of the bytes of streams that their first requests have at most.
const BEGINNINGS_DIVISOR: u64 = 20;

/// The parts of a file on its tiers.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// One node in so many was looked at.
    pub(crate) one_in: u64,
    of_tiers: BTreeMap<u16, Share>,
}

/// The part of a file on one tier.
#[derive(Debug, Default)]
struct Share {
    /// Bytes, as far as the sample tells,
    bytes: u64,
    /// and those of nodes that no other tier has a part of.
    movable: u64,
    /// Such nodes of the sample, in order.
    nodes: Vec<u64>,
}

/// Nodes that go from one tier to another.
pub(crate) struct NodeMoves {
    pub(crate) from: TierId,
    pub(crate) to: TierId,
    pub(crate) bundle: Bundle,
}

/// Looks at a file, or at the sample of this number.
pub(crate) fn shares_of(file: &FileState, sample: u64) -> Shares {
    let end = Block::at_or_after(file.size());
    let nodes = end.node_at_or_after();
    let one_in = nodes.div_ceil(NODES_MAX).max(1);
    let mut shares = Shares { one_in, ..Shares::default() };
    let layout = file.layout.read();
    if layout.objects.is_empty() {
        return shares;
    }
    let mut node = sample % one_in;
    while node < nodes {
        let blocks = blocks_of_node(node);
        let runs = layout.map.runs(blocks.start, blocks.end.min(end));
        for run in &runs {
            let Some((_, entry)) = layout.owner_of(run) else { continue };
            let share = shares.of_tiers.entry(entry.tier.0).or_default();
            let bytes = Block::bytes_of(run.end - run.start).saturating_mul(one_in);
            share.bytes += bytes;
            if runs.len() == 1 {
                share.movable += bytes;
                share.nodes.push(node);
            }
        }
        node += one_in;
    }
    shares
}

/// Picoseconds for each byte that is read in such a way, while the device has as much to do as it likes. `None` where that was not
/// measured, or nothing was read.
pub(crate) fn picoseconds_per_byte(profile: &TierProfile, reads: &ReadUse) -> Option<u64> {
    let measured = &profile.measured.as_ref()?.measurement;
    let reads = without_beginnings(reads);
    let mut time = 0;
    if reads.stream_bytes > 0 {
        time += measured.sequential_read_picoseconds(reads.stream_bytes)?;
    }
    if let Some(mean) = reads.random_bytes.checked_div(reads.random_requests) {
        let random = u128::from(measured.random_read_picoseconds(mean)?) * u128::from(reads.random_requests);
        // No device reads faster than in order. A short measurement may show that, because a throttle first lets through the tokens
        // that it has saved up.
        time += random.max(measured.sequential_read_picoseconds(reads.random_bytes).unwrap_or(0));
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

/// The parts of a file on all tiers, and the time that each needs for a byte of it.
pub(crate) fn parts_of(core: &Mover, shares: &Shares, reads: &ReadUse) -> Vec<ReadPart> {
    let part = |handle: &std::sync::Arc<polymux_volume::space::TierHandle>| {
        let (bytes, movable) = shares.of_tiers.get(&handle.id.0).map_or((0, 0), |share| (share.bytes, share.movable));
        let speed = handle.look_at_profile(|profile| picoseconds_per_byte(profile, reads));
        ReadPart { tier: handle.id.0, bytes, movable, picoseconds_per_byte: speed.unwrap_or(0) }
    };
    core.volume.tiers.all().iter().map(part).collect()
}

/// Up to `count` of the nodes, at equal distances: a reader of any part of the file has all tiers.
fn spaced(nodes: &[u64], count: usize) -> impl Iterator<Item = u64> {
    let count = count.min(nodes.len());
    (0..count).map(move |index| nodes[index * nodes.len() / count.max(1)])
}

/// The migrations, in whole nodes. Each node occurs once.
pub(crate) fn moves_for(shares: Shares, shifts: &[Shift]) -> Vec<NodeMoves> {
    let Shares { one_in, mut of_tiers } = shares;
    let mut moves = Vec::new();
    for shift in shifts {
        let Some(Share { nodes: left, .. }) = of_tiers.get_mut(&shift.from) else { continue };
        let count = (shift.bytes / one_in.max(1)).div_ceil(RANGE_NODE_SIZE);
        let chosen: Vec<u64> = spaced(left, usize::try_from(count).unwrap_or(usize::MAX)).collect();
        if chosen.is_empty() {
            continue;
        }
        left.retain(|node| chosen.binary_search(node).is_err());
        let mut bundle = Bundle::default();
        chosen.iter().for_each(|node| bundle.add(*node, RANGE_NODE_SIZE));
        moves.push(NodeMoves { from: TierId(shift.from), to: TierId(shift.to), bundle });
    }
    moves
}

#[cfg(test)]
mod tests {
    use polymux_tier::measure::{Caveats, Direction, Measurement, Pattern, Point, Way};
    use polymux_types::Timestamp;

    use super::*;
    use polymux_records::report::MeasuredProfile;

    const MB: u64 = 1_000_000;

    fn measured(points: Vec<Point>) -> TierProfile {
        let measurement =
            Measurement { way: Way::Direct, file_bytes: 0, elapsed_ms: 1, caveats: Caveats::default(), points };
        TierProfile { measured: Some(MeasuredProfile { at: Timestamp::new(1, 0), measurement }), live: Vec::new() }
    }

    fn point(pattern: Pattern, request_bytes: u32, bytes_per_second: u64) -> Point {
        Point {
            direction: Direction::Read,
            pattern,
            request_bytes,
            in_flight: 4,
            requests: 9,
            bytes_per_second,
            median_us: 1,
            p99_us: 1,
        }
    }

    #[test]
    fn streams_and_random_reads_count_as_each_takes_the_device() {
        let streams = ReadUse { stream_bytes: 8 * MB, ..ReadUse::default() };
        let random = ReadUse { random_bytes: 40_960, random_requests: 10, ..ReadUse::default() };
        let sequential = point(Pattern::Sequential, 1 << 20, 100 * MB);
        let alone = measured(vec![sequential]);
        assert_eq!(picoseconds_per_byte(&alone, &streams), Some(10_000));
        assert_eq!(picoseconds_per_byte(&alone, &random), None, "nobody measured small reads");
        let begun = ReadUse { stream_bytes: 8 * MB, ..random };
        assert_eq!(picoseconds_per_byte(&alone, &begun), Some(10_000), "each stream has a first request");
        let both = measured(vec![sequential, point(Pattern::Random, 4096, 4096 * 1000)]);
        assert_eq!(picoseconds_per_byte(&both, &random), Some(1_000_000_000 / 4096));
        let mixed = ReadUse { stream_bytes: 40_960, ..random };
        assert_eq!(picoseconds_per_byte(&both, &mixed), Some((10_000_000_000 + 409_600_000) / 81_920));
        let hasty = measured(vec![sequential, point(Pattern::Random, 65536, 180 * MB)]);
        let large = ReadUse { random_bytes: 655_360, random_requests: 10, ..ReadUse::default() };
        assert_eq!(picoseconds_per_byte(&hasty, &large), Some(10_000), "anywhere no faster than in order");
        assert_eq!(picoseconds_per_byte(&both, &ReadUse::default()), None);
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

    #[test]
    fn of_a_sample_as_many_nodes_move_as_are_its_part() {
        let share = Share { nodes: (0..100).map(|node| node * 10).collect(), ..Share::default() };
        let shares = Shares { one_in: 10, of_tiers: BTreeMap::from([(2, share)]) };
        let shift = |to: u16, nodes: u64| Shift { from: 2, to, bytes: nodes * RANGE_NODE_SIZE };
        let moves = moves_for(shares, &[shift(0, 500), shift(1, 200), shift(1, 10)]);
        let counts: Vec<u64> = moves.iter().map(|moves| moves.bundle.bytes / RANGE_NODE_SIZE).collect();
        assert_eq!(counts, [50, 20, 1]);
        let (first, second) = (moves[0].bundle.nodes(), moves[1].bundle.nodes());
        assert!(first.iter().all(|node| !second.contains(node)), "no node goes twice");
    }
}
