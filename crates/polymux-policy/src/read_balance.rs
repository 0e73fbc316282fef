//! Which bytes of a spread file should move up, so that its readers get the combined bandwidth of all of its devices (P13).
//!
//! Invariants:
//! * A file is laid out as its devices *wrote*. Who reads all of it waits for the device with the largest part for its speed, so the
//!   time of a reader is the longest of `bytes * time for each byte` over the tiers.
//! * Bytes only go to tiers that are offered before their own and serve this use of the file in less time. So moved bytes never come back for
//!   the sake of another use, and heat, which brings ranges up in the same order, does not work against it.
//! * A tier gets nothing above its low mark: the space there is not worth an eviction.
//! * Bytes move in whole units, and the best division into those is found: one too many for a fast device costs less than one
//!   too many for a slow one. So files of a few dozen units would leave the slow ones with less to do than they could, if many are read
//!   together: [`Rounding`].
//! * Moves that would gain less than [`GAIN_MIN_PERCENT`] are not made. The bytes that move are about as many percent of the file as are gained.

use polymux_types::limits::TIERS_MAX;

use crate::tier_fill::{TierFill, TierTable, mask_has};

const TIERS: usize = TIERS_MAX as usize;

/// Least part of the time of a reader in percent that is worth moving anything for.
pub const GAIN_MIN_PERCENT: u128 = 2;

/// Part of the time of a reader that a layout may take longer than the best one.
const RELAXED_DIVISOR: u128 = 25;

/// How often the time is halved in the search: to less than a thousandth of a promille.
const SEARCH_STEPS: u32 = 24;

/// The part of a file on a tier, and how fast the tier serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadPart {
    /// Number of the tier.
    pub tier: u16,
    /// Bytes of the file there.
    pub bytes: u64,
    /// Those of them that may go elsewhere.
    pub movable: u64,
    /// Picoseconds for each byte, as the file was read lately; 0 where unknown.
    pub picoseconds_per_byte: u64,
}

/// Bytes that should go from one tier to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// From this tier
    pub from: u16,
    /// to this one,
    pub to: u16,
    /// so many bytes.
    pub bytes: u64,
}

/// The limit of a reader of a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBalance {
    /// Time in picoseconds in which the file can be read as it lies.
    pub time_now: u128,
    /// Time in picoseconds in which the file can be read after the shifts.
    pub time_then: u128,
    /// The tier that takes that time now.
    pub slowest: u16,
    /// The migrations; empty where they are not worth it.
    pub shifts: Vec<Shift>,
}

/// Which of the layouts that whole units allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The one that is read soonest.
    Soonest,
    /// One that is read hardly later, by half a unit of the slowest tier at most, where that tier keeps more.
    Fullest,
}

/// The input of a search.
struct Search<'a> {
    /// Those that take longest for a byte first.
    candidates: &'a [Candidate],
    /// Bytes that move together.
    unit: u64,
}

/// A candidate: how much it has, how much may come, and how long each byte takes.
#[derive(Clone, Copy, Default)]
struct Candidate {
    tier: u16,
    /// In the order in which tiers are offered.
    place: usize,
    bytes: u64,
    movable: u64,
    room: u64,
    cost: u128,
}

impl Candidate {
    /// Most bytes that it serves in that time.
    fn in_time(&self, time: u128) -> u128 {
        time / self.cost
    }
}

/// Returns the migrations, in multiples of `unit` bytes, rounded in one way; all bytes of a tier may go, too. `parts` are those of the
/// file and the tiers that it has nothing on; rules and pins allow the tiers of the bit set `allowed`. `None` where the speed of a tier
/// with a part of it is not known, or it has no parts.
///
/// # Panics
/// `unit` is 0.
#[must_use]
pub fn balance_reads(
    parts: &[ReadPart],
    allowed: u64,
    tiers: &TierTable,
    (unit, rounding): (u64, Rounding),
) -> Option<ReadBalance> {
    assert!(unit > 0, "bytes move in units");
    let mut candidates = [Candidate::default(); TIERS];
    let mut count = 0;
    for part in parts.iter().take(TIERS) {
        let place = tiers.position(part.tier);
        let room = place.map_or(0, |place| room_for(&tiers.offered()[place], allowed));
        if part.picoseconds_per_byte == 0 && part.bytes > 0 {
            return None;
        }
        if part.picoseconds_per_byte > 0 && (part.bytes > 0 || room > 0) {
            let cost = u128::from(part.picoseconds_per_byte);
            // From a tier that is not offered nothing can come: none is before it.
            let place = place.unwrap_or(0);
            candidates[count] =
                Candidate { tier: part.tier, place, bytes: part.bytes, movable: part.movable, room, cost };
            count += 1;
        }
    }
    let candidates = &mut candidates[..count];
    // The one that takes longest for a byte first. Sorting is stable, so tiers that are alike stay in the order of the parts.
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.cost));
    let time_of = |candidate: &Candidate| u128::from(candidate.bytes) * candidate.cost;
    let slowest = candidates.iter().max_by_key(|candidate| time_of(candidate)).filter(|slowest| slowest.bytes > 0)?;
    let (time_now, slowest) = (time_of(slowest), slowest.tier);
    let search = Search { candidates, unit };
    let (bound, shifts) = search.best(time_now, rounding);
    // A layout within its bound stays, also when devices turn out to be a little faster or slower.
    let is_worth_it = time_now.saturating_sub(bound) / GAIN_MIN_PERCENT >= time_now / 100;
    let shifts = if is_worth_it { shifts } else { Vec::new() };
    let time_then = search.time_after(&shifts);
    Some(ReadBalance { time_now, time_then, slowest, shifts })
}

