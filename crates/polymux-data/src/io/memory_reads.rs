//! Small reads at random that memory answers, for programs that have the volume in themselves (docs/design/0045): a call to the kernel, and nothing that a
//! read of a device needs.
//!
//! Invariants:
//! * A read that a device would have to answer, one of a stream, and one of anything but whole bytes of one object goes the ordinary way: it is
//!   watched, timed and counted as use. Reads that memory answers tell placement nothing, as in a mount, where the kernel has the pages.
//! * As for every read the mapping is compared afterwards, so that bytes of an object which the file gave up meanwhile are never returned.

use std::sync::atomic::Ordering;

use polymux_records::attributes::ATTRIBUTE_NO_ATIME;
use polymux_records::counters::Counters;
use polymux_records::parts::AccessTimes;
use polymux_records::store::ObjectEntry;
use polymux_types::Block;
use polymux_volume::inode::{FileState, Handle, Inode, reference_of};

use super::read::SINGLE_READ_MAX;
use crate::data_path::DataPath;

impl DataPath {
    /// Reads all of a buffer from memory; `None` where the ordinary way has to be taken.
    pub fn read_from_memory(&self, handle: &Handle, file: &FileState, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let length = buffer.len();
        if length == 0 || length > SINGLE_READ_MAX || !handle.memory_reads.may_begin(offset, length as u64) {
            return None;
        }
        if file.is_changed_directly()
            || !file.sizes.is_known.load(Ordering::Acquire)
            || self.holders.are_possible()
            || !self.has_settled_access_time(&handle.inode)
        {
            return None;
        }
        let end = offset.checked_add(length as u64)?;
        let (entry, noted) = whole_in_one_object(file, offset, end)?;
        if !handle.memory_reads.knows(entry.object) {
            self.remember_open_object(handle, &entry);
        }
        let count = handle.memory_reads.read(entry.object, offset, buffer)?;
        if count != length || !file.nodes.map_unchanged_since(Block::holding(offset)..Block::at_or_after(end), noted) {
            return None;
        }
        Counters::count(&self.volume.counters.reads);
        Counters::count(&self.volume.counters.reads_from_memory);
        Counters::add(&self.volume.counters.bytes_read, count);
        Some(count)
    }

    fn remember_open_object(&self, handle: &Handle, entry: &ObjectEntry) {
        let Ok(handle_of_tier) = self.volume.tiers.by_id(entry.tier) else { return };
        let tier = handle_of_tier.present();
        if let Some(reads) = tier.and_then(|tier| tier.memory_reads(reference_of(entry))) {
            handle.memory_reads.remember(entry.object, reads);
        }
    }

    /// Whether a read leaves the access time as it is, but for its age, which the ordinary way looks at now and then.
    fn has_settled_access_time(&self, inode: &Inode) -> bool {
        if self.volume.is_read_only() || self.volume.options.access_times == AccessTimes::Never {
            return true;
        }
        let common = inode.common.read();
        common.attribute_flags & ATTRIBUTE_NO_ATIME != 0
            || common.accessed > common.modified && common.accessed > common.changed
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
