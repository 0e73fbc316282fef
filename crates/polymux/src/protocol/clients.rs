//! Programs that use files past the mount, on the way between daemon and command line, and in `--json`.

use serde::{Deserialize, Serialize};

/// Leases of a volume, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasesReport {
    /// By which programs read.
    pub live: usize,
    /// That ended, and whose programs have not given back their descriptors yet.
    pub recalled: usize,
}

/// One lease of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The process that asked for it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The file.
    pub ino: u64,
    /// One of its paths from the root of the volume; absent where it has no name any more.
    pub path: Option<String>,
    /// It ended, and the program gives back its descriptors at its next call.
    pub recalled: bool,
    /// Age of the lease.
    pub seconds: u64,
    /// Bytes of the file, from the first one on, that it covers.
    pub covered_bytes: u64,
    /// Short reads at random that devices served.
    pub device_reads: u64,
    /// Writes past the mount.
    #[serde(default)]
    pub writes: u64,
}
