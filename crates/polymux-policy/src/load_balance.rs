//! When the readers of one device would be answered sooner by another one, and how many of their reads that one should take over
//! (PolyStore, BW_Move: P11-P13).
//!
//! Invariants:
//! * A device is the limit of its readers where it never rests, reads wait as long for one another as they take, and a read of it takes so
//!   much longer than one of the other device that the difference is no chance. Requests that a device serves at the same time do not wait.
//! * Reads are divided by the capacity of each device when never idle. A part of the difference is handed over at a time. A device that
//!   never had as much to read does not show how much it can serve: until it does, it is taken for no faster than the limit. Its expected
//!   capacity is that of the limit, times the time of a single read of the limit, divided by that of its own. Reads that were seen only beside moves
//!   make it no slower than a device of which nothing is known.
//! * A device that would serve less than a quarter of the other one's reads is left alone: its contribution is not worth the moves.

/// Percentage of the time in which a device that is the limit has something to read.
const BUSY_PERCENT_MIN: u64 = 90;

/// Hundredths of requests under way at a time, from which on they may wait for one another.
const DEPTH_HUNDREDTHS_MIN: u64 = 200;

/// Percentage of its capacity below which a device rests.
const RESTS_BELOW_PERCENT: u128 = 70;

/// Percentage of its capacity below which a device is hardly used.
const HARDLY_USED_PERCENT: u128 = 33;

/// Share in percent of the difference that is handed over at once to a device that is hardly used.
const FIRST_STEP_PERCENT: u128 = 70;
/// Share in percent handed over at once to other devices: the imbalance is small then, and too large a step would make the other device the limit.
const STEP_PERCENT: u128 = 60;

/// Percentage of all reads that the other device has to miss, so that any are handed over.
const WORTH_PERCENT_MIN: u128 = 2;

/// How much less than the limit a device may serve that takes reads over, and how much less one is taken for of which nothing is known.
const SLOWER_BY_MAX: u64 = 4;

/// Reads in a thousand seconds times the nanoseconds that each of them takes.
const NANOSECONDS: u64 = 1_000_000_000_000;

/// Recent work of a device for readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadLoad {
    /// Small reads in a thousand seconds.
    pub reads_per_kilosecond: u64,
    /// Time from the beginning of one to its end in nanoseconds; `None` while there was none lately.
    pub latency_ns: Option<u64>,
    /// Device time of one read in nanoseconds, without the wait for others; `None` while too few were seen.
    pub device_ns: Option<u64>,
    /// Small reads in a thousand seconds that it served when it never rested; `None` while it always did.
    pub most_per_kilosecond: Option<u64>,
    /// Time in nanoseconds of one that waited for no other; `None` while there was none.
    pub unqueued_ns: Option<u64>,
    /// Hundredths of requests that were under way at a time, while any was.
    pub depth_hundredths: u64,
    /// Percentage of the time in which any was under way.
    pub busy_percent: u64,
    /// Moves or streams shared the device whenever reads of it were seen: its real device time may be shorter than `device_ns`.
    pub is_seen_disturbed_only: bool,
}

impl ReadLoad {
    /// Reads in a thousand seconds that it can serve, as far as its own reads tell; `None` before there were enough.
    #[must_use]
    pub fn known_capacity(&self) -> Option<u64> {
        let by_time = || self.device_ns.map(|device_ns| NANOSECONDS / device_ns.max(1));
        let capacity = self.most_per_kilosecond.or_else(by_time)?;
        Some(capacity.max(self.reads_per_kilosecond))
    }

    /// Reads in a thousand seconds that a device can serve beside one that is the limit and serves `capacity`.
    fn capacity_beside(&self, limit: &Self, capacity: u64) -> u64 {
        let by_time = self.known_capacity();
        // One that takes much longer now than it took for a single read has become slow.
        let is_as_it_was = |own_ns: &u64| self.device_ns.is_some_and(|device_ns| device_ns / 2 <= *own_ns);
        let by_single_reads = self.unqueued_ns.filter(is_as_it_was).zip(limit.unqueued_ns).map(|(own_ns, limit_ns)| {
            let reads = u128::from(capacity) * u128::from(limit_ns) / u128::from(own_ns.max(1));
            u64::try_from(reads).unwrap_or(u64::MAX)
        });
        let is_uncertain = by_time.is_none() || self.is_seen_disturbed_only;
        let least = if is_uncertain { capacity / SLOWER_BY_MAX } else { 0 };
        let expected = by_time.max(by_single_reads).unwrap_or(0);
        let reads = self.most_per_kilosecond.unwrap_or_else(|| expected.clamp(least, capacity));
        reads.max(self.reads_per_kilosecond)
    }

    /// Whether it never rests, and reads wait as long for one another as they take.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        let waits = |(latency_ns, unqueued_ns)| latency_ns / 2 >= unqueued_ns;
        self.busy_percent >= BUSY_PERCENT_MIN
            && self.depth_hundredths >= DEPTH_HUNDREDTHS_MIN
            && self.latency_ns.zip(self.unqueued_ns).is_some_and(waits)
    }

    fn uses_less_than(&self, percent: u128, capacity: u64) -> bool {
        u128::from(self.reads_per_kilosecond) * 100 < u128::from(capacity) * percent
    }

    /// Whether it serves less than a third of its capacity.
    #[must_use]
    pub fn is_hardly_used(&self) -> bool {
        self.known_capacity().is_none_or(|capacity| self.uses_less_than(HARDLY_USED_PERCENT, capacity))
    }
}

