//! Many small files: the overhead of a policy that is made for large ones.
//!
//! Method:
//! * Unpacking ends durably, as in the suite. Walking is done as by `git status`, after everything was unmounted: all directories are
//!   read, and each file is asked for its attributes. Then each is read. Both are done [`COLD_READINGS`] times, and their times added.
//! * All data that is read is compared with the archive, byte by byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::SpreadArguments;
use super::pairs::{self, Figures, milliseconds};
use super::stand::{self, Requests, Stand};
use super::volume::Volume;
use crate::report::Report;
use crate::suite::{durable, programs, runner, workloads};
use crate::tree;

/// Walks and readings in each turn: one alone says little.
const COLD_READINGS: usize = 3;

const FIGURES: [&str; 3] = ["untar, durable", "walk with stat, cold", "read all files, cold"];

/// Capacity of each device.
const DEVICE_BYTES: u64 = 1 << 30;

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; where there is no tree of 2,000 files, or no `tar`.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    ensure!(programs::is_installed("tar"), "tar is not installed");
    let Some(tree) = runner::usual_tree() else { bail!("no tree of 2,000 files was found") };
    let stand = Stand::make(arguments, stand::profiles(arguments, Requests::Unlimited), DEVICE_BYTES)?;
    let archive = stand.devices.directory().join("tree.tar");
    let (files, bytes) = workloads::pack(&tree, &archive)?;
    let title = format!("{files} small files, {} MB", bytes / 1_000_000);
    let figures = Figures { title: &title, names: &FIGURES };
    pairs::measure(&stand, &figures, report, |volume| once(&stand, volume, &archive, (files, bytes)))
}

/// Unpacks, walks and reads the tree, and removes it.
fn once(stand: &Stand, volume: &mut Volume, archive: &Path, expected: (usize, u64)) -> Result<Vec<f64>> {
    volume.start_cold(&stand.devices)?;
    let directory = volume.mount_point().to_owned();
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    let devices: Vec<PathBuf> = stand.devices.all().into_iter().map(|device| device.mount_point).collect();
    let begun = Instant::now();
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&tree);
    programs::run(&stand.devices, &mut tar)?;
    durable::end(&directory, &devices)?;
    let unpacked = milliseconds(begun);
    durable::forget_end(&directory)?;
    let (mut walked, mut read_all) = (0.0, 0.0);
    for _ in 0..COLD_READINGS {
        volume.start_cold(&stand.devices)?;
        let begun = Instant::now();
        let mut files = Vec::new();
        let bytes = tree::walk(&tree, &mut files)?;
        walked += milliseconds(begun);
        ensure!((files.len(), bytes) == expected, "{} files of {bytes} bytes are there, not {expected:?}", files.len());
        let begun = Instant::now();
        let mut read = 0;
        for path in &files {
            read += fs::read(path).with_context(|| path.display().to_string())?.len() as u64;
        }
        read_all += milliseconds(begun);
        ensure!(read == bytes, "{read} bytes were read, not {bytes}");
    }
    compare(stand, archive, &tree)?;
    fs::remove_dir_all(&tree)?;
    volume.stop()?;
    Ok(vec![unpacked, walked, read_all])
}

/// Every byte of the tree against the archive, outside the clock.
fn compare(stand: &Stand, archive: &Path, tree: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--compare").arg("--file").arg(archive).arg("--directory").arg(tree);
    programs::run(&stand.devices, &mut tar).map(|_| ())
}
