//! A world of ranges on tiers, used by a steady load, in which a mover obeys a policy.
//!
//! True here: integers only, one generator with a seed, one simulated clock in seconds. All ranges are full, so the fill of a
//! tier is the number of ranges on it.

use polymux_policy::{
    Action, Decision, Eviction, HEAT_ONE, NEVER, PlacementFacts, PolicyKind, RangeFacts, TierFill, TierTable, place,
};

const RANGE: u64 = 2 << 20;
const RANGES: usize = 600;
const RANGES_PER_FILE: usize = 8;
const HALF_LIFE_SECONDS: u32 = 60;
/// 2^16 * 2^(-1/60): what a second leaves of a heat.
const DECAY: u64 = 64_783;
/// Heats are kept with 16 more bits than a policy sees.
const ACCESS: u64 = (HEAT_ONE as u64) << 16;
const ACCESSES_PER_SECOND: u64 = 200;
/// The Zipf load draws once from each of so many equal parts of its distribution before it begins anew. So it is steady: the
/// ranges that matter are used as often in each ten seconds. What is rare is still up to chance.
const STRATA: u64 = 2000;
/// Seconds between two looks of the mover, and the most ranges it moves each time.
const STEP_SECONDS: u32 = 10;
const MOVES_PER_STEP: usize = 60;

/// A steady load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Random, with a weight of 1/rank.
    Zipf,
    /// All ranges in turn, in a stream.
    Scan,
    /// Random, all alike.
    Uniform,
    /// Half Zipf, a quarter scan, a quarter uniform; a third are synchronous writes.
    Mixed,
}

/// A policy at work.
pub struct Mover {
    /// For placement, and whether files move as a whole.
    pub kind: PolicyKind,
    /// Promotion.
    pub decide: Box<dyn Fn(&RangeFacts) -> Decision>,
    /// Eviction.
    pub evict: Box<dyn Fn(&RangeFacts) -> Eviction>,
}

#[derive(Clone, Copy, Default)]
struct Range {
    tier: usize,
    heat: u64,
    writes: u64,
    sequential: u64,
    used_at: Option<u32>,
    moved_at: Option<u32>,
}

/// The world.
pub struct World {
    tiers: Vec<TierFill>,
    ranges: Vec<Range>,
    /// Ranges by rank of the Zipf load, and the sums of the weights up to each.
    ranks: Vec<usize>,
    sums: Vec<u64>,
    now: u32,
    random: u64,
    scanned: usize,
    drawn: u64,
    /// Ranges moved.
    pub moves: u64,
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn percent(part: u64, whole: u64) -> u8 {
    u8::try_from(part * 100 / whole.max(1)).unwrap_or(100).min(100)
}

impl World {
    /// A world of empty tiers: 100 ranges fast, with three tiers 200 in the middle, and room for all on the slow one.
    pub fn new(tiers: usize, seed: u64) -> Self {
        let sizes: &[u64] = if tiers == 2 { &[100, 1000] } else { &[100, 200, 1000] };
        let tier = |(number, size): (u16, &u64)| TierFill::new(number, size * RANGE, 0, size * RANGE);
        let mut world = Self {
            tiers: (0..).zip(sizes).map(tier).collect(),
            ranges: Vec::new(),
            ranks: (0..RANGES).collect(),
            sums: Vec::new(),
            now: 1,
            random: seed,
            scanned: 0,
            drawn: 0,
            moves: 0,
        };
        for rank in (1..RANGES).rev() {
            let other = usize::try_from(world.next(rank as u64 + 1)).expect("below the number of ranges");
            world.ranks.swap(rank, other);
        }
        let weights = (1..=RANGES as u64).map(|rank| 1_000_000 / rank);
        for weight in weights {
            world.sums.push(world.sums.last().unwrap_or(&0) + weight);
        }
        world
    }