/// Bytes that may come to a tier.
fn room_for(fill: &TierFill, allowed: u64) -> u64 {
    let takes = fill.takes_new_data() && fill.holds_partial_files() && mask_has(allowed, fill.tier);
    if !takes {
        return 0;
    }
    fill.low_mark.min(fill.high_mark).saturating_sub(fill.used).min(fill.headroom).min(fill.write_budget_left)
}

impl Search<'_> {
    /// The least time, below `time_now`, in which a file can be read, and the migrations for that.
    fn best(&self, time_now: u128, rounding: Rounding) -> (u128, Vec<Shift>) {
        let (mut too_short, mut time) = (0, time_now);
        for _ in 0..SEARCH_STEPS {
            let middle = too_short + (time - too_short) / 2;
            match self.shifts_for(middle) {
                Some(_) => time = middle,
                None => too_short = middle,
            }
        }
        let soonest = self.shifts_for(time).unwrap_or_default();
        let slow = self.candidates.iter().find(|candidate| candidate.bytes > 0);
        let (Rounding::Fullest, Some(slow)) = (rounding, slow) else { return (time, soonest) };
        let half_a_unit = slow.cost * u128::from(self.unit) / 2;
        let relaxed = time + half_a_unit.min(time / RELAXED_DIVISOR);
        let fullest = self.shifts_for(relaxed).unwrap_or_default();
        let keeps_more = off(&fullest, slow.tier).saturating_add(self.unit) <= off(&soonest, slow.tier);
        (relaxed, if keeps_more { fullest } else { soonest })
    }

    /// How long a reader takes when these have moved.
    fn time_after(&self, shifts: &[Shift]) -> u128 {
        let time = |candidate: &Candidate| {
            let came = shifts.iter().filter(|shift| shift.to == candidate.tier).map(|shift| u128::from(shift.bytes));
            let bytes = u128::from(candidate.bytes) + came.sum::<u128>();
            bytes.saturating_sub(u128::from(off(shifts, candidate.tier))) * candidate.cost
        };
        self.candidates.iter().map(time).max().unwrap_or(0)
    }

    /// The migrations after which no tier takes longer than this; `None` where that is impossible.
    fn shifts_for(&self, time: u128) -> Option<Vec<Shift>> {
        let mut shifts = Vec::new();
        // Excess bytes of slower tiers, from the slowest on.
        let mut waiting: Vec<(Candidate, u64)> = Vec::new();
        for candidate in self.candidates {
            let fits = u64::try_from(candidate.in_time(time)).unwrap_or(u64::MAX);
            if candidate.bytes > fits {
                // All that there is may go, too: the last unit of a file may be a short one.
                let excess = (candidate.bytes - fits).checked_next_multiple_of(self.unit)?.min(candidate.bytes);
                if excess > candidate.movable {
                    return None;
                }
                waiting.push((*candidate, excess));
                continue;
            }
            let mut spare = whole((fits - candidate.bytes).min(candidate.room), self.unit);
            let may_come = |from: &Candidate| from.cost > candidate.cost && from.place > candidate.place;
            for (from, bytes) in waiting.iter_mut().filter(|(from, _)| may_come(from)) {
                let shifted = spare.min(*bytes);
                if shifted > 0 {
                    shifts.push(Shift { from: from.tier, to: candidate.tier, bytes: shifted });
                    *bytes -= shifted;
                    spare = whole(spare - shifted, self.unit);
                }
            }
        }
        waiting.iter().all(|(_, bytes)| *bytes == 0).then_some(shifts)
    }
}

