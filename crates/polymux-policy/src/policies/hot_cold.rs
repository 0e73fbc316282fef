//! The default: promotion on the second touch, eviction by heat (DESIGN section 9).

use crate::eviction::{self, Leaving, score_by_heat};
use crate::placement::{order, room_below_mark, room_for_waited_for};
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
    // A write that is waited for is worth two that memory absorbs (M5).
    let waited_for = if facts.is_synchronous() { facts.writes } else { 0 };
    let worth = facts.heat.saturating_add(waited_for);
    eviction::evict(facts, &Leaving::range(facts, score_by_heat(facts, worth), Why::Coldest))
}

/// The fastest tier that is below its high mark.
pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    order(facts, |tier| room_below_mark(facts, tier).then_some(0))
}

/// The fastest tier that is below its high mark, or above it where programs wait for the bytes.
pub(crate) fn place_waited_for(facts: &PlacementFacts) -> PlacementDecision {
    order(facts, |tier| room_for_waited_for(facts, tier).then_some(0))
}
