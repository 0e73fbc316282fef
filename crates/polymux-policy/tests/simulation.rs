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
#[path = "simulation/world.rs"]
mod world;

use load::{Draws, Load, Shape};
use polymux_policy::{Action, Decision, Eviction, NEVER, PolicyKind, RangeFacts, decide, evict};
use world::{Moved, Mover, RANGES, World};

const PER_SECOND: u64 = 200;
const SEEDS: u64 = 16;
const FIRST_SEED: u64 = 0x706f_6c79_6d75_7800;
const SETTLING_MINUTES: u32 = 10;
const RESTING_MINUTES: u32 = 20;
const SHAPES: [Shape; 3] = [Shape::Zipf, Shape::Uniform, Shape::Mixed];

fn built_in(kind: PolicyKind) -> Mover {
    Mover { kind, decide: Box::new(move |facts| decide(kind, facts)), evict: Box::new(move |facts| evict(kind, facts)) }
}

fn kinds_that_move() -> impl Iterator<Item = PolicyKind> {
    PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Static && kind.comes_to_rest())
}

/// Migrations in several runs, before and after they settled.
#[derive(Debug, Default)]
struct Moves {
    runs: u64,
    early: usize,
    late: Vec<Moved>,
}

impl Moves {
    fn add(&mut self, mover: &Mover, load: Load, tiers: usize, seed: u64) {
        let mut world = World::new(tiers, load, seed, mover);
        world.run_minutes(SETTLING_MINUTES, mover);
        self.early += std::mem::take(&mut world.moved).len();
        world.run_minutes(RESTING_MINUTES, mover);
        world.check_marks();
        world.moved.iter().for_each(|moved| println!("{load:?} {tiers} tiers, seed {seed:x}: {moved}"));
        self.late.append(&mut world.moved);
        self.runs += 1;
    }

    fn nothing_moved(&self) -> bool {
        self.late.is_empty()
    }

    /// At most one move for ten thousand ranges in each half-life, which is a minute.
    fn hardly_anything_moved(&self) -> bool {
        let range_half_lives = self.runs * RANGES as u64 * u64::from(RESTING_MINUTES);
        self.late.len() as u64 <= range_half_lives / 10_000
    }
}

/// Each seed with one shape and number of tiers, or with all of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Breadth {
    OneEach,
    All,
}

fn moves(mover: &Mover, draws: Draws, breadth: Breadth) -> Moves {
    let mut moves = Moves::default();
    for seed in 0..SEEDS {
        let all = SHAPES.into_iter().flat_map(|shape| [(shape, 2), (shape, 3)]).enumerate();
        for (_, (shape, tiers)) in all.filter(|(at, _)| breadth == Breadth::All || *at as u64 == seed % 6) {
            let load = Load { shape, draws, per_second: PER_SECOND };
            moves.add(mover, load, tiers, FIRST_SEED + seed);
        }
    }
    let (early, late) = (moves.early, moves.late.len());
    println!("{} {draws:?}: {} runs, {early} moves early, {late} late", mover.kind, moves.runs);
    moves
}

fn nothing_moves_under_regular_loads(kind: PolicyKind) {
    let mut moves = moves(&built_in(kind), Draws::Regular, Breadth::OneEach);
    for tiers in [2, 3] {
        let scan = Load { shape: Shape::Scan, draws: Draws::Regular, per_second: PER_SECOND };
        moves.add(&built_in(kind), scan, tiers, FIRST_SEED);
    }
    assert!(moves.nothing_moved(), "{kind}: {moves:?}");
}

fn at_most_one_range_in_ten_thousand_moves_per_half_life(kind: PolicyKind) {
    let moves = moves(&built_in(kind), Draws::Independent, Breadth::OneEach);
    assert!(moves.early > 0 && moves.hardly_anything_moved(), "{kind}: {moves:?}");
}

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

/// `cargo test --release -p polymux-policy --test simulation -- --ignored --nocapture`
#[test]
#[ignore = "it runs for minutes: every seed with every load"]
fn every_policy_comes_to_rest_with_every_seed_under_every_load() {
    for kind in kinds_that_move() {
        assert!(moves(&built_in(kind), Draws::Regular, Breadth::All).nothing_moved(), "{kind}");
        assert!(moves(&built_in(kind), Draws::Independent, Breadth::All).hardly_anything_moved(), "{kind}");
    }
}

#[test]
fn static_moves_nothing_at_all() {
    let mover = built_in(PolicyKind::Static);
    let mut world =
        World::new(3, Load { shape: Shape::Mixed, draws: Draws::Independent, per_second: PER_SECOND }, 5, &mover);
    world.run_minutes(SETTLING_MINUTES, &mover);
    assert!(world.moved.is_empty());
}

/// Hit ratios in thousandths: of the first arrangement, after some minutes, and at the end.
fn hits(world: &mut World, mover: &Mover, minutes: u32) -> (u64, u64, u64) {
    let first = world.expected_hits();
    world.run_minutes(minutes, mover);
    let soon = world.expected_hits();
    world.run_minutes(20 - minutes, mover);
    (first, soon, world.expected_hits())
}

#[test]
fn hot_data_is_on_the_fast_tier_within_two_half_lives_and_within_five_when_the_load_shifts_to_other_ranges() {
    for kind in kinds_that_move() {
        let mover = built_in(kind);
        let load = Load { shape: Shape::Zipf, draws: Draws::Independent, per_second: PER_SECOND };
        let mut world = World::new(2, load, FIRST_SEED, &mover);
        let (first, soon, last) = hits(&mut world, &mover, 2);
        println!("{kind}: {first}, {soon} after two half-lives, {last} at the end");
        assert!(last >= first + 200, "{kind}");
        assert!(soon - first >= (last - first) * 9 / 10, "{kind}");
        world.shift(FIRST_SEED + 1);
        let (shifted, soon, again) = hits(&mut world, &mover, 5);
        println!("{kind}: {shifted} after the shift, {soon} after five half-lives, {again} at the end");
        assert!(soon - shifted >= (last - shifted) * 3 / 4, "{kind}");
    }
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
