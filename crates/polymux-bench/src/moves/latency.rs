//! `polymux-bench move-latency`: the latency that a move adds to an application, on a device that serves one request after
//! the other.
//!
//! Method: as in `move-interference` the application asks for half of the device's throughput, in an open loop, and
//! the tier beside it takes no time. The figures with a move are compared with one without, measured in the same run; the
//! move lasts longer than the application.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use polymux_fs::{
    BackgroundThreads, Caller, FileSystem, JobState, MOVERS_DEFAULT, MountOptions, MoverPoliteness, NewVolume, Parts,
    PolicyKind, TierMember, TierPresence,
};
use polymux_sim::{MemoryStore, MemoryTier};
use polymux_types::{Ino, SystemClock, VolumeId};

use super::interference::{TWO_REQUESTS_MS, shares_of};
use super::open_loop::{self, Kind, Load, REQUEST_BYTES, Served};
use super::single_server::{Service, SingleServerTier};
use super::tiered::{OPEN, write};
use crate::report::{Cell, Form, Report, Section};

const DEVICES: [Service; 2] = [
    Service { name: "nvme", bytes_per_second: 120_000_000, request_min: Duration::ZERO },
    Service { name: "hdd", bytes_per_second: 27_000_000, request_min: Duration::from_millis(5) },
];

/// Requests in the file of the application: no cache, so a place may come again.
const REQUESTS_IN_FILE: usize = 1 << 10;

/// Choices of `polymux-bench move-latency`.
#[derive(Args, Clone, Debug)]
pub struct LatencyArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Seconds of each figure.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

/// Measures and prints.
///
/// # Errors
/// Whatever fails on the way; a figure that misses its target is none.
pub fn run(arguments: &LatencyArguments) -> Result<()> {
    let mut report = Report::new("move-latency", if arguments.json { Form::Json } else { Form::Tables });
    for device in DEVICES {
        for kind in [Kind::Reads, Kind::Writes] {
            report.add(table(device, kind, Duration::from_secs(arguments.seconds))?);
        }
    }
    report.finish()
}

fn table(device: Service, kind: Kind, duration: Duration) -> Result<Section> {
    let own = device.time_of(REQUEST_BYTES).as_secs_f64();
    let per_second = 0.5 / own;
    let course = if kind == Kind::Reads { "from" } else { "to" };
    let title =
        format!("{kind:?} of 64 KiB on {}, {per_second:.0} in each second, {} s", device.name, duration.as_secs());
    let columns = ["beside", "MB/s", "to without", "at least", "p50 ms", "p99 ms", "p99 at most", "moved MB/s", "met"];
    let mut section = Section::new(title, &columns);
    let (without, _) = measure(device, kind, None, per_second, duration)?;
    section.row(row("nothing".to_owned(), &without, None));
    for politeness in [MoverPoliteness::FullSpeed, MoverPoliteness::Polite] {
        let (served, moved) = measure(device, kind, Some(politeness), per_second, duration)?;
        let name = format!("a move {course} it, {politeness:?}").to_lowercase();
        section.row(row(name, &served, Some((&without, politeness, moved))));
    }
    Ok(section)
}

fn row(name: String, served: &Served, beside: Option<(&Served, MoverPoliteness, f64)>) -> Vec<Cell> {
    let ratio = beside.map(|(without, ..)| served.bytes_per_second / without.bytes_per_second);
    let least = beside.map(|(_, politeness, _)| shares_of(politeness));
    let p99_max = beside
        .filter(|(_, politeness, _)| *politeness == MoverPoliteness::FullSpeed)
        .map(|(without, ..)| without.p99_ms + TWO_REQUESTS_MS);
    let met = ratio.zip(least).map(|(ratio, least)| ratio >= least && p99_max.is_none_or(|most| served.p99_ms <= most));
    vec![
        name.into(),
        Cell::Number(served.bytes_per_second / 1e6, 1),
        Cell::optional(ratio, 3),
        Cell::optional(least, 2),
        Cell::Number(served.p50_ms, 1),
        Cell::Number(served.p99_ms, 1),
        Cell::optional(p99_max, 1),
        Cell::optional(beside.map(|(.., moved)| moved / 1e6), 1),
        met.map_or(Cell::Empty, |met| if met { "yes" } else { "no" }.into()),
    ]
}

