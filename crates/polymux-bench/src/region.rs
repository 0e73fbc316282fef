//! `polymux-bench region`: creation with fsync where the log of the metadata ends in byte-addressable memory; sweeps of the
//! memory's latency (AU10) and size (AU11).
//!
//! Method:
//! * The memory is a test double in a file system in memory. Nothing in it survives a power failure, so no figure of this
//!   command is one of Polymux on this machine: it is an estimate of the log with such memory.
//! * All volumes of a sweep are mounted at once and measured in turn, round by round, each beside the native file system
//!   in the same round; so a ratio compares neighbours in time.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use polymux_meta::{LogCounters, LogPlacement, RegionKind};
use polymux_tier::mapped::{Addressing, probe};

use crate::embedded::EmbeddedSide;
use crate::machine;
use crate::meta::Place;
use crate::native::NativeSide;
use crate::parallel;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::side::{Durability, PrivateDirectory, Side};
use crate::statistics::{Spread, count};
use crate::store::MEMORY_BYTES;
use crate::volume::{MountedVolume, Volume};

const KIBIBYTE: u64 = 1024;

/// Choices of `polymux-bench region`.
#[derive(Args, Clone, Debug)]
pub struct RegionArguments {
    /// Where to measure, and how to print.
    #[command(flatten)]
    pub place: Place,
    /// Directory in memory for the test doubles.
    #[arg(long, default_value = "/dev/shm")]
    pub memory: PathBuf,
    /// Latency of the memory in nanoseconds, for each line of 64 bytes, that the sweep of latencies adds to (A15).
    #[arg(long, default_value_t = 900)]
    pub base_delay_ns: u64,
    /// Added latencies of the memory in nanoseconds, for each line of 64 bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000])]
    pub delays_ns: Vec<u64>,
    /// Size of the memory in the sweep of latencies, in KiB.
    #[arg(long, default_value_t = 64 * KIBIBYTE)]
    pub delay_region_kib: u64,
    /// Sizes of the memory in KiB; the others are compared with the last one.
    #[arg(long, value_delimiter = ',', default_values_t = [512, 2 * KIBIBYTE, 8 * KIBIBYTE, 32 * KIBIBYTE, 128 * KIBIBYTE])]
    pub sizes_kib: Vec<u64>,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    pub threads: Vec<usize>,
    /// Files created in each round of the sweep of latencies, all threads together.
    #[arg(long, default_value_t = 16_000)]
    pub delay_operations: usize,
    /// Files created in each round of the sweep of sizes, all threads together.
    #[arg(long, default_value_t = 50_000)]
    pub size_operations: usize,
    /// Files created in each round by the native file system, and with the log on the device.
    #[arg(long, default_value_t = 1_000)]
    pub native_operations: usize,
    /// Rounds; a figure is the median of them.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
}

/// A volume of a sweep.
struct Candidate {
    label: String,
    volume: MountedVolume,
    operations: usize,
}

/// Result of one volume in one round.
struct Round {
    native: f64,
    polymux: f64,
    log: LogCounters,
    operations: f64,
}

