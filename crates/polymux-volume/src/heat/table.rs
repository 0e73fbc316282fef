//! The table of heat. See the module above.

use std::ops::Range;

use polymux_types::sync::{AtomicU64, Mutex, Ordering};
use polymux_types::{Ino, limits};

use super::decay::Decay;
use super::demand::DeviceDemand;
use super::device_reads::DeviceReads;
use super::entry::{Entry, OTHER_NODES};
use super::persist::Keeping;
use super::shard::{Eviction, SET_BYTES, Shard, hash};
use super::synced_directories::SyncedDirectories;
use super::{AccessKind, FileHeat, HeatCounters, HeatOptions, NodeHeat, Pattern};

/// Binary logarithm of the number of shards.
pub(crate) const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;

/// Nodes of a file that [`HeatTable::forget`] looks for one by one. Those beyond go cold and then out.
const FORGOTTEN_MAX: u64 = 4096;

/// Where [`HeatTable::for_each_after`] goes on. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeatCursor {
    shard: usize,
    place: usize,
}

/// A shard on cache lines of its own: two are fetched together.
#[repr(align(128))]
struct Slot(Mutex<Shard>);

/// Heat of all files of a volume.
pub struct HeatTable {
    shards: Box<[Slot]>,
    sets_max: usize,
    pub(super) decay: Decay,
    pub(super) half_life_seconds: u32,
    /// Hot nodes in the queues of all shards, so that asking for none costs nothing.
    hot_waiting: AtomicU64,
    /// The present device reads of programs.
    pub demand: DeviceDemand,
    /// The reads that each tier served in the last hour.
    pub device_reads: DeviceReads,
    /// Where files are made whose writes are waited for.
    pub synced_directories: SyncedDirectories,
    /// The progress of the background step with the records.
    pub(super) keeping: Mutex<Keeping>,
}

/// Logical seconds as entries hold them: 136 years.
pub(super) fn seconds(now: u64) -> u32 {
    u32::try_from(now).unwrap_or(u32::MAX)
}

/// A node as entries hold it. Beyond 8 PiB of a file its nodes share an entry.
fn node_number(node: u64) -> u32 {
    u32::try_from(node).unwrap_or(OTHER_NODES).min(OTHER_NODES - 1)
}

impl HeatTable {
    /// An empty table of a given size.
    pub fn new(options: HeatOptions) -> Self {
        let sets = (options.memory_bytes / SET_BYTES / SHARDS).max(1);
        let sets_max = 1 << sets.ilog2();
        Self {
            shards: (0..SHARDS).map(|_| Slot(Mutex::new(Shard::new(sets_max)))).collect(),
            sets_max,
            decay: Decay::new(options.half_life_seconds),
            half_life_seconds: options.half_life_seconds,
            hot_waiting: AtomicU64::new(0),
            demand: DeviceDemand::default(),
            device_reads: DeviceReads::default(),
            synced_directories: SyncedDirectories::default(),
            keeping: Mutex::new(Keeping::default()),
        }
    }

    fn slot(&self, ino: u64, node: u32) -> (&Mutex<Shard>, u64) {
        let hash = hash(ino, node);
        let shard = usize::try_from(hash >> (u64::BITS - SHARD_BITS)).expect("six bits fit");
        (&self.shards[shard].0, Shard::hash_within(hash))
    }

    /// Notes a request of `bytes` to a node (offset / 2 MiB) at a logical second. A request over several nodes touches
    /// each.
    pub fn touch(&self, ino: Ino, node: u64, kind: AccessKind, bytes: u64, pattern: Pattern, now: u64) {
        debug_assert!(bytes <= limits::RANGE_NODE_SIZE, "a request touches each of its nodes");
        let (node, now) = (node_number(node), seconds(now));
        let is_visit = {
            let (shard, hash) = self.slot(ino.0, node);
            let mut shard = shard.lock();
            let entry = shard.find_or_make(hash, ino.0, node, Eviction::Coldest, now, &self.decay);
            let touched = entry.expect("the coldest goes").touch(kind, pattern, now, &self.decay);
            if touched.became_hot && shard.push_hot(ino, node) {
                shard.find_mut(hash, ino.0, node).expect("it was just touched").set_told();
                self.hot_waiting.fetch_add(1, Ordering::Relaxed);
            }
            touched.is_visit
        };
        if is_visit && node != 0 {
            let (shard, hash) = self.slot(ino.0, OTHER_NODES);
            // Threads in one file meet here. A file where they do is touched often enough for one that is not counted.
            if let Some(mut shard) = shard.try_lock() {
                let entry = shard.find_or_make(hash, ino.0, OTHER_NODES, Eviction::Coldest, now, &self.decay);
                entry.expect("the coldest goes").touch(kind, pattern, now, &self.decay);
            }
        }
    }

