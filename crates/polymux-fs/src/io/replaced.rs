//! Files that were emptied and rewritten: they are synced when they are closed (option `sync_on_replace`), so that a crash leaves the
//! old or the new content and no empty file (DESIGN section 6).
//!
//! Invariants:
//! * Where a close is heard of ([`Core::flush`]), it waits for the sync. A kernel that collects writes sends no message for a close, so there
//!   the release puts the file into a queue, and the background syncs one file after the other.
//! * A file leaves the queue when its sync begins. If it was emptied again meanwhile, it counts as emptied, and its next release puts it
//!   into the queue again.
//! * An unmount and a sync of the volume need not look here: they sync everything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::Result;
use crate::inode::{FileState, Inode};
use crate::planted_faults::{PlantedFault, is_planted};

impl Core {
    /// Whether the next close of a file by a writer syncs it.
    pub(crate) fn is_synced_at_close(&self, file: &FileState) -> bool {
        self.options.sync_on_replace
            && file.emptied.load(Ordering::Acquire)
            && !is_planted(PlantedFault::CloseAfterEmptyingWithoutSync)
    }

    /// Notes that a writer released a file without a close that was heard of, or with one that failed.
    pub(crate) fn note_released_by_writer(&self, inode: &Arc<Inode>) {
        let is_due = inode.file().is_some_and(|file| self.is_synced_at_close(file));
        if is_due && !self.is_read_only() && inode.common.read().links > 0 {
            self.replaced_contents.add(inode);
        }
    }

    /// Syncs files of the queue, at most so many. Returns whether there are more.
    pub(crate) fn sync_replaced_contents(&self, files_max: usize) -> bool {
        for _ in 0..files_max {
            let Some(inode) = self.replaced_contents.take() else { return false };
            if let Err(error) = self.sync_replaced_content(&inode) {
                log::warn!("inode {}: what replaced its content is not durable yet: {error}", inode.ino);
            }
        }
        !self.replaced_contents.is_empty()
    }

    fn sync_replaced_content(&self, inode: &Inode) -> Result<()> {
        let Some(file) = inode.file().filter(|file| self.is_synced_at_close(file)) else { return Ok(()) };
        if inode.lifecycle.lock().gone {
            return Ok(());
        }
        // Emptying gives up all objects (docs/design/0003).
        let objects = || -> Vec<_> { file.layout.read().objects.iter().map(|entry| entry.object).collect() };
        let before = objects();
        let synced = self.sync_file(inode, file);
        let was_emptied_again = before.iter().any(|object| !objects().contains(object));
        if was_emptied_again {
            file.emptied.store(true, Ordering::Release);
        }
        synced
    }
}
