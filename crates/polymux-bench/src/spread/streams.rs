//! Threads that write one stream each until they are stopped, at full speed or at a given one, and read it back.
//!
//! The page cache drops older data of a stream. The images of the devices are in the same memory, and
//! memory that a virtual machine touches for the first time is slow.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polymux_tier::measure::AlignedBuffer;
use rustix::fs::Advice;

use super::load::Way;
use super::stamped::{self, BLOCK_BYTES};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 1 << 20;

/// Bytes after which earlier data is dropped from the page cache.
const KEPT_BYTES: u64 = 64 << 20;

/// Pause of a writer who is ahead of its speed.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A stream to write.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its file, which is made anew.
    pub path: PathBuf,
    /// Past the page cache or through it.
    pub way: Way,
    /// Bytes per second at most.
    pub bytes_per_second: Option<f64>,
}

impl Stream {
    /// A file that is written at full speed through the page cache.
    #[must_use]
    pub const fn at_full_speed(path: PathBuf) -> Self {
        Self { path, way: Way::Cached, bytes_per_second: None }
    }

    /// Writes blocks of generation 0 until `is_over` is set; returns how many bytes were written. They are not durable.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn write(&self, is_over: &AtomicBool) -> Result<u64> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(self.way.flags());
        let file = options.open(&self.path).with_context(|| self.path.display().to_string())?;
        let mut buffer = AlignedBuffer::new(REQUEST_BYTES);
        let begun = Instant::now();
        let mut offset = 0;
        while !is_over.load(Ordering::Relaxed) {
            if let Some(rate) = self.bytes_per_second
                && offset as f64 > rate * begun.elapsed().as_secs_f64()
            {
                let ahead = offset as f64 / rate.max(1.0) - begun.elapsed().as_secs_f64();
                std::thread::sleep(Duration::from_secs_f64(ahead.max(0.0).min(PAUSE_MAX.as_secs_f64())));
                continue;
            }
            let bytes = buffer.as_mut_slice();
            stamped::fill(bytes, offset / BLOCK_BYTES as u64, 0);
            file.write_all_at(bytes, offset).with_context(|| self.path.display().to_string())?;
            offset += REQUEST_BYTES as u64;
            if offset % KEPT_BYTES == 0 && self.way == Way::Cached {
                rustix::fs::fadvise(&file, 0, std::num::NonZeroU64::new(offset), Advice::DontNeed)?;
            }
        }
        Ok(offset)
    }

    /// Reads the written data and verifies it.
    ///
    /// # Errors
    /// Whatever the file system reports; other bytes than were written.
    pub fn verify(&self, bytes: u64) -> Result<()> {
        let file = File::open(&self.path)?;
        let mut buffer = vec![0; REQUEST_BYTES];
        for request in 0..bytes / REQUEST_BYTES as u64 {
            let offset = request * REQUEST_BYTES as u64;
            let read = file.read_exact_at(&mut buffer, offset);
            let verified =
                read.map_err(Into::into).and_then(|()| stamped::verify(&buffer, offset / BLOCK_BYTES as u64, 0));
            verified.with_context(|| format!("{} from byte {offset} on", self.path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_stream_goes_at_its_speed_until_it_is_stopped_and_is_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut stream = Stream::at_full_speed(directory.path().join("stream"));
        stream.bytes_per_second = Some(20e6);
        let is_over = AtomicBool::new(false);
        let written = thread::scope(|scope| {
            let writer = scope.spawn(|| stream.write(&is_over));
            thread::sleep(Duration::from_millis(200));
            is_over.store(true, Ordering::Relaxed);
            writer.join().unwrap().unwrap()
        });
        assert!((1 << 20..=20 << 20).contains(&written), "{written} bytes in a fifth of a second or more");
        stream.verify(written).unwrap();
        assert!(stream.verify(written + (1 << 20)).is_err());
    }
}
