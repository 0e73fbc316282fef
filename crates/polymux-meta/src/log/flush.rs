//! Writing the window to its medium, and making it durable: one flush for everybody who waits.
//!
//! What is true here:
//! * `leading` is true for one thread at a time; that thread alone walks, copies out, writes and releases. The lock is
//!   not held while it does.
//! * Where the last flush served several syncs, they are likely to come again: the last of them to arrive leads, and one
//!   flush serves all. Those before it sleep meanwhile, at most half of what a flush takes; a thread that is alone waits
//!   for nobody.
//! * A durable write covers only its own bytes, so where earlier bytes were written without one, the medium is flushed.

use std::time::{Duration, Instant};

use super::Log;
use super::medium::{BLOCK, BlockBuffer};
use super::region_spill::SpillUrgency;
use super::ring::pieces;
use crate::error::StoreError;
use polymux_types::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, thread};

/// Bytes written at once.
const CHUNK_LENGTH: u64 = 1024 * 1024;

/// State of the one who leads.
struct Leader {
    leading: bool,
    /// Bytes on their way to the medium. Taken by the leader.
    buffer: Option<BlockBuffer>,
    /// Syncs that the last flush served.
    group: usize,
    /// What a flush takes, smoothed.
    flush_time: Duration,
    /// How far each sync that came and was not served yet has to reach.
    waiters: Vec<u64>,
    /// End of the entries known to be filled.
    complete: u64,
    /// End of what was handed to the medium.
    written: u64,
    /// Something was written that no flush covers yet.
    unflushed: bool,
}

/// What the threads that sync share.
pub(super) struct Flush {
    leader: Mutex<Leader>,
    done: Condvar,
    /// Syncs that came and were not durable already.
    arrived: AtomicU64,
}

impl Flush {
    pub(super) fn new(position: u64) -> Self {
        let length = usize::try_from(CHUNK_LENGTH).expect("a chunk fits into memory");
        let leader = Leader {
            leading: false,
            buffer: Some(BlockBuffer::new(length)),
            group: 1,
            flush_time: Duration::ZERO,
            waiters: Vec::new(),
            complete: position,
            written: position,
            unflushed: false,
        };
        Self { leader: Mutex::new(leader), done: Condvar::new(), arrived: AtomicU64::new(0) }
    }

    pub(super) fn syncs(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub(super) fn wake(&self) {
        // Under the lock, so that nobody is between its check and its wait.
        let _leader = self.leader.lock();
        self.done.notify_all();
    }
}

/// What the leader takes with it while the lock is open.
struct Progress {
    buffer: BlockBuffer,
    complete: u64,
    written: u64,
    unflushed: bool,
}

impl Log {
    /// Makes everything before `through` durable. Returns at once where it is.
    pub(crate) fn sync(&self, through: u64) -> Result<(), StoreError> {
        self.check()?;
        if self.durable() >= through {
            return Ok(());
        }
        self.flush.arrived.fetch_add(1, Ordering::AcqRel);
        if let Some(region) = self.window.region() {
            return self.sync_in_region(region, through);
        }
        let mut leader = self.flush.leader.lock();
        leader.waiters.push(through);
        let mut patient = !cfg!(shuttle);
        loop {
            self.check()?;
            if self.durable() >= through {
                return Ok(());
            }
            if leader.leading {
                self.flush.done.wait(&mut leader);
            } else if patient && leader.waiters.len() < leader.group {
                let limit = leader.flush_time / 2;
                patient = !self.flush.done.wait_for(&mut leader, limit).timed_out();
            } else {
                leader = self.lead(leader, through)?;
            }
        }
    }

