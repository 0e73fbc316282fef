//! How much a tier delivers in one direction while it is busy (P12): bytes per second, learnt from requests as they end.
//!
//! Invariants:
//! * Only atomics: each thread that begins or ends a request adds to them, and one of those that end a request (the one that takes
//!   the interval) evaluates. No thread waits for another.
//! * Learnt only while a request is under way: an unused tier shows nothing about its speed, and its last known speed
//!   stands.
//! * The estimate follows busy time, so a change is seen after the same number of bytes' worth of time, whatever share of the
//!   load the tier has: within a second of it at [`FOLLOW_SECONDS`]. A device that stops is seen to stop before any request
//!   of it ends, because the interval that has not ended is compared, too.
//! * A device that is not kept busy takes bursts faster than it goes on: its cache does, or the allowance of its throttle. So
//!   a lane of writes learns from intervals in which it was kept busy. From others it learns where nothing is known that a device is fast
//!   ([`UNKNOWN_BYTES_PER_SECOND`]); that it is slow only several of them tell together, by the best: a device taken for too fast is soon
//!   kept busy, one taken for too slow may never be. And it learns that a device which was slow for a while is as fast again as it
//!   once was. The interval that begins with a rest is one of those: it contains the burst, or other work that the device had to
//!   do then.
//! * Devices deliver in bursts (the kernel's throttle in slices of 100 ms), so nothing shorter than [`INTERVAL_BUSY_US`] of
//!   busy time is evaluated.

use std::time::Duration;

use polymux_types::sync::{AtomicU32, AtomicU64, Ordering};

use super::meter::whole;
use super::microseconds;

/// Busy time in microseconds after which the delivered bytes count.
const INTERVAL_BUSY_US: u64 = 100_000;

/// Busy time over which the estimate is smoothed.
const FOLLOW_SECONDS: f64 = 0.3;

/// Bytes that are under way as one request, at most: the amount that an interval that has not ended may still deliver at once.
const REQUEST_BYTES_MAX: u64 = 2 << 20;

/// Busy time for which the speed known before any measurement here counts.
const KNOWN_BEFORE_SECONDS: f64 = 0.05;

/// Intervals whose requests were at least this long on average show the rate of a device for consecutive requests.
const LARGE_REQUEST_BYTES: u64 = 256 << 10;

/// Share of an interval in percent from which a device that was busy in it counts as saturated.
const SATURATED_PERCENT: u64 = 90;

/// Share of an interval in percent below which a device was not kept busy in it.
const KEPT_BUSY_PERCENT: u64 = 80;

/// Bytes per second that a device is taken for while nothing is known of it: enough to keep it busy, so that something is.
pub(crate) const UNKNOWN_BYTES_PER_SECOND: u64 = 200_000_000;

/// Intervals in which a device was not kept busy that tell together how fast it is.
const BURSTS_ENOUGH: u64 = 8;

/// How old the known service times may be.
const LATELY: Duration = Duration::from_secs(2);

/// Bytes up to which a request is small: its time is that of waiting and finding.
const SMALL_BYTES: u64 = 64 << 10;

/// Small requests over which their time is averaged.
const SMALL_MEAN_OF: u64 = 16;

/// A request that takes longer came from the device: this many microseconds,
const DEVICE_SERVICE_US: u64 = 100;
/// and one more for each of this many bytes, which memory is copied in.
const MEMORY_BYTES_PER_US: u64 = 1000;

/// A request that takes less was certainly copied from memory: this many microseconds,
const MEMORY_US: u64 = 15;
/// and one more for each of this many bytes.
const COPIED_BYTES_PER_US: u64 = 4000;

/// Reads that waited for no other and that memory refused, for each one whose time is a sample: it takes a system call more.
const CANDIDATES_PER_SAMPLE: u64 = 4;

/// Multiplier that spreads numbers evenly (2^64 divided by the golden ratio).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Longest time from the first attempt at a read to the second. A later one waited for its thread, and not for the device.
const SECOND_ATTEMPT_WITHIN_US: u64 = 1000;

/// Time of a request from which on no copy from memory explains it, unless that lost its processor.
pub(crate) const ALONE_US_MIN: u64 = 30;

