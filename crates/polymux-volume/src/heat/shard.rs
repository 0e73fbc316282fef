//! A part of the table: sets of eight entries, found by hash.
//!
//! Invariants:
//! * An entry lies in the one set that its hash names, so that finding, making and giving up are looks at eight
//!   entries.
//! * A set that is full splits, with all others of the shard, until the shard has its most sets; then the coldest of
//!   the eight goes. So memory follows use, and each entry takes its 32 bytes and nothing beside.
//! * Sets are named by the high bits of the hash, so that splitting keeps their order and a cursor stays good.

use polymux_types::Ino;

use super::decay::Decay;
use super::entry::Entry;

/// Entries of a set.
const WAYS: usize = 8;

/// Bytes of a set.
pub(crate) const SET_BYTES: usize = WAYS * size_of::<Entry>();

/// Hot nodes that wait in one shard. A node that finds no place is reported when it is touched again.
const HOT_MAX: usize = 256;

pub(crate) type Set = [Entry; WAYS];

/// The allowed effect of [`Shard::find_or_make`] on the other entries of a full set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The coldest goes.
    Coldest,
    /// The coldest goes if it is colder than this.
    ColderThan(u32),
}

#[derive(Debug)]
pub(crate) struct Shard {
    /// A power of two.
    sets: Vec<Set>,
    sets_max: usize,
    pub entries: u64,
    pub evictions: u64,
    pub hot: Vec<(Ino, u32)>,
}

/// Spreads inode and node over 64 bits.
pub fn hash(ino: u64, node: u32) -> u64 {
    let mixed = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(node).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

impl Shard {
    /// `sets_max` is a power of two.
    pub fn new(sets_max: usize) -> Self {
        assert!(sets_max.is_power_of_two(), "sets split in halves");
        Self { sets: vec![Set::default()], sets_max, entries: 0, evictions: 0, hot: Vec::new() }
    }

    /// The place of a set, for a hash whose highest bits are not those that chose the shard.
    fn place(hash: u64, sets: usize) -> usize {
        match sets.trailing_zeros() {
            0 => 0,
            bits => usize::try_from(hash >> (u64::BITS - bits)).expect("a place in memory fits"),
        }
    }

    pub fn find(&self, hash: u64, ino: u64, node: u32) -> Option<&Entry> {
        self.sets[Self::place(hash, self.sets.len())].iter().find(|entry| entry.is_for(ino, node))
    }

    pub(crate) fn find_mut(&mut self, hash: u64, ino: u64, node: u32) -> Option<&mut Entry> {
        let place = Self::place(hash, self.sets.len());
        self.sets[place].iter_mut().find(|entry| entry.is_for(ino, node))
    }

    /// The entry of a node; a new one where there is none. `None` where no other may go for it. `rehash` gives the
    /// hash of entries that split.
    pub(crate) fn find_or_make(
        &mut self,
        hash: u64,
        ino: u64,
        node: u32,
        eviction: Eviction,
        now: u32,
        decay: &Decay,
    ) -> Option<&mut Entry> {
        let place = Self::place(hash, self.sets.len());
        if let Some(way) = self.sets[place].iter().position(|entry| entry.is_for(ino, node)) {
            return Some(&mut self.sets[place][way]);
        }
        let way = loop {
            let place = Self::place(hash, self.sets.len());
            if let Some(way) = self.sets[place].iter().position(Entry::is_free) {
                self.entries += 1;
                break way;
            }
            if self.sets.len() < self.sets_max {
                self.split();
                continue;
            }
            let set = &self.sets[place];
            let heat = |way: &usize| set[*way].heat(now, decay);
            let coldest = (0..WAYS).min_by_key(heat).expect("a set has entries");
            match eviction {
                Eviction::ColderThan(limit) if heat(&coldest) >= limit => return None,
                _ => {}
            }
            self.evictions += 1;
            break coldest;
        };
        let place = Self::place(hash, self.sets.len());
        let entry = &mut self.sets[place][way];
        *entry = Entry::new(ino, node);
        Some(entry)
    }

    /// Twice as many sets. Each entry goes to one of the two that its set became.
    fn split(&mut self) {
        let count = self.sets.len() * 2;
        let old = std::mem::replace(&mut self.sets, vec![Set::default(); count]);
        for entry in old.into_iter().flatten().filter(|entry| !entry.is_free()) {
            let place = Self::place(Self::hash_within(hash(entry.ino, entry.node)), count);
            let free = self.sets[place].iter_mut().find(|slot| slot.is_free()).expect("half of a set fits into a set");
            *free = entry;
        }
    }

    /// The hash of a node inside its shard: without the bits that chose the shard.
    pub(crate) fn hash_within(hash: u64) -> u64 {
        hash << super::table::SHARD_BITS
    }

    pub fn remove(&mut self, hash: u64, ino: u64, node: u32) {
        if let Some(entry) = self.find_mut(hash, ino, node) {
            *entry = Entry::default();
            self.entries -= 1;
        }
    }

    /// Queues a hot node; whether there was a place.
    pub(crate) fn push_hot(&mut self, ino: Ino, node: u32) -> bool {
        let has_place = self.hot.len() < HOT_MAX;
        if has_place {
            self.hot.push((ino, node));
        }
        has_place
    }

    /// The set at a place of `sets_max`, and the place after it.
    pub(crate) fn set_at(&self, place: usize) -> (&Set, usize) {
        let places_per_set = self.sets_max / self.sets.len();
        (&self.sets[place / places_per_set], (place / places_per_set + 1) * places_per_set)
    }

    pub fn memory_bytes(&self) -> usize {
        self.sets.len() * SET_BYTES
    }
}
