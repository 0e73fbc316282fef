//! Which loads a tier is tried with, and how long each of them takes.

use std::time::Duration;

use super::measurement::{Direction, Pattern};

/// Least time for a measurement: each load has some tens of milliseconds then.
pub const TIME_MIN: Duration = Duration::from_secs(1);

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// The state that a load finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// An empty file, which it fills.
    Filling,
    /// The file, to be overwritten.
    Overwriting,
    /// The file, with nothing of it in memory.
    Cold,
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) start: Start,
    pub(super) direction: Direction,
    pub(super) pattern: Pattern,
    pub(super) request_bytes: u32,
    pub(super) in_flight: u16,
    /// Its part of the time.
    pub(super) share: u32,
}

/// Start, pattern, bytes of a request, requests at once, share of the time. A device that is throttled lets requests through
/// in slices of a tenth of a second, so none has less than four times that of the usual time. The one of its kind with most at once
/// has longest, and comes first: it shows the sustained rate of the device, and a throttled one first gives its saved burst. A slow
/// device that is measured for a short time does not come to the others.
const LOADS: [(Start, Pattern, u32, u16, u32); 15] = [
    (Start::Filling, Pattern::Sequential, MIB, 4, 6),
    (Start::Overwriting, Pattern::Sequential, 64 * KIB, 1, 2),
    (Start::Overwriting, Pattern::Random, 4 * KIB, 1, 2),
    (Start::Overwriting, Pattern::Random, 4 * KIB, 16, 3),
    (Start::Cold, Pattern::Random, 4 * KIB, 1, 2),
    (Start::Cold, Pattern::Sequential, MIB, 4, 6),
    (Start::Cold, Pattern::Random, 4 * KIB, 32, 6),
    (Start::Cold, Pattern::Random, 64 * KIB, 32, 6),
    (Start::Cold, Pattern::Sequential, 64 * KIB, 1, 2),
    (Start::Cold, Pattern::Sequential, MIB, 1, 2),
    (Start::Cold, Pattern::Sequential, MIB, 2, 2),
    (Start::Cold, Pattern::Random, 4 * KIB, 2, 2),
    (Start::Cold, Pattern::Random, 4 * KIB, 4, 2),
    (Start::Cold, Pattern::Random, 4 * KIB, 8, 2),
    (Start::Cold, Pattern::Random, 4 * KIB, 16, 2),
];

/// The loads of a measurement.
pub(super) fn plan() -> Vec<Phase> {
    LOADS
        .into_iter()
        .map(|(start, pattern, request_bytes, in_flight, share)| Phase {
            start,
            direction: if start == Start::Cold { Direction::Read } else { Direction::Write },
            pattern,
            request_bytes,
            in_flight,
            share,
        })
        .collect()
}

/// The time of the first of these loads, where all of them share the time left: later loads absorb the overrun, or use the surplus, of
/// earlier ones.
pub(super) fn time_of_first(loads: &[Phase], left: Duration) -> Duration {
    let shares: u32 = loads.iter().map(|load| load.share).sum();
    loads.first().map_or(Duration::ZERO, |first| left * first.share / shares.max(1))
}
