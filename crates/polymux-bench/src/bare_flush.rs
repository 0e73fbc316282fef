//! The cost of one durable write to a log on a device, with nothing around it: the baseline of every fsync row.
//!
//! Invariants:
//! * The file is written in ascending order and never beyond the prepared space, as a log is.
//! * A buffer starts at a multiple of 4 KiB in memory, which every O_DIRECT accepts.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fd::AsFd;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags};

use crate::statistics::{mean, percentile};

/// Start of buffers in memory, in bytes.
const ALIGNMENT: usize = 4096;

/// How the space of the file was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Not at all: the file grows.
    Growing,
    /// By `fallocate`: blocks without content.
    Preallocated,
    /// Zeros written and made durable.
    ZeroWritten,
}

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// `fdatasync` after it.
    Fdatasync,
    /// The write itself, by `O_DSYNC`.
    Dsync,
}

/// Through the page cache or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through it.
    Buffered,
    /// Past it.
    Direct,
}

/// One way to flush a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// How the space was prepared.
    pub preparation: Preparation,
    /// How a write is made durable.
    pub means: Means,
    /// Through the page cache or not.
    pub route: Route,
    /// Bytes of one write.
    pub write_size: usize,
}

impl Method {
    /// The two that are candidates for a log on a block device.
    pub const REFERENCES: [Self; 2] = [
        Self { preparation: Preparation::ZeroWritten, means: Means::Dsync, route: Route::Direct, write_size: 4096 },
        Self {
            preparation: Preparation::ZeroWritten,
            means: Means::Fdatasync,
            route: Route::Buffered,
            write_size: 4096,
        },
    ];

    /// Times of durable writes in microseconds, each; `None` where the file system refuses the method.
    ///
    /// # Errors
    /// Whatever the file system reports beside that.
    pub fn measure(&self, directory: &Path, samples: usize) -> Result<Option<Vec<f64>>> {
        let path = directory.join("log");
        let outcome = self.measure_file(&path, samples);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => outcome,
        }
    }

    fn measure_file(&self, path: &Path, samples: usize) -> Result<Option<Vec<f64>>> {
        self.prepare(path, samples)?;
        let mut flags = OFlags::WRONLY | OFlags::CLOEXEC;
        if self.means == Means::Dsync {
            flags |= OFlags::DSYNC;
        }
        if self.route == Route::Direct {
            flags |= OFlags::DIRECT;
        }
        let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Err(rustix::io::Errno::INVAL) => return Ok(None),
            other => other?,
        };
        let room = vec![0xa5; self.write_size + ALIGNMENT];
        let skipped = room.as_ptr().align_offset(ALIGNMENT);
        let buffer = &room[skipped..skipped + self.write_size];
        let mut times_us = Vec::with_capacity(samples);
        for index in 0..samples {
            let start = Instant::now();
            match rustix::io::pwrite(&file, buffer, (index * self.write_size) as u64) {
                // A write smaller than a block of the device.
                Err(rustix::io::Errno::INVAL) if index == 0 => return Ok(None),
                written => ensure!(written? == self.write_size, "a write of the log was cut short"),
            }
            if self.means == Means::Fdatasync {
                rustix::fs::fdatasync(&file)?;
            }
            times_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Some(times_us))
    }

    fn prepare(&self, path: &Path, samples: usize) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))
            .with_context(|| path.display().to_string())?;
        let length = samples * self.write_size;
        match self.preparation {
            Preparation::Growing => {}
            Preparation::Preallocated => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length as u64)?,
            Preparation::ZeroWritten => write_zeros(&file, length)?,
        }
        Ok(rustix::fs::fsync(&file)?)
    }
}

fn write_zeros(file: impl AsFd, length: usize) -> Result<()> {
    let zeros = vec![0; length.min(1024 * 1024)];
    let mut offset = 0;
    while offset < length {
        let step = zeros.len().min(length - offset);
        offset += rustix::io::pwrite(&file, &zeros[..step], offset as u64)?;
    }
    Ok(())
}

/// Cost of one flush by one method, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlushCost {
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
}

impl FlushCost {
    fn of(times_us: &[f64]) -> Self {
        Self { mean_us: mean(times_us), p50_us: percentile(times_us, 50) }
    }

    fn and(&self, other: &Self) -> Self {
        Self { mean_us: f64::midpoint(self.mean_us, other.mean_us), p50_us: f64::midpoint(self.p50_us, other.p50_us) }
    }
}

/// Cost of one flush by each of [`Method::REFERENCES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BareFlush {
    /// By a direct, synchronous write; `None` where the file system has none.
    pub direct: Option<FlushCost>,
    /// By a buffered write and fdatasync.
    pub fdatasync: FlushCost,
}

impl BareFlush {
    /// Measures both.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn measure(directory: &Path, samples: usize) -> Result<Self> {
        let [direct, fdatasync] = Method::REFERENCES;
        let direct = direct.measure(directory, samples)?.map(|times| FlushCost::of(&times));
        let times = fdatasync.measure(directory, samples)?.context("a plain file can be written and synced")?;
        Ok(Self { direct, fdatasync: FlushCost::of(&times) })
    }

    /// The costs halfway between two measurements.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let direct = self.direct.zip(other.direct).map(|(one, other)| one.and(&other));
        Self { direct, fdatasync: self.fdatasync.and(&other.fdatasync) }
    }

    /// The better of the two means, the baseline of the fsync rows.
    #[must_use]
    pub fn best_us(&self) -> f64 {
        self.direct.map_or(self.fdatasync.mean_us, |direct| direct.mean_us.min(self.fdatasync.mean_us))
    }

    /// The better of the two medians.
    #[must_use]
    pub fn best_p50_us(&self) -> f64 {
        self.direct.map_or(self.fdatasync.p50_us, |direct| direct.p50_us.min(self.fdatasync.p50_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_timed_and_the_file_is_removed() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for method in Method::REFERENCES {
            if let Some(times) = method.measure(directory.path(), 5).unwrap() {
                assert_eq!(times.len(), 5);
                assert!(times.iter().all(|time| *time > 0.0), "{times:?}");
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
