//! The data path of Polymux: placement, reads and writes split by owner, sizes, durability, names.

#![forbid(unsafe_code)]

pub mod data_path;
pub mod io;
pub mod namespace;
pub mod placement;
