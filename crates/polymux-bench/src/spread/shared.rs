//! Sixteen readers and sixteen writers of one file, against the native file system of the fastest device alone.
//!
//! Method:
//! * Each thread has a part of the file of its own. A reader reads each 4 KiB of it once, in the order of chance; a writer writes as many,
//!   anywhere in its part, so that some are written more than once. Nothing of the file is in memory at the beginning.
//! * A writer's clock stops when its fsync has returned. The rate of all readers (of all writers) ends with the last of them.
//! * The volume is measured as it comes, and with the option `page_cache = "off"`.
//! * Readers verify their data. The written data is verified after everything was unmounted: each block has its last write.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::SpreadArguments;
use super::stamped::{self, BLOCK_BYTES};
use super::stand::{self, Requests, Stand};
use super::volume::Settings;
use crate::noise::{self, Noise};
use crate::parallel;
use crate::report::{Cell, Report, Section};

/// Readers, and writers.
const THREADS_OF_EACH: u64 = 16;

/// Bytes of the file for each second that is asked for: a gibibyte by default.
const BYTES_PER_SECOND: u64 = 1 << 30;

const FILE_BYTES_MAX: u64 = 2 << 30;

const FILE: &str = "shared";

/// How the volume is mounted, and lines of its options. The kernel lets writers of one file in one at a time where it keeps pages.
const MOUNTS: [(&str, &str); 2] = [("mount", ""), ("mount, page_cache off", "page_cache = \"off\"")];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reads,
    Writes,
}

/// Result of one side.
struct Found {
    reads_per_second: f64,
    writes_per_second: f64,
    /// First block and generations of each writer's part.
    left: Vec<(u64, Vec<u64>)>,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let bytes = (BYTES_PER_SECOND / 10 * arguments.seconds).clamp(64 << 20, FILE_BYTES_MAX);
    let blocks_of_part = bytes / BLOCK_BYTES as u64 / (2 * THREADS_OF_EACH);
    let stand = Stand::make(arguments, stand::profiles(arguments, Requests::Unlimited), bytes)?;
    let native = native(&stand, blocks_of_part).context("natively")?;
    let mut sides = vec![("native, the fastest device alone", native)];
    let mut shares = Vec::new();
    for (side, options) in MOUNTS {
        let (found, of_tiers) = mounted(&stand, options, blocks_of_part).context(side)?;
        sides.push((side, found));
        shares = of_tiers;
    }
    let title =
        format!("{THREADS_OF_EACH} readers and {THREADS_OF_EACH} writers of one file of {} MB", bytes / 1_000_000);
    let columns = ["side", "reads/s", "to native", "writes/s, durable", "to native", "target"];
    let mut section = Section::new(stand.title(&title), &columns);
    let (native_reads, native_writes) = (sides[0].1.reads_per_second, sides[0].1.writes_per_second);
    for (side, found) in &sides {
        section.row(vec![
            (*side).into(),
            Cell::Number(found.reads_per_second, 0),
            Cell::Number(found.reads_per_second / native_reads, 3),
            Cell::Number(found.writes_per_second, 0),
            Cell::Number(found.writes_per_second / native_writes, 3),
            "1.3".into(),
        ]);
    }
    section.note(format!("Bytes of the file on each tier: {}.", stand.shares_in_words(&shares)));
    report.add(section);
    Ok(())
}

fn native(stand: &Stand, blocks_of_part: u64) -> Result<Found> {
    stand.devices.format_again()?;
    let path = stand.devices.mount_point(stand.profiles[0].name)?.join(FILE);
    stamped::write_file(&path, blocks_of_part * THREADS_OF_EACH * 2)?;
    stand.devices.forget_caches()?;
    stand.throttle()?;
    let found = work(&path, blocks_of_part)?;
    stand.devices.unthrottle()?;
    stand.devices.forget_caches()?;
    verify(&path, &found)?;
    Ok(found)
}

