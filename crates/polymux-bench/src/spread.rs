//! `polymux-bench spread`: files on all devices at once, through a plain mount, against the sum of the native rates of the devices
//! in the same run (docs/design/0018).
//!
//! Invariants:
//! * Each measurement is in a file of its own, whose head names the two compared sides. All of them measure both sides in the
//!   same run, on the same devices.
//! * Nothing of one measurement stays for the next one: each makes devices of its own and takes them down.
//! * All data that is read is verified, byte by byte.

mod chart;
mod convergence;
mod graph;
mod load;
mod mixed;
mod new_volume;
mod one_tier;
mod pairs;
mod policies;
mod random;
mod reads;
mod reservoir;
mod sequential;
mod series;
mod shared;
mod small;
mod stamped;
mod stand;
mod streams;
pub(crate) mod volume;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::report::{Form, Report};
use crate::suite::{self, ground::Kind};
use crate::throttled;

/// Measurements to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Writes and cold reads from the beginning to the end of files.
    Sequential,
    /// Random reads of one file, on devices with few requests per second.
    Random,
    /// How soon writers have all that the devices give, at first and when one of them changes.
    Convergence,
    /// Readers and writers of one file, against the fastest device alone.
    Shared,
    /// Random readers beside a stream that is written.
    Mixed,
    /// One large stream to a volume for which nothing was set.
    NewVolume,
    /// Many small files, by pairs against the policy `hot-cold`.
    Small,
    /// Files that one tier holds and carries, by pairs against the policy `hot-cold`.
    OneTier,
    /// Writers none of which saturates a device, with each policy that spreads files.
    Policies,
    /// Random walks over a graph larger than the fast tier and than memory, against a policy that promotes on each access.
    Graph,
}

impl Measure {
    fn run(self, arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
        match self {
            Self::Sequential => sequential::run(arguments, report),
            Self::Random => random::run(arguments, report),
            Self::Convergence => convergence::run(arguments, report),
            Self::Shared => shared::run(arguments, report),
            Self::Mixed => mixed::run(arguments, report),
            Self::NewVolume => new_volume::run(arguments, report),
            Self::Small => small::run(arguments, report),
            Self::OneTier => one_tier::run(arguments, report),
            Self::Policies => policies::run(arguments, report),
            Self::Graph => graph::run(arguments, report),
        }
    }
}

/// Choices of `polymux-bench spread`.
#[derive(Args, Clone, Debug)]
pub struct SpreadArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Measurements to run.
    #[arg(long, value_delimiter = ',', default_value = "sequential")]
    pub measure: Vec<Measure>,
    /// Devices: 2 or 3.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    pub devices: u8,
    /// Seconds for which the devices together would write, or for which something is measured.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Threads that write and read one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub threads: Vec<u16>,
    /// Only loads of `sequential` whose name contains this.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Limit reads per second in every measurement, as `random` does.
    #[arg(long)]
    pub request_limits: bool,
    /// Measure the tiers of each volume first, as `polymux tier measure` does, and let files be laid out for readers: in `sequential`, before they
    /// are read; in `random`, after they were read as they were written, and then they are read again.
    #[arg(long)]
    pub measured: bool,
    /// In `graph`, run movers at full speed: they yield to no request.
    #[arg(long)]
    pub movers_at_full_speed: bool,
    /// A line for the table `[options]` of the volumes of the policy that is measured, such as `movers = 0`; several times.
    #[arg(long = "option", value_name = "LINE")]
    pub options: Vec<String>,
    /// Interleaved pairs of `small` and `one-tier`.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..))]
    pub pairs: u16,
    /// Policy of the volume.
    #[arg(long, default_value = "spread")]
    pub policy: String,
    /// The program to measure; by default the one that was built beside this one.
    #[arg(long)]
    pub polymux: Option<PathBuf>,
    /// The program for policies that exist for comparison; by default `polymux-lab` beside the program to measure.
    #[arg(long)]
    pub lab: Option<PathBuf>,
    /// Directory for charts.
    #[arg(long)]
    pub svg: Option<PathBuf>,
}

impl SpreadArguments {
    fn kinds(&self) -> &'static [Kind] {
        if self.devices == 2 { &[Kind::Middle, Kind::Slow] } else { &[Kind::Fast, Kind::Middle, Kind::Slow] }
    }

    /// The program to measure a policy with.
    fn program_with(&self, policy: &str) -> Result<PathBuf> {
        suite::program_with(policy, &suite::program(self.polymux.as_deref())?, self.lab.as_deref())
    }
}

/// Measures and prints.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments) -> Result<()> {
    if let Some(reason) = throttled::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let mut report = Report::new("spread", if arguments.json { Form::Json } else { Form::Tables });
    for measure in &arguments.measure {
        measure.run(arguments, &mut report).with_context(|| format!("{measure:?}").to_lowercase())?;
    }
    report.finish()
}
