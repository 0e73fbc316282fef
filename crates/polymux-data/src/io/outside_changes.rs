//! Files that programs change past the daemon, by leases (docs/design/0048).
//!
//! Invariants:
//! * The kernel gets a page with bytes that a lease covers after the users of these leases were recalled and waited for. So no page is older than the bytes that a program wrote. Calls past the page
//!   cache end no lease: the object orders them and the writes of programs.
//! * A mover copies nothing that changes: who has the file alone, or moves it, has ended all changes (`FileState::lock_alone`).
//! * An object that programs may change counts as unsynced (`Loan`), and its modification time becomes that of the file when anything asks for it: before its attributes are
//!   answered or set, before it is synced, and before a move changes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_records::attributes::HandleId;
use polymux_records::blockmap::PageChange;
use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_tier::{TierError, Wait};
use polymux_volume::inode::{FileState, Handle, Inode, reference_of};

use super::passthrough::adopt_object_time;
use crate::data_path::DataPath;

/// A program that wants a lease asks again in this time.
const ASKS_AGAIN_MS: u64 = 2_000;
/// A program that can use leases asks for one after some calls. Until then it may end as many of others.
const ENDED_BEFORE_ASKING_MAX: u32 = 4;

/// A call of a description is about to end leases. Returns whether its program calls the kernel for want of a lease, or may still ask for one.
fn ends_as_applicant(handle: &Handle, now_ms: u64) -> bool {
    match handle.asked_for_lease_ms.load(Ordering::Relaxed) {
        0 => handle.leases_ended.fetch_add(1, Ordering::Relaxed) < ENDED_BEFORE_ASKING_MAX,
        asked_ms => now_ms < asked_ms + ASKS_AGAIN_MS,
    }
}

impl DataPath {
    /// Ends changes past the daemon before the kernel has pages with bytes from an offset on.
    ///
    /// # Errors
    /// The caller must not wait, and would have to.
    #[inline]
    pub fn begin_page_use(&self, id: HandleId, offset: u64, change: PageChange, wait: Wait) -> Result<()> {
        if self.kernel.lease_port.get().is_none() {
            return Ok(());
        }
        let handle = self.handles.get(id)?;
        let inode = &handle.inode;
        let Some(file) = inode.file() else { return Ok(()) };
        if !file.nodes.outside_users.may_change_from(offset) {
            return Ok(());
        }
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        let now_ms = self.volume.elapsed_ms();
        match change {
            PageChange::WrittenBack => {}
            _ if ends_as_applicant(&handle, now_ms) => file.direct.outside.note_ended_by_applicant(now_ms),
            PageChange::Read | PageChange::Written => file.direct.outside.note_used_through_mount(now_ms),
        }
        if file.nodes.outside_users.end_changes(change) {
            Counters::count(&self.volume.counters.leases_ended_by_pages);
        }
        Ok(())
    }

    /// Ends changes past the daemon before attributes are set, for which a program waits in vain if it does so all the time.
    pub fn end_changes_for_attributes(&self, inode: &Inode, file: &FileState) {
        if file.nodes.outside_users.end_changes(PageChange::Written) {
            file.direct.outside.note_used_through_mount(self.volume.elapsed_ms());
        }
        self.see_outside_changes(inode, file);
    }

    /// Objects are about to be given to programs, to be written: from now on each may be open somewhere.
    pub(super) fn note_given_out(&self) -> Result<()> {
        if !self.kernel.gave_objects_out.load(Ordering::Acquire) {
            self.record_boot()?;
            self.kernel.gave_objects_out.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a program may have got an object to be written, in this mount or an earlier one.
    pub fn may_have_given_objects_out(&self) -> bool {
        self.kernel.lease_port.get().is_some()
            || self.kernel.gave_objects_out.load(Ordering::Acquire)
            || self.kernel.may_have_given_objects_out.load(Ordering::Acquire)
    }

    /// Whether a program may write to an object of a file without the daemon, whatever became of its lease. Called while leases are held off. A file that the kernel uses itself was looked at
    /// before that began.
    ///
    /// # Errors
    /// A tier cannot be asked.
    pub fn may_be_written_unheard(&self, file: &FileState) -> Result<bool> {
        if !self.may_have_given_objects_out() || file.is_passed_through() {
            return Ok(false);
        }
        let objects = file.layout.read().objects.clone();
        for entry in objects {
            let handle = self.volume.tiers.by_id(entry.tier)?;
            if handle.run(|tier| tier.may_be_open_elsewhere(reference_of(&entry)))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes over the times of changes past the daemon. An object that cannot be asked is asked again later.
    #[inline]
    pub fn see_outside_changes(&self, inode: &Inode, file: &FileState) {
        if file.direct.outside.may_be_unseen() {
            self.ask_changed_objects(inode, file);
        }
    }

    #[cold]
    fn ask_changed_objects(&self, inode: &Inode, file: &FileState) {
        let mut seen = file.direct.outside.seen.lock();
        // Both before they are asked: a change that comes later is seen later.
        let last = file.direct.outside.last_unseen();
        let may_go_on = file.nodes.outside_users.may_change();
        let objects = file.layout.read().objects.clone();
        let mut are_all_asked = true;
        for entry in objects {
            let stat =
                self.volume.tiers.by_id(entry.tier).and_then(|tier| tier.run(|tier| tier.stat(reference_of(&entry))));
            let stat = match stat {
                Ok(stat) => stat,
                // It left the file.
                Err(error) if matches!(error.kind(), ErrorKind::Tier { source: TierError::NotFound(_), .. }) => {
                    continue;
                }
                Err(_) => {
                    are_all_asked = false;
                    continue;
                }
            };
            // One that came after the last lease was changed by the daemon alone.
            let Some((_, known)) = seen.iter_mut().find(|(object, _)| *object == entry.object) else { continue };
            if *known != stat.modified {
                *known = stat.modified;
                adopt_object_time(inode, stat.modified);
            }
        }
        if are_all_asked && !may_go_on && file.direct.outside.note_all_seen(last) {
            seen.clear();
        }
    }

    /// Notes the times of objects before programs may change them. Called while a lease is given, with its user on the list, and its pending frees carried out.
    pub(super) fn begin_outside_changes(&self, inode: &Arc<Inode>, file: &FileState) -> Result<()> {
        let mut seen = file.direct.outside.seen.lock();
        let objects = file.layout.read().objects.clone();
        for entry in objects {
            let stat = self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(&entry)))?;
            if !seen.iter().any(|(object, _)| *object == entry.object) {
                seen.push((entry.object, stat.modified));
            }
        }
        file.direct.has_direct_changes.store(2, Ordering::Release);
        self.holders.leased.lock().insert(inode.ino, Arc::clone(inode));
        Ok(())
    }

    /// Takes over the times of changes past the daemon of all files, each second.
    pub fn see_outside_changes_in_time(&self) {
        if self.holders.is_look_at_leased_due(self.volume.elapsed_ms()) {
            self.see_all_outside_changes();
        }
    }

    /// Takes over the times of changes past the daemon of all files.
    pub fn see_all_outside_changes(&self) {
        let leased: Vec<Arc<Inode>> = self.holders.leased.lock().values().cloned().collect();
        for inode in leased {
            let Some(file) = inode.file() else { continue };
            let is_gone = inode.lifecycle.lock().gone;
            if !is_gone {
                self.see_outside_changes(&inode, file);
            }
            // A lease is begun before its file is put there.
            let mut leased = self.holders.leased.lock();
            if is_gone || !file.direct.outside.may_be_unseen() {
                leased.remove(&inode.ino);
            }
        }
    }
}
