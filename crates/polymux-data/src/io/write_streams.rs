//! Write-back to the device starts early for long streams of writes and for writes that the kernel collected (docs/design/0018, 0036).
//!
//! Invariants: no writer waits, and nothing is durable by it. Where all of a large file is less than the kernel lets be dirty, its device
//! would begin with the sync; where no device is below, nothing is begun.

use std::sync::Arc;

use polymux_records::counters::Counters;
use polymux_records::store::ObjectEntry;
use polymux_tier::{Guarantee, Tier};
use polymux_types::Block;
use polymux_volume::inode::{FileState, WriteStreams, reference_of};
use polymux_volume::space::TierHandle;

use crate::data_path::DataPath;

/// Whether a write that was begun early is sooner on a device: in memory nothing is gained, and a server writes when it wants to.
fn has_device(handle: &TierHandle) -> bool {
    let is_durable = |tier: &dyn Tier| tier.capabilities().guarantee == Guarantee::Durable;
    handle.present().is_some_and(is_durable) && !handle.is_slow()
}

impl DataPath {
    /// Bytes of a file that is not spread came to a volume whose kernel collects writes. The kernel sends data that should be written
    /// now: it is old, there is much of it, or a program asked for it (`sync_file_range`, as the checkpoints of databases do); a program that
    /// writes past the page cache wants the same. So write-back starts at once, instead of leaving the data in the memory of the tier until a
    /// sync finds all of it there. Files that programs wait for are synced next in any case.
    pub(super) fn write_collected_behind(
        &self,
        file: &FileState,
        handle: &Arc<TierHandle>,
        entry: &ObjectEntry,
        position: u64,
        count: usize,
    ) {
        if !has_device(handle) || file.is_waited_for(self.volume.clock.elapsed()) {
            return;
        }
        let taken = self.write_behind.collected(handle, reference_of(entry), position, count);
        Counters::add(&self.volume.counters.collected_bytes_behind, usize::try_from(taken).unwrap_or(usize::MAX));
    }

    /// Called after a write to a file that is not spread. If it belongs to a long stream, write-behind begins for the complete part of the
    /// stream. The kernel writes out its own direct changes itself.
    pub(super) fn write_stream_behind(&self, file: &FileState, offset: u64, count: usize) {
        let end = offset + count as u64;
        if WriteStreams::is_before_any(end) || file.is_passed_through() {
            return;
        }
        let Some(range) = file.usage.write_streams.lock().note(offset, count as u64) else { return };
        let parts: Vec<_> = {
            let layout = file.layout.read();
            let runs = layout.map.runs(Block::holding(range.start), Block::at_or_after(range.end));
            let owned =
                |run| layout.owner_of(&run).map(|(_, entry)| (run.start.first_byte()..run.end.first_byte(), entry));
            runs.into_iter().filter_map(owned).collect()
        };
        for (run, entry) in parts {
            let (start, end) = (run.start.max(range.start), run.end.min(range.end));
            let Ok(handle) = self.volume.tiers.by_id(entry.tier) else { continue };
            if !has_device(&handle) || start >= end {
                continue;
            }
            let taken = self.write_behind.stream(&handle, reference_of(&entry), start, end - start);
            Counters::add(&self.volume.counters.stream_bytes_behind, usize::try_from(taken).unwrap_or(usize::MAX));
        }
    }
}
