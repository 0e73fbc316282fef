//! New ranges of large files go to the tier where they will be done soonest.
//!
//! Invariants:
//! * Ranges are placed, of [`PlacementFacts::length`] bytes. A file has its first range on one tier, as `hot-cold` would place it (P5): small
//!   files are never spread.
//! * A range is done on a tier after the bytes on their way there and the range itself, at the bandwidth that was measured. So
//!   all queues have the same length in time, whatever the devices are, how many writers there are and whose files those
//!   are; and who writes slower than the fastest device takes stays there, because its queue is empty.
//! * The tier that has the end of the file keeps it unless another one is ahead by more than noise. While its speed is unknown,
//!   that is a whole range: the bytes written just now are on their way to the fastest device, too.
//!
//! Moves are those of `poly`: up while the faster tier has bandwidth to spare (BW_Move, P13), down at the mark (CAP_Move, P14). That a tier
//! has something to spare for readers shows in how soon it answers: bytes per second say nothing of random reads. So ranges go up
//! only while the faster tier answers clearly sooner than their own, and readers of a spread file have all of its devices.

use crate::placement::{order, room_below_mark};
use crate::policies::{hot_cold, poly};
use crate::promotion::{self, Answers, Wish};
use crate::{Decision, PlacementDecision, PlacementFacts, RangeFacts, TierFill};

/// Bytes per second of a tier of which nothing is known, where nothing is known of any other one.
const BANDWIDTH_UNKNOWN: u64 = 100_000_000;

/// A tier of which nothing is known is taken for so many times as fast as the best known one: it gets enough to be kept busy, and so
/// becomes known soon. One that is taken for slower than it is would never be.
const OPTIMISM: u64 = 2;

/// Part of a range's own time by which another tier must be ahead of the one that has the end of the file.
const AHEAD_DIVISOR: u64 = 4;

pub(crate) fn decide(facts: &RangeFacts) -> Decision {
    let wish = poly::wish(facts).map(|wish| Wish { answers: Answers::Sooner, ..wish });
    promotion::decide(facts, facts.range_bytes, facts.is_partial(), wish)
}

pub(crate) fn place(facts: &PlacementFacts) -> PlacementDecision {
    if facts.is_of_first_range() {
        return hot_cold::place(facts);
    }
    place_among(facts, |_| true)
}

/// Orders the tiers that `helps` is true of by when the range would be done there; others below their mark follow.
pub(crate) fn place_among(facts: &PlacementFacts, helps: impl Fn(&TierFill) -> bool) -> PlacementDecision {
    let known = facts.offered().iter().map(|tier| tier.write_bytes_per_second).max().unwrap_or(0);
    let otherwise = if known == 0 { BANDWIDTH_UNKNOWN } else { known.saturating_mul(OPTIMISM) };
    let rank = |tier: &TierFill| if helps(tier) { done_after_us(facts, tier, otherwise) } else { u64::MAX };
    order(facts, |tier| room_below_mark(facts, tier).then(|| rank(tier)))
}

/// Microseconds until the bytes would be on the device of a tier.
fn done_after_us(facts: &PlacementFacts, tier: &TierFill, otherwise: u64) -> u64 {
    let bandwidth = if tier.write_bytes_per_second == 0 { otherwise } else { tier.write_bytes_per_second };
    let time_us =
        |bytes: u64| u64::try_from(u128::from(bytes) * 1_000_000 / u128::from(bandwidth.max(1))).unwrap_or(u64::MAX);
    let done = time_us(tier.outstanding_bytes.saturating_add(facts.length));
    let ahead = match tier.write_bytes_per_second {
        0 => facts.length,
        _ => facts.length / AHEAD_DIVISOR,
    };
    if tier.tier == facts.tail_tier { done.saturating_sub(time_us(ahead)) } else { done }
}

#[cfg(test)]
mod tests {
    use polymux_types::limits::RANGE_NODE_SIZE;

    use super::*;
    use crate::{Action, Why};

    const MB: u64 = 1_000_000;

