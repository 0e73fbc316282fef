//! A volume that lost its metadata store is rebuilt from the contents of its tiers, and the report is the exact difference
//! to its former state.

mod common;
#[path = "rebuild/conflicts.rs"]
mod conflicts;
#[path = "rebuild/objects.rs"]
mod objects;
#[path = "rebuild/refusals.rs"]
mod refusals;
#[path = "rebuild/truth.rs"]
mod truth;
