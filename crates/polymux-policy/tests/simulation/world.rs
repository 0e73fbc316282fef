//! A world of ranges on tiers, used by a steady load, in which a mover obeys a policy.
//!
//! Invariants: integers only, one generator with a seed, one simulated clock in seconds. All ranges are full, so the fill of a
//! tier is the number of ranges on it. The ranges that a tier would evict are found in the policy's own order, as the planner does it.

use polymux_policy::{
    Action, Decision, Eviction, HEAT_ONE, NEVER, PlacementFacts, PolicyKind, RangeFacts, TierFill, TierTable, Why,
    place,
};

use crate::load::{Access, Load, Source};

const RANGE: u64 = 2 << 20;
pub const RANGES: usize = 600;
const RANGES_PER_FILE: usize = 8;
const HALF_LIFE_SECONDS: u32 = 60;
/// 2^16 * 2^(-1/60): the part of a heat that remains after a second.
const DECAY: u64 = 64_783;
/// Heats are kept with 16 more bits than a policy sees.
const ACCESS: u64 = (HEAT_ONE as u64) << 16;
/// Seconds between two looks of the mover, and the most ranges it promotes each time.
const STEP_SECONDS: u32 = 10;
const MOVES_PER_STEP: usize = 60;

/// A policy at work.
pub struct Mover {
    /// For placement, and whether files move as a whole.
    pub kind: PolicyKind,
    /// Promotion.
    pub decide: Box<dyn Fn(&RangeFacts) -> Decision>,
    /// Eviction.
    pub evict: Box<dyn Fn(&RangeFacts) -> Eviction>,
}

/// One range that was moved.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub second: u32,
    pub range: usize,
    pub source: usize,
    pub target: usize,
    pub why: Why,
    /// Heat of the range, and of the victim that it would displace, in accesses.
    pub heat: u32,
    pub victim_heat: u32,
}

impl std::fmt::Display for Moved {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { second, range, source, target, why, heat, victim_heat } = self;
        write!(
            formatter,
            "{second} s: range {range} of heat {heat} from tier {source} to {target}, where {victim_heat} "
        )?;
        write!(formatter, "would leave: {}", why.sentence())
    }
}

#[derive(Clone, Copy, Default)]
struct Range {
    tier: usize,
    heat: u64,
    writes: u64,
    sequential: u64,
    used_at: Option<u32>,
    moved_at: Option<u32>,
    /// Doublings of the time for which it was warm, 0..=3, as two bits of an entry of the heat table keep them.
    warm_doublings: u32,
}

/// The world.
pub struct World {
    tiers: Vec<TierFill>,
    ranges: Vec<Range>,
    now: u32,
    load: Load,
    source: Source,
    /// Files move as a whole.
    whole: bool,
    /// The migrations since this was emptied last.
    pub moved: Vec<Moved>,
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn percent(part: u64, whole: u64) -> u8 {
    u8::try_from(part * 100 / whole.max(1)).unwrap_or(100).min(100)
}

fn file_of(at: usize) -> std::ops::Range<usize> {
    let first = at - at % RANGES_PER_FILE;
    first..(first + RANGES_PER_FILE).min(RANGES)
}

impl World {
    /// Tiers filled in order: 100 ranges fast, with three tiers 200 in the middle, and space for all on the slow one.
    pub fn new(tiers: usize, load: Load, seed: u64, mover: &Mover) -> Self {
        let sizes: &[u64] = if tiers == 2 { &[100, 1000] } else { &[100, 200, 1000] };
        let tier = |(number, size): (u16, &u64)| TierFill::new(number, size * RANGE, 0, size * RANGE);
        let tiers = (0..).zip(sizes).map(tier).collect();
        let source = Source::new(RANGES, seed);
        let mut world = Self {
            tiers,
            ranges: Vec::new(),
            now: 1,
            load,
            source,
            whole: mover.kind == PolicyKind::WholeFile,
            moved: Vec::new(),
        };
        world.fill(mover);
        world
    }

