//! Cost of a small random read on each tier, learnt from the tier's read lane.
//!
//! Invariants:
//! * Device time is the time in which any request was in flight, divided among the requests by their latencies. It is a constant of the
//!   device, so it is averaged over thousands of reads. Where moves or streams shared the device, small reads waited for them: such a window
//!   can only show that the device is faster than it was known for.
//! * Latency includes queueing. It tells whether readers of one tier wait less than those of another, and follows the last windows, as the
//!   rate of reads and the part of the time do in which the device had one to serve.

use std::time::Duration;

use polymux_policy::ReadLoad;

use crate::heat::follow;
use crate::sched::{ALONE_US_MIN, LaneWork, microseconds};

/// Small reads from which on their device time is known.
const READS_ENOUGH: u64 = 100;

/// Windows without a small read after which their latency is unknown again.
const WINDOWS_ANSWERED: u8 = 10;

/// Percentage of earlier reads that is kept with each window that has new ones.
const KEPT_READS_PERCENT: u64 = 95;

/// Percentage of the observed maximum of a device that is kept for each window in which it never rests and serves less.
const KEPT_OF_MOST_PERCENT: u64 = 95;

/// Part by which the time of a read that waits for no other grows with each window in which some read did, so that a device that became slow is known
/// for it: by half in an hour.
const UNQUEUED_GROWS_DIVISOR: u64 = 8000;

/// Reads of a window that waited for no other from which on their mean counts; a few may have been served by memory, late. Until there were as
/// many, the shortest of the few counts.
const ALONE_ENOUGH: u64 = 8;

/// Thousandths of the time in which a device has something to read: below the first it has time to spare, from the second on it has none.
const BEST_BELOW_THOUSANDTHS: u64 = 500;
const MEAN_FROM_THOUSANDTHS: u64 = 900;

/// Hundredths of requests under way at a time, below which hardly any waits for another.
const ONE_READER_DEPTH_HUNDREDTHS: u64 = 200;

/// A read that waits for nothing is taken to need this part of the mean time at least.
const BEST_PART_OF_MEAN_MIN: u64 = 8;

/// Other work of the device in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Nothing but foreground I/O.
    Undisturbed,
    /// Movers used the device and yielded to readers, so that requests took a little longer than the device needs for them.
    BesidePoliteMoves,
    /// Movers took their share of the device, so that requests took much longer.
    BesideMoves,
}

/// Reads that waited for no other.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    reads: u64,
    /// The time of all of them in microseconds.
    took_us: u64,
}

/// Time of a read that waits for no other: the least of several means, slowly forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct Unqueued {
    /// In nanoseconds; 0 while unknown.
    ns: u64,
    /// It is a mean of [`ALONE_ENOUGH`] reads at least.
    is_mean: bool,
    /// Reads that were too few so far.
    gathered: Alone,
}

impl Unqueued {
    /// A device that became slow is known for it after some time in which it was read.
    fn grow(&mut self) {
        self.ns = self.ns.saturating_add(self.ns / UNQUEUED_GROWS_DIVISOR);
    }

    /// Notes reads of which each counts, over windows. Nothing is known before there are enough.
    fn note_over_windows(&mut self, alone: Alone) {
        self.gathered.reads += alone.reads;
        self.gathered.took_us += alone.took_us;
        if self.gathered.reads >= ALONE_ENOUGH {
            let gathered = std::mem::take(&mut self.gathered);
            self.note_window(gathered);
        }
    }

    /// Notes the reads of one window. A few may have been served by memory, late: they count while nothing better is known.
    fn note_window(&mut self, alone: Alone) {
        let mean_ns = alone.took_us.saturating_mul(1000) / alone.reads.max(1);
        if alone.reads >= ALONE_ENOUGH {
            self.ns = if self.is_mean { self.ns.min(mean_ns) } else { mean_ns };
            self.is_mean = true;
        } else if alone.reads > 0 && !self.is_mean {
            self.ns = if self.ns == 0 { mean_ns } else { self.ns.min(mean_ns) };
        }
    }
}

