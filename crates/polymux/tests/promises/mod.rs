//! Writers on a mounted volume that note what they did and what was promised to them, and the judge who compares that with
//! what is there after the daemon or the machine has died.
//!
//! What is true here:
//! * A *position* is a place in whatever order the crash has. Every attempt is noted with the position before it began,
//!   every promise (a sync that returned) with the position after it. A crash at a position must leave all that was promised
//!   up to there, and may leave anything that was attempted before.
//! * Each piece of a file says who wrote it, where, and with which change. So nothing that the program under test says is
//!   believed, and bytes of another file or another place are told from those that belong there.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod history;
pub mod judge;
pub mod workload;