    /// Writes all ranges where the policy places them; eviction works meanwhile.
    fn fill(&mut self, mover: &Mover) {
        for _ in 0..RANGES {
            let mut facts = PlacementFacts::new(RANGE, RANGE);
            self.tiers.iter().for_each(|tier| facts.offer(*tier));
            let tier = usize::from(place(mover.kind, &facts).tiers()[0]);
            self.account(tier, None);
            self.ranges.push(Range { tier, ..Range::default() });
            self.relieve(mover);
        }
        self.moved.clear();
    }

    /// Lets time pass.
    pub fn run_minutes(&mut self, minutes: u32, mover: &Mover) {
        for _ in 0..minutes * 60 {
            self.now += 1;
            for range in &mut self.ranges {
                for heat in [&mut range.heat, &mut range.writes, &mut range.sequential] {
                    *heat = (*heat * DECAY) >> 16;
                }
            }
            let (ranges, now) = (&mut self.ranges, self.now);
            self.source.second(self.load, |access| ranges[access.range].touch(access, now));
            if self.now.is_multiple_of(STEP_SECONDS) {
                self.promote(mover);
                self.relieve(mover);
            }
        }
    }

    /// Fills in the facts about a range; the tiers are as they are.
    fn describe(&self, at: usize, facts: &mut RangeFacts) {
        let range = &self.ranges[at];
        let ago = |then: Option<u32>| then.map_or(NEVER, |then| self.now - then);
        let file = &self.ranges[file_of(at).start..file_of(at).end.min(self.ranges.len())];
        facts.tier = self.tiers[range.tier].tier;
        facts.heat = narrow(range.heat >> 16);
        facts.writes = narrow(range.writes >> 16).min(facts.heat);
        facts.reads = facts.heat - facts.writes;
        facts.file_heat = narrow(file.iter().map(|range| range.heat >> 16).sum::<u64>() / file.len() as u64);
        facts.idle_seconds = ago(range.used_at);
        facts.moved_seconds_ago = ago(range.moved_at);
        let warm = if self.whole { file.iter().map(|range| range.warm_doublings).max() } else { None };
        facts.warm_seconds = HALF_LIFE_SECONDS * ((1 << warm.unwrap_or(range.warm_doublings)) - 1);
        facts.sequential = percent(range.sequential, range.heat);
        facts.synchronous = if range.writes > 0 { 100 } else { 0 };
        facts.file_size = RANGE * file.len() as u64;
    }

    fn blank(&self) -> RangeFacts {
        let mut facts = RangeFacts::new(0, RANGE);
        facts.half_life_seconds = HALF_LIFE_SECONDS;
        self.tiers.iter().for_each(|tier| facts.tiers.offer(*tier));
        facts
    }

    /// Facts about all tiers, each with the data that one eviction would take.
    fn observe(&mut self, mover: &Mover) -> TierTable {
        let mut facts = self.blank();
        for number in 0..self.tiers.len() - 1 {
            let mut leaving: Vec<(u64, u32, u32)> = Vec::new();
            for at in (0..self.ranges.len()).filter(|at| self.ranges[*at].tier == number) {
                self.describe(at, &mut facts);
                let score = (mover.evict)(&facts).score;
                let heat = if mover.kind == PolicyKind::WholeFile { facts.file_heat } else { facts.heat };
                leaving.push((score, heat, facts.idle_seconds));
            }
            leaving.retain(|(score, ..)| *score > 0);
            leaving.sort_unstable_by_key(|(score, ..)| std::cmp::Reverse(*score));
            let tier = &mut self.tiers[number];
            let gap = usize::try_from((tier.high_mark - tier.low_mark) / RANGE).expect("a small world");
            let first = &leaving[..gap.min(leaving.len())];
            tier.coldest_heat = first.iter().map(|(_, heat, _)| *heat).max().unwrap_or(u32::MAX);
            tier.longest_idle_seconds = first.iter().map(|(.., idle)| *idle).max().unwrap_or(0);
        }
        self.blank().tiers
    }

