//! `polymux-bench move-interference`: the cost of a move to an application that uses half of a device.
//!
//! Method: the application runs on a tier beside a tier that is much faster, so that its device limits the
//! move too. Each figure with a move is compared with one without, measured in the same run; both begin with
//! nothing in memory, and the move lasts longer than the application.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use polymux_fs::{Caller, MountOptions, MoverPoliteness, PolicyKind};
use polymux_types::Ino;

use super::open_loop::{self, Kind, Load, REQUEST_BYTES, Served};
use super::tiered::{OPEN, Tiered};
use crate::report::{Cell, Form, Report, Section};
use crate::throttled::{self, DISK_LIKE, Devices, MEMORY_LIKE, NVME_LIKE, Profile, Slowness};

/// Longest service of two requests of a mover, in milliseconds (DESIGN section 8).
pub(super) const TWO_REQUESTS_MS: f64 = 20.0;

/// Least share of its throughput that an application keeps beside a move.
pub(super) fn shares_of(politeness: MoverPoliteness) -> f64 {
    match politeness {
        MoverPoliteness::FullSpeed => 0.85,
        MoverPoliteness::Polite => 0.95,
    }
}

/// Choices of `polymux-bench move-interference`.
#[derive(Args, Clone, Debug)]
pub struct InterferenceArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Seconds of each figure instead of 60.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Fifteen seconds for each figure.
    #[arg(long)]
    pub quick: bool,
    /// The device that the application uses: nvme or hdd.
    #[arg(long, default_value = "nvme")]
    pub device: String,
    /// How that device is made slow.
    #[arg(long, value_enum, default_value_t)]
    pub slowness: Slowness,
}

/// Where the move goes, seen from the application's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    From,
    To,
}

/// One figure: the load of the application, and the move beside it.
struct Case {
    kind: Kind,
    course: Option<Course>,
    politeness: MoverPoliteness,
}

struct Setting<'a> {
    devices: &'a Devices,
    profile: Profile,
    duration: Duration,
    per_second: f64,
    requests_in_file: usize,
    bytes_to_move: u64,
}

/// Measures and prints.
///
/// # Errors
/// Whatever fails on the way; a figure that misses its target is none.
pub fn run(arguments: &InterferenceArguments) -> Result<()> {
    if let Some(reason) = throttled::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let seconds = if arguments.quick { 15 } else { arguments.seconds };
    let profile = match arguments.device.as_str() {
        "nvme" => NVME_LIKE,
        "hdd" => DISK_LIKE,
        other => anyhow::bail!("no such device: {other}; there are nvme and hdd"),
    };
    let bytes_per_second = profile.limits.read_bytes.expect("the profile has limits");
    let by_bytes = bytes_per_second / REQUEST_BYTES as u64;
    let per_second = by_bytes.min(profile.limits.reads.unwrap_or(u64::MAX)) as f64 / 2.0;
    let requests = usize::try_from(seconds * by_bytes / 2)?.next_power_of_two();
    // The application takes half; a mover that took all the rest would not be through.
    let bytes_to_move = bytes_per_second * seconds * 3 / 4;
    let bytes = (requests * REQUEST_BYTES) as u64 + 2 * bytes_to_move + (1 << 30);
    let devices = Devices::make_with(&[(MEMORY_LIKE, Slowness::Throttle), (profile, arguments.slowness)], bytes)?;
    let setting = Setting {
        devices: &devices,
        profile,
        duration: Duration::from_secs(seconds),
        per_second,
        requests_in_file: requests,
        bytes_to_move,
    };
    let mut report = Report::new("move-interference", if arguments.json { Form::Json } else { Form::Tables });
    for kind in [Kind::Reads, Kind::Writes] {
        report.add(table(&setting, kind)?);
    }
    report.finish()
}