    fn describe(&self, ino: Ino, node: u32, now: u32) -> Option<NodeHeat> {
        let (shard, hash) = self.slot(ino.0, node);
        let shard = shard.lock();
        shard.find(hash, ino.0, node).map(|entry| entry.describe(now, &self.decay))
    }

    /// Heat of a node. An unknown one was idle since the volume was made.
    pub fn node(&self, ino: Ino, node: u64, now: u64) -> NodeHeat {
        let (node, now) = (node_number(node), seconds(now));
        let unknown = NodeHeat { idle_seconds: now, ..NodeHeat::default() };
        let mut found = self.describe(ino, node, now).unwrap_or(unknown);
        if node != 0 {
            found.sync_percent = self.describe(ino, OTHER_NODES, now).map_or(0, |file| file.sync_percent);
        }
        found
    }

    /// Heat of a file. It is the sum of that of its nodes, where each counts once in a second.
    pub fn file(&self, ino: Ino, now: u64) -> FileHeat {
        let now = seconds(now);
        match (self.describe(ino, 0, now), self.describe(ino, OTHER_NODES, now)) {
            (None, None) => NodeHeat { idle_seconds: now, ..NodeHeat::default() },
            (Some(heat), None) | (None, Some(heat)) => heat,
            (Some(first), Some(others)) => both(&first, &others),
        }
    }

    /// A sync of a file succeeded.
    pub fn note_synced(&self, ino: Ino) {
        for node in [0, OTHER_NODES] {
            self.change(ino, node, Entry::note_synced);
        }
    }

    fn change(&self, ino: Ino, node: u32, change: impl FnOnce(&mut Entry)) {
        let (shard, hash) = self.slot(ino.0, node);
        if let Some(entry) = shard.lock().find_mut(hash, ino.0, node) {
            change(entry);
        }
    }

    /// Nodes of a file moved to another tier. Also remembered of nodes that are cold, if there is space beside
    /// warm ones.
    pub fn note_moved(&self, ino: Ino, nodes: Range<u64>, now: u64) {
        self.demand.note_moved(ino, nodes.clone());
        let now = seconds(now);
        for node in nodes.map(node_number) {
            let (shard, hash) = self.slot(ino.0, node);
            let mut shard = shard.lock();
            // Only the coldest possible entry is replaced.
            if let Some(entry) = shard.find_or_make(hash, ino.0, node, Eviction::ColderThan(1), now, &self.decay) {
                entry.note_moved(now);
            }
        }
    }

    /// A file is deleted: it had this many nodes. Its records in the store are removed by later passes.
    pub fn forget(&self, ino: Ino, nodes: u64) {
        let others = if nodes > 1 { Some(OTHER_NODES) } else { None };
        for node in (0..nodes.clamp(1, FORGOTTEN_MAX)).map(node_number).chain(others) {
            let (shard, hash) = self.slot(ino.0, node);
            shard.lock().remove(hash, ino.0, node);
        }
    }

    /// Up to `limit` nodes that became hot and were not reported since they did: visited twice, with 1.5 accesses left
    /// of all. One is reported again after it moved, cooled, or [`HeatTable::tell_again`]. Files may be gone meanwhile.
    pub fn take_hot(&self, limit: usize) -> Vec<(Ino, u64)> {
        let mut taken = Vec::new();
        for slot in &self.shards {
            if taken.len() >= limit || self.hot_waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            let mut shard = slot.0.lock();
            let count = shard.hot.len().min(limit - taken.len());
            taken.extend(shard.hot.drain(..count).map(|(ino, node)| (ino, u64::from(node))));
            self.hot_waiting.fetch_sub(count as u64, Ordering::Relaxed);
        }
        taken
    }

