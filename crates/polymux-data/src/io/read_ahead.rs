//! Streams of files on several tiers are read ahead on all of them at once: no file system below sees more of such a stream than its own
//! ranges.
//!
//! Invariants:
//! * After a read, the reads of the ranges that `inode/read_streams.rs` asks for are started on the tiers. The bytes of the read itself
//!   are there by then, and no thread waits for the ranges ahead.
//! * Streams that are read at the same time share the limit of bytes in flight; ranges that are begun on idle tiers come on top.
//! * All bytes in flight may be on one tier: files begin where they were written first, and a device that is slow has one range in many.
//!   So each tier that has none of them begins its next range, too. (Of 32 files that were read side by side two of three devices read
//!   nothing for 0.4 s, and were waited for as long in the end: 0.87 to 0.89 of the sum.)
//! * Starting a range again costs next to nothing: it is in memory.

use std::ops::Range;

use polymux_records::blockmap::Run;
use polymux_records::counters::Counters;
use polymux_records::store::ObjectEntry;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Block, Ino, TierId};
use polymux_volume::inode::{Asked, FileState, reference_of};

use super::read::{Ahead, SINGLE_READ_MAX};
use crate::data_path::DataPath;

/// Limit of read-ahead bytes in flight for all streams together, unless [`READ_AHEAD_BYTES_MIN`] for each of them is more.
const READ_AHEAD_BYTES_ALL: u64 = 256 << 20;
/// Read-ahead bytes in flight that each stream may have at least.
const READ_AHEAD_BYTES_MIN: u64 = 4 << 20;
/// Read-ahead bytes in flight that a stream may have at most: the devices together deliver as much while the slowest of them answers.
const READ_AHEAD_BYTES_MAX: u64 = 64 << 20;

/// Runs examined for later ranges; a limit for files in many small pieces.
const OUTLOOK_RUNS_MAX: u32 = 64;

/// Tiers that start reading later ranges.
const OUTLOOK_TIERS_MAX: usize = 4;

/// A run of a file and the object that has it.
type Part = (Run, ObjectEntry);

impl DataPath {
    /// How far a stream that a read belongs to is read ahead; `None` where nothing is.
    pub(super) fn stream_window(&self, ahead: Ahead, length: u64) -> Option<u64> {
        if ahead == Ahead::Tier || length <= SINGLE_READ_MAX as u64 {
            return None;
        }
        let streams = self.active_streams.count(self.volume.elapsed_ms()).max(1);
        Some((READ_AHEAD_BYTES_ALL / streams).clamp(READ_AHEAD_BYTES_MIN, READ_AHEAD_BYTES_MAX))
    }

    /// Notes a read of `length` bytes at `offset`, and starts reading the next ranges of its stream.
    pub(super) fn read_ahead_of_stream(
        &self,
        ino: Ino,
        file: &FileState,
        offset: u64,
        length: u64,
        window_bytes: Option<u64>,
    ) {
        let Some(window_bytes) = window_bytes else { return };
        let noted = file.usage.read_streams.lock().note(offset, length, window_bytes);
        if let Some(start) = noted.stream_start {
            self.active_streams.note(ino, start, self.volume.elapsed_ms());
        }
        let Some(asked) = noted.asked else { return };
        for part in &parts(file, &asked.range) {
            if self.begin_to_read(part, asked.range.end.min(file.size())) {
                Counters::count(&self.volume.counters.ranges_read_ahead);
            }
        }
        for (part, end) in first_of_idle_tiers(file, &asked) {
            self.begin_to_read(&part, end);
        }
    }

    /// Begins to read a part of a file, up to `end`. Returns whether its tier can be asked.
    fn begin_to_read(&self, (run, entry): &Part, end: u64) -> bool {
        let (from, to) = (run.start.first_byte(), run.end.first_byte().min(end));
        let Ok(handle) = self.volume.tiers.by_id(entry.tier) else { return false };
        let tier = handle.present().filter(|_| !handle.is_slow());
        if let Some(tier) = &tier {
            tier.read_ahead(reference_of(entry), from, to.saturating_sub(from));
        }
        tier.is_some()
    }
}

/// The next range, and where it ends, of each tier that has nothing of the stream in flight.
fn first_of_idle_tiers(file: &FileState, asked: &Asked) -> Vec<(Part, u64)> {
    let mut found: Vec<(Part, u64)> = Vec::new();
    let outlook_end = asked.outlook_end.min(file.size());
    if asked.range.end >= outlook_end {
        return found;
    }
    let layout = file.layout.read();
    let mut idle: Vec<TierId> = layout.objects.iter().map(|entry| entry.tier).collect();
    let (mut block, asked_end) = (Block::holding(asked.read_to), Block::at_or_after(asked.range.end));
    for _ in 0..OUTLOOK_RUNS_MAX {
        if idle.is_empty() || block.first_byte() >= outlook_end || found.len() == OUTLOOK_TIERS_MAX {
            break;
        }
        let run = layout.map.run_at(block);
        let is_on_its_way = block < asked_end;
        block = if is_on_its_way { run.end.min(asked_end) } else { run.end };
        let Some((_, entry)) = layout.owner_of(&run) else { continue };
        let idle_before = idle.len();
        idle.retain(|tier| *tier != entry.tier);
        if idle.len() < idle_before && !is_on_its_way {
            let range_end = (run.start.first_byte() / RANGE_NODE_SIZE + 1) * RANGE_NODE_SIZE;
            found.push(((run, entry), range_end.min(outlook_end)));
        }
    }
    found
}

/// The parts of a range of a file, by owning object.
fn parts(file: &FileState, range: &Range<u64>) -> Vec<Part> {
    let end = range.end.min(file.size()).max(range.start);
    let layout = file.layout.read();
    let runs = layout.map.runs(Block::holding(range.start), Block::at_or_after(end));
    runs.into_iter().filter_map(|run| Some((run, layout.owner_of(&run)?.1))).collect()
}
