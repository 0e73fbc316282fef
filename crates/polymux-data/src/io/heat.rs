//! Every transfer of a file with objects warms the range nodes that it touches (P12).

use std::sync::Arc;

use polymux_records::attributes::WriteOrigin;
use polymux_records::parts::Promotion;
use polymux_types::Block;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_volume::heat::{AccessKind, Pattern};
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::space::TierHandle;

use super::read::Ahead;
use crate::data_path::DataPath;

/// Bytes of a read, write or sync up to which it costs its device a request, and not the transfer of its bytes.
pub(super) const SMALL_MAX: usize = 64 << 10;

impl DataPath {
    /// Notes a read and the bytes of it that devices served.
    pub(super) fn note_read(&self, inode: &Inode, offset: u64, length: usize, from_devices: u64, ahead: Ahead) {
        let Some(pattern) = self.note_access(inode, AccessKind::Read, offset, length) else { return };
        if ahead == Ahead::File {
            self.read_uses.note(inode.ino, pattern, length as u64);
        }
        if !self.counts_demand() {
            return;
        }
        // Data that a stream finds in memory was read ahead from the device.
        let demanded = if pattern == Pattern::Sequential { length as u64 } else { from_devices };
        // Requests that the kernel reads ahead overtake one another, and then none goes on where another ended: only small ones are random.
        let pattern = if length > SMALL_MAX { Pattern::Sequential } else { pattern };
        if demanded > 0 {
            self.placement.heat.demand.note(inode.ino, offset / RANGE_NODE_SIZE, pattern, demanded);
        }
    }

    /// Notes a write. A small one at random is demand if a page cache sends it, which has merged repeated ones: a program may write the same
    /// bytes a thousand times before they go to the device once.
    pub(super) fn note_write(&self, inode: &Inode, offset: u64, length: usize, origin: WriteOrigin) {
        let pattern = self.note_access(inode, AccessKind::Write, offset, length);
        let is_request = pattern == Some(Pattern::Random) && length <= SMALL_MAX && origin.is_from_cache();
        if !is_request || !self.counts_demand() {
            return;
        }
        self.placement.heat.demand.note_small_write(inode.ino, offset / RANGE_NODE_SIZE);
        if let Some(tier) = inode.file().and_then(|file| self.tier_at(file, offset)) {
            tier.speed.small_writes.note_write();
        }
    }

    /// The tier that has the block of an offset.
    pub(super) fn tier_at(&self, file: &FileState, offset: u64) -> Option<Arc<TierHandle>> {
        let owner = {
            let layout = file.layout.read();
            layout.owner_of(&layout.map.run_at(Block::holding(offset)))
        };
        owner.and_then(|(_, entry)| self.volume.tiers.by_id(entry.tier).ok())
    }

    pub(super) fn counts_demand(&self) -> bool {
        self.volume.options.promotion == Promotion::Prompt
            && !self.volume.is_read_only()
            && !self.placement.tier_reads.is_pointless()
    }

    /// Notes a read or a write of `length` bytes. Says how it relates to those before it, where there is any byte.
    pub(super) fn note_access(&self, inode: &Inode, kind: AccessKind, offset: u64, length: usize) -> Option<Pattern> {
        if length == 0 {
            return None;
        }
        let length = length as u64;
        let pattern = self.streams.pattern(inode.ino, offset, length);
        let now = self.placement.logical_clock.now();
        let end = offset.saturating_add(length);
        let mut position = offset;
        while position < end {
            let node = position / RANGE_NODE_SIZE;
            let next = end.min((node + 1) * RANGE_NODE_SIZE);
            self.placement.heat.touch(inode.ino, node, kind, next - position, pattern, now);
            position = next;
        }
        Some(pattern)
    }
}
