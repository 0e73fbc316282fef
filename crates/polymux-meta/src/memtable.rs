//! Changes that are not in the tables yet: the latest one of each key, in memory (A4).
//!
//! Invariants:
//! * Keys are spread over shards by their *group*, the first [`GROUP_LENGTH`] bytes. All keys of a group are in one shard,
//!   and the changes of one batch to one group become visible together; those to several groups do not. Callers that
//!   need more order their own operations (A5: the locks of the inodes).
//! * A later change replaces an earlier one in place, so a key that is written a thousand times takes one entry. Of two
//!   changes the one with the greater sequence counts, in whatever order they arrive.
//! * A removal stays as an entry without a value, because the tables may hold the key.
//! * Locks: one shard at a time for changes; a range read holds one shard at a time too.

mod key;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, Hasher};
use std::ops::Bound;

use smallvec::SmallVec;

use crate::batch::{Batch, ChangeRef};
use polymux_types::sync::{AtomicU64, Ordering, RwLock};

pub(crate) use key::Key;

/// Bytes of a key that make its group.
pub const GROUP_LENGTH: usize = 13;

const SHARDS: usize = 64;

/// Memory of an entry beyond its value and the part of its key stored elsewhere: 96 bytes for the head of the key and the slot, nearly as
/// much again for the free part of a tree node (keys that ascend leave nodes half full), and the bytes that the allocator
/// adds to the box of the value. Measured as growth of resident memory.
const ENTRY_OVERHEAD: u64 = 208;

/// The latest change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) sequence: u64,
    /// The first change of the key here was a setting: it may be that no table holds it.
    pub(crate) origin: Origin,
    /// `None` for a removal.
    pub(crate) value: Option<Box<[u8]>>,
}

/// Where a key that a memtable knows was first heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was set here; whether something older holds it is not known.
    Here,
    /// Its removal came first, so something older holds it: who removes a name has found it.
    Older,
}

/// An entry read from a memtable.
pub(crate) type MemoryEntry = (Vec<u8>, Slot);

#[derive(Default)]
struct Shard {
    entries: BTreeMap<Key, Slot>,
}

/// Shards share no cache line, so that threads in different groups do not slow each other down.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// One memtable. It covers the log from `start` to wherever it was sealed.
pub(crate) struct Memtable {
    shards: Vec<Apart<RwLock<Shard>>>,
    bytes: Vec<Apart<AtomicU64>>,
    start: u64,
}

