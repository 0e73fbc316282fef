//! `polymux-bench spread`: files on all devices at once, through a plain mount, against the sum of what the devices deliver
//! natively in the same run (docs/design/0018).
//!
//! What is true here:
//! * A rate is bytes over wall-clock time, from the first write to the moment at which the last fsync returned: everything is
//!   durable inside the clock.
//! * The native side writes to all devices at the same time, with as many threads on each as the mount has in all, each device its
//!   share of the bytes: once as programs do and once past the page cache, and the faster way counts. Its sum is what the devices can
//!   do together on this machine.
//! * Reads are cold: everything is unmounted and mounted between.

mod load;
mod volume;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use self::load::{Load, Measured, Sharing, Way};
use self::volume::Volume;
use crate::report::{Cell, Form, Report, Section};
use crate::suite::ground::Kind;
use crate::throttled::{self, Devices, Format, Profile};

/// Names of the devices and of the tiers on them, in speed order.
const NAMES: [&str; 3] = ["one", "two", "three"];

/// Room of each device beside what is written: file systems need some.
const SPARE_BYTES: u64 = 1 << 30;

/// Choices of `polymux-bench spread`.
#[derive(Args, Clone, Debug)]
pub struct SpreadArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Devices: 2 or 3.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    pub devices: u8,
    /// Seconds for which the devices together would write.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Threads that write and read.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub threads: Vec<u16>,
    /// Only loads whose name contains this.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Policy of the volume.
    #[arg(long, default_value = "spread")]
    pub policy: String,
    /// The program to measure; by default the one that was built beside this one.
    #[arg(long)]
    pub polymux: Option<PathBuf>,
}

impl SpreadArguments {
    fn kinds(&self) -> &'static [Kind] {
        if self.devices == 2 { &[Kind::Middle, Kind::Slow] } else { &[Kind::Fast, Kind::Middle, Kind::Slow] }
    }

    fn loads(&self) -> Vec<Load> {
        let private = self.threads.iter().map(|threads| Load { threads: *threads, sharing: Sharing::Private });
        let shared = self.threads.iter().filter(|threads| **threads > 1);
        let shared = shared.map(|threads| Load { threads: *threads, sharing: Sharing::OneFile });
        private.chain(shared).filter(|load| load.name().contains(&self.only)).collect()
    }
}

/// Measures and prints.
///
/// # Errors
/// Whatever the devices, the program or the file systems report.
pub fn run(arguments: &SpreadArguments) -> Result<()> {
    if let Some(reason) = throttled::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let program = match &arguments.polymux {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("polymux"),
    };
    let kinds = arguments.kinds();
    // XFS and ext4 in turn, as a user's devices would be.
    let formats = [Format::Xfs, Format::Ext4, Format::Ext4];
    let profiles: Vec<Profile> = (0..kinds.len())
        .map(|at| Profile { name: NAMES[at], format: formats[at], limits: kinds[at].limits() })
        .collect();
    let shares: Vec<u64> =
        profiles.iter().map(|profile| profile.limits.written_bytes.unwrap_or(0) * arguments.seconds).collect();
    let bytes: u64 = shares.iter().sum();
    let devices = Devices::make(&profiles, bytes + SPARE_BYTES)?;
    let form = if arguments.json { Form::Json } else { Form::Tables };
    let mut report = Report::new("spread", form);
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let columns = ["load", "side", "MB/s", "of the sum", "of each device, MB/s", "busy processors"];
    let mut section = Section::new(format!("{} with policy {}", names.join(" + "), arguments.policy), &columns);
    for load in arguments.loads() {
        let native = native(&devices, &profiles, &shares, load).context("the native side")?;
        let volume = Volume::make(&devices, &program, &arguments.policy)?;
        let spread = mounted(&devices, volume, bytes, load).with_context(|| load.name())?;
        for (what, native, spread) in [("write", &native.0, &spread.0), ("read", &native.1, &spread.1)] {
            let name = format!("{what}, {}", load.name());
            section.row(row(&name, "native, all at once", native, native));
            section.row(row(&name, "mount", spread, native));
        }
    }
    section.note("Each rate is bytes over wall-clock time, durable at the end; reads are cold. MB are 10^6 bytes.");
    report.add(section);
    report.finish()
}

fn row(name: &str, side: &str, measured: &Measured, native: &Measured) -> Vec<Cell> {
    vec![
        name.into(),
        side.into(),
        Cell::Number(measured.rate, 1),
        Cell::Number(measured.rate / native.rate, 3),
        measured.of_each.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" + ").into(),
        Cell::Number(measured.busy_processors, 2),
    ]
}

/// The same on every device natively, all devices at the same time. Their rates are added.
fn native(devices: &Devices, profiles: &[Profile], shares: &[u64], load: Load) -> Result<(Measured, Measured)> {
    devices.format_again()?;
    let places: Vec<(PathBuf, u64)> = profiles
        .iter()
        .zip(shares)
        .map(|(profile, share)| Ok((devices.mount_point(profile.name)?, *share)))
        .collect::<Result<_>>()?;
    devices.throttle()?;
    // What the devices can do: the better of both ways, the one of programs and the one past the page cache.
    let cached = load.write_each(&places, Way::Cached)?;
    devices.format_again()?;
    devices.throttle()?;
    let direct = load.write_each(&places, Way::Direct)?;
    let written = if direct.rate > cached.rate { direct } else { cached };
    devices.unthrottle()?;
    devices.forget_caches()?;
    devices.throttle()?;
    let read = load.read_each(&places)?;
    devices.unthrottle()?;
    Ok((written, read))
}

fn mounted(devices: &Devices, mut volume: Volume, bytes: u64, load: Load) -> Result<(Measured, Measured)> {
    volume.start(devices)?;
    devices.throttle()?;
    let before = volume.bytes_on_tiers()?;
    let mut written = load.write_one(volume.mount_point(), bytes)?;
    let rates = |before: &[u64], after: &[u64], measured: &Measured| {
        before.iter().zip(after).map(|(before, after)| load::rate(after - before, measured.elapsed)).collect()
    };
    written.of_each = rates(&before.written, &volume.bytes_on_tiers()?.written, &written);
    devices.unthrottle()?;
    volume.stop()?;
    devices.forget_caches()?;
    volume.start(devices)?;
    devices.throttle()?;
    let mut read = load.read_one(volume.mount_point(), bytes)?;
    let after = volume.bytes_on_tiers()?;
    read.of_each = rates(&vec![0; after.read.len()], &after.read, &read);
    devices.unthrottle()?;
    volume.stop()?;
    Ok((written, read))
}
