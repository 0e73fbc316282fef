//! A volume that lost its metadata store is made anew out of what lies on its tiers, and the report is the exact difference
//! to what there was.

mod common;
#[path = "rebuild/conflicts.rs"]
mod conflicts;
#[path = "rebuild/objects.rs"]
mod objects;
#[path = "rebuild/refusals.rs"]
mod refusals;
#[path = "rebuild/truth.rs"]
mod truth;
