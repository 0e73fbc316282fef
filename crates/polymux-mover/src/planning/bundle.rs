//! Moves of one file that go together.

use std::ops::Range;

use polymux_types::Block;

use super::facts::blocks_of_node;

/// Ranges of one file, or all of it, with one destination.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    ranges: Vec<Range<Block>>,
    pub(crate) bytes: u64,
    pub(crate) is_whole: bool,
}

impl Bundle {
    pub(crate) fn add(&mut self, node: u64, bytes: u64) {
        self.ranges.push(blocks_of_node(node));
        self.bytes += bytes;
    }

    /// The nodes that it is about.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        self.ranges.iter().map(|range| range.start.node()).collect()
    }

    /// Its ranges in order, neighbours joined; `None` for the whole file.
    pub(crate) fn into_ranges(mut self) -> Option<Vec<Range<Block>>> {
        if self.is_whole {
            return None;
        }
        self.ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<Block>> = Vec::new();
        for range in self.ranges {
            match joined.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        Some(joined)
    }
}
