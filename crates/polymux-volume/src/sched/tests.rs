//! Tests of a tier's schedule against a small model of a device.

use std::time::Duration;

use polymux_tier::Rotation;
use proptest::prelude::*;

use super::request_size::{MoveEnd, REQUEST_BYTES_MAX, REQUEST_BYTES_MIN, RequestSize, Seeks, Sizing, request_between};
use super::*;

const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 1 << 20;

/// Sends requests whenever they are admitted, until a moment; gives their times. Each is served at once.
fn flood(schedule: &TierSchedule, sizes: &[u64], until: Duration) -> Vec<(Duration, u64)> {
    let (mut now, mut sent) = (Duration::from_secs(1), Vec::new());
    let mut sizes = sizes.iter().cycle();
    let mut size = *sizes.next().expect("there are sizes");
    let (reads, mut ready) = (Lane::default(), Ready::default());
    while now < until {
        let wait = schedule.admit(size, MoverPace::Polite, &reads, &mut ready, now);
        if wait.is_zero() {
            sent.push((now, size));
            schedule.mover_ended(Direction::Read, size, Sizing::Full, MS, now);
            size = *sizes.next().expect("sizes go round");
        }
        now += wait;
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_window_of_time_has_more_than_the_rate_and_one_request(
        rate in 1_u64..50, operations in 1_u64..200, sizes in prop::collection::vec(1_u64..(2 * MIB), 1..10),
    ) {
        let rate = rate * MIB / 4;
        let limits = MoverLimits { bytes_per_second: Some(rate), operations_per_second: Some(operations) };
        let sent = flood(&TierSchedule::new(limits), &sizes, Duration::from_secs(8));
        prop_assert!(!sent.is_empty());
        for (first, (from, _)) in sent.iter().enumerate() {
            let (mut bytes, mut count) = (0, 0);
            for (at, size) in &sent[first..] {
                let seconds = (*at - *from).as_secs_f64();
                let (rate, operations) = (rate as f64, operations as f64);
                // The requests before the last one are within the rate; the last one is the burst.
                prop_assert!(bytes as f64 <= rate * seconds + 1.0 && f64::from(count) <= operations * seconds + 1e-3);
                bytes += size;
                count += 1;
            }
        }
    }

    #[test]
    fn a_limited_mover_uses_what_it_is_allowed(rate in 1_u64..50) {
        let limits = MoverLimits { bytes_per_second: Some(rate * MIB), operations_per_second: None };
        let sent = flood(&TierSchedule::new(limits), &[256 << 10], Duration::from_secs(11));
        let bytes: u64 = sent.iter().map(|(_, size)| size).sum();
        prop_assert!(bytes >= rate * MIB * 99 / 10 && bytes <= rate * MIB * 10 + (256 << 10));
    }
}

/// A device on which the foreground waits longer, the more a mover does.
struct Device {
    quiet: Duration,
    /// Added for each MB/s of the mover.
    per_rate: Duration,
}

/// Runs the foreground at 100 operations per second and a mover beside it; gives the bytes that the mover moved, and
/// its bytes in the last second.
fn run(schedule: &TierSchedule, device: &Device, seconds: std::ops::Range<u64>, foreground: bool) -> (u64, u64) {
    let (mut moved, mut last) = (0, 0);
    let mut recent: Vec<(Duration, u64)> = Vec::new();
    let end = Duration::from_secs(seconds.end);
    let (mut now, mut mover_at) = (Duration::from_secs(seconds.start), Duration::from_secs(seconds.start));
    let (reads, mut ready) = (Lane::default(), Ready::default());
    while now < end {
        if foreground {
            recent.retain(|(at, _)| now.saturating_sub(*at) < 200 * MS);
            let rate = recent.iter().map(|(_, bytes)| bytes).sum::<u64>() * 5 / 1_000_000;
            let latency = device.quiet + device.per_rate * u32::try_from(rate).unwrap();
            let timing = schedule.foreground_began();
            let finished = (timing == Timing::Timed).then_some(Finished { latency, now });
            schedule.foreground_ended(Direction::Read, 65_536, finished);
        }
        let next = now + 10 * MS;
        while mover_at < next {
            let (size, sizing) = request_between(end_of(schedule), end_of(schedule), mover_at);
            let wait = schedule.admit(size, MoverPace::Polite, &reads, &mut ready, mover_at);
            if wait.is_zero() {
                // 100 MB/s.
                let service = Duration::from_nanos(size * 10);
                mover_at += service;
                schedule.mover_ended(Direction::Read, size, sizing, service, mover_at);
                recent.push((mover_at, size));
                moved += size;
                if mover_at + Duration::from_secs(1) > end {
                    last += size;
                }
            }
            mover_at += wait;
        }
        now = next;
    }
    (moved, last)
}

/// A foreground request.
fn read_once(schedule: &TierSchedule, latency: Duration, now: Duration) {
    let timing = schedule.foreground_began();
    let finished = (timing == Timing::Timed).then_some(Finished { latency, now });
    schedule.foreground_ended(Direction::Read, 4096, finished);
}

fn end_of(schedule: &TierSchedule) -> MoveEnd<'_> {
    MoveEnd { schedule, seeks: Seeks::No }
}

