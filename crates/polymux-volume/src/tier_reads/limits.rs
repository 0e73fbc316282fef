//! Which tiers are the limit of their readers, beside which others (P11).
//!
//! Invariants:
//! * A tier stays the limit until for [`CALM`] it would have had time to spare with the reads of the other one as well: the reads handed over
//!   relieve it, and reads that come back would make it the limit again. If it is the limit again soon after that, it stays it twice as long.
//! * It is the limit no more where the other one is, while the tier itself is hardly used, or where the other one turns out to be much slower.
//! * Between two tiers one handover follows the other after [`SETTLES`]: rates follow the work of programs within some windows.

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_policy::{ReadLoad, is_limit, is_of_help, reads_to_hand_over, would_rest};
use polymux_types::TierId;

/// Time for which a tier must have been able to serve all reads to be the limit no more, the first time.
const CALM: Duration = Duration::from_secs(60);

/// The longest such time, and how long it is remembered how long it was.
const CALM_MAX: Duration = Duration::from_secs(3600);

/// Time after moves between two tiers in which their effect is observed.
const SETTLES: Duration = Duration::from_secs(5);

/// Time after an attempt that found nothing which could move: reads have to show for some windows that they go on.
const RESTS: Duration = Duration::from_secs(2);

/// Longest time after many such attempts in a row.
const RESTS_MAX: Duration = Duration::from_secs(60);

/// How long reads that were handed over may come back in the same way.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(1800);

/// A tier, and another one that may take reads over from it.
pub type Pair = (TierId, TierId);

/// The outcome of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverOutcome {
    /// Ranges are being moved.
    Begun,
    /// No range could move.
    NothingCouldMove,
    /// Some could, but for the marks of the tier that was to take them.
    NoRoom,
    /// Some will, when data that is read less has left that tier.
    WaitsForRoom,
}

/// A tier that is the limit beside another one.
#[derive(Clone, Copy, Debug)]
struct Busy {
    /// When it last had no time to spare.
    last: Duration,
    calm: Duration,
}

/// The state known of all tiers.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    loads: Vec<(TierId, ReadLoad)>,
    pairs: Vec<Pair>,
    busy: BTreeMap<Pair, Busy>,
    /// Pairs that were busy, with the time that they stayed it, and the moment when that ended.
    were_busy: BTreeMap<Pair, (Duration, Duration)>,
    handed_over: BTreeMap<Pair, Duration>,
    rests_until: BTreeMap<Pair, Duration>,
    /// How long the next rest is of tiers of which nothing could move.
    in_vain: BTreeMap<Pair, Duration>,
}

/// The pair in one order, whichever tier is named first.
const fn unordered(pair: Pair) -> Pair {
    if pair.0.0 <= pair.1.0 { pair } else { (pair.1, pair.0) }
}

impl Limits {
    /// Records the work of the tiers in the window that ended now. Beside moves that take their share every
    /// request waits, so that no tier becomes the limit in it.
    pub fn note(&mut self, loads: Vec<(TierId, ReadLoad)>, disturbed: &[TierId], pairs: &[Pair], now: Duration) {
        self.loads = loads;
        self.pairs = pairs.to_vec();
        self.were_busy.retain(|_, (_, ended)| now.saturating_sub(*ended) < CALM_MAX);
        for pair in pairs {
            let (load, other) = (self.load_of(pair.0), self.load_of(pair.1));
            let is_known = self.busy.contains_key(pair);
            let is_disturbed = disturbed.contains(&pair.0) || disturbed.contains(&pair.1);
            if is_limit(&load, &other) && (is_known || !is_disturbed) {
                let calm = self.calm_of(*pair);
                self.busy.entry(*pair).or_insert(Busy { last: now, calm }).last = now;
            } else if !is_disturbed && is_limit(&other, &load) && load.is_hardly_used() || !is_of_help(&load, &other) {
                self.end(*pair, now);
            } else if let Some(busy) = self.busy.get_mut(pair)
                && !would_rest(&load, &other)
            {
                busy.last = now;
            }
        }
        let is_calm = |busy: &Busy| now.saturating_sub(busy.last) >= busy.calm;
        let calm: Vec<Pair> = self.busy.iter().filter(|(_, busy)| is_calm(busy)).map(|(pair, _)| *pair).collect();
        calm.into_iter().for_each(|pair| self.end(pair, now));
        self.busy.retain(|pair, _| pairs.contains(pair));
        self.handed_over.retain(|_, at| now.saturating_sub(*at) < COMES_BACK_WITHIN);
        self.rests_until.retain(|_, until| *until > now);
        self.in_vain.retain(|pair, _| pairs.contains(pair) || pairs.contains(&(pair.1, pair.0)));
    }