/// The throughput of one direction of a tier, as of a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneState {
    /// Bytes per second that it delivers while it is busy; 0 while nothing is known.
    pub bytes_per_second: u64,
    /// Bytes under way.
    pub outstanding_bytes: u64,
    /// Requests under way.
    pub in_flight: u32,
    /// Mean time in microseconds from the beginning of a request to its end, in the last interval.
    pub(crate) service_us: u64,
    /// Something was under way nearly all of the last interval.
    pub(crate) is_saturated: bool,
    /// Bytes that it delivered since mounting.
    pub delivered_bytes: u64,
}

/// The work of a lane since mounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneWork {
    /// Small requests that a device served,
    pub small: u64,
    /// and the time from the beginning of each to its end, of all together, in microseconds.
    pub(crate) small_service_us: u64,
    /// Time from beginning to end of all requests that delivered bytes, in microseconds.
    pub(crate) service_us: u64,
    /// Time in which any was under way, in microseconds.
    pub(crate) busy_us: u64,
    /// Small requests that a device served and that waited for no other, and the time of all of them in microseconds.
    pub alone: u64,
    pub(crate) alone_us: u64,
    /// Others that waited for no other and took no longer than [`ALONE_US_MIN`]: memory may have served them.
    pub(crate) alone_and_short: u64,
    /// Samples of small requests that waited for no other and that a device surely served, and the time of all of them in microseconds.
    pub(crate) sampled: u64,
    pub(crate) sampled_us: u64,
}

/// Requests that ended in the present interval.
#[derive(Debug, Default)]
struct Interval {
    bytes: AtomicU64,
    requests: AtomicU64,
    service_us: AtomicU64,
    /// Busy time in microseconds, without the time since `busy_since_us`.
    busy_us: AtomicU64,
    /// When the present busy time, or the evaluation within it, began; meaningless while nothing is under way.
    busy_since_us: AtomicU64,
    began_us: AtomicU64,
}

/// The speed as the intervals show it that ended. One thread that evaluates changes it.
#[derive(Debug, Default)]
struct Estimate {
    /// Bytes, and the busy time in seconds in which they were delivered, the older the less. As the bits of floats; no time while nothing is
    /// known.
    memory_bytes: AtomicU64,
    memory_seconds: AtomicU64,
    /// Of all intervals of large requests since mounting.
    learnt_bytes: AtomicU64,
    learnt_us: AtomicU64,
    last_service_us: AtomicU64,
    last_busy_percent: AtomicU64,
    /// Most bytes per second that it was known for.
    best: AtomicU64,
    /// Intervals in which a device of which nothing is known was not kept busy, and the most bytes per second in one of them.
    bursts: AtomicU64,
    burst_best: AtomicU64,
}

/// Work since mounting.
#[derive(Debug, Default)]
struct Totals {
    delivered_bytes: AtomicU64,
    /// Small requests that a device served, and how long they took.
    small: AtomicU64,
    small_service_us: AtomicU64,
    /// Those that began while no other was under way, and were surely not served by memory; and their time.
    alone: AtomicU64,
    alone_us: AtomicU64,
    /// Those of which that is not sure.
    alone_and_short: AtomicU64,
    /// Reads that could be samples.
    sample_candidates: AtomicU64,
    /// Samples, and their time.
    sampled: AtomicU64,
    sampled_us: AtomicU64,
    /// Busy time of intervals that ended.
    busy_us: AtomicU64,
    /// Time of all requests that delivered something.
    service_us: AtomicU64,
}

/// The last requests.
#[derive(Debug, Default)]
struct Recent {
    /// When the last request ended, and the last one that took the device; 0: never.
    ended_us: AtomicU64,
    served_by_device_us: AtomicU64,
    /// Mean time of the last small requests, and when the last of them ended; 0: there was none.
    small_service_us: AtomicU64,
    small_ended_us: AtomicU64,
}

/// One direction of one tier.
#[derive(Debug, Default)]
pub struct Lane {
    in_flight: AtomicU32,
    outstanding_bytes: AtomicU64,
    interval: Interval,
    estimate: Estimate,
    totals: Totals,
    recent: Recent,
    /// Delivered bytes may lie in a cache of the device.
    takes_bursts: bool,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Began {
    bytes: u64,
    at_us: u64,
    /// No other request was under way.
    is_alone: bool,
    /// When its first attempt began, which memory refused; `None`: where its bytes come from is not known.
    refused_at_us: Option<u64>,
}

impl Began {
    /// No other request was under way.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// As the second attempt at a request, the first of which memory refused: the device began to serve it then.
    pub(crate) fn as_second_attempt_of(self, refused: &Self) -> Self {
        Self { refused_at_us: Some(refused.at_us), ..self }
    }

