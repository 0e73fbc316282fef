//! Measuring commands for Polymux (development only).
//!
//! Invariants:
//! * Every figure that is a claim is a ratio of two rates measured in one run, on the same device, in alternating
//!   rounds: the machine is noisy, and an absolute figure would say more about its neighbours than about the code.
//! * The ratio of a row is the median of the ratios of its rounds; the smallest and the largest are printed beside it.
//! * Throughput is operations over wall-clock time. Names and buffers are made before the clock starts.
//! * Nothing is timed without the durability that its row names.
//! * A command works in one directory of its own below the one it is given, and removes it whatever happens.
//!
//! Data flows from the sides ([`side`]: native system calls, or an embedded `FileSystem`) through threads started at
//! once ([`parallel`]) into rounds, from there into [`statistics`], and as cells of a [`report`] to the terminal.

#![forbid(unsafe_code)]

pub mod append;
pub mod bare_flush;
pub mod death;
pub mod device;
pub mod embedded;
pub mod flush;
pub mod in_program;
pub mod large;
pub mod lease_writes;
pub mod leases;
pub mod machine;
pub mod memory;
pub mod meta;
pub mod moves;
pub mod native;
pub mod noise;
pub mod parallel;
pub mod preload;
pub mod region;
pub mod report;
pub mod scratch;
pub mod served;
pub mod shared_flush;
pub mod side;
pub mod simulation;
pub mod spread;
pub mod statistics;
pub mod store;
pub mod store_workload;
pub mod suite;
pub mod svg;
pub mod throttled;
pub mod tiering;
pub mod tree;
pub mod volume;
