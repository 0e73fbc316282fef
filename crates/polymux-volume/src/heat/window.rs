//! Notes since the last look: a bounded map in shards, which is taken as a whole.
//!
//! Invariants: a note costs the lock of a shard, one is held at a time, and only an addition is done with it held. Of more keys
//! than fit into a shard those that come later are not seen in this window.

use std::collections::BTreeMap;

use polymux_types::sync::Mutex;

pub(super) const SHARDS: usize = 16;

/// The present window, of `KEYS_MAX` keys in a shard.
#[derive(Debug)]
pub(super) struct Window<K, V, const KEYS_MAX: usize> {
    shards: [Mutex<BTreeMap<K, V>>; SHARDS],
}

impl<K: Ord, V, const KEYS_MAX: usize> Default for Window<K, V, KEYS_MAX> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl<K: Ord, V: Default, const KEYS_MAX: usize> Window<K, V, KEYS_MAX> {
    /// Adds to the notes of a key.
    pub(super) fn note(&self, hash: u64, key: K, add: impl FnOnce(&mut V)) {
        let shard = usize::try_from(hash % SHARDS as u64).expect("a remainder fits");
        let mut shard = self.shards[shard].lock();
        if shard.len() < KEYS_MAX || shard.contains_key(&key) {
            add(shard.entry(key).or_default());
        }
    }

    /// Ends the window, and returns its contents.
    pub(super) fn take(&self) -> BTreeMap<K, V> {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            all.append(&mut shard.lock());
        }
        all
    }
}
