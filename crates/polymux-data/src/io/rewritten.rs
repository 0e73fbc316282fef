//! Files that were emptied and rewritten: they are synced when they are closed (option `sync_on_replace`), so that a crash after that leaves
//! the new content and no empty file (DESIGN section 6).
//!
//! Invariants:
//! * Where a close is heard of ([`DataPath::flush`]), it waits for the sync. A kernel that collects writes sends no message for a close, so there
//!   the release of a writer puts the file into a queue, and the background syncs the files of each tier one after the other.
//! * A file that a writer has open leaves the queue unsynced, and is put back by the release of that writer. A file that is emptied while it is
//!   being synced counts as emptied afterwards.
//! * A file whose sync failed, and lost nothing, is tried again.
//! * An unmount need not look here: it syncs everything. The queue is lost with its daemon; the next one then syncs each tier once.

use std::sync::Arc;
use std::time::Duration;

use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::space::TierHandle;

use crate::data_path::DataPath;

/// Files of a tier synced in a step,
const FILES_PER_STEP: usize = 16;
/// and how long the step goes on with further ones.
const STEP_MAX: Duration = Duration::from_millis(10);

/// With more files than this waiting for a tier, a sync of the whole tier comes before their own, which then find nothing to do there.
const BACKLOG_MAX: usize = 256;

/// Time before a tier on which a sync failed is tried again.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(10);

impl DataPath {
    /// Whether the new content of an emptied file has to be synced by its close, or soon after it.
    pub fn awaits_sync_of_new_content(&self, file: &FileState) -> bool {
        self.volume.options.sync_on_replace
            && file.durability.emptyings.are_unsynced()
            && !is_planted(PlantedFault::CloseAfterEmptyingWithoutSync)
    }

    /// Puts a file that a writer just released into the queue if its new content was not synced by a close.
    pub fn queue_if_rewritten(&self, inode: &Arc<Inode>) {
        let Some(file) = inode.file() else { return };
        if !self.awaits_sync_of_new_content(file)
            || self.volume.check_writable().is_err()
            || inode.common.read().links == 0
        {
            return;
        }
        let of_object = file.layout.read().objects.first().map(|entry| entry.tier);
        if let Some(tier) = of_object {
            self.rewritten.add(tier, inode);
        }
    }

    /// As [`DataPath::queue_if_rewritten`], at the last close of a file without objects: its bytes are in the log, which is flushed soon.
    pub fn flush_soon_if_rewritten(&self, inode: &Inode) {
        let Some(file) = inode.file().filter(|file| self.awaits_sync_of_new_content(file)) else { return };
        if file.layout.read().objects.is_empty() && inode.common.read().links > 0 {
            file.durability.emptyings.note_sync();
            self.rewritten.want_flush();
        }
    }

    /// Flushes the log for files without objects that were rewritten and closed.
    pub fn flush_for_rewritten(&self) -> Result<()> {
        if !self.rewritten.take_flush() {
            return Ok(());
        }
        self.volume.flush_through(self.volume.metadata.committed()).inspect_err(|_| self.rewritten.want_flush())
    }

    /// Syncs files that wait on the list of a tier that works, for some milliseconds. Returns whether there were any.
    pub fn sync_rewritten_on(&self, tier: &TierHandle) -> bool {
        if self.volume.check_writable().is_err() {
            self.rewritten.forget(tier.id);
            return false;
        }
        if self.rewritten.rests(tier.id, self.volume.clock.elapsed()) {
            return false;
        }
        if let Err(error) = self.sync_tier_for_many(tier) {
            log::warn!("tier `{}`: rewritten files are not durable yet and are synced again later: {error}", tier.name);
            self.rewritten.rest(tier.id, self.volume.clock.elapsed() + REST_AFTER_FAILURE);
            return false;
        }
        let (waiting, covered) = self.rewritten.waiting_on(tier.id);
        let began = self.volume.clock.elapsed();
        // Of those that the sync of the tier covered, each costs next to nothing.
        for _ in 0..waiting.min(FILES_PER_STEP.max(covered)) {
            let Some(inode) = self.rewritten.take(tier.id) else { break };
            if let Err(error) = self.sync_rewritten(&inode) {
                self.try_rewritten_later(&inode, tier, &error);
            }
            let now = self.volume.clock.elapsed();
            if now.saturating_sub(began) >= STEP_MAX || self.rewritten.rests(tier.id, now) {
                break;
            }
        }
        waiting > 0
    }

    /// Syncs a whole tier where many files wait on its list, or where a daemon died that may have had some there.
    fn sync_tier_for_many(&self, tier: &TierHandle) -> Result<()> {
        let (waiting, covered) = self.rewritten.waiting_on(tier.id);
        if self.rewritten.take_death(tier.id) {
            let synced = self.sync_whole_tier(tier).and_then(|()| self.flush_all_records());
            synced.inspect_err(|_| self.rewritten.note_death(tier.id))?;
        } else if waiting - covered > BACKLOG_MAX {
            self.sync_whole_tier(tier)?;
        } else {
            return Ok(());
        }
        self.rewritten.note_covered(tier.id, waiting);
        Ok(())
    }

    fn sync_whole_tier(&self, tier: &TierHandle) -> Result<()> {
        let Some(present) = tier.present() else { return Err(ErrorKind::TierMissing(tier.id).into()) };
        present.sync_all().map_err(|error| tier.note_error(error))
    }

    /// A file waits on the list of the tier that its sync failed on.
    fn try_rewritten_later(&self, inode: &Arc<Inode>, tier: &TierHandle, error: &Error) {
        let failed_on = match error.kind() {
            ErrorKind::TierMissing(other) | ErrorKind::Tier { tier: other, .. } => *other,
            _ => tier.id,
        };
        self.rewritten.add(failed_on, inode);
        if failed_on == tier.id {
            log::warn!("inode {}: its new content is not durable yet and is synced again later: {error}", inode.ino);
            self.rewritten.rest(tier.id, self.volume.clock.elapsed() + REST_AFTER_FAILURE);
        }
    }

    fn sync_rewritten(&self, inode: &Arc<Inode>) -> Result<()> {
        let Some(file) = inode.file() else { return Ok(()) };
        // Before the writers are counted: one that empties the file from now on is seen below.
        let emptyings = file.durability.emptyings.count();
        let (is_gone, writers) = {
            let lifecycle = inode.lifecycle.lock();
            (lifecycle.gone, lifecycle.writers)
        };
        if is_gone || writers > 0 || !self.awaits_sync_of_new_content(file) {
            return Ok(());
        }
        file.durability.emptyings.note_sync();
        let synced = self.sync_file(inode, file);
        if synced.is_ok() && !file.durability.unsynced.lock().is_empty() {
            // The sync of the tier was theirs. A writer notes its bytes before it writes them, and holds the barrier for both.
            let _alone = file.lock_alone();
            self.forget_synced(file);
        }
        if synced.is_err() || file.durability.emptyings.count() != emptyings {
            file.durability.emptyings.note();
            if synced.is_ok() && inode.lifecycle.lock().writers == 0 {
                self.queue_if_rewritten(inode);
            }
        }
        synced
    }
}
