//! The walk to a better tier that all policies share: they differ in their wishes, not in the limits.
//!
//! Invariant: the answer depends on the tiers in front of the range's own and on its heat, never on the tiers behind it. So a
//! range that has moved to its target stays there by the same facts.

use crate::hysteresis::{heat_for_promotion, is_hotter};
use crate::{Decision, RangeFacts, TierFill, Why};

/// The wish of a policy before tiers are considered.
pub(crate) struct Wish {
    /// Heat that is compared with the coldest on the target (the range's, or its file's).
    pub(crate) heat: u32,
    /// Bytes that would come to the target.
    pub(crate) bytes: u64,
    /// Whether the target must be able to hold parts of files.
    pub(crate) partial: bool,
    /// The reason to go where there is space.
    pub(crate) why: Why,
    /// Least seconds that a victim must have been idle, 0 where only heat counts.
    pub(crate) victim_idle_seconds: u32,
    /// Whether saturated tiers are passed over (P13).
    pub(crate) spares_saturated: SparesSaturated,
    /// The data that may have to leave for it.
    pub(crate) displaces: Displaces,
    /// How soon the target must answer readers.
    pub(crate) answers: Answers,
}

/// How soon a target answers, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Its small reads take at most two thirds of the time that those of the range's own tier do.
    Sooner,
    /// That does not matter.
    Whenever,
}

/// The data that a range may displace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Displaces {
    /// Data that is much colder.
    Colder,
    /// Whatever eviction takes.
    Anything,
}

/// Whether tiers at the limit of their bandwidth are passed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SparesSaturated {
    Yes,
    No,
}

impl Wish {
    /// The wish to move the range itself, because of its own heat.
    pub(crate) fn of_range(facts: &RangeFacts, why: Why) -> Self {
        Self {
            heat: facts.heat,
            bytes: facts.range_bytes,
            partial: facts.is_partial(),
            why,
            victim_idle_seconds: 0,
            spares_saturated: SparesSaturated::No,
            displaces: Displaces::Colder,
            answers: Answers::Whenever,
        }
    }
}

/// Refuses ranges that no policy promotes: streams, and those that the page cache serves (DESIGN section 9).
pub(crate) fn refused_by_use(facts: &RangeFacts) -> Option<Why> {
    if facts.is_sequential() {
        Some(Why::SequentialBypass)
    } else if facts.is_served_by_cache() {
        Some(Why::InPageCache)
    } else {
        None
    }
}

/// Carries out the demands of rules, and otherwise the wish of the policy; `bytes` and `partial` describe a move by rule.
pub(crate) fn decide(facts: &RangeFacts, bytes: u64, partial: bool, wish: Result<Wish, Why>) -> Decision {
    let stay = |why| Decision::stay(facts.tier, why);
    let Some(own) = facts.tiers.position(facts.tier) else { return stay(Why::UnknownFacts) };
    if facts.version != crate::FACTS_VERSION {
        return stay(Why::UnknownFacts);
    }
    let offered = facts.tiers.offered();
    if facts.allows(facts.tier) {
        return match wish {
            Err(why) => stay(why),
            Ok(_) if own == 0 => stay(Why::AlreadyBest),
            Ok(wish) => match best_of(facts, &offered[..own], &wish) {
                Ok((target, why)) => Decision::move_to(target, why, u64::from(wish.heat) + 1),
                Err(why) => stay(why),
            },
        };
    }
    // A rule sends it away: to where its use would bring it anyway, else to the first allowed tier with space.
    let wished = wish.and_then(|wish| best_of(facts, offered, &wish)).map(|(target, _)| target);
    let target = wished.or_else(|_| first_with_room(facts, bytes, partial));
    match target {
        Ok(target) => Decision::move_to(target, Why::RulesSayElsewhere, u64::MAX),
        Err(why) => stay(why),
    }
}

/// Promotes a range that was used to the fastest allowed tier that eviction is not at work on already, whatever it displaces there, for a
/// policy that other policies are compared with; `refused` says why that does not want it.
#[must_use]
pub fn displace_anything(facts: &RangeFacts, refused: Option<Why>) -> Decision {
    let wish = match refused {
        Some(why) => Err(why),
        None => Ok(Wish { displaces: Displaces::Anything, ..Wish::of_range(facts, Why::UsedAtAll) }),
    };
    decide(facts, facts.range_bytes, facts.is_partial(), wish)
}

