//! Files that were emptied and rewritten: they are synced when they are closed (option `sync_on_replace`), so that a crash leaves the
//! old or the new content and no empty file (DESIGN section 6).
//!
//! Invariants:
//! * Where a close is heard of ([`Core::flush`]), it waits for the sync. A kernel that collects writes sends no message for a close, so there
//!   the release of a writer puts the file into a queue, and the background syncs the files of each tier one after the other.
//! * A file that a writer has open leaves the queue unsynced, and is put back by the release of that writer. A file that is emptied while it is
//!   being synced counts as emptied afterwards.
//! * A file whose sync failed, and lost nothing, is tried again.
//! * An unmount and a sync of the volume need not look here: they sync everything. The queue is lost with its daemon; the next one then
//!   syncs everything once.

use std::sync::Arc;
use std::time::Duration;

use polymux_types::TierId;

use crate::core::Core;
use crate::error::Result;
use crate::inode::{FileState, Inode};
use crate::planted_faults::{PlantedFault, is_planted};

/// Files of a tier synced in a step,
const FILES_PER_STEP: usize = 16;
/// and how long the step goes on with further ones.
const STEP_MAX: Duration = Duration::from_millis(10);

/// With more files than this waiting for a tier, one sync of everything comes before their own, which then find nothing to do.
const BACKLOG_MAX: usize = 256;

/// Time before a tier on which a sync failed is tried again.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(10);

impl Core {
    /// Whether the new content of an emptied file has to be synced by its close, or soon after it.
    pub(crate) fn awaits_sync_of_new_content(&self, file: &FileState) -> bool {
        self.options.sync_on_replace
            && file.emptyings.are_unsynced()
            && !is_planted(PlantedFault::CloseAfterEmptyingWithoutSync)
    }

    /// Puts a file that a writer just released into the queue if its new content was not synced by a close.
    pub(crate) fn queue_if_rewritten(&self, inode: &Arc<Inode>) {
        let Some(file) = inode.file() else { return };
        if !self.awaits_sync_of_new_content(file) || self.check_writable().is_err() || inode.common.read().links == 0 {
            return;
        }
        let of_object = file.layout.read().objects.first().map(|entry| entry.tier);
        let first = || self.tiers.all().iter().map(|tier| tier.id).next();
        if let Some(tier) = of_object.or_else(first) {
            self.rewritten.add(tier, inode);
        }
    }

    /// Syncs files that wait on the list of a tier. Returns whether there were any.
    pub(crate) fn sync_rewritten_on(&self, tier: TierId) -> bool {
        if self.check_writable().is_err() {
            self.rewritten.clear();
            return false;
        }
        let began = self.clock.elapsed();
        let waiting = self.rewritten.waiting_on(tier, began);
        if (self.rewritten.take_death() || waiting > BACKLOG_MAX)
            && let Err(error) = self.sync_volume()
        {
            log::warn!("volume {}: not everything that was rewritten is durable yet: {error}", self.name);
        }
        for _ in 0..waiting.min(FILES_PER_STEP) {
            let Some(inode) = self.rewritten.take(tier) else { break };
            if let Err(error) = self.sync_rewritten(&inode) {
                log::warn!(
                    "inode {}: its new content is not durable yet and is synced again later: {error}",
                    inode.ino
                );
                self.rewritten.add(tier, &inode);
                self.rewritten.rest(tier, self.clock.elapsed() + REST_AFTER_FAILURE);
                break;
            }
            if self.clock.elapsed().saturating_sub(began) >= STEP_MAX {
                break;
            }
        }
        waiting > 0
    }

    fn sync_rewritten(&self, inode: &Arc<Inode>) -> Result<()> {
        let Some(file) = inode.file() else { return Ok(()) };
        // Before the writers are counted: one that empties the file from now on is seen below.
        let emptyings = file.emptyings.count();
        let (is_gone, writers) = {
            let lifecycle = inode.lifecycle.lock();
            (lifecycle.gone, lifecycle.writers)
        };
        if is_gone || writers > 0 || !self.awaits_sync_of_new_content(file) {
            return Ok(());
        }
        let synced = self.sync_file(inode, file);
        if synced.is_err() || file.emptyings.count() != emptyings {
            file.emptyings.note();
            if synced.is_ok() && inode.lifecycle.lock().writers == 0 {
                self.queue_if_rewritten(inode);
            }
        }
        synced
    }
}
