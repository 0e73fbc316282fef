//! Threads that write files from their beginning to their end and read them cold, private ones and one that they share.
//!
//! Method:
//! * A rate is bytes over wall-clock time, from the first write to the moment at which the last fsync returned: everything is
//!   durable inside the clock.
//! * The native side writes to all devices at the same time, with as many threads on each as the mount has in all, each device its
//!   share of the bytes: once as programs do and once past the page cache, and the faster way counts. Its sum is the combined rate
//!   of the devices on this machine.
//! * Reads are cold: everything is unmounted and mounted between. Where tiers were measured, the volume is left alone until files are laid
//!   out for their readers; otherwise they are read as they were written.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::SpreadArguments;
use super::load::{self, Load, Measured, Sharing, Way};
use super::stand::{self, Requests, Stand};
use crate::report::{Cell, Report, Section};

/// Threads that write preallocated files as well.
const PREALLOCATED_FILES: u16 = 8;

fn loads(arguments: &SpreadArguments) -> Vec<Load> {
    let private = arguments.threads.iter().map(|threads| Load { threads: *threads, sharing: Sharing::Private });
    let preallocated = arguments.threads.iter().filter(|threads| **threads == PREALLOCATED_FILES);
    let preallocated = preallocated.map(|threads| Load { threads: *threads, sharing: Sharing::Preallocated });
    let shared = arguments.threads.iter().filter(|threads| **threads > 1);
    let shared = shared.map(|threads| Load { threads: *threads, sharing: Sharing::OneFile });
    private.chain(preallocated).chain(shared).filter(|load| load.name().contains(&arguments.only)).collect()
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let profiles = stand::profiles(arguments, Requests::Unlimited);
    let shares: Vec<u64> =
        profiles.iter().map(|profile| profile.limits.written_bytes.unwrap_or(0) * arguments.seconds).collect();
    let bytes: u64 = shares.iter().sum();
    let stand = Stand::make(arguments, profiles, bytes)?;
    let columns = ["load", "side", "MB/s", "of the sum", "of each device, MB/s", "busy processors"];
    let mut section = Section::new(stand.title("one after the other"), &columns);
    for load in loads(arguments) {
        let native = native(&stand, &shares, load).context("the native side")?;
        let spread = mounted(&stand, bytes, load).with_context(|| load.name())?;
        let reader = match spread.rested {
            None => "mount".to_owned(),
            Some(rested) => format!("mount, after {:.0} s at rest", rested.as_secs_f64()),
        };
        let written = ("write", "mount", &native.0, &spread.written);
        for (what, side, native, spread) in [written, ("read", reader.as_str(), &native.1, &spread.read)] {
            let name = format!("{what}, {}", load.name());
            section.row(row(&name, "native, all at once", native, native));
            section.row(row(&name, side, spread, native));
        }
    }
    section.note("Each rate is bytes over wall-clock time, durable at the end; reads are cold. MB are 10^6 bytes.");
    report.add(section);
    Ok(())
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

/// Measures every device natively, all devices at the same time. Their rates are added.
fn native(stand: &Stand, shares: &[u64], load: Load) -> Result<(Measured, Measured)> {
    let devices = &stand.devices;
    devices.format_again()?;
    let places: Vec<(PathBuf, u64)> = stand
        .profiles
        .iter()
        .zip(shares)
        .map(|(profile, share)| Ok((devices.mount_point(profile.name)?, *share)))
        .collect::<Result<_>>()?;
    stand.throttle()?;
    // Native rate of the devices: the better of both ways, through the page cache as programs do and past it.
    let cached = load.write_each(&places, Way::Cached)?;
    devices.format_again()?;
    stand.throttle()?;
    let direct = load.write_each(&places, Way::Direct)?;
    let written = if direct.rate > cached.rate { direct } else { cached };
    devices.unthrottle()?;
    devices.forget_caches()?;
    stand.throttle()?;
    let read = load.read_each(&places)?;
    devices.unthrottle()?;
    Ok((written, read))
}

/// Result of a load through the mount.
struct Mounted {
    written: Measured,
    read: Measured,
    /// How long the volume was left alone between, until everything was laid out for readers.
    rested: Option<Duration>,
}

fn mounted(stand: &Stand, bytes: u64, load: Load) -> Result<Mounted> {
    let (devices, mut volume) = (&stand.devices, stand.volume()?);
    volume.start(devices)?;
    stand.throttle()?;
    let before = volume.bytes_on_tiers()?;
    let mut written = load.write_one(volume.mount_point(), bytes)?;
    let rates = |before: &[u64], after: &[u64], measured: &Measured| {
        before.iter().zip(after).map(|(before, after)| load::rate(after - before, measured.elapsed)).collect()
    };
    written.of_each = rates(&before.written, &volume.bytes_on_tiers()?.written, &written);
    let rested = stand.arguments.measured.then(|| stand.settle(&volume)).transpose()?;
    devices.unthrottle()?;
    volume.start_cold(devices)?;
    stand.throttle()?;
    let mut read = load.read_one(volume.mount_point(), bytes)?;
    let after = volume.bytes_on_tiers()?;
    read.of_each = rates(&vec![0; after.read.len()], &after.read, &read);
    devices.unthrottle()?;
    volume.stop()?;
    Ok(Mounted { written, read, rested })
}
