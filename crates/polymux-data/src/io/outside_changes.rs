//! Files that programs change past the daemon, by leases (docs/design/0048).
//!
//! Invariants:
//! * The kernel gets a page with bytes that a lease covers after the users of these leases were recalled and waited for. So no page is older than the bytes that a program wrote. Calls past the page
//!   cache end no lease: the object orders them and the writes of programs.
//! * A mover copies nothing that changes: who has the file alone, or moves it, has ended all changes (`FileState::lock_alone`).
//! * An object that programs may change counts as unsynced (`Loan`), and its modification time becomes that of the file when anything asks for it: before its attributes are
//!   answered, before it is synced, and before the daemon itself writes to it.

use std::sync::atomic::Ordering;

use polymux_records::attributes::HandleId;
use polymux_records::blockmap::PageChange;
use polymux_records::error::{ErrorKind, Result};
use polymux_tier::Wait;
use polymux_volume::inode::{FileState, Inode, reference_of};

use super::passthrough::adopt_object_time;
use crate::data_path::DataPath;

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
            // A program that asked for a lease itself will not go on like this.
            _ if handle.has_asked_for_lease.load(Ordering::Relaxed) => {
                file.direct.outside.note_ended_by_applicant(now_ms);
            }
            PageChange::Read | PageChange::Written => file.direct.outside.note_used_through_mount(now_ms),
        }
        file.nodes.outside_users.end_changes(change);
        self.see_outside_changes(inode, file);
        Ok(())
    }

    /// Ends changes past the daemon, for now.
    pub fn end_outside_changes(&self, inode: &Inode, file: &FileState) {
        file.nodes.outside_users.end_changes(PageChange::Read);
        self.see_outside_changes(inode, file);
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
        // Before they are asked: a change that comes later is seen later.
        let may_go_on = file.nodes.outside_users.may_change();
        let objects = file.layout.read().objects.clone();
        let mut are_all_asked = true;
        for entry in objects {
            let stat =
                self.volume.tiers.by_id(entry.tier).and_then(|tier| tier.run(|tier| tier.stat(reference_of(&entry))));
            let Ok(stat) = stat else {
                are_all_asked = false;
                continue;
            };
            // One that came after the last lease was changed by the daemon alone.
            let Some((_, known)) = seen.iter_mut().find(|(object, _)| *object == entry.object) else { continue };
            if *known != stat.modified {
                *known = stat.modified;
                adopt_object_time(inode, stat.modified);
            }
        }
        if are_all_asked && !may_go_on {
            seen.clear();
            file.direct.outside.note_all_seen();
        }
    }

    /// Notes the times of objects before programs may change them. Called while a lease is given, with its user on the list.
    pub(super) fn begin_outside_changes(&self, inode: &Inode, file: &FileState) -> Result<()> {
        self.see_outside_changes(inode, file);
        let mut seen = file.direct.outside.seen.lock();
        let objects = file.layout.read().objects.clone();
        for entry in objects {
            let stat = self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(&entry)))?;
            if !seen.iter().any(|(object, _)| *object == entry.object) {
                seen.push((entry.object, stat.modified));
            }
        }
        file.direct.outside.begin(self.volume.elapsed_ms());
        file.direct.has_direct_changes.store(2, Ordering::Release);
        Ok(())
    }
}
