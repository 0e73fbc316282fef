//! The baseline for other policies: every used range goes to the fastest tier, whatever it displaces, and data that was not used
//! for longest is evicted.
//!
//! It never comes to rest where the data in use is larger than the fast tier, and that is its purpose.

use crate::policies::lru;
use crate::promotion::{self, Displaces, Wish};
use crate::{Decision, Eviction, NEVER, RangeFacts, Why};

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    // An evicted range comes back with its next use.
    let was_used = facts.idle_seconds != NEVER && facts.heat > 0 && facts.idle_seconds <= facts.moved_seconds_ago;
    let wish = if was_used {
        Ok(Wish { displaces: Displaces::Anything, ..Wish::of_range(facts, Why::UsedAtAll) })
    } else {
        Err(Why::BelowThreshold)
    };
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), wish)
}

pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    lru::evict(facts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, HEAT_ONE, TierFill};

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
            let decision = decide(&facts(used));
            assert_eq!((decision.action, decision.target, decision.why), (Action::Move, 0, Why::UsedAtAll), "{used}");
        }
        // Eviction is at work there already.
        assert_eq!(decide(&facts(95 * MIB)).action, Action::Stay);
    }

    #[test]
    fn what_was_not_used_since_it_was_sent_away_stays() {
        assert_eq!(decide(&RangeFacts { moved_seconds_ago: 0, ..facts(0) }).action, Action::Stay);
        assert_eq!(decide(&RangeFacts { moved_seconds_ago: 1, ..facts(0) }).action, Action::Move);
        assert_eq!(decide(&RangeFacts { heat: 0, idle_seconds: NEVER, ..facts(0) }).action, Action::Stay);
    }
}
