//! Reads that a program made by a lease and memory did not answer, by range node: placement learns from them which ranges are hot.
//!
//! Invariants: the program adds, the daemon takes. The daemon believes no number further than it would believe a reader of the mount, which may read as often as it
//! likes; and it looks only at pages of counters that the program marks as changed, because a look at a page that was never written allocates it.
//!
//! Layout of the memory, in words of 64 bits: the first page begins with a word that has a bit for each of the other pages, set by the program after it has counted
//! there. These hold the counters: for each node two words, short reads at random and bytes of streams.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use polymux_types::OutsideReads;
use polymux_types::limits::RANGE_NODE_SIZE;

use crate::memory::{Access, SharedMemory};

const PAGE: usize = 4096;
const NODE_LENGTH: usize = 16;
const NODES_OF_PAGE: usize = PAGE / NODE_LENGTH;
/// Most nodes with counters: 32 GiB of a file. Reads behind them are not counted.
const NODES_MAX: usize = 64 * NODES_OF_PAGE;

/// Counters in shared memory.
#[derive(Debug)]
pub struct ReadCounts {
    memory: SharedMemory,
    nodes: usize,
}

fn place_of(node: usize) -> usize {
    PAGE + node * NODE_LENGTH
}

impl ReadCounts {
    /// The daemon's side, for a file of `size` bytes, and its descriptor for a program.
    ///
    /// # Errors
    /// There is no memory or no descriptor left.
    pub fn create(size: u64) -> io::Result<(Self, OwnedFd)> {
        let nodes = usize::try_from(size.div_ceil(RANGE_NODE_SIZE)).unwrap_or(usize::MAX).clamp(1, NODES_MAX);
        let (memory, descriptor) = SharedMemory::create("polymux-reads", place_of(nodes), Access::ReadWrite)?;
        Ok((Self { memory, nodes }, descriptor))
    }

    /// The program's side.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn map(descriptor: impl AsFd) -> io::Result<Self> {
        let memory = SharedMemory::map(descriptor, Access::ReadWrite, place_of(1))?;
        let nodes = ((memory.length() - PAGE) / NODE_LENGTH).min(NODES_MAX);
        Ok(Self { memory, nodes })
    }

    fn add(&self, offset: u64, reads: OutsideReads) {
        let Some(node) = usize::try_from(offset / RANGE_NODE_SIZE).ok().filter(|node| *node < self.nodes) else {
            return;
        };
        let at = place_of(node);
        for (at, more) in [(at, reads.random), (at + 8, reads.stream_bytes)] {
            if more > 0 {
                self.memory.long_word(at).fetch_add(more, Ordering::Relaxed);
            }
        }
        let (changed, bit) = (self.memory.long_word(0), 1 << (node / NODES_OF_PAGE));
        if changed.load(Ordering::Relaxed) & bit == 0 {
            changed.fetch_or(bit, Ordering::Release);
        }
    }

    /// Counts a short read that a device answered.
    pub fn note_random(&self, offset: u64) {
        self.add(offset, OutsideReads { random: 1, stream_bytes: 0 });
    }

    /// Counts a read in order, or a long one.
    pub fn note_stream(&self, offset: u64, length: usize) {
        let end = offset.saturating_add(length as u64);
        let mut position = offset;
        while position < end {
            let next = end.min((position / RANGE_NODE_SIZE + 1) * RANGE_NODE_SIZE);
            self.add(position, OutsideReads { random: 0, stream_bytes: next - position });
            position = next;
        }
    }

    /// Takes the reads since the last call, of the nodes that have any, until `each` says that it is enough. The rest stays for the next call.
    pub fn take(&self, mut each: impl FnMut(u64, OutsideReads) -> ControlFlow<()>) {
        let changed = self.memory.long_word(0);
        for page in 0..self.nodes.div_ceil(NODES_OF_PAGE) {
            let bit = 1 << page;
            // Cleared first: a count that comes meanwhile sets it again.
            if changed.load(Ordering::Acquire) & bit == 0 || changed.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
                continue;
            }
            let first = page * NODES_OF_PAGE;
            for node in first..self.nodes.min(first + NODES_OF_PAGE) {
                let take = |at| {
                    let word = self.memory.long_word(at);
                    if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Relaxed) }
                };
                let at = place_of(node);
                let reads = OutsideReads { random: take(at), stream_bytes: take(at + 8) };
                if reads != OutsideReads::default() && each(node as u64, reads).is_break() {
                    changed.fetch_or(bit, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(counts: &ReadCounts, enough: usize) -> Vec<(u64, u64, u64)> {
        let mut taken = Vec::new();
        counts.take(|node, reads| {
            taken.push((node, reads.random, reads.stream_bytes));
            if taken.len() < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        taken
    }

    #[test]
    fn reads_are_counted_where_they_were_and_taken_once() {
        let (ours, descriptor) = ReadCounts::create(300 * RANGE_NODE_SIZE).unwrap();
        let theirs = ReadCounts::map(&descriptor).unwrap();
        theirs.note_random(RANGE_NODE_SIZE + 5);
        theirs.note_random(RANGE_NODE_SIZE + 9000);
        theirs.note_stream(280 * RANGE_NODE_SIZE - 100, 300);
        // Beyond the counters, as of a file that grew.
        theirs.note_random(u64::MAX);
        assert_eq!(taken(&ours, usize::MAX), [(1, 2, 0), (279, 0, 100), (280, 0, 200)]);
        assert_eq!(taken(&ours, usize::MAX), []);
    }

    #[test]
    fn nodes_beyond_those_that_are_enough_stay_for_the_next_time() {
        let (ours, descriptor) = ReadCounts::create(NODES_MAX as u64 * RANGE_NODE_SIZE * 2).unwrap();
        let theirs = ReadCounts::map(&descriptor).unwrap();
        (0..600).for_each(|node| theirs.note_random(node * RANGE_NODE_SIZE));
        let mut nodes: Vec<u64> = (0..7).flat_map(|_| taken(&ours, 100)).map(|(node, ..)| node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, (0..600).collect::<Vec<u64>>());
    }
}
