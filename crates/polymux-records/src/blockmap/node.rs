//! Range nodes: 2 MiB units of locking and version (P2), made on demand.
//!
//! Invariants:
//! * A writer holds its blocks in the pending list of every node it touches, taken in ascending order (C4): disjoint
//!   writers pass at once, overlapping ones wait their turn, and a waiting writer holds no later node.
//! * `map_version` is drawn from one counter per file, so that a node made anew never repeats a version. A reader notes
//!   the counter, reads, and is right if no node it touched carries a later version: a node that does not exist was not
//!   changed since the file came into memory.
//! * A node that is being moved records the blocks of every writer that is inside or enters, on entering and on leaving
//!   (docs/design/0010): bytes copied between the two are copied again.
//! * A closed node admits no writer. A writer that finds one closed releases the nodes that it holds and waits outside.
//! * Nodes live until the inode leaves memory; by then there are no readers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use polymux_types::Block;
use polymux_types::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, RwLock};
use smallvec::SmallVec;

#[cfg(shuttle)]
use super::planted::is_leaving_noted;
use super::{DirtyBlocks, OutsideUsers};
use crate::planted_faults::{PlantedFault, is_planted};

/// Always, except where the model checker has to find that it is not.
#[cfg(not(shuttle))]
const fn is_leaving_noted() -> bool {
    true
}

/// Who is inside a node.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Blocks being written, whole ranges of their writers.
    pub(super) ranges: SmallVec<[(Block, Block); 1]>,
    /// While the node is being moved: blocks of all writers that were inside since this was last taken.
    pub(super) dirty: Option<Box<DirtyBlocks>>,
    /// The mover has the node alone.
    pub(super) is_closed: bool,
}

#[derive(Debug, Default)]
pub(super) struct RangeNode {
    map_version: AtomicU64,
    pub(super) pending: Mutex<Pending>,
    /// A writer left, or the node was opened.
    pub(super) left: Condvar,
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<RangeNode>() <= 104, "a node with its place in the table takes 128 bytes at the most");

impl Pending {
    fn holds_any_of(&self, blocks: &Range<Block>) -> bool {
        self.ranges.iter().any(|(start, end)| *start < blocks.end && blocks.start < *end)
    }

    fn note_dirty(&mut self, node: u64, blocks: (Block, Block)) {
        if is_planted(PlantedFault::WritersBesideCopyUnnoticed) {
            return;
        }
        if let Some(dirty) = &mut self.dirty {
            dirty.mark(node, blocks.0..blocks.1);
        }
    }
}

impl RangeNode {
    fn wait_until_open(&self) {
        let mut pending = self.pending.lock();
        while pending.is_closed {
            self.left.wait(&mut pending);
        }
    }
}

/// All range nodes of one file.
#[derive(Debug, Default)]
pub struct NodeTable {
    nodes: RwLock<BTreeMap<u64, Arc<RangeNode>>>,
    version: AtomicU64,
    /// Version of the last change that reached to the end of all blocks, nodes that do not exist included.
    tail_version: AtomicU64,
    /// Readers that cannot look at versions.
    pub outside_users: OutsideUsers,
}

/// Blocks held by a writer; dropping it lets overlapping writers in.
pub struct RangeGuard {
    blocks: (Block, Block),
    held: SmallVec<[(u64, Arc<RangeNode>); 2]>,
}

pub(super) fn nodes_of(blocks: &Range<Block>) -> std::ops::RangeInclusive<u64> {
    assert!(blocks.start < blocks.end, "a range covers a block");
    blocks.start.node()..=(blocks.end - 1).node()
}

impl NodeTable {
    pub(super) fn node(&self, index: u64) -> Arc<RangeNode> {
        if let Some(node) = self.nodes.read().get(&index) {
            return node.clone();
        }
        self.nodes.write().entry(index).or_default().clone()
    }

    /// Waits until no other writer holds any of the blocks and no node of them is closed, and holds them.
    pub fn hold(&self, blocks: Range<Block>) -> RangeGuard {
        loop {
            let entered = self.enter(&blocks, |node, pending| {
                node.left.wait(pending);
                true
            });
            match entered {
                Ok(guard) => return guard,
                // A writer that waits for the end of a move holds no node.
                Err(closed) => closed.wait_until_open(),
            }
        }
    }

    /// As [`NodeTable::hold`], or `None` where it would wait.
    pub fn try_hold(&self, blocks: Range<Block>) -> Option<RangeGuard> {
        self.enter(&blocks, |_, _| false).ok()
    }

