//! Blocks move while files are in use (DESIGN section 8).

mod common;

#[path = "migration/basics.rs"]
mod basics;
#[path = "migration/conflicts.rs"]
mod conflicts;
#[path = "migration/drain.rs"]
mod drain;
#[path = "migration/failures.rs"]
mod failures;
#[path = "migration/planning.rs"]
mod planning;
#[path = "migration/policies.rs"]
mod policies;
#[path = "migration/regressions.rs"]
mod regressions;
#[path = "migration/steady.rs"]
mod steady;
#[path = "migration/tiers_and_pins.rs"]
mod tiers_and_pins;
#[path = "migration/under_fire.rs"]
mod under_fire;

use common::Volume;
pub use common::settle;
use polymux_fs::{FileLocation, FileSystem, JobId, JobState, PolicyKind};
use polymux_types::Ino;

/// Policies that `steady` is about.
const KINDS: &[PolicyKind] = &PolicyKind::ALL;

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// A length in memory of so many MiB.
pub const fn mebibytes(count: usize) -> usize {
    count << 20
}

/// Asks for a move of the whole file and carries it out.
pub fn migrate(volume: &Volume, ino: Ino, tier: &str) -> JobId {
    let job = volume.fs().migrate(ino, tier, None).expect("the move is accepted");
    settle(volume);
    let state = volume.fs().job(job).expect("the job is remembered").state;
    assert_eq!(state, JobState::Done, "{:?}", volume.fs().moves());
    job
}

/// Where a file is.
pub fn location(fs: &FileSystem, ino: Ino) -> FileLocation {
    fs.locate(ino).expect("located")
}

/// Names of the tiers that hold an object of the file, with the bytes mapped there.
pub fn shares(fs: &FileSystem, ino: Ino) -> Vec<(String, u64)> {
    location(fs, ino).shares.iter().map(|share| (share.name.clone(), share.bytes_mapped)).collect()
}