    /// A hot node could not be moved: it is reported again at its next touch.
    pub fn tell_again(&self, ino: Ino, node: u64) {
        self.change(ino, node_number(node), Entry::tell_again);
    }

    /// Visits about `limit` nodes after a place; gives the place to go on from, `None` at the end. No lock is held
    /// while `visit` runs. An entry that is there all the time is visited once.
    pub fn for_each_after(
        &self,
        cursor: HeatCursor,
        limit: usize,
        now: u64,
        mut visit: impl FnMut(Ino, u64, &NodeHeat),
    ) -> Option<HeatCursor> {
        let now = seconds(now);
        self.for_each_entry(cursor, limit, |entry| {
            if entry.node != OTHER_NODES {
                visit(Ino(entry.ino), u64::from(entry.node), &entry.describe(now, &self.decay));
            }
        })
    }

    pub(super) fn for_each_entry(
        &self,
        mut cursor: HeatCursor,
        limit: usize,
        mut visit: impl FnMut(&Entry),
    ) -> Option<HeatCursor> {
        let (mut visited, mut looked_at) = (0, 0);
        // Empty sets count a little, so that a step is bounded in an empty table too.
        while visited < limit && looked_at < limit.saturating_mul(16) {
            if cursor.place >= self.sets_max {
                cursor = HeatCursor { shard: cursor.shard + 1, place: 0 };
            }
            let slot = self.shards.get(cursor.shard)?;
            let (set, next) = {
                let shard = slot.0.lock();
                let (set, next) = shard.set_at(cursor.place);
                (*set, next)
            };
            cursor.place = next;
            looked_at += 1;
            for entry in set.iter().filter(|entry| !entry.is_free()) {
                visit(entry);
                visited += 1;
            }
        }
        Some(cursor)
    }

    /// A copy of an entry that is about to be saved, marked as saved.
    pub(super) fn take_for_saving(&self, ino: Ino, node: u32) -> Option<Entry> {
        let (shard, hash) = self.slot(ino.0, node);
        let mut shard = shard.lock();
        let entry = shard.find_mut(hash, ino.0, node)?;
        entry.set_saved();
        Some(*entry)
    }

    /// Restores the saved entry of a node, unless all entries of its set are hotter.
    pub(super) fn restore(&self, saved: &Entry, now: u32) {
        let (shard, hash) = self.slot(saved.ino, saved.node);
        let eviction = Eviction::ColderThan(saved.heat(now, &self.decay));
        let mut shard = shard.lock();
        if let Some(entry) = shard.find_or_make(hash, saved.ino, saved.node, eviction, now, &self.decay) {
            entry.merge(saved, &self.decay);
        }
    }

    /// Its counters, for `status`.
    pub fn counters(&self) -> HeatCounters {
        let mut counters =
            HeatCounters { hot_waiting: self.hot_waiting.load(Ordering::Relaxed), ..HeatCounters::default() };
        for slot in &self.shards {
            let shard = slot.0.lock();
            counters.entries += shard.entries;
            counters.evictions += shard.evictions;
            counters.memory_bytes += shard.memory_bytes() as u64;
        }
        counters
    }
}

/// Node 0 and the others of a file as one.
fn both(first: &NodeHeat, others: &NodeHeat) -> FileHeat {
    let share = |of: fn(&NodeHeat) -> u8, weight: fn(&NodeHeat) -> u32| {
        let (one, two) = (u64::from(weight(first)) + 1, u64::from(weight(others)) + 1);
        let sum = u64::from(of(first)) * one + u64::from(of(others)) * two;
        u8::try_from(sum / (one + two)).expect("a mean is not greater")
    };
    let moved = [first.moved_seconds_ago, others.moved_seconds_ago];
    NodeHeat {
        heat: first.heat.saturating_add(others.heat),
        reads: first.reads.saturating_add(others.reads),
        writes: first.writes.saturating_add(others.writes),
        visits: first.visits.max(others.visits),
        warm_half_lives: first.warm_half_lives.max(others.warm_half_lives),
        idle_seconds: first.idle_seconds.min(others.idle_seconds),
        sequential_percent: share(|heat| heat.sequential_percent, |heat| heat.heat),
        sync_percent: share(|heat| heat.sync_percent, |heat| heat.writes),
        moved_seconds_ago: moved.into_iter().flatten().min(),
    }
}
