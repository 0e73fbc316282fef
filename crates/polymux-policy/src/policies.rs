//! The built-in policies, one file each.
//!
//! Invariants of each: `decide` and `evict` express the wish of the policy, and leave the limits to `promotion` and
//! `eviction`; `place` gives a preference, and `placement` names every tier that could help.

pub(crate) mod adaptive;
pub(crate) mod hot_cold;
pub(crate) mod lru;
pub(crate) mod poly;
pub(crate) mod spread;
pub(crate) mod static_placement;
pub(crate) mod tpfs;
pub(crate) mod whole_file;
