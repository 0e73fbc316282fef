//! Long streams of writes begin their way to the device while they come (docs/design/0018).
//!
//! What is true here: nobody waits, and nothing is durable by it. Where all of a large file is less than what the kernel lets be
//! dirty, its device would begin with the sync; where there is no device below, nothing is begun.

use polymux_tier::Guarantee;

use super::{block_after, block_of, start_of};
use crate::core::Core;
use crate::counters::Counters;
use crate::inode::{FileState, WriteStreams, reference_of};

impl Core {
    /// Bytes were written to a file that is not spread. Where they belong to a long stream, what is complete of it is written
    /// behind. What the kernel changes itself it also writes out itself.
    pub(super) fn write_stream_behind(&self, file: &FileState, offset: u64, count: usize) {
        let end = offset + count as u64;
        if WriteStreams::is_before_any(end) || file.is_passed_through() {
            return;
        }
        let Some(range) = file.write_streams.lock().note(offset, count as u64) else { return };
        let parts: Vec<_> = {
            let layout = file.layout.read();
            let runs = layout.map.runs(block_of(range.start), block_after(range.end));
            let owned = |run| layout.owner_of(&run).map(|(_, entry)| (start_of(run.start)..start_of(run.end), entry));
            runs.into_iter().filter_map(owned).collect()
        };
        for (run, entry) in parts {
            let (start, end) = (run.start.max(range.start), run.end.min(range.end));
            let Ok(handle) = self.tiers.by_id(entry.tier) else { continue };
            // In memory nothing is gained, and a server writes when it wants to.
            let is_device = handle.present().is_some_and(|tier| tier.capabilities().guarantee == Guarantee::Durable);
            if !is_device || handle.is_slow() || start >= end {
                continue;
            }
            let taken = self.write_behind.stream(&handle, reference_of(&entry), start, end - start);
            Counters::add(&self.counters.stream_bytes_behind, usize::try_from(taken).unwrap_or(usize::MAX));
        }
    }
}
