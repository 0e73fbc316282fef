//! Writers on a mounted volume that note their operations and the promises made to them, and the judge who compares that with
//! the content found after the daemon or the machine has died.
//!
//! Invariants:
//! * A *position* is a place in whatever order the crash has. Every attempt is noted with the position before it began,
//!   every promise (a sync that returned) with the position after it. A crash at a position must leave all that was promised
//!   up to there, and may leave anything that was attempted before.
//! * Each piece of a file says who wrote it, where, and with which change. So nothing that the program under test says is
//!   believed, and bytes of another file or another place are distinguished from those that belong there.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod history;
pub mod judge;
pub mod workload;