    /// A tier is not the limit any more beside another one.
    fn end(&mut self, pair: Pair, now: Duration) {
        if let Some(busy) = self.busy.remove(&pair) {
            self.were_busy.insert(pair, (busy.calm, now));
        }
    }

    fn calm_of(&self, pair: Pair) -> Duration {
        self.were_busy.get(&pair).map_or(CALM, |(calm, _)| (*calm * 2).min(CALM_MAX))
    }

    fn load_of(&self, tier: TierId) -> ReadLoad {
        let of_tier = self.loads.iter().find(|(known, _)| *known == tier);
        of_tier.map(|(_, load)| *load).unwrap_or_default()
    }

    pub fn to_be_handed_over(&self, now: Duration) -> Vec<(Pair, u64)> {
        let rests = |pair: &Pair| self.rests_until.get(&unordered(*pair)).is_some_and(|until| *until > now);
        let is_due = |pair: &Pair| self.busy.contains_key(pair) && !rests(pair);
        let pairs = self.pairs.iter().filter(|pair| is_due(pair));
        let reads = pairs.map(|pair| (*pair, reads_to_hand_over(&self.load_of(pair.0), &self.load_of(pair.1))));
        reads.filter(|(_, reads)| *reads > 0).collect()
    }

    pub fn note_handover(&mut self, pair: Pair, outcome: HandoverOutcome, now: Duration) {
        let rest = match outcome {
            HandoverOutcome::Begun => {
                self.handed_over.insert(pair, now);
                self.in_vain.remove(&unordered(pair));
                SETTLES
            }
            HandoverOutcome::WaitsForRoom => return,
            HandoverOutcome::NothingCouldMove | HandoverOutcome::NoRoom => {
                if outcome == HandoverOutcome::NoRoom {
                    // Data on the tier that is the limit now can also leave it upwards: space is freed for its benefit.
                    self.end((pair.1, pair.0), now);
                }
                let rest = self.in_vain.entry(unordered(pair)).or_insert(RESTS);
                std::mem::replace(rest, (*rest * 2).min(RESTS_MAX))
            }
        };
        self.rests_until.insert(unordered(pair), now.saturating_add(rest));
    }

    pub fn note_handovers_under_way(&mut self, tiers: &[TierId], now: Duration) {
        for pair in self.pairs.iter().filter(|pair| tiers.contains(&pair.0) || tiers.contains(&pair.1)) {
            let until = self.rests_until.entry(unordered(*pair)).or_default();
            *until = (*until).max(now.saturating_add(SETTLES));
        }
    }

    /// Whether reads may go from the first tier of a pair to the second one, which would be of help as far as is known.
    pub fn may_hand_over(&self, pair: Pair) -> bool {
        let (load, other) = (self.load_of(pair.0), self.load_of(pair.1));
        self.pairs.contains(&pair) && (load.known_capacity().is_none() || is_of_help(&load, &other))
    }

    pub fn has_handed_over(&self, pair: Pair, now: Duration) -> bool {
        self.handed_over.get(&pair).is_some_and(|at| now.saturating_sub(*at) < COMES_BACK_WITHIN)
    }

