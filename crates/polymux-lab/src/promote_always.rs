//! The baseline for other policies: every used range goes to the fastest tier, whatever it displaces, and data that was not used
//! for longest is evicted.
//!
//! It never comes to rest where the data in use is larger than the fast tier, and that is its purpose.

use polymux_policy::{
    ComparisonPolicy, Decision, Eviction, NEVER, PlacementDecision, PlacementFacts, PolicyKind, RangeFacts, Why,
    WriterMap, displace_anything, evict, place,
};

/// See the module.
pub(crate) struct PromoteAlways;

impl ComparisonPolicy for PromoteAlways {
    fn name(&self) -> &'static str {
        "promote-always"
    }

    fn description(&self) -> &'static str {
        "Promotes whatever is used, whatever it displaces, and never rests; for comparison."
    }

    fn decide(&self, facts: &RangeFacts) -> Decision {
        // An evicted range comes back with its next use.
        let was_used = facts.idle_seconds != NEVER && facts.heat > 0 && facts.idle_seconds <= facts.moved_seconds_ago;
        displace_anything(facts, if was_used { None } else { Some(Why::BelowThreshold) })
    }

    fn evict(&self, facts: &RangeFacts) -> Eviction {
        evict(PolicyKind::Lru, facts)
    }

    fn place(&self, facts: &PlacementFacts) -> PlacementDecision {
        place(PolicyKind::Lru, facts)
    }

    fn comes_to_rest(&self) -> bool {
        false
    }

    fn spreads(&self) -> bool {
        false
    }

    fn writer_map(&self) -> Option<Box<dyn WriterMap>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use polymux_policy::{Action, HEAT_ONE, TierFill};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A range on the second tier, where the first one is so full.
    fn facts(used: u64) -> RangeFacts {
        let mut facts = RangeFacts::new(1, 2 * MIB);
        facts
            .tiers
            .offer(TierFill { coldest_heat: 100 * HEAT_ONE, ..TierFill::new(0, 100 * MIB, used, 100 * MIB - used) });
        facts.tiers.offer(TierFill::new(1, 1000 * MIB, 500 * MIB, 500 * MIB));
        RangeFacts { heat: HEAT_ONE, idle_seconds: 1, ..facts }
    }

    #[test]
    fn one_use_is_enough_however_hot_what_it_displaces_is() {
        for used in [0, 89 * MIB] {
            let decision = PromoteAlways.decide(&facts(used));
            assert_eq!((decision.action, decision.target, decision.why), (Action::Move, 0, Why::UsedAtAll), "{used}");
        }
        // Eviction is at work there already.
        assert_eq!(PromoteAlways.decide(&facts(95 * MIB)).action, Action::Stay);
    }

    #[test]
    fn what_was_not_used_since_it_was_sent_away_stays() {
        assert_eq!(PromoteAlways.decide(&RangeFacts { moved_seconds_ago: 0, ..facts(0) }).action, Action::Stay);
        assert_eq!(PromoteAlways.decide(&RangeFacts { moved_seconds_ago: 1, ..facts(0) }).action, Action::Move);
        assert_eq!(PromoteAlways.decide(&RangeFacts { heat: 0, idle_seconds: NEVER, ..facts(0) }).action, Action::Stay);
    }
}