/// The first tier with space that the rules allow: below its high mark, else above it, down to its reserve. A demand of a rule or pin is
/// not refused for a mark: above it the tier sends away data that may leave, and a slowest tier would hold up the demand for ever.
pub(crate) fn first_with_room(facts: &RangeFacts, bytes: u64, partial: bool) -> Result<u16, Why> {
    let takes =
        |tier: &&TierFill| facts.may_go_to(tier) && (!partial || tier.holds_partial_files()) && bytes <= tier.headroom;
    let mut tiers = facts.tiers.offered().iter().filter(takes);
    let above_mark = tiers.clone().next();
    let target = tiers.find(|tier| tier.fits_below(bytes, tier.high_mark)).or(above_mark);
    target.map(|tier| tier.tier).ok_or(Why::NoRoom)
}

/// The first tier that takes the wish, or why the first one that rules allow does not.
fn best_of(facts: &RangeFacts, candidates: &[TierFill], wish: &Wish) -> Result<(u16, Why), Why> {
    let mut refused = None;
    for tier in candidates.iter().filter(|tier| tier.tier != facts.tier && facts.may_go_to(tier)) {
        match may_come(facts, tier, wish) {
            Ok(why) => return Ok((tier.tier, why)),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.unwrap_or(if candidates.is_empty() { Why::AlreadyBest } else { Why::NotAllowedFaster }))
}

fn answers_sooner(facts: &RangeFacts, tier: &TierFill) -> bool {
    let own = facts.tiers.position(facts.tier).map_or(0, |own| facts.tiers.offered()[own].read_latency_us);
    own == 0 || tier.read_latency_us == 0 || u64::from(tier.read_latency_us) * 3 <= u64::from(own) * 2
}

fn may_come(facts: &RangeFacts, tier: &TierFill, wish: &Wish) -> Result<Why, Why> {
    if wish.partial && !tier.holds_partial_files() {
        return Err(Why::PartialNotHeld);
    }
    if wish.bytes > tier.write_budget_left {
        return Err(Why::BudgetUsedUp);
    }
    if wish.spares_saturated == SparesSaturated::Yes && tier.is_saturated() {
        return Err(Why::TierSaturated);
    }
    if wish.answers == Answers::Sooner && !answers_sooner(facts, tier) {
        return Err(Why::AnswersNoSooner);
    }
    if wish.displaces == Displaces::Anything {
        // Above its mark eviction is at work already, and has to come to its end.
        let has_room = wish.bytes <= tier.headroom && tier.used <= tier.high_mark;
        return if has_room { Ok(wish.why) } else { Err(Why::NoRoomBelowMark) };
    }
    // Without a victim only up to the low mark: the space above it is for new data, and eviction, which leaves the tier at its
    // low mark, would free space for exactly the data that it sent away.
    if tier.fits_below(wish.bytes, tier.low_mark.min(tier.high_mark)) {
        let lately = facts.moved_lately() && wish.heat < 4 * crate::HEAT_ONE;
        return if lately { Err(Why::MovedLately) } else { Ok(wish.why) };
    }
    if wish.bytes > tier.headroom {
        return Err(Why::NoRoomBelowMark);
    }
    let gap = tier.high_mark.saturating_sub(tier.low_mark);
    if RangeFacts::is_larger_than_a_range(wish.bytes) && wish.bytes > gap {
        return Err(Why::LargerThanGap);
    }
    // Above its mark eviction is at work already; more would only make it take hotter data.
    if tier.used > tier.high_mark {
        return Err(Why::NoRoomBelowMark);
    }
    if tier.longest_idle_seconds < wish.victim_idle_seconds || !is_hotter(facts, wish.heat, tier.coldest_heat) {
        return Err(Why::NothingColderThere);
    }
    if !is_hotter(facts, heat_for_promotion(facts, wish.heat), tier.coldest_heat) {
        return Err(Why::MovedLately);
    }
    Ok(Why::Hotter)
}
