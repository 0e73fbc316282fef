//! The exceptions of a block map, with what each owner has of them.
//!
//! Invariant: the number of exceptions of each slot, and the number of blocks of all of them, are those of the table. So the owners of a
//! file of half a million extents are known without a look at each.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use polymux_types::Block;

use super::Owner;

/// Where an exception starts, and who owns it.
pub(super) type Exception = (Block, Owner);

/// Exceptions by their end blocks, so that one seek finds the covering one.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions {
    by_end: BTreeMap<Block, Exception>,
    /// Exceptions of each slot that has any.
    of_slots: BTreeMap<u8, u64>,
    blocks: u64,
}

impl Exceptions {
    pub(super) fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    /// Blocks of all exceptions, which do not overlap.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Slots that own any, in order.
    pub(super) fn slots(&self) -> impl Iterator<Item = u8> + '_ {
        self.of_slots.keys().copied()
    }

    /// All in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Block, Exception)> + '_ {
        self.by_end.iter().map(|(end, exception)| (*end, *exception))
    }

    /// Those with their end blocks in a range, in order.
    pub(super) fn range(
        &self,
        ends: impl RangeBounds<Block>,
    ) -> impl DoubleEndedIterator<Item = (Block, Exception)> + '_ {
        self.by_end.range(ends).map(|(end, exception)| (*end, *exception))
    }

    /// Puts one in; returns the one with this end block that it replaces.
    pub(super) fn insert(&mut self, end: Block, exception: Exception) -> Option<Exception> {
        let before = self.remove(end);
        self.by_end.insert(end, exception);
        let (start, owner) = exception;
        self.blocks += end - start;
        if let Owner::Slot(slot) = owner {
            *self.of_slots.entry(slot).or_default() += 1;
        }
        before
    }

    pub(super) fn remove(&mut self, end: Block) -> Option<Exception> {
        let (start, owner) = self.by_end.remove(&end)?;
        self.blocks -= end - start;
        if let Owner::Slot(slot) = owner {
            let count = self.of_slots.get_mut(&slot).expect("each of its exceptions is counted");
            *count -= 1;
            if *count == 0 {
                self.of_slots.remove(&slot);
            }
        }
        Some((start, owner))
    }
}

impl PartialEq for Exceptions {
    fn eq(&self, other: &Self) -> bool {
        self.by_end == other.by_end
    }
}

impl Eq for Exceptions {}