impl Memtable {
    /// An empty memtable for transactions logged from `start` on.
    pub(crate) fn new(start: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Apart(RwLock::new(Shard::default()))).collect();
        let bytes = (0..SHARDS).map(|_| Apart(AtomicU64::new(0))).collect();
        Self { shards, bytes, start }
    }

    /// First position of the log that it covers.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Memory that it takes, in bytes, nearly.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.iter().map(|bytes| bytes.0.load(Ordering::Relaxed)).sum()
    }

    /// Applies a batch whose place in the order is `sequence`.
    pub(crate) fn apply(&self, batch: &Batch, sequence: u64) {
        let shards: SmallVec<[usize; 16]> = batch.iter().map(|change| shard_of(change.key)).collect();
        // A bit for each shard that still has changes to take; the changes of a shard go in under one lock.
        let mut pending = shards.iter().fold(0_u64, |pending, shard| pending | 1 << shard);
        while pending != 0 {
            let index = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            let mut shard = self.shards[index].0.write();
            let mut grown = 0_i64;
            for (change, _) in batch.iter().zip(&shards).filter(|(_, of)| **of == index) {
                grown += shard.put(change, sequence);
            }
            drop(shard);
            self.bytes[index].0.fetch_add_signed(grown);
        }
    }

    /// The latest change of a key, if there is one here.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Slot> {
        self.shards[shard_of(key)].0.read().entries.get(&Key::new(key)).cloned()
    }

    /// Changes with `from <= key < to` in ascending order, at most about `limit`, and the first key that was not looked at
    /// (`None` where the end was reached).
    pub(crate) fn range(&self, from: &[u8], to: &[u8], limit: usize) -> (Vec<MemoryEntry>, Option<Vec<u8>>) {
        if from >= to {
            return (Vec::new(), None);
        }
        if let Some(shard) = group_range(from, to) {
            return self.range_of_shard(shard, from, to, limit);
        }
        // Groups are spread evenly, so a shard holds its share; entries beyond the shortest share are read again later.
        let share = (limit / SHARDS).saturating_mul(2).max(16);
        let mut found = Vec::new();
        let mut cut: Option<Vec<u8>> = None;
        for shard in 0..SHARDS {
            let (entries, next) = self.range_of_shard(shard, from, to, share);
            found.extend(entries);
            cut = match (cut, next) {
                (Some(cut), Some(next)) => Some(cut.min(next)),
                (cut, next) => cut.or(next),
            };
        }
        if let Some(cut) = &cut {
            found.retain(|(key, _)| key < cut);
        }
        found.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        (found, cut)
    }

    fn range_of_shard(
        &self,
        shard: usize,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> (Vec<MemoryEntry>, Option<Vec<u8>>) {
        let shard = self.shards[shard].0.read();
        let mut entries = shard.entries.range((Bound::Included(Key::new(from)), Bound::Excluded(Key::new(to))));
        let found: Vec<MemoryEntry> =
            entries.by_ref().take(limit).map(|(key, slot)| (key.to_bytes(), slot.clone())).collect();
        let next = entries.next().map(|(key, _)| key.to_bytes());
        (found, next)
    }

    /// Gives everything, in ascending order of the keys, to `read`. Changes wait meanwhile, so this is for a memtable that
    /// is sealed.
    pub(crate) fn sorted<T>(&self, read: impl FnOnce(&[(&Key, &Slot)]) -> T) -> T {
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.read()).collect();
        let entries = shards.iter().flat_map(|shard| shard.entries.iter());
        let mut entries: Vec<_> = entries.map(|(key, slot)| (key.beginning(), key, slot)).collect();
        // Each shard is a sorted run, and this sort merges the runs that it finds. Keys of two shards mostly differ in their
        // beginning, so the keys themselves, which lie all over the memory, are seldom looked at.
        entries.sort_by(|left, right| left.0.cmp(&right.0).then_with(|| left.1.cmp(right.1)));
        let entries: Vec<(&Key, &Slot)> = entries.into_iter().map(|(_, key, slot)| (key, slot)).collect();
        read(&entries)
    }
}

impl Shard {
    /// Applies one change; returns how many bytes more are taken.
    fn put(&mut self, change: ChangeRef<'_>, sequence: u64) -> i64 {
        let length = |bytes: usize| i64::try_from(bytes).expect("a length fits");
        let value_length = length(change.value.map_or(0, <[u8]>::len));
        match self.entries.entry(Key::new(change.key)) {
            Entry::Occupied(slot) if slot.get().sequence > sequence => 0,
            Entry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                let before = length(slot.value.as_ref().map_or(0, |value| value.len()));
                match (&mut slot.value, change.value) {
                    // The commonest change: a record of the same size, written over.
                    (Some(old), Some(new)) if old.len() == new.len() => old.copy_from_slice(new),
                    (old, new) => *old = new.map(Box::from),
                }
                slot.sequence = sequence;
                value_length - before
            }
            Entry::Vacant(place) => {
                let overhead = i64::try_from(ENTRY_OVERHEAD).expect("a small number fits");
                let rest = length(place.key().rest_length());
                let origin = if change.value.is_some() { Origin::Here } else { Origin::Older };
                place.insert(Slot { sequence, origin, value: change.value.map(Box::from) });
                rest + value_length + overhead
            }
        }
    }
}

/// Adds a signed number to an unsigned one that never becomes negative.
trait FetchAddSigned {
    fn fetch_add_signed(&self, change: i64);
}

impl FetchAddSigned for AtomicU64 {
    fn fetch_add_signed(&self, change: i64) {
        if change >= 0 {
            self.fetch_add(change.unsigned_abs(), Ordering::Relaxed);
        } else {
            self.fetch_sub(change.unsigned_abs(), Ordering::Relaxed);
        }
    }
}

