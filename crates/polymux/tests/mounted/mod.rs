//! Code shared by the tests on a mounted volume.
//!
//! Invariants:
//! * Everything that a test brings up (daemon, mounts, loop devices, files) is taken down when its guard is dropped,
//!   also when the test panics, and nothing else is touched: processes are ended by their id, mounts by their path.
//! * A test that cannot run says `skipped: <why>` on standard error and passes; where `CI` is set it fails instead.
//! * Only `volume` knows the command line and the configuration of Polymux.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod command;
pub mod environment;
pub mod native;
pub mod operations;
pub mod passed_through;
pub mod random;
pub mod rings;
pub mod shared_file;
pub mod tool;
pub mod tree;
pub mod users;
pub mod volume;

pub use command::{Finished, run, run_within, succeed};
pub use environment::{
    drop_caches, have_program, is_heavy, is_root, one_at_a_time, skip, skip_where_io_is_named,
    skip_where_policy_is_named,
};
pub use native::{FileSystemKind, NativeMount};
pub use random::Random;
pub use volume::{Plan, TestVolume};
