//! Blocks of one large file read in the order of chance by many threads, on devices with few requests per second.
//!
//! Method:
//! * Each place is read once at most, and everything was unmounted before, so that each read is one of a device.
//! * The native side is measured in two forms. *All at once*: each device is read by as many threads as the mount is, and the rates
//!   are added. *The same blocks*: so many threads in all, of a file on each device that is as large as its part of the file in the
//!   volume: who reads one file has each device's share fixed by where its blocks lie.
//! * Every byte that is read is verified.

use std::time::Duration;

use anyhow::{Context, Result};

use super::SpreadArguments;
use super::load::Way;
use super::reads::{Group, Piece, RandomReads, Reads};
use super::stamped::{self, BLOCK_BYTES};
use super::stand::{self, Requests, Stand};
use crate::report::{Cell, Report, Section};
use crate::throttled::{Limits, Profile};

const THREADS: u16 = 32;

/// Threads that make the file.
const WRITERS: u16 = 4;

/// Bytes of a request.
const SIZES: [usize; 2] = [4096, 65536];

/// Name of the file on every side.
pub const FILE: &str = "random";

/// Largest file: the images lie in memory.
const FILE_BYTES_MAX: u64 = 3 << 30;

/// Reads through the mount with requests of one size.
type Mounts = Vec<Round>;

/// Reads of one kind through the mount.
struct Round {
    way: Way,
    /// How long it took to lay the file out for such readers; `None` where it was read as it lay.
    laid_out_in: Option<Duration>,
    reads: Reads,
}

/// Results for one request size.
struct Found {
    request_bytes: usize,
    native: Reads,
    same_blocks: Reads,
    mounts: Mounts,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let profiles = stand::profiles(arguments, Requests::Limited);
    let bytes = file_bytes(&profiles, arguments.seconds);
    let stand = Stand::make(arguments, profiles, bytes)?;
    let blocks = bytes / BLOCK_BYTES as u64;
    let (shares, shares_after, mounted) = on_volume(&stand, blocks)?;
    let pieces = stand.pieces(FILE, &shares)?;
    stand.make_natively(&pieces)?;
    let columns =
        ["requests", "side", "reads/s", "MB/s", "to the sum", "to the same blocks", "reads/s of each device", "busy"];
    let mut section = Section::new(stand.title(&format!("random reads, {THREADS} threads")), &columns);
    for (request_bytes, mounts) in SIZES.into_iter().zip(mounted) {
        let reads = RandomReads { threads: THREADS, request_bytes, way: Way::Direct, duration: stand.duration() };
        let each = pieces.iter().map(|piece| Group(vec![piece.clone()])).collect::<Vec<_>>();
        let native = natively(&stand, &reads, &each)?;
        let same_blocks = natively(&stand, &reads, &[Group(pieces.clone())])?;
        rows(&mut section, &Found { request_bytes, native, same_blocks, mounts });
    }
    let (before, after) = (stand.shares_in_words(&shares), stand.shares_in_words(&shares_after));
    section.note(format!(
        "Bytes of the file on each tier: {before}; after all that was read: {after}. Target: 0.90 of the sum. Readers of one file \
         have each device's share fixed by where its blocks lie, until the policy moves some."
    ));
    report.add(section);
    Ok(())
}

/// More than is read in the time.
fn file_bytes(profiles: &[Profile], seconds: u64) -> u64 {
    let per_second = |bytes: usize| -> u64 {
        let of = |limits: &Limits| {
            limits.read_bytes.unwrap_or(0).min(limits.reads.unwrap_or(u64::MAX).saturating_mul(bytes as u64))
        };
        profiles.iter().map(|profile| of(&profile.limits)).sum()
    };
    let most = SIZES.into_iter().map(per_second).max().unwrap_or(0);
    (most * seconds * 5 / 4).next_multiple_of(1 << 21).min(FILE_BYTES_MAX)
}

/// The shares of the tiers, before and after, and the reads through the mount for each size.
fn on_volume(stand: &Stand, blocks: u64) -> Result<(Vec<u64>, Vec<u64>, Vec<Mounts>)> {
    let mut volume = stand.volume()?;
    let path = volume.mount_point().join(FILE);
    volume.start(&stand.devices)?;
    stand.throttle()?;
    // As fast as the devices take it: how it lies on them is how they write.
    stamped::write_file_by(&path, blocks, WRITERS).context("through the mount")?;
    stand.devices.unthrottle()?;
    let shares = volume.bytes_of_file(&path)?;
    let mut found = Vec::new();
    for request_bytes in SIZES {
        let mut of_size = Vec::new();
        for way in [Way::Direct, Way::Cached] {
            let reads = RandomReads { threads: THREADS, request_bytes, way, duration: stand.duration() };
            let mut read_cold = |laid_out_in: Option<Duration>| {
                volume.start_cold(&stand.devices)?;
                stand.throttle()?;
                let group = Group(vec![Piece { path: path.clone(), blocks }]);
                let reads = reads.run(&stand.devices, &[group]).context("through the mount")?;
                of_size.push(Round { way, laid_out_in, reads });
                let settled = stand.arguments.measured.then(|| stand.settle(&volume)).transpose()?;
                stand.devices.unthrottle()?;
                anyhow::Ok(settled)
            };
            if let Some(settled) = read_cold(None)? {
                read_cold(Some(settled))?;
            }
        }
        found.push(of_size);
    }
    let shares_after = volume.bytes_of_file(&path)?;
    volume.stop()?;
    Ok((shares, shares_after, found))
}

fn natively(stand: &Stand, reads: &RandomReads, groups: &[Group]) -> Result<Reads> {
    stand.devices.forget_caches()?;
    stand.throttle()?;
    let found = reads.run(&stand.devices, groups).context("natively")?;
    stand.devices.unthrottle()?;
    Ok(found)
}

fn rows(section: &mut Section, found: &Found) {
    let mut row = |side: &str, reads: &Reads| {
        section.row(vec![
            format!("{} KiB", found.request_bytes / 1024).into(),
            side.into(),
            Cell::Number(reads.rate, 0),
            Cell::Number(reads.rate * found.request_bytes as f64 / 1e6, 1),
            Cell::Number(reads.rate / found.native.rate, 3),
            Cell::Number(reads.rate / found.same_blocks.rate, 3),
            reads.of_each.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" + ").into(),
            Cell::Number(reads.busy_processors, 2),
        ]);
    };
    row("native, all at once", &found.native);
    row("native, the same blocks", &found.same_blocks);
    for Round { way, laid_out_in, reads } in &found.mounts {
        let way = if *way == Way::Direct { "mount, O_DIRECT" } else { "mount, cold" };
        match laid_out_in {
            None => row(way, reads),
            Some(took) => row(&format!("{way}, laid out for it in {:.0} s", took.as_secs_f64()), reads),
        }
    }
}