    /// Makes the complete prefix durable for everybody who waits.
    fn lead<'a>(
        &'a self,
        mut leader: MutexGuard<'a, Leader>,
        through: u64,
    ) -> Result<MutexGuard<'a, Leader>, StoreError> {
        leader.leading = true;
        let mut progress = leader.take();
        drop(leader);
        let begun = Instant::now();
        let outcome = self.flush_through(&mut progress, through);
        let mut leader = self.flush.leader.lock();
        leader.put_back(progress);
        leader.flush_time = (leader.flush_time * 7 + begun.elapsed()) / 8;
        let (waited, durable) = (leader.waiters.len(), self.durable());
        leader.waiters.retain(|through| *through > durable);
        leader.group = waited - leader.waiters.len();
        leader.leading = false;
        self.flush.done.notify_all();
        match outcome {
            Ok(()) => Ok(leader),
            Err(error) => {
                drop(leader);
                Err(self.poison(error))
            }
        }
    }

    /// Hands what is complete to the medium, without making it durable, so that the window has room. Returns whether
    /// anything was done; otherwise another thread leads, or an entry is still being filled.
    pub(crate) fn write_out(&self) -> Result<bool, StoreError> {
        if let Some(region) = self.window.region() {
            return self.spill(region, SpillUrgency::Ahead);
        }
        let mut leader = self.flush.leader.lock();
        self.check()?;
        if leader.leading {
            return Ok(false);
        }
        leader.leading = true;
        let mut progress = leader.take();
        drop(leader);
        let before = progress.written;
        self.walk(&mut progress);
        let outcome = self.write(&mut progress);
        let moved = progress.written > before;
        leader = self.flush.leader.lock();
        leader.put_back(progress);
        leader.leading = false;
        self.flush.done.notify_all();
        drop(leader);
        match outcome {
            Ok(()) => Ok(moved),
            Err(error) => Err(self.poison(error)),
        }
    }

    /// Bytes that are waiting in the window.
    pub(crate) fn unwritten(&self) -> u64 {
        self.tail() - self.low.0.load(Ordering::Acquire)
    }

    fn flush_through(&self, progress: &mut Progress, through: u64) -> Result<(), StoreError> {
        loop {
            self.walk(progress);
            if progress.complete >= through {
                break;
            }
            // A thread is copying its entry, or waiting for room in the window that only we can make.
            if self.tail() > self.low.0.load(Ordering::Acquire) + self.window.length() {
                self.write(progress)?;
            }
            thread::yield_now();
        }
        let (from, to) = (progress.written - progress.written % BLOCK, progress.complete.next_multiple_of(BLOCK));
        let one_piece = to - from <= CHUNK_LENGTH && pieces(self.ring_length, from, to).count() == 1;
        if one_piece && !progress.unflushed {
            self.write_piece(progress, from, to, |offset, blocks| self.medium.write_durable(offset, blocks))?;
            progress.written = progress.complete;
        } else {
            self.write(progress)?;
            self.medium.flush().map_err(|error| failed("flushing", &error))?;
            progress.unflushed = false;
        }
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        self.durable.0.store(progress.complete, Ordering::Release);
        self.advance_low(progress);
        Ok(())
    }

    /// Finds the end of the entries that are filled.
    fn walk(&self, progress: &mut Progress) {
        let tail = self.tail();
        while progress.complete < tail {
            match self.window.end_of_complete(progress.complete) {
                Some(end) => progress.complete = end,
                None => break,
            }
        }
    }

    /// Writes everything complete that was not written yet.
    fn write(&self, progress: &mut Progress) -> Result<(), StoreError> {
        while progress.written < progress.complete {
            let from = progress.written - progress.written % BLOCK;
            let to = (from + CHUNK_LENGTH).min(progress.complete.next_multiple_of(BLOCK));
            let (_, _, to) = pieces(self.ring_length, from, to).next().expect("there is something to write");
            self.write_piece(progress, from, to, |offset, blocks| self.medium.write(offset, blocks))?;
            progress.written = to.min(progress.complete);
            progress.unflushed = true;
        }
        self.advance_low(progress);
        Ok(())
    }

    fn write_piece(
        &self,
        progress: &mut Progress,
        from: u64,
        to: u64,
        write: impl FnOnce(u64, &[u8]) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let length = |bytes: u64| usize::try_from(bytes).expect("a chunk fits into memory");
        let filled = to.min(progress.complete);
        let blocks = &mut progress.buffer.as_mut_slice()[..length(to - from)];
        self.window.copy_out(from, filled, &mut blocks[..length(filled - from)]);
        // Nothing of an entry that is still being filled: its bytes would mean nothing.
        blocks[length(filled - from)..].fill(0);
        let (offset, _, _) = pieces(self.ring_length, from, to).next().expect("there is something to write");
        self.counts.device_bytes.fetch_add(to - from, Ordering::Relaxed);
        write(offset, blocks).map_err(|error| failed("writing", &error))
    }

    /// Gives the part of the window that was written back. The block that the next write begins with stays.
    fn advance_low(&self, progress: &Progress) {
        let low = self.low.0.load(Ordering::Relaxed);
        let next = progress.written - progress.written % BLOCK;
        self.window.release(low, next);
        self.low.0.store(next, Ordering::Release);
    }
}

impl Leader {
    fn take(&mut self) -> Progress {
        Progress {
            buffer: self.buffer.take().expect("the buffer is there where nobody leads"),
            complete: self.complete,
            written: self.written,
            unflushed: self.unflushed,
        }
    }

    fn put_back(&mut self, progress: Progress) {
        self.buffer = Some(progress.buffer);
        self.complete = progress.complete;
        self.written = progress.written;
        self.unflushed = progress.unflushed;
    }
}

fn failed(doing: &str, error: &std::io::Error) -> StoreError {
    StoreError::Io(format!("{doing} the log: {error}"))
}