/// Measures both sweeps.
///
/// # Errors
/// Whatever either side reports, and where `memory` is not in memory.
pub fn run(arguments: &RegionArguments) -> Result<()> {
    let (threads, rounds) = (&arguments.threads, arguments.rounds);
    ensure!(rounds > 0 && !threads.contains(&0), "nothing to measure");
    ensure!(!arguments.delays_ns.is_empty() && !arguments.sizes_kib.is_empty(), "nothing to compare");
    let found = probe(&arguments.memory)?;
    ensure!(found == Addressing::Memory, "{} is not in memory: no place for a test double", arguments.memory.display());
    let scratch = Scratch::new(&arguments.place.directory)?;
    let memory = Scratch::new(&arguments.memory)?;
    let mut report = Report::new("region", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let native = NativeSide::new(&scratch.directory("native")?)?;
    let place = |label: String, length_kib: u64, delay_ns: u64, operations: usize| {
        let placement = LogPlacement::Region {
            path: memory.path().join(&label),
            length_bytes: length_kib * KIBIBYTE,
            kind: RegionKind::TestDouble,
            write_back_delay_ns: delay_ns,
        };
        mount(&scratch, label, placement, operations)
    };
    let mut delays = Vec::new();
    for delay in &arguments.delays_ns {
        let all = arguments.base_delay_ns + delay;
        let label = format!("+{} us", count_of(*delay) / 1000.0);
        delays.push(place(label, arguments.delay_region_kib, all, arguments.delay_operations)?);
    }
    let title = format!("Latency of the memory, beyond {} ns for each line of 64 bytes", arguments.base_delay_ns);
    sweep(arguments, &title, &native, &delays, 0, &mut report)?;
    unmount(delays)?;
    let mut sizes =
        vec![mount(&scratch, "on the device".to_owned(), LogPlacement::Block, arguments.native_operations)?];
    for kib in &arguments.sizes_kib {
        sizes.push(place(format!("{kib} KiB"), *kib, 0, arguments.size_operations)?);
    }
    let base = sizes.len() - 1;
    sweep(arguments, "Size of the memory", &native, &sizes, base, &mut report)?;
    unmount(sizes)?;
    report.finish()
}

fn mount(scratch: &Scratch, label: String, placement: LogPlacement, operations: usize) -> Result<Candidate> {
    let directory: &Path = &scratch.directory(&label)?;
    let volume = Volume::make_with_log(directory, 1, MEMORY_BYTES, placement)?.mount()?;
    Ok(Candidate { label, volume, operations })
}

fn unmount(candidates: Vec<Candidate>) -> Result<()> {
    candidates.into_iter().try_for_each(|candidate| candidate.volume.unmount())
}

fn sweep(
    arguments: &RegionArguments,
    title: &str,
    native: &dyn Side,
    candidates: &[Candidate],
    base: usize,
    report: &mut Report,
) -> Result<()> {
    for &threads in &arguments.threads {
        let mut rounds: Vec<Vec<Round>> = candidates.iter().map(|_| Vec::new()).collect();
        for round in 0..arguments.rounds {
            for (candidate, own) in candidates.iter().zip(&mut rounds) {
                let label = format!("{title}-{}-{threads}-{round}", candidate.label);
                own.push(measure(native, candidate, &label, threads, arguments.native_operations, round)?);
            }
        }
        report.add(table(&format!("{title}: create + fsync, threads: {threads}"), candidates, &rounds, base));
    }
    Ok(())
}

fn measure(
    native: &dyn Side,
    candidate: &Candidate,
    label: &str,
    threads: usize,
    native_operations: usize,
    round: usize,
) -> Result<Round> {
    let polymux = EmbeddedSide::new(&candidate.volume);
    let mut log = (LogCounters::default(), LogCounters::default());
    let mut rates = [0.0; 2];
    for turn in [round % 2, (round + 1) % 2] {
        if turn == 0 {
            rates[turn] = create(native, label, threads, native_operations)?;
        } else {
            log.0 = polymux.log_counters().unwrap_or_default();
            rates[turn] = create(&polymux, label, threads, candidate.operations)?;
            log.1 = polymux.log_counters().unwrap_or_default();
        }
    }
    let log = LogCounters {
        flushes: log.1.flushes - log.0.flushes,
        appended_bytes: log.1.appended_bytes - log.0.appended_bytes,
        device_bytes: log.1.device_bytes - log.0.device_bytes,
        ..LogCounters::default()
    };
    Ok(Round { native: rates[0], polymux: rates[1], log, operations: count(candidate.operations) })
}

/// Creates files, each with an fsync. Returns how many in a second.
fn create(side: &dyn Side, label: &str, threads: usize, operations: usize) -> Result<f64> {
    let each = (operations / threads).max(1);
    let directories: Vec<Box<dyn PrivateDirectory>> = (0..threads)
        .map(|thread| side.private_directory(&format!("{label}-{thread}"), thread as u64 + 1))
        .collect::<Result<_>>()?;
    let names: Vec<String> = (0..each).map(|index| format!("file{index:08}")).collect();
    side.drain()?;
    side.sync()?;
    let (time, _) = parallel::run(directories, |_, directory| {
        names.iter().try_for_each(|name| directory.create(name, Durability::Synced))
    })?;
    Ok(count(each * threads) / time.as_secs_f64())
}

fn table(title: &str, candidates: &[Candidate], rounds: &[Vec<Round>], base: usize) -> Section {
    let columns = [
        "memory",
        "native, per second",
        "polymux, per second",
        "ratio",
        "spread",
        "change %",
        "spread of change",
        "log bytes",
        "log flushes",
        "spilled bytes",
    ];
    let mut section = Section::new(title, &columns);
    for (candidate, own) in candidates.iter().zip(rounds) {
        let spread = |figure: &dyn Fn(&Round) -> f64| Spread::of(&own.iter().map(figure).collect::<Vec<_>>());
        let ratio = spread(&|round| round.polymux / round.native);
        let changes = own.iter().zip(&rounds[base]).map(|(own, base)| (own.polymux / base.polymux - 1.0) * 100.0);
        let change = Spread::of(&changes.collect::<Vec<_>>());
        let each =
            |figure: fn(&LogCounters) -> u64| spread(&|round| count_of(figure(&round.log)) / round.operations).median;
        section.row(vec![
            candidate.label.clone().into(),
            Cell::Number(spread(&|round| round.native).median, 0),
            Cell::Number(spread(&|round| round.polymux).median, 0),
            Cell::Number(ratio.median, 1),
            ratio.range(1).into(),
            Cell::Number(change.median, 0),
            change.range(0).into(),
            Cell::Number(each(|log| log.appended_bytes), 0),
            Cell::Number(each(|log| log.flushes), 4),
            Cell::Number(each(|log| log.device_bytes), 0),
        ]);
    }
    section.note(format!(
        "TEST DOUBLE: the memory is a file system in memory, and nothing in it survives a power failure. `change` compares \
         with `{}` in the same round. Bytes and flushes are the log's, per operation; `spilled bytes` is what it wrote to \
         the device.",
        candidates[base].label
    ));
    section
}

fn count_of(number: u64) -> f64 {
    number as f64
}
