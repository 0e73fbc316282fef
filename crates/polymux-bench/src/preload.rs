//! `polymux-bench preload`: unmodified programs under the library of `polymux run`, against the same programs without it and on the file system below.
//!
//! Method:
//! * Sides take turns in pairs, and which one begins changes each time. A ratio is the estimate of the median of pairs, with its 95 % interval (Wilcoxon).
//! * A process that reads nothing of a volume: starts of `true`, and a build of small C files with two jobs.
//! * Programs that change files: `tar`, `git`, `make` and Redis, which syncs each request.
//! * RocksDB's own `db_bench` reads keys at random, of a database whose tables lie on two tiers; from memory, and after all of it was evicted. Without `db_bench` that part is
//!   left out, and says so.
//! * `fio`, SQLite and PostgreSQL overwrite files on two tiers, on a mount that does not collect writes.

mod builds;
mod changes;
mod database;
mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::leases::Io;
use crate::leases::volume::MountedVolume;
use crate::machine;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::{Interval, Spread};

const LIBRARY: &str = "libpolymux_preload.so";

/// Choices of `polymux-bench preload`.
#[derive(Args, Clone, Debug)]
pub struct PreloadArguments {
    /// Directory on the device to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// The `polymux` that makes and mounts the volume; the libraries lie beside it. By default the one that was built beside this program.
    #[arg(long, value_name = "FILE")]
    pub polymux: Option<PathBuf>,
    /// How the mount shares reads and writes with the kernel.
    #[arg(long, value_enum, default_value_t = Io::WriteBack)]
    pub io: Io,
    /// Pairs of each comparison.
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
    /// Starts of a program in one turn.
    #[arg(long, default_value_t = 1000)]
    pub starts: usize,
    /// Keys of the database.
    #[arg(long, default_value_t = 2_000_000)]
    pub keys: u64,
    /// Keys that each of two threads reads in one turn.
    #[arg(long, default_value_t = 100_000)]
    pub reads: u64,
    /// Only one part.
    #[arg(long, value_enum)]
    pub only: Option<Part>,
}

/// Parts of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Processes that read nothing of a volume.
    Bystanders,
    /// Programs that change files of a volume.
    Programs,
    /// RocksDB.
    Database,
    /// Programs that overwrite files, which needs `--io passthrough`.
    Changes,
}

/// Has a program run under the library.
fn preload(command: &mut Command, library: &Path) {
    command.env("LD_PRELOAD", library);
}

/// Seconds in which a program ends well; its output goes nowhere.
fn seconds_of(command: &mut Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().with_context(|| format!("{command:?} does not start"))?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "{command:?}: {status}");
    Ok(seconds)
}

/// The output of a program that ends well.
fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?} does not start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {}", output.status, said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Times of sides that take turns: `measure` gets the place of a side, and the sides begin in another order each time.
fn in_turns<const SIDES: usize>(turns: usize, measure: impl Fn(usize) -> Result<f64>) -> Result<[Vec<f64>; SIDES]> {
    let mut times = [const { Vec::new() }; SIDES];
    for turn in 0..turns {
        for place in 0..SIDES {
            let place = (place + turn) % SIDES;
            times[place].push(measure(place)?);
        }
    }
    Ok(times)
}

/// A ratio with its interval.
fn ratio(ours: &[f64], others: &[f64]) -> Cell {
    let Interval { low, middle, high } = Interval::of_ratios_by_rank(ours, others);
    format!("{middle:.3} ({low:.3} to {high:.3})").into()
}

/// Whether a program is here. A part that needs one that is not says so.
fn is_installed(program: &str, section: &mut Section) -> bool {
    let mut command = Command::new(program);
    let is_there = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_there {
        section.note(format!("skipped: there is no {program} here"));
    }
    is_there
}

/// Places of the sides where there are three.
const NATIVE: usize = 0;
const MOUNT: usize = 1;
const UNDER_LIBRARY: usize = 2;
const SIDES: usize = 3;