/// A device that needs a fixed time for each request, and 8 ns for a byte.
struct Ends {
    schedules: [TierSchedule; 2],
    fixed: [Duration; 2],
    seeks: [Seeks; 2],
    now: Duration,
}

impl Ends {
    fn new(fixed: [Duration; 2]) -> Self {
        let seeks = fixed.map(|fixed| if fixed >= MS { Seeks::Yes } else { Seeks::No });
        Self {
            schedules: std::array::from_fn(|_| TierSchedule::new(MoverLimits::default())),
            fixed,
            seeks,
            now: 20_000 * MS,
        }
    }

    fn next_request(&self) -> (u64, Sizing) {
        let [from, to] = std::array::from_fn(|end| MoveEnd { schedule: &self.schedules[end], seeks: self.seeks[end] });
        request_between(from, to, self.now)
    }

    /// Programs read from both tiers every 10 ms.
    fn read(&mut self) {
        for (schedule, fixed) in self.schedules.iter().zip(self.fixed) {
            read_once(schedule, fixed, self.now);
        }
        self.now += 10 * MS;
    }

    /// A mover sends 400 requests, each to both tiers, alone or beside programs. Returns the mean size of the last 200.
    fn move_data(&mut self, beside: Foreground) -> u64 {
        let mut sizes = Vec::new();
        while sizes.len() < 400 {
            if beside == Foreground::Reads {
                self.read();
            }
            let (size, sizing) = self.next_request();
            for (schedule, fixed) in self.schedules.iter().zip(self.fixed) {
                let mut ready = Ready::default();
                while !schedule.admit(size, MoverPace::Polite, &Lane::default(), &mut ready, self.now).is_zero() {
                    self.now += MS;
                }
                let service = fixed + Duration::from_nanos(size * 8);
                self.now += service;
                schedule.mover_ended(Direction::Read, size, sizing, service, self.now);
            }
            sizes.push(size);
        }
        sizes[200..].iter().sum::<u64>() / 200
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Foreground {
    None,
    Reads,
}

const FAST: Duration = Duration::from_micros(100);

#[test]
fn a_request_that_yields_takes_no_longer_than_it_may_delay_the_foreground() {
    let mut ends = Ends::new([FAST, FAST]);
    let alone = ends.move_data(Foreground::None);
    assert!((1_100_000..=1_250_000).contains(&alone), "10 ms: {alone}");
    (0..500).for_each(|_| ends.read());
    // Reads of 100 us may be delayed by 200 us, in which the devices transfer 25,000 bytes. One request in ten seconds has its full size.
    let beside = ends.move_data(Foreground::Reads);
    assert!((32 << 10..64 << 10).contains(&beside), "{beside}");
    ends.now += 2000 * MS;
    assert_eq!(ends.next_request().0, alone, "when they are over");
}

#[test]
fn a_device_that_becomes_slow_beside_the_foreground_is_known_for_it_after_some_requests_of_full_size() {
    let mut ends = Ends::new([FAST, FAST]);
    ends.move_data(Foreground::None);
    (0..500).for_each(|_| ends.read());
    ends.fixed[1] = 5 * MS;
    for _ in 0..20 {
        ends.move_data(Foreground::Reads);
    }
    let full = ends.schedules[1].request_bytes();
    assert!((500_000..=700_000).contains(&full), "{full}");
}

#[test]
fn requests_to_a_device_that_seeks_keep_their_size_beside_the_foreground_whatever_the_other_one_is() {
    for fixed in [[4 * MS, 4 * MS], [8 * MS, FAST], [FAST, 4 * MS]] {
        let mut ends = Ends::new(fixed);
        let alone = ends.move_data(Foreground::None);
        (0..500).for_each(|_| ends.read());
        let beside = ends.move_data(Foreground::Reads);
        assert!(beside * 10 >= alone * 9, "{fixed:?}: {beside} of {alone}");
    }
}

#[test]
fn requests_keep_their_size_beside_a_foreground_that_leaves_no_time_between_its_requests() {
    for bound_ms in [10, 20, 60] {
        let mut ends = Ends::new([FAST, FAST]);
        ends.schedules.iter().for_each(|schedule| schedule.deferral().set_bound(bound_ms * MS));
        let alone = ends.move_data(Foreground::None);
        (0..300).for_each(|_| ends.read());
        assert_eq!(ends.next_request(), (32 << 10, Sizing::Reduced), "{bound_ms} ms");
        for _ in 0..64 {
            let mut ready = [Ready::default(); 2];
            for (schedule, ready) in ends.schedules.iter().zip(&mut ready) {
                while !schedule.deferral().ask(Deferrable::Move, ready, Urgency::Urgent, ends.now).is_zero() {
                    ends.now += MS;
                }
            }
            ends.read();
        }
        assert!(!ends.schedules[0].request_sizes(ends.now).is_full_size_due, "{bound_ms} ms");
        assert_eq!(ends.next_request(), (alone, Sizing::Full), "{bound_ms} ms");
    }
}

#[test]
fn a_request_has_its_full_size_once_in_ten_seconds_also_where_one_end_is_never_asked() {
    let mut ends = Ends::new([FAST, FAST]);
    let alone = ends.move_data(Foreground::None);
    (0..1100).for_each(|_| ends.read());
    assert_eq!(ends.next_request(), (alone, Sizing::Full), "the speed was not learnt for long");
    assert_eq!(ends.next_request().1, Sizing::Reduced);
    (0..900).for_each(|_| ends.read());
    assert_eq!(ends.next_request().1, Sizing::Reduced);
    (0..200).for_each(|_| ends.read());
    assert_eq!(ends.next_request().1, Sizing::Full);
}

#[test]
fn small_files_beside_the_foreground_do_not_tell_the_speed() {
    let mut ends = Ends::new([FAST, FAST]);
    let alone = ends.move_data(Foreground::None);
    for _ in 0..100 {
        ends.read();
        for schedule in &ends.schedules {
            let mut ready = Ready::default();
            while !schedule.admit(4096, MoverPace::Polite, &Lane::default(), &mut ready, ends.now).is_zero() {
                ends.now += MS;
            }
            schedule.mover_ended(Direction::Read, 4096, Sizing::Full, FAST, ends.now);
        }
    }
    assert_eq!(ends.schedules[0].request_bytes(), alone);
}

#[test]
fn a_disk_that_rotates_seeks_however_soon_it_answers_and_others_where_a_small_read_takes_a_millisecond() {
    assert_eq!(Seeks::of(Rotation::Rotational, Some(30_000)), Seeks::Yes);
    assert_eq!(Seeks::of(Rotation::Rotational, None), Seeks::Yes);
    assert_eq!(Seeks::of(Rotation::NonRotational, Some(90_000)), Seeks::No);
    assert_eq!(Seeks::of(Rotation::Unknown, None), Seeks::No);
    assert_eq!(Seeks::of(Rotation::Unknown, Some(1_500_000)), Seeks::Yes, "a server");
}

#[test]
fn latency_beside_a_mover_that_takes_its_share_does_not_slow_a_polite_one_down() {
    let schedule = TierSchedule::new(MoverLimits::default());
    let (reads, mut ready) = (Lane::default(), Ready::default());
    let mut now = Duration::from_secs(1);
    let foreground = |now: Duration, latency: Duration| {
        let timing = schedule.foreground_began();
        schedule.foreground_ended(
            Direction::Read,
            65_536,
            (timing == Timing::Timed).then_some(Finished { latency, now }),
        );
    };
    for _ in 0..1000 {
        foreground(now, MS);
        now += MS;
    }
    let quiet = schedule.quiet_us();
    for _ in 0..500 {
        if schedule.admit(MIB, MoverPace::TakesShare, &reads, &mut ready, now).is_zero() {
            schedule.mover_ended(Direction::Read, MIB, Sizing::Full, 10 * MS, now + 10 * MS);
        }
        now += 10 * MS;
        foreground(now, 50 * MS);
    }
    assert_eq!(schedule.quiet_us(), quiet, "what is quiet was not learnt beside it");
    assert_eq!(schedule.load(now).mover_rate, Some(8_000_000), "a polite one begins as beside any foreground");
}

fn quiet_for(schedule: &TierSchedule, seconds: u64) {
    for number in 0..seconds * 1000 {
        let now = Duration::from_millis(number);
        let timing = schedule.foreground_began();
        let finished = (timing == Timing::Timed).then_some(Finished { latency: 2 * MS, now });
        schedule.foreground_ended(Direction::Read, 65_536, finished);
    }
}

#[test]
fn the_mover_settles_where_it_slows_the_foreground_by_half() {
    let schedule = TierSchedule::new(MoverLimits::default());
    quiet_for(&schedule, 5);
    // 1.5 times the quiet latency is reached at 20 MB/s.
    let device = Device { quiet: 2 * MS, per_rate: Duration::from_micros(50) };
    run(&schedule, &device, 5..15, true);
    let (moved, _) = run(&schedule, &device, 15..45, true);
    let rate = moved / 30 / 1_000_000;
    assert!((8..=26).contains(&rate), "{rate} MB/s");
    assert!(schedule.quiet_us().is_some_and(|quiet| (1800.0..2500.0).contains(&quiet)));
    let load = schedule.load(Duration::from_secs(45));
    assert!(load.mover_rate.is_some() && load.mover_read > 5_000_000 && load.foreground_read > 5_000_000, "{load:?}");
}

#[test]
fn a_mover_is_never_starved_and_recovers_when_it_is_not_to_blame() {
    let schedule = TierSchedule::new(MoverLimits::default());
    quiet_for(&schedule, 5);
    // The foreground is ten times as slow from now on, whatever the mover does.
    let device = Device { quiet: 20 * MS, per_rate: Duration::ZERO };
    let (moved, last) = run(&schedule, &device, 5..8, true);
    assert!(moved >= 2 * MIB && last >= 500_000, "{moved} {last}");
    let (_, last) = run(&schedule, &device, 8..40, true);
    assert!(last > 50_000_000, "{last}");
}

#[test]
fn full_speed_lets_the_foreground_wait_for_two_requests_and_a_quiet_tier_knows_no_governor() {
    let device = Device { quiet: 2 * MS, per_rate: Duration::from_micros(500) };
    let schedule = TierSchedule::new(MoverLimits::default());
    quiet_for(&schedule, 5);
    let (_, polite) = run(&schedule, &device, 5..15, true);
    let (_, alone) = run(&schedule, &device, 15..20, false);
    schedule.set_politeness(Politeness::FullSpeed);
    let (_, full) = run(&schedule, &device, 20..30, true);
    assert!(polite < 10_000_000 && alone > 95_000_000, "{polite} {alone}");
    // 20 ms above the quiet latency are 40 MB/s on this device.
    assert!(full > 3 * polite && full < 50_000_000, "{polite} {full}");
}

#[test]
fn a_mover_without_anything_to_compare_begins_slowly() {
    let schedule = TierSchedule::new(MoverLimits::default());
    let device = Device { quiet: 2 * MS, per_rate: Duration::from_micros(200) };
    run(&schedule, &device, 1..3, true);
    assert!(schedule.quiet_us().is_some_and(|quiet| quiet < 6000.0), "{:?}", schedule.quiet_us());
}

#[test]
fn a_request_waits_for_the_foreground_but_not_for_ever() {
    let schedule = TierSchedule::new(MoverLimits::default());
    schedule.set_politeness(Politeness::FullSpeed);
    let mut now = Duration::from_secs(5);
    let timing = schedule.foreground_began();
    assert_eq!(timing, Timing::Timed, "the first of sixteen is timed");
    let (began, reads, mut ready) = (now, Lane::default(), Ready::default());
    loop {
        let wait = schedule.admit(MIB, MoverPace::Polite, &reads, &mut ready, now);
        if wait.is_zero() {
            break;
        }
        now += wait;
    }
    assert_eq!(now - began, 30 * MS);
    assert_eq!(schedule.deferral().waits(Deferrable::Move).at_bound, 1);
    assert_eq!(schedule.load(now).queue_depth, 2);
    // Beside the foreground a second request waits for the first.
    schedule.foreground_ended(Direction::Write, 4096, Some(Finished { latency: MS, now }));
    now += 100 * MS;
    schedule.load(now);
    assert!(!schedule.admit(MIB, MoverPace::Polite, &reads, &mut ready, now).is_zero());
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, MS, now);
    now += Duration::from_secs(2);
    assert!(schedule.admit(MIB, MoverPace::Polite, &reads, &mut ready, now).is_zero());
}

#[test]
fn operations_are_timed_one_in_sixteen_and_each_while_a_mover_is_active() {
    let schedule = TierSchedule::new(MoverLimits::default());
    let timed = |count: u32| (0..count).filter(|_| schedule.foreground_began() == Timing::Timed).count();
    assert_eq!(timed(160), 10);
    (0..160).for_each(|_| schedule.foreground_ended(Direction::Read, 1, None));
    assert!(
        schedule
            .admit(MIB, MoverPace::Polite, &Lane::default(), &mut Ready::default(), Duration::from_secs(1))
            .is_zero()
    );
    assert!(schedule.mover_is_active() && !schedule.take_was_shared(), "it yields");
    assert_eq!(timed(160), 160);
    (0..160).for_each(|_| schedule.foreground_ended(Direction::Read, 1, None));
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, MS, Duration::from_secs(1));
    schedule.load(Duration::from_secs(2));
    schedule.load(Duration::from_secs(3));
    assert!(!schedule.mover_is_active());
    let at = Duration::from_secs(4);
    assert!(schedule.admit(MIB, MoverPace::TakesShare, &Lane::default(), &mut Ready::default(), at).is_zero());
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, MS, Duration::from_secs(4));
    assert!(schedule.take_was_shared() && !schedule.take_was_shared(), "once for each call");
}

