//! Which of what may survive does: bounded, and the same for the same seed.

use std::collections::BTreeSet;

use super::world::{Piece, World};

/// A generator of its own, so that a number repeats a run (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next_u64() % limit as u64).expect("below a usize")
    }
}

/// What a tier keeps of what no sync covered. What cannot be kept without something that is lost is lost too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Everything.
    All,
    /// These pieces.
    Pieces(Kept),
}

/// Pieces that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept(BTreeSet<Piece>);

impl Keep {
    pub(super) fn wants(&self, piece: &Piece) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::Pieces(kept) => kept.0.contains(piece),
        }
    }
}

/// What each device keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By the place of the tier.
    pub tiers: Vec<Keep>,
    /// How many of the transactions that no sync covered.
    pub transactions: usize,
}

/// The ways in which one tier may be left: nothing and everything first; then every prefix, every piece missing, every
/// piece alone with what it needs, and random subsets.
fn ways_of_tier(world: &World, place: usize, random_subsets: usize, random: &mut Random) -> Vec<Keep> {
    let pieces = world.pieces(place);
    if pieces.is_empty() {
        return vec![Keep::Nothing];
    }
    let mut ways = vec![Keep::Nothing, Keep::All];
    let kept = |pieces: BTreeSet<Piece>| Keep::Pieces(Kept(pieces));
    for length in 1..pieces.len() {
        ways.push(kept(pieces[..length].iter().copied().collect()));
    }
    for lost in &pieces[..pieces.len() - 1] {
        ways.push(kept(pieces.iter().filter(|piece| *piece != lost).copied().collect()));
    }
    for alone in &pieces[1..] {
        let needs = |piece: &&Piece| {
            piece.key == alone.key && piece.order < alone.order && (piece.page.is_none() || piece.page == alone.page)
        };
        let mut chosen: BTreeSet<Piece> = pieces.iter().filter(needs).copied().collect();
        chosen.insert(*alone);
        ways.push(kept(chosen));
    }
    for _ in 0..random_subsets {
        ways.push(kept(pieces.iter().filter(|_| random.below(2) == 0).copied().collect()));
    }
    ways
}

impl Choice {
    /// Choices for a crash point, without repetition: every device for itself through all of its ways, the others keeping
    /// nothing and everything by turns; all corners; and `random_states` products by chance.
    #[must_use]
    pub fn of_world(world: &World, random_states: usize, seed: u64) -> Vec<Self> {
        let mut random = Random::new(seed);
        let tiers = world.devices() - 1;
        let ways: Vec<Vec<Keep>> =
            (0..tiers).map(|place| ways_of_tier(world, place, random_states.div_ceil(2), &mut random)).collect();
        let transactions = world.transactions_pending();
        let mut choices: Vec<Self> = Vec::new();
        let mut add = |choice: Self| {
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        };
        let corner = |bits: usize| Self {
            tiers: (0..tiers)
                .map(|place| ways[place][(bits >> place & 1).min(ways[place].len() - 1)].clone())
                .collect(),
            transactions: if bits >> tiers & 1 == 1 { transactions } else { 0 },
        };
        for bits in 0..1 << (tiers + 1) {
            add(corner(bits));
        }
        let all = (1 << (tiers + 1)) - 1;
        for (place, ways) in ways.iter().enumerate() {
            for way in ways.iter().skip(2) {
                for others in [0, all, random.below(all + 1)] {
                    let mut choice = corner(others);
                    choice.tiers[place] = way.clone();
                    add(choice);
                }
            }
        }
        for kept in 1..transactions {
            for others in [0, all, random.below(all + 1)] {
                add(Self { transactions: kept, ..corner(others) });
            }
        }
        for _ in 0..random_states {
            let tiers = ways.iter().map(|ways| ways[random.below(ways.len())].clone()).collect();
            add(Self { tiers, transactions: random.below(transactions + 1) });
        }
        choices
    }
}
