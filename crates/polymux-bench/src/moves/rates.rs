//! `polymux-bench move`: every direction between three devices, with one large file and with many small ones.

use anyhow::{Result, ensure};
use clap::Args;
use polymux_fs::{MountOptions, PolicyKind};
use polymux_types::Ino;

use super::native::{self, Bandwidth};
use super::tiered::Tiered;
use crate::report::{Cell, Form, Report, Section};
use crate::throttled::{self, DISK_LIKE, Devices, MEMORY_LIKE, NVME_LIKE, Profile};

/// Least ratio with one large file, and with files of a mebibyte.
const TARGETS: [f64; 2] = [0.9, 0.6];

const SMALL_BYTES: u64 = 1 << 20;

/// Free space on each device beside the migrated data.
const SPARE_BYTES: u64 = 1 << 30;

/// Choices of `polymux-bench move`.
#[derive(Args, Clone, Debug)]
pub struct MoveArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Directions as `FROM-TO`, each of pm, nvme and hdd; without any: all six.
    #[arg(long, value_delimiter = ',')]
    pub directions: Vec<String>,
    /// Seconds that the move of the large file takes at full bandwidth.
    #[arg(long, default_value_t = 12)]
    pub seconds: u64,
    /// Files of 1 MiB; 0: that part is left out.
    #[arg(long, default_value_t = 1000)]
    pub files: u64,
}

fn form(json: bool) -> Form {
    if json { Form::Json } else { Form::Tables }
}

/// Measures and prints.
///
/// # Errors
/// Whatever fails on the way; a figure below its target is none.
pub fn run(arguments: &MoveArguments) -> Result<()> {
    if let Some(reason) = throttled::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let profiles = [MEMORY_LIKE, NVME_LIKE, DISK_LIKE];
    let largest = arguments.seconds * limit(&NVME_LIKE, &MEMORY_LIKE);
    let bytes = SPARE_BYTES + 2 * largest.max(arguments.files * SMALL_BYTES);
    let devices = Devices::make(&profiles, bytes)?;
    let mut report = Report::new("move", form(arguments.json));
    let bandwidths = measure_devices(&devices, &mut report)?;
    let directions = directions(&arguments.directions, &profiles)?;
    let columns = ["direction", "MB", "s to done", "s to freed", "MB/s", "MB/s possible", "ratio", "target", "met"];
    let titles = ["One large file".to_owned(), format!("{} files of 1 MiB", arguments.files)];
    for (kind, title) in titles.into_iter().enumerate() {
        if kind == 1 && arguments.files == 0 {
            continue;
        }
        let mut section = Section::new(title, &columns);
        for (from, to) in &directions {
            let bytes = arguments.seconds * limit(&profiles[*from], &profiles[*to]);
            let sizes = if kind == 0 { (1, bytes) } else { (arguments.files, SMALL_BYTES) };
            let (seconds, moved) = measure(&devices, profiles[*from].name, profiles[*to].name, sizes)?;
            let possible = bandwidths[*from].read.min(bandwidths[*to].written);
            let rate = moved as f64 / seconds.1;
            let ratio = rate / possible;
            section.row(vec![
                format!("{} to {}", profiles[*from].name, profiles[*to].name).into(),
                Cell::Number(moved as f64 / 1e6, 0),
                Cell::Number(seconds.0, 2),
                Cell::Number(seconds.1, 2),
                Cell::Number(rate / 1e6, 1),
                Cell::Number(possible / 1e6, 1),
                Cell::Number(ratio, 3),
                Cell::Number(TARGETS[kind], 2),
                if ratio >= TARGETS[kind] { "yes" } else { "no" }.into(),
            ]);
            eprintln!("{} to {}: {ratio:.3}", profiles[*from].name, profiles[*to].name);
        }
        section.note("Until all is durable on the target and freed on the source.");
        report.add(section);
    }
    report.finish()
}

/// Bytes per second of a direction, as the profiles say.
fn limit(from: &Profile, to: &Profile) -> u64 {
    let limits = [from.limits.read_bytes, to.limits.written_bytes];
    limits.into_iter().flatten().min().unwrap_or(1 << 30)
}

fn directions(wanted: &[String], profiles: &[Profile]) -> Result<Vec<(usize, usize)>> {
    let all: Vec<(usize, usize)> = (0..profiles.len())
        .flat_map(|from| (0..profiles.len()).filter(move |to| *to != from).map(move |to| (from, to)))
        .collect();
    if wanted.is_empty() {
        return Ok(all);
    }
    let name = |(from, to): &(usize, usize)| format!("{}-{}", profiles[*from].name, profiles[*to].name);
    let known: Vec<String> = all.iter().map(name).collect();
    let unknown = wanted.iter().find(|wanted| !known.contains(wanted));
    ensure!(unknown.is_none(), "no such direction: {}; there are {}", unknown.expect("it was found"), known.join(", "));
    Ok(all.into_iter().filter(|direction| wanted.contains(&name(direction))).collect())
}

/// Natively, each device after the other.
///
/// # Errors
/// Whatever a device reports.
pub fn measure_devices(devices: &Devices, report: &mut Report) -> Result<Vec<Bandwidth>> {
    let mut section = Section::new("Devices, natively", &["device", "file system", "read MB/s", "written MB/s"]);
    let mut bandwidths = Vec::new();
    devices.throttle()?;
    for device in devices.all() {
        let bandwidth = native::measure(&device.mount_point, &device.profile)?;
        section.row(vec![
            device.profile.name.into(),
            format!("{:?}", device.profile.format).to_lowercase().into(),
            Cell::Number(bandwidth.read / 1e6, 1),
            Cell::Number(bandwidth.written / 1e6, 1),
        ]);
        bandwidths.push(bandwidth);
    }
    report.add(section);
    Ok(bandwidths)
}

/// Moves new files from one tier to another. Returns the seconds until done and until freed, and the bytes.
fn measure(devices: &Devices, from: &str, to: &str, (files, bytes): (u64, u64)) -> Result<((f64, f64), u64)> {
    let mut tiered = Tiered::make(devices, MountOptions::default())?;
    let inos: Vec<Ino> =
        (0..files).map(|index| tiered.write_file(&format!("f{index}"), bytes)).collect::<Result<_>>()?;
    tiered.move_files(&inos, from)?;
    tiered.begin_measuring()?;
    // Nothing else is to move meanwhile.
    tiered.file_system().set_steering(PolicyKind::Static, &[])?;
    ensure!(tiered.bytes_on(inos[0], from)? >= bytes, "the file was to be on {from} before it is measured");
    let seconds = tiered.move_files(&inos, to)?;
    for ino in &inos {
        ensure!(tiered.bytes_on(*ino, to)? >= bytes, "the file was to be on {to} at the end");
    }
    tiered.end()?;
    Ok((seconds, files * bytes))
}