/// Device time and latency of the small reads of one tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SmallReads {
    /// Recent reads, and the device time of all of them in microseconds; older windows weigh less.
    reads: u64,
    busy_us: u64,
    /// Latency in nanoseconds, queueing included; 0 while unknown.
    latency_ns: u64,
    windows_without: u8,
    /// Reads in a thousand seconds.
    reads_per_kilosecond: u64,
    /// One that waited for no other, of those that took too long for a copy from memory. Of a fast device these are only the few that
    /// something held up.
    unqueued: Unqueued,
    /// As `unqueued`, of those that a device surely served.
    sampled: Unqueued,
    /// The first [`READS_ENOUGH`] reads that shared the device with no moves or streams, and their device time. Once there are as many they take the
    /// place of those seen before, and from then on a window with moves or streams can only make the device time shorter.
    undisturbed: (u64, u64),
    /// Hundredths of requests that were under way at a time, while any was.
    depth_hundredths: u64,
    /// Those that it served when it never rested and reads waited for one another.
    most_per_kilosecond: Option<u64>,
    /// Thousandths of the time in which any read was under way.
    busy_thousandths: u64,
    /// Totals of the lane at the end of the last window.
    counted: LaneWork,
}

impl SmallReads {
    /// Ends a window of this length with the totals of the lane since mounting.
    pub fn note(&mut self, work: LaneWork, window: Window, length: Duration) {
        let before = std::mem::replace(&mut self.counted, work);
        let since = |of: fn(&LaneWork) -> u64| of(&work).saturating_sub(of(&before));
        let (reads, took_us) = (since(|work| work.small), since(|work| work.small_service_us));
        let length_us = microseconds(length).max(1);
        let in_kilosecond = reads.saturating_mul(1_000_000_000) / length_us;
        self.reads_per_kilosecond = follow(self.reads_per_kilosecond, in_kilosecond);
        let any_busy_us = since(|work| work.busy_us);
        let busy_thousandths = any_busy_us.saturating_mul(1000) / length_us;
        self.busy_thousandths = follow(self.busy_thousandths, busy_thousandths.min(1000));
        let alone = Alone { reads: since(|work| work.alone), took_us: since(|work| work.alone_us) };
        let sampled = Alone { reads: since(|work| work.sampled), took_us: since(|work| work.sampled_us) };
        self.note_alone(alone, since(|work| work.alone_and_short), sampled);
        if reads == 0 {
            self.windows_without = self.windows_without.saturating_add(1);
            if self.windows_without >= WINDOWS_ANSWERED {
                self.latency_ns = 0;
            }
            return;
        }
        self.windows_without = 0;
        let latency_ns = took_us.saturating_mul(1000) / reads;
        self.latency_ns = if self.latency_ns == 0 { latency_ns } else { follow(self.latency_ns, latency_ns) };
        let service_us = since(|work| work.service_us).max(1);
        let busy_us = u128::from(any_busy_us) * u128::from(took_us) / u128::from(service_us);
        let is_shared = window != Window::Undisturbed || took_us.saturating_mul(2) < service_us;
        let depth_hundredths = service_us.saturating_mul(100) / any_busy_us.max(1);
        self.depth_hundredths = follow(self.depth_hundredths, depth_hundredths);
        // Reads that wait for no other say nothing of how many it could serve at a time.
        let of_window = ReadLoad {
            latency_ns: Some(latency_ns),
            unqueued_ns: self.unqueued_ns(),
            depth_hundredths,
            busy_percent: busy_thousandths / 10,
            ..ReadLoad::default()
        };
        if !is_shared && of_window.is_saturated() {
            let before = self.most_per_kilosecond.unwrap_or(0).saturating_mul(KEPT_OF_MOST_PERCENT) / 100;
            self.most_per_kilosecond = Some(before.max(in_kilosecond));
        }
        let is_slower = |known_ns: u64| busy_us * 1000 > u128::from(known_ns) * u128::from(reads);
        if is_shared && self.device_ns().is_some_and(is_slower) {
            return;
        }
        let busy_us = u64::try_from(busy_us).unwrap_or(u64::MAX);
        if !is_shared && !self.was_seen_undisturbed() {
            self.undisturbed = (self.undisturbed.0 + reads, self.undisturbed.1.saturating_add(busy_us));
            if self.was_seen_undisturbed() {
                (self.reads, self.busy_us) = self.undisturbed;
                return;
            }
        }
        // Weighted by reads and not by windows: a few slow ones say little beside thousands.
        let kept = |known: u64| known.saturating_mul(KEPT_READS_PERCENT) / 100;
        self.reads = kept(self.reads) + reads;
        self.busy_us = kept(self.busy_us).saturating_add(busy_us);
    }

