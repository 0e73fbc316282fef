//! Worlds in which a policy is at work, and the tests of every policy that moves something and comes to rest. A test program that includes this
//! says which policies it is about: those of the product, and those of `polymux-lab`.

#![allow(dead_code, reason = "each test program uses its own part")]

use polymux_policy::{PolicyKind, decide, evict};

use crate::load::{Draws, Load, Shape};
use crate::world::{Moved, Mover, RANGES, World};

pub const PER_SECOND: u64 = 200;
pub const SEEDS: u64 = 16;
pub const FIRST_SEED: u64 = 0x706f_6c79_6d75_7800;
pub const SETTLING_MINUTES: u32 = 10;
pub const RESTING_MINUTES: u32 = 20;
pub const SHAPES: [Shape; 3] = [Shape::Zipf, Shape::Uniform, Shape::Mixed];

pub fn built_in(kind: PolicyKind) -> Mover {
    Mover { kind, decide: Box::new(move |facts| decide(kind, facts)), evict: Box::new(move |facts| evict(kind, facts)) }
}

pub fn kinds_that_move() -> impl Iterator<Item = PolicyKind> {
    crate::KINDS.iter().copied().filter(|kind| *kind != PolicyKind::Static && kind.comes_to_rest())
}

/// Migrations in several runs, before and after they settled.
#[derive(Debug, Default)]
pub struct Moves {
    runs: u64,
    early: usize,
    pub late: Vec<Moved>,
}

impl Moves {
    pub fn add(&mut self, mover: &Mover, load: Load, tiers: usize, seed: u64) {
        let mut world = World::new(tiers, load, seed, mover);
        world.run_minutes(SETTLING_MINUTES, mover);
        self.early += std::mem::take(&mut world.moved).len();
        world.run_minutes(RESTING_MINUTES, mover);
        world.check_marks();
        world.moved.iter().for_each(|moved| println!("{load:?} {tiers} tiers, seed {seed:x}: {moved}"));
        self.late.append(&mut world.moved);
        self.runs += 1;
    }

    pub fn nothing_moved(&self) -> bool {
        self.late.is_empty()
    }

    /// At most one move for ten thousand ranges in each half-life, which is a minute.
    pub fn hardly_anything_moved(&self) -> bool {
        let range_half_lives = self.runs * RANGES as u64 * u64::from(RESTING_MINUTES);
        self.late.len() as u64 <= range_half_lives / 10_000
    }
}

/// Each seed with one shape and number of tiers, or with all of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Breadth {
    OneEach,
    All,
}

pub fn moves(mover: &Mover, draws: Draws, breadth: Breadth) -> Moves {
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

pub fn nothing_moves_under_regular_loads(kind: PolicyKind) {
    let mut moves = moves(&built_in(kind), Draws::Regular, Breadth::OneEach);
    for tiers in [2, 3] {
        let scan = Load { shape: Shape::Scan, draws: Draws::Regular, per_second: PER_SECOND };
        moves.add(&built_in(kind), scan, tiers, FIRST_SEED);
    }
    assert!(moves.nothing_moved(), "{kind}: {moves:?}");
}

pub fn at_most_one_range_in_ten_thousand_moves_per_half_life(kind: PolicyKind) {
    let moves = moves(&built_in(kind), Draws::Independent, Breadth::OneEach);
    assert!(moves.early > 0 && moves.hardly_anything_moved(), "{kind}: {moves:?}");
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

/// Hit ratios in thousandths: of the first arrangement, after some minutes, and at the end.
pub fn hits(world: &mut World, mover: &Mover, minutes: u32) -> (u64, u64, u64) {
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
