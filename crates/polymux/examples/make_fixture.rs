//! Makes a fixture volume of the present format version: an archive and a manifest of its content.
//!
//! `cargo run -p polymux --example make_fixture -- VERSION DIRECTORY` writes `volume-vVERSION.tar.gz` and
//! `volume-vVERSION.manifest` into a directory. A fixture that is there already is not replaced: one of a released version
//! must open for ever as it is.

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use polymux_types::ManualClock;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [version, target] = arguments.as_slice() else {
        eprintln!("usage: make_fixture VERSION DIRECTORY");
        return ExitCode::from(2);
    };
    match make(version, Path::new(target)) {
        Ok(archive) => {
            println!("{}", archive.display());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("make_fixture: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn make(version: &str, target: &Path) -> Result<PathBuf, String> {
    let archive = target.join(format!("volume-v{version}.tar.gz"));
    let manifest = target.join(format!("volume-v{version}.manifest"));
    if let Some(old) = [&archive, &manifest].into_iter().find(|path| path.exists()) {
        return Err(format!("{} is there already; fixtures are kept as they are", old.display()));
    }
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    fixture::build(directory.path());
    fixture::pack(directory.path(), &archive)?;
    // The manifest is made from the archive as it is now. The person who adds the fixture has to read it.
    let unpacked = tempfile::tempdir().map_err(|error| error.to_string())?;
    fixture::unpack(&archive, unpacked.path())?;
    let fs = fixture::mount(unpacked.path(), Arc::new(ManualClock::new(Duration::from_secs(4_100_000_000))));
    let text = fixture::manifest(&fs);
    fs.unmount().map_err(|error| error.to_string())?;
    std::fs::write(&manifest, text).map_err(|error| format!("{}: {error}", manifest.display()))?;
    Ok(archive)
}
