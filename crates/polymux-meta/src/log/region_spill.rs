//! A log whose end is in a byte-addressable region: syncing it, and giving its older half to the block medium (A8).
//!
//! Invariants:
//! * An entry is durable before it is complete: the thread that fills it writes its lines back and only then says so in memory.
//!   So `durable` is the end of the complete prefix, any thread may move it on, and a sync writes nothing.
//! * A half is given up in this order: all of its entries complete; written to the block medium, unless they are in the
//!   tables; flushed; the region's header; `low`. A crash in between leaves the half in the region.
//! * One thread spills at a time, under the lock of the buffer. It waits for no other thread, so a thread that needs free
//!   space waits for that lock.
//! * Such a log has no leader: the state of `flush` is not used.

use super::Log;
use super::medium::BLOCK;
use super::region::RegionLog;
use super::ring::pieces;
use crate::error::StoreError;
use polymux_types::sync::{Ordering, thread};

/// Looks at the entry that is missing before a sync that waits for it goes to sleep.
const LOOKS: u32 = 100;

impl Log {
    /// As [`Log::sync`]: waits until every entry before `through` is complete.
    pub(super) fn sync_in_region(&self, region: &RegionLog, through: u64) -> Result<(), StoreError> {
        let mut looks = 0_u32;
        while self.advance_durable(through) < through {
            self.check()?;
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                // The missing entry probably waits for space, and a spill is on its way.
                drop(region.spill_buffer.lock());
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Moves `durable` on over complete entries, not much further than `through`. Returns it.
    fn advance_durable(&self, through: u64) -> u64 {
        let mut durable = self.durable.0.load(Ordering::Acquire);
        while durable < through {
            let Some(end) = self.window.end_of_complete(durable) else { break };
            // Where others have moved on meanwhile, the entries found may be of a later round; positions are never reused, so
            // they are discarded then.
            durable = match self.durable.0.compare_exchange(durable, end, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => end,
                Err(now) => now,
            };
        }
        durable
    }

    /// Gives the older half of the region up, where all of it is complete. Returns whether there was one.
    pub(super) fn spill(&self, region: &RegionLog, urgency: SpillUrgency) -> Result<bool, StoreError> {
        let mut buffer = region.spill_buffer.lock();
        self.check()?;
        let low = self.low.0.load(Ordering::Acquire);
        let boundary = low + region.data_length() / 2;
        if self.advance_durable(self.tail()) < boundary {
            return Ok(false);
        }
        let checkpoint = self.checkpoint();
        let from = (checkpoint - checkpoint % BLOCK).max(low);
        if from < boundary {
            // A region as long as the ring holds all of the log that is not in the tables. So they get time to come.
            let waits_for_tables = region.data_length() == self.ring_length();
            let used = self.tail() - low;
            if urgency == SpillUrgency::Ahead && waits_for_tables && used < region.data_length() / 4 * 3 {
                return Ok(false);
            }
            let outcome = self.write_half(from, boundary, buffer.as_mut_slice());
            if let Err(error) = outcome.and_then(|()| region.set_low(boundary)) {
                drop(buffer);
                return Err(self.poison(error));
            }
        } else if let Err(error) = region.set_low(boundary) {
            drop(buffer);
            return Err(self.poison(error));
        }
        self.low.0.store(boundary, Ordering::Release);
        Ok(true)
    }

    /// Copies `from .. to` of the log to the block medium, durably.
    fn write_half(&self, from: u64, to: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let failed = |error: std::io::Error| StoreError::Io(format!("writing the log: {error}"));
        let mut at = from;
        while at < to {
            let end = to.min(at + buffer.len() as u64);
            let (offset, _, end) = pieces(self.ring_length, at, end).next().expect("there is something to write");
            let blocks = &mut buffer[..usize::try_from(end - at).expect("a chunk fits into memory")];
            self.window.copy_out(at, end, blocks);
            self.counts.device_bytes.fetch_add(end - at, Ordering::Relaxed);
            self.medium.write(offset, blocks).map_err(failed)?;
            at = end;
        }
        self.medium.flush().map_err(failed)?;
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Why the region is to give a half up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpillUrgency {
    /// Free space is made before a thread needs it.
    Ahead,
    /// A thread needs free space.
    Waiting,
}