    /// Takes the blocks node by node. `wait` is called where another writer holds some of them; where it declines, and where
    /// a node is closed, everything taken so far is released and the node is returned.
    fn enter(
        &self,
        blocks: &Range<Block>,
        wait: impl Fn(&RangeNode, &mut MutexGuard<'_, Pending>) -> bool,
    ) -> Result<RangeGuard, Arc<RangeNode>> {
        let mut guard = RangeGuard { blocks: (blocks.start, blocks.end), held: SmallVec::new() };
        for index in nodes_of(blocks) {
            let node = self.node(index);
            let mut pending = node.pending.lock();
            loop {
                let stays_out = pending.is_closed || (pending.holds_any_of(blocks) && !wait(&node, &mut pending));
                if stays_out {
                    drop(pending);
                    return Err(node);
                }
                if !pending.is_closed && !pending.holds_any_of(blocks) {
                    break;
                }
            }
            pending.ranges.push(guard.blocks);
            pending.note_dirty(index, guard.blocks);
            drop(pending);
            guard.held.push((index, node));
        }
        Ok(guard)
    }

    /// The version that a reader notes before it looks up the map.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Marks the mapping of blocks as changed. Called with the map locked, before the change can be seen.
    pub fn mark_map_changed(&self, blocks: Range<Block>) {
        self.outside_users.recall_all();
        let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        if blocks.end == Block::END {
            self.tail_version.store(version, Ordering::Release);
            return;
        }
        for index in nodes_of(&blocks) {
            self.node(index).map_version.store(version, Ordering::Release);
        }
    }

    /// Whether the mapping of blocks is unchanged since `noted` was read.
    pub fn map_unchanged_since(&self, blocks: Range<Block>, noted: u64) -> bool {
        if self.version() == noted {
            return true;
        }
        if self.tail_version.load(Ordering::Acquire) > noted {
            return false;
        }
        let nodes = self.nodes.read();
        nodes.range(nodes_of(&blocks)).all(|(_, node)| node.map_version.load(Ordering::Acquire) <= noted)
    }

    #[cfg(test)]
    fn is_quiet(&self) -> bool {
        self.nodes.read().values().all(|node| node.pending.lock().ranges.is_empty())
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        for (index, node) in &self.held {
            let mut pending = node.pending.lock();
            let place = pending.ranges.iter().position(|range| *range == self.blocks);
            pending.ranges.swap_remove(place.expect("a guard is in the list it joined"));
            if is_leaving_noted() {
                pending.note_dirty(*index, self.blocks);
            }
            node.left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blockmap::BLOCKS_PER_NODE;
    use std::sync::atomic::AtomicU32;

    fn blocks(range: Range<u64>) -> Range<Block> {
        Block(range.start)..Block(range.end)
    }

    #[test]
    fn disjoint_writers_pass_and_overlapping_ones_do_not() {
        let table = NodeTable::default();
        let first = table.hold(blocks(0..10));
        assert!(table.try_hold(blocks(10..20)).is_some());
        assert!(table.try_hold(blocks(9..11)).is_none());
        drop(first);
        assert!(table.try_hold(blocks(9..11)).is_some());
        assert!(table.is_quiet(), "a failed attempt leaves nothing behind");
    }

    #[test]
    fn writers_of_several_nodes_never_run_together_nor_deadlock() {
        let table = NodeTable::default();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (table, inside) = (&table, &inside);
                scope.spawn(move || {
                    for round in 0..300 {
                        let start = (thread * 37 + round * 101) % (2 * BLOCKS_PER_NODE);
                        let _guard = table.hold(blocks(start..start + 2 * BLOCKS_PER_NODE));
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(table.is_quiet());
    }

    #[test]
    fn a_reader_sees_a_change_of_its_blocks_and_not_of_others() {
        let table = NodeTable::default();
        let noted = table.version();
        table.mark_map_changed(blocks(BLOCKS_PER_NODE..BLOCKS_PER_NODE + 1));
        assert!(table.map_unchanged_since(blocks(0..BLOCKS_PER_NODE), noted));
        assert!(!table.map_unchanged_since(blocks(0..BLOCKS_PER_NODE + 1), noted));
        assert!(table.map_unchanged_since(blocks(0..2 * BLOCKS_PER_NODE), table.version()));
    }

    #[test]
    fn a_cut_is_seen_by_readers_of_nodes_that_never_existed() {
        let table = NodeTable::default();
        let noted = table.version();
        table.mark_map_changed(Block(5)..Block::END);
        assert!(!table.map_unchanged_since(blocks(100 * BLOCKS_PER_NODE..101 * BLOCKS_PER_NODE), noted));
    }
}
