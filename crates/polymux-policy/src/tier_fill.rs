//! How full and how busy the tiers are.
//!
//! Invariants: tiers are held in the order in which they are offered, which is speed order, or the order that a rule prefers
//! ([`TierTable::prefer`]). "Faster" and "slower" in the policies mean "earlier" and "later" in this table.

use polymux_types::limits::TIERS_MAX;

const TIERS: usize = TIERS_MAX as usize;

/// Facts about one tier. Loads and latencies are recent measurements; zero where nothing is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFill {
    /// Number of the tier.
    pub tier: u16,
    /// [`TierFill::TAKES_NEW_DATA`], [`TierFill::HOLDS_PARTIAL_FILES`], [`TierFill::DRAINING`],
    /// [`TierFill::TAKES_SPREAD_GROWTH`], [`TierFill::SATURATED_BY_WRITERS`].
    pub flags: u16,
    /// Read load in percent of the bandwidth that the tier has shown, 0..=100.
    pub read_load_percent: u16,
    /// Write load in percent of the bandwidth that the tier has shown, 0..=100.
    pub write_load_percent: u16,
    /// Highest heat among the ranges there that one eviction, from the high mark to the low one, would take: of the first
    /// `high_mark - low_mark` bytes in the order in which the policy lets ranges leave. Not the minimum: going above the mark for one range sends all of these
    /// away, and a minimum is the outlier of a random process. In the unit of [`crate::RangeFacts::heat`]; for `whole-file`
    /// heats of files. `u32::MAX` where nothing can leave.
    pub coldest_heat: u32,
    /// Seconds since the last use of that one of them that was not used for longest; 0 where nothing can leave.
    pub longest_idle_seconds: u32,
    /// Mean time in microseconds of the last small reads, of up to 64 KiB; 0 where there was none in the last seconds.
    pub read_latency_us: u32,
    /// Latency in microseconds that half of all operations did not exceed.
    pub write_latency_us: u32,
    /// Size in bytes.
    pub total: u64,
    /// Bytes used.
    pub used: u64,
    /// Bytes that new data may take: free space less the reserve.
    pub headroom: u64,
    /// Eviction begins when more bytes than this are used.
    pub high_mark: u64,
    /// Eviction ends when no more bytes than this are used.
    pub low_mark: u64,
    /// Bytes that may still be promoted to the tier today; `u64::MAX` without a budget.
    pub write_budget_left: u64,
    /// Bytes that were written and are on their way to the device.
    pub outstanding_bytes: u64,
    /// Bytes per second that the device takes, as measured while it was busy (P12); 0 where nothing is known.
    pub write_bytes_per_second: u64,
}

impl TierFill {
    /// New data and moved ranges may come here (not draining, not failing, not read-only).
    pub const TAKES_NEW_DATA: u16 = 1;
    /// It can hold a part of a file with holes around it.
    pub const HOLDS_PARTIAL_FILES: u16 = 2;
    /// It is being emptied.
    pub const DRAINING: u16 = 4;
    /// It takes a part of a file that grows faster than its own tier takes it: its device is known not to rotate.
    pub const TAKES_SPREAD_GROWTH: u16 = 8;
    /// Writers have handed it more than it takes, for longer than a burst lasts.
    pub const SATURATED_BY_WRITERS: u16 = 16;
    /// Percent of load from which a tier counts as saturated (P13).
    pub const SATURATED_PERCENT: u16 = 90;

    /// A tier that takes everything, with marks of 90 % and 80 %, no load and no budget.
    #[must_use]
    pub fn new(tier: u16, total: u64, used: u64, headroom: u64) -> Self {
        Self {
            tier,
            flags: Self::TAKES_NEW_DATA | Self::HOLDS_PARTIAL_FILES,
            coldest_heat: u32::MAX,
            total,
            used,
            headroom,
            high_mark: percent_of(total, 90),
            low_mark: percent_of(total, 80),
            write_budget_left: u64::MAX,
            ..Self::default()
        }
    }

    /// Whether data may come to it.
    #[must_use]
    pub fn takes_new_data(&self) -> bool {
        self.flags & Self::TAKES_NEW_DATA != 0 && self.flags & Self::DRAINING == 0
    }

