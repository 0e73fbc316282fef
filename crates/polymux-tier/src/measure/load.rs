//! One load: threads that each keep one request under way until the time is over.
//!
//! Invariants: the caller's thread makes no requests, so that it can tell how far the load is, and end it. A thread
//! that fails ends the load; all of them have ended when [`Load::run`] returns.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use polymux_types::Clock;

use super::MeasureError;
use super::ground::{Ground, Way};
use super::measurement::{Direction, Pattern, Point};
use super::noise::{Noise, Shuffle};
use super::plan::{Phase, Start};
use crate::error::TierError;

/// Time between two calls of the progress callback.
const TELL_INTERVAL: Duration = Duration::from_millis(100);

/// Alignment that no device asks more than (`O_DIRECT`).
const ALIGNMENT: usize = 4096;

/// How often a load may overwrite each place: devices wear, and a file of a few MiB is through in no time.
const OVERWRITES_MAX: u64 = 4;

/// The first third of a load shows how it begins, not how it goes on: a throttled device gives its saved burst
/// then.
const SETTLING_DIVISOR: u32 = 3;

/// Of a load no longer than this a quarter does: too little would be left.
const SHORT: Duration = Duration::from_millis(400);

/// How often a load may read each place past the page cache. Memory of this machine does not answer then, and that of the device
/// belongs to it.
const ROUNDS_MAX: u64 = 8;

/// As many requests tell how it goes on.
const STEADY_REQUESTS_MIN: usize = 8;

/// A flush that takes more than this part of a load is a part of the work.
const FLUSH_DIVISOR: u32 = 20;

/// Places of the file that are looked for in memory before it is read.
const LOOKS: u64 = 32;

/// Memory whose beginning is aligned to a block.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// So many zeros.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self::filled(length, 0)
    }

    /// So many bytes, all of them `value`.
    #[must_use]
    pub fn filled(length: usize, value: u8) -> Self {
        let bytes = vec![value; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, start, length }
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Result of a load.
pub(super) struct Outcome {
    pub(super) point: Point,
    /// End of the range that it wrote or read.
    pub(super) extent: u64,
    /// Before it began, most of the file was still in memory.
    pub(super) was_in_memory: bool,
}

/// State shared by the threads of a load.
struct Shared<'a> {
    ground: &'a dyn Ground,
    clock: &'a dyn Clock,
    phase: &'a Phase,
    time: Duration,
    /// Number of requests that fit in the file.
    places: u64,
    /// Number of requests begun.
    next: AtomicU64,
    shuffle: Shuffle,
    must_end: AtomicBool,
    began: Duration,
}

/// The work of one thread.
#[derive(Default)]
struct Lane {
    requests: Vec<Request>,
    ended: Duration,
}

/// A request that is through.
#[derive(Clone, Copy)]
struct Request {
    /// Microseconds from the beginning of the load to its end.
    ended_us: u32,
    latency_us: u32,
}

/// A load that is to be put on a ground.
pub(super) struct Load<'a> {
    pub(super) phase: &'a Phase,
    /// When its last request may begin.
    pub(super) time: Duration,
    /// Bytes of the file, or those that it may get where the load fills it.
    pub(super) file_bytes: u64,
    pub(super) seed: u64,
}

impl Load<'_> {
    /// Carries it out.
    pub(super) fn run(
        &self,
        ground: &dyn Ground,
        clock: &dyn Clock,
        tell: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Outcome, MeasureError> {
        let Self { phase, time, file_bytes, seed } = *self;
        let places = (file_bytes / u64::from(phase.request_bytes)).max(1);
        let mut was_in_memory = false;
        if phase.start == Start::Cold {
            ground.forget()?;
            let (looks, order) = (LOOKS.min(places), Shuffle::new(places, !seed));
            let found = (0..looks).filter(|look| ground.is_in_memory(order.at(*look) * u64::from(phase.request_bytes)));
            was_in_memory = found.count() as u64 * 2 > looks;
        }
        let shared = Shared {
            ground,
            clock,
            phase,
            time,
            places,
            next: AtomicU64::new(0),
            shuffle: Shuffle::new(places, seed),
            must_end: AtomicBool::new(false),
            began: clock.elapsed(),
        };
        let lanes = run_lanes(&shared, seed, tell)?;
        let written = lanes.iter().map(|lane| lane.ended).max().unwrap_or(shared.began);
        let mut ended = written;
        if phase.direction == Direction::Write {
            ground.flush()?;
            ended = clock.elapsed();
        }
        let took =
            Took { planned: time, all: ended.saturating_sub(shared.began), flush: ended.saturating_sub(written) };
        let begun = shared.next.load(Ordering::Relaxed).min(places);
        let point = point_of(phase, lanes, &took);
        Ok(Outcome { point, extent: begun * u64::from(phase.request_bytes), was_in_memory })
    }
}

