//! Uses that a program made by a lease, by range node, and the writes that it has under way. Placement learns from them which ranges are hot: from writes, and from reads that memory
//! did not answer.
//!
//! Invariants:
//! * The program adds, the daemon takes. The daemon believes no number further than it would believe a user of the mount, which may read as often as it
//!   likes; and it looks only at pages of counters that the program marks as changed, because a look at a page that was never written allocates it.
//! * A write is announced before its program looks whether the map is true, and until it has looked again. So a daemon that recalls a map and then sees no write announced
//!   knows that none reaches an object any more. A wrong number keeps it waiting for a bounded time.
//!
//! Layout of the memory, in words of 64 bits: the first page begins with a bit for each of the other pages, set by the program after it has counted
//! there, and has at 64 the number of writes under way (32 bits). The other pages hold the counters: for each node four words, of which the first three are short reads at random, bytes of streams, and writes.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_types::OutsideUse;
use polymux_types::limits::RANGE_NODE_SIZE;

use crate::memory::{Access, SharedMemory};

const PAGE: usize = 4096;
const NODE_LENGTH: usize = 32;
const NODES_OF_PAGE: usize = PAGE / NODE_LENGTH;
const WRITING_AT: usize = 64;
/// Most nodes with counters: 32 GiB of a file. Uses behind them are not counted.
const NODES_MAX: usize = 128 * NODES_OF_PAGE;

/// Counters in shared memory.
#[derive(Debug)]
pub struct UseCounts {
    memory: SharedMemory,
    nodes: usize,
}

fn place_of(node: usize) -> usize {
    PAGE + node * NODE_LENGTH
}

impl UseCounts {
    /// The daemon's side, for a file of `size` bytes, and its descriptor for a program.
    ///
    /// # Errors
    /// There is no memory or no descriptor left.
    pub fn create(size: u64) -> io::Result<(Self, OwnedFd)> {
        let nodes = usize::try_from(size.div_ceil(RANGE_NODE_SIZE)).unwrap_or(usize::MAX).clamp(1, NODES_MAX);
        let (memory, descriptor) = SharedMemory::create("polymux-uses", place_of(nodes), Access::ReadWrite)?;
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

    /// Announces a write. To be ended by [`Self::end_write`].
    #[inline]
    pub fn begin_write(&self) {
        self.memory.word(WRITING_AT).fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a write; returns whether no other one is under way.
    #[inline]
    pub fn end_write(&self) -> bool {
        self.memory.word(WRITING_AT).fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Whether a write is announced.
    #[inline]
    #[must_use]
    pub fn has_writes_under_way(&self) -> bool {
        self.memory.word(WRITING_AT).load(Ordering::SeqCst) != 0
    }

    /// The word with the bit of a page, and the bit.
    fn changed(&self, page: usize) -> (&AtomicU64, u64) {
        (self.memory.long_word(page / 64 * 8), 1 << (page % 64))
    }

    fn add(&self, offset: u64, uses: OutsideUse) {
        let Some(node) = usize::try_from(offset / RANGE_NODE_SIZE).ok().filter(|node| *node < self.nodes) else {
            return;
        };
        let at = place_of(node);
        for (at, more) in [(at, uses.random), (at + 8, uses.stream_bytes), (at + 16, uses.writes)] {
            if more > 0 {
                self.memory.long_word(at).fetch_add(more, Ordering::Relaxed);
            }
        }
        let (changed, bit) = self.changed(node / NODES_OF_PAGE);
        if changed.load(Ordering::Relaxed) & bit == 0 {
            changed.fetch_or(bit, Ordering::Release);
        }
    }

    /// Counts a short read that a device answered.
    pub fn note_random(&self, offset: u64) {
        self.add(offset, OutsideUse { random: 1, ..OutsideUse::default() });
    }

    /// Counts a write.
    pub fn note_write(&self, offset: u64) {
        self.add(offset, OutsideUse { writes: 1, ..OutsideUse::default() });
    }

    /// Counts a read in order, or a long one.
    pub fn note_stream(&self, offset: u64, length: usize) {
        let end = offset.saturating_add(length as u64);
        let mut position = offset;
        while position < end {
            let next = end.min((position / RANGE_NODE_SIZE + 1) * RANGE_NODE_SIZE);
            self.add(position, OutsideUse { stream_bytes: next - position, ..OutsideUse::default() });
            position = next;
        }
    }

    /// Takes the uses since the last call, of the nodes that have any, until `each` says that it is enough. The rest stays for the next call.
    pub fn take(&self, mut each: impl FnMut(u64, OutsideUse) -> ControlFlow<()>) {
        for page in 0..self.nodes.div_ceil(NODES_OF_PAGE) {
            let (changed, bit) = self.changed(page);
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
                let uses = OutsideUse { random: take(at), stream_bytes: take(at + 8), writes: take(at + 16) };
                if uses != OutsideUse::default() && each(node as u64, uses).is_break() {
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

    fn taken(counts: &UseCounts, enough: usize) -> Vec<(u64, u64, u64, u64)> {
        let mut taken = Vec::new();
        counts.take(|node, uses| {
            taken.push((node, uses.random, uses.stream_bytes, uses.writes));
            if taken.len() < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        taken
    }

    #[test]
    fn reads_are_counted_where_they_were_and_taken_once() {
        let (ours, descriptor) = UseCounts::create(300 * RANGE_NODE_SIZE).unwrap();
        let theirs = UseCounts::map(&descriptor).unwrap();
        theirs.note_random(RANGE_NODE_SIZE + 5);
        theirs.note_random(RANGE_NODE_SIZE + 9000);
        theirs.note_stream(280 * RANGE_NODE_SIZE - 100, 300);
        theirs.note_write(280 * RANGE_NODE_SIZE);
        // Beyond the counters, as of a file that grew.
        theirs.note_random(u64::MAX);
        assert_eq!(taken(&ours, usize::MAX), [(1, 2, 0, 0), (279, 0, 100, 0), (280, 0, 200, 1)]);
        assert_eq!(taken(&ours, usize::MAX), []);
    }

    #[test]
    fn nodes_beyond_those_that_are_enough_stay_for_the_next_time() {
        let (ours, descriptor) = UseCounts::create(NODES_MAX as u64 * RANGE_NODE_SIZE * 2).unwrap();
        let theirs = UseCounts::map(&descriptor).unwrap();
        (0..600).for_each(|node| theirs.note_random(node * RANGE_NODE_SIZE));
        let mut nodes: Vec<u64> = (0..7).flat_map(|_| taken(&ours, 100)).map(|(node, ..)| node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, (0..600).collect::<Vec<u64>>());
    }

    #[test]
    fn writes_under_way_are_announced_to_the_other_side() {
        let (ours, descriptor) = UseCounts::create(1).unwrap();
        let theirs = UseCounts::map(&descriptor).unwrap();
        assert!(!ours.has_writes_under_way());
        theirs.begin_write();
        theirs.begin_write();
        assert!(!theirs.end_write());
        assert!(ours.has_writes_under_way());
        assert!(theirs.end_write());
        assert!(!ours.has_writes_under_way());
    }
}
