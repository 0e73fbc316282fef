//! What a Polymux volume has on record: formats, keys, the block lookup table, and the words that all parts share.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod blockmap;
pub mod caller;
pub mod counters;
pub mod error;
pub mod lease;
pub mod parts;
pub mod passthrough;
pub mod planted_faults;
pub mod report;
pub mod store;