    pub fn is_limit(&self, tier: TierId, beside: Option<TierId>) -> bool {
        match beside {
            Some(other) => self.busy.contains_key(&(tier, other)),
            None => self.busy.keys().any(|pair| pair.0 == tier),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: TierId = TierId(1);
    const SLOW: TierId = TierId(2);
    const PAIRS: [Pair; 2] = [(FAST, SLOW), (SLOW, FAST)];

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn load(reads_per_second: u64, latency_us: u64, busy_percent: u64) -> ReadLoad {
        ReadLoad {
            reads_per_kilosecond: reads_per_second * 1000,
            latency_ns: Some(latency_us * 1000),
            device_ns: Some(100_000),
            most_per_kilosecond: (busy_percent == 100).then_some(10_000_000),
            unqueued_ns: Some(100_000),
            depth_hundredths: 1000,
            busy_percent,
            is_seen_disturbed_only: false,
        }
    }

    fn noted(limits: &mut Limits, fast: ReadLoad, slow: ReadLoad, now: Duration) {
        limits.note(vec![(FAST, fast), (SLOW, slow)], &[], &PAIRS, now);
    }

    #[test]
    fn reads_may_go_to_a_tier_that_is_unknown_or_alike_and_not_to_one_that_is_much_slower_or_no_pair() {
        let mut limits = Limits::default();
        assert!(!limits.may_hand_over((FAST, SLOW)), "no pair yet");
        noted(&mut limits, ReadLoad::default(), ReadLoad::default(), at(1));
        assert!(limits.may_hand_over((FAST, SLOW)));
        noted(&mut limits, load(10_000, 800, 100), ReadLoad::default(), at(2));
        assert!(limits.may_hand_over((FAST, SLOW)));
        let disk = ReadLoad { device_ns: Some(8_000_000), unqueued_ns: Some(8_000_000), ..load(50, 8_000, 40) };
        noted(&mut limits, load(10_000, 800, 100), disk, at(3));
        assert!(!limits.may_hand_over((FAST, SLOW)));
        assert!(!limits.may_hand_over((SLOW, TierId(3))));
    }

    #[test]
    fn a_tier_that_is_the_limit_stays_it_until_it_could_serve_all_reads_for_a_minute() {
        let mut limits = Limits::default();
        noted(&mut limits, load(9_000, 200, 85), ReadLoad::default(), at(1));
        assert!(!limits.is_limit(FAST, None) && limits.to_be_handed_over(at(1)).is_empty());
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(2));
        assert!(limits.is_limit(FAST, None) && limits.is_limit(FAST, Some(SLOW)) && !limits.is_limit(SLOW, None));
        assert_eq!(limits.to_be_handed_over(at(2)), [((FAST, SLOW), 3_500_000)]);
        // The other one took reads over, and both wait as long.
        noted(&mut limits, load(10_000, 800, 100), load(10_000, 800, 100), at(3));
        assert!(limits.is_limit(FAST, Some(SLOW)) && limits.to_be_handed_over(at(3)).is_empty());
        noted(&mut limits, load(4_000, 120, 40), load(4_000, 120, 40), at(100));
        assert!(limits.is_limit(FAST, Some(SLOW)), "together they are too many for it");
        noted(&mut limits, load(1_000, 100, 10), load(1_000, 100, 10), at(159));
        assert!(limits.is_limit(FAST, Some(SLOW)));
        noted(&mut limits, load(1_000, 100, 10), load(1_000, 100, 10), at(160));
        assert!(!limits.is_limit(FAST, None));
        // It was too early: this time it takes two minutes.
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(200));
        noted(&mut limits, load(1_000, 100, 10), load(1_000, 100, 10), at(319));
        assert!(limits.is_limit(FAST, None));
        noted(&mut limits, load(1_000, 100, 10), load(1_000, 100, 10), at(320));
        assert!(!limits.is_limit(FAST, None));
    }

