//! Nothing moves twice without a reason: in a small world with a simulated clock, what a policy moves dies down.
//!
//! The worlds have two or three tiers, far more data than the fast ones hold, and a steady load with the chance that real
//! loads have. In the second ten simulated minutes (ten half-lives) a policy may move at most a quarter of what it moved in the
//! first. That is weaker than "nothing": chance still carries single ranges over the margin. A policy without hysteresis moves
//! hundreds.

#[path = "simulation/world.rs"]
mod world;

use polymux_policy::{Action, Decision, Eviction, PolicyKind, RangeFacts, decide, evict};
use world::{Load, Mover, World};

const SEEDS: [u64; 2] = [1, 20_260_101];
const LOADS: [Load; 4] = [Load::Zipf, Load::Scan, Load::Uniform, Load::Mixed];

/// What one run showed.
#[derive(Debug)]
struct Outcome {
    moves_early: u64,
    moves_late: u64,
    hits_percent_before: u64,
    hits_percent_after: u64,
}

fn run(mover: &Mover, load: Load, tiers: usize, seed: u64) -> Outcome {
    let mut world = World::new(tiers, seed);
    world.fill(mover);
    world.moves = 0;
    let hits_percent_before = world.expected_hits_percent(load);
    world.run_minutes(10, load, mover);
    let moves_early = std::mem::take(&mut world.moves);
    world.run_minutes(10, load, mover);
    if mover.kind != PolicyKind::Static {
        world.check_marks();
    }
    let hits_percent_after = world.expected_hits_percent(load);
    Outcome { moves_early, moves_late: world.moves, hits_percent_before, hits_percent_after }
}

fn built_in(kind: PolicyKind) -> Mover {
    Mover { kind, decide: Box::new(move |facts| decide(kind, facts)), evict: Box::new(move |facts| evict(kind, facts)) }
}

fn moves_ever_less(kind: PolicyKind) {
    for tiers in [2, 3] {
        for load in LOADS {
            for seed in SEEDS {
                let outcome = run(&built_in(kind), load, tiers, seed);
                println!("{kind} {load:?} {tiers} tiers, seed {seed}: {outcome:?}");
                let rare = outcome.moves_late <= outcome.moves_early / 4;
                assert!(rare, "{kind} {load:?} {tiers} tiers, seed {seed}: {outcome:?}");
            }
        }
    }
}

#[test]
fn lru_moves_ever_less() {
    moves_ever_less(PolicyKind::Lru);
}

#[test]
fn hot_cold_moves_ever_less() {
    moves_ever_less(PolicyKind::HotCold);
}

#[test]
fn tpfs_moves_ever_less() {
    moves_ever_less(PolicyKind::Tpfs);
}

#[test]
fn poly_moves_ever_less() {
    moves_ever_less(PolicyKind::Poly);
}

#[test]
fn whole_file_moves_ever_less() {
    moves_ever_less(PolicyKind::WholeFile);
}

#[test]
fn static_moves_nothing_at_all() {
    for load in LOADS {
        let outcome = run(&built_in(PolicyKind::Static), load, 3, 1);
        assert_eq!(outcome.moves_early + outcome.moves_late, 0);
    }
}

#[test]
fn every_policy_that_moves_brings_hot_data_to_the_fast_tier() {
    for kind in PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Static) {
        for tiers in [2, 3] {
            let outcome = run(&built_in(kind), Load::Zipf, tiers, 1);
            println!("{kind} {tiers} tiers: {outcome:?}");
            assert!(outcome.moves_early > 0, "{kind}: {outcome:?}");
            assert!(outcome.hits_percent_after >= outcome.hits_percent_before + 15, "{kind}: {outcome:?}");
        }
    }
}

/// LRU by its word: whatever was used goes to the fastest tier, whatever is there.
fn promote_always(facts: &RangeFacts) -> Decision {
    let stay = decide(PolicyKind::Static, facts);
    let fastest = facts.tiers.offered()[0];
    let promotes = facts.tier != fastest.tier && facts.idle_seconds <= 10 && fastest.headroom >= facts.range_bytes;
    if promotes { Decision { action: Action::Move, target: fastest.tier, score: 1, ..stay } } else { stay }
}

/// Hot-cold without a margin: a range that is the least bit hotter than the coldest one takes its place.
fn swap_by_any_difference(facts: &RangeFacts) -> Decision {
    let stay = decide(PolicyKind::Static, facts);
    let fastest = facts.tiers.offered()[0];
    let promotes = facts.tier != fastest.tier
        && facts.heat > fastest.coldest_heat
        && fastest.headroom >= facts.range_bytes
        && fastest.used <= fastest.high_mark;
    if promotes { Decision { action: Action::Move, target: fastest.tier, score: 1, ..stay } } else { stay }
}

fn evict_coldest(facts: &RangeFacts) -> Eviction {
    let never_moved = RangeFacts { moved_seconds_ago: polymux_policy::NEVER, ..*facts };
    evict(PolicyKind::HotCold, &never_moved)
}

#[test]
fn a_policy_without_hysteresis_is_caught() {
    let without: [fn(&RangeFacts) -> Decision; 2] = [promote_always, swap_by_any_difference];
    for decide in without {
        let mover = Mover { kind: PolicyKind::HotCold, decide: Box::new(decide), evict: Box::new(evict_coldest) };
        let outcome = run(&mover, Load::Uniform, 2, 1);
        assert!(outcome.moves_late > 100, "{outcome:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let one = run(&built_in(PolicyKind::HotCold), Load::Mixed, 3, 7);
    let two = run(&built_in(PolicyKind::HotCold), Load::Mixed, 3, 7);
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}
