//! One tier for as long as it carries the load, several for the growth of large files when it does not (P5, P7).
//!
//! Invariants:
//! * A file begins where `hot-cold` places it, and grows there. From [`LARGE_FILE_RANGES`] on its growth is spread while the tier that
//!   it grows on is kept saturated by writers ([`TierFill::SATURATED_BY_WRITERS`]) and another one takes a useful share.
//! * Only tiers that say so take spread growth ([`TierFill::TAKES_SPREAD_GROWTH`]): disks that seek lose more by the second stream than
//!   they give, and a disk that sleeps stays asleep.
//! * When the load falls, growth goes back to the tier where `hot-cold` would place it.
//! * Moves are those of `hot-cold`: a spread file is promoted and evicted range by range, as any file is.

use crate::placement::{order, room_below_mark};
use crate::policies::{hot_cold, spread};
use crate::tier_fill::mask_has;
use crate::{PlacementDecision, PlacementFacts, TierFill};

/// Ranges from which on a file is large: 64 MiB, twice the bytes that are written out at once when a stream is recognized.
pub const LARGE_FILE_RANGES: u64 = 32;

/// A tier that is slower than this part of the one that the file grows on takes no useful share.
const USEFUL_DIVISOR: u64 = 16;

/// Why the growth of a file stays on one tier, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The policy never spreads.
    PolicyKeeps,
    /// The file is smaller than [`LARGE_FILE_RANGES`].
    FileIsSmall,
    /// The tier that the file grows on keeps up with its writers.
    OneTierCarriesIt,
    /// No other tier that the file may be on takes spread growth, has space for it and is fast enough to help.
    NoOtherTierHelps,
    /// Each new range goes to the tier where it is done soonest.
    IsSpread,
}

impl Growth {
    /// A sentence for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::PolicyKeeps => "Its policy keeps the growth of a file on one tier.",
            Self::FileIsSmall => "It is smaller than 64 MiB, so it grows on one tier.",
            Self::OneTierCarriesIt => "Its growth stays on one tier, which keeps up with its writers.",
            Self::NoOtherTierHelps => {
                "Its growth stays on one tier: no other one that it may be on is known not to rotate, has room and is fast enough."
            }
            Self::IsSpread => "Its growth goes to several tiers, because writers keep the one it grew on saturated.",
        }
    }
}

/// Whether the growth of a file that is on one tier begins to be spread. The facts are about a range ([`PlacementFacts::length`]).
pub(crate) fn growth(facts: &PlacementFacts) -> Growth {
    if facts.file_end < LARGE_FILE_RANGES * facts.length {
        return Growth::FileIsSmall;
    }
    let Some(tail) = facts.offered().iter().find(|tier| tier.tier == facts.tail_tier) else {
        return Growth::NoOtherTierHelps;
    };
    let is_useful = |tier: &TierFill| {
        let bandwidth = tier.write_bytes_per_second;
        tier.tier != tail.tier
            && takes_growth(facts, tier)
            && (bandwidth == 0 || bandwidth >= tail.write_bytes_per_second / USEFUL_DIVISOR)
    };
    if !facts.offered().iter().any(is_useful) {
        Growth::NoOtherTierHelps
    } else if tail.is_saturated_by_writers() {
        Growth::IsSpread
    } else {
        Growth::OneTierCarriesIt
    }
}

fn takes_growth(facts: &PlacementFacts, tier: &TierFill) -> bool {
    tier.takes_spread_growth() && mask_has(facts.allowed, tier.tier) && room_below_mark(facts, tier)
}

/// Where the next range of a file goes whose growth is spread, or was.
pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    if facts.is_of_first_range() || facts.is_waited_for() {
        return hot_cold::place_waited_for(facts);
    }
    let helps = |tier: &TierFill| takes_growth(facts, tier) || tier.tier == facts.tail_tier;
    // As `hot-cold` would place it, among those.
    let home = facts.offered().iter().find(|tier| {
        helps(tier) && tier.takes_new_data() && mask_has(facts.allowed, tier.tier) && room_below_mark(facts, tier)
    });
    match home {
        Some(home) if !home.is_saturated_by_writers() => {
            let rank = |tier: &TierFill| {
                if tier.tier == home.tier {
                    0
                } else if helps(tier) {
                    1
                } else {
                    2
                }
            };
            order(facts, |tier| room_below_mark(facts, tier).then(|| rank(tier)))
        }
        _ => spread::place_among(facts, helps),
    }
}