fn run_lanes(
    shared: &Shared<'_>,
    seed: u64,
    tell: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<Lane>, MeasureError> {
    let count = shared.phase.in_flight;
    shared.ground.lanes_begin(count);
    let (sender, receiver) = mpsc::channel();
    let mut is_wanted = tell().is_continue();
    shared.must_end.store(!is_wanted, Ordering::Release);
    let outcomes = std::thread::scope(|scope| {
        for lane in 0..count {
            let sender = sender.clone();
            scope.spawn(move || {
                let outcome = run_lane(shared, seed.wrapping_mul(1 << 16).wrapping_add(u64::from(lane)));
                if outcome.is_err() {
                    shared.must_end.store(true, Ordering::Release);
                }
                shared.ground.lane_ends();
                // The receiver stays until all have sent.
                let _ = sender.send(outcome);
            });
        }
        drop(sender);
        let mut outcomes = Vec::with_capacity(usize::from(count));
        loop {
            match receiver.recv_timeout(TELL_INTERVAL) {
                Ok(outcome) => outcomes.push(outcome),
                Err(RecvTimeoutError::Disconnected) => break outcomes,
                Err(RecvTimeoutError::Timeout) if is_wanted => {
                    is_wanted = tell().is_continue();
                    shared.must_end.fetch_or(!is_wanted, Ordering::AcqRel);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    });
    let lanes = outcomes.into_iter().collect::<Result<Vec<Lane>, TierError>>()?;
    if is_wanted { Ok(lanes) } else { Err(MeasureError::Ended) }
}

fn run_lane(shared: &Shared<'_>, seed: u64) -> Result<Lane, TierError> {
    let Shared { ground, clock, phase, .. } = shared;
    let length = usize::try_from(phase.request_bytes).unwrap_or(ALIGNMENT);
    let mut buffer = AlignedBuffer::new(length);
    let mut noise = Noise::new(seed);
    if phase.direction == Direction::Write {
        noise.fill(buffer.as_mut_slice());
    }
    let mut lane = Lane { ended: shared.began, ..Lane::default() };
    while !shared.must_end.load(Ordering::Acquire) {
        let Some(offset) = next_offset(shared) else { break };
        let bytes = buffer.as_mut_slice();
        if phase.direction == Direction::Write {
            noise.renew(bytes);
        }
        let began = clock.elapsed();
        match phase.direction {
            Direction::Read => ground.read(offset, bytes)?,
            Direction::Write => ground.write(offset, bytes)?,
        }
        lane.ended = clock.elapsed();
        let ended_us = microseconds(lane.ended.saturating_sub(shared.began));
        lane.requests.push(Request { ended_us, latency_us: microseconds(lane.ended.saturating_sub(began)) });
        if lane.ended.saturating_sub(shared.began) >= shared.time {
            break;
        }
    }
    Ok(lane)
}

/// Where the next request goes; `None` where there is no further place. Nothing is read twice where memory would answer the
/// second time, and nothing is filled twice; overwriting begins again.
fn next_offset(shared: &Shared<'_>) -> Option<u64> {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let rounds_max = match shared.phase.start {
        Start::Overwriting => OVERWRITES_MAX,
        Start::Cold if shared.ground.way() == Way::Direct => ROUNDS_MAX,
        Start::Filling | Start::Cold => 1,
    };
    if number / shared.places >= rounds_max {
        return None;
    }
    let place = number % shared.places;
    let place = match shared.phase.pattern {
        Pattern::Sequential => place,
        Pattern::Random => shared.shuffle.at(place),
    };
    Some(place * u64::from(shared.phase.request_bytes))
}

fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn point_of(phase: &Phase, lanes: Vec<Lane>, took: &Took) -> Point {
    let mut requests: Vec<Request> = lanes.into_iter().flat_map(|lane| lane.requests).collect();
    requests.sort_unstable_by_key(|request| request.ended_us);
    let ends: Vec<u32> = requests.iter().map(|request| request.ended_us).collect();
    let (count, time) = steady(&ends, took).unwrap_or((ends.len(), took.all));
    let bytes = count as u128 * u128::from(phase.request_bytes);
    let per_second = bytes * 1_000_000_000 / time.as_nanos().max(1);
    let mut latencies: Vec<u32> = requests.iter().map(|request| request.latency_us).collect();
    latencies.sort_unstable();
    let at = |percent: usize| {
        let place = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
        latencies.get(place).copied().unwrap_or(0)
    };
    Point {
        direction: phase.direction,
        pattern: phase.pattern,
        request_bytes: phase.request_bytes,
        in_flight: phase.in_flight,
        requests: u32::try_from(latencies.len()).unwrap_or(u32::MAX),
        bytes_per_second: u64::try_from(per_second).unwrap_or(u64::MAX),
        median_us: at(50),
        p99_us: at(99),
    }
}

/// How long a load took.
struct Took {
    /// Until its last request might begin.
    planned: Duration,
    /// Until everything was through, for writes also the flush,
    all: Duration,
    /// and that by itself.
    flush: Duration,
}

/// Requests that ended between two of them, one near the beginning and one near the end, and the time between these ends: the
/// sustained work of the device. At the beginning a throttled device gives its saved burst, and at the end it is
/// waited for. `None` where that tells less than the whole: there were few requests, or the flush was a part of the work.
fn steady(ends: &[u32], took: &Took) -> Option<(usize, Duration)> {
    if took.flush * FLUSH_DIVISOR > took.all {
        return None;
    }
    // It ends before its time where there is no further place to read or to write.
    let length = took.planned.min(took.all);
    let after = |time: Duration| ends.partition_point(|end| *end <= microseconds(time));
    let first = after(settling(length)).max(1) - 1;
    let last = after(took.planned).max(1) - 1;
    let count = last.checked_sub(first).filter(|count| *count >= STEADY_REQUESTS_MIN)?;
    let time = Duration::from_micros(u64::from(ends[last] - ends[first]));
    // Requests that ended within a moment were let through at once.
    (time * 2 >= length).then_some((count, time))
}

/// How long a load of this length begins.
fn settling(length: Duration) -> Duration {
    let short = length.min(SHORT) / 4;
    let beyond = length.saturating_sub(SHORT) / 2;
    (short + beyond).min(length / SETTLING_DIVISOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn took(planned: Duration, flush: Duration) -> Took {
        Took { planned, all: planned + flush, flush }
    }

    /// Ends of requests at a device that lets so many through at once every 100 ms.
    fn throttled(slices: u32, each: u32) -> Vec<u32> {
        (0..slices)
            .flat_map(|slice| (0..each).map(move |number| slice * 100_000 + 5000 * (number + 1) / each))
            .collect()
    }

    #[test]
    fn what_a_throttled_device_lets_through_at_first_and_last_does_not_count() {
        for (slices, planned) in [(4, 350), (4, 390), (6, 510), (9, 830)] {
            let ends = throttled(slices, 12);
            let (count, time) = steady(&ends, &took(planned * MS, Duration::ZERO)).expect("there are enough");
            let per_second = count as f64 / time.as_secs_f64();
            assert!((per_second - 120.0).abs() < 6.0, "{per_second} of 120 in {planned} ms");
        }
    }

    #[test]
    fn what_a_throttled_device_has_saved_up_does_not_count_in_a_long_load() {
        // Twice as much for 300 ms, and then as it goes on.
        let saved = (1..=72).map(|number| number * 300_000 / 72);
        let after = throttled(12, 12).into_iter().map(|end| 300_000 + end);
        let ends: Vec<u32> = saved.chain(after).collect();
        let (count, time) = steady(&ends, &took(1500 * MS, Duration::ZERO)).expect("there are enough");
        let per_second = count as f64 / time.as_secs_f64();
        assert!((per_second - 120.0).abs() < 4.0, "{per_second} of 120");
    }

    #[test]
    fn few_requests_and_writes_that_are_still_to_be_flushed_count_as_a_whole() {
        assert!(steady(&throttled(1, 12), &took(350 * MS, Duration::ZERO)).is_none());
        assert!(steady(&[90_000, 180_000, 270_000], &took(350 * MS, Duration::ZERO)).is_none());
        assert!(steady(&[], &took(350 * MS, Duration::ZERO)).is_none());
        assert!(steady(&throttled(6, 12), &took(510 * MS, 200 * MS)).is_none());
    }
}
