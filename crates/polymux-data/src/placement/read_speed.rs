//! How fast tiers are read and synced, compared.

use polymux_policy::is_half_as_fast_again;
use polymux_tier::Rotation;
use polymux_tier::measure::Direction;
use polymux_types::TierId;

use crate::placement::Placement;

impl Placement {
    /// Device time in nanoseconds of one more small read of a tier; `None` while too few were seen. Where a device may seek, a read in the best
    /// moment says nothing of others.
    pub fn small_read_ns_of_one_more(&self, tier: TierId) -> Option<u64> {
        let relief = &self.tier_reads;
        let handle = self.volume.tiers.by_id(tier).ok()?;
        match handle.present().map(|present| present.capabilities().rotation) {
            Some(Rotation::NonRotational) => relief.small_read_ns_of_one_more(tier),
            _ => relief.small_read_ns(tier),
        }
    }

    /// Whether the faster of two tiers is known to be read less than half as fast again as the other: by the device time of small reads, as those
    /// tell that were seen, else by their measured bandwidth, which says nothing of small reads where one of them seeks.
    pub fn reads_alike(&self, faster: TierId, other: TierId) -> bool {
        let rate = |tier| {
            let handle = self.volume.tiers.by_id(tier).ok()?;
            handle.look_at_profile(|profile| profile.bytes_per_second(Direction::Read))
        };
        let rotates = |tier| {
            let handle = self.volume.tiers.by_id(tier).ok();
            let rotation = handle.and_then(|handle| Some(handle.present()?.capabilities().rotation));
            rotation == Some(Rotation::Rotational)
        };
        let of_reads = self.small_read_ns_of_one_more(faster).zip(self.tier_reads.small_read_ns(other));
        match (of_reads, rate(faster).zip(rate(other))) {
            (Some((faster_ns, other_ns)), _) => !is_half_as_fast_again(faster_ns, other_ns),
            (None, Some((faster_rate, other_rate))) if rotates(faster) == rotates(other) => {
                faster_rate.saturating_mul(2) < other_rate.saturating_mul(3)
            }
            (None, _) => false,
        }
    }

    /// Whether small writes are durable sooner on a tier than on another one: by what their syncs took, else as their reads compare.
    pub fn syncs_sooner(&self, faster: TierId, other: TierId) -> bool {
        let small_write_ns = |tier| self.tier_reads.small_write_ns(tier);
        match small_write_ns(faster).zip(small_write_ns(other)) {
            Some((faster_ns, other_ns)) => is_half_as_fast_again(faster_ns, other_ns),
            None => !self.reads_alike(faster, other),
        }
    }
}
