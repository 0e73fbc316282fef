//! BW_Move and CAP_Move of PolyStore's Algorithm 2 (P13, P14).
//!
//! A range is MORE_FREQUENT when it is used at least half as much as the mean of its file's ranges (the paper's threshold of
//! 50 %) and at least twice. It goes to the fastest tier whose read and write bandwidth is not saturated, then to others, as
//! the paper's text has it; the printed algorithm returns after the first device. Eviction goes to the next slower
//! tier that is not saturated, and eviction of unused data to the slowest.

use crate::eviction::{self, First, Leaving, score_by_heat};
use crate::placement::{order, room_below_mark};
use crate::policies::hot_cold::SECOND_TOUCH;
use crate::promotion::{self, SparesSaturated, Wish, refused_by_use};
use crate::{Decision, Eviction, HEAT_ONE, PlacementDecision, PlacementFacts, RangeFacts, TierFill, Why};

/// Heat below which a range counts as not used at all: a quarter of an access.
const VERY_COLD: u32 = HEAT_ONE / 4;

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), wish(facts))
}

pub(crate) fn wish(facts: &RangeFacts) -> Result<Wish, Why> {
    if facts.heat < SECOND_TOUCH || facts.heat < facts.file_heat / 2 {
        return Err(Why::BelowThreshold);
    }
    match refused_by_use(facts) {
        Some(why) => Err(why),
        None => Ok(Wish { spares_saturated: SparesSaturated::Yes, ..Wish::of_range(facts, Why::MoreFrequent) }),
    }
}

pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    let very_cold = facts.heat < VERY_COLD;
    let (why, first) = if very_cold { (Why::VeryCold, First::Slowest) } else { (Why::LessFrequent, First::Next) };
    let score = score_by_heat(facts, facts.heat);
    let spares_saturated = SparesSaturated::Yes;
    eviction::evict(facts, &Leaving { first, spares_saturated, ..Leaving::range(facts, score, why) })
}

/// The fastest tier below its mark that can still take writes, then saturated ones.
pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    order(facts, |tier| {
        let saturated = tier.write_load_percent >= TierFill::SATURATED_PERCENT;
        room_below_mark(facts, tier).then_some(u64::from(saturated))
    })
}
