//! The order of requests to a tier (M13), and when a mover may go on: rates, politeness towards foreground I/O, pauses, time
//! windows, write budgets.
//!
//! Invariants:
//! * State and arithmetic only: every moment is passed in (time since mount), no thread waits and no clock
//!   is read.
//! * Calls of foreground I/O cost a few relaxed atomic additions; a lock is taken by movers, by reports, and by one
//!   timed foreground operation in an interval of 100 ms, which passes by where it is held.
//! * A mover always makes progress: whatever the foreground does, a request is admitted after a bounded time. So does write-behind.
//!   Which request yields to which, and for how long, is decided in `deferral.rs` and nowhere else.
//!
//! ```text
//!  read, write ──► TierSchedule::foreground_began, _ended ──► Meter ──► Governor (AIMD) ──┐
//!  mover ──► Gate (paused, window) ──► TierSchedule::admit ──► Bucket (configured) ───────┴──► Deferral ──► go, or
//!              WriteBudget                     ▲ mover_ended: RequestSize, Meter                 ▲   ▲    how long to wait
//!  write-behind (how much at once: Lane) ────────────────────────────────────────────────────────┘   │
//!  reads of the device (Lane), syncs ────────────────────────────────────────────────────────────────┘
//! ```

mod bandwidth;
mod bucket;
mod budget;
mod deferral;
mod governor;
mod look_budget;
mod meter;
mod request_size;
mod saturation;
mod small_writes;
mod tier;
mod windows;

#[cfg(test)]
mod tests;

pub(crate) use bandwidth::ALONE_US_MIN;
pub(crate) use bandwidth::Began;
pub(crate) use bandwidth::Lane;
pub(crate) use bandwidth::LaneWork;
pub(crate) use bandwidth::UNKNOWN_BYTES_PER_SECOND;
pub use bandwidth::is_from_device;
pub use budget::WriteBudget;
pub(crate) use deferral::Deferrable;
pub use deferral::Ready;
pub(crate) use deferral::Urgency;
pub(crate) use deferral::Waits;
pub use look_budget::LookBudget;
pub use meter::Direction;
pub(crate) use meter::Finished;
pub(crate) use meter::Timing;
pub use request_size::MoveEnd;
pub use request_size::Seeks;
pub use request_size::Sizing;
pub use request_size::request_between;
pub(crate) use saturation::Saturation;
pub(crate) use small_writes::{SmallWriteMeter, SmallWriteWork};
pub(crate) use tier::TierSchedule;
pub use tier::{MoverLimits, MoverPace, Politeness};
pub use windows::{Gate, GateState, TimeWindow, Windows, minute_of_week};

/// A time in whole microseconds; one that does not fit is as long as can be.
pub fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
