//! Tiers that hang, fail, go away and come back (DESIGN section 12, docs/design/0014): what lies elsewhere goes on, and what
//! needs them fails in time and never looks as if it were gone.

#[path = "faults/failing.rs"]
mod failing;
#[path = "faults/hangs.rs"]
mod hangs;
#[path = "faults/missing.rs"]
mod missing;
#[path = "faults/spread.rs"]
mod spread;
#[path = "faults/world.rs"]
mod world;