/// Whether the capacity of a device is large enough, compared with that of the limit, to be of help.
#[must_use]
pub fn is_of_help(limit: &ReadLoad, other: &ReadLoad) -> bool {
    limit.known_capacity().is_some_and(|capacity| other.capacity_beside(limit, capacity) >= capacity / SLOWER_BY_MAX)
}

/// Whether a device is the limit of its readers, while another one would answer them sooner.
#[must_use]
pub fn is_limit(limit: &ReadLoad, other: &ReadLoad) -> bool {
    let Some((latency_ns, capacity)) = limit.latency_ns.zip(limit.known_capacity()) else { return false };
    let by_capacity_ns = NANOSECONDS / other.capacity_beside(limit, capacity).max(1);
    let alone_ns = other.unqueued_ns.max(limit.unqueued_ns).unwrap_or(0);
    let answer_ns = other.latency_ns.unwrap_or(alone_ns).max(by_capacity_ns);
    limit.is_saturated() && is_of_help(limit, other) && latency_ns.saturating_mul(2) > answer_ns.saturating_mul(3)
}

/// Reads in a thousand seconds that another device should take over from one that is the limit of its readers; 0 where that is not worth it.
#[must_use]
pub fn reads_to_hand_over(limit: &ReadLoad, other: &ReadLoad) -> u64 {
    let Some(capacity) = limit.known_capacity().filter(|_| is_limit(limit, other)) else { return 0 };
    let of_other = u128::from(other.capacity_beside(limit, capacity));
    let all = u128::from(limit.reads_per_kilosecond) + u128::from(other.reads_per_kilosecond);
    let share_of_other = all.saturating_mul(of_other) / (u128::from(capacity) + of_other).max(1);
    let missing = share_of_other.saturating_sub(u128::from(other.reads_per_kilosecond));
    let step = missing * if other.is_hardly_used() { FIRST_STEP_PERCENT } else { STEP_PERCENT } / 100;
    if missing * 100 < all * WORTH_PERCENT_MIN {
        return 0;
    }
    u64::try_from(step).unwrap_or(u64::MAX)
}