/// The shard of a range that lies within the group of `from`.
fn group_range(from: &[u8], to: &[u8]) -> Option<usize> {
    let group = from.get(..GROUP_LENGTH)?;
    let mut next = group.to_vec();
    while let Some(last) = next.pop() {
        if let Some(higher) = last.checked_add(1) {
            next.push(higher);
            break;
        }
    }
    (to <= next.as_slice()).then(|| shard_of(from))
}

fn shard_of(key: &[u8]) -> usize {
    let mut hasher = Spread.build_hasher();
    hasher.write(&key[..key.len().min(GROUP_LENGTH)]);
    usize::try_from(hasher.finish() % SHARDS as u64).expect("a shard's number is small")
}

/// A hash for spreading, not for defence: a choice of keys can at worst put them all into one shard, which is then one
/// ordered map as any other.
struct Spread;

struct SpreadHasher(u64);

impl BuildHasher for Spread {
    type Hasher = SpreadHasher;

    fn build_hasher(&self) -> SpreadHasher {
        SpreadHasher(0)
    }
}

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for word in words.iter().chain(std::iter::once(&last)) {
            self.0 = (self.0 ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        self.0 = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(group: u8, rest: u8) -> Vec<u8> {
        let mut key = vec![group; GROUP_LENGTH];
        key.push(rest);
        key
    }

    fn apply(memtable: &Memtable, key: &[u8], value: Option<&[u8]>, sequence: u64) {
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
        memtable.apply(&batch, sequence);
    }

    #[test]
    fn the_change_with_the_greater_sequence_counts_in_whatever_order_they_come() {
        let memtable = Memtable::new(0);
        apply(&memtable, b"key", Some(b"second"), 2);
        apply(&memtable, b"key", Some(b"first"), 1);
        assert_eq!(memtable.get(b"key").unwrap().value.as_deref(), Some(b"second".as_slice()));
        apply(&memtable, b"key", None, 3);
        assert_eq!(memtable.get(b"key"), Some(Slot { sequence: 3, origin: Origin::Here, value: None }));
        assert_eq!(memtable.get(b"other"), None);
    }

    #[test]
    fn a_key_that_is_written_often_takes_the_room_of_one() {
        let memtable = Memtable::new(0);
        apply(&memtable, b"key", Some(&[1; 100]), 1);
        let once = memtable.bytes();
        for sequence in 2..1000 {
            apply(&memtable, b"key", Some(&[2; 100]), sequence);
        }
        assert_eq!(memtable.bytes(), once);
        apply(&memtable, b"key", None, 1000);
        assert_eq!(memtable.bytes(), once - 100);
    }

    #[test]
    fn ranges_within_a_group_and_across_groups_come_in_order_and_say_where_they_stopped() {
        let memtable = Memtable::new(0);
        for group in 0..40 {
            for rest in 0..10 {
                apply(&memtable, &key(group, rest), Some(&[group]), u64::from(group) + 1);
            }
        }
        let (found, next) = memtable.range(&key(3, 2), &key(3, 8), 4);
        assert_eq!(found.iter().map(|(key, _)| key[GROUP_LENGTH]).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(next.as_deref(), Some(key(3, 6).as_slice()));
        let mut all = Vec::new();
        let mut from = vec![0];
        loop {
            let (found, next) = memtable.range(&from, &[0xff], 64);
            all.extend(found);
            let Some(next) = next else { break };
            assert!(next > from, "each step gets further");
            from = next;
        }
        assert_eq!(all.len(), 400);
        assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let sorted: Vec<_> = memtable.sorted(|entries| entries.iter().map(|(key, _)| key.to_bytes()).collect());
        assert_eq!(sorted, all.into_iter().map(|(key, _)| key.to_vec()).collect::<Vec<_>>());
    }

    #[test]
    fn groups_spread_over_the_shards() {
        let mut used = [0; SHARDS];
        for number in 0..6400_u64 {
            let mut key = vec![0, 0, 0, 0, b'd'];
            key.extend_from_slice(&number.to_be_bytes());
            used[shard_of(&key)] += 1;
        }
        assert!(used.iter().all(|count| (40..200).contains(count)), "{used:?}");
    }
}
