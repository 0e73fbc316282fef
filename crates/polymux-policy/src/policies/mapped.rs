//! New ranges of large files go to the tier that the thread which writes them is mapped to (P7, P11); which that is, is a matter of
//! `threads.rs`. A file has its first range where `hot-cold` would place it (P5), so small files are never spread. Moves are those of
//! `poly`.

use crate::placement::{order, room_below_mark};
use crate::policies::hot_cold;
use crate::{NO_TIER, PlacementDecision, PlacementFacts};

pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    if facts.is_of_first_range() || facts.mapped_tier == NO_TIER {
        return hot_cold::place(facts);
    }
    order(facts, |tier| room_below_mark(facts, tier).then(|| u64::from(tier.tier != facts.mapped_tier)))
}

#[cfg(test)]
mod tests {
    use polymux_types::limits::RANGE_NODE_SIZE;

    use super::*;
    use crate::TierFill;

    fn facts(mapped_tier: u16) -> PlacementFacts {
        let mut facts = PlacementFacts::new(RANGE_NODE_SIZE, 64 * RANGE_NODE_SIZE);
        facts.mapped_tier = mapped_tier;
        for tier in 0..3 {
            facts.offer(TierFill::new(tier, 1 << 40, 0, 1 << 40));
        }
        facts
    }

    #[test]
    fn a_range_goes_to_the_tier_of_its_thread_and_then_to_the_fastest() {
        assert_eq!(place(&facts(2)).tiers(), [2, 0, 1]);
        assert_eq!(place(&facts(0)).tiers(), [0, 1, 2]);
    }

    #[test]
    fn without_a_thread_and_for_the_first_range_it_is_placed_as_ever() {
        assert_eq!(place(&facts(NO_TIER)).tiers(), [0, 1, 2]);
        let mut first = facts(2);
        first.file_end = RANGE_NODE_SIZE;
        assert_eq!(place(&first).tiers(), [0, 1, 2]);
        let mut new = facts(2);
        new.is_new = 1;
        assert_eq!(place(&new).tiers(), [0, 1, 2]);
    }

    #[test]
    fn a_full_tier_of_a_thread_comes_last() {
        let mut facts = facts(2);
        facts.tiers.offered_mut()[2].headroom = 1000;
        assert_eq!(place(&facts).tiers(), [0, 1, 2]);
    }
}
