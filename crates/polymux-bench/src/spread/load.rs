//! Sequential writing and reading by threads, with private files or in one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polymux_tier::measure::AlignedBuffer;
use rustix::fs::FallocateFlags;

use crate::machine::busy_seconds;
use crate::moves::tiered::block_of_noise;
use crate::parallel;

/// Bytes of a request.
const REQUEST_BYTES: u64 = 1 << 20;

/// Whose files threads use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Each its own.
    Private,
    /// Each its own, for which it reserves space first, as many programs do (`fallocate`).
    Preallocated,
    /// All the same, each its own part of it.
    OneFile,
}

/// Threads that write and read one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many.
    pub threads: u16,
    /// In which files.
    pub sharing: Sharing,
}

/// How bytes go to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the page cache, as programs do.
    Cached,
    /// Past it: the device has something to do from the first moment on.
    Direct,
}

impl Way {
    /// Additional open flags of a file.
    #[must_use]
    pub fn flags(self) -> i32 {
        match self {
            Self::Cached => 0,
            Self::Direct => i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("open flags are small"),
        }
    }
}

/// Result of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// MB/s.
    pub rate: f64,
    /// MB/s of each device.
    pub of_each: Vec<f64>,
    /// From the start to the end of the last thread.
    pub elapsed: Duration,
    /// Processors that were busy, with whatever, on average.
    pub busy_processors: f64,
}

/// MB/s.
#[must_use]
pub fn rate(bytes: u64, elapsed: Duration) -> f64 {
    crate::statistics::count(usize::try_from(bytes).unwrap_or(usize::MAX)) / 1e6 / elapsed.as_secs_f64().max(1e-9)
}

/// Work of one thread.
struct Part {
    path: PathBuf,
    start: u64,
    requests: u64,
    device: usize,
}

impl Load {
    /// In words.
    #[must_use]
    pub fn name(self) -> String {
        match self.sharing {
            Sharing::Private => format!("{} threads, private files", self.threads),
            Sharing::Preallocated => format!("{} threads, preallocated files", self.threads),
            Sharing::OneFile => format!("{} threads, one file", self.threads),
        }
    }

    fn parts(self, device: usize, directory: &Path, bytes: u64) -> impl Iterator<Item = Part> {
        let directory = directory.to_owned();
        let requests = (bytes / u64::from(self.threads) / REQUEST_BYTES).max(1);
        (0..u64::from(self.threads)).map(move |thread| {
            let (name, start) = match self.sharing {
                Sharing::Private | Sharing::Preallocated => (format!("file-{thread}"), 0),
                Sharing::OneFile => ("file".to_owned(), thread * requests * REQUEST_BYTES),
            };
            Part { path: directory.join(name), start, requests, device }
        })
    }

    /// Writes `bytes` below a directory, durably.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn write_one(self, directory: &Path, bytes: u64) -> Result<Measured> {
        self.write_each(&[(directory.to_owned(), bytes)], Way::Cached)
    }

    /// Writes below several directories at once, durably.
    ///
    /// # Errors
    /// Whatever the file systems report.
    pub fn write_each(self, places: &[(PathBuf, u64)], way: Way) -> Result<Measured> {
        let content = block_of_noise();
        let mut aligned = AlignedBuffer::new(content.len());
        aligned.as_mut_slice().copy_from_slice(&content);
        let noise: &[u8] = aligned.as_mut_slice();
        self.measure(places, |part| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).custom_flags(way.flags());
            let file = options.open(&part.path)?;
            if self.sharing == Sharing::Preallocated {
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, part.requests * REQUEST_BYTES)?;
            }
            for request in 0..part.requests {
                file.write_all_at(noise, part.start + request * REQUEST_BYTES)?;
            }
            Ok(file.sync_all()?)
        })
    }

    /// Reads the written data.
    ///
    /// # Errors
    /// Whatever the file system reports; other bytes than were written.
    pub fn read_one(self, directory: &Path, bytes: u64) -> Result<Measured> {
        self.read_each(&[(directory.to_owned(), bytes)])
    }

    /// Reads the data written below several directories at once.
    ///
    /// # Errors
    /// As for [`Load::read_one`].
    pub fn read_each(self, places: &[(PathBuf, u64)]) -> Result<Measured> {
        let noise = block_of_noise();
        self.measure(places, |part| {
            let file = File::open(&part.path)?;
            let mut buffer = vec![0; noise.len()];
            for request in 0..part.requests {
                file.read_exact_at(&mut buffer, part.start + request * REQUEST_BYTES)?;
                ensure!(
                    buffer == noise,
                    "{}: request {request} from {} on reads other bytes",
                    part.path.display(),
                    part.start >> 20
                );
            }
            Ok(())
        })
    }

    fn measure(self, places: &[(PathBuf, u64)], work: impl Fn(&Part) -> Result<()> + Sync) -> Result<Measured> {
        let parts: Vec<Part> = places
            .iter()
            .enumerate()
            .flat_map(|(device, (directory, bytes))| self.parts(device, directory, *bytes))
            .collect();
        let mut bytes = vec![0; places.len()];
        for part in &parts {
            bytes[part.device] += part.requests * REQUEST_BYTES;
        }
        let busy_before = busy_seconds()?;
        let (elapsed, ends) = parallel::run(parts, |_, part| {
            let begun = std::time::Instant::now();
            work(&part).with_context(|| part.path.display().to_string())?;
            Ok((part.device, begun.elapsed()))
        })?;
        let busy_processors = (busy_seconds()? - busy_before) / elapsed.as_secs_f64().max(1e-9);
        let of_each: Vec<f64> = bytes
            .iter()
            .enumerate()
            .map(|(device, bytes)| {
                let last = ends.iter().filter(|(of, _)| *of == device).map(|(_, elapsed)| *elapsed).max();
                rate(*bytes, last.unwrap_or_default())
            })
            .collect();
        Ok(Measured { rate: of_each.iter().sum(), of_each, elapsed, busy_processors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_bytes_and_no_part_of_one_file_is_written_twice() {
        let load = Load { threads: 4, sharing: Sharing::OneFile };
        let parts: Vec<Part> = load.parts(0, Path::new("/x"), 64 << 20).collect();
        assert!(parts.iter().all(|part| part.path == Path::new("/x/file") && part.requests == 16));
        let starts: Vec<u64> = parts.iter().map(|part| part.start >> 20).collect();
        assert_eq!(starts, [0, 16, 32, 48]);
        let private: Vec<Part> = Load { sharing: Sharing::Private, ..load }.parts(0, Path::new("/x"), 1).collect();
        assert!(private.iter().all(|part| part.start == 0 && part.requests == 1));
    }
}
