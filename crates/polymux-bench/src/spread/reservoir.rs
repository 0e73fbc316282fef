//! Memory that is available when it is needed.
//!
//! A virtual machine gives memory that it does not use back to its host, and gets it again page by page when it is touched, at a few
//! hundred MB/s and at the cost of the thread that touches it. A file through a mount is in memory three times (caches of the mount and of
//! the tier, image of the device), natively twice or once, so the mount would be measured against its host.
//!
//! Method:
//! * All memory but [`FREE_BYTES`] is held, touched, in a file without a name. While something is measured, a thread
//!   gives back as much of it as is used; the kernel allocates the most recently returned memory next.
//! * Memory that a measurement frees is taken again by [`Reservoir::refill`], before the next one. Memory that stays free is touched last,
//!   and the kernel reports it to the host after two seconds at the earliest: it is available when the measurement begins. (Without that writers
//!   reached 200 MB/s in their first two seconds, and kept no device busy.)
//! * Each side of a comparison is preceded by a refill, so that both find the same.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, MemfdFlags};

use crate::memory;

/// Bytes that are left free: limits of dirty memory are fractions of the free and cached memory.
const FREE_BYTES: u64 = 4 << 30;

/// Bytes that are not touched of these: for whatever else runs.
const UNTOUCHED_BYTES: u64 = 512 << 20;

/// Bytes that are taken or given at once.
const CHUNK_BYTES: u64 = 64 << 20;

/// How often the thread looks: 64 MiB each time are more than all devices together write, in three copies.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The part of the file that holds memory, from where to where.
struct Held {
    file: File,
    start: u64,
    end: u64,
}

/// Held memory; given back when this is dropped.
pub struct Reservoir {
    held: Arc<Mutex<Held>>,
    is_over: Arc<AtomicBool>,
    /// Nothing is given back meanwhile.
    is_filling: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn free_bytes() -> Result<u64> {
    memory::field(&fs::read_to_string("/proc/meminfo")?, "MemFree:")
}

impl Held {
    /// Takes a chunk. Each byte is written: memory that is only allocated is not there yet.
    fn take(&mut self, content: &[u8]) -> Result<()> {
        let mut left = CHUNK_BYTES;
        while left > 0 {
            self.file.write_all_at(content, self.end).context("memory cannot be held")?;
            self.end += content.len() as u64;
            left = left.saturating_sub(content.len() as u64);
        }
        Ok(())
    }

    fn empty() -> Result<Self> {
        let file = rustix::fs::memfd_create("reservoir", MemfdFlags::CLOEXEC)?;
        Ok(Self { file: File::from(file), start: 0, end: 0 })
    }

    /// Gives a chunk back, where there is one.
    fn give(&mut self) -> Result<()> {
        let length = CHUNK_BYTES.min(self.end - self.start);
        if length > 0 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, punch, self.start, length)?;
            self.start += length;
        }
        Ok(())
    }
}

impl Reservoir {
    /// Takes the free memory.
    ///
    /// # Errors
    /// Where memory cannot be held.
    pub fn make() -> Result<Self> {
        let held = Arc::new(Mutex::new(Held::empty()?));
        let (is_over, is_filling) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let thread = std::thread::spawn({
            let (held, is_over, is_filling) = (Arc::clone(&held), Arc::clone(&is_over), Arc::clone(&is_filling));
            move || give_what_is_used(&held, &is_over, &is_filling)
        });
        let reservoir = Self { held, is_over, is_filling, thread: Some(thread) };
        reservoir.refill()?;
        Ok(reservoir)
    }

    /// Takes the free memory again, and touches the part that stays free.
    ///
    /// # Errors
    /// Where memory cannot be held.
    pub fn refill(&self) -> Result<()> {
        self.is_filling.store(true, Ordering::Relaxed);
        let filled = self.fill();
        self.is_filling.store(false, Ordering::Relaxed);
        filled
    }

    fn fill(&self) -> Result<()> {
        let content = vec![1; 1 << 20];
        while free_bytes()? > FREE_BYTES + CHUNK_BYTES {
            locked(&self.held).take(&content)?;
        }
        let mut touched = Held::empty()?;
        while free_bytes()? > UNTOUCHED_BYTES + CHUNK_BYTES {
            touched.take(&content)?;
        }
        Ok(())
    }
}

fn give_what_is_used(held: &Mutex<Held>, is_over: &AtomicBool, is_filling: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let is_due = |free: u64| free < FREE_BYTES && !is_filling.load(Ordering::Relaxed);
        let given = free_bytes().and_then(|free| if is_due(free) { locked(held).give() } else { Ok(()) });
        if let Err(error) = given {
            eprintln!("warning: memory is not given back, what is measured now is slower: {error:#}");
            return;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

impl Drop for Reservoir {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("warning: the thread that gives memory back ended abnormally");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_in_chunks_and_given_back() {
        let mut held = Held::empty().expect("memory files");
        let content = vec![1; 1 << 20];
        let blocks = |held: &Held| rustix::fs::fstat(&held.file).expect("it is there").st_blocks * 512;
        held.take(&content).expect("64 MiB are there");
        assert_eq!(blocks(&held), 64 << 20);
        held.give().expect("holes can be punched");
        assert_eq!((blocks(&held), held.start, held.end), (0, CHUNK_BYTES, CHUNK_BYTES));
        held.give().expect("nothing is left to give");
        assert_eq!(held.start, CHUNK_BYTES);
    }
}
