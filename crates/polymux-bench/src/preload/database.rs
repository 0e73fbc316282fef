//! A database of RocksDB whose tables lie on two tiers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::Advice;

use super::{
    MOUNT, NATIVE, PreloadArguments, SIDES, UNDER_LIBRARY, in_turns, is_installed, output_of, preload, seconds_of,
    side_columns, side_row,
};
use crate::leases::volume::MountedVolume;
use crate::report::Section;
use crate::scratch::Scratch;
use crate::suite::workloads::rocksdb::{PROGRAM, figure_of};

/// Turns that warm memory up before warm reads are measured.
const WARM_UP: usize = 1;

/// Where the database of each side is.
struct Databases {
    native: PathBuf,
    mounted: PathBuf,
    library: PathBuf,
    keys: u64,
    reads: u64,
}

impl Databases {
    fn command(&self, side: usize, benchmarks: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        let directory = if side == NATIVE { &self.native } else { &self.mounted };
        command.arg(format!("--benchmarks={benchmarks}")).arg(format!("--db={}", directory.display()));
        command.arg(format!("--num={}", self.keys)).args(["--value_size=400", "--compression_type=none", "--seed=1"]);
        if side == UNDER_LIBRARY {
            preload(&mut command, &self.library);
        }
        command
    }

    fn fill(&self, side: usize) -> Result<()> {
        output_of(self.command(side, "fillrandom,compact").stderr(Stdio::null()))?;
        Ok(())
    }

    /// Reads by two threads.
    fn reading(&self, side: usize) -> Command {
        let mut command = self.command(side, "readrandom");
        command.args(["--use_existing_db=1", "--threads=2"]).arg(format!("--reads={}", self.reads));
        command.stderr(Stdio::null());
        command
    }

    /// Microseconds of a read.
    fn read(&self, side: usize) -> Result<f64> {
        let rate = figure_of("readrandom", "ops/sec", &output_of(&mut self.reading(side))?)?;
        Ok(1e6 / rate)
    }

    fn evict(&self, volume: &MountedVolume) -> Result<()> {
        let files = [&self.native, &self.mounted].map(files_of);
        let files = files.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().chain(volume.objects()?);
        for path in files {
            rustix::fs::fadvise(&File::open(path)?, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

fn files_of(directory: &PathBuf) -> Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}

/// Every other piece of each table on the second tier.
fn split_tables(volume: &MountedVolume, directory: &PathBuf) -> Result<()> {
    for path in files_of(directory)? {
        if path.extension().is_some_and(|extension| extension == "sst") {
            volume.split(&path, fs::metadata(&path)?.len())?;
        }
    }
    Ok(())
}

/// Measures reads of keys.
pub(super) fn measure(
    scratch: &Scratch,
    volume: &MountedVolume,
    library: &Path,
    arguments: &PreloadArguments,
) -> Result<Section> {
    let title = "db_bench readrandom of RocksDB, two threads, tables on two tiers";
    let mut section = Section::new(title, &side_columns("reads"));
    if !is_installed(PROGRAM, &mut section) {
        return Ok(section);
    }
    let databases = Databases {
        native: scratch.directory("native-base")?,
        mounted: volume.mount_point().join("base"),
        library: library.to_owned(),
        keys: arguments.keys,
        reads: arguments.reads,
    };
    [NATIVE, MOUNT].into_iter().try_for_each(|side| databases.fill(side))?;
    split_tables(volume, &databases.mounted)?;
    let cold = in_turns::<SIDES>(arguments.pairs, |side| {
        databases.evict(volume)?;
        databases.read(side)
    })?;
    in_turns::<SIDES>(WARM_UP, |side| databases.read(side))?;
    let warm = in_turns::<SIDES>(arguments.pairs, |side| databases.read(side))?;
    for (name, times) in [("after an eviction", cold), ("from memory", warm)] {
        section.row(side_row(name, &times));
    }
    section.note(how_it_was_read(&databases)?);
    Ok(section)
}

/// The library's report on one more turn from memory.
fn how_it_was_read(databases: &Databases) -> Result<String> {
    let report = databases.mounted.with_file_name("report");
    seconds_of(databases.reading(UNDER_LIBRARY).env("POLYMUX_REPORT", &report))?;
    let text = fs::read_to_string(&report).context("the library wrote no report")?;
    let line = text.lines().next().unwrap_or("no file was read past the mount");
    Ok(line.rsplit('/').next().unwrap_or(line).to_owned())
}
