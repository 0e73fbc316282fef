//! Facts that a policy may use about a range of a file.

use polymux_types::limits::RANGE_NODE_SIZE;

use crate::FACTS_VERSION;
use crate::tier_fill::{TierFill, TierTable, mask_has};

/// One access that has not decayed yet, in the unit of every heat: 1/256 access.
pub const HEAT_ONE: u32 = 256;

/// "Never" where a number of seconds ago is asked.
pub const NEVER: u32 = u32::MAX;

/// Everything a policy may look at when it decides about one range node of a file, all of which lies on one tier (a mixed
/// node is asked about once per tier).
///
/// Heats and counts are *decayed counts of accesses in 1/256*: each read or write request that touches the range adds
/// [`HEAT_ONE`], whatever its length, and everything halves each half-life of the logical clock. So a range that is used `r`
/// times a second settles at `1.44 * r * half_life_seconds` accesses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeFacts {
    /// [`FACTS_VERSION`]; facts of another version are answered with "stay".
    pub version: u32,
    /// Heat of the range.
    pub heat: u32,
    /// Decayed count of reads, same unit.
    pub reads: u32,
    /// Decayed count of writes, same unit.
    pub writes: u32,
    /// Mean heat of the file's ranges: their sum divided by the number of ranges that the file's size makes, so that a big
    /// file does not win by its size.
    pub file_heat: u32,
    /// Seconds since the last access; [`NEVER`] where none is known.
    pub idle_seconds: u32,
    /// Seconds since the file was modified last.
    pub modified_seconds_ago: u32,
    /// Seconds since the range was moved last; [`NEVER`] where it never was.
    pub moved_seconds_ago: u32,
    /// Seconds for which it has been warm: since an access found it colder than three quarters of an access. A move does not
    /// begin it anew. For `whole-file`, of the file. Only its doublings in half-lives count, up to seven of these, so two bits
    /// can keep it: one more at an access in another aligned period of `2^bits` half-lives than the access before.
    /// [`NEVER`] where no count is kept; that is taken for one half-life.
    pub warm_seconds: u32,
    /// Half-life of the heat in seconds.
    pub half_life_seconds: u32,
    /// Number of the tier it lies on.
    pub tier: u16,
    /// Share of the accesses that were part of a sequential stream, 0..=100.
    pub sequential: u8,
    /// Share of the writes that were synchronous or soon followed by a sync, 0..=100.
    pub synchronous: u8,
    /// Not zero where most of it is in the page cache.
    pub is_cached: u8,
    /// Zero; keeps the layout free of padding.
    pub reserved: [u8; 7],
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Bytes of the range that lie on this tier.
    pub range_bytes: u64,
    /// Tiers that rules and pins allow, as a bit set.
    pub allowed: u64,
    /// The tiers, in speed order or in the order that the rule prefers.
    pub tiers: TierTable,
}

impl RangeFacts {
    /// Facts about a range that was never used and never moved, of a file that consists of it, allowed everywhere, with a
    /// half-life of ten minutes.
    #[must_use]
    pub fn new(tier: u16, range_bytes: u64) -> Self {
        Self {
            version: FACTS_VERSION,
            heat: 0,
            reads: 0,
            writes: 0,
            file_heat: 0,
            idle_seconds: NEVER,
            modified_seconds_ago: NEVER,
            moved_seconds_ago: NEVER,
            warm_seconds: NEVER,
            half_life_seconds: 600,
            tier,
            sequential: 0,
            synchronous: 0,
            is_cached: 0,
            reserved: [0; 7],
            file_size: range_bytes,
            range_bytes,
            allowed: u64::MAX,
            tiers: TierTable::default(),
        }
    }

    /// Whether rules, pins and the state of the tier let data come to it.
    pub(crate) fn may_go_to(&self, tier: &TierFill) -> bool {
        self.allows(tier.tier) && tier.takes_new_data()
    }

    pub(crate) fn allows(&self, tier: u16) -> bool {
        mask_has(self.allowed, tier)
    }

    /// The range is not the whole file, so a tier must be able to hold parts of files.
    pub(crate) fn is_partial(&self) -> bool {
        self.range_bytes < self.file_size
    }

    /// It was moved less than two half-lives ago.
    pub(crate) fn moved_lately(&self) -> bool {
        self.moved_seconds_ago != NEVER && self.moved_seconds_ago < self.half_life_seconds.saturating_mul(2)
    }

    /// Most accesses were part of a stream, which a slow tier serves well.
    pub(crate) fn is_sequential(&self) -> bool {
        self.sequential >= 50
    }

    /// Most writes are waited for.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.synchronous >= 50 && self.writes > 0
    }

    /// The page cache serves its readers. Synchronous writes go through it to the tier, so they count as not served.
    pub(crate) fn is_served_by_cache(&self) -> bool {
        self.is_cached != 0 && !self.is_synchronous()
    }

    /// More than one range, so a move of it could displace much.
    pub(crate) fn is_larger_than_a_range(bytes: u64) -> bool {
        bytes > RANGE_NODE_SIZE
    }
}
