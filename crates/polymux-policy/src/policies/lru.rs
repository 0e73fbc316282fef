//! The policy of the Mux prototype (M5): promotion on access, eviction of the data unused for longest.
//!
//! Taken by its word it never rests where the working set is larger than the fast tier: each access would displace something.
//! So an access promotes at once only while the fast tier has space below its low mark. Beyond that something there must have
//! been idle for longer than the range, and the data to evict must be colder by more than chance.

use crate::eviction::{self, Leaving};
use crate::promotion::{self, Wish, refused_by_use};
use crate::{Decision, Eviction, NEVER, RangeFacts, Why};

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), wish(facts))
}

fn wish(facts: &RangeFacts) -> Result<Wish, Why> {
    let accessed = facts.idle_seconds != NEVER && facts.idle_seconds <= facts.half_life_seconds && facts.heat > 0;
    if !accessed {
        return Err(Why::BelowThreshold);
    }
    if let Some(why) = refused_by_use(facts) {
        return Err(why);
    }
    let victim_idle_seconds = facts.idle_seconds.saturating_add(1);
    Ok(Wish { victim_idle_seconds, ..Wish::of_range(facts, Why::Accessed) })
}

/// By idle time, then by heat. A range that moved lately counts as used when it came, as on a list of recent use.
pub(crate) fn evict(facts: &RangeFacts) -> Eviction {
    let idle = if facts.moved_lately() { facts.idle_seconds.min(facts.moved_seconds_ago) } else { facts.idle_seconds };
    let score = ((u64::from(idle) << 31) | u64::from((u32::MAX - facts.heat) >> 1)) + 1;
    eviction::evict(facts, &Leaving::range(facts, score, Why::LeastRecentlyUsed))
}
