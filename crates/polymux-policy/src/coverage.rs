//! The share of device reads that a faster tier of some size could serve: the best choice of ranges, with hindsight.
//!
//! Invariant: ranges are taken by reads per byte, the most read first, and the last one in part, because blocks move one by one.
//! No order of moves does better for the same reads.

use std::cmp::Reverse;

/// Reads of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeReads {
    /// Its length; at least 1.
    pub bytes: u64,
    /// Reads that devices served of it.
    pub reads: u64,
}

/// Ranges by how much they are read.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    ranges: Vec<RangeReads>,
}

impl Coverage {
    /// Takes ranges in any order; those that were not read count for nothing.
    #[must_use]
    pub fn of(mut ranges: Vec<RangeReads>) -> Self {
        ranges.retain(|range| range.reads > 0 && range.bytes > 0);
        // 2^40 reads of a byte: the product fits, and shares of less than that make no difference.
        ranges.sort_by_key(|range| Reverse((u128::from(range.reads) << 40) / u128::from(range.bytes)));
        Self { ranges }
    }

    /// Ranges that were read.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes).fold(0, u64::saturating_add)
    }

    /// All reads.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.ranges.iter().map(|range| range.reads).fold(0, u64::saturating_add)
    }

    /// Reads that a tier with so many bytes of space could serve.
    #[must_use]
    pub fn reads_within(&self, room_bytes: u64) -> u64 {
        let (mut left, mut served) = (room_bytes, 0_u64);
        for range in &self.ranges {
            let held = range.bytes.min(left);
            let reads = u128::from(range.reads) * u128::from(held) / u128::from(range.bytes);
            served = served.saturating_add(u64::try_from(reads).unwrap_or(u64::MAX));
            left -= held;
            if left == 0 {
                break;
            }
        }
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(bytes: u64, reads: u64) -> RangeReads {
        RangeReads { bytes, reads }
    }

    #[test]
    fn what_is_read_most_for_its_length_comes_first_and_the_last_range_in_part() {
        let coverage = Coverage::of(vec![range(100, 50), range(10, 40), range(1000, 0), range(100, 10)]);
        assert_eq!((coverage.ranges(), coverage.bytes(), coverage.reads()), (3, 210, 100));
        let served = [0, 5, 10, 60, 110, 160, 210, u64::MAX].map(|room| coverage.reads_within(room));
        assert_eq!(served, [0, 20, 40, 65, 90, 95, 100, 100]);
        assert_eq!(Coverage::of(Vec::new()).reads_within(100), 0);
    }

    #[test]
    fn large_numbers_are_no_trouble() {
        let coverage = Coverage::of(vec![range(u64::MAX, u64::MAX), range(1, u64::MAX)]);
        assert_eq!(coverage.reads_within(u64::MAX), u64::MAX);
        assert_eq!(coverage.reads_within(1), u64::MAX);
    }

    proptest! {
        #[test]
        fn more_room_never_serves_less_and_never_more_than_all(
            ranges in prop::collection::vec((1_u64..1000, 0_u64..1000), 0..20),
            rooms in prop::collection::vec(0_u64..20_000, 2..6),
        ) {
            let coverage = Coverage::of(ranges.into_iter().map(|(bytes, reads)| range(bytes, reads)).collect());
            let mut rooms = rooms;
            rooms.sort_unstable();
            let served: Vec<u64> = rooms.iter().map(|room| coverage.reads_within(*room)).collect();
            prop_assert!(served.is_sorted());
            prop_assert!(served.iter().all(|served| *served <= coverage.reads()));
            prop_assert_eq!(coverage.reads_within(coverage.bytes()), coverage.reads());
        }
    }
}
