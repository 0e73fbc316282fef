//! Where objects have data, and whether two have the same.

use polymux_tier::{ObjectRef, SeekTarget, Tier, TierError, Wait};
use polymux_types::Block;
use polymux_types::limits::BLOCK_SIZE;

/// Bytes compared at once.
const COMPARED_BYTES: u64 = 1 << 20;

/// An object and the tier that it lies on.
#[derive(Clone, Copy)]
pub(super) struct TierObject<'a> {
    pub(super) tier: &'a dyn Tier,
    pub(super) object: ObjectRef,
}

/// Blocks `start..end`.
pub(super) type BlockRange = (Block, Block);

/// Blocks of an object in which there is data, in order, none empty, none touching another.
pub(super) fn data_of(tier: &dyn Tier, object: ObjectRef, size: u64) -> Result<Vec<BlockRange>, TierError> {
    if !tier.capabilities().seek_data {
        return Ok(if size == 0 { Vec::new() } else { vec![(Block(0), Block::at_or_after(size))] });
    }
    let mut ranges: Vec<BlockRange> = Vec::new();
    let mut offset = 0;
    while offset < size {
        let Some(data) = tier.seek(object, offset, SeekTarget::Data)?.filter(|data| *data < size) else { break };
        let hole = tier.seek(object, data, SeekTarget::Hole)?.unwrap_or(size).min(size);
        let (start, end) = (Block::holding(data), Block::at_or_after(hole));
        match ranges.last_mut() {
            Some((_, last)) if *last >= start => *last = end,
            _ => ranges.push((start, end)),
        }
        offset = hole.max(data + 1);
    }
    Ok(ranges)
}

/// Cuts ranges of several objects where any of them begins or ends. Each piece comes with the objects that have it.
pub(super) fn pieces(ranges: &[Vec<BlockRange>]) -> Vec<(BlockRange, Vec<usize>)> {
    let mut cuts: Vec<Block> = ranges.iter().flatten().flat_map(|(start, end)| [*start, *end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut next = vec![0_usize; ranges.len()];
    let mut pieces = Vec::new();
    for pair in cuts.windows(2) {
        let (start, end) = (pair[0], pair[1]);
        let mut holders = Vec::new();
        for (object, of) in ranges.iter().enumerate() {
            while of.get(next[object]).is_some_and(|(_, last)| *last <= start) {
                next[object] += 1;
            }
            if of.get(next[object]).is_some_and(|(first, _)| *first <= start) {
                holders.push(object);
            }
        }
        if !holders.is_empty() {
            pieces.push(((start, end), holders));
        }
    }
    pieces
}

/// Adds a range behind those that are there.
pub(super) fn append(ranges: &mut Vec<BlockRange>, (start, end): BlockRange) {
    match ranges.last_mut() {
        Some((_, last)) if *last == start => *last = end,
        _ => ranges.push((start, end)),
    }
}

/// Blocks of a range in which two objects differ. Bytes that one of them lacks count as zeros.
pub(super) fn differences(
    one: TierObject<'_>,
    other: TierObject<'_>,
    (start, end): BlockRange,
) -> Result<Vec<BlockRange>, TierError> {
    let mut differing = Vec::new();
    let blocks_at_once = Block::whole_in(COMPARED_BYTES);
    let mut block = start;
    while block < end {
        let count = blocks_at_once.min(end - block);
        let (mine, theirs) = (read_blocks(one, block, count)?, read_blocks(other, block, count)?);
        let length = usize::try_from(BLOCK_SIZE).expect("a block is small");
        let pairs = mine.chunks(length).zip(theirs.chunks(length));
        for (at, _) in (block.0..).zip(pairs).filter(|(_, (mine, theirs))| mine != theirs) {
            append(&mut differing, (Block(at), Block(at + 1)));
        }
        block = block + count;
    }
    Ok(differing)
}

/// Whole blocks; zeros behind the end of the object.
pub(super) fn read_blocks(from: TierObject<'_>, block: Block, count: u64) -> Result<Vec<u8>, TierError> {
    let mut buffer = vec![0; usize::try_from(Block::bytes_of(count)).expect("a piece fits into memory")];
    let read = from.tier.read(from.object, block.first_byte(), &mut buffer, Wait::Allowed)?;
    buffer[read..].fill(0);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks((start, end): (u64, u64)) -> BlockRange {
        (Block(start), Block(end))
    }

    #[test]
    fn pieces_are_cut_wherever_an_object_begins_or_ends() {
        let ranges = [vec![(0, 4), (8, 10)], vec![(2, 9)], vec![]];
        let expected =
            [((0, 2), vec![0]), ((2, 4), vec![0, 1]), ((4, 8), vec![1]), ((8, 9), vec![0, 1]), ((9, 10), vec![0])];
        let pieces_of = |ranges: &[Vec<(u64, u64)>]| {
            let ranges: Vec<Vec<BlockRange>> =
                ranges.iter().map(|of| of.iter().copied().map(blocks).collect()).collect();
            pieces(&ranges)
        };
        assert_eq!(pieces_of(&ranges), expected.map(|(range, holders)| (blocks(range), holders)));
        let apart = [((1, 2), vec![0]), ((5, 6), vec![1])];
        assert_eq!(pieces_of(&[vec![(1, 2)], vec![(5, 6)]]), apart.map(|(range, holders)| (blocks(range), holders)));
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = Vec::new();
        [(1, 2), (2, 5), (6, 7)].map(blocks).into_iter().for_each(|range| append(&mut ranges, range));
        assert_eq!(ranges, [(1, 5), (6, 7)].map(blocks));
    }
}