    /// Whether it can hold parts of files.
    #[must_use]
    pub fn holds_partial_files(&self) -> bool {
        self.flags & Self::HOLDS_PARTIAL_FILES != 0
    }

    /// Whether it may take so many bytes of a file of this size, free space aside: new data, parts of files, and the rest of its write budget.
    #[must_use]
    pub fn takes_piece(&self, bytes: u64, file_size: u64) -> bool {
        let is_partial = bytes < file_size;
        self.takes_new_data() && (!is_partial || self.holds_partial_files()) && bytes <= self.write_budget_left
    }

    pub(crate) fn takes_spread_growth(&self) -> bool {
        self.flags & Self::TAKES_SPREAD_GROWTH != 0 && self.holds_partial_files() && self.takes_new_data()
    }

    pub(crate) fn is_saturated_by_writers(&self) -> bool {
        self.flags & Self::SATURATED_BY_WRITERS != 0
    }

    pub(crate) fn is_saturated(&self) -> bool {
        self.read_load_percent >= Self::SATURATED_PERCENT || self.write_load_percent >= Self::SATURATED_PERCENT
    }

    /// Whether `bytes` more fit and leave no more than `mark` bytes used.
    #[must_use]
    pub fn fits_below(&self, bytes: u64, mark: u64) -> bool {
        bytes <= self.headroom && self.used.checked_add(bytes).is_some_and(|used| used <= mark)
    }
}

/// `percent` of `total` without overflow.
fn percent_of(total: u64, percent: u64) -> u64 {
    (total / 100) * percent + (total % 100) * percent / 100
}

/// Tiers in speed order, or in the order that a rule prefers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierTable {
    count: u32,
    reserved: u32,
    tiers: [TierFill; TIERS],
}

impl Default for TierTable {
    fn default() -> Self {
        Self { count: 0, reserved: 0, tiers: [TierFill::default(); TIERS] }
    }
}

impl TierTable {
    /// Adds a tier behind the others. Panics beyond the largest number of tiers.
    pub fn offer(&mut self, tier: TierFill) {
        self.tiers[self.count as usize] = tier;
        self.count += 1;
    }

    /// The tiers in the order in which they were offered.
    #[must_use]
    pub fn offered(&self) -> &[TierFill] {
        &self.tiers[..self.count as usize]
    }

    /// As [`Self::offered`], to be updated.
    pub fn offered_mut(&mut self) -> &mut [TierFill] {
        &mut self.tiers[..self.count as usize]
    }

    /// Puts `preferred` (the tiers of a rule) in front, in that order; the others keep theirs. Unknown ones are skipped.
    pub fn prefer(&mut self, preferred: &[u16]) {
        let mut front = 0;
        for wanted in preferred {
            let rest = &mut self.tiers[front..self.count as usize];
            if let Some(at) = rest.iter().position(|tier| tier.tier == *wanted) {
                rest[..=at].rotate_right(1);
                front += 1;
            }
        }
    }

    /// Place of a tier among those that are offered, the best first.
    #[must_use]
    pub fn position(&self, tier: u16) -> Option<usize> {
        self.offered().iter().position(|offered| offered.tier == tier)
    }

    /// The facts about a tier; `None` where it is not offered.
    #[must_use]
    pub fn fill_of(&self, tier: u16) -> Option<&TierFill> {
        self.position(tier).map(|at| &self.offered()[at])
    }
}

/// Whether the bit of `tier` is set.
pub(crate) fn mask_has(mask: u64, tier: u16) -> bool {
    tier < TIERS_MAX && mask & (1 << tier) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiers_of_a_rule_come_first_in_its_order() {
        let mut table = TierTable::default();
        for tier in 0..5 {
            table.offer(TierFill::new(tier, 100, 0, 100));
        }
        table.prefer(&[3, 9, 1, 3]);
        let order: Vec<u16> = table.offered().iter().map(|tier| tier.tier).collect();
        assert_eq!(order, [3, 1, 0, 2, 4]);
    }

    #[test]
    fn marks_are_exact_and_do_not_overflow() {
        assert_eq!(TierFill::new(0, 199, 0, 0).high_mark, 179);
        assert_eq!(TierFill::new(0, u64::MAX, 0, 0).high_mark, 16_602_069_666_338_596_453);
    }
}
