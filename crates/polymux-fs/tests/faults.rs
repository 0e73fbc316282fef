//! Tiers that hang, fail, go away and come back (DESIGN section 12, docs/design/0014): operations on other tiers go on, and those that
//! need them fail in time and never look as if the data were gone.

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
