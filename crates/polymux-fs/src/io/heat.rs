//! Every transfer of a file with objects warms the range nodes that it touches (P12).

use polymux_types::limits::RANGE_NODE_SIZE;

use crate::core::Core;
use crate::heat::{AccessKind, Pattern};
use crate::inode::Inode;

impl Core {
    /// Notes a read of a file on several tiers that are to share its reads.
    pub(super) fn note_spread_read(&self, inode: &Inode, offset: u64, length: usize) {
        if let Some(pattern) = self.note_access(inode, AccessKind::Read, offset, length) {
            self.read_uses.note(inode.ino, pattern, length as u64);
        }
    }

    /// Notes a read or a write of `length` bytes. Says how it relates to those before it, where there is any byte.
    pub(super) fn note_access(&self, inode: &Inode, kind: AccessKind, offset: u64, length: usize) -> Option<Pattern> {
        if length == 0 {
            return None;
        }
        let length = length as u64;
        let pattern = self.streams.pattern(inode.ino, offset, length);
        let now = self.logical_clock.now();
        let end = offset.saturating_add(length);
        let mut position = offset;
        while position < end {
            let node = position / RANGE_NODE_SIZE;
            let next = end.min((node + 1) * RANGE_NODE_SIZE);
            self.heat.touch(inode.ino, node, kind, next - position, pattern, now);
            position = next;
        }
        Some(pattern)
    }
}
