//! All entries of a sealed memtable in order: a merge of its shards.
//!
//! What is true here: the guards are held as long as the merge lives, so nothing changes under it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Shard, Slot};
use crate::sync::RwLockReadGuard;

/// How many entries are copied out of a shard at once.
const STEP: usize = 256;

/// One shard that is being read.
struct Source<'a> {
    shard: RwLockReadGuard<'a, Shard>,
    /// Entries read ahead, in descending order.
    ahead: Vec<(Box<[u8]>, Slot)>,
    last: Option<Box<[u8]>>,
}

impl Source<'_> {
    /// Reads on where nothing is ahead; afterwards it is empty only at the end.
    fn refill(&mut self) {
        use std::ops::Bound;
        if !self.ahead.is_empty() {
            return;
        }
        let from = self.last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.shard.entries.range::<[u8], _>((from, Bound::Unbounded));
        self.ahead = entries.take(STEP).map(|(key, slot)| (key.clone(), slot.clone())).collect();
        self.ahead.reverse();
        self.last = self.ahead.first().map(|(key, _)| key.clone()).or(self.last.take());
    }
}

/// The entries of a memtable in ascending order.
pub(crate) struct Merged<'a> {
    sources: Vec<Source<'a>>,
    heads: BinaryHeap<Reverse<(Box<[u8]>, usize)>>,
}

impl<'a> Merged<'a> {
    pub(super) fn new(shards: impl Iterator<Item = RwLockReadGuard<'a, Shard>>) -> Self {
        let mut sources: Vec<Source<'a>> =
            shards.map(|shard| Source { shard, ahead: Vec::new(), last: None }).collect();
        let mut heads = BinaryHeap::new();
        for (index, source) in sources.iter_mut().enumerate() {
            source.refill();
            heads.extend(source.ahead.last().map(|(key, _)| Reverse((key.clone(), index))));
        }
        Self { sources, heads }
    }
}

impl Iterator for Merged<'_> {
    type Item = (Box<[u8]>, Slot);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((_, index)) = self.heads.pop()?;
        let source = &mut self.sources[index];
        let entry = source.ahead.pop().expect("a source with a head has an entry ahead");
        source.refill();
        self.heads.extend(source.ahead.last().map(|(key, _)| Reverse((key.clone(), index))));
        Some(entry)
    }
}
