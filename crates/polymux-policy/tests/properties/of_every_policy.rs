//! Properties of every policy, whatever the facts. A test program that includes this says which policies it is about: those of the product,
//! and those of `polymux-lab`.

use polymux_policy::{
    Action, HEAT_ONE, NEVER, PlacementFacts, PolicyKind, RangeFacts, TierFill, WAITED_FOR_FILE_MAX, Why, decide, evict,
    place,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn any_kind() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(crate::KINDS.to_vec())
}

/// Boxed, as are the others below: a tree of tuples of unions would not fit the stack of a test.
/// Small numbers meet each other's limits often, edges are where arithmetic breaks.
fn any_u32() -> BoxedStrategy<u32> {
    prop_oneof![0..100 * HEAT_ONE, 0..3000_u32, Just(0), Just(NEVER), any::<u32>()].boxed()
}

fn any_u64() -> BoxedStrategy<u64> {
    prop_oneof![0..200 * MIB, 0..8 * MIB, Just(0), Just(u64::MAX), any::<u64>()].boxed()
}

prop_compose! {
    fn any_tier(tier: u16)(
        flags in prop_oneof![Just(3_u16), any::<u16>()],
        loads in (0..120_u16, 0..120_u16),
        coldest_heat in any_u32(),
        longest_idle_seconds in any_u32(),
        total in prop_oneof![Just(100 * MIB), any_u64()],
        used in any_u64(),
        headroom in any_u64(),
        marks in prop_oneof![Just(None), (any_u64(), any_u64()).prop_map(Some)],
        write_budget_left in prop_oneof![Just(u64::MAX), any_u64()],
    ) -> TierFill {
        let plain = TierFill::new(tier, total, used, headroom);
        let (high_mark, low_mark) = marks.unwrap_or((plain.high_mark, plain.low_mark));
        let (read_load_percent, write_load_percent) = loads;
        TierFill {
            flags, read_load_percent, write_load_percent, coldest_heat, longest_idle_seconds, high_mark, low_mark,
            write_budget_left, ..plain
        }
    }
}

fn any_tiers() -> BoxedStrategy<Vec<TierFill>> {
    prop_oneof![
        (any_tier(0).boxed(), any_tier(1).boxed()).prop_map(|(one, two)| vec![one, two]),
        (any_tier(4).boxed(), any_tier(0).boxed(), any_tier(63).boxed())
            .prop_map(|(one, two, three)| vec![one, two, three]),
        // Nonsense: a number that no tier can have, and one twice.
        (any_tier(64).boxed(), any_tier(7).boxed(), any_tier(7).boxed())
            .prop_map(|(one, two, three)| vec![one, two, three]),
        Just(Vec::new()),
    ]
    .boxed()
}

prop_compose! {
    fn any_facts()(
        tiers in any_tiers(),
        heats in (any_u32(), any_u32(), any_u32(), any_u32()),
        seconds in (any_u32(), any_u32(), any_u32(), any_u32()),
        warm_seconds in any_u32(),
        own in 0..4_usize,
        shares in (any::<u8>(), any::<u8>(), 0..2_u8),
        range_bytes in prop_oneof![Just(2 * MIB), any_u64()],
        file_size in prop_oneof![Just(2 * MIB), any_u64()],
        allowed in prop_oneof![3 => Just(u64::MAX), 1 => any::<u64>()],
        version in prop_oneof![9 => Just(None), 1 => any::<u32>().prop_map(Some)],
    ) -> RangeFacts {
        let tier = tiers.get(own).map_or(0, |tier| tier.tier);
        let mut facts = RangeFacts::new(tier, range_bytes);
        for tier in tiers {
            facts.tiers.offer(tier);
        }
        (facts.heat, facts.reads, facts.writes, facts.file_heat) = heats;
        (facts.idle_seconds, facts.modified_seconds_ago, facts.moved_seconds_ago, facts.half_life_seconds) = seconds;
        facts.warm_seconds = warm_seconds;
        (facts.sequential, facts.synchronous, facts.is_cached) = shares;
        (facts.file_size, facts.allowed) = (file_size, allowed);
        facts.version = version.unwrap_or(facts.version);
        facts
    }
}

fn allows(mask: u64, tier: u16) -> bool {
    tier < 64 && mask & (1 << tier) != 0
}