    /// Whether enough reads were seen that shared the device with no moves or streams.
    fn was_seen_undisturbed(&self) -> bool {
        self.undisturbed.0 >= READS_ENOUGH
    }

    /// Device time of one small read in nanoseconds; `None` while too few were seen.
    pub(crate) fn device_ns(&self) -> Option<u64> {
        (self.reads >= READS_ENOUGH).then(|| self.busy_us.saturating_mul(1000) / self.reads)
    }

    /// Device time in nanoseconds of one more small read: the less a device is used, the more it is that of a read which waited for nothing in the
    /// best window. At a few reads a second no two overlap, and the mean is their latency, which contains the time until a busy processor served
    /// them.
    pub(crate) fn device_ns_of_one_more(&self) -> Option<u64> {
        let mean_ns = self.device_ns()?;
        let best = self.best_unqueued();
        if !best.is_mean {
            return Some(mean_ns);
        }
        // A window of reads that memory served late is no measure of a device.
        let best_ns = best.ns.clamp(mean_ns / BEST_PART_OF_MEAN_MIN, mean_ns);
        // One program that reads all the time keeps a device busy that could serve another one beside it.
        let has_one_reader = self.depth_hundredths < ONE_READER_DEPTH_HUNDREDTHS;
        let busy = if has_one_reader { 0 } else { self.busy_thousandths };
        let used = busy.clamp(BEST_BELOW_THOUSANDTHS, MEAN_FROM_THOUSANDTHS) - BEST_BELOW_THOUSANDTHS;
        Some(best_ns + (mean_ns - best_ns) * used / (MEAN_FROM_THOUSANDTHS - BEST_BELOW_THOUSANDTHS))
    }

    /// Notes the reads of a window that waited for no other, how many others were so short that memory may have served them, and the samples. Short
    /// ones count for a device of which nothing else is known: it may be as fast.
    fn note_alone(&mut self, alone: Alone, short: u64, sampled: Alone) {
        if alone.reads + short + sampled.reads > 0 {
            self.unqueued.grow();
            self.sampled.grow();
        }
        self.unqueued.note_window(alone);
        self.sampled.note_over_windows(sampled);
        if self.unqueued.ns == 0 && short > 0 {
            self.unqueued.ns = ALONE_US_MIN * 1000;
        }
    }

    /// Time in nanoseconds of one that waited for no other; `None` while there was none.
    pub fn unqueued_ns(&self) -> Option<u64> {
        let ns = self.best_unqueued().ns;
        (ns > 0).then_some(ns)
    }

    /// The lesser of both times, of which only means count where there is one.
    fn best_unqueued(&self) -> Unqueued {
        let (by_time, sampled) = (self.unqueued, self.sampled);
        match (by_time.is_mean, sampled.is_mean) {
            (true, true) if by_time.ns < sampled.ns => by_time,
            (_, true) => sampled,
            (_, false) => by_time,
        }
    }

    /// Reads since mounting that a device surely served while it served no other.
    pub fn sampled(&self) -> u64 {
        self.counted.sampled
    }

