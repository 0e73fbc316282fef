//! Heat in the store: records of 64 nodes, read once after mounting and written as they change.
//!
//! Invariants:
//! * After mounting, a first pass over all records brings them back, a bounded number with each step. Until it is over
//!   nothing is saved, so that no record is overwritten by one that knows less.
//! * Then a sweep over the table, every [`SWEEP_INTERVAL_SECONDS`], saves the chunks with nodes that changed and are warm; a file that was used
//!   once, as nearly every new one is, gets no record. A crash loses the use since the last sweep came by: each read of a warm node would be a
//!   write to the log otherwise.
//! * Later passes over the records remove those that cooled and those of files that are gone. That, and not the
//!   deletion of a file, is where its heat records go.

use std::collections::BTreeSet;

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::store::{HeatRecord, Metadata, NODES_PER_CHUNK, keys};
use polymux_types::Ino;

use super::clock::LogicalClock;
use super::entry::{Entry, HEAT_SAVED, OTHER_NODES};
use super::table::{HeatCursor, HeatTable, seconds};

/// Shortest time between two passes that remove records, in logical seconds.
const PURGE_INTERVAL_SECONDS: u64 = 600;

/// Time between the beginnings of two sweeps that save heat, in logical seconds; a longer sweep is followed by the next one at once.
const SWEEP_INTERVAL_SECONDS: u64 = 300;

/// How far the background step is.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// Every record that there was at the beginning is back.
    is_restored: bool,
    /// Where the pass over the records goes on; `None`: at the beginning.
    next_record: Option<(Ino, u32)>,
    /// When the next pass begins.
    purge_due: u64,
    /// Where the sweep goes on.
    sweep: HeatCursor,
    /// When the next sweep begins.
    sweep_due: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatStep {
    /// Records brought back to memory.
    pub restored: usize,
    pub saved: usize,
    pub removed: usize,
    /// Records are still to be brought back: call again soon.
    pub has_more: bool,
}

impl HeatTable {
    /// Whether everything that was saved is back in memory.
    pub fn is_restored(&self) -> bool {
        self.keeping.lock().is_restored
    }

    /// One step of bringing back, saving and removing: at most `limit` records, one transaction, no wait for a flush.
    /// For a volume that may be written to.
    pub fn step(&self, metadata: &Metadata, clock: &LogicalClock, limit: usize) -> Result<HeatStep> {
        let now = clock.now();
        let mut keeping = self.keeping.lock();
        if !keeping.is_restored {
            return self.pass(&mut keeping, metadata, now, limit);
        }
        let mut step = HeatStep::default();
        if keeping.next_record.is_some() || now >= keeping.purge_due {
            step = self.pass(&mut keeping, metadata, now, limit)?;
            // A pass may take its time.
            step.has_more = false;
        }
        if keeping.sweep == HeatCursor::default() && now < keeping.sweep_due {
            return Ok(step);
        }
        let is_first = keeping.sweep == HeatCursor::default();
        let (next, saved) = self.sweep(keeping.sweep, metadata, now, limit)?;
        keeping.sweep = next.unwrap_or_default();
        if is_first {
            keeping.sweep_due = now.saturating_add(SWEEP_INTERVAL_SECONDS);
        }
        step.saved = saved;
        Ok(step)
    }

    /// Restores the entries that the first pass did not reach, for a volume that may only be read, and for tests.
    pub(crate) fn restore_all(&self, metadata: &Metadata, now: u64) -> Result<usize> {
        let mut keeping = self.keeping.lock();
        let mut restored = 0;
        while !keeping.is_restored {
            let records = metadata.heat_records(keeping.next_record, 1024)?;
            restored += records.len();
            for ((ino, chunk), value) in &records {
                if let Ok(record) = HeatRecord::decode(value) {
                    self.restore_record(*ino, *chunk, &record, seconds(now));
                }
            }
            keeping.next_record = records.last().and_then(|((ino, chunk), _)| after(*ino, *chunk));
            keeping.is_restored = keeping.next_record.is_none();
        }
        Ok(restored)
    }

    /// Saves everything that is warm and changed. For the end of a mount, before the last flush; first brings back
    /// records that are not back yet.
    pub fn save_all(&self, metadata: &Metadata, now: u64) -> Result<usize> {
        self.restore_all(metadata, now)?;
        let _keeping = self.keeping.lock();
        let (mut cursor, mut saved) = (HeatCursor::default(), 0);
        loop {
            let (next, count) = self.sweep(cursor, metadata, now, 1024)?;
            saved += count;
            match next {
                Some(next) => cursor = next,
                None => return Ok(saved),
            }
        }
    }