/// Columns of a table of all three sides.
fn side_columns(first: &'static str) -> [&'static str; 7] {
    [first, "native us", "mount us", "library us", "library to mount", "library to native", "mount to native"]
}

fn side_row(name: &str, times: &[Vec<f64>; SIDES]) -> Vec<Cell> {
    let [native, mount, library] = times;
    let mut row: Vec<Cell> = vec![name.into()];
    row.extend(times.iter().map(|times| Cell::Number(Spread::of(times).median, 2)));
    row.extend([ratio(library, mount), ratio(library, native), ratio(mount, native)]);
    row
}

/// Columns of a table of programs without the library and with it.
fn pair_columns(first: &'static str) -> [&'static str; 4] {
    [first, "without s", "with s", "with to without"]
}

fn pair_row(name: &str, [without, with]: &[Vec<f64>; 2]) -> Vec<Cell> {
    let median = |times: &[f64]| Cell::Number(Spread::of(times).median, 3);
    vec![name.into(), median(without), median(with), ratio(with, without)]
}

/// Processes that read nothing of a volume.
fn bystanders(scratch: &Scratch, library: &Path, arguments: &PreloadArguments) -> Result<Section> {
    let title = "Processes that read nothing of a volume, without and with the library";
    let mut section = Section::new(title, &pair_columns("what"));
    let project = builds::make_project(&scratch.directory("project")?)?;
    let starts = format!("n=0; while [ $n -lt {} ]; do /bin/true; n=$((n+1)); done", arguments.starts);
    let run = |place: usize, mut command: Command| {
        if place == 1 {
            preload(&mut command, library);
        }
        seconds_of(&mut command)
    };
    let of_starts = in_turns::<2>(arguments.pairs, |place| {
        let mut command = Command::new("sh");
        command.args(["-c", &starts]);
        run(place, command)
    })?;
    let of_builds = in_turns::<2>(arguments.pairs, |place| run(place, builds::build(&project)?))?;
    section.row(pair_row(&format!("{} starts of /bin/true", arguments.starts), &of_starts));
    section.row(pair_row("make -j2 of a C project", &of_builds));
    Ok(section)
}

/// Measures all of it.
///
/// # Errors
/// Whatever a program or the volume reports.
pub fn run(arguments: &PreloadArguments) -> Result<()> {
    if arguments.pairs < 2 || arguments.starts == 0 || arguments.keys < 10_000 || arguments.reads == 0 {
        bail!("two pairs, one start, 10,000 keys and one read are the least");
    }
    let scratch = Scratch::new(&arguments.place.directory)?;
    let beside = std::env::current_exe()?.with_file_name("polymux");
    let program = arguments.polymux.clone().unwrap_or(beside);
    let library = program.with_file_name(LIBRARY).canonicalize().with_context(|| format!("{LIBRARY} is not built"))?;
    let mut report = Report::new("preload", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    if arguments.only.is_none_or(|part| part == Part::Bystanders) {
        report.add(bystanders(&scratch, &library, arguments)?);
    }
    let volume = MountedVolume::mount(&program, &scratch, arguments.io)?;
    if arguments.only.is_none_or(|part| part == Part::Programs) {
        report.add(programs::measure(&scratch, &volume, &library, arguments)?);
    }
    if arguments.only.is_none_or(|part| part == Part::Database) {
        report.add(database::measure(&scratch, &volume, &library, arguments)?);
    }
    match (arguments.only, arguments.io) {
        (None | Some(Part::Changes), Io::Passthrough) => {
            report.add(changes::measure(&scratch, &volume, &library, arguments)?);
        }
        (Some(Part::Changes), Io::WriteBack) => bail!("a file that changes has leases with `--io passthrough` alone"),
        _ => {}
    }
    volume.unmount()?;
    report.finish()
}
