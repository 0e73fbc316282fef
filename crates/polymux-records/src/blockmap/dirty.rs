//! The blocks of one range node that were written while the mover copies it (M10, docs/design/0010).

use std::ops::Range;

use polymux_types::Block;

use super::BLOCKS_PER_NODE;

const WORDS: usize = 8;

const _: () = assert!(WORDS as u64 * 64 == BLOCKS_PER_NODE, "there is a bit for each block");

/// One bit for each block of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirtyBlocks {
    words: [u64; WORDS],
}

impl DirtyBlocks {
    /// Marks the part of `blocks` (counted from the beginning of the file) in the node of this index.
    pub fn mark(&mut self, node: u64, blocks: Range<Block>) {
        let first = Block::first_of_node(node);
        let start = blocks.start.max(first) - first;
        let end = blocks.end.min(first + BLOCKS_PER_NODE).0.saturating_sub(first.0);
        for block in start..end {
            *self.word_mut(block) |= 1 << (block % 64);
        }
    }

    fn word(&self, block: u64) -> u64 {
        self.words[usize::try_from(block / 64).expect("a block of a node")]
    }

    fn word_mut(&mut self, block: u64) -> &mut u64 {
        &mut self.words[usize::try_from(block / 64).expect("a block of a node")]
    }

    /// Number of marked blocks.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The marked runs, counted from the beginning of the file, in order.
    pub fn runs(&self, node: u64) -> Vec<Range<Block>> {
        let first = Block::first_of_node(node);
        let mut runs: Vec<Range<Block>> = Vec::new();
        for block in 0..BLOCKS_PER_NODE {
            if self.word(block) & (1 << (block % 64)) == 0 {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == first + block => run.end = run.end + 1,
                _ => runs.push(first + block..first + block + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(range: Range<u64>) -> Range<Block> {
        Block(range.start)..Block(range.end)
    }

    #[test]
    fn only_blocks_of_the_node_are_marked_and_runs_are_whole() {
        let mut dirty = DirtyBlocks::default();
        dirty.mark(1, blocks(0..BLOCKS_PER_NODE + 3));
        dirty.mark(1, blocks(BLOCKS_PER_NODE + 100..BLOCKS_PER_NODE + 101));
        dirty.mark(1, blocks(2 * BLOCKS_PER_NODE - 1..9 * BLOCKS_PER_NODE));
        dirty.mark(1, blocks(5 * BLOCKS_PER_NODE..6 * BLOCKS_PER_NODE));
        dirty.mark(1, blocks(0..5));
        assert_eq!(dirty.count(), 5);
        let base = BLOCKS_PER_NODE;
        assert_eq!(dirty.runs(1), [base..base + 3, base + 100..base + 101, 2 * base - 1..2 * base].map(blocks));
    }
}