#[cfg(test)]
mod tests {
    use polymux_types::limits::RANGE_NODE_SIZE;

    use super::*;

    const MB: u64 = 1_000_000;

    /// A range of a large file on the first of tiers with outstanding bytes, bandwidth and flags on top of those of any tier.
    fn facts(tiers: &[(u64, u64, u16)]) -> PlacementFacts {
        let mut facts = PlacementFacts::new(RANGE_NODE_SIZE, 64 * RANGE_NODE_SIZE);
        facts.tail_tier = 0;
        for (tier, (outstanding_bytes, write_bytes_per_second, flags)) in (0..).zip(tiers) {
            let room = TierFill::new(tier, 1 << 40, 0, 1 << 40);
            facts.offer(TierFill {
                outstanding_bytes: *outstanding_bytes,
                write_bytes_per_second: *write_bytes_per_second,
                flags: room.flags | flags,
                ..room
            });
        }
        facts
    }

    const SOLID: u16 = TierFill::TAKES_SPREAD_GROWTH;
    const BUSY: u16 = TierFill::TAKES_SPREAD_GROWTH | TierFill::SATURATED_BY_WRITERS;

    #[test]
    fn growth_is_spread_only_where_a_tier_is_saturated_and_another_one_helps() {
        assert_eq!(growth(&facts(&[(0, 120 * MB, BUSY), (0, 56 * MB, SOLID)])), Growth::IsSpread);
        assert_eq!(growth(&facts(&[(0, 120 * MB, BUSY), (0, 0, SOLID)])), Growth::IsSpread);
        assert_eq!(growth(&facts(&[(0, 120 * MB, SOLID), (0, 56 * MB, SOLID)])), Growth::OneTierCarriesIt);
        assert_eq!(growth(&facts(&[(0, 120 * MB, BUSY), (0, 56 * MB, 0)])), Growth::NoOtherTierHelps, "it rotates");
        assert_eq!(growth(&facts(&[(0, 120 * MB, BUSY), (0, 7 * MB, SOLID)])), Growth::NoOtherTierHelps, "too slow");
        let mut small = facts(&[(0, 120 * MB, BUSY), (0, 56 * MB, SOLID)]);
        small.file_end = LARGE_FILE_RANGES * RANGE_NODE_SIZE - 1;
        assert_eq!(growth(&small), Growth::FileIsSmall);
        let mut ruled = facts(&[(0, 120 * MB, BUSY), (0, 56 * MB, SOLID)]);
        ruled.allowed = 1;
        assert_eq!(growth(&ruled), Growth::NoOtherTierHelps, "a rule keeps it on one tier");
        let mut full = facts(&[(0, 120 * MB, BUSY), (0, 56 * MB, SOLID)]);
        full.tiers.offered_mut()[1].used = 1 << 40;
        assert_eq!(growth(&full), Growth::NoOtherTierHelps);
    }

    #[test]
    fn spread_growth_goes_where_it_is_done_soonest_and_never_to_a_rotating_tier() {
        let first = |facts: &PlacementFacts| place(facts).tiers()[0];
        assert_eq!(first(&facts(&[(30 * MB, 120 * MB, BUSY), (0, 56 * MB, SOLID), (0, 500 * MB, 0)])), 1);
        assert_eq!(first(&facts(&[(20 * MB, 120 * MB, BUSY), (16 * MB, 56 * MB, BUSY), (0, 500 * MB, 0)])), 0);
        assert_eq!(place(&facts(&[(30 * MB, 120 * MB, BUSY), (0, 56 * MB, SOLID), (0, 500 * MB, 0)])).tiers().len(), 3);
    }

    #[test]
    fn growth_goes_back_when_the_load_falls() {
        let mut facts = facts(&[(0, 120 * MB, SOLID), (0, 56 * MB, SOLID)]);
        facts.tail_tier = 1;
        assert_eq!(place(&facts).tiers(), [0, 1]);
        // A faster tier that rotates is none to go back to.
        facts.tiers.offered_mut()[0].flags &= !TierFill::TAKES_SPREAD_GROWTH;
        assert_eq!(place(&facts).tiers()[0], 1);
    }
}