#[test]
fn requests_take_at_most_ten_milliseconds_of_service() {
    // Seek time in microseconds, bytes per microsecond, and the size that fits into 10 ms.
    for (seek, speed, low, high) in [(0, 27, 240, 272), (5000, 27, 100, 144), (0, 1320, 2048, 2048), (9000, 3, 64, 64)]
    {
        let mut size = RequestSize::new();
        for _ in 0..2000 {
            let bytes = size.bytes();
            size.note(bytes, Duration::from_micros(seek + bytes / speed));
        }
        let kib = size.bytes() >> 10;
        assert!((low..=high).contains(&kib), "{seek} us and {speed} MB/s: {kib} KiB");
        assert!((REQUEST_BYTES_MIN..=REQUEST_BYTES_MAX).contains(&size.bytes()));
    }
}

#[test]
fn a_device_that_stutters_in_slices_keeps_the_size_of_its_mean_speed() {
    let mut size = RequestSize::new();
    for number in 0..2000 {
        let bytes = size.bytes();
        // 27 MB/s in the mean: most requests are at once, one waits for the next slice.
        let elapsed = if number % 10 == 9 { Duration::from_micros(bytes * 10 / 27) } else { Duration::from_micros(50) };
        size.note(bytes, elapsed);
    }
    assert!((160..400).contains(&(size.bytes() >> 10)), "{}", size.bytes());
}

