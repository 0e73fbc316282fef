//! The pages that the kernel keeps of the files of a simulation.

use std::sync::atomic::{AtomicU64, Ordering};

const BITS: u64 = u64::BITS as u64;

/// A bit for each block of each file: whether it is in memory.
#[derive(Debug)]
pub struct PageCache {
    files: Vec<Vec<AtomicU64>>,
}

/// The word of a block, and its bit there.
fn place(block: u64) -> (usize, u64) {
    (usize::try_from(block / BITS).expect("files of a simulation are small"), 1 << (block % BITS))
}

impl PageCache {
    /// An empty one, for so many files of so many blocks.
    pub fn new(files: usize, blocks: u64) -> Self {
        let words = || (0..blocks.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        Self { files: (0..files).map(|_| words()).collect() }
    }

    /// Whether a block is in memory.
    pub fn has(&self, file: usize, block: u64) -> bool {
        let (word, bit) = place(block);
        self.files[file][word].load(Ordering::Relaxed) & bit != 0
    }

    /// A block is in memory from now on.
    pub fn add(&self, file: usize, block: u64) {
        let (word, bit) = place(block);
        self.files[file][word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Nothing is in memory any more.
    pub fn drop_all(&self) {
        self.files.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}