/// A volume over a tier in memory and the device.
fn mount(device: Service, bytes: u64) -> Result<Arc<FileSystem>> {
    let quick = Arc::new(MemoryTier::new("quick", bytes));
    let slow = Arc::new(SingleServerTier::new(Arc::new(MemoryTier::new(device.name, bytes)), device));
    let parts = Parts {
        name: "bench".to_owned(),
        tiers: vec![
            TierMember::new("quick".to_owned(), TierPresence::Present(quick)),
            TierMember::new(device.name.to_owned(), TierPresence::Present(slow)),
        ],
        store: Arc::new(MemoryStore::new()),
        metadata_tier: None,
        clock: Arc::new(SystemClock::new()),
        seed: 1,
    };
    let new = NewVolume { id: VolumeId::from_random([5; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
    FileSystem::format(&parts, &new)?;
    Ok(Arc::new(FileSystem::mount(parts, MountOptions::default())?))
}

fn make_file(fs: &FileSystem, name: &str, bytes: u64) -> Result<Ino> {
    let (attributes, handle) = fs.create(&Caller::root(), Ino::ROOT, name.as_bytes(), 0o644, OPEN)?;
    let data = vec![7; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        offset += write(fs, handle, offset, &data)? as u64;
    }
    fs.sync(&Caller::root(), handle, polymux_fs::SyncKind::All)?;
    fs.release(handle)?;
    Ok(attributes.ino)
}

fn move_and_wait(fs: &FileSystem, ino: Ino, tier: &str) -> Result<()> {
    let job = fs.migrate(ino, tier, None)?;
    while !fs.job(job).is_none_or(|report| report.state.is_final()) {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The service that the application gets, and the bytes per second that were moved meanwhile.
fn measure(
    device: Service,
    kind: Kind,
    politeness: Option<MoverPoliteness>,
    per_second: f64,
    duration: Duration,
) -> Result<(Served, f64)> {
    // The application has half of the device; a mover that took all the rest would not be through.
    let bytes_to_move = device.bytes_per_second * duration.as_secs() * 7 / 10;
    let fs = mount(device, 2 * bytes_to_move + (1 << 30))?;
    let threads = BackgroundThreads::start(&fs, MOVERS_DEFAULT)?;
    fs.set_steering(PolicyKind::Static, &[])?;
    let used = make_file(&fs, "used", (REQUESTS_IN_FILE * REQUEST_BYTES) as u64)?;
    move_and_wait(&fs, used, device.name)?;
    let moved = if politeness.is_some() { Some(make_file(&fs, "moved", bytes_to_move)?) } else { None };
    let target = match (moved, kind) {
        (Some(ino), Kind::Reads) => {
            move_and_wait(&fs, ino, device.name)?;
            "quick"
        }
        _ => device.name,
    };
    fs.set_politeness(politeness.unwrap_or_default());
    let handle = fs.open(&Caller::root(), used, OPEN)?;
    let load = Load { kind, handle, per_second, duration, requests_in_file: REQUESTS_IN_FILE };
    let bytes_moved = || -> Result<u64> {
        let counters = fs.status()?.counters;
        Ok(counters.iter().find(|(name, _)| *name == "bytes_moved").map_or(0, |(_, count)| *count))
    };
    let before = bytes_moved()?;
    let is_stopped = AtomicBool::new(false);
    let served = thread::scope(|scope| -> Result<Served> {
        let application = scope.spawn(|| open_loop::run(&fs, &load, &is_stopped));
        // The application is there first, as it is in life.
        thread::sleep(Duration::from_millis(500));
        let job = moved.map(|ino| fs.migrate(ino, target, None)).transpose()?;
        threads.wake();
        let served = application.join().expect("the application does not panic")?;
        if let Some(job) = job {
            let state = fs.job(job).map(|report| report.state);
            ensure!(!state.as_ref().is_none_or(JobState::is_final), "the move ended before the application: {state:?}");
            fs.cancel_job(job);
        }
        Ok(served)
    })?;
    let rate = (bytes_moved()? - before) as f64 / duration.as_secs_f64();
    threads.stop()?;
    fs.release(handle)?;
    Ok((served, rate))
}
