//! `polymux-bench append`: appending 4 KiB and `fdatasync` to an existing file, natively and through a mounted volume.
//!
//! Method: both files are on the same device and exist, with a mebibyte in them, before the clock starts. The
//! two sides take turns of a few operations, so that both meet the same disk, and which begins changes each time.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;

use crate::machine;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::{mean, percentile};

const BLOCK: usize = 4096;

/// Operations of one side before it is the other's turn.
const TURN: usize = 20;

/// Choices of `polymux-bench append`.
#[derive(Args, Clone, Debug)]
pub struct AppendArguments {
    /// Native directory, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// Directory in a mounted volume whose first tier is on the same device.
    #[arg(long)]
    pub mounted: PathBuf,
    /// Operations of each side.
    #[arg(long, default_value_t = 3000)]
    pub operations: usize,
}

/// Measures both sides.
///
/// # Errors
/// Whatever either side reports.
pub fn run(arguments: &AppendArguments) -> Result<()> {
    let native = Scratch::new(&arguments.place.directory)?;
    let mounted = Scratch::new(&arguments.mounted)?;
    let mut report = Report::new("append", arguments.place.form());
    report.add(machine::describe(native.path())?);
    let mut files = [prepare(native.path())?, prepare(mounted.path())?];
    let mut times_us = [Vec::new(), Vec::new()];
    for turn in 0..arguments.operations.div_ceil(TURN) {
        for side in [turn % 2, 1 - turn % 2] {
            for _ in 0..TURN {
                let begun = Instant::now();
                files[side].write_all(&[7; BLOCK])?;
                files[side].sync_data()?;
                times_us[side].push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    report.add(table(&times_us));
    report.finish()
}

fn prepare(directory: &Path) -> Result<File> {
    let path = directory.join("appended");
    let made = OpenOptions::new().append(true).create_new(true).open(&path);
    let mut file = made.with_context(|| format!("{}", path.display()))?;
    file.write_all(&vec![1; 256 * BLOCK])?;
    file.sync_all()?;
    Ok(file)
}

fn table(times_us: &[Vec<f64>; 2]) -> Section {
    let columns = ["side", "mean us", "p50 us", "p99 us", "mean to native", "p50 to native"];
    let mut section = Section::new("Append 4 KiB + fdatasync, one thread", &columns);
    for (name, times) in ["native", "through the mount"].into_iter().zip(times_us) {
        section.row(vec![
            name.into(),
            Cell::Number(mean(times), 1),
            Cell::Number(percentile(times, 50), 1),
            Cell::Number(percentile(times, 99), 1),
            Cell::Number(mean(times) / mean(&times_us[0]), 2),
            Cell::Number(percentile(times, 50) / percentile(&times_us[0], 50), 2),
        ]);
    }
    section
}
