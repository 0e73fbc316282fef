//! Writing the window to its medium, and making it durable: one flush for all waiters.
//!
//! Invariants:
//! * `leading` is true for one thread at a time; that thread alone walks, copies out, writes and releases. The lock is
//!   not held while it does.
//! * Where the last flush served several syncs, they are likely to come again: the last of them to arrive leads, and one
//!   flush serves all. Those before it sleep meanwhile; the first of them leads without the others when it has slept as long
//!   as they may take (`patience`); a lone thread does not wait.
//! * Each thread sleeps by itself (parked), and a served thread returns without the lock: threads that are woken through a
//!   condition variable pass its lock on from one to the next, which took longer than the flush.
//! * While no thread leads and some wait, the first waiter is awake or has a limit to its sleep. Hence a thread that stops
//!   leading wakes the first waiter that it did not serve.
//! * A durable write covers only its own bytes, so where earlier bytes were written without one, the medium is flushed.

use std::time::{Duration, Instant};

use super::Log;
use super::medium::{BLOCK, BlockBuffer};
use super::region_spill::SpillUrgency;
use super::ring::pieces;
use crate::error::StoreError;
use polymux_types::sync::{AtomicU64, Mutex, MutexGuard, Ordering, thread};

/// For each other expected sync, the first waits this fraction of the duration of a flush.
const PATIENCE_PARTS: u32 = 4;

/// More syncs than so many are not waited for any longer.
const GATHERED_MAX: u32 = 8;

/// Bytes written at once.
const CHUNK_LENGTH: u64 = 1024 * 1024;

/// A sync that came and was not served yet.
struct Waiter {
    /// How far it has to reach.
    through: u64,
    thread: thread::Thread,
}

/// State of the one who leads.
struct Leader {
    leading: bool,
    /// Bytes on their way to the medium. Taken by the leader.
    buffer: Option<BlockBuffer>,
    /// Syncs that the last flush served.
    group: usize,
    /// Duration of a flush, smoothed.
    flush_time: Duration,
    /// In the order in which they came; the one who leads is among them.
    waiters: Vec<Waiter>,
    /// End of the entries known to be filled.
    complete: u64,
    /// End of the bytes handed to the medium.
    written: u64,
    /// Something was written that no flush covers yet.
    unflushed: bool,
}

/// State that the syncing threads share.
pub(super) struct Flush {
    leader: Mutex<Leader>,
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
        Self { leader: Mutex::new(leader), arrived: AtomicU64::new(0) }
    }

    pub(super) fn syncs(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Wakes all waiters.
    pub(super) fn wake(&self) {
        for waiter in &self.leader.lock().waiters {
            waiter.thread.unpark();
        }
    }
}

/// State that the leader carries while the lock is released.
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
        if self.durable() >= through {
            // A thread that led meanwhile would not take us off the list.
            return Ok(());
        }
        leader.waiters.push(Waiter { through, thread: thread::current() });
        let mut patient = !cfg!(shuttle);
        while self.durable() < through {
            self.check()?;
            if leader.leading {
                drop(leader);
                thread::park();
            } else if patient && leader.waiters.len() < leader.group {
                let limit = leader.patience();
                // One thread that wakes up in time is enough, and each wake-up costs processor time that the gathering needs.
                let first = leader.waiters[0].thread.id() == thread::current().id();
                drop(leader);
                if first {
                    let begun = Instant::now();
                    thread::park_timeout(limit);
                    patient = begun.elapsed() < limit;
                } else {
                    thread::park();
                }
            } else {
                self.lead(leader, through)?;
            }
            if self.durable() >= through {
                break;
            }
            leader = self.flush.leader.lock();
        }
        Ok(())
    }

    /// Makes the complete prefix durable for all waiters.
    fn lead(&self, mut leader: MutexGuard<'_, Leader>, through: u64) -> Result<(), StoreError> {
        leader.leading = true;
        let mut progress = leader.take();
        drop(leader);
        let begun = Instant::now();
        // A log that failed is known as such before another thread may lead.
        let outcome = self.flush_through(&mut progress, through).map_err(|error| self.poison(error));
        let mut leader = self.flush.leader.lock();
        leader.put_back(progress);
        leader.flush_time = (leader.flush_time * 7 + begun.elapsed()) / 8;
        let durable = self.durable();
        let served: Vec<_> = leader.waiters.extract_if(.., |waiter| waiter.through <= durable).collect();
        leader.group = served.len();
        let next = leader.stop_leading();
        drop(leader);
        let own = thread::current().id();
        served.iter().filter(|waiter| waiter.thread.id() != own).for_each(|waiter| waiter.thread.unpark());
        if let Some(next) = next {
            next.unpark();
        }
        outcome
    }

    /// Hands the complete prefix to the medium, without making it durable, so that the window has free space. Returns whether
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
        let outcome = self.write(&mut progress).map_err(|error| self.poison(error));
        let moved = progress.written > before;
        leader = self.flush.leader.lock();
        leader.put_back(progress);
        let next = leader.stop_leading();
        drop(leader);
        if let Some(next) = next {
            next.unpark();
        }
        outcome.map(|()| moved)
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
            // A thread is copying its entry, or waiting for space in the window that only we can free.
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
    /// How long the first of those who wait sleeps before it leads with fewer than the last flush served: they come one after
    /// the other, each when a processor has run it, so the more of them there are the longer. At most twice the duration of a flush.
    fn patience(&self) -> Duration {
        let others = u32::try_from(self.group.saturating_sub(1)).unwrap_or(u32::MAX);
        self.flush_time * others.min(GATHERED_MAX) / PATIENCE_PARTS
    }

    fn take(&mut self) -> Progress {
        Progress {
            buffer: self.buffer.take().expect("the buffer is there where nobody leads"),
            complete: self.complete,
            written: self.written,
            unflushed: self.unflushed,
        }
    }

    /// From here on another thread may lead; returns the one to wake for it.
    fn stop_leading(&mut self) -> Option<thread::Thread> {
        self.leading = false;
        self.waiters.first().map(|waiter| waiter.thread.clone())
    }

    fn put_back(&mut self, progress: Progress) {
        self.buffer = Some(progress.buffer);
        self.complete = progress.complete;
        self.written = progress.written;
        self.unflushed = progress.unflushed;
    }
}

fn failed(doing: &str, error: &std::io::Error) -> StoreError {
    StoreError::of_write(&format!("{doing} the log"), error)
}
