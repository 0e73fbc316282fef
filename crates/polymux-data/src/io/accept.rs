//! The damaged ranges of a file become zeros after a user accepted their loss (docs/design/0027).

use std::sync::atomic::Ordering;

use polymux_records::error::Result;
use polymux_volume::inode::{FileState, Inode};

use super::short::block_begin;
use crate::data_path::DataPath;

impl DataPath {
    /// Makes the damaged ranges of a file zeros. Returns them: start and end.
    pub fn accept_damage(&self, inode: &Inode, file: &FileState) -> Result<Vec<(u64, u64)>> {
        self.ensure_size(inode, file)?;
        let ranges = {
            let _alone = file.lock_alone();
            let _append = file.append.lock();
            self.see_direct_changes(inode, file)?;
            let _changing = file.allocation.changing();
            let ranges = file.layout.read().damaged.clone();
            let size = file.size();
            for (start, end) in &ranges {
                self.punch_range(inode, file, *start, (*end).min(size))?;
                // Of the first block the bytes before the range are good.
                let length = usize::try_from(*end - block_begin(*start)).unwrap_or(usize::MAX);
                self.heal(inode, file, block_begin(*start), length)?;
            }
            self.forget_damage_beyond(inode, file, size);
            file.direct.pages_stale.store(true, Ordering::Release);
            ranges
        };
        self.sync_file(inode, file)?;
        Ok(ranges)
    }
}
