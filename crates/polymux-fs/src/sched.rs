//! When a mover may go on: rates, politeness towards foreground I/O, pauses, time windows, write budgets.
//!
//! What is true here:
//! * State and arithmetic only: every moment is passed in (time since mount), nobody waits and nothing is read from a
//!   clock.
//! * What foreground I/O calls is a few relaxed atomic additions; a lock is taken by movers, by reports, and by one
//!   timed foreground operation in an interval of 100 ms, which passes by where it is held.
//! * A mover always comes on: whatever the foreground does, a request is admitted after a bounded time.
//!
//! ```text
//!  read, write ──► TierSchedule::foreground_began, _ended ──► Meter ──► Governor (AIMD) ──┐
//!  mover ──► Gate (paused, window) ──► TierSchedule::admit ──► Bucket (configured) ───────┴──► go, or how long to wait
//!              WriteBudget                     ▲ mover_ended: RequestSize, Meter
//! ```

mod bandwidth;
mod bucket;
mod budget;
mod governor;
mod meter;
mod request_size;
mod tier;
mod windows;

#[cfg(test)]
mod tests;

pub(crate) use bandwidth::{Began, Lane};
pub(crate) use budget::WriteBudget;
pub(crate) use meter::{Direction, Finished, Timing};
pub(crate) use tier::{MoverLimits, Politeness, TierSchedule};
pub(crate) use windows::{Gate, GateState, TimeWindow, Windows, minute_of_week};