    #[test]
    fn a_tier_is_the_limit_no_more_where_all_reads_go_to_the_other_one_or_that_is_much_slower() {
        let mut limits = Limits::default();
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(1));
        noted(&mut limits, load(1_000, 100, 10), load(10_000, 1600, 100), at(2));
        assert!(!limits.is_limit(FAST, None) && limits.is_limit(SLOW, Some(FAST)));
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(3));
        assert!(limits.is_limit(FAST, Some(SLOW)));
        noted(
            &mut limits,
            load(10_000, 1600, 100),
            ReadLoad { device_ns: Some(8_000_000), ..load(50, 8_000, 40) },
            at(4),
        );
        assert!(!limits.is_limit(FAST, None));
    }

    #[test]
    fn what_comes_of_a_handover_is_seen_before_the_next_one_of_the_same_tiers() {
        let mut limits = Limits::default();
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(1));
        assert!(!limits.has_handed_over((FAST, SLOW), at(1)));
        limits.note_handover((FAST, SLOW), HandoverOutcome::Begun, at(1));
        assert!(limits.to_be_handed_over(at(5)).is_empty() && limits.has_handed_over((FAST, SLOW), at(5)));
        assert_eq!(limits.to_be_handed_over(at(6)).len(), 1);
        // Moves go on for longer than that.
        limits.note_handovers_under_way(&[SLOW], at(6));
        assert!(limits.to_be_handed_over(at(10)).is_empty());
        // Too many went there: they come back in the same way.
        noted(&mut limits, load(2_000, 100, 20), load(10_000, 1600, 100), at(11));
        assert_eq!(limits.to_be_handed_over(at(11)), [((SLOW, FAST), 2_800_000)]);
        limits.note_handover((SLOW, FAST), HandoverOutcome::NothingCouldMove, at(11));
        assert!(limits.to_be_handed_over(at(12)).is_empty() && !limits.to_be_handed_over(at(13)).is_empty());
        assert!(!limits.has_handed_over((SLOW, FAST), at(13)));
    }

    #[test]
    fn beside_moves_no_tier_becomes_the_limit_and_one_that_is_stays_it() {
        let mut limits = Limits::default();
        let loads = || vec![(FAST, load(10_000, 1600, 100)), (SLOW, load(0, 100, 0))];
        limits.note(loads(), &[SLOW], &PAIRS, at(1));
        assert!(!limits.is_limit(FAST, None) && limits.to_be_handed_over(at(1)).is_empty());
        limits.note(loads(), &[], &PAIRS, at(2));
        limits.note(loads(), &[SLOW], &PAIRS, at(100));
        assert!(limits.is_limit(FAST, Some(SLOW)) && limits.to_be_handed_over(at(100)).len() == 1);
    }

    #[test]
    fn where_what_was_handed_over_finds_no_room_it_may_come_back_by_its_benefit() {
        let mut limits = Limits::default();
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(1));
        // Half of the capacity of the faster one, and the full capacity of the slower one.
        noted(&mut limits, load(5_000, 150, 50), load(10_000, 1600, 100), at(2));
        assert!(limits.is_limit(FAST, Some(SLOW)) && limits.is_limit(SLOW, Some(FAST)));
        limits.note_handover((SLOW, FAST), HandoverOutcome::NothingCouldMove, at(2));
        assert!(limits.is_limit(FAST, Some(SLOW)), "as it is divided now is best");
        limits.note_handover((SLOW, FAST), HandoverOutcome::NoRoom, at(6));
        assert!(!limits.is_limit(FAST, Some(SLOW)), "room has to be made there");
        let rests = |limits: &Limits, seconds| limits.to_be_handed_over(at(seconds)).is_empty();
        let before = limits.rests_until.clone();
        limits.note_handover((SLOW, FAST), HandoverOutcome::WaitsForRoom, at(6));
        assert_eq!(limits.rests_until, before, "it goes on as soon as there is room");
        assert!(rests(&limits, 9) && !rests(&limits, 10), "twice as long as before");
    }

    #[test]
    fn tiers_that_may_not_take_reads_over_any_more_are_forgotten() {
        let mut limits = Limits::default();
        noted(&mut limits, load(10_000, 1600, 100), load(0, 100, 0), at(1));
        limits.note(vec![(FAST, load(10_000, 1600, 100)), (SLOW, load(0, 100, 0))], &[], &[], at(2));
        assert!(!limits.is_limit(FAST, None) && limits.to_be_handed_over(at(2)).is_empty());
    }
}
