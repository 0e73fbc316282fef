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
mod tier;
mod windows;

#[cfg(test)]
mod tests;

pub(crate) use bandwidth::{ALONE_US_MIN, Began, Lane, LaneWork, UNKNOWN_BYTES_PER_SECOND, is_from_device};
pub(crate) use budget::WriteBudget;
pub(crate) use deferral::{Deferrable, Ready, Urgency, Waits};
pub(crate) use look_budget::LookBudget;
pub(crate) use meter::{Direction, Finished, Timing};
pub(crate) use saturation::Saturation;
pub(crate) use tier::{MoverLimits, MoverPace, Politeness, TierSchedule};
pub(crate) use windows::{Gate, GateState, TimeWindow, Windows, minute_of_week};

/// A time in whole microseconds; one that does not fit is as long as can be.
pub(crate) fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