    /// Whether this one, the second attempt, came right after the first.
    pub(crate) fn is_soon_after(&self, refused: &Self) -> bool {
        self.at_us.saturating_sub(refused.at_us) <= SECOND_ATTEMPT_WITHIN_US
    }
}

/// Whether a request that took so long was served by a device: copies from memory take less. Devices answer in tens of microseconds at
/// best; a copy that lost its processor counts as one of theirs, now and then.
#[inline]
pub fn is_from_device(service_us: u64, bytes: u64) -> bool {
    service_us >= MEMORY_US + bytes / COPIED_BYTES_PER_US
}

fn rate_of(bytes: u64, busy_us: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000 / u128::from(busy_us.max(1))).unwrap_or(u64::MAX)
}

impl Lane {
    /// A lane of writes.
    pub(crate) fn of_writes() -> Self {
        Self { takes_bursts: true, ..Self::default() }
    }

    /// A request goes to the device. Each is ended by [`Lane::ended`], also one that fails.
    pub fn began(&self, bytes: u64, now: Duration) -> Began {
        let at_us = microseconds(now);
        let is_alone = self.in_flight.fetch_add(1, Ordering::AcqRel) == 0;
        if is_alone {
            self.interval.busy_since_us.store(at_us, Ordering::Release);
        }
        self.outstanding_bytes.fetch_add(bytes, Ordering::AcqRel);
        Began { bytes, at_us, is_alone, refused_at_us: None }
    }

    /// Chooses, without a pattern, one in [`CANDIDATES_PER_SAMPLE`] of the reads that could be samples.
    pub(crate) fn choose_sample(&self) -> bool {
        let number = self.totals.sample_candidates.fetch_add(1, Ordering::Relaxed);
        number.wrapping_mul(GOLDEN_RATIO) >> 32 & (CANDIDATES_PER_SAMPLE - 1) == 0
    }

