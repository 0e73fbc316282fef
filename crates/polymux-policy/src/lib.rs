//! Pure placement decisions: one fixed-size struct of facts in, one of decisions out (DESIGN section 3).
//!
//! What is true here: no I/O, no clock, no lock, no allocation. The structs are `repr(C)` and versioned, because
//! policies from outside will be handed the same bytes.

#![forbid(unsafe_code)]

mod placement;

pub use placement::{FACTS_VERSION, PlacementDecision, PlacementFacts, TierFacts, fastest_with_headroom};
