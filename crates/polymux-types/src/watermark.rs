//! Fill levels of tiers.

use std::fmt;

use crate::units::{ByteSize, Percent};

/// Points of a percentage that an eviction brings a tier down where only the level that begins it is configured.
const LOW_BELOW_HIGH: u8 = 10;

/// Used bytes of a tier at which files begin to leave it, or cease to (DESIGN section 9; docs/design/0044).
///
/// A share, and where a large tier would leave much unused for it, a number of bytes that are left free at most: how much a
/// burst of writes takes until slower data has left does not grow with the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    share: Percent,
    free_bytes_max: u64,
}

impl Watermark {
    /// A share of the tier, however large it is.
    #[must_use]
    pub const fn share(share: Percent) -> Self {
        Self { share, free_bytes_max: u64::MAX }
    }

    /// A share of the tier that leaves no more than so many bytes free.
    #[must_use]
    pub const fn with_free_at_most(share: Percent, free: ByteSize) -> Self {
        Self { share, free_bytes_max: free.0 }
    }

    /// Used bytes at this level of a tier of `total` bytes, of which data may use `usable`: bytes that are reserved on the tier do not
    /// count as left free.
    #[must_use]
    pub fn of(self, total: u64, usable: u64) -> u64 {
        self.share.of(total).max(usable.saturating_sub(self.free_bytes_max))
    }

    /// Whether it is the lower level on every tier that is large enough for the two to differ.
    #[must_use]
    pub fn is_below(self, other: Self) -> bool {
        let is_lower_share = self.share < other.share;
        // Where the other one has no limit in bytes, it is a share of the largest tier, too.
        is_lower_share && (self.free_bytes_max == u64::MAX || self.free_bytes_max > other.free_bytes_max)
    }

    /// The level at which an eviction ends that begins at this one, for a configuration that names only this one: `default` where it is
    /// lower.
    #[must_use]
    pub fn low_below(self, default: Self) -> Self {
        if default.is_below(self) {
            return default;
        }
        let share = self.share.get();
        Self::share(Percent::new(share - LOW_BELOW_HIGH.min(share / 2)))
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIBIBYTE: u64 = 1 << 30;
    const HIGH: Watermark = Watermark::with_free_at_most(Percent::new(95), ByteSize(32 * GIBIBYTE));
    const LOW: Watermark = Watermark::with_free_at_most(Percent::new(90), ByteSize(64 * GIBIBYTE));

    #[test]
    fn a_large_tier_leaves_no_more_free_than_the_limit_and_a_small_one_its_share() {
        assert_eq!((HIGH.of(1000, 960), LOW.of(1000, 960)), (950, 900));
        let (terabytes, usable) = (4 << 40, (4 << 40) - 100 * GIBIBYTE);
        assert_eq!(usable - HIGH.of(terabytes, usable), 32 * GIBIBYTE);
        assert_eq!(usable - LOW.of(terabytes, usable), 64 * GIBIBYTE);
        let share = Percent::new(95);
        assert_eq!(Watermark::share(share).of(terabytes, usable), share.of(terabytes));
    }

    #[test]
    fn a_level_is_below_another_one_only_where_it_is_so_on_tiers_of_any_size() {
        let share = |percent| Watermark::share(Percent::new(percent));
        assert!(LOW.is_below(HIGH) && share(80).is_below(share(90)) && share(90).is_below(HIGH));
        assert!(!share(90).is_below(share(90)) && !share(96).is_below(HIGH));
        // 64 GiB free are fewer than 5 % of a tier of some terabytes.
        assert!(!LOW.is_below(share(95)));
        for high in [share(95), share(50), share(91), HIGH] {
            let low = high.low_below(LOW);
            for total in [1000, 1 << 40, 64 << 40] {
                assert!(low.of(total, total) < high.of(total, total), "{low} and {high} of {total}");
            }
        }
        assert_eq!((share(95).low_below(LOW), share(8).low_below(LOW)), (share(85), share(4)));
    }
}
