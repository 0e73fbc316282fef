//! `polymux-bench tiering`: programs whose data is hot in a part, on an SSD and a disk, against native file systems and mergerfs.
//!
//! Method:
//! * The SSD holds a part of the data; the rates with all of it on an SSD, and with all of it on the disk, are measured in the same run.
//! * Data is written without limits and durably before anything is measured. Caches are dropped, so that reads come from devices.
//! * Everything that a workload does is the same on every side, with the same random numbers.

mod chart;
mod disturbed;
mod hot_set;
mod large_set;
mod one_reader;
mod pgbench;
mod rocksdb;
mod sides;
mod subject;
mod synced;
mod two_ssds;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use self::sides::SideKind;
use crate::report::{Form, Report};
use crate::suite::sides::polymux::word;
use crate::{suite, throttled};

/// Measurements to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Random reads most of which go to a sixth of the files, which lie on the disk at first; then to another sixth.
    HotSet,
    /// The hot set beside a program that reads everything once, and beside one that writes more than the SSD holds.
    Disturbed,
    /// Random reads of a set that is larger than the SSD.
    LargeSet,
    /// One reader of a hundred reads a second, beside moves and without them; of Polymux alone.
    OneReader,
    /// Random reads of a set that fits on the faster of two SSDs, which has more to read than it can serve; of Polymux alone.
    TwoSsds,
    /// Reads and writes of RocksDB in key ranges of different heat, twice as much data as the SSD holds, for 16 seconds in each round.
    Rocksdb,
    /// Mail, SQLite and Redis, which wait for small writes, on a pool whose SSD is full of cold files.
    Synced,
    /// Transactions of PostgreSQL on more data than the SSD holds, for 16 seconds in each round.
    Pgbench,
}

/// How the files of `hot-set` are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Reader {
    /// Through the mount.
    #[default]
    Mount,
    /// By a lease where there is one (docs/LEASES.md); volumes need the option `leases = "on"`.
    Lease,
}

/// Choices of `polymux-bench tiering`.
#[derive(Args, Clone, Debug)]
pub struct TieringArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Measurements to run.
    #[arg(long, value_delimiter = ',', default_value = "hot-set")]
    pub measure: Vec<Measure>,
    /// Sides to measure on; `disk` and `ssd` are needed for every comparison.
    #[arg(long, value_delimiter = ',', default_values = ["disk", "ssd", "mergerfs", "polymux", "polymux-passthrough", "polymux-heard"])]
    pub sides: Vec<SideKind>,
    /// Rounds of eight seconds for which one part of the files is hot.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Parts of the files that are hot one after the other, in `hot-set`.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub phases: u8,
    /// Threads that read, or clients of the database.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub readers: u16,
    /// How the files of `hot-set` are read.
    #[arg(long, value_enum, default_value_t)]
    pub reader: Reader,
    /// Programs of `synced`, by how their names begin; all without it.
    #[arg(long = "program", value_name = "NAME,...", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// A line for the table `[options]` of the volumes, such as `movers = 0`; several times.
    #[arg(long = "option", value_name = "LINE")]
    pub options: Vec<String>,
    /// Policy of the volumes; by default the one that `polymux create` chooses.
    #[arg(long, default_value = "")]
    pub policy: String,
    /// Directory for a chart of the hot set.
    #[arg(long)]
    pub svg: Option<PathBuf>,
    /// The program to measure; by default the one that was built beside this one.
    #[arg(long)]
    pub polymux: Option<PathBuf>,
    /// The program for policies that exist for comparison; by default `polymux-lab` beside the program to measure.
    #[arg(long)]
    pub lab: Option<PathBuf>,
}

impl TieringArguments {
    fn program(&self) -> Result<PathBuf> {
        suite::program_with(&self.policy, &suite::program(self.polymux.as_deref())?, self.lab.as_deref())
    }
}

/// Rates one after the other, for people.
fn in_words(rates: &[f64]) -> String {
    rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ")
}

/// Measures and prints.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments) -> Result<()> {
    let is_simulated = arguments.sides.iter().all(|side| *side == SideKind::Simulated);
    if let Some(reason) = throttled::reason_to_skip().filter(|_| !is_simulated) {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    for (side, only) in [(SideKind::LogOnSsd, Measure::Pgbench), (SideKind::ByHand, Measure::HotSet)] {
        let is_for_another =
            arguments.sides.contains(&side) && arguments.measure.iter().any(|measure| *measure != only);
        ensure!(!is_for_another, "the side `{}` is for the measurement `{}` alone", word(side), word(only));
    }
    let mut report = Report::new("tiering", if arguments.json { Form::Json } else { Form::Tables });
    for measure in &arguments.measure {
        match measure {
            Measure::HotSet => hot_set::run(arguments, &mut report).context("hot-set")?,
            Measure::Disturbed => disturbed::run(arguments, &mut report).context("disturbed")?,
            Measure::LargeSet => large_set::run(arguments, &mut report).context("large-set")?,
            Measure::OneReader => one_reader::run(arguments, &mut report).context("one-reader")?,
            Measure::TwoSsds => two_ssds::run(arguments, &mut report).context("two-ssds")?,
            Measure::Rocksdb => rocksdb::run(arguments, &mut report).context("rocksdb")?,
            Measure::Synced => synced::run(arguments, &mut report).context("synced")?,
            Measure::Pgbench => pgbench::run(arguments, &mut report).context("pgbench")?,
        }
    }
    report.finish()
}
