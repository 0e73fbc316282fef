//! Files move as a whole: no file is split on purpose, as other tiering tools do it.
//!
//! Every range of a file gets the same answer, because only facts about the file are looked at. A file that is larger than the
//! gap between the marks of a full tier never displaces anything.

use crate::eviction::{self, Leaving, score_by_heat};
use crate::placement::{order, room_below_mark};
use crate::policies::hot_cold::SECOND_TOUCH;
use crate::promotion::{self, Wish, refused_by_use};
use crate::{Decision, Eviction, PlacementDecision, PlacementFacts, RangeFacts, Why};

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    promotion::decide(facts, facts.file_size, false, wish(facts))
}

fn wish(facts: &RangeFacts) -> Result<Wish, Why> {
    if facts.file_heat < SECOND_TOUCH {
        return Err(Why::BelowThreshold);
    }
    if let Some(why) = refused_by_use(facts) {
        return Err(why);
    }
    let (heat, bytes) = (facts.file_heat, facts.file_size);
    Ok(Wish { heat, bytes, partial: false, ..Wish::of_range(facts, Why::FileHot) })
}

pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    let score = score_by_heat(facts, facts.file_heat);
    let (bytes, partial) = (facts.file_size, false);
    eviction::evict(facts, &Leaving { bytes, partial, ..Leaving::range(facts, score, Why::ColdestFile) })
}

/// The fastest tier below its mark that could hold the whole file.
pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    order(facts, |tier| {
        let whole = tier.headroom >= facts.file_end;
        room_below_mark(facts, tier).then_some(u64::from(!whole))
    })
}