#[test]
fn latencies_and_load_are_shown() {
    let schedule = TierSchedule::new(MoverLimits { bytes_per_second: Some(7), operations_per_second: None });
    assert!(schedule.admit(7, MoverPace::Polite, &Lane::default(), &mut Ready::default(), Duration::ZERO).is_zero());
    for number in 1..=1000_u64 {
        let now = Duration::from_millis(number);
        let latency = if number % 50 == 0 { 80 * MS } else { MS };
        assert_eq!(schedule.foreground_began(), Timing::Timed);
        schedule.foreground_ended(Direction::Write, 1000, Some(Finished { latency, now }));
    }
    let load = schedule.load(Duration::from_millis(1001));
    assert!((1000..2000).contains(&load.latency_us_p50), "{load:?}");
    assert!((80_000..130_000).contains(&load.latency_us_p99), "{load:?}");
    assert!((500_000..=1_010_000).contains(&load.foreground_written) && load.load_percent >= 95, "{load:?}");
    assert_eq!((load.mover_rate, load.mover_queue_depth), (Some(7), 1));
    let later = schedule.load(Duration::from_secs(20));
    assert!(later.load_percent <= 1 && later.written_best >= load.written_best, "{later:?}");
}

#[test]
fn while_another_mover_is_under_way_it_is_not_its_turn_and_that_counts_as_no_wait_for_the_foreground() {
    let (schedule, reads) = (TierSchedule::new(MoverLimits::default()), Lane::default());
    let _timing = schedule.foreground_began();
    schedule.foreground_ended(Direction::Read, 1, Some(Finished { latency: MS, now: Duration::from_secs(1) }));
    let _timing = schedule.foreground_began();
    let (mut first, mut second) = (Ready::default(), Ready::default());
    let (mut began, mut now, mut went) = (None, Duration::from_secs(1), false);
    while !went {
        if began.is_none() && schedule.admit(MIB, MoverPace::Polite, &reads, &mut first, now).is_zero() {
            began = Some(now);
        }
        went = schedule.admit(MIB, MoverPace::Polite, &reads, &mut second, now).is_zero();
        now += MS;
        if began == Some(now - 100 * MS) {
            schedule.mover_ended(Direction::Read, MIB, Sizing::Full, 100 * MS, now);
        }
        // A foreground request is always in flight.
        schedule.foreground_ended(Direction::Read, 1, Some(Finished { latency: MS, now }));
        let _timing = schedule.foreground_began();
    }
    let waits = schedule.deferral().waits(Deferrable::Move);
    assert_eq!((waits.requests, waits.longest_us), (2, 30_000), "{waits:?}");
}

