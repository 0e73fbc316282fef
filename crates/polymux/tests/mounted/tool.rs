//! Test programs from crates.io, installed once into `target/tools` at the version that the tests were written for.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::command::run_within;

/// The program of a crate of the same name, installed if it is not there yet.
pub fn tool(name: &str, version: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let program = root.join("bin").join(name);
    if is_version(&program, version) {
        return program;
    }
    let mut install = Command::new(env!("CARGO"));
    install.args(["install", "--locked", "--force", "--version", version, "--root"]).arg(&root).arg(name);
    // A target directory of its own: the one of this build is locked while tests run under `cargo test`.
    install.env("CARGO_TARGET_DIR", root.join("build"));
    let finished = run_within(&mut install, Duration::from_secs(900));
    assert!(finished.is_success(), "cannot install {name} {version}: {}", finished.text());
    program
}

/// fsx, which compares a file with its bytes in memory.
pub fn fsx() -> PathBuf {
    tool("fsx", "0.3.2")
}

fn is_version(program: &Path, version: &str) -> bool {
    let asked = Command::new(program).arg("--version").output();
    asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(version))
}
