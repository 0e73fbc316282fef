//! Every transfer of a file with objects warms the range nodes that it touches (P12).

use polymux_types::limits::RANGE_NODE_SIZE;

use crate::core::Core;
use crate::heat::AccessKind;
use crate::inode::Inode;

impl Core {
    /// Notes a read or a write of `length` bytes.
    pub(super) fn note_access(&self, inode: &Inode, kind: AccessKind, offset: u64, length: usize) {
        if length == 0 {
            return;
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
    }
}
