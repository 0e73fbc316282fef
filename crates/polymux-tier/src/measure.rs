//! Performance of a tier's device: bandwidth by size of request, requests per second, latency, and how many requests at once it
//! takes to get the most out of it (docs/design/0019).
//!
//! Invariants:
//! * A measurement takes no longer than the given time, except for requests in flight at its end; the progress callback can
//!   end it at any time.
//! * Only blocks that were written just before are read: never a hole, and never data of the volume. The written data is
//!   random and no block is like another, so that no file system can store less than it was given.
//! * No write counts before it is on the device, and no read that memory can answer: the ground sees to it, and says how
//!   ([`Way`]). Effects that it cannot exclude are in [`Measurement::caveats`].
//! * Memory of the device itself, of its controller or of a server belongs to the device here.
//!
//! ```text
//!  measure ──► plan: which loads, how long ──► load: threads that each keep one request under way ──► ground: file, or simulation
//! ```

mod ground;
mod load;
mod measurement;
mod noise;
mod plan;

use std::ops::ControlFlow;
use std::time::Duration;

use polymux_types::Clock;

use crate::error::TierError;

pub use ground::{Ground, Way};
pub use load::AlignedBuffer;
pub use measurement::{Caveats, Direction, Measurement, Pattern, Point};
pub use noise::{Noise, Shuffle};
pub use plan::TIME_MIN;

use load::Load;
use plan::{Phase, Start, plan, time_of_first};

/// Default time for the measurement of a tier.
pub const TIME_DEFAULT: Duration = Duration::from_secs(12);

/// Longest measurement: nothing is learnt after that.
pub const TIME_MAX: Duration = Duration::from_secs(600);

/// Largest file that is written for it. A device that writes 3 GB/s is busy with it for a sixth of a second.
pub const FILE_BYTES_MAX: u64 = 512 << 20;

/// With less than this nothing is measured: the loads would not have blocks enough to tell them apart.
pub const FILE_BYTES_MIN: u64 = 8 << 20;

/// The part of the free space for data which the file may take.
const ROOM_DIVISOR: u64 = 8;

/// A file of less than this may well lie in the memory of the device as a whole.
const SMALL_FILE_BYTES: u64 = 64 << 20;

/// Options of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureOptions {
    /// How long it may take, from [`TIME_MIN`] to [`TIME_MAX`].
    pub time: Duration,
    /// Most bytes of the file; see [`file_bytes_for`].
    pub file_bytes_max: u64,
    /// Where the random numbers begin: another one for each measurement, so that two have no block in common.
    pub seed: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureProgress {
    /// Loads that are through.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// The present one.
    pub direction: Direction,
    /// How its requests follow one another.
    pub pattern: Pattern,
    /// Bytes of each of its requests.
    pub request_bytes: u32,
    /// How many are under way at once.
    pub in_flight: u16,
}

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The tier refused.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The file would take too much of the space that is left for data.
    #[error(
        "too little room to measure: {available} bytes are left for data, and at least {} are needed",
        FILE_BYTES_MIN * ROOM_DIVISOR
    )]
    TooLittleRoom {
        /// Bytes left for data.
        available: u64,
    },
    /// The progress callback ended the measurement.
    #[error("the measurement was ended before it was through")]
    Ended,
}

/// Receives the progress of a measurement; ends it with `Break`.
pub type OnMeasureProgress<'a> = &'a mut dyn FnMut(&MeasureProgress) -> ControlFlow<()>;

/// How large the file may be on a tier that has so many bytes left for data.
///
/// # Errors
/// [`MeasureError::TooLittleRoom`]
pub fn file_bytes_for(available: u64) -> Result<u64, MeasureError> {
    let bytes = (available / ROOM_DIVISOR).min(FILE_BYTES_MAX);
    if bytes < FILE_BYTES_MIN { Err(MeasureError::TooLittleRoom { available }) } else { Ok(bytes) }
}

/// Measures the performance of a ground. The data written for it goes with the ground.
///
/// # Errors
/// The ground refused a request, or `on_progress` ended it.
pub fn measure(
    ground: &dyn Ground,
    clock: &dyn Clock,
    options: &MeasureOptions,
    on_progress: OnMeasureProgress<'_>,
) -> Result<Measurement, MeasureError> {
    let time = options.time.clamp(TIME_MIN, TIME_MAX);
    let phases = plan();
    let began = clock.elapsed();
    let mut points = Vec::with_capacity(phases.len());
    // Until the first load is through this is how much it may write.
    let mut file_bytes = options.file_bytes_max.max(FILE_BYTES_MIN);
    let mut caveats = Caveats::default();
    for (done, phase) in phases.iter().enumerate() {
        let left = time.saturating_sub(clock.elapsed().saturating_sub(began));
        if left.is_zero() {
            break;
        }
        let total = phases.len();
        let mut tell = || on_progress(&progress_of(phase, done, total));
        let seed = options.seed.wrapping_add(done as u64 + 1);
        let load = Load { phase, time: time_of_first(&phases[done..], left), file_bytes, seed };
        let outcome = load.run(ground, clock, &mut tell)?;
        if phase.start == Start::Filling {
            file_bytes = outcome.extent;
        }
        if phase.start == Start::Cold {
            caveats.may_be_memory |= outcome.was_in_memory;
        }
        points.push(outcome.point);
    }
    let allocated = ground.allocated_bytes();
    caveats.takes_less_room = allocated.is_some_and(|allocated| allocated < file_bytes / 10 * 9);
    caveats.is_small = file_bytes < SMALL_FILE_BYTES;
    let elapsed = clock.elapsed().saturating_sub(began);
    let elapsed_ms = u32::try_from(elapsed.as_millis()).unwrap_or(u32::MAX);
    Ok(Measurement { way: ground.way(), file_bytes, elapsed_ms, caveats, points })
}

fn progress_of(phase: &Phase, done: usize, total: usize) -> MeasureProgress {
    MeasureProgress {
        done,
        total,
        direction: phase.direction,
        pattern: phase.pattern,
        request_bytes: phase.request_bytes,
        in_flight: phase.in_flight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_full_tier_is_not_filled_for_a_measurement() {
        assert_eq!(file_bytes_for(1 << 40), Ok(FILE_BYTES_MAX));
        assert_eq!(file_bytes_for(1 << 30), Ok((1 << 30) / 8));
        for available in [0, 1, 1 << 20, 63 << 20] {
            assert_eq!(file_bytes_for(available), Err(MeasureError::TooLittleRoom { available }));
        }
    }
}