    /// It came back; `delivered` bytes of it count. Returns how long it took.
    pub fn ended(&self, began: Began, delivered: u64, now: Duration) -> Duration {
        let now_us = microseconds(now);
        self.outstanding_bytes.fetch_sub(began.bytes, Ordering::AcqRel);
        self.interval.bytes.fetch_add(delivered, Ordering::Relaxed);
        self.totals.delivered_bytes.fetch_add(delivered, Ordering::Relaxed);
        self.interval.requests.fetch_add(1, Ordering::Relaxed);
        let service_us = now_us.saturating_sub(began.at_us);
        self.interval.service_us.fetch_add(service_us, Ordering::Relaxed);
        self.recent.ended_us.store(now_us, Ordering::Relaxed);
        // One that would have had to wait is asked again.
        if delivered > 0 {
            self.totals.service_us.fetch_add(service_us, Ordering::Relaxed);
            if let Some(refused_at_us) = began.refused_at_us
                && delivered <= SMALL_BYTES
            {
                self.totals.sampled.fetch_add(1, Ordering::Relaxed);
                self.totals.sampled_us.fetch_add(now_us.saturating_sub(refused_at_us), Ordering::Relaxed);
            }
            if delivered <= SMALL_BYTES && is_from_device(service_us, delivered) {
                self.totals.small.fetch_add(1, Ordering::Relaxed);
                self.totals.small_service_us.fetch_add(service_us, Ordering::Relaxed);
                if began.is_alone && service_us >= ALONE_US_MIN {
                    self.totals.alone.fetch_add(1, Ordering::Relaxed);
                    self.totals.alone_us.fetch_add(service_us, Ordering::Relaxed);
                } else if began.is_alone {
                    self.totals.alone_and_short.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if delivered <= SMALL_BYTES {
            self.note_small(service_us, now_us);
        }
        if service_us >= DEVICE_SERVICE_US + delivered / MEMORY_BYTES_PER_US {
            self.recent.served_by_device_us.store(now_us.max(1), Ordering::Relaxed);
        }
        // Before the count falls: the thread that makes it rise from zero begins a busy time of its own.
        let since_us = self.interval.busy_since_us.load(Ordering::Acquire);
        let before = self.in_flight.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a request that ends was begun");
        let running_us = now_us.saturating_sub(since_us);
        if before == 1 {
            self.interval.busy_us.fetch_add(running_us, Ordering::AcqRel);
        }
        let busy_us = self.interval.busy_us.load(Ordering::Acquire) + if before == 1 { 0 } else { running_us };
        if busy_us >= INTERVAL_BUSY_US {
            self.evaluate(now_us);
        }
        Duration::from_micros(service_us)
    }

    /// Ends the interval. Of several who come here together one does.
    fn evaluate(&self, now_us: u64) {
        let interval_began_us = self.interval.began_us.load(Ordering::Acquire);
        let taken =
            self.interval.began_us.compare_exchange(interval_began_us, now_us, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            return;
        }
        let mut busy_us = self.interval.busy_us.swap(0, Ordering::AcqRel);
        if self.in_flight.load(Ordering::Acquire) > 0 {
            busy_us += now_us.saturating_sub(self.interval.busy_since_us.swap(now_us, Ordering::AcqRel));
        }
        let bytes = self.interval.bytes.swap(0, Ordering::AcqRel);
        let (requests, service_us) =
            (self.interval.requests.swap(0, Ordering::AcqRel), self.interval.service_us.swap(0, Ordering::AcqRel));
        self.totals.busy_us.fetch_add(busy_us, Ordering::Release);
        let length_us = now_us.saturating_sub(interval_began_us).max(1);
        let busy_percent = (busy_us * 100 / length_us).min(100);
        self.estimate.last_busy_percent.store(busy_percent, Ordering::Relaxed);
        self.estimate.last_service_us.store(service_us.checked_div(requests).unwrap_or(0), Ordering::Relaxed);
        if self.takes_bursts && busy_percent < KEPT_BUSY_PERCENT {
            self.recover(bytes, busy_us);
            return;
        }
        if bytes >= requests.max(1) * LARGE_REQUEST_BYTES {
            self.estimate.learnt_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.estimate.learnt_us.fetch_add(busy_us, Ordering::Relaxed);
        }
        self.remember(bytes, busy_us);
        self.estimate.best.fetch_max(self.estimate().unwrap_or(0), Ordering::Relaxed);
    }

    /// Takes an interval into the estimate in which the device was not kept busy, as far as that raises the estimate to the earlier speed
    /// of the device.
    fn recover(&self, bytes: u64, busy_us: u64) {
        let best = self.estimate.best.load(Ordering::Relaxed);
        let in_time = |per_second: u64| u128::from(per_second) * u128::from(busy_us) / 1_000_000;
        let Some(known) = self.estimate() else {
            let fastest = self.estimate.burst_best.fetch_max(rate_of(bytes, busy_us), Ordering::Relaxed);
            let bursts = self.estimate.bursts.fetch_add(1, Ordering::Relaxed) + 1;
            if u128::from(bytes) >= in_time(UNKNOWN_BYTES_PER_SECOND) {
                self.remember(bytes, busy_us);
            } else if bursts >= BURSTS_ENOUGH {
                // It is never kept busy. The best that it did is taken for its bandwidth.
                self.begin_with(fastest.max(rate_of(bytes, busy_us)));
            }
            return;
        };
        if known >= best {
            return;
        }
        if u128::from(bytes) > in_time(known) {
            let believed = u128::from(bytes).min(in_time(best));
            self.remember(u64::try_from(believed).unwrap_or(u64::MAX), busy_us);
        }
    }

    /// Takes the bytes of an interval into the estimate. Called by the thread that evaluates.
    fn remember(&self, bytes: u64, busy_us: u64) {
        let busy_seconds = busy_us.max(1) as f64 / 1e6;
        // Both are forgotten at the same rate, and divided last: the short first interval does not count as a long one.
        let kept = (-busy_seconds / FOLLOW_SECONDS).exp();
        let remembered = |memory: &AtomicU64| f64::from_bits(memory.load(Ordering::Acquire)) * kept;
        let (memory_bytes, memory_seconds) =
            (remembered(&self.estimate.memory_bytes), remembered(&self.estimate.memory_seconds));
        self.estimate.memory_bytes.store((memory_bytes + bytes as f64).to_bits(), Ordering::Release);
        self.estimate.memory_seconds.store((memory_seconds + busy_seconds).to_bits(), Ordering::Release);
    }

    /// Begins with a bandwidth known from before, where nothing was measured here yet; measurements soon count for more.
    pub(crate) fn begin_with(&self, bytes_per_second: u64) {
        if bytes_per_second > 0 && self.estimate().is_none() {
            self.estimate
                .memory_bytes
                .store((bytes_per_second as f64 * KNOWN_BEFORE_SECONDS).to_bits(), Ordering::Release);
            self.estimate.memory_seconds.store(KNOWN_BEFORE_SECONDS.to_bits(), Ordering::Release);
            self.estimate.best.fetch_max(bytes_per_second, Ordering::Relaxed);
        }
    }

    /// Bytes that large requests delivered since mounting, and the busy time that it took.
    pub(crate) fn learnt(&self) -> (u64, Duration) {
        let busy = Duration::from_micros(self.estimate.learnt_us.load(Ordering::Relaxed));
        (self.estimate.learnt_bytes.load(Ordering::Relaxed), busy)
    }

    /// The work since mounting.
    pub fn work(&self) -> LaneWork {
        LaneWork {
            small: self.totals.small.load(Ordering::Relaxed),
            small_service_us: self.totals.small_service_us.load(Ordering::Relaxed),
            // That of the interval that has not ended, too: a device that is used little ends one in many seconds. Read in this order, time that
            // moves from one to the other meanwhile is missed until the next call, and not counted twice.
            busy_us: self.totals.busy_us.load(Ordering::Acquire) + self.interval.busy_us.load(Ordering::Acquire),
            service_us: self.totals.service_us.load(Ordering::Relaxed),
            alone: self.totals.alone.load(Ordering::Relaxed),
            alone_us: self.totals.alone_us.load(Ordering::Relaxed),
            alone_and_short: self.totals.alone_and_short.load(Ordering::Relaxed),
            sampled: self.totals.sampled.load(Ordering::Relaxed),
            sampled_us: self.totals.sampled_us.load(Ordering::Relaxed),
        }
    }

    /// Bytes per second; `None` while nothing is known.
    fn estimate(&self) -> Option<u64> {
        let seconds = f64::from_bits(self.estimate.memory_seconds.load(Ordering::Acquire));
        let bytes = f64::from_bits(self.estimate.memory_bytes.load(Ordering::Acquire));
        // Rounded: the quotient of a product by one factor must give the other factor.
        (seconds > 0.0).then(|| whole((bytes / seconds).round()).max(1))
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Bytes under way.
    #[inline]
    pub fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes.load(Ordering::Acquire)
    }

    /// Mean time in microseconds of the last small requests, where one came back in the last [`LATELY`]; else 0. Large ones take as long
    /// as their bytes do, whatever waits before them.
    pub fn small_service_us_lately(&self, now: Duration) -> u64 {
        let ended_us = self.recent.small_ended_us.load(Ordering::Relaxed);
        let is_lately = ended_us > 0 && microseconds(now).saturating_sub(ended_us) <= microseconds(LATELY);
        if is_lately { self.recent.small_service_us.load(Ordering::Relaxed) } else { 0 }
    }

    fn note_small(&self, service_us: u64, now_us: u64) {
        let is_first = self.recent.small_ended_us.swap(now_us.max(1), Ordering::Relaxed) == 0;
        let before = self.recent.small_service_us.load(Ordering::Relaxed);
        // Of two who come here together one may be lost: it is a mean.
        let mean = if is_first { service_us } else { (before * (SMALL_MEAN_OF - 1) + service_us) / SMALL_MEAN_OF };
        self.recent.small_service_us.store(mean, Ordering::Relaxed);
    }

    /// How long ago the device served a request: zero while one is under way that is apparently not served from memory,
    /// `None` where it never did.
    pub(crate) fn served_by_device(&self, now: Duration) -> Option<Duration> {
        let now_us = microseconds(now);
        if self.in_flight.load(Ordering::Acquire) > 0 {
            // From memory something would have come back meanwhile.
            let since_us =
                self.interval.busy_since_us.load(Ordering::Acquire).max(self.recent.ended_us.load(Ordering::Relaxed));
            if now_us.saturating_sub(since_us) >= DEVICE_SERVICE_US {
                return Some(Duration::ZERO);
            }
        }
        let served_us = self.recent.served_by_device_us.load(Ordering::Relaxed);
        (served_us > 0).then(|| Duration::from_micros(now_us.saturating_sub(served_us)))
    }

    /// The present work and the speed of the lane.
    pub fn state(&self, now: Duration) -> LaneState {
        let now_us = microseconds(now);
        let in_flight = self.in_flight.load(Ordering::Acquire);
        let (outstanding_bytes, delivered_bytes) =
            (self.outstanding_bytes(), self.totals.delivered_bytes.load(Ordering::Relaxed));
        let mut busy_us = self.interval.busy_us.load(Ordering::Acquire);
        if in_flight > 0 {
            busy_us += now_us.saturating_sub(self.interval.busy_since_us.load(Ordering::Acquire));
        }
        let mut bytes_per_second = self.estimate().unwrap_or(0);
        if busy_us > 2 * INTERVAL_BUSY_US {
            // Nothing ended for long: even if all of a request ended now, it would be no faster than this.
            let at_best = self.interval.bytes.load(Ordering::Relaxed) + REQUEST_BYTES_MAX.min(outstanding_bytes);
            let at_most = whole(at_best as f64 / (busy_us as f64 / 1e6)).max(1);
            bytes_per_second = if bytes_per_second == 0 { 0 } else { bytes_per_second.min(at_most) };
        }
        LaneState {
            bytes_per_second,
            outstanding_bytes,
            in_flight,
            service_us: self.estimate.last_service_us.load(Ordering::Relaxed),
            is_saturated: in_flight > 0 && self.estimate.last_busy_percent.load(Ordering::Relaxed) >= SATURATED_PERCENT,
            delivered_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MB: u64 = 1_000_000;

    /// A device that serves one request after the other, in slices: the bytes that a slice allows are delivered at its beginning.
    struct Device {
        lane: Lane,
        now: Duration,
        bytes_per_second: u64,
        slice: Duration,
        allowed: u64,
        queue: VecDeque<(Began, u64)>,
    }

    impl Device {
        fn new(bytes_per_second: u64, slice: Duration) -> Self {
            let (lane, now) = (Lane::of_writes(), Duration::from_secs(1));
            Self { lane, now, bytes_per_second, slice, allowed: 0, queue: VecDeque::new() }
        }

        /// Lets time pass, with requests of a mebibyte: as many as keep `depth` bytes under way.
        fn run(&mut self, duration: Duration, depth: u64) {
            let end = self.now + duration;
            while self.now < end {
                while self.lane.outstanding_bytes() < depth {
                    self.queue.push_back((self.lane.began(1 << 20, self.now), 1 << 20));
                }
                self.now += self.slice;
                let slice_us = u64::try_from(self.slice.as_micros()).unwrap();
                self.allowed += self.bytes_per_second * slice_us / 1_000_000;
                while self.queue.front().is_some_and(|(_, bytes)| *bytes <= self.allowed) {
                    let (began, bytes) = self.queue.pop_front().unwrap();
                    self.allowed -= bytes;
                    self.lane.ended(began, bytes, self.now);
                }
                if self.queue.is_empty() {
                    self.allowed = 0;
                }
            }
        }

        /// Requests under way come to their end, and then nothing happens for a second.
        fn end_all(&mut self) {
            while let Some((began, bytes)) = self.queue.pop_front() {
                self.lane.ended(began, bytes, self.now);
            }
            self.now += Duration::from_secs(1);
        }

        fn estimate(&self) -> u64 {
            self.lane.state(self.now).bytes_per_second
        }
    }

    fn is_near(estimate: u64, wanted: u64) -> bool {
        estimate.abs_diff(wanted) * 10 <= wanted
    }

    #[test]
    fn a_rate_that_was_measured_before_is_told_as_it_was_measured() {
        for known in (1_400_446_000..1_400_447_000).chain([1, 3, 7, 120 * MB - 1]) {
            let lane = Lane::default();
            lane.begin_with(known);
            assert_eq!(lane.state(Duration::ZERO).bytes_per_second, known);
        }
    }

    #[test]
    fn the_rate_of_a_busy_device_is_known_within_half_a_second_also_where_it_delivers_in_slices() {
        for slice in [5 * MS, 100 * MS] {
            let mut device = Device::new(120 * MB, slice);
            device.run(500 * MS, 36 * MB);
            assert!(is_near(device.estimate(), 120 * MB), "{slice:?}: {}", device.estimate());
        }
    }

    #[test]
    fn a_device_that_is_cut_to_a_tenth_and_restored_is_followed_within_a_second_each_time() {
        for slice in [5 * MS, 100 * MS] {
            let mut device = Device::new(120 * MB, slice);
            device.run(Duration::from_secs(2), 36 * MB);
            device.bytes_per_second = 12 * MB;
            device.run(Duration::from_secs(1), 36 * MB);
            let low = device.estimate();
            assert!(low < 20 * MB && low > 9 * MB, "{slice:?}: {low}");
            device.bytes_per_second = 120 * MB;
            device.run(Duration::from_secs(1), 36 * MB);
            assert!(device.estimate() > 108 * MB, "{slice:?}: {}", device.estimate());
        }
    }

    #[test]
    fn a_device_that_stops_is_seen_to_stop_although_no_request_ends() {
        let mut device = Device::new(120 * MB, 5 * MS);
        device.run(Duration::from_secs(1), 8 * MB);
        device.bytes_per_second = 0;
        device.run(Duration::from_secs(1), 8 * MB);
        assert!(device.estimate() < 13 * MB, "{}", device.estimate());
    }

    #[test]
    fn reads_that_come_from_memory_do_not_count_as_those_of_the_device() {
        let (lane, mut now) = (Lane::default(), Duration::from_secs(1));
        for _ in 0..1000 {
            let (small, large) = (lane.began(0, now), lane.began(0, now));
            now += Duration::from_micros(90);
            lane.ended(small, 4096, now);
            assert_eq!(lane.served_by_device(now), None);
            now += Duration::from_micros(90);
            lane.ended(large, 1 << 20, now);
        }
        assert_eq!(lane.served_by_device(now), None);
        let began = lane.began(0, now);
        now += MS;
        assert_eq!(lane.served_by_device(now), Some(Duration::ZERO), "nothing came back for long");
        lane.ended(began, 4096, now);
        assert_eq!(lane.served_by_device(now + 7 * MS), Some(7 * MS));
    }

    #[test]
    fn what_an_idle_device_was_known_for_stands() {
        let mut device = Device::new(120 * MB, 5 * MS);
        device.run(Duration::from_secs(1), 8 * MB);
        let known = device.estimate();
        while let Some((began, bytes)) = device.queue.pop_front() {
            device.now += 8 * MS;
            device.lane.ended(began, bytes, device.now);
        }
        device.now += Duration::from_secs(3600);
        let state = device.lane.state(device.now);
        assert!(is_near(state.bytes_per_second, known), "{} after {known}", state.bytes_per_second);
        assert_eq!((state.outstanding_bytes, state.in_flight, state.is_saturated), (0, 0, false));
    }

    #[test]
    fn a_slow_writer_does_not_make_a_fast_device_look_slow() {
        let mut device = Device::new(120 * MB, MS);
        device.run(Duration::from_secs(1), 8 * MB);
        device.end_all();
        // One mebibyte in 50 ms is 21 MB/s, and each is delivered in 9 ms.
        for _ in 0..100 {
            let began = device.lane.began(1 << 20, device.now);
            device.lane.ended(began, 1 << 20, device.now + 9 * MS);
            device.now += 50 * MS;
        }
        assert!(is_near(device.estimate(), 120 * MB), "{}", device.estimate());
        assert!(!device.lane.state(device.now).is_saturated);
    }

    /// Kept busy for a second, then given a burst now and then, which it takes five times as fast.
    fn estimate_after_bursts(lane: Lane) -> u64 {
        let mut device = Device { lane, ..Device::new(100 * MB, 5 * MS) };
        device.run(Duration::from_secs(1), 10 * MB);
        device.end_all();
        for _ in 0..200 {
            let began = device.lane.began(5 * MB, device.now);
            device.lane.ended(began, 5 * MB, device.now + 10 * MS);
            device.now += 50 * MS;
        }
        device.estimate()
    }

    #[test]
    fn bursts_do_not_make_a_device_look_faster_than_it_was_when_it_was_kept_busy() {
        let estimate = estimate_after_bursts(Lane::of_writes());
        assert!(estimate < 130 * MB, "{estimate}");
        // A read does not hit a device cache merely because it was requested.
        assert!(is_near(estimate_after_bursts(Lane::default()), 500 * MB));
    }

    #[test]
    fn what_a_device_takes_that_is_not_kept_busy_may_tell_that_it_is_fast_and_not_that_it_is_slow() {
        for (bytes_per_second, known) in [(23 * MB, 0), (199 * MB, 0), (700 * MB, 700 * MB)] {
            let (lane, mut now) = (Lane::of_writes(), Duration::from_secs(1));
            let mut write = |bytes_per_second: u64| {
                let began = lane.began(bytes_per_second / 50, now);
                now += 20 * MS;
                lane.ended(began, bytes_per_second / 50, now);
                now += 80 * MS;
                lane.state(now).bytes_per_second
            };
            // An interval has 100 ms of busy time: five of these writes.
            assert_eq!((0..30).map(|_| write(bytes_per_second)).last(), Some(known));
            // A device that is never kept busy is known for the best that it did.
            let once = write(bytes_per_second * 2);
            assert!((0..30).map(|_| write(bytes_per_second)).last() >= Some(bytes_per_second), "{once}");
        }
    }

    #[test]
    fn a_device_that_was_slow_for_a_while_is_known_for_what_it_is_again_without_being_kept_busy() {
        let mut device = Device::new(100 * MB, 5 * MS);
        device.run(Duration::from_secs(1), 10 * MB);
        device.bytes_per_second = 10 * MB;
        device.run(Duration::from_secs(2), 10 * MB);
        device.end_all();
        assert!(device.estimate() < 20 * MB, "{}", device.estimate());
        for _ in 0..200 {
            let began = device.lane.began(5 * MB, device.now);
            device.lane.ended(began, 5 * MB, device.now + 10 * MS);
            device.now += 50 * MS;
        }
        assert!(is_near(device.estimate(), 100 * MB), "as fast as it was, and no faster: {}", device.estimate());
    }

    #[test]
    fn the_time_of_small_requests_is_known_for_two_seconds_and_follows_the_last_ones() {
        let (lane, mut now) = (Lane::default(), Duration::from_secs(1));
        let mut read = |bytes: u64, took: Duration, times: u32| {
            for _ in 0..times {
                let began = lane.began(0, now);
                now += took;
                lane.ended(began, bytes, now);
            }
            now
        };
        assert_eq!(lane.small_service_us_lately(Duration::from_secs(1)), 0);
        let until = read(4096, 9 * MS, 10);
        assert_eq!(lane.small_service_us_lately(until), 9000);
        let until = read(1 << 20, 50 * MS, 10);
        assert_eq!(lane.small_service_us_lately(until), 9000, "large ones tell nothing of it");
        let until = read(4096, MS / 10, 80);
        assert!(lane.small_service_us_lately(until) < 200, "{}", lane.small_service_us_lately(until));
        assert_eq!(lane.small_service_us_lately(until + Duration::from_secs(3)), 0);
    }

    #[test]
    fn a_device_with_a_queue_all_the_time_is_saturated_and_its_service_time_is_what_the_queue_takes() {
        let mut device = Device::new(100 * MB, 5 * MS);
        device.run(Duration::from_secs(1), 10 * MB);
        let state = device.lane.state(device.now);
        assert!(state.is_saturated && state.in_flight >= 9, "{state:?}");
        assert!(state.service_us.abs_diff(105_000) < 15_000, "{state:?}");
        assert!(state.delivered_bytes.abs_diff(100 * MB) < 3 * MB, "{state:?}");
    }

    #[test]
    fn what_was_known_before_is_believed_at_once_and_given_up_soon_where_it_is_wrong() {
        let mut device = Device::new(12 * MB, 5 * MS);
        device.lane.begin_with(500 * MB);
        assert_eq!(device.estimate(), 500 * MB);
        device.run(600 * MS, 8 * MB);
        assert!(device.estimate() < 60 * MB, "{}", device.estimate());
        device.run(Duration::from_secs(1), 8 * MB);
        assert!(is_near(device.estimate(), 12 * MB), "{}", device.estimate());
        device.lane.begin_with(500 * MB);
        assert!(is_near(device.estimate(), 12 * MB), "what was measured here is known better");
    }

    #[test]
    fn what_large_requests_deliver_is_learnt_and_what_small_ones_do_is_not() {
        let mut device = Device::new(120 * MB, 5 * MS);
        device.run(Duration::from_secs(3), 36 * MB);
        let (bytes, busy) = device.lane.learnt();
        assert!(busy >= Duration::from_millis(2500) && busy <= Duration::from_secs(3), "{busy:?}");
        assert!(is_near(bytes * 1000 / u64::try_from(busy.as_millis()).unwrap(), 120 * MB), "{bytes} in {busy:?}");
        let small = Lane::default();
        for number in 0..3000 {
            let began = small.began(4096, number * MS);
            small.ended(began, 4096, (number + 1) * MS);
        }
        assert_eq!(small.learnt(), (0, Duration::ZERO));
        assert!(small.state(3000 * MS).bytes_per_second > 0);
    }

    #[test]
    fn nothing_is_known_before_anything_was_delivered() {
        let lane = Lane::default();
        let began = lane.began(1 << 20, MS);
        assert_eq!(lane.state(Duration::from_secs(9)).bytes_per_second, 0);
        lane.ended(began, 0, Duration::from_secs(10));
        assert_eq!(lane.outstanding_bytes(), 0);
    }
}
