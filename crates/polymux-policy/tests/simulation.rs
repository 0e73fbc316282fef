//! Nothing moves twice without a reason: under a steady load migration comes to rest.
//!
//! The worlds have two or three tiers, far more data than the fast ones hold, and a half-life of a minute, so that "ten
//! minutes" are ten half-lives; with a longer half-life all takes as much longer. Minutes 10 to 30 are looked at.
//!
//! * Under *regular* loads and scans nothing moves then, not once, with any policy.
//! * Under *independent* draws that cannot be had from anything that forgets: a heat is a sample with a deviation, and a
//!   range whose rate is near the margin crosses it at some time. Such a range really is hotter than the one that it displaces; only
//!   the time at which it shows is random. There the bound is one move for ten thousand ranges in each half-life.
//!
//! The same check finds policies without hysteresis, and one whose margin does not grow with time.

#[path = "simulation/load.rs"]
mod load;
#[path = "simulation/of_every_policy.rs"]
mod of_every_policy;
#[path = "simulation/world.rs"]
mod world;

use load::{Draws, Load, Shape};
use of_every_policy::{
    FIRST_SEED, Moves, PER_SECOND, SETTLING_MINUTES, at_most_one_range_in_ten_thousand_moves_per_half_life, built_in,
    nothing_moves_under_regular_loads,
};
use polymux_policy::{Action, Decision, Eviction, NEVER, PolicyKind, RangeFacts, decide, evict};
use world::{Mover, World};

/// Policies that are tested.
const KINDS: &[PolicyKind] = &PolicyKind::ALL;

macro_rules! comes_to_rest {
    ($($name:ident: $kind:expr;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn moves_nothing_from_minute_10_to_30_under_regular_loads_and_scans() {
                nothing_moves_under_regular_loads($kind);
            }

            #[test]
            fn moves_at_most_one_range_in_ten_thousand_per_half_life_under_independent_draws() {
                at_most_one_range_in_ten_thousand_moves_per_half_life($kind);
            }
        }
    )+};
}

comes_to_rest! {
    lru: PolicyKind::Lru;
    hot_cold: PolicyKind::HotCold;
    tpfs: PolicyKind::Tpfs;
    poly: PolicyKind::Poly;
    whole_file: PolicyKind::WholeFile;
}

#[test]
fn static_moves_nothing_at_all() {
    let mover = built_in(PolicyKind::Static);
    let mut world =
        World::new(3, Load { shape: Shape::Mixed, draws: Draws::Independent, per_second: PER_SECOND }, 5, &mover);
    world.run_minutes(SETTLING_MINUTES, &mover);
    assert!(world.moved.is_empty());
}

/// LRU by its word: whatever was used goes to the fastest tier, whatever is there.
fn promote_always(facts: &RangeFacts) -> Decision {
    let stay = decide(PolicyKind::Static, facts);
    let fastest = facts.tiers.offered()[0];
    let promotes = facts.tier != fastest.tier && facts.idle_seconds <= 10 && fastest.headroom >= facts.range_bytes;
    if promotes { Decision { action: Action::Move, target: fastest.tier, score: 1, ..stay } } else { stay }
}

/// Hot-cold without a margin: a range that is the least bit hotter than the coldest one there takes its place.
fn swap_by_any_difference(facts: &RangeFacts) -> Decision {
    let fastest = facts.tiers.offered()[0];
    if facts.heat > fastest.coldest_heat && fastest.used <= fastest.high_mark {
        promote_always(facts)
    } else {
        stay(facts)
    }
}

fn stay(facts: &RangeFacts) -> Decision {
    decide(PolicyKind::Static, facts)
}

/// Hot-cold with the margin that it has at first, for ever.
fn fixed_margin(facts: &RangeFacts) -> Decision {
    decide(PolicyKind::HotCold, &RangeFacts { warm_seconds: 0, ..*facts })
}

fn evict_coldest(facts: &RangeFacts) -> Eviction {
    evict(PolicyKind::HotCold, &RangeFacts { moved_seconds_ago: NEVER, ..*facts })
}

fn planted(decide: fn(&RangeFacts) -> Decision, draws: Draws, shape: Shape, seeds: u64) -> Moves {
    let mover = Mover { kind: PolicyKind::HotCold, decide: Box::new(decide), evict: Box::new(evict_coldest) };
    let mut moves = Moves::default();
    for seed in 0..seeds {
        moves.add(&mover, Load { shape, draws, per_second: PER_SECOND }, 2, FIRST_SEED + seed);
    }
    println!("planted: {} late moves", moves.late.len());
    moves
}

/// Swapping by any difference is caught under independent draws only: regular heats have no chance in them, so it sorts the
/// ranges by them and rests.
#[test]
fn a_policy_without_hysteresis_is_caught_by_the_same_checks() {
    assert!(!planted(promote_always, Draws::Regular, Shape::Zipf, 1).nothing_moved());
    for decide in [promote_always, swap_by_any_difference] as [fn(&RangeFacts) -> Decision; 2] {
        assert!(!planted(decide, Draws::Independent, Shape::Uniform, 1).hardly_anything_moved());
    }
}

#[test]
fn a_margin_that_does_not_grow_with_time_is_caught() {
    assert!(!planted(fixed_margin, Draws::Independent, Shape::Zipf, 4).hardly_anything_moved());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let load = Load { shape: Shape::Mixed, draws: Draws::Independent, per_second: PER_SECOND };
    let run = || {
        let mut moves = Moves::default();
        moves.add(&built_in(PolicyKind::HotCold), load, 3, 7);
        format!("{moves:?}")
    };
    assert_eq!(run(), run());
}
