//! Small reads at random that memory answers, for programs that have the volume in themselves (docs/design/0045): a call to the kernel, and nothing that a
//! read of a device needs.
//!
//! Invariants:
//! * A read that a device would have to answer, one of a stream, and one of anything but whole bytes of one object goes the ordinary way: it is
//!   watched, timed and counted as use. Reads that memory answers tell placement nothing, as in a mount, where the kernel has the pages; so
//!   tiers in memory, which are chosen for such reads, have none.
//! * As for every read the mapping is compared afterwards, so that bytes of an object which the file gave up meanwhile are never returned.
//! * A try begins the work of the device where memory does not answer, and nothing watches it. So none is made while a tier is silent.

use std::sync::atomic::Ordering;

use polymux_records::counters::Counters;
use polymux_records::store::ObjectEntry;
use polymux_types::{Block, Timestamp};
use polymux_volume::inode::{FileState, Handle, Inode, MemoryReadState, reference_of};

use super::read::{SINGLE_READ_MAX, is_access_time_kept};
use crate::data_path::DataPath;

impl DataPath {
    /// Reads all of a buffer from memory; `None` where the ordinary way has to be taken.
    pub fn read_from_memory(&self, handle: &Handle, file: &FileState, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let length = buffer.len();
        let state = handle.memory_reads.get_or_init(Box::default);
        let may_try = state.begin(offset, length as u64);
        if !may_try || length == 0 || length > SINGLE_READ_MAX {
            return None;
        }
        if file.is_changed_directly()
            || !file.sizes.is_known.load(Ordering::Acquire)
            || self.holders.are_possible()
            || self.upkeep.has_silent_tier.load(Ordering::Acquire)
            || !self.has_settled_access_time(&handle.inode)
        {
            return None;
        }
        let end = offset.checked_add(length as u64)?;
        let (entry, noted) = whole_in_one_object(file, offset, end)?;
        let Some(count) = self.try_memory(state, &entry, offset, buffer) else {
            state.note_miss();
            return None;
        };
        if count != length || !file.nodes.map_unchanged_since(Block::holding(offset)..Block::at_or_after(end), noted) {
            return None;
        }
        Counters::count(&self.volume.counters.reads);
        Counters::count(&self.volume.counters.reads_from_memory);
        Counters::add(&self.volume.counters.bytes_read, count);
        Some(count)
    }

    fn try_memory(
        &self,
        state: &MemoryReadState,
        entry: &ObjectEntry,
        offset: u64,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let known = state.find(entry.object);
        let reads = known.or_else(|| {
            let tier = self.volume.tiers.by_id(entry.tier).ok()?;
            let reads = tier.present()?.memory_reads(reference_of(entry))?;
            state.remember(entry.object, reads.clone());
            reads.upgrade()
        })?;
        reads.read_from_memory(offset, buffer)
    }

    /// Whether a read leaves the access time as it is.
    fn has_settled_access_time(&self, inode: &Inode) -> bool {
        // A day is compared with the time of the last look at the tiers: reading the clock costs more than all the rest.
        let now = || Timestamp::new(self.upkeep.looked_at_seconds.load(Ordering::Relaxed), 0);
        !self.has_access_times() || is_access_time_kept(&inode.common.read(), now())
    }
}

/// The object that has all bytes of a range, with the version of the map that says so.
fn whole_in_one_object(file: &FileState, offset: u64, end: u64) -> Option<(ObjectEntry, u64)> {
    let layout = file.layout.read();
    if !layout.damaged.is_empty() {
        return None;
    }
    let noted = file.nodes.version();
    if layout.objects.is_empty() || end > file.size() {
        return None;
    }
    let run = layout.map.run_at(Block::holding(offset));
    let (_, entry) = layout.owner_of(&run)?;
    (end <= run.end.first_byte()).then_some((entry, noted))
}
