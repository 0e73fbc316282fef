//! Random readers of one large file beside a stream that is written at full speed.
//!
//! Method:
//! * Eight threads read 4 KiB each, each place once at most, of a file of which nothing is in memory.
//! * The native side does the same with as many threads, of a file on each device that is as large as its part of the file in the
//!   volume, beside a writer on each device that is as fast as the mount wrote there, and no faster: past the page cache, so that the
//!   device has the bytes when they are written.
//! * The kernel's throttle counts reads and writes apart, so that on these devices a stream costs readers only processor time,
//!   and the overhead of the file systems and Polymux.
//! * All data that is read is verified, the stream too, after everything was unmounted.

use anyhow::{Context, Result};
use polymux_fs::MountOptions;

use super::SpreadArguments;
use super::load::Way;
use super::reads::{Group, Piece, RandomReads, Reads};
use super::stamped::{self, BLOCK_BYTES};
use super::stand::{self, Requests, Stand};
use super::streams::Stream;
use super::volume::Deferral;
use crate::report::{Cell, Report, Section};
use crate::throttled::Profile;

const THREADS: u16 = 8;
const FILE: &str = "cold";
const STREAM: &str = "stream";
const FILE_BYTES_MAX: u64 = 2 << 30;

/// Results of one side.
struct Found {
    reads: Reads,
    /// Bytes per second that went to each device, from the first to the last read.
    written: Vec<f64>,
}

/// Results of the mount.
struct Mounted {
    found: Found,
    deferrals: Vec<Deferral>,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let profiles = stand::profiles(arguments, Requests::Unlimited);
    let bytes = file_bytes(&profiles, arguments.seconds);
    let written: u64 = profiles.iter().map(|profile| profile.limits.written_bytes.unwrap_or(0)).sum();
    let stand = Stand::make(arguments, profiles, bytes + written * (arguments.seconds + 2))?;
    let columns = [
        "side",
        "reads/s",
        "to native",
        "target",
        "written, MB/s",
        "of each device, MB/s",
        "reads/s of each device",
        "busy",
    ];
    let mut section = Section::new(stand.title(&format!("{THREADS} random readers beside a stream")), &columns);
    let mut waits = Section::new(
        stand.title("how long what nobody waits for made way"),
        &["tier", "class", "side", "requests", "at the bound", "longest, ms", "bound, ms"],
    );
    for way in [Way::Direct, Way::Cached] {
        let (mounted, shares) = mounted(&stand, bytes / BLOCK_BYTES as u64, way).context("through the mount")?;
        let native = native(&stand, &shares, way, &mounted.found.written).context("natively")?;
        section.row(row(&format!("native, {}", in_words(way)), &native, &native));
        section.row(row(&format!("mount, {}", in_words(way)), &mounted.found, &native));
        mounted.deferrals.iter().for_each(|deferral| waits.row(deferral_row(deferral, way)));
    }
    waits.note("A wait ends with the bound, and what it takes to wake a thread.");
    report.add(section);
    report.add(waits);
    Ok(())
}

const fn in_words(way: Way) -> &'static str {
    match way {
        Way::Direct => "O_DIRECT",
        Way::Cached => "cold",
    }
}

/// More than is read in the time, as far as memory goes.
fn file_bytes(profiles: &[Profile], seconds: u64) -> u64 {
    let read: u64 = profiles.iter().map(|profile| profile.limits.read_bytes.unwrap_or(0)).sum();
    (read * (seconds + 1)).next_multiple_of(1 << 21).min(FILE_BYTES_MAX)
}

fn row(side: &str, found: &Found, native: &Found) -> Vec<Cell> {
    let in_words = |rates: &[f64], unit: f64| {
        rates.iter().map(|rate| format!("{:.0}", rate / unit)).collect::<Vec<_>>().join(" + ")
    };
    vec![
        side.into(),
        Cell::Number(found.reads.rate, 0),
        Cell::Number(found.reads.rate / native.reads.rate, 3),
        "0.80".into(),
        Cell::Number(found.written.iter().sum::<f64>() / 1e6, 1),
        in_words(&found.written, 1e6).into(),
        in_words(&found.reads.of_each, 1.0).into(),
        Cell::Number(found.reads.busy_processors, 2),
    ]
}

fn deferral_row(deferral: &Deferral, way: Way) -> Vec<Cell> {
    vec![
        deferral.tier.clone().into(),
        deferral.class.into(),
        format!("mount, {}", in_words(way)).into(),
        Cell::Number(deferral.requests as f64, 0),
        Cell::Number(deferral.at_bound as f64, 0),
        Cell::Number(deferral.longest_us as f64 / 1e3, 1),
        Cell::Number(MountOptions::default().deferral_ms_max.into(), 0),
    ]
}

fn mounted(stand: &Stand, blocks: u64, way: Way) -> Result<(Mounted, Vec<u64>)> {
    let mut volume = stand.volume()?;
    let path = volume.mount_point().join(FILE);
    volume.start(&stand.devices)?;
    // With the limits: how the file is spread depends on the speed of the devices.
    stand.throttle()?;
    stamped::write_file(&path, blocks)?;
    stand.devices.unthrottle()?;
    let shares = volume.bytes_of_file(&path)?;
    volume.start_cold(&stand.devices)?;
    let stream = Stream::at_full_speed(volume.mount_point().join(STREAM));
    let (found, written) = beside(stand, &Group(vec![Piece { path, blocks }]), std::slice::from_ref(&stream), way)?;
    let deferrals = volume.deferrals()?;
    volume.start_cold(&stand.devices)?;
    stream.verify(written[0])?;
    volume.stop()?;
    Ok((Mounted { found, deferrals }, shares))
}

fn native(stand: &Stand, shares: &[u64], way: Way, written: &[f64]) -> Result<Found> {
    let pieces = stand.pieces(FILE, shares)?;
    stand.make_natively(&pieces)?;
    stand.devices.forget_caches()?;
    let mut streams = Vec::new();
    for (profile, rate) in stand.profiles.iter().zip(written) {
        let path = stand.devices.mount_point(profile.name)?.join(STREAM);
        streams.push(Stream { path, way: Way::Direct, bytes_per_second: Some(*rate) });
    }
    let (found, written) = beside(stand, &Group(pieces), &streams, way)?;
    stand.devices.forget_caches()?;
    streams.iter().zip(written).try_for_each(|(stream, bytes)| stream.verify(bytes))?;
    Ok(found)
}

/// Reads beside streams, with the limits of the devices; they have none afterwards. Also the bytes of each stream.
fn beside(stand: &Stand, group: &Group, streams: &[Stream], way: Way) -> Result<(Found, Vec<u64>)> {
    let reads = RandomReads { threads: THREADS, request_bytes: BLOCK_BYTES, way, duration: stand.duration() };
    stand.while_written(streams, |before, begun| {
        let reads = reads.run(&stand.devices, std::slice::from_ref(group))?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = stand.devices.traffic()?;
        let of_each = after.into_iter().zip(before).map(|(after, before)| after.since(before).bytes_written as f64);
        Ok(Found { reads, written: of_each.map(|bytes| bytes / seconds).collect() })
    })
}
