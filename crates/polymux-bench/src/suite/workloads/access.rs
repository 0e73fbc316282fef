//! Opening, writing and reading files as the workloads do it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use polymux_tier::measure::AlignedBuffer;
use rustix::fs::OFlags;

use crate::moves::tiered::block_of_noise;
use crate::suite::sides::Tier;
use crate::suite::workload::Place;

/// Bytes of a page and of a block.
pub const BLOCK: u64 = 4096;

/// Bytes of one request of a sequential workload.
pub const REQUEST: usize = 4 << 20;

/// Whether a file is opened past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Through it.
    Used,
    /// `O_DIRECT`.
    Bypassed,
}

impl Cache {
    fn flags(self) -> i32 {
        match self {
            Self::Used => 0,
            Self::Bypassed => i32::try_from(OFlags::DIRECT.bits()).expect("open flags are small"),
        }
    }
}

/// Opens a file that is there, for reading.
pub fn open_to_read(path: &Path, cache: Cache) -> Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(cache.flags()).open(path);
    opened.with_context(|| path.display().to_string())
}

/// Opens a file that is there, for writing.
pub fn open_to_write(path: &Path, cache: Cache) -> Result<File> {
    let opened = OpenOptions::new().write(true).custom_flags(cache.flags()).open(path);
    opened.with_context(|| path.display().to_string())
}

/// Opens a file anew, for writing.
pub fn create(path: &Path) -> Result<File> {
    let options = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    options.with_context(|| path.display().to_string())
}

/// A request's worth of bytes that are not all the same, aligned for direct I/O.
pub fn noise(length: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(length);
    let noise = block_of_noise();
    for piece in buffer.as_mut_slice().chunks_mut(noise.len()) {
        piece.copy_from_slice(&noise[..piece.len()]);
    }
    buffer
}

/// Writes a new file of `bytes` from its beginning to its end, durably.
pub fn write_file(path: &Path, bytes: u64) -> Result<()> {
    let file = create(path)?;
    write_through(&file, &mut noise(REQUEST), bytes)?;
    Ok(file.sync_all()?)
}

/// Writes the `file` of a workload, durably, and splits it where it is to be on both tiers.
///
/// # Errors
/// Those of the side, and where the bytes of the file would go another way than the side is named after.
pub fn prepare_file(place: &Place, tier: Tier, bytes: u64) -> Result<()> {
    let path = place.directory(tier)?.join("file");
    write_file(&path, bytes)?;
    match tier {
        Tier::Split => place.side.split(place.devices, &path, bytes),
        Tier::First | Tier::Second => place.side.check_way(place.devices, &path),
    }
}

/// Writes an open file from its beginning on, a buffer at a time.
pub fn write_through(file: &File, buffer: &mut AlignedBuffer, bytes: u64) -> Result<()> {
    let buffer = buffer.as_mut_slice();
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from((bytes - offset).min(buffer.len() as u64))?;
        file.write_all_at(&buffer[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}

/// Reads an open file from its beginning to its end, and checks that it has `bytes`.
pub fn read_through(file: &File, bytes: u64) -> Result<()> {
    read_through_with(file, &mut AlignedBuffer::new(REQUEST), bytes)
}

/// As [`read_through`], a buffer of this size at a time.
pub fn read_through_with(file: &File, buffer: &mut AlignedBuffer, bytes: u64) -> Result<()> {
    let mut offset = 0;
    loop {
        match file.read_at(buffer.as_mut_slice(), offset)? {
            0 => break,
            length => offset += length as u64,
        }
    }
    ensure!(offset == bytes, "the file has {offset} bytes, not {bytes}");
    Ok(())
}

/// Random multiples of `step` below `bytes`; the same for the same seed.
pub fn offsets(seed: usize, count: usize, step: u64, bytes: u64) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (seed as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| next() % (bytes / step) * step).collect()
}

/// Seconds since a moment.
pub fn seconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64()
}

/// Microseconds for each of `count` operations since a moment.
pub fn us_each(begun: Instant, count: usize) -> f64 {
    seconds(begun) * 1e6 / crate::statistics::count(count)
}

/// Millions of bytes per second since a moment.
pub fn megabytes_per_second(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 / 1e6 / seconds(begun)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_aligned_inside_the_file_and_the_same_for_a_seed() {
        let drawn = offsets(3, 500, BLOCK, 1 << 20);
        assert_eq!(drawn, offsets(3, 500, BLOCK, 1 << 20));
        assert_ne!(drawn, offsets(4, 500, BLOCK, 1 << 20));
        assert!(drawn.iter().all(|offset| offset % BLOCK == 0 && *offset < 1 << 20));
        assert!(drawn.iter().collect::<std::collections::BTreeSet<_>>().len() > 150);
    }

    #[test]
    fn a_written_file_is_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write_file(&path, 5_000_000).unwrap();
        let file = open_to_read(&path, Cache::Used).unwrap();
        read_through(&file, 5_000_000).unwrap();
        assert!(read_through(&file, 5_000_001).is_err());
    }
}
