//! Heat: which range nodes of which files were used, how often and how lately (DESIGN section 9).
//!
//! Invariants:
//! * Time is *logical*: seconds while the volume was mounted. A month on a shelf cools nothing.
//! * Heat counts accesses, in 1/256; each half-life halves it. It is a hint: losses by an eviction, a crash or
//!   two threads that meet are not made up for.
//! * A touch costs a hash, one shard's lock and one set of eight entries, and never I/O. Memory is bounded: a full set
//!   gives up its coldest entry.
//! * Counted as one access: each random request; of a sequential stream, the first request to a node, while
//!   the stream does not leave the node for more than a second. So one large read that the kernel cuts up is one
//!   access.
//! * A *visit* is an access in another logical second than the one before (of a stream: at least a full second after
//!   it). The second touch of second-touch promotion is the second visit.
//! * Lock order: `HeatTable::keeping` before a shard, shards one at a time. No other module is called with one held.
//!
//! ```text
//!  read, write ──► StreamTable::pattern ──► HeatTable::touch ──► shard: sets of eight ──► take_hot, node, file
//!                                                                 ▲ first pass   │ sweep, purge
//!                                                  `h` records ───┘              ▼ HeatTable::step
//! ```

mod bypassing_reads;
mod clock;
mod decay;
mod demand;
mod device_reads;
mod entry;
mod grown;
mod persist;
mod read_use;
mod recent_counts;
mod shard;
mod streams;
mod synced_directories;
mod synced_files;
mod table;
mod window;

pub use clock::LogicalClock;
pub use demand::{MINUTES_REMEMBERED, SyncOf, at_least, at_least_alone, follow};
pub use device_reads::{MINUTES, Minutes};
pub use grown::GrownFiles;
pub use read_use::{ReadUse, ReadUses};
pub use streams::StreamTable;
pub use table::{HeatCursor, HeatTable};

/// One access, in the unit of [`NodeHeat`].
pub const HEAT_ONE: u32 = 256;

/// How much memory heat may take, and how fast it cools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeatOptions {
    /// Most bytes of entries; at least 16 KiB. Rounded down to a power of two.
    pub memory_bytes: usize,
    /// Logical seconds in which heat halves; at least 1.
    pub half_life_seconds: u32,
}

impl Default for HeatOptions {
    fn default() -> Self {
        Self { memory_bytes: 32 << 20, half_life_seconds: 3600 }
    }
}

/// The effect of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Bytes were read.
    Read,
    /// Bytes were written.
    Write,
}

/// Whether an access went on where one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// It went on where an earlier one ended.
    Sequential,
    /// It began anywhere else.
    Random,
}

/// Known use of one range node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeHeat {
    /// Accesses, decayed, in 1/256: the sum of `reads` and `writes`.
    pub heat: u32,
    /// Reads, decayed, in 1/256.
    pub reads: u32,
    /// Writes, decayed, in 1/256.
    pub writes: u32,
    /// Accesses far enough apart, at most 15; one in two is forgotten with each half-life of rest.
    pub(crate) visits: u8,
    /// Half-lives that it has been warm without a break, about: 0, 1, 3 or 7.
    pub warm_half_lives: u8,
    /// Logical seconds since the last access; since the volume was made where none is known.
    pub idle_seconds: u32,
    /// Percent of the lately seen requests that went on where one before them ended.
    pub sequential_percent: u8,
    /// Percent of the file's writes that were followed by a sync: 100 where each write is synced.
    pub sync_percent: u8,
    /// Logical seconds since the node moved; `None`: unknown.
    pub moved_seconds_ago: Option<u32>,
}

impl NodeHeat {
    /// Whether it is reported to the planner: visited twice, with 1.5 accesses left of all.
    pub const fn is_hot(&self) -> bool {
        self.visits >= entry::VISITS_HOT && self.heat >= entry::HEAT_HOT
    }
}

/// Known use of a file as a whole: its node 0, and one entry for all others together.
pub(crate) type FileHeat = NodeHeat;

/// The counters of the table, for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatCounters {
    /// Entries in use.
    pub entries: u64,
    /// Entries given up for others.
    pub evictions: u64,
    /// Bytes that the entries take now.
    pub memory_bytes: u64,
    /// Hot nodes that wait to be taken.
    pub(crate) hot_waiting: u64,
}

#[cfg(test)]
mod tests;
