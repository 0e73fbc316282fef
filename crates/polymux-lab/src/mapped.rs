//! New ranges of large files go to the tier that the thread which writes them is mapped to (P7, P11); which that is, is a matter of
//! `thread_maps.rs`. A file has its first range on the fastest tier below its high mark (P5), so small files are never spread. Moves are those of
//! `poly`.

use polymux_policy::{
    ComparisonPolicy, Decision, Eviction, NO_TIER, PlacementDecision, PlacementFacts, PolicyKind, RangeFacts,
    WriterMap, decide, evict, order, room_below_mark,
};

use crate::thread_maps::ThreadMaps;
use crate::threads::ThreadRule;

/// A policy that maps threads to tiers.
pub(crate) struct Mapped {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) rule: ThreadRule,
}

impl ComparisonPolicy for Mapped {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn decide(&self, facts: &RangeFacts) -> Decision {
        decide(PolicyKind::Poly, facts)
    }

    fn evict(&self, facts: &RangeFacts) -> Eviction {
        evict(PolicyKind::Poly, facts)
    }

    fn place(&self, facts: &PlacementFacts) -> PlacementDecision {
        place(facts)
    }

    fn comes_to_rest(&self) -> bool {
        true
    }

    fn spreads(&self) -> bool {
        true
    }

    fn writer_map(&self) -> Option<Box<dyn WriterMap>> {
        Some(Box::new(ThreadMaps::new(self.rule)))
    }
}

fn place(facts: &PlacementFacts) -> PlacementDecision {
    if facts.is_of_first_range() || facts.mapped_tier == NO_TIER {
        return order(facts, |tier| room_below_mark(facts, tier).then_some(0));
    }
    order(facts, |tier| room_below_mark(facts, tier).then(|| u64::from(tier.tier != facts.mapped_tier)))
}

#[cfg(test)]
mod tests {
    use polymux_policy::TierFill;
    use polymux_types::limits::RANGE_NODE_SIZE;

    use super::*;

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
