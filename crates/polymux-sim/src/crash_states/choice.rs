//! Chooses which unsynced changes survive: bounded, and the same for the same seed.

use std::collections::BTreeSet;

use super::files::FilesKeep;
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

/// The unsynced changes that a tier keeps. A change that depends on a lost one is lost too.
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

/// The unsynced changes that each device keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By the place of the tier.
    pub tiers: Vec<Keep>,
    /// How many of the transactions that no sync covered.
    pub transactions: usize,
    /// Where a store has files: those of the store, those of its second copy.
    pub files: Vec<FilesKeep>,
}

/// The ways in which one tier may be left: nothing and everything first; then every prefix, every piece missing, every
/// piece alone with its dependencies, and random subsets.
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

/// The ways in which each device may be left. Each has one, or nothing, everything and others.
struct Ways {
    tiers: Vec<Vec<Keep>>,
    transactions: Vec<usize>,
    files: Vec<Vec<FilesKeep>>,
}

impl Ways {
    fn of_world(world: &World, random_states: usize, random: &mut Random) -> Self {
        let tiers = (0..world.tiers()).map(|place| ways_of_tier(world, place, random_states.div_ceil(2), random));
        let tiers = tiers.collect();
        let pending = world.transactions_pending();
        let transactions = match pending {
            0 => vec![0],
            _ => [0, pending].into_iter().chain(1..pending).collect(),
        };
        Self { tiers, transactions, files: world.ways_of_files(random) }
    }

    /// Number of ways of each device.
    fn counts(&self) -> Vec<usize> {
        let tiers = self.tiers.iter().map(Vec::len);
        tiers.chain([self.transactions.len()]).chain(self.files.iter().map(Vec::len)).collect()
    }

    /// The choice that takes one way of each device, by number; a device with fewer ways takes its last one.
    fn choice(&self, numbers: &[usize]) -> Choice {
        let tiers = self.tiers.len();
        let way = |device: usize, count: usize| numbers[device].min(count - 1);
        let of_tier = |(place, ways): (usize, &Vec<Keep>)| ways[way(place, ways.len())].clone();
        let of_files = |(place, ways): (usize, &Vec<FilesKeep>)| ways[way(tiers + 1 + place, ways.len())].clone();
        Choice {
            tiers: self.tiers.iter().enumerate().map(of_tier).collect(),
            transactions: self.transactions[way(tiers, self.transactions.len())],
            files: self.files.iter().enumerate().map(of_files).collect(),
        }
    }
}

impl Choice {
    /// Choices for a crash point, without repetition: every device for itself through all of its ways, the others keeping
    /// nothing and everything by turns; all corners; and `random_states` products by chance.
    #[must_use]
    pub fn of_world(world: &World, random_states: usize, seed: u64) -> Vec<Self> {
        let mut random = Random::new(seed);
        let ways = Ways::of_world(world, random_states, &mut random);
        let counts = ways.counts();
        let mut seen = BTreeSet::new();
        let mut choices: Vec<Self> = Vec::new();
        let mut add = |mut numbers: Vec<usize>| {
            numbers.iter_mut().zip(&counts).for_each(|(number, count)| *number = (*number).min(count - 1));
            if seen.insert(numbers.clone()) {
                let choice = ways.choice(&numbers);
                if !choices.contains(&choice) {
                    choices.push(choice);
                }
            }
        };
        let corner = |bits: usize| -> Vec<usize> { (0..counts.len()).map(|device| bits >> device & 1).collect() };
        let all = (1 << counts.len()) - 1;
        for bits in 0..=all {
            add(corner(bits));
        }
        for (device, count) in counts.iter().enumerate() {
            for way in 2..*count {
                for others in [0, all, random.below(all + 1)] {
                    let mut numbers = corner(others);
                    numbers[device] = way;
                    add(numbers);
                }
            }
        }
        for _ in 0..random_states {
            add(counts.iter().map(|count| random.below(*count)).collect());
        }
        choices
    }
}
