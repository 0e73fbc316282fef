//! A mounted Polymux volume below its data path: tiers and their space, inodes, heat, schedules, transactions.

#![forbid(unsafe_code)]

pub mod access;
pub mod heat;
pub mod inode;
pub mod sched;
pub mod space;
pub mod stamps;
pub mod tier_reads;
pub mod transaction;
pub mod volume;