    /// A number below `limit` (SplitMix64).
    fn next(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Writes all ranges where the policy places them; eviction works meanwhile.
    pub fn fill(&mut self, mover: &Mover) {
        for _ in 0..RANGES {
            let mut facts = PlacementFacts::new(RANGE, RANGE);
            self.tiers.iter().for_each(|tier| facts.offer(*tier));
            let tier = usize::from(place(mover.kind, &facts).tiers()[0]);
            self.account(tier, None);
            self.ranges.push(Range { tier, ..Range::default() });
            self.relieve(mover);
        }
    }

    /// Lets time pass.
    pub fn run_minutes(&mut self, minutes: u32, load: Load, mover: &Mover) {
        for _ in 0..minutes * 60 {
            self.now += 1;
            for range in &mut self.ranges {
                for heat in [&mut range.heat, &mut range.writes, &mut range.sequential] {
                    *heat = (*heat * DECAY) >> 16;
                }
            }
            for _ in 0..ACCESSES_PER_SECOND {
                self.access(load);
            }
            if self.now.is_multiple_of(STEP_SECONDS) {
                self.promote(mover);
                self.relieve(mover);
            }
        }
    }

    fn access(&mut self, load: Load) {
        let (part, writes) = match load {
            Load::Mixed => {
                let part = [Load::Zipf, Load::Zipf, Load::Scan, Load::Uniform]
                    [usize::try_from(self.next(4)).expect("below four")];
                (part, self.next(3) == 0)
            }
            part => (part, false),
        };
        let at = match part {
            Load::Zipf | Load::Mixed => {
                // One draw from each of the strata in turn, in scattered order.
                self.drawn += 1;
                let stratum = self.drawn * 1237 % STRATA;
                let drawn = (stratum * self.sums[RANGES - 1] + self.next(self.sums[RANGES - 1])) / STRATA;
                self.ranks[self.sums.partition_point(|sum| *sum <= drawn)]
            }
            Load::Uniform => usize::try_from(self.next(RANGES as u64)).expect("below the number of ranges"),
            Load::Scan => {
                // Sixteen requests of 128 KiB for each range.
                self.scanned = (self.scanned + 1) % (RANGES * 16);
                self.scanned / 16
            }
        };
        let range = &mut self.ranges[at];
        range.heat += ACCESS;
        range.used_at = Some(self.now);
        range.writes += if writes { ACCESS } else { 0 };
        range.sequential += if part == Load::Scan { ACCESS } else { 0 };
    }

    fn facts(&self, at: usize) -> RangeFacts {
        let range = &self.ranges[at];
        let ago = |then: Option<u32>| then.map_or(NEVER, |then| self.now - then);
        let first = at - at % RANGES_PER_FILE;
        let file = &self.ranges[first..(first + RANGES_PER_FILE).min(self.ranges.len())];
        let mut facts = RangeFacts::new(self.tiers[range.tier].tier, RANGE);
        facts.heat = narrow(range.heat >> 16);
        facts.writes = narrow(range.writes >> 16);
        facts.reads = facts.heat - facts.writes;
        facts.file_heat = narrow(file.iter().map(|range| range.heat >> 16).sum::<u64>() / file.len() as u64);
        facts.idle_seconds = ago(range.used_at);
        facts.moved_seconds_ago = ago(range.moved_at);
        facts.half_life_seconds = HALF_LIFE_SECONDS;
        facts.sequential = percent(range.sequential, range.heat);
        facts.synchronous = if range.writes > 0 { 100 } else { 0 };
        facts.file_size = RANGE * file.len() as u64;
        facts
    }

    /// Brings the heat of what one eviction would take and the longest idle time of each tier up to date and returns the tiers as facts.
    fn observe(&mut self, whole_files: bool) -> TierTable {
        let mut table = TierTable::default();
        let heats: Vec<(usize, u32, u32)> = (0..self.ranges.len())
            .map(|at| {
                let facts = self.facts(at);
                (self.ranges[at].tier, if whole_files { facts.file_heat } else { facts.heat }, facts.idle_seconds)
            })
            .collect();
        for (number, tier) in self.tiers.iter_mut().enumerate() {
            let there = || heats.iter().filter(|(tier, ..)| *tier == number);
            let mut coldest: Vec<u32> = there().map(|(_, heat, _)| *heat).collect();
            coldest.sort_unstable();
            let leaving = usize::try_from((tier.high_mark - tier.low_mark) / RANGE).expect("a small world");
            tier.coldest_heat = coldest.get(leaving.saturating_sub(1)).copied().unwrap_or(u32::MAX);
            tier.longest_idle_seconds = there().map(|(.., idle)| *idle).max().unwrap_or(0);
            table.offer(*tier);
        }
        table
    }

    fn promote(&mut self, mover: &Mover) {
        let mut table = self.observe(mover.kind == PolicyKind::WholeFile);
        let mut moved = 0;
        let score = |at: &usize| (mover.decide)(&RangeFacts { tiers: table, ..self.facts(*at) }).score;
        let mut wanting: Vec<(u64, usize)> = (0..self.ranges.len()).map(|at| (score(&at), at)).collect();
        wanting.retain(|(score, _)| *score > 0);
        wanting.sort_unstable_by_key(|(score, at)| (std::cmp::Reverse(*score), *at));
        for (_, at) in wanting {
            if moved >= MOVES_PER_STEP {
                break;
            }
            let decision = (mover.decide)(&RangeFacts { tiers: table, ..self.facts(at) });
            if decision.action == Action::Move {
                moved += self.carry_out(at, decision.target, mover.kind);
                table = self.observe(mover.kind == PolicyKind::WholeFile);
            }
        }
    }

    /// Eviction: from each tier above its high mark until it is at its low mark.
    fn relieve(&mut self, mover: &Mover) {
        for number in 0..self.tiers.len() {
            if self.tiers[number].used <= self.tiers[number].high_mark {
                continue;
            }
            loop {
                let tiers = self.observe(mover.kind == PolicyKind::WholeFile);
                if self.tiers[number].used <= self.tiers[number].low_mark {
                    break;
                }
                let answers = (0..self.ranges.len())
                    .filter(|at| self.ranges[*at].tier == number)
                    .map(|at| (at, (mover.evict)(&RangeFacts { tiers, ..self.facts(at) })));
                let Some((at, eviction)) = answers.max_by_key(|(_, eviction)| eviction.score) else { break };
                if eviction.score == 0 {
                    break;
                }
                self.carry_out(at, eviction.target, mover.kind);
            }
        }
    }

    /// Moves the range, or its whole file, and returns how many ranges that were.
    fn carry_out(&mut self, at: usize, target: u16, kind: PolicyKind) -> usize {
        let first = at - at % RANGES_PER_FILE;
        let whole = first..(first + RANGES_PER_FILE).min(self.ranges.len());
        let moving = if kind == PolicyKind::WholeFile { whole } else { at..at + 1 };
        let mut moved = 0;
        for at in moving {
            let source = self.ranges[at].tier;
            if source != usize::from(target) {
                self.account(usize::from(target), Some(source));
                self.ranges[at].tier = usize::from(target);
                self.ranges[at].moved_at = Some(self.now);
                moved += 1;
            }
        }
        self.moves += moved as u64;
        moved
    }

    fn account(&mut self, target: usize, source: Option<usize>) {
        let target = &mut self.tiers[target];
        target.used += RANGE;
        target.headroom = target.headroom.checked_sub(RANGE).expect("a policy never overfills a tier");
        if let Some(source) = source {
            self.tiers[source].used -= RANGE;
            self.tiers[source].headroom += RANGE;
        }
    }

    /// The share of the load's accesses that the fastest tier serves.
    pub fn expected_hits_percent(&self, load: Load) -> u64 {
        let weight = |rank: usize| match load {
            Load::Zipf | Load::Mixed => self.sums[rank] - if rank == 0 { 0 } else { self.sums[rank - 1] },
            Load::Scan | Load::Uniform => 1,
        };
        let fast = |rank: &usize| self.ranges[self.ranks[*rank]].tier == 0;
        let total: u64 = (0..RANGES).map(weight).sum();
        (0..RANGES).filter(fast).map(weight).sum::<u64>() * 100 / total
    }

    /// No tier may be above its high mark once the mover has had its turn.
    pub fn check_marks(&self) {
        for tier in &self.tiers {
            assert!(tier.used <= tier.high_mark, "tier {} is above its mark", tier.tier);
        }
    }
}