/// The tier that an answer means: the first of its number, as only nonsense has two.
fn fill_of(facts: &RangeFacts, tier: u16) -> Option<&TierFill> {
    facts.tiers.offered().iter().find(|offered| offered.tier == tier)
}

fn has_twins(facts: &RangeFacts) -> bool {
    let tiers = facts.tiers.offered();
    tiers.iter().enumerate().any(|(at, tier)| tiers[..at].iter().any(|other| other.tier == tier.tier))
}

fn bytes_of(kind: PolicyKind, facts: &RangeFacts) -> u64 {
    if kind == PolicyKind::WholeFile { facts.file_size } else { facts.range_bytes }
}

/// No tier that rules allow could take it and stay below its high mark.
fn has_no_room_below_mark(facts: &RangeFacts, bytes: u64) -> bool {
    let partial = bytes < facts.file_size;
    !facts.tiers.offered().iter().any(|tier| {
        allows(facts.allowed, tier.tier)
            && tier.flags & (TierFill::TAKES_NEW_DATA | TierFill::DRAINING) == TierFill::TAKES_NEW_DATA
            && (!partial || tier.flags & TierFill::HOLDS_PARTIAL_FILES != 0)
            && bytes <= tier.headroom
            && tier.used.checked_add(bytes).is_some_and(|used| used <= tier.high_mark)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_move_goes_to_an_offered_and_allowed_tier_with_room_below_its_mark(kind in any_kind(), facts in any_facts()) {
        let decision = decide(kind, &facts);
        if decision.action == Action::Stay {
            prop_assert_eq!((decision.target, decision.score), (facts.tier, 0));
            return Ok(());
        }
        prop_assert!(decision.score > 0 && decision.target != facts.tier);
        prop_assert!(allows(facts.allowed, decision.target));
        if has_twins(&facts) {
            return Ok(());
        }
        let target = fill_of(&facts, decision.target).expect("an offered tier");
        prop_assert_eq!(target.flags & TierFill::TAKES_NEW_DATA, TierFill::TAKES_NEW_DATA);
        let bytes = bytes_of(kind, &facts);
        prop_assert!(bytes <= target.headroom);
        let used_after = target.used.saturating_add(bytes);
        let displaces = target.used <= target.high_mark
            && target.coldest_heat <= facts.heat.max(facts.file_heat) / 2
            && (bytes <= 2 * MIB || bytes <= target.high_mark.saturating_sub(target.low_mark));
        // The policy that only serves for comparison asks for no victim, but for a tier that eviction is not yet at work on.
        let displaces_anything = crate::displaces_anything(kind) && target.used <= target.high_mark;
        let demanded = decision.why == Why::RulesSayElsewhere && has_no_room_below_mark(&facts, bytes);
        prop_assert!(used_after <= target.high_mark || displaces || displaces_anything || demanded);
    }

    #[test]
    fn what_leaves_goes_to_an_allowed_slower_tier_with_room_below_its_mark(kind in any_kind(), facts in any_facts()) {
        let eviction = evict(kind, &facts);
        if eviction.score == 0 {
            prop_assert_eq!(eviction.target, facts.tier);
            return Ok(());
        }
        prop_assert!(allows(facts.allowed, eviction.target) && eviction.target != facts.tier);
        if has_twins(&facts) {
            return Ok(());
        }
        let target = fill_of(&facts, eviction.target).expect("an offered tier");
        let bytes = bytes_of(kind, &facts);
        prop_assert!(bytes <= target.headroom);
        let demanded = eviction.why == Why::RulesSayElsewhere && has_no_room_below_mark(&facts, bytes);
        prop_assert!(target.used.saturating_add(bytes) <= target.high_mark || demanded);
        let position = |tier| facts.tiers.offered().iter().position(|offered| offered.tier == tier);
        prop_assert!(position(eviction.target) > position(facts.tier) || eviction.why == Why::RulesSayElsewhere);
    }

    #[test]
    fn what_has_moved_to_its_target_stays_there(kind in any_kind(), facts in any_facts(), moved_now in any::<bool>()) {
        let decision = decide(kind, &facts);
        if decision.action == Action::Move {
            let moved_seconds_ago = if moved_now { 0 } else { facts.moved_seconds_ago };
            let moved = RangeFacts { tier: decision.target, moved_seconds_ago, ..facts };
            prop_assert_eq!(decide(kind, &moved).action, Action::Stay);
        }
    }

    #[test]
    fn the_same_facts_give_the_same_answers(kind in any_kind(), facts in any_facts()) {
        let copy = facts;
        prop_assert_eq!(decide(kind, &facts), decide(kind, &copy));
        prop_assert_eq!(evict(kind, &facts), evict(kind, &copy));
        prop_assert_eq!(facts, copy);
    }

    #[test]
    fn what_is_colder_never_leaves_after_what_is_hotter(kind in any_kind(), facts in any_facts(), hotter in any_u32()) {
        let hot = RangeFacts { heat: facts.heat.max(hotter), file_heat: facts.file_heat.max(hotter), ..facts };
        prop_assert!(evict(kind, &facts).score >= evict(kind, &hot).score);
    }

    #[test]
    fn what_was_idle_for_longer_never_leaves_after_what_was_used(
        kind in any_kind(), facts in any_facts(), longer in any_u32(),
    ) {
        let idle = RangeFacts { idle_seconds: facts.idle_seconds.max(longer), ..facts };
        prop_assert!(evict(kind, &idle).score >= evict(kind, &facts).score);
    }

    #[test]
    fn static_moves_only_what_rules_send_away(facts in any_facts()) {
        let decision = decide(PolicyKind::Static, &facts);
        prop_assert!(decision.action == Action::Stay || decision.why == Why::RulesSayElsewhere);
        let eviction = evict(PolicyKind::Static, &facts);
        prop_assert!(eviction.score == 0 || eviction.why == Why::RulesSayElsewhere);
    }

    #[test]
    fn every_tier_that_could_help_is_named_once_the_allowed_ones_first(
        kind in any_kind(), tiers in any_tiers(), length in any_u64(), file_end in any_u64(),
        allowed in prop_oneof![Just(u64::MAX), any::<u64>()], shares in (any::<u8>(), any::<u8>(), any::<u8>()),
    ) {
        let mut facts = PlacementFacts::new(length, file_end);
        (facts.synchronous, facts.sequential, facts.sync_share) = shares;
        facts.allowed = allowed;
        for tier in &tiers {
            facts.offer(*tier);
        }
        let helps = |tier: &&TierFill| {
            tier.headroom > 0
                && tier.flags & TierFill::TAKES_NEW_DATA != 0
                && tier.flags & TierFill::DRAINING == 0
        };
        let decision = place(kind, &facts);
        let mut expected: Vec<u16> = tiers.iter().filter(helps).map(|tier| tier.tier).collect();
        let mut named = decision.tiers().to_vec();
        prop_assert!(named.windows(2).all(|pair| allows(allowed, pair[0]) || !allows(allowed, pair[1])));
        let goes_above_marks = matches!(kind, PolicyKind::HotCold | PolicyKind::Adaptive);
        let asynchronous = place(kind, &PlacementFacts { synchronous: 0, ..facts });
        if !goes_above_marks && kind != PolicyKind::Tpfs {
            prop_assert_eq!(asynchronous, decision, "it makes no difference whether a write is waited for");
        }
        if kind != PolicyKind::Static {
            let is_waited_for = goes_above_marks && facts.synchronous != 0 && file_end < WAITED_FOR_FILE_MAX;
            let leaves_half = |tier: &TierFill| {
                let above_mark = tier.headroom.saturating_add(tier.used).saturating_sub(tier.high_mark);
                is_waited_for && tier.headroom.saturating_sub(length.max(1)) > above_mark / 2
            };
            let fill = |tier: u16| tiers.iter().find(|offered| offered.tier == tier).expect("an offered tier");
            let is_preferred = |tier: &TierFill| {
                let is_below = tier.used < tier.high_mark && tier.headroom >= length.max(1);
                allows(allowed, tier.tier) && (is_below || leaves_half(tier))
            };
            let twins = has_twins(&RangeFacts { tiers: facts.tiers, ..RangeFacts::new(0, 0) });
            if !twins && tiers.iter().filter(helps).any(is_preferred) {
                prop_assert!(is_preferred(fill(named[0])), "a tier below its mark comes first");
            }
        }
        named.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(named, expected);
    }
}