fn table(setting: &Setting<'_>, kind: Kind) -> Result<Section> {
    let title = format!(
        "{kind:?} of 64 KiB on {}, {:.0} in each second, {} s",
        setting.profile.name,
        setting.per_second,
        setting.duration.as_secs()
    );
    let columns = ["beside", "MB/s", "to without", "at least", "p50 ms", "p99 ms", "p99 at most", "moved MB/s", "met"];
    let mut section = Section::new(title, &columns);
    let politest = MoverPoliteness::Polite;
    let (without, _) = measure(setting, &Case { kind, course: None, politeness: politest })?;
    row(&mut section, "nothing".to_owned(), &without, None, None);
    // Reads are throttled apart from writes, so that only one direction meets each of them.
    let course = match kind {
        Kind::Reads => Course::From,
        Kind::Writes => Course::To,
    };
    for politeness in [MoverPoliteness::FullSpeed, politest] {
        let least = shares_of(politeness);
        let (served, moved) = measure(setting, &Case { kind, course: Some(course), politeness })?;
        let name = format!("a move {} it, {politeness:?}", if course == Course::From { "from" } else { "to" });
        row(&mut section, name.to_lowercase(), &served, Some((&without, least, politeness)), Some(moved));
    }
    Ok(section)
}

fn row(
    section: &mut Section,
    name: String,
    served: &Served,
    target: Option<(&Served, f64, MoverPoliteness)>,
    moved: Option<f64>,
) {
    let ratio = target.map(|(without, ..)| served.bytes_per_second / without.bytes_per_second);
    let p99_max = target
        .filter(|(.., politeness)| *politeness == MoverPoliteness::FullSpeed)
        .map(|(without, ..)| without.p99_ms + TWO_REQUESTS_MS);
    let met = target.map(|(_, least, _)| {
        ratio.is_some_and(|ratio| ratio >= least) && p99_max.is_none_or(|most| served.p99_ms <= most)
    });
    eprintln!("{name}: {served:?}");
    section.row(vec![
        name.into(),
        Cell::Number(served.bytes_per_second / 1e6, 1),
        Cell::optional(ratio, 3),
        Cell::optional(target.map(|(_, least, _)| least), 2),
        Cell::Number(served.p50_ms, 1),
        Cell::Number(served.p99_ms, 1),
        Cell::optional(p99_max, 1),
        Cell::optional(moved.map(|rate| rate / 1e6), 1),
        met.map_or(Cell::Empty, |met| if met { "yes" } else { "no" }.into()),
    ]);
}

/// The service that the application gets, and the bytes per second that were moved meanwhile.
fn measure(setting: &Setting<'_>, case: &Case) -> Result<(Served, f64)> {
    let mut tiered = Tiered::make(setting.devices, MountOptions::default())?;
    let (own, other) = (setting.profile.name, MEMORY_LIKE.name);
    let used = tiered.write_file("used", (setting.requests_in_file * REQUEST_BYTES) as u64)?;
    tiered.move_files(&[used], own)?;
    let moved: Option<(Ino, &str)> = match case.course {
        None => None,
        Some(course) => {
            let ino = tiered.write_file("moved", setting.bytes_to_move)?;
            let (source, target) = if course == Course::From { (own, other) } else { (other, own) };
            tiered.move_files(&[ino], source)?;
            Some((ino, target))
        }
    };
    tiered.begin_measuring()?;
    tiered.file_system().set_steering(PolicyKind::Static, &[])?;
    tiered.file_system().set_politeness(case.politeness);
    let caller = Caller::root();
    let file_system = tiered.file_system();
    let handle = file_system.open(&caller, used, OPEN)?;
    let load = Load {
        kind: case.kind,
        handle,
        per_second: setting.per_second,
        duration: setting.duration,
        requests_in_file: setting.requests_in_file,
    };
    let is_stopped = AtomicBool::new(false);
    let (served, rate) = thread::scope(|scope| -> Result<(Served, f64)> {
        let application = scope.spawn(|| open_loop::run(file_system, &load, &is_stopped));
        // The application is there first, as it is in life.
        thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        let job = moved.map(|(ino, target)| tiered.submit(&[ino], target)).transpose();
        is_stopped.store(job.is_err(), Ordering::Relaxed);
        let served = application.join().expect("the application does not panic")?;
        let elapsed = begun.elapsed().as_secs_f64();
        let bytes = tiered.counter("bytes_moved")?;
        for job in job?.into_iter().flatten() {
            let state = file_system.job(job).map(|report| report.state);
            let is_over = state.as_ref().is_none_or(polymux_fs::JobState::is_final);
            ensure!(!is_over, "the move ended before the application did, with {state:?} after {bytes} bytes");
            file_system.cancel_job(job);
        }
        Ok((served, bytes as f64 / elapsed))
    })?;
    file_system.release(handle)?;
    tiered.end()?;
    Ok((served, rate))
}
