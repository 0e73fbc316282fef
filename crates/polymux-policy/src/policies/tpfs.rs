//! By size, synchronicity and access history, as the Mux paper sketches TPFS (M5).
//!
//! Writes that a program waits for, and small ones, go to the fastest tier; large asynchronous streams pass it by, because the
//! page cache hides the slow tier from them. History keeps data on the fast tier that is used and waited for.

use crate::eviction::{self, Leaving, score_by_heat};
use crate::placement::{order, room_below_mark};
use crate::policies::hot_cold::SECOND_TOUCH;
use crate::promotion::{self, Wish, refused_by_use};
use crate::{Decision, Eviction, HEAT_ONE, PlacementDecision, PlacementFacts, RangeFacts, Why};

/// A file from which on an asynchronous write counts as large, in bytes.
const LARGE_FILE: u64 = 4 << 20;
/// A single write that counts as large by itself, in bytes.
const LARGE_WRITE: u64 = 1 << 20;

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), wish(facts))
}

fn wish(facts: &RangeFacts) -> Result<Wish, Why> {
    // A stream of writes that are waited for gains from the fast tier, unlike one that the page cache absorbs.
    if facts.is_synchronous() && facts.writes >= SECOND_TOUCH && facts.heat >= SECOND_TOUCH {
        if facts.is_sequential() {
            return Err(Why::SequentialBypass);
        }
        return Ok(Wish::of_range(facts, Why::WaitedFor));
    }
    if facts.heat < 2 * SECOND_TOUCH {
        return Err(Why::BelowThreshold);
    }
    match refused_by_use(facts) {
        Some(why) => Err(why),
        None => Ok(Wish::of_range(facts, Why::SecondTouch)),
    }
}

/// By the benefit of its tier to the range: heat, up to twice as much where writes are waited for, half where it is a stream.
pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    let waited = u64::from(facts.synchronous.min(100)) * u64::from(facts.writes.min(facts.heat)) / 100;
    let gain = u64::from(facts.heat) + waited;
    let gain = if facts.is_sequential() { gain / 2 } else { gain };
    let gain = u32::try_from(gain).unwrap_or(u32::MAX);
    eviction::evict(facts, &Leaving::range(facts, score_by_heat(facts, gain), Why::WorthLeast))
}

pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    let waited_for = facts.synchronous != 0 || facts.sync_share >= 50;
    let large = facts.length >= LARGE_WRITE || (facts.file_end >= LARGE_FILE && facts.sequential >= 50);
    let used = facts.file_heat >= 4 * HEAT_ONE;
    let passes_by = large && !waited_for && !used;
    let fastest = facts.offered().first().map(|tier| tier.tier);
    order(facts, |tier| {
        let behind = passes_by && Some(tier.tier) == fastest;
        room_below_mark(facts, tier).then_some(u64::from(behind))
    })
}
