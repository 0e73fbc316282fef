//! `polymux-bench move-watermarks`: the fast tier is filled faster than it can be emptied.
//!
//! Method: the slow tier has space for everything, so that no write may fail for lack of space; the volume decides
//! by itself where bytes go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use polymux_fs::{Caller, MountOptions};
use polymux_types::{ByteSize, Errno};

use super::tiered::{Tiered, block_of_noise};
use crate::report::{Cell, Form, Report, Section};
use crate::throttled::{self, Devices, MEMORY_LIKE, NVME_LIKE};

const THREADS: u64 = 4;
const FILE_BYTES: u64 = 16 << 20;

/// How often the fill is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long a tier stays where it is before it counts as settled.
const SETTLED: Duration = Duration::from_secs(3);

/// Choices of `polymux-bench move-watermarks`.
#[derive(Args, Clone, Debug)]
pub struct WatermarkArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Mebibytes that the fast tier holds.
    #[arg(long, default_value_t = 512)]
    pub capacity_mib: u64,
    /// Mebibytes that are written.
    #[arg(long, default_value_t = 2048)]
    pub written_mib: u64,
    /// Seconds that the tier has to settle.
    #[arg(long, default_value_t = 60)]
    pub patience: u64,
}

struct Fill {
    used: u64,
    low_mark: u64,
    high_mark: u64,
    total: u64,
}

fn fill(tiered: &Tiered<'_>) -> Result<Fill> {
    let status = tiered.file_system().status()?;
    let tier = &status.tiers[0];
    let (used, total) = tier.space.map_or((0, 0), |space| (space.used, space.total));
    Ok(Fill { used, low_mark: tier.low_mark_bytes, high_mark: tier.high_mark_bytes, total })
}

/// Measures and prints.
///
/// # Errors
/// Any failure except a write that fails for lack of space.
pub fn run(arguments: &WatermarkArguments) -> Result<()> {
    if let Some(reason) = throttled::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let devices = Devices::make(&[MEMORY_LIKE, NVME_LIKE], (arguments.written_mib << 20) + (1 << 30))?;
    let capacity = ByteSize(arguments.capacity_mib << 20);
    let mut tiered = Tiered::make_with_capacity(&devices, MountOptions::default(), Some(capacity))?;
    tiered.begin_measuring()?;
    let begun = Instant::now();
    let no_space = AtomicU64::new(0);
    let used_max = AtomicU64::new(0);
    let files = (arguments.written_mib << 20) / FILE_BYTES;
    let next = AtomicU64::new(0);
    thread::scope(|scope| -> Result<()> {
        let writers: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| write_files(&tiered, (&next, files), &no_space))).collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            used_max.fetch_max(fill(&tiered)?.used, Ordering::Relaxed);
            thread::sleep(LOOK);
        }
        writers.into_iter().try_for_each(|writer| writer.join().expect("no writer panics"))
    })?;
    let written = begun.elapsed().as_secs_f64();
    let settled = settle(&tiered, Duration::from_secs(arguments.patience))?;
    let last = fill(&tiered)?;
    let percent = |used: u64| used as f64 * 100.0 / last.total.max(1) as f64;
    let is_between = last.used <= last.high_mark && last.used + 2 * FILE_BYTES >= last.low_mark;
    let mut section = Section::new("Filling the fast tier at full speed", &["what", "value"]);
    let no_space = no_space.into_inner();
    for (what, value, decimals) in [
        ("capacity of the fast tier, MB", last.total as f64 / 1e6, 0),
        ("written, MB", (files * FILE_BYTES) as f64 / 1e6, 0),
        ("written in each second, MB", (files * FILE_BYTES) as f64 / written / 1e6, 1),
        ("writes that found no room", no_space as f64, 0),
        ("most used, %", percent(used_max.into_inner()), 1),
        ("low mark, %", percent(last.low_mark), 1),
        ("used at the end, %", percent(last.used), 1),
        ("high mark, %", percent(last.high_mark), 1),
        ("seconds until it had settled", settled, 1),
    ] {
        section.row(vec![what.into(), Cell::Number(value, decimals)]);
    }
    section.row(vec!["met".into(), if no_space == 0 && is_between { "yes" } else { "no" }.into()]);
    tiered.end()?;
    let mut report = Report::new("move-watermarks", if arguments.json { Form::Json } else { Form::Tables });
    report.add(section);
    report.finish()
}

fn write_files(tiered: &Tiered<'_>, (next, files): (&AtomicU64, u64), no_space: &AtomicU64) -> Result<()> {
    let (caller, data) = (Caller::root(), block_of_noise());
    let file_system = tiered.file_system();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= files {
            return Ok(());
        }
        let (_, handle) = tiered.create(&format!("f{index}"))?;
        for offset in (0..FILE_BYTES).step_by(data.len()) {
            match super::tiered::write(file_system, handle, offset, &data) {
                Ok(_) => {}
                Err(error) if is_no_space(&error) => {
                    no_space.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        file_system.sync(&caller, handle, polymux_fs::SyncKind::Data)?;
        file_system.release(handle)?;
    }
}

fn is_no_space(error: &anyhow::Error) -> bool {
    error.downcast_ref::<polymux_fs::Error>().is_some_and(|error| error.errno() == Errno::ENOSPC)
}

/// Seconds until the fill has not changed for a while.
fn settle(tiered: &Tiered<'_>, patience: Duration) -> Result<f64> {
    let begun = Instant::now();
    let (mut last, mut since) = (fill(tiered)?.used, Instant::now());
    while since.elapsed() < SETTLED && begun.elapsed() < patience {
        thread::sleep(LOOK);
        let used = fill(tiered)?.used;
        if used != last {
            (last, since) = (used, Instant::now());
        }
    }
    Ok(since.duration_since(begun).as_secs_f64())
}
