//! Operations of the mover on range nodes: mark them, take the blocks written meanwhile, close them.
//!
//! Invariants:
//! * A block is dirty if any writer held it between the marking of its node and the last time its bits were taken, or holds
//!   it still. So bytes that were read after the bits were taken, and whose block is not dirty again, are the last ones.
//! * Nodes are closed in ascending order, each once no writer is inside any more; a writer inside never waits for a closed
//!   node while it holds another one. So closing ends, and two closers cannot wait for each other.

use std::ops::Range;
use std::sync::Arc;

use polymux_types::Block;

use super::DirtyBlocks;
use super::node::{NodeTable, RangeNode, nodes_of};

/// Nodes that no writer may enter; dropping it opens them.
pub struct ClosedNodes {
    held: Vec<Arc<RangeNode>>,
}

impl NodeTable {
    /// Begins to record writes to the nodes of these blocks. One move of a file at a time.
    pub fn mark_moving(&self, blocks: &Range<Block>) {
        for index in nodes_of(blocks) {
            let node = self.node(index);
            let mut pending = node.pending.lock();
            let mut dirty = Box::<DirtyBlocks>::default();
            for (start, end) in &pending.ranges {
                dirty.mark(index, *start..*end);
            }
            let before = pending.dirty.replace(dirty);
            assert!(before.is_none(), "a node is moved by one mover at a time");
        }
    }

    /// Ends the move begun by [`NodeTable::mark_moving`].
    pub fn unmark_moving(&self, blocks: &Range<Block>) {
        for index in nodes_of(blocks) {
            self.node(index).pending.lock().dirty = None;
        }
    }

    /// The blocks that were written since the nodes were marked or this was last asked, in order. Who is still inside
    /// makes its blocks dirty again when it leaves.
    pub fn take_dirty(&self, blocks: &Range<Block>) -> Vec<Range<Block>> {
        let mut runs = Vec::new();
        for index in nodes_of(blocks) {
            let node = self.node(index);
            let mut pending = node.pending.lock();
            let dirty = pending.dirty.as_deref_mut().expect("only a marked node is asked");
            if dirty.count() > 0 {
                runs.extend(std::mem::take(dirty).runs(index));
            }
        }
        runs
    }

    /// Blocks that are dirty now.
    pub fn dirty_count(&self, blocks: &Range<Block>) -> u64 {
        let count = |index| self.node(index).pending.lock().dirty.as_deref().map_or(0, DirtyBlocks::count);
        nodes_of(blocks).map(count).sum()
    }

    /// Waits until no writer is inside the nodes of these blocks, and admits no new one.
    pub fn close(&self, blocks: &Range<Block>) -> ClosedNodes {
        let mut closed = ClosedNodes { held: Vec::new() };
        for index in nodes_of(blocks) {
            let node = self.node(index);
            let mut pending = node.pending.lock();
            while pending.is_closed {
                node.left.wait(&mut pending);
            }
            pending.is_closed = true;
            while !pending.ranges.is_empty() {
                node.left.wait(&mut pending);
            }
            drop(pending);
            closed.held.push(node);
        }
        closed
    }
}

impl Drop for ClosedNodes {
    fn drop(&mut self) {
        for node in &self.held {
            node.pending.lock().is_closed = false;
            node.left.notify_all();
        }
    }
}

/// The blocks of whole nodes that contain `blocks`.
pub fn whole_nodes(blocks: &Range<Block>) -> Range<Block> {
    Block::first_of_node(blocks.start.node())..Block::first_of_node(blocks.end.node_at_or_after())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blockmap::BLOCKS_PER_NODE;
    use std::sync::atomic::{AtomicBool, Ordering};

    const TWO: Range<Block> = Block(0)..Block(2 * BLOCKS_PER_NODE);

    fn blocks(range: Range<u64>) -> Range<Block> {
        Block(range.start)..Block(range.end)
    }

    #[test]
    fn blocks_are_dirty_on_entering_and_again_on_leaving() {
        let table = NodeTable::default();
        let early = table.hold(blocks(5..6));
        table.mark_moving(&TWO);
        assert_eq!(table.take_dirty(&TWO), vec![blocks(5..6)], "whoever was inside already counts");
        let late = table.hold(blocks(BLOCKS_PER_NODE - 1..BLOCKS_PER_NODE + 1));
        assert_eq!(table.dirty_count(&TWO), 2);
        assert_eq!(
            table.take_dirty(&TWO),
            [BLOCKS_PER_NODE - 1..BLOCKS_PER_NODE, BLOCKS_PER_NODE..BLOCKS_PER_NODE + 1].map(blocks)
        );
        drop((early, late));
        assert_eq!(table.dirty_count(&TWO), 3);
        table.unmark_moving(&TWO);
        drop(table.hold(blocks(1..2)));
        assert_eq!(table.dirty_count(&TWO), 0);
    }

    #[test]
    fn a_closed_node_keeps_writers_out_until_it_opens() {
        let table = NodeTable::default();
        let closed = table.close(&blocks(BLOCKS_PER_NODE..BLOCKS_PER_NODE + 1));
        assert!(table.try_hold(blocks(BLOCKS_PER_NODE + 7..BLOCKS_PER_NODE + 8)).is_none());
        assert!(table.try_hold(blocks(BLOCKS_PER_NODE - 1..BLOCKS_PER_NODE + 1)).is_none(), "nor half of a range");
        assert!(table.try_hold(blocks(0..BLOCKS_PER_NODE)).is_some(), "a failed attempt leaves nothing behind");
        drop(closed);
        assert!(table.try_hold(blocks(BLOCKS_PER_NODE..BLOCKS_PER_NODE + 1)).is_some());
    }

    #[test]
    fn whoever_finds_a_node_closed_holds_no_earlier_one() {
        let table = NodeTable::default();
        let closed = table.close(&blocks(BLOCKS_PER_NODE..BLOCKS_PER_NODE + 1));
        let through = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(table.hold(blocks(0..2 * BLOCKS_PER_NODE)));
                through.store(true, Ordering::SeqCst);
            });
            // The earlier node must become free again while the other thread waits.
            while table.try_hold(blocks(0..BLOCKS_PER_NODE)).is_none() {
                std::thread::yield_now();
            }
            drop(table.close(&blocks(0..1)));
            assert!(!through.load(Ordering::SeqCst));
            drop(closed);
        });
        assert!(through.load(Ordering::SeqCst));
    }

    #[test]
    fn closing_and_writers_of_several_nodes_never_deadlock() {
        let table = NodeTable::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..500 {
                        let start = (thread * 211 + round * 97) % (3 * BLOCKS_PER_NODE);
                        drop(table.hold(blocks(start..start + BLOCKS_PER_NODE + 9)));
                    }
                });
            }
            for round in 0..200_u64 {
                let first = round % 3 * BLOCKS_PER_NODE;
                drop(table.close(&blocks(first..first + 2 * BLOCKS_PER_NODE)));
            }
        });
    }
}