    /// A range of a large file, and tiers with outstanding bytes and bandwidth.
    fn facts(tiers: &[(u64, u64)]) -> PlacementFacts {
        let mut facts = PlacementFacts::new(RANGE_NODE_SIZE, 64 * RANGE_NODE_SIZE);
        for (tier, (outstanding_bytes, write_bytes_per_second)) in (0..).zip(tiers) {
            let room = TierFill::new(tier, 1 << 40, 0, 1 << 40);
            facts.offer(TierFill {
                outstanding_bytes: *outstanding_bytes,
                write_bytes_per_second: *write_bytes_per_second,
                ..room
            });
        }
        facts
    }

    fn first(facts: &PlacementFacts) -> u16 {
        place(facts).tiers()[0]
    }

    #[test]
    fn a_range_goes_where_it_is_done_soonest() {
        // 2.1 MB after 12 MB at 120 MB/s: 117 ms; at once at 56 MB/s: 37 ms.
        assert_eq!(first(&facts(&[(12 * MB, 120 * MB), (0, 56 * MB)])), 1);
        assert_eq!(first(&facts(&[(2 * MB, 120 * MB), (0, 56 * MB)])), 0);
        assert_eq!(place(&facts(&[(20 * MB, 230 * MB), (MB, 120 * MB), (9 * MB, 56 * MB)])).tiers(), [1, 0, 2]);
    }

    #[test]
    fn who_writes_slower_than_the_fastest_device_stays_there() {
        assert_eq!(first(&facts(&[(0, 120 * MB), (0, 56 * MB)])), 0);
    }

    /// A hot range on the second of tiers whose reads take so long.
    fn hot_range<const TIERS: usize>(latencies_us: [u32; TIERS]) -> RangeFacts {
        let mut facts = RangeFacts::new(1, RANGE_NODE_SIZE);
        for (tier, read_latency_us) in (0..).zip(latencies_us) {
            facts.tiers.offer(TierFill { read_latency_us, ..TierFill::new(tier, 1 << 40, 0, 1 << 40) });
        }
        RangeFacts { heat: 10 * crate::HEAT_ONE, file_size: 64 * RANGE_NODE_SIZE, ..facts }
    }

    #[test]
    fn hot_ranges_go_up_only_while_the_faster_tier_answers_clearly_sooner() {
        for (latencies_us, action) in [
            ([100, 5000], Action::Move),
            ([2000, 3000], Action::Move),
            ([2001, 3000], Action::Stay),
            ([9000, 3000], Action::Stay),
            ([0, 3000], Action::Move),
            ([100, 0], Action::Move),
        ] {
            assert_eq!(decide(&hot_range(latencies_us)).action, action, "{latencies_us:?}");
        }
        assert_eq!(decide(&hot_range([9000, 3000])).why, Why::AnswersNoSooner);
    }

    #[test]
    fn a_fastest_tier_that_answers_late_bars_no_other() {
        let mut facts = hot_range([7000, 200, 8000]);
        facts.tier = 2;
        assert_eq!((decide(&facts).action, decide(&facts).target), (Action::Move, 1));
    }

    #[test]
    fn what_rules_demand_waits_for_no_answers() {
        let facts = RangeFacts { allowed: 1, ..hot_range([9000, 3000]) };
        assert_eq!((decide(&facts).action, decide(&facts).target), (Action::Move, 0));
    }

    #[test]
    fn a_small_file_and_the_first_range_are_placed_as_ever() {
        let mut small = facts(&[(1 << 30, 120 * MB), (0, 56 * MB)]);
        small.file_end = RANGE_NODE_SIZE;
        assert_eq!(first(&small), 0);
        let mut new = facts(&[(1 << 30, 120 * MB), (0, 56 * MB)]);
        new.is_new = 1;
        assert_eq!(first(&new), 0);
    }

