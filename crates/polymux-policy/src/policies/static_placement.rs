//! Nothing moves except as rules and pins demand, not even from a tier above its mark.
//!
//! So the marks mean nothing for placement either: the first tier in the rule's order takes new data until it is full.

use crate::eviction::{self, Leaving};
use crate::placement::order;
use crate::promotion;
use crate::{Decision, Eviction, PlacementDecision, PlacementFacts, RangeFacts, Why};

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), Err(Why::MovesNothing))
}

pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    if facts.tiers.position(facts.tier).is_some() && facts.allows(facts.tier) {
        return Eviction::never(facts.tier, Why::MovesNothing);
    }
    eviction::evict(facts, &Leaving::range(facts, 1, Why::RulesSayElsewhere))
}

pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    order(facts, |tier| (tier.headroom >= facts.length.max(1)).then_some(0))
}
