//! `polymux bench`: the throughput of a volume's tiers alone, the throughput expected through the mount, and the throughput
//! measured there (docs/design/0019).
//!
//! Invariants:
//! * The tiers are measured first, in the same run and with nothing else of ours at work; that is kept as by `tier measure`.
//! * One file is written in the directory that is measured, so that its policy, rules and pins apply. It takes an eighth of the
//!   free space at most, has one name, and is removed at the end, also after an error or Ctrl-C. The file of a killed run is
//!   used by the next one in that directory, and removed with it.
//! * Each load is repeated; the median and the extremes are reported. Data read from memory after all, and the utilization of
//!   the processors, are reported too, so that one is not taken for the other.

mod expectation;
mod load;
mod report;
mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail};
use polymux_types::ByteSize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{BenchArguments, OutputFormat, output_format};
use crate::client;
use crate::mount_table::{MountTable, is_polymux};
use crate::output;
use crate::progress::StepLine;
use crate::protocol::{Answer, Request, StatusReport};
use crate::status;
use crate::tier_measure;
use polymux_config::registry::Registry;

use self::expectation::{Expectation, TierSpeeds};
use self::load::{Bench, BenchFile, Load};
use self::report::{BenchReport, LoadReport};

/// How often each load is repeated.
const REPETITIONS: usize = 3;

/// How long the tiers together are busy with the file of one repetition.
const FILE_SECONDS: u64 = 3;

/// Largest file where the command line gives no size.
const FILE_BYTES_MAX: u64 = 2 << 30;
/// Smallest file.
const FILE_BYTES_MIN: u64 = 16 << 20;
/// The file takes at most the free space divided by this.
const ROOM_DIVISOR: u64 = 8;

/// Measures a volume and prints the results.
pub fn run(registry: &Registry, arguments: &BenchArguments) -> Result<()> {
    // As long as `tier measure` does: it is put on record, too.
    let tier_time = tier_measure::time_of(arguments.seconds)?;
    let (name, directory) = place(registry, &arguments.target)?;
    let status =
        status::status_of(registry, &name)?.ok_or_else(|| anyhow!("volume `{name}` is not mounted: mount it first"))?;
    let room = file_bytes_max(&status, arguments.size.map(|size| size.0.0.0))?;
    let tiers = tier_measure::ask_daemon(registry, &name, &[], tier_time)?;
    let speeds = TierSpeeds::of(&tiers, &status.tiers);
    let sum = speeds.sum(Load::Write).unwrap_or(FILE_BYTES_MIN);
    let file_bytes = room.min(sum.saturating_mul(FILE_SECONDS)).max(FILE_BYTES_MIN) >> 20 << 20;
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancelled)).context("cannot watch signals")?;
    }
    let bench = Bench { registry, volume: &name, pid: status.pid, file_bytes, cancelled: &cancelled };
    let (loads, policy) = repeat(&bench, &directory, &speeds)?;
    let path = directory.display().to_string();
    let report = BenchReport { volume: name.clone(), path, policy, file_bytes, tiers, loads };
    match output_format(arguments.json) {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => output::line(&report.render()),
    }
}

/// The volume, and the directory of it, that a name, a mount point or a path means.
fn place(registry: &Registry, target: &str) -> Result<(String, PathBuf)> {
    if let Ok(path) = Path::new(target).canonicalize()
        && let Some(mount) = MountTable::read()?.containing(&path).filter(|mount| is_polymux(mount))
    {
        if !path.is_dir() {
            bail!("{target} is not a directory: name one in which a file may be made for a while");
        }
        return Ok((mount.source.clone(), path));
    }
    let name = client::volume_name(registry, target)?;
    match status::status_of(registry, &name)? {
        Some(status) => Ok((name, PathBuf::from(status.mount_point))),
        None => bail!("volume `{name}` is not mounted: mount it first"),
    }
}

/// How large the file may be.
fn file_bytes_max(status: &StatusReport, wanted: Option<u64>) -> Result<u64> {
    if status.read_only {
        bail!("volume `{}` is mounted read-only: nothing can be written to measure it", status.name);
    }
    let available = status.space.as_ref().map_or(0, |space| space.available);
    let bytes = wanted.unwrap_or(FILE_BYTES_MAX).min(available / ROOM_DIVISOR);
    if bytes < FILE_BYTES_MIN {
        bail!(
            "too little room to measure: the file would be of {}, and less than {} says nothing ({} are left on the volume, \
             of which an eighth is used at most)",
            ByteSize(bytes),
            ByteSize(FILE_BYTES_MIN),
            ByteSize(available)
        );
    }
    Ok(bytes)
}

/// Repeats each load on the volume. Returns the results and the policy of the file.
fn repeat(bench: &Bench<'_>, directory: &Path, speeds: &TierSpeeds) -> Result<(Vec<LoadReport>, String)> {
    let mut line = StepLine::start("bench");
    let mut runs: Vec<(Load, load::Run, Expectation)> = Vec::new();
    let mut policy = String::new();
    for repetition in 0..REPETITIONS {
        let mut file = BenchFile::make(directory)?;
        for load in Load::ALL {
            line.show((repetition, load), |_| format!("{}, {} of {REPETITIONS}", load.words(), repetition + 1));
            let run = bench.run(&mut file, load)?;
            let layout = bench.layout(&file)?;
            policy.clone_from(&layout.policy);
            runs.push((load, run, speeds.expectation(load, &layout)));
        }
        file.remove()?;
    }
    line.finish();
    let of_load = |load: Load| -> Vec<(load::Run, Expectation)> {
        runs.iter().filter(|(of, ..)| *of == load).map(|(_, run, expectation)| (*run, expectation.clone())).collect()
    };
    Ok((Load::ALL.iter().map(|load| LoadReport::of(*load, &of_load(*load))).collect(), policy))
}

/// Asks the daemon of a volume for something that it has to have an answer to.
fn ask(registry: &Registry, volume: &str, request: &Request) -> Result<Answer> {
    client::ask(registry, volume, request)?
        .ok_or_else(|| anyhow!("the daemon of volume `{volume}` is not there any more"))
}
