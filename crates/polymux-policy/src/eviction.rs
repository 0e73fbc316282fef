//! The way down: which slower tier takes the data that leaves (CAP_Move, P14).

use crate::hysteresis::heat_for_eviction;
use crate::promotion::{SparesSaturated, first_with_room};
use crate::{Eviction, FACTS_VERSION, RangeFacts, TierFill, Why};

/// Data that leaves, and how.
pub(crate) struct Leaving {
    /// Not zero; the higher leaves first.
    pub(crate) score: u64,
    /// Bytes that would come to the target.
    pub(crate) bytes: u64,
    /// Whether the target must be able to hold parts of files.
    pub(crate) partial: bool,
    /// The reason.
    pub(crate) why: Why,
    /// Whether saturated tiers are passed over.
    pub(crate) spares_saturated: SparesSaturated,
    /// Which of the slower tiers is asked first.
    pub(crate) first: First,
}

/// Which of the slower tiers is asked first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Next,
    Slowest,
}

impl Leaving {
    /// The range leaves for the next slower tier with free space.
    pub(crate) fn range(facts: &RangeFacts, score: u64, why: Why) -> Self {
        Self {
            score,
            bytes: facts.range_bytes,
            partial: facts.is_partial(),
            why,
            spares_saturated: SparesSaturated::No,
            first: First::Next,
        }
    }
}

/// A score by heat, then by idle time. Never zero.
pub(crate) fn score_by_heat(facts: &RangeFacts, heat: u32) -> u64 {
    let coldness = u64::from(u32::MAX - heat_for_eviction(facts, heat));
    ((coldness << 31) | u64::from(facts.idle_seconds >> 1)) + 1
}

/// Finds the target. Data that rules do not allow on its tier leaves before everything else.
pub(crate) fn evict(facts: &RangeFacts, leaving: &Leaving) -> Eviction {
    let never = |why| Eviction::never(facts.tier, why);
    let Some(own) = facts.tiers.position(facts.tier) else { return never(Why::UnknownFacts) };
    if facts.version != FACTS_VERSION {
        return never(Why::UnknownFacts);
    }
    if !facts.allows(facts.tier) {
        return match first_with_room(facts, leaving.bytes, leaving.partial) {
            Ok(target) => Eviction::to(target, Why::RulesSayElsewhere, u64::MAX),
            Err(why) => never(why),
        };
    }
    let slower = &facts.tiers.offered()[own + 1..];
    let target = match leaving.first {
        First::Next => first_that_takes(facts, leaving, slower.iter()),
        First::Slowest => first_that_takes(facts, leaving, slower.iter().rev()),
    };
    match target {
        Ok(target) => Eviction::to(target, leaving.why, leaving.score),
        Err(why) => never(why),
    }
}

fn first_that_takes<'a>(
    facts: &RangeFacts,
    leaving: &Leaving,
    slower: impl Iterator<Item = &'a TierFill>,
) -> Result<u16, Why> {
    let mut refused = Why::NoSlowerTier;
    for tier in slower.filter(|tier| tier.tier != facts.tier && facts.may_go_to(tier)) {
        refused = if leaving.partial && !tier.holds_partial_files() {
            Why::PartialNotHeld
        } else if leaving.spares_saturated == SparesSaturated::Yes && tier.is_saturated() {
            Why::TierSaturated
        } else if tier.fits_below(leaving.bytes, tier.high_mark) {
            return Ok(tier.tier);
        } else {
            Why::NoRoomBelowMark
        };
    }
    Err(refused)
}
