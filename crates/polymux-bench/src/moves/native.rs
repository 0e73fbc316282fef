//! The native speed of a device: one file written and read from its beginning to its end.
//!
//! Method: the better of two ways counts, past the page cache and through it with an fsync at the end, because
//! which of them is faster differs from device to device.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use polymux_tier::measure::AlignedBuffer;
use rustix::fs::{Advice, OFlags};

use crate::throttled::Profile;

/// Bytes of one request.
const REQUEST_BYTES: usize = 1 << 20;

/// How long one figure is measured, about.
const SECONDS: u64 = 5;

/// Bytes that are enough for a device without limits.
const BYTES_MAX: u64 = 1 << 30;

/// How bytes go to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Past the page cache.
    Direct,
    /// Through it, with an fsync at the end.
    Cached,
}

impl Way {
    const ALL: [Self; 2] = [Self::Direct, Self::Cached];

    fn flags(self) -> i32 {
        match self {
            Self::Direct => i32::try_from(OFlags::DIRECT.bits()).expect("open flags are small"),
            Self::Cached => 0,
        }
    }
}

/// Bytes per second, reading and writing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Read.
    pub read: f64,
    /// Written, durably.
    pub written: f64,
}

/// Bytes that keep a device of this rate busy for as long as is measured.
fn bytes_for(rate: Option<u64>) -> u64 {
    let bytes = rate.map_or(BYTES_MAX, |rate| (rate * SECONDS).min(BYTES_MAX * 2));
    bytes.next_multiple_of(REQUEST_BYTES as u64)
}

/// Measures the device of a profile, which has its limits, in a directory on it.
///
/// # Errors
/// Whatever the device reports.
pub fn measure(directory: &Path, profile: &Profile) -> Result<Bandwidth> {
    let path = directory.join("native-bandwidth");
    let mut best = Bandwidth { read: 0.0, written: 0.0 };
    for way in Way::ALL {
        let written = write(&path, way, bytes_for(profile.limits.written_bytes))?;
        best.written = best.written.max(written);
    }
    for way in Way::ALL {
        best.read = best.read.max(read(&path, way)?);
    }
    std::fs::remove_file(&path)?;
    Ok(best)
}

fn per_second(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 / begun.elapsed().as_secs_f64()
}

fn write(path: &Path, way: Way, bytes: u64) -> Result<f64> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(way.flags());
    let mut file = options.open(path).with_context(|| format!("{}", path.display()))?;
    let mut buffer = AlignedBuffer::filled(REQUEST_BYTES, 7);
    let begun = Instant::now();
    for _ in 0..bytes / REQUEST_BYTES as u64 {
        file.write_all(buffer.as_mut_slice())?;
    }
    file.sync_all()?;
    Ok(per_second(bytes, begun))
}

fn read(path: &Path, way: Way) -> Result<f64> {
    let mut file: File = OpenOptions::new().read(true).custom_flags(way.flags()).open(path)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut buffer = AlignedBuffer::new(REQUEST_BYTES);
    let mut bytes = 0;
    let begun = Instant::now();
    loop {
        match file.read(buffer.as_mut_slice())? {
            0 => return Ok(per_second(bytes, begun)),
            count => bytes += count as u64,
        }
    }
}