/// Whether a device that is the limit would rest for a third of the time if it served the reads of the other one, too.
#[must_use]
pub fn would_rest(limit: &ReadLoad, other: &ReadLoad) -> bool {
    let reads = u128::from(limit.reads_per_kilosecond) + u128::from(other.reads_per_kilosecond);
    limit.known_capacity().is_some_and(|capacity| reads * 100 < u128::from(capacity) * RESTS_BELOW_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that never rests, with so many reads under way at a time.
    fn saturated(device_us: u64, depth: u64) -> ReadLoad {
        ReadLoad {
            reads_per_kilosecond: 1_000_000_000 / device_us,
            latency_ns: Some(device_us * 1000 * depth),
            device_ns: Some(device_us * 1000),
            most_per_kilosecond: Some(1_000_000_000 / device_us),
            unqueued_ns: Some(device_us * 1000),
            depth_hundredths: depth * 100,
            busy_percent: 100,
            is_seen_disturbed_only: false,
        }
    }

    /// A device that always rested.
    fn idle(device_us: u64) -> ReadLoad {
        ReadLoad { device_ns: Some(device_us * 1000), ..ReadLoad::default() }
    }

    #[test]
    fn an_idle_device_of_the_same_speed_takes_half_of_the_reads_over_in_steps() {
        let limit = saturated(100, 16);
        assert_eq!(reads_to_hand_over(&limit, &idle(100)), 3_500_000);
        assert_eq!(reads_to_hand_over(&limit, &idle(20)), 3_500_000, "it never showed that it is faster");
        // 6,250 and 3,750 reads a second, and the first one is still never idle.
        let busier = ReadLoad { reads_per_kilosecond: 6_250_000, ..limit };
        let other = ReadLoad { reads_per_kilosecond: 3_750_000, latency_ns: Some(150_000), ..idle(100) };
        assert_eq!(reads_to_hand_over(&busier, &other), 750_000);
    }

    #[test]
    fn what_a_device_served_when_it_never_rested_counts_more_than_how_long_its_reads_take_now() {
        // Its reads overlap while they wait for readers that wait elsewhere, so that each seems to take long.
        let other = ReadLoad { reads_per_kilosecond: 6_000_000, busy_percent: 40, ..saturated(125, 1) };
        let other = ReadLoad { device_ns: Some(400_000), ..other };
        let limit = saturated(200, 16);
        assert_eq!(reads_to_hand_over(&limit, &other), (11_000_000 * 8 / 13 - 6_000_000) * 60 / 100);
    }

    #[test]
    fn a_slower_device_takes_less_over_and_one_that_is_much_slower_nothing() {
        let limit = saturated(50, 16);
        assert_eq!(reads_to_hand_over(&limit, &idle(150)), 3_499_999);
        assert_eq!(reads_to_hand_over(&limit, &ReadLoad::default()), 2_800_000, "an unknown one is taken for slow");
        assert_eq!(reads_to_hand_over(&limit, &idle(333)), 0);
    }

    #[test]
    fn a_device_that_was_only_read_by_one_reader_is_expected_to_serve_many_as_one_that_answers_a_single_read_as_soon() {
        // 100,000 a second, of which each takes 80 us.
        let limit = ReadLoad { unqueued_ns: Some(80_000), ..saturated(10, 32) };
        let read_singly = |alone_us: u64| ReadLoad { unqueued_ns: Some(alone_us * 1000), ..idle(alone_us) };
        assert_eq!(reads_to_hand_over(&limit, &read_singly(80)), 35_000_000);
        assert_eq!(reads_to_hand_over(&limit, &read_singly(20)), 35_000_000, "it never showed that it is faster");
        assert_eq!(reads_to_hand_over(&limit, &read_singly(8000)), 0, "a disk");
        let became_slow = ReadLoad { device_ns: Some(8_000_000), ..read_singly(80) };
        assert_eq!(reads_to_hand_over(&limit, &became_slow), 0);
    }

    #[test]
    fn reads_beside_moves_make_no_device_too_slow_to_be_of_help() {
        let limit = saturated(100, 16);
        let slow = ReadLoad { unqueued_ns: Some(1_400_000), ..idle(700) };
        assert!(!is_of_help(&limit, &slow));
        assert!(is_of_help(&limit, &ReadLoad { is_seen_disturbed_only: true, ..slow }));
    }

    #[test]
    fn nothing_is_handed_over_to_a_device_that_answers_as_late_nor_by_one_that_rests() {
        let limit = saturated(100, 16);
        assert_eq!(reads_to_hand_over(&limit, &saturated(120, 12)), 0);
        assert_eq!(reads_to_hand_over(&ReadLoad { busy_percent: 80, ..limit }, &idle(100)), 0);
        assert_eq!(reads_to_hand_over(&saturated(100, 1), &idle(100)), 0, "one reader waits for no other");
        let parallel = ReadLoad { unqueued_ns: Some(1_000_000), ..limit };
        assert_eq!(reads_to_hand_over(&parallel, &idle(100)), 0, "it serves sixteen at the same time");
        let one_at_a_time = ReadLoad { depth_hundredths: 150, ..limit };
        assert_eq!(reads_to_hand_over(&one_at_a_time, &idle(100)), 0, "what it took alone was misjudged");
        let slow_alone = ReadLoad { unqueued_ns: Some(1_200_000), ..idle(100) };
        assert_eq!(reads_to_hand_over(&limit, &slow_alone), 0, "no read of it is answered sooner");
        assert_eq!(reads_to_hand_over(&ReadLoad { latency_ns: None, ..limit }, &idle(100)), 0);
    }

    #[test]
    fn what_is_hardly_worth_it_stays() {
        let other = ReadLoad { reads_per_kilosecond: 4_800_000, latency_ns: Some(500_000), ..idle(100) };
        let limit = ReadLoad { reads_per_kilosecond: 5_600_000, ..saturated(100, 16) };
        assert_eq!(reads_to_hand_over(&limit, &other), 240_000);
        let limit = ReadLoad { reads_per_kilosecond: 5_400_000, ..limit };
        assert_eq!(reads_to_hand_over(&limit, &other), 180_000);
        let limit = ReadLoad { reads_per_kilosecond: 5_100_000, ..limit };
        assert!(is_limit(&limit, &other));
        assert_eq!(reads_to_hand_over(&limit, &other), 0);
    }

    #[test]
    fn a_device_would_rest_if_it_could_serve_the_reads_of_both() {
        let at = |reads_per_second: u64| ReadLoad { reads_per_kilosecond: reads_per_second * 1000, ..idle(100) };
        assert!(would_rest(&at(3_000), &at(3_900)) && !would_rest(&at(3_000), &at(4_000)));
        assert!(at(3_200).is_hardly_used() && !at(3_400).is_hardly_used() && ReadLoad::default().is_hardly_used());
    }

    #[test]
    fn nothing_overflows() {
        let most = ReadLoad {
            reads_per_kilosecond: u64::MAX,
            latency_ns: Some(u64::MAX),
            device_ns: Some(0),
            most_per_kilosecond: Some(u64::MAX),
            unqueued_ns: Some(0),
            depth_hundredths: u64::MAX,
            busy_percent: u64::MAX,
            is_seen_disturbed_only: false,
        };
        for other in [most, ReadLoad { latency_ns: None, ..most }, ReadLoad::default()] {
            let _reads: u64 = reads_to_hand_over(&most, &other);
            assert!(!would_rest(&most, &other));
        }
        let idle = ReadLoad { reads_per_kilosecond: 0, latency_ns: None, ..most };
        assert!(reads_to_hand_over(&most, &idle) > u64::MAX / 4);
    }
}