    /// Looks at the next records: brings them back in the first pass, and removes those that mean nothing any more.
    fn pass(&self, keeping: &mut Keeping, metadata: &Metadata, now: u64, limit: usize) -> Result<HeatStep> {
        let records = metadata.heat_records(keeping.next_record, limit.max(1))?;
        let (mut batch, mut step) = (Batch::new(), HeatStep::default());
        for ((ino, chunk), value) in &records {
            match HeatRecord::decode(value) {
                Ok(record) if self.is_warm(&record, seconds(now)) && metadata.inode(*ino)?.is_some() => {
                    if !keeping.is_restored {
                        self.restore_record(*ino, *chunk, &record, seconds(now));
                        step.restored += 1;
                    }
                }
                outcome => {
                    if let Err(error) = outcome {
                        log::warn!("heat of inode {ino} is lost: {error}");
                    }
                    batch.delete(keys::heat(*ino, *chunk));
                    step.removed += 1;
                }
            }
        }
        if step.removed > 0 {
            metadata.commit(batch)?;
        }
        let is_over = records.len() < limit.max(1);
        keeping.next_record = records.last().filter(|_| !is_over).and_then(|((ino, chunk), _)| after(*ino, *chunk));
        if keeping.next_record.is_none() {
            keeping.is_restored = true;
            keeping.purge_due = now + PURGE_INTERVAL_SECONDS.max(u64::from(self.half_life_seconds) / 4);
        }
        step.has_more = !keeping.is_restored;
        Ok(step)
    }

    fn is_warm(&self, record: &HeatRecord, now: u32) -> bool {
        // Half of the heat that makes a record, so that one at the limit does not come and go.
        let heat = |node| Entry::from_record(0, 0, node).heat(now, &self.decay);
        record.nodes.iter().any(|node| heat(node) >= HEAT_SAVED / 2)
    }

    fn restore_record(&self, ino: Ino, chunk: u32, record: &HeatRecord, now: u32) {
        for node in &record.nodes {
            if let Some(number) = chunk.checked_mul(NODES_PER_CHUNK) {
                self.restore(&Entry::from_record(ino.0, number | u32::from(node.index), node), now);
            }
        }
    }

    /// Saves up to `limit` chunks, beginning at a place of the table; gives the place to go on from, `None` at the end.
    fn sweep(
        &self,
        from: HeatCursor,
        metadata: &Metadata,
        now: u64,
        limit: usize,
    ) -> Result<(Option<HeatCursor>, usize)> {
        let mut chunks = BTreeSet::new();
        let now = seconds(now);
        let next = self.for_each_entry(from, limit, |entry| {
            if entry.is_changed() && entry.heat(now, &self.decay) >= HEAT_SAVED {
                chunks.insert((Ino(entry.ino), entry.node / NODES_PER_CHUNK));
            }
        });
        let (mut batch, mut saved) = (Batch::new(), 0);
        for (ino, chunk) in chunks {
            if metadata.inode(ino)?.is_none() {
                self.forget(ino, u64::from(NODES_PER_CHUNK));
                continue;
            }
            batch.put(keys::heat(ino, chunk), self.record_of(ino, chunk, now).encode());
            saved += 1;
        }
        if saved > 0 {
            metadata.commit(batch)?;
        }
        Ok((next, saved))
    }

    /// The warm nodes of a chunk.
    fn record_of(&self, ino: Ino, chunk: u32, now: u32) -> HeatRecord {
        let first = chunk * NODES_PER_CHUNK;
        // The last chunk holds nothing but the entry for many nodes.
        let indexes = if chunk == OTHER_NODES / NODES_PER_CHUNK { NODES_PER_CHUNK - 1.. } else { 0.. };
        let nodes = indexes.take_while(|index| *index < NODES_PER_CHUNK).filter_map(|index| {
            let entry = self.take_for_saving(ino, first + index)?;
            let place = u8::try_from(index).expect("a chunk has few nodes");
            (entry.heat(now, &self.decay) >= HEAT_SAVED).then(|| entry.to_record(place))
        });
        HeatRecord { nodes: nodes.collect() }
    }
}

/// The place right after a record.
fn after(ino: Ino, chunk: u32) -> Option<(Ino, u32)> {
    match chunk.checked_add(1) {
        Some(next) => Some((ino, next)),
        None => ino.0.checked_add(1).map(|next| (Ino(next), 0)),
    }
}
