//! Fill levels of tiers.

use crate::units::{ByteSize, Percent};

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

    /// Its share of a tier.
    #[must_use]
    pub const fn percent(self) -> Percent {
        self.share
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
}
