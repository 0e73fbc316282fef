//! `polymux-bench meta`: metadata operations through the embedded file system against native system calls on the same
//! device.
//!
//! Method: both sides work below one directory, in turns; which of them begins changes from round to round.

mod phase;
mod plain;
mod sharing;
mod synced;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::device::Device;
use crate::embedded::EmbeddedSide;
use crate::machine;
use crate::native::NativeSide;
use crate::report::{Form, Report};
use crate::scratch::Scratch;
use crate::side::{Durability, Operation, Side};
use crate::store;
use crate::volume::Volume;
use phase::{Rounds, Worker};

/// Where a command measures, and how it prints.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Directory on the device to measure; the command works in one of its own below it and removes that.
    #[arg(long)]
    pub directory: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

impl Place {
    /// The form asked for.
    #[must_use]
    pub fn form(&self) -> Form {
        if self.json { Form::Json } else { Form::Tables }
    }
}

/// Parts of `polymux-bench meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Operations without syncs.
    Plain,
    /// Operations with an fsync each.
    Synced,
    /// The throughput that threads without syncs lose to a thread that syncs.
    Sharing,
}

/// Choices of `polymux-bench meta`.
#[derive(Args, Clone, Debug)]
pub struct MetaArguments {
    /// Where to measure, and how to print.
    #[command(flatten)]
    pub place: Place,
    /// Parts to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Plain, Part::Synced, Part::Sharing])]
    pub parts: Vec<Part>,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    pub threads: Vec<usize>,
    /// Operations of each kind without fsync, all threads together.
    #[arg(long, default_value_t = 20_000)]
    pub operations: usize,
    /// Operations of each kind with fsync, of each thread in a round; few, because a shared disk changes its pace often.
    #[arg(long, default_value_t = 50)]
    pub synced_operations: usize,
    /// Rounds with fsync.
    #[arg(long, default_value_t = 15)]
    pub synced_rounds: usize,
    /// Numbers of threads with fsync.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    pub synced_threads: Vec<usize>,
    /// Rounds; a figure is the median of them.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of each half of the measurement of false sharing.
    #[arg(long, default_value_t = 1.0)]
    pub sharing_seconds: f64,
    /// Tiers of the volume, all on the device.
    #[arg(long, default_value_t = 2)]
    pub tiers: usize,
}

/// The two sides and the means of measuring them.
struct Contest<'a> {
    native: &'a dyn Side,
    polymux: &'a dyn Side,
    device: Option<Device>,
    arguments: &'a MetaArguments,
    scratch: &'a Scratch,
}

impl Contest<'_> {
    /// The sides in the order of a round.
    fn in_turn(&self, round: usize) -> [(Party, &dyn Side); 2] {
        let (native, polymux) = ((Party::Native, self.native), (Party::Polymux, self.polymux));
        if round.is_multiple_of(2) { [native, polymux] } else { [polymux, native] }
    }
}

/// Which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Native,
    Polymux,
}

impl Contest<'_> {
    /// Directories and names for `threads` threads on both sides.
    fn workers(&self, label: &str, threads: usize, operations: usize) -> Result<Both<Vec<Worker>>> {
        Ok(Both {
            native: phase::workers(self.native, label, threads, operations)?,
            polymux: phase::workers(self.polymux, label, threads, operations)?,
        })
    }

    /// Runs one kind of operation on both sides, one right after the other.
    fn round_of(
        &self,
        kind: Operation,
        durability: Durability,
        round: usize,
        workers: &mut Both<Vec<Worker>>,
        rounds: &mut Rounds,
    ) -> Result<()> {
        for (party, side) in self.in_turn(round) {
            let workers = match party {
                Party::Native => &mut workers.native,
                Party::Polymux => &mut workers.polymux,
            };
            rounds.push(kind, party, phase::run(side, workers, kind, durability, self.device.as_ref())?);
        }
        Ok(())
    }
}

/// A figure of both sides.
#[derive(Clone, Debug, Default)]
struct Both<T> {
    native: T,
    polymux: T,
}

/// Measures the parts asked for.
///
/// # Errors
/// Whatever either side reports.
pub fn run(arguments: &MetaArguments) -> Result<()> {
    let threads = || arguments.threads.iter().chain(&arguments.synced_threads);
    let rounds = arguments.rounds.min(arguments.synced_rounds);
    ensure!(rounds > 0 && threads().all(|&threads| threads > 0), "nothing to measure");
    let scratch = Scratch::new(&arguments.place.directory)?;
    let mut report = Report::new("meta", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let native = NativeSide::new(&scratch.directory("native")?)?;
    let volume = Volume::make(&scratch.directory("volume")?, arguments.tiers, store::MEMORY_BYTES)?;
    let mounted = volume.mount()?;
    let polymux = EmbeddedSide::new(&mounted);
    let device = Device::of(scratch.path())?;
    let contest = Contest { native: &native, polymux: &polymux, device, arguments, scratch: &scratch };
    for part in &arguments.parts {
        match part {
            Part::Plain => plain::measure(&contest, &mut report)?,
            Part::Synced => synced::measure(&contest, &mut report)?,
            Part::Sharing => sharing::measure(&contest, &mut report)?,
        }
    }
    mounted.unmount()?;
    report.finish()
}
