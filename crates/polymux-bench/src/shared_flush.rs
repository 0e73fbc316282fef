//! The cost of log flushes to threads that share them and do nothing else: no group commit can be faster.
//!
//! Method:
//! * Each thread needs a flush that begins after its arrival. The last thread to arrive flushes once for all and wakes the others:
//!   one write of 4 KiB with `O_DIRECT` and `O_DSYNC` into a zero-written file, the cheapest way to flush on every machine
//!   measured so far.
//! * Without a log, a file system and entries, the only cost beside the flush is that of putting threads to sleep and waking them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

use anyhow::{Context, Result};
use polymux_meta::BLOCK;
use rustix::fs::OFlags;

use crate::parallel;

/// Blocks of the file, which is written from its beginning again and again.
const BLOCKS: u64 = 256;

/// Start of the buffer in memory, in bytes.
const ALIGNMENT: usize = 4096;

/// Time in microseconds of one operation of `threads` threads that each sync `rounds` times; `None` where the file system
/// refuses direct writes.
///
/// # Errors
/// Whatever the file system reports beside that.
pub fn measure(directory: &Path, threads: usize, rounds: usize) -> Result<Option<f64>> {
    let path = directory.join("shared-log");
    let outcome = measure_file(&path, threads, rounds);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => outcome,
    }
}

fn measure_file(path: &Path, threads: usize, rounds: usize) -> Result<Option<f64>> {
    let zeros = vec![0; usize::try_from(BLOCKS * BLOCK)?];
    std::fs::write(path, zeros).with_context(|| path.display().to_string())?;
    File::open(path)?.sync_all()?;
    let flags = i32::try_from((OFlags::DIRECT | OFlags::DSYNC).bits())?;
    let file = match OpenOptions::new().write(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return Ok(None),
        other => other?,
    };
    let meeting = Meeting::new(file, threads);
    let workers = (0..threads).collect();
    let (time, _) = parallel::run(workers, |_, thread| (0..rounds).try_for_each(|round| meeting.sync(thread, round)))?;
    Ok(Some(time.as_secs_f64() * 1e6 / crate::statistics::count(threads * rounds)))
}

/// Threads that meet at a flush.
struct Meeting {
    file: File,
    block: Vec<u8>,
    block_start: usize,
    threads: Vec<OnceLock<Thread>>,
    arrived: AtomicUsize,
    /// Rounds that were flushed.
    flushed: AtomicUsize,
}

impl Meeting {
    fn new(file: File, threads: usize) -> Self {
        let block = vec![0xa5; ALIGNMENT + usize::try_from(BLOCK).expect("a block fits into memory")];
        let block_start = block.as_ptr().align_offset(ALIGNMENT);
        let threads = (0..threads).map(|_| OnceLock::new()).collect();
        Self { file, block, block_start, threads, arrived: AtomicUsize::new(0), flushed: AtomicUsize::new(0) }
    }

    fn sync(&self, thread: usize, round: usize) -> Result<()> {
        self.threads[thread].get_or_init(std::thread::current);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 < self.threads.len() {
            while self.flushed.load(Ordering::Acquire) <= round {
                std::thread::park();
            }
            return Ok(());
        }
        self.arrived.store(0, Ordering::Release);
        let block = &self.block[self.block_start..][..self.block.len() - ALIGNMENT];
        let written = self.file.write_all_at(block, round as u64 % BLOCKS * BLOCK);
        // Also after an error: no thread may wait for ever.
        self.flushed.store(round + 1, Ordering::Release);
        let others = self.threads.iter().enumerate().filter(|(other, _)| *other != thread);
        others.filter_map(|(_, other)| other.get()).for_each(Thread::unpark);
        Ok(written?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_flushes_and_nothing_stays_behind() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for threads in [1, 3] {
            if let Some(time) = measure(directory.path(), threads, 20).unwrap() {
                assert!(time > 0.0, "{time}");
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
