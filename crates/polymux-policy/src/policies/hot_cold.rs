//! The default: promotion on the second touch, eviction by heat (DESIGN section 9).

use crate::eviction::{self, Leaving, score_by_heat};
use crate::placement::{order, room_below_mark};
use crate::promotion::{self, Wish, refused_by_use};
use crate::{Decision, Eviction, HEAT_ONE, PlacementDecision, PlacementFacts, RangeFacts, Why};

/// Two touches, the first of which may have decayed by half.
pub(crate) const SECOND_TOUCH: u32 = HEAT_ONE + HEAT_ONE / 2;

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), wish(facts))
}

fn wish(facts: &RangeFacts) -> Result<Wish, Why> {
    if facts.heat < SECOND_TOUCH {
        return Err(Why::BelowThreshold);
    }
    match refused_by_use(facts) {
        Some(why) => Err(why),
        None => Ok(Wish::of_range(facts, Why::SecondTouch)),
    }
}

pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    eviction::evict(facts, &Leaving::range(facts, score_by_heat(facts, facts.heat), Why::Coldest))
}

/// The fastest tier that is below its high mark.
pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    order(facts, |tier| room_below_mark(facts, tier).then_some(0))
}