    /// The recent work of the device for readers.
    pub fn load(&self) -> ReadLoad {
        ReadLoad {
            reads_per_kilosecond: self.reads_per_kilosecond,
            latency_ns: self.latency_ns(),
            device_ns: self.device_ns(),
            most_per_kilosecond: self.most_per_kilosecond,
            unqueued_ns: self.unqueued_ns(),
            depth_hundredths: self.depth_hundredths,
            busy_percent: self.busy_thousandths / 10,
            is_seen_disturbed_only: !self.was_seen_undisturbed(),
        }
    }

    /// Latency of one small read in nanoseconds, queueing included; `None` while there was none lately.
    pub(crate) fn latency_ns(&self) -> Option<u64> {
        (self.latency_ns > 0).then_some(self.latency_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane whose totals grow by windows.
    #[derive(Default)]
    struct Lane {
        work: LaneWork,
        reads: SmallReads,
    }

    impl Lane {
        fn window(&mut self, small: u64, streamed_us: u64, busy_us: u64, service_us: u64, window: Window) {
            self.work.small += small;
            self.work.small_service_us += service_us;
            self.work.service_us += service_us + streamed_us;
            self.work.busy_us += busy_us;
            self.reads.note(self.work, window, Duration::from_secs(1));
        }

        fn device_us(&self) -> u64 {
            self.reads.device_ns().expect("known") / 1000
        }
    }

    impl SmallReads {
        fn note_unsampled(&mut self, reads: u64, took_us: u64, short: u64) {
            self.note_alone(Alone { reads, took_us }, short, Alone::default());
        }
    }

    #[test]
    fn of_a_fast_device_behind_a_limit_the_few_reads_that_wait_are_not_taken_for_the_time_of_one() {
        let mut lane = Lane::default();
        // Most reads take less than a copy from memory may; the limit holds up some.
        lane.reads.note_unsampled(20, 20 * 8000, 180);
        (0..20).for_each(|_| lane.window(8000, 0, 1_000_000, 36_000_000, Window::Undisturbed));
        assert!(!lane.reads.load().is_saturated(), "a read of many takes less than one alone: {:?}", lane.reads.load());
        let held_up = Alone { reads: 20, took_us: 20 * 8000 };
        lane.reads.note_alone(held_up, 180, Alone { reads: 50, took_us: 50 * 850 });
        assert_eq!(lane.reads.load().unqueued_ns, Some(850_000), "these are surely of the device");
        lane.window(8000, 0, 1_000_000, 36_000_000, Window::Undisturbed);
        assert!(lane.reads.load().is_saturated(), "{:?}", lane.reads.load());
    }

    #[test]
    fn a_guess_from_reads_that_memory_may_have_served_gives_way_to_samples() {
        let mut lane = Lane::default();
        lane.reads.note_unsampled(0, 0, 1);
        assert_eq!(lane.reads.unqueued_ns(), Some(30_000), "it may be as fast");
        lane.reads.note_alone(Alone::default(), 0, Alone { reads: 8, took_us: 8 * 400 });
        (0..10).for_each(|_| lane.window(100, 0, 60_000, 60_000, Window::Undisturbed));
        assert_eq!(lane.reads.unqueued_ns(), Some(400_000));
        assert_eq!(lane.reads.device_ns_of_one_more(), Some(400_000));
    }

    #[test]
    fn few_samples_count_once_they_are_enough_and_never_make_a_device_look_slower_than_other_reads() {
        let mut reads = SmallReads::default();
        reads.note_unsampled(20, 20 * 100, 0);
        let samples = |reads, each_us| Alone { reads, took_us: reads * each_us };
        (0..3).for_each(|_| reads.note_alone(Alone::default(), 0, samples(2, 40)));
        assert!(reads.unqueued_ns() >= Some(100_000), "six are too few");
        reads.note_alone(Alone::default(), 0, samples(2, 40));
        assert_eq!(reads.unqueued_ns(), Some(40_000));
        (0..8).for_each(|_| reads.note_alone(Alone::default(), 0, samples(1, 8000)));
        assert!(reads.unqueued_ns() < Some(41_000), "one that was held up is no sign of a slower device");
        // No sample for a day, and reads that by their time come from the device.
        (0..86_400).for_each(|_| reads.note_unsampled(20, 20 * 100, 0));
        let unqueued_ns = reads.unqueued_ns().expect("known");
        assert!((100_000..101_000).contains(&unqueued_ns), "{unqueued_ns}");
    }

    #[test]
    fn a_few_slow_reads_beside_thousands_change_little_and_streams_nothing() {
        let mut lane = Lane::default();
        lane.window(50, 0, 50_000, 50_000, Window::Undisturbed);
        assert_eq!((lane.reads.device_ns(), lane.reads.latency_ns()), (None, Some(1_000_000)), "too few to tell");
        (0..20).for_each(|_| lane.window(3000, 0, 1_000_000, 8_000_000, Window::Undisturbed));
        assert!((330..340).contains(&lane.device_us()), "{:?}", lane.reads);
        assert!((2_600_000..2_700_000).contains(&lane.reads.latency_ns().unwrap()), "{:?}", lane.reads);
        lane.window(10, 0, 100_000, 100_000, Window::Undisturbed);
        assert!((330..342).contains(&lane.device_us()), "{:?}", lane.reads);
        // A stream has the device for three quarters of the time, and then for nearly all of it: reads wait for its requests.
        (0..200).for_each(|_| lane.window(750, 6_000_000, 1_000_000, 2_000_000, Window::Undisturbed));
        assert!((330..336).contains(&lane.device_us()), "{:?}", lane.reads);
        (0..200).for_each(|_| lane.window(200, 4_000_000, 1_000_000, 3_000_000, Window::Undisturbed));
        assert!((330..336).contains(&lane.device_us()), "{:?}", lane.reads);
        let load = lane.reads.load();
        assert!((190_000..=200_000).contains(&load.reads_per_kilosecond) && load.busy_percent == 99, "{load:?}");
        (0..u64::from(WINDOWS_ANSWERED)).for_each(|_| lane.window(0, 0, 0, 0, Window::Undisturbed));
        assert_eq!(lane.reads.latency_ns(), None, "it is unknown again");
        assert!(lane.reads.device_ns().is_some());
        assert!(lane.reads.load().busy_percent < 5, "it rests");
    }

    #[test]
    fn reads_beside_moves_count_until_there_are_enough_others() {
        let mut lane = Lane::default();
        (0..3).for_each(|_| lane.window(1000, 0, 1_000_000, 8_000_000, Window::BesideMoves));
        lane.window(5, 0, 500, 500, Window::Undisturbed);
        lane.window(1000, 0, 1_000_000, 8_000_000, Window::BesideMoves);
        assert!(lane.device_us() > 990 && lane.reads.load().is_seen_disturbed_only, "five reads are too few");
        lane.window(200, 0, 20_000, 20_000, Window::Undisturbed);
        assert!(
            lane.device_us() < 110 && !lane.reads.load().is_seen_disturbed_only,
            "those before say nothing any more"
        );
        lane.window(1000, 0, 1_000_000, 8_000_000, Window::BesideMoves);
        assert!(lane.device_us() < 110, "nor do others beside moves");
    }

    #[test]
    fn a_busy_processor_does_not_make_a_device_with_time_to_spare_look_slow() {
        let mut lane = Lane::default();
        lane.reads.note_unsampled(20, 20 * 60, 0);
        // Fifty reads a second, none beside another, each a quarter of a millisecond until it was noticed.
        for _ in 0..30 {
            lane.reads.note_unsampled(50, 50 * 250, 0);
            lane.window(50, 0, 50 * 250, 50 * 250, Window::Undisturbed);
        }
        assert!((245..=255).contains(&lane.device_us()), "{:?}", lane.reads);
        let of_one_more = |lane: &Lane| lane.reads.device_ns_of_one_more().expect("known") / 1000;
        assert!((60..61).contains(&of_one_more(&lane)), "{:?}", lane.reads);
        lane.reads.unqueued.ns = 1_000;
        assert_eq!(of_one_more(&lane), lane.reads.device_ns().unwrap() / BEST_PART_OF_MEAN_MIN / 1000);
        // One program that reads all the time, beside a compiler: the device could serve another one.
        lane.reads.unqueued.ns = 60_000;
        (0..100).for_each(|_| lane.window(4000, 0, 950_000, 950_000, Window::Undisturbed));
        assert!((60..61).contains(&of_one_more(&lane)), "{:?}", lane.reads);
        // A device that never rests serves no read in that time.
        (0..100).for_each(|_| lane.window(4000, 0, 1_000_000, 8_000_000, Window::Undisturbed));
        assert!((245..=255).contains(&of_one_more(&lane)), "{:?}", lane.reads);
    }

    #[test]
    fn moves_beside_readers_do_not_make_the_device_look_slower() {
        let mut lane = Lane::default();
        lane.reads.note_unsampled(10, 10_000, 0);
        lane.window(1000, 0, 1_000_000, 1_000_000, Window::BesideMoves);
        assert_eq!(lane.device_us(), 1000, "better than nothing");
        (0..100).for_each(|_| lane.window(3000, 0, 1_000_000, 8_000_000, Window::Undisturbed));
        assert!((330..345).contains(&lane.device_us()), "{:?}", lane.reads);
        let before = lane.device_us();
        (0..100).for_each(|_| lane.window(1000, 0, 1_000_000, 8_000_000, Window::BesideMoves));
        assert_eq!(lane.device_us(), before);
        assert!(lane.reads.latency_ns().unwrap() > 7_000_000, "latency is what readers see");
        assert_eq!(lane.reads.load().most_per_kilosecond, Some(3_000_000));
    }

    #[test]
    fn what_a_device_can_serve_is_seen_only_where_reads_wait_for_one_another() {
        let mut lane = Lane::default();
        lane.reads.note_unsampled(10, 1000, 7);
        // Four readers that are served at the same time.
        (0..20).for_each(|_| lane.window(40_000, 0, 1_000_000, 4_000_000, Window::Undisturbed));
        assert_eq!((lane.reads.load().most_per_kilosecond, lane.reads.load().busy_percent), (None, 99));
        let unqueued_ns = lane.reads.load().unqueued_ns.expect("known");
        assert!((100_000..101_000).contains(&unqueued_ns), "{unqueued_ns}");
        // Sixty-four readers, each waiting three times as long.
        (0..20).for_each(|_| lane.window(160_000, 0, 1_000_000, 64_000_000, Window::Undisturbed));
        assert_eq!(lane.reads.load().most_per_kilosecond, Some(160_000_000));
        assert!(lane.reads.load().depth_hundredths > 6000, "{:?}", lane.reads.load());
        // It became slower: after a minute the maximum has followed.
        (0..60).for_each(|_| lane.window(40_000, 0, 1_000_000, 64_000_000, Window::Undisturbed));
        assert_eq!(lane.reads.load().most_per_kilosecond, Some(40_000_000));
        // An hour in which each read takes ten times as long: the shortest time grows by half.
        (0..3600).for_each(|_| lane.reads.note_unsampled(100, 100_000, 0));
        let unqueued_ns = lane.reads.load().unqueued_ns.expect("known");
        assert!((150_000..160_000).contains(&unqueued_ns), "{unqueued_ns}");
        lane.reads.note_unsampled(1, 30, 9);
        assert!(lane.reads.load().unqueued_ns > Some(150_000), "one that memory served late is none of it");
        let mut fast = SmallReads::default();
        fast.note_unsampled(0, 0, 1);
        assert_eq!(fast.load().unqueued_ns, Some(30_000), "it may be as fast as memory");
        fast.note_unsampled(8, 720, 20);
        assert_eq!(fast.load().unqueued_ns, Some(90_000), "memory served those");
    }
}