#[test]
fn a_mover_that_takes_its_share_leaves_half_of_the_time_to_programs_that_wait_for_syncs() {
    let schedule = TierSchedule::new(MoverLimits::default());
    let (reads, mut ready) = (Lane::default(), Ready::default());
    let mut admit = |now| schedule.admit(MIB, MoverPace::TakesShare, &reads, &mut ready, now);
    let second = Duration::from_secs(1);
    // No sync waits: two at a time, and the next one at once.
    assert!(admit(second).is_zero() && admit(second).is_zero());
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, 10 * MS, second + 10 * MS);
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, 10 * MS, second + 10 * MS);
    assert!(admit(second + 10 * MS).is_zero());
    // One that began before the first sync still counts.
    schedule.deferral().sync_began();
    assert!(!admit(second + 15 * MS).is_zero());
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, 10 * MS, second + 20 * MS);
    assert_eq!(admit(second + 22 * MS), 8 * MS);
    assert!(admit(second + 30 * MS).is_zero());
    assert!(!admit(second + 31 * MS).is_zero(), "one at a time");
    schedule.mover_ended(Direction::Read, MIB, Sizing::Full, 10 * MS, second + 40 * MS);
    schedule.deferral().sync_ended(second + 41 * MS);
    assert_eq!(admit(second + 45 * MS), 5 * MS, "the last one is not long ago");
    assert!(admit(3 * second).is_zero() && admit(3 * second).is_zero());
}
