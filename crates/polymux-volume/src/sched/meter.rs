//! The activity of a tier: bytes, requests under way, latency.
//!
//! Invariants:
//! * Foreground I/O only adds to atomics. Who evaluates swaps them for zero, at intervals of 100 ms or more.
//! * Not every operation is timed: each one while a mover is active, else one in sixteen.

use std::time::Duration;

use polymux_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Between two evaluations.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// Operations of which one is timed while no mover is active.
const TIMED_ONE_IN: u32 = 16;

/// Latency classes: two for each doubling, from 1 us.
const CLASSES: usize = 50;

/// Over how long rates are smoothed.
const SMOOTHING_SECONDS: f64 = 1.0;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// Whether an operation is to be timed by its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Timing {
    Timed,
    Untimed,
}

/// The end of a timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) latency: Duration,
    pub now: Duration,
}

/// The present activity of a tier, for `top` and for policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierLoad {
    /// Bytes per second over about the last second.
    pub foreground_read: u64,
    pub foreground_written: u64,
    pub mover_read: u64,
    pub mover_written: u64,
    /// The most bytes per second seen since mounting.
    pub read_best: u64,
    pub written_best: u64,
    /// Requests under way.
    pub queue_depth: u32,
    pub mover_queue_depth: u32,
    /// Latency of foreground operations over the last seconds: half and 99 % were at most as slow as this.
    pub latency_us_p50: u32,
    pub latency_us_p99: u32,
    /// Present rate in percent of the best one, of the direction where that is more.
    pub(crate) load_percent: u8,
    /// The maximum rate of a mover; `None`: no limit.
    pub mover_rate: Option<u64>,
}

/// Counts of the present interval, and of requests under way.
#[derive(Debug)]
pub struct Meter {
    pub(crate) foreground_in_flight: AtomicU32,
    pub(crate) mover_in_flight: AtomicU32,
    /// Bytes: foreground read and written, mover read and written.
    bytes: [AtomicU64; 4],
    operations: AtomicU32,
    timed: AtomicU32,
    timed_us: AtomicU64,
    classes: [AtomicU32; CLASSES],
}

/// The measurements of one interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    pub bytes: [u64; 4],
    pub operations: u32,
    /// Mean of the timed operations; `None` where there was none.
    pub(crate) latency_us: Option<u64>,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            foreground_in_flight: AtomicU32::new(0),
            mover_in_flight: AtomicU32::new(0),
            bytes: std::array::from_fn(|_| AtomicU64::new(0)),
            operations: AtomicU32::new(0),
            timed: AtomicU32::new(0),
            timed_us: AtomicU64::new(0),
            classes: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}

fn class_of(latency_us: u64) -> usize {
    let latency_us = latency_us.max(1);
    let bits = latency_us.ilog2();
    let half = if bits == 0 { 0 } else { latency_us >> (bits - 1) & 1 };
    usize::try_from(u64::from(2 * bits) + half).expect("a class fits").min(CLASSES - 1)
}

/// The longest latency of a class, in microseconds.
fn end_of_class(class: usize) -> u32 {
    let (bits, half) = (class / 2, class % 2);
    let end = (1_u64 << bits) + ((1 + half as u64) << bits) / 2;
    u32::try_from(end).unwrap_or(u32::MAX)
}

impl Meter {
    pub(crate) fn foreground_began(&self, mover_is_active: bool) -> Timing {
        self.foreground_in_flight.fetch_add(1, Ordering::Relaxed);
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        if mover_is_active || number.is_multiple_of(TIMED_ONE_IN) { Timing::Timed } else { Timing::Untimed }
    }

    pub(crate) fn foreground_ended(&self, direction: Direction, bytes: u64, latency: Option<Duration>) {
        self.foreground_in_flight.fetch_sub(1, Ordering::Relaxed);
        self.bytes[place(direction)].fetch_add(bytes, Ordering::Relaxed);
        if let Some(latency) = latency {
            let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX >> 20);
            self.timed.fetch_add(1, Ordering::Relaxed);
            self.timed_us.fetch_add(latency_us, Ordering::Relaxed);
            self.classes[class_of(latency_us)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn mover_ended(&self, direction: Direction, bytes: u64) {
        self.bytes[2 + place(direction)].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends an interval.
    pub fn take(&self) -> Interval {
        let timed = u64::from(self.timed.swap(0, Ordering::Relaxed));
        let timed_us = self.timed_us.swap(0, Ordering::Relaxed);
        Interval {
            bytes: std::array::from_fn(|place| self.bytes[place].swap(0, Ordering::Relaxed)),
            operations: self.operations.swap(0, Ordering::Relaxed),
            latency_us: timed_us.checked_div(timed),
        }
    }

    /// Forgets half of the latencies.
    pub(crate) fn age_latencies(&self) {
        for class in &self.classes {
            // Additions made meanwhile may be lost: the counts are an estimate.
            class.store(class.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }

    /// A latency that `percent` of the operations did not exceed; 0 where there were none.
    pub(crate) fn latency_us(&self, percent: u64) -> u32 {
        let counts: [u64; CLASSES] =
            std::array::from_fn(|class| u64::from(self.classes[class].load(Ordering::Relaxed)));
        let wanted = (counts.iter().sum::<u64>() * percent).div_ceil(100);
        let mut seen = 0;
        let reached = counts.iter().position(|count| {
            seen += count;
            seen >= wanted && wanted > 0
        });
        reached.map_or(0, end_of_class)
    }
}

/// Smoothed rates and their best.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// As [`Interval::bytes`], in bytes per second.
    pub now: [f64; 4],
    /// Read and written, foreground and mover together.
    pub best: [f64; 2],
}

impl Rates {
    pub fn note(&mut self, interval: &Interval, length: Duration) {
        let seconds = length.as_secs_f64().max(1e-3);
        let weight = 1.0 - (-seconds / SMOOTHING_SECONDS).exp();
        for (rate, bytes) in self.now.iter_mut().zip(interval.bytes) {
            *rate += (bytes as f64 / seconds - *rate) * weight;
        }
        for direction in 0..2 {
            self.best[direction] = self.best[direction].max(self.now[direction] + self.now[direction + 2]);
        }
    }

    /// Present rate in percent of the best.
    pub(crate) fn load_percent(&self) -> u8 {
        let share = |direction: usize| {
            let (now, best) = (self.now[direction] + self.now[direction + 2], self.best[direction]);
            if best > 0.0 { (now / best * 100.0).clamp(0.0, 100.0) } else { 0.0 }
        };
        whole(share(0).max(share(1))).min(100).try_into().expect("a percentage fits")
    }
}

/// A number of bytes per second.
#[allow(
    clippy::cast_possible_truncation,
    reason = "a conversion of a float saturates, and the fraction does not matter"
)]
pub fn whole(rate: f64) -> u64 {
    rate.max(0.0) as u64
}