/// Bytes that leave a tier.
fn off(shifts: &[Shift], tier: u16) -> u64 {
    shifts.iter().filter(|shift| shift.from == tier).map(|shift| shift.bytes).sum()
}

/// So many bytes, as far as they are whole units.
fn whole(bytes: u64, unit: u64) -> u64 {
    bytes / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const GB: u64 = 1000 * MB;
    const BYTES: (u64, Rounding) = (1, Rounding::Soonest);

    fn part(tier: u16, bytes: u64, bytes_per_second: u64) -> ReadPart {
        ReadPart { tier, bytes, movable: bytes, picoseconds_per_byte: 1_000_000_000_000 / bytes_per_second }
    }

    fn tiers(fills: &[TierFill]) -> TierTable {
        let mut table = TierTable::default();
        fills.iter().for_each(|fill| table.offer(*fill));
        table
    }

    fn roomy(count: u16) -> TierTable {
        tiers(&(0..count).map(|tier| TierFill::new(tier, 100 * GB, 0, 100 * GB)).collect::<Vec<_>>())
    }

    /// Bytes on each tier afterwards.
    fn after(parts: &[ReadPart], balance: &ReadBalance) -> Vec<u64> {
        let moved = |part: &ReadPart| {
            let sum = |which: &dyn Fn(&Shift) -> bool| -> u64 {
                balance.shifts.iter().filter(|shift| which(shift)).map(|shift| shift.bytes).sum()
            };
            part.bytes + sum(&|shift| shift.to == part.tier) - sum(&|shift| shift.from == part.tier)
        };
        parts.iter().map(moved).collect()
    }

    /// Three devices that read in another proportion than they write.
    fn as_written() -> [ReadPart; 3] {
        [part(0, 2300 * MB, 660 * MB), part(1, 1200 * MB, 120 * MB), part(2, 560 * MB, 53 * MB)]
    }

    #[test]
    fn a_file_that_was_laid_out_for_writing_is_laid_out_for_its_readers() {
        let parts = as_written();
        let balance = balance_reads(&parts, u64::MAX, &roomy(3), BYTES).expect("all speeds are known");
        assert_eq!(balance.slowest, 2);
        // 4.06 GB at 833 MB/s instead of the time that the slowest needs for its part.
        let seconds = |time: u128| time as f64 / 1e12;
        assert!((seconds(balance.time_now) - 10.57).abs() < 0.01, "{balance:?}");
        assert!((seconds(balance.time_then) - 4.874).abs() < 0.01, "{balance:?}");
        let shares = after(&parts, &balance);
        assert_eq!(shares.iter().sum::<u64>(), 4060 * MB);
        for (share, expected) in shares.iter().zip([3217, 585, 258]) {
            assert!(share.abs_diff(expected * MB) < MB, "{shares:?}");
        }
    }

    #[test]
    fn what_is_laid_out_once_stays() {
        let parts = as_written();
        let balance = balance_reads(&parts, u64::MAX, &roomy(3), BYTES).unwrap();
        let mut settled = parts;
        settled
            .iter_mut()
            .zip(after(&parts, &balance))
            .for_each(|(part, bytes)| (part.bytes, part.movable) = (bytes, bytes));
        let again = balance_reads(&settled, u64::MAX, &roomy(3), BYTES).unwrap();
        assert_eq!(again.shifts, []);
    }

    #[test]
    fn with_whole_units_the_best_of_what_can_be_had_is_found() {
        let (unit, each) = (2 * MB, [658 * MB, 120 * MB, 53 * MB]);
        let parts = [part(0, 36 * unit, each[0]), part(1, 19 * unit, each[1]), part(2, 9 * unit, each[2])];
        let balance = balance_reads(&parts, u64::MAX, &roomy(3), (unit, Rounding::Soonest)).unwrap();
        assert!(balance.shifts.iter().all(|shift| shift.bytes % unit == 0), "{balance:?}");
        // The nearest to the optimum would be 50.7, 9.2 and 4.1 units.
        assert_eq!(after(&parts, &balance), [51 * unit, 9 * unit, 4 * unit]);
        let time = |share: u64, speed: u64| u128::from(share * unit) * u128::from(1_000_000_000_000 / speed);
        assert!(balance.time_then.abs_diff(time(51, each[0])) < time(1, each[0]) / 1000, "{balance:?}");
        // All of it may go, too.
        let two = [part(0, 0, 600 * MB), part(1, 45 * MB, 60 * MB)];
        let at = |unit: u64| after(&two, &balance_reads(&two, u64::MAX, &roomy(2), (unit, Rounding::Soonest)).unwrap());
        assert_eq!([at(MB), at(10 * MB), at(100 * MB)], [[41 * MB, 4 * MB], [45 * MB, 0], [45 * MB, 0]]);
    }

    #[test]
    fn every_other_file_leaves_slow_tiers_more_so_that_all_devices_have_as_much_to_do() {
        let (unit, speeds) = (2 * MB, [658 * MB, 120 * MB, 53 * MB]);
        let written = |units: [u64; 3]| {
            [0, 1, 2].map(|tier: u16| part(tier, units[usize::from(tier)] * unit, speeds[usize::from(tier)]))
        };
        let both = |units: [u64; 3]| {
            let laid_out = |rounding| {
                let parts = written(units);
                let balance = balance_reads(&parts, u64::MAX, &roomy(3), (unit, rounding)).unwrap();
                let units: Vec<u64> = after(&parts, &balance).iter().map(|bytes| bytes / unit).collect();
                let again = written([units[0], units[1], units[2]]);
                let again = balance_reads(&again, u64::MAX, &roomy(3), (unit, rounding)).unwrap();
                assert_eq!(again.shifts, [], "what is laid out stays");
                units
            };
            (laid_out(Rounding::Soonest), laid_out(Rounding::Fullest))
        };
        // 47.5, 8.7 and 3.8 units would be best.
        assert_eq!(both([34, 18, 8]), (vec![49, 8, 3], vec![47, 9, 4]));
        // Large files lose nothing by it.
        let (soonest, fullest) = both([3400, 1800, 800]);
        assert!(soonest.iter().zip(&fullest).all(|(a, b)| a.abs_diff(*b) <= 2), "{soonest:?} {fullest:?}");
    }

    #[test]
    fn half_a_file_of_two_units_and_a_short_one_goes_off_a_tier_as_a_whole() {
        let parts = [part(0, 4 * MB, 400 * MB), part(1, 3 * MB, 3 * MB)];
        let balance = balance_reads(&parts, u64::MAX, &roomy(2), (2 * MB, Rounding::Soonest)).unwrap();
        assert_eq!(after(&parts, &balance), [7 * MB, 0]);
    }

    #[test]
    fn what_cannot_move_stays_and_nothing_else_moves_in_its_place() {
        let mut parts = as_written();
        parts[2].movable = 100 * MB;
        let balance = balance_reads(&parts, u64::MAX, &roomy(3), BYTES).unwrap();
        assert!(off(&balance.shifts, 2) <= 100 * MB && off(&balance.shifts, 2) > 99 * MB, "{balance:?}");
        let seconds = balance.time_then as f64 / 1e12;
        assert!((seconds - 460.0 / 53.0).abs() < 0.01, "{balance:?}");
    }

    #[test]
    fn what_is_laid_out_stays_when_devices_turn_out_to_be_a_percent_faster_or_slower() {
        for rounding in [Rounding::Soonest, Rounding::Fullest] {
            for nodes in (20..400).step_by(7) {
                let laid_out = |speeds: [u64; 3], units: [u64; 3]| {
                    let parts = [0, 1, 2u16].map(|tier| {
                        part(tier, units[usize::from(tier)] * 2 * MB, speeds[usize::from(tier)] * MB / 100)
                    });
                    let balance = balance_reads(&parts, u64::MAX, &roomy(3), (2 * MB, rounding)).unwrap();
                    let units: Vec<u64> = after(&parts, &balance).iter().map(|bytes| bytes / (2 * MB)).collect();
                    [units[0], units[1], units[2]]
                };
                let first = laid_out([65_800, 12_000, 5_300], [nodes - nodes / 2, nodes / 3, nodes / 2 - nodes / 3]);
                assert_eq!(laid_out([66_400, 11_900, 5_250], first), first, "{rounding:?} of {nodes}");
            }
        }
    }

    #[test]
    fn less_than_two_percent_is_not_worth_a_move() {
        let at = |bytes: u64| [part(0, GB, 100 * MB), part(1, bytes, 99 * MB)];
        assert_eq!(balance_reads(&at(GB + 10 * MB), u64::MAX, &roomy(2), BYTES).unwrap().shifts, []);
        assert_eq!(balance_reads(&at(GB + 50 * MB), u64::MAX, &roomy(2), BYTES).unwrap().shifts.len(), 1);
    }

    #[test]
    fn nothing_goes_to_a_tier_that_takes_longer() {
        // All of it is on the fast one; the slow one would make reading faster, and random reads slower.
        let parts = [part(0, GB, 500 * MB), part(1, 0, 150 * MB)];
        let balance = balance_reads(&parts, u64::MAX, &roomy(2), BYTES).unwrap();
        assert_eq!((balance.shifts.len(), balance.time_now), (0, balance.time_then));
    }

    #[test]
    fn nothing_comes_back_for_another_use() {
        // The second tier is an array of disks: streams come faster from it than from the first, and small reads much more slowly.
        let streams = [part(0, GB, 500 * MB), part(1, GB, 800 * MB)];
        assert_eq!(balance_reads(&streams, u64::MAX, &roomy(2), BYTES).unwrap().shifts, []);
        let small = [part(0, GB, 300 * MB), part(1, GB, MB)];
        let balance = balance_reads(&small, u64::MAX, &roomy(2), BYTES).unwrap();
        assert!(
            balance.shifts.iter().all(|shift| shift.to == 0) && after(&small, &balance)[0] > 1990 * MB,
            "{balance:?}"
        );
    }

    #[test]
    fn nothing_is_to_come_from_a_tier_that_is_away() {
        let parts = [part(0, GB, 660 * MB), part(1, GB, 120 * MB), part(2, GB, 53 * MB)];
        let balance = balance_reads(&parts, u64::MAX, &roomy(2), BYTES).unwrap();
        assert!(balance.shifts.iter().all(|shift| shift.from != 2), "{balance:?}");
    }

    #[test]
    fn a_tier_that_has_nothing_of_the_file_takes_a_part_of_it() {
        let parts = [part(0, 0, 500 * MB), part(1, GB, 100 * MB)];
        let balance = balance_reads(&parts, u64::MAX, &roomy(2), BYTES).unwrap();
        assert!(after(&parts, &balance)[0].abs_diff(833 * MB) < MB, "{balance:?}");
    }

    #[test]
    fn rules_marks_budgets_and_drains_are_kept() {
        let parts = as_written();
        let allowed = balance_reads(&parts, 0b110, &roomy(3), BYTES).unwrap();
        assert!(allowed.shifts.iter().all(|shift| shift.to == 1), "{allowed:?}");
        let room = |change: fn(&mut TierFill)| {
            let mut table = roomy(3);
            change(&mut table.offered_mut()[0]);
            let balance = balance_reads(&parts, u64::MAX, &table, BYTES).unwrap();
            let shifted = balance.shifts.iter().filter(|shift| shift.to == 0).map(|shift| shift.bytes).sum::<u64>();
            assert!(balance.time_then <= balance.time_now);
            shifted
        };
        assert!(room(|_| {}) > 900 * MB);
        assert!(room(|fill| fill.used = fill.low_mark - 300 * MB) <= 300 * MB);
        assert!(room(|fill| fill.write_budget_left = 200 * MB) <= 200 * MB);
        assert!(room(|fill| fill.headroom = 100 * MB) <= 100 * MB);
        assert_eq!(room(|fill| fill.used = u64::MAX), 0);
        assert_eq!(room(|fill| fill.flags |= TierFill::DRAINING), 0);
        assert_eq!(room(|fill| fill.flags = TierFill::TAKES_NEW_DATA), 0);
    }

    #[test]
    fn a_speed_that_nobody_knows_keeps_everything_where_it_is() {
        let mut parts = as_written();
        parts[1].picoseconds_per_byte = 0;
        assert_eq!(balance_reads(&parts, u64::MAX, &roomy(3), BYTES), None);
        parts[1].bytes = 0;
        let without = balance_reads(&parts, u64::MAX, &roomy(3), BYTES).expect("it has nothing of the file");
        assert!(without.shifts.iter().all(|shift| (shift.from, shift.to) == (2, 0)), "{without:?}");
        assert_eq!(balance_reads(&[], u64::MAX, &roomy(3), BYTES), None);
        assert_eq!(balance_reads(&[part(0, 0, MB)], u64::MAX, &roomy(3), BYTES), None);
    }

    #[test]
    fn nonsense_neither_panics_nor_moves_more_than_there_is() {
        let huge = [
            ReadPart { tier: 0, bytes: u64::MAX, movable: u64::MAX, picoseconds_per_byte: u64::MAX },
            ReadPart { tier: 1, bytes: u64::MAX, movable: u64::MAX, picoseconds_per_byte: 1 },
            ReadPart { tier: 999, bytes: 7, movable: 7, picoseconds_per_byte: 3 },
        ];
        let balance = balance_reads(&huge, u64::MAX, &roomy(2), BYTES).unwrap();
        assert!(balance.time_then <= balance.time_now);
        assert!(balance.shifts.iter().all(|shift| shift.to != 999), "{balance:?}");
    }
}
