//! The libraries that cargo built for these tests, and the limit that they need.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Open files of a process.
const OPEN_MAX: u64 = 1024;

/// As many open files as programs commonly may have, so that the limit can be raised for leases wherever this runs.
pub fn lower_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.current.map_or(Some(OPEN_MAX), |current| Some(current.min(OPEN_MAX)));
    setrlimit(Resource::Nofile, limit).expect("a limit can be lowered");
}

/// Lays them out in a directory; returns the path of the preloaded one.
pub fn install_libraries(directory: &Path) -> PathBuf {
    let tests = std::env::current_exe().expect("this test");
    let built = tests.parent().expect("a directory");
    let profile = built.parent().expect("a directory");
    fs::create_dir_all(directory).expect("made");
    let preloaded = directory.join("libpolymux_preload.so");
    for (from, to) in [
        (profile.join("libpolymux_preload.so"), preloaded.clone()),
        (built.join("libpolymux_direct.so"), directory.join("libpolymux_direct.so")),
    ] {
        fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
    preloaded
}