    fn promote(&mut self, mover: &Mover) {
        let mut facts = self.blank();
        facts.tiers = self.observe(mover);
        let mut wanting: Vec<(u64, usize)> = Vec::new();
        for at in 0..self.ranges.len() {
            self.describe(at, &mut facts);
            wanting.push(((mover.decide)(&facts).score, at));
        }
        wanting.retain(|(score, _)| *score > 0);
        wanting.sort_unstable_by_key(|(score, at)| (std::cmp::Reverse(*score), *at));
        let mut moved = 0;
        for (_, at) in wanting {
            if moved >= MOVES_PER_STEP {
                break;
            }
            self.describe(at, &mut facts);
            let decision = (mover.decide)(&facts);
            if decision.action == Action::Move {
                moved += self.carry_out(at, decision.target, decision.why, mover.kind);
                facts.tiers = self.observe(mover);
            }
        }
    }

    /// Eviction: from each tier above its high mark until it is at its low mark.
    fn relieve(&mut self, mover: &Mover) {
        for number in 0..self.tiers.len() {
            if self.tiers[number].used <= self.tiers[number].high_mark {
                continue;
            }
            while self.tiers[number].used > self.tiers[number].low_mark {
                let mut facts = self.blank();
                let answers = (0..self.ranges.len()).filter(|at| self.ranges[*at].tier == number).map(|at| {
                    self.describe(at, &mut facts);
                    (at, (mover.evict)(&facts))
                });
                let Some((at, eviction)) = answers.max_by_key(|(_, eviction)| eviction.score) else { break };
                if eviction.score == 0 {
                    break;
                }
                self.carry_out(at, eviction.target, eviction.why, mover.kind);
            }
        }
    }

    /// Moves the range, or its whole file, and returns how many ranges that were.
    fn carry_out(&mut self, at: usize, target: u16, why: Why, kind: PolicyKind) -> usize {
        let target = usize::from(target);
        let moving = if kind == PolicyKind::WholeFile { file_of(at) } else { at..at + 1 };
        let before = self.moved.len();
        for range in moving.start..moving.end.min(self.ranges.len()) {
            let source = self.ranges[range].tier;
            if source != target {
                let heat = narrow(self.ranges[range].heat >> 24);
                let victim_heat = self.tiers[target.min(source)].coldest_heat / HEAT_ONE;
                self.moved.push(Moved { second: self.now, range, source, target, why, heat, victim_heat });
                self.account(target, Some(source));
                self.ranges[range].tier = target;
                self.ranges[range].moved_at = Some(self.now);
            }
        }
        self.moved.len() - before
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

    /// The load goes on, with other ranges as the popular ones.
    pub fn shift(&mut self, seed: u64) {
        self.source = Source::new(RANGES, seed);
    }

    /// The share of the load's accesses that the fastest tier serves, in thousandths.
    pub fn expected_hits(&self) -> u64 {
        let total: u64 = (0..RANGES).map(|at| self.source.weight(self.load, at)).sum();
        let fast = (0..RANGES).filter(|at| self.ranges[*at].tier == 0);
        fast.map(|at| self.source.weight(self.load, at)).sum::<u64>() * 1000 / total
    }

    /// No tier may be above its high mark once the mover has had its turn.
    pub fn check_marks(&self) {
        for tier in &self.tiers {
            assert!(tier.used <= tier.high_mark, "tier {} is above its mark", tier.tier);
        }
    }
}

impl Range {
    fn touch(&mut self, access: Access, now: u32) {
        let half_lives = |second: u32| (second / HALF_LIFE_SECONDS) >> self.warm_doublings;
        if self.heat < ACCESS * 3 / 4 {
            self.warm_doublings = 0;
        } else if self.used_at.is_some_and(|used| half_lives(used) != half_lives(now)) {
            self.warm_doublings = (self.warm_doublings + 1).min(3);
        }
        self.heat += ACCESS;
        self.used_at = Some(now);
        self.writes += if access.is_write { ACCESS } else { 0 };
        self.sequential += if access.is_sequential { ACCESS } else { 0 };
    }
}