    #[test]
    fn the_end_of_the_file_stays_unless_another_tier_is_well_ahead() {
        let mut facts = facts(&[(RANGE_NODE_SIZE / 5, 100 * MB), (0, 100 * MB)]);
        assert_eq!(first(&facts), 1);
        facts.tail_tier = 0;
        assert_eq!(first(&facts), 0);
        facts.tiers.offered_mut()[0].outstanding_bytes = RANGE_NODE_SIZE / 3;
        assert_eq!(first(&facts), 1);
    }

    #[test]
    fn who_writes_slowly_stays_on_the_fastest_device_before_anything_is_known_of_it() {
        // A mebibyte is still on its way there.
        let mut facts = facts(&[(RANGE_NODE_SIZE / 2, 0), (0, 0)]);
        facts.tail_tier = 0;
        assert_eq!(first(&facts), 0);
        facts.tiers.offered_mut()[0].outstanding_bytes = 3 * RANGE_NODE_SIZE / 2;
        assert_eq!(first(&facts), 1, "who writes fast does not");
    }

    #[test]
    fn a_tier_of_unknown_bandwidth_is_taken_for_better_than_the_best() {
        assert_eq!(first(&facts(&[(MB, 120 * MB), (0, 0)])), 1);
        // Equal queues: who takes it for as fast as the slow one gives it half, and never learns that it is faster.
        assert_eq!(first(&facts(&[(20 * MB, 0), (10 * MB, 56 * MB)])), 0);
        assert_eq!(place(&facts(&[(2 * MB, 0), (MB, 0)])).tiers(), [1, 0]);
    }

    #[test]
    fn full_and_forbidden_tiers_come_last_however_fast_they_are() {
        let mut facts = facts(&[(0, 500 * MB), (0, 200 * MB), (MB, 50 * MB)]);
        facts.tiers.offered_mut()[0].headroom = RANGE_NODE_SIZE - 1;
        facts.allowed = 0b101;
        assert_eq!(place(&facts).tiers(), [2, 0, 1]);
    }

    /// One writer that is faster than all devices, which take `rates` in turn for so many seconds each; gives the bytes that they
    /// took in each second. The bandwidth known of a device is the number of bytes that it took in the last second.
    fn bytes_taken(rates: &[[u64; 2]]) -> Vec<u64> {
        const STEP_US: u64 = 1000;
        let (mut queues, mut known, mut taken) = ([0_u64; 2], [0_u64; 2], Vec::new());
        for rates in rates {
            let mut of_second = [0_u64; 2];
            for _ in 0..1_000_000 / STEP_US {
                // As much as any device takes in 300 ms is on its way to it.
                loop {
                    let mut facts = facts(&[(queues[0], known[0]), (queues[1], known[1])]);
                    facts.tail_tier = 0;
                    let room = |tier: usize| (known[tier] * 3 / 10).max(4 * RANGE_NODE_SIZE);
                    if (0..2).all(|tier| queues[tier] + RANGE_NODE_SIZE > room(tier)) {
                        break;
                    }
                    queues[usize::from(first(&facts))] += RANGE_NODE_SIZE;
                }
                for tier in 0..2 {
                    let done = queues[tier].min(rates[tier] * STEP_US / 1_000_000);
                    queues[tier] -= done;
                    of_second[tier] += done;
                }
            }
            known = of_second;
            taken.push(of_second.iter().sum());
        }
        taken
    }

    #[test]
    fn one_writer_has_the_sum_of_the_devices_and_has_it_again_a_second_after_one_of_them_changed() {
        let fast = [120 * MB, 56 * MB];
        let cut = [12 * MB, 56 * MB];
        let taken = bytes_taken(&[fast, fast, fast, cut, cut, cut, fast, fast, fast]);
        let is_near = |second: usize, sum: u64| taken[second] * 100 >= sum * 97;
        assert!(is_near(0, 176 * MB) && is_near(1, 176 * MB) && is_near(2, 176 * MB), "{taken:?}");
        assert!(is_near(4, 68 * MB) && is_near(5, 68 * MB), "{taken:?}");
        assert!(is_near(8, 176 * MB), "{taken:?}");
    }
}