fn mounted(stand: &Stand, options: &str, blocks_of_part: u64) -> Result<(Found, Vec<u64>)> {
    let mut volume =
        stand.volume_with(&Settings { policy: &stand.arguments.policy, options, ..Settings::default() })?;
    let path = volume.mount_point().join(FILE);
    volume.start(&stand.devices)?;
    // With the limits: how the file is spread depends on the speed of the devices.
    stand.throttle()?;
    stamped::write_file(&path, blocks_of_part * THREADS_OF_EACH * 2)?;
    stand.devices.unthrottle()?;
    let shares = volume.bytes_of_file(&path)?;
    volume.start_cold(&stand.devices)?;
    stand.throttle()?;
    let found = work(&path, blocks_of_part)?;
    stand.devices.unthrottle()?;
    volume.start_cold(&stand.devices)?;
    verify(&path, &found)?;
    volume.stop()?;
    Ok((found, shares))
}

/// All threads at once.
fn work(path: &Path, blocks_of_part: u64) -> Result<Found> {
    let parts: Vec<(Role, u64)> =
        (0..THREADS_OF_EACH * 2).map(|part| (if part % 2 == 0 { Role::Reads } else { Role::Writes }, part)).collect();
    let (_, done) = parallel::run(parts, |_, (role, part)| {
        let first = part * blocks_of_part;
        let begun = Instant::now();
        let generations = match role {
            Role::Reads => read(path, first, blocks_of_part).map(|()| Vec::new()),
            Role::Writes => write(path, first, blocks_of_part),
        };
        Ok((role, begun.elapsed(), first, generations.with_context(|| format!("in the part from block {first} on"))?))
    })?;
    let rate = |role: Role| {
        let last = done.iter().filter(|(of, ..)| *of == role).map(|(_, elapsed, ..)| *elapsed).max();
        (THREADS_OF_EACH * blocks_of_part) as f64 / last.unwrap_or(Duration::MAX).as_secs_f64().max(1e-9)
    };
    let (reads_per_second, writes_per_second) = (rate(Role::Reads), rate(Role::Writes));
    let writers = done.into_iter().filter(|(role, ..)| *role == Role::Writes);
    let left = writers.map(|(_, _, first, generations)| (first, generations)).collect();
    Ok(Found { reads_per_second, writes_per_second, left })
}

fn read(path: &Path, first: u64, blocks: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).open(path)?;
    let mut buffer = vec![0; BLOCK_BYTES];
    for block in noise::shuffled(blocks, first) {
        file.read_exact_at(&mut buffer, (first + block) * BLOCK_BYTES as u64)?;
        stamped::verify(&buffer, first + block, 0)?;
    }
    Ok(())
}

/// Returns the generation of each block.
fn write(path: &Path, first: u64, blocks: u64) -> Result<Vec<u64>> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut noise = Noise::new(first);
    let mut generations = vec![0; usize::try_from(blocks)?];
    for _ in 0..blocks {
        let block = noise.below(blocks);
        let generation = &mut generations[usize::try_from(block)?];
        *generation += 1;
        stamped::fill(&mut buffer, first + block, *generation);
        file.write_all_at(&buffer, (first + block) * BLOCK_BYTES as u64)?;
    }
    file.sync_all()?;
    Ok(generations)
}

fn verify(path: &Path, found: &Found) -> Result<()> {
    let file = OpenOptions::new().read(true).open(path)?;
    found.left.iter().try_for_each(|(first, generations)| {
        stamped::verify_blocks(&file, *first, generations).context("after everything was unmounted")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_was_made_and_the_last_write_of_each_block_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        stamped::write_file(&path, 20 * THREADS_OF_EACH * 2).unwrap();
        let found = work(&path, 20).unwrap();
        assert_eq!(found.left.len(), 16);
        assert!(found.left.iter().any(|(_, generations)| generations.iter().any(|generation| *generation > 1)));
        verify(&path, &found).unwrap();
        let (first, generations) = &found.left[3];
        let lost =
            Found { left: vec![(*first, generations.iter().map(|generation| generation + 1).collect())], ..found };
        assert!(verify(&path, &lost).is_err());
    }
}
