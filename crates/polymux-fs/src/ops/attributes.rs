//! `stat`, `chmod`, `chown`, `utimens`, `truncate`, `access`.

use std::sync::atomic::Ordering;

use polymux_records::attributes::{Attributes, SET_ID, SetAttributes, SetIdBits, SetTime, set_id_taken};
use polymux_records::blockmap::HeldOff;
use polymux_records::caller::{Caller, Wait};
use polymux_records::error::{ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::put_xattr;
use polymux_types::{Errno, Ino, Timestamp};
use polymux_volume::access::{ACCESS_ACL, WRITE};
use polymux_volume::inode::{Body, Common, FileState, Inode, check_change};

use super::privileges::{drop_set_id, drop_set_id_of_any_caller};
use crate::mounted::Mounted;

/// Size that directories report.
const DIRECTORY_SIZE: u64 = 4096;

impl Mounted {
    /// Refuses a caller that must not wait, if the reply may need an answer of a tier: a size that is not known yet, or the space that a
    /// file takes. That the file is open does not help: its object need not be, and a tier that hangs answers nothing.
    pub(crate) fn check_answers_at_once(&self, caller: &Caller, inode: &Inode) -> Result<()> {
        let Some(file) = inode.file().filter(|_| caller.wait == Wait::Never) else { return Ok(()) };
        let asks_for_size = || {
            self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire)
                || file.layout.read().extender().is_some()
        };
        let asks_for_object = file.is_changed_directly()
            || file.direct.outside.may_be_unseen()
            || self.data.holders.are_possible() && !file.direct.holder_looked_for.load(Ordering::Acquire);
        let asks_for_room = self.data.asks_for_allocation(file);
        if !file.sizes.is_known.load(Ordering::Acquire) && asks_for_size() || asks_for_room || asks_for_object {
            return self.check_may_wait(caller);
        }
        Ok(())
    }

    /// The attributes of an inode, answered for all tiers (M9).
    pub(crate) fn attributes_of(&self, inode: &Inode) -> Result<Attributes> {
        let (size, blocks, device) = match &inode.body {
            Body::Regular(file) => {
                self.data.see_outside_changes(inode, file);
                if self.data.collects_writes() {
                    // The kernel would keep a guess for as long as it knows the file.
                    self.data.ensure_size(inode, file)?;
                } else {
                    self.data.ensure_size_or_guess(inode, file)?;
                }
                (file.size(), self.data.allocated_blocks(inode, file), 0)
            }
            Body::Directory(_) => (DIRECTORY_SIZE, 0, 0),
            Body::Symlink(target) => (target.len() as u64, 0, 0),
            Body::Special { device } => (0, 0, *device),
        };
        Ok(attributes_with(inode, size, blocks, device))
    }

    pub(crate) fn attributes(&self, caller: &Caller, ino: Ino) -> Result<Attributes> {
        let inode = self.volume.inode(ino)?;
        self.check_answers_at_once(caller, &inode)?;
        self.attributes_of(&inode)
    }

    pub(crate) fn set_attributes(&self, caller: &Caller, ino: Ino, change: &SetAttributes) -> Result<Attributes> {
        self.volume.check_writable()?;
        let inode = self.volume.inode(ino)?;
        self.check_answers_at_once(caller, &inode)?;
        check_change(&inode, change)?;
        self.check_change(caller, &inode, change)?;
        self.check_new_set_id(&inode, change)?;
        let _held_off = self.hold_off_for(caller, &inode, change)?;
        // A kernel that checks permissions removes the attribute by itself before a program truncates a file or gives it away; before
        // changes that it makes on its own (overlayfs, with a file that it copies up) the attribute has to stay.
        let takes_privileges = change.size.is_some() || change.uid.is_some() || change.gid.is_some();
        if takes_privileges && caller.checks_permissions() {
            self.drop_capabilities(caller, &inode)?;
        }
        if let Some(size) = change.size {
            self.set_size(caller, &inode, size, change)?;
        }
        let changes_record = change.set_id != SetIdBits::Keep
            || change.permissions.is_some()
            || change.uid.is_some()
            || change.gid.is_some()
            || change.accessed.is_some()
            || change.modified.is_some();
        if changes_record {
            let object_time = match inode.file() {
                Some(file) => self.data.hold_object_time(&inode, file)?,
                None => None,
            };
            let acl = self.acl_after_chmod(&inode, change)?;
            self.volume.put_with_state(&inode, |transaction| {
                let now = self.volume.now();
                let mut common = inode.common.write();
                apply(&mut common, caller, &inode, change, now);
                drop(common);
                if let Some(value) = &acl {
                    put_xattr(&mut transaction.batch, inode.ino, ACCESS_ACL, value);
                }
                Ok(())
            })?;
            if let (Some(mut seen), Some(file), Some(_)) = (object_time, inode.file(), change.modified) {
                *seen = self.data.object_time(file)?;
            }
        }
        if change.set_id != SetIdBits::Keep && inode.file().is_some_and(FileState::is_changed_directly) {
            // Of a write that is durable when it returns nothing more is heard.
            self.volume.flush_inode(&inode)?;
        }
        self.stamps.stamp_later(&inode);
        self.attributes_of(&inode)
    }

    fn check_change(&self, caller: &Caller, inode: &Inode, change: &SetAttributes) -> Result<()> {
        if !caller.checks_permissions() {
            return Ok(());
        }
        if change.permissions.is_some() {
            self.volume.check_owner(caller, inode)?;
        }
        // Checked before anything is changed: capabilities go before the bytes do.
        if change.size.is_some() && change.handle.is_none() {
            self.volume.check_access(caller, inode, WRITE)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            check_ownership_change(caller, &inode.common.read(), change)?;
        }
        let is_to = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
        if is_to(change.accessed) || is_to(change.modified) {
            self.volume.check_owner(caller, inode)?;
        } else if change.accessed.is_some() || change.modified.is_some() {
            let owns = self.volume.check_owner(caller, inode);
            if owns.is_err() {
                self.volume.check_access(caller, inode, WRITE)?;
            }
        }
        Ok(())
    }

    /// Ends leases, where attributes other than access times are set, and keeps new ones away while set-id bits are.
    ///
    /// # Errors
    /// `EBUSY`: a program may write to the file without taking the bits away.
    fn hold_off_for<'a>(
        &self,
        caller: &Caller,
        inode: &'a Inode,
        change: &SetAttributes,
    ) -> Result<Option<HeldOff<'a>>> {
        let Some(file) = inode.file() else { return Ok(None) };
        let is_set = change.permissions.is_some() || change.uid.is_some() || change.gid.is_some();
        let sets_id = change.permissions.unwrap_or_default() & SET_ID != 0;
        if sets_id || (is_set || change.modified.is_some()) && file.nodes.outside_users.may_change() {
            self.check_may_wait(caller)?;
        }
        if is_set || change.modified.is_some() {
            // Times that are set hold until the next change.
            self.data.end_changes_for_attributes(inode, file);
        }
        // Also where they are set already: a write that comes now takes them away, and they come again.
        if sets_id { self.hold_off_for_privileges(inode, file).map(Some) } else { Ok(None) }
    }

    /// Keeps leases away while a file gets privileges, or is protected from writes.
    ///
    /// # Errors
    /// `EBUSY`: a program may write to the file without the daemon.
    pub(super) fn hold_off_for_privileges<'a>(&self, inode: &Inode, file: &'a FileState) -> Result<HeldOff<'a>> {
        let held_off = file.nodes.outside_users.hold_off();
        if self.data.may_be_written_unheard(file)? {
            log::warn!(
                "inode {}: set-id bits, capabilities and protection are refused: a program that got a lease has its objects open",
                inode.ino
            );
            return Err(Errno::EBUSY.into());
        }
        Ok(held_off)
    }

    /// Refuses set-id bits to a file that may still be changed through a mount that is gone: the kernel sends the request that would take
    /// them away again to a connection without a daemon. A mapping of this mount is no reason: stores through one take no bits away on any
    /// file system.
    fn check_new_set_id(&self, inode: &Inode, change: &SetAttributes) -> Result<()> {
        let new = change.permissions.unwrap_or_default() & !inode.common.read().permissions;
        let Some(file) = inode.file().filter(|_| new & SET_ID != 0) else { return Ok(()) };
        self.data.look_for_holder(inode, file)?;
        if file.direct.users.now().is_held_since_earlier_mount() {
            self.data.look_again(inode, file)?;
        }
        if file.direct.users.now().is_held_since_earlier_mount() { Err(Errno::EBUSY.into()) } else { Ok(()) }
    }

    fn set_size(&self, caller: &Caller, inode: &Inode, size: u64, change: &SetAttributes) -> Result<()> {
        if caller.wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        let Some(file) = inode.file() else {
            return Err(if inode.is_directory() { Errno::EISDIR } else { Errno::EINVAL }.into());
        };
        match change.handle {
            Some(handle) if !self.data.handles.get(handle)?.options.write => return Err(Errno::EINVAL.into()),
            Some(_) => {}
            None => self.volume.check_access(caller, inode, WRITE)?,
        }
        self.data.truncate_file(inode, file, size)?;
        if inode.lifecycle.lock().handles == 0 {
            // No description will be closed that this was done through.
            file.direct.growth.end_of_description();
        }
        self.note_modified(caller, inode);
        self.data.pass_over_object_time(file)
    }

    /// The access ACL that a change of the permission bits leaves, where the file has one.
    fn acl_after_chmod(&self, inode: &Inode, change: &SetAttributes) -> Result<Option<Vec<u8>>> {
        let Some(permissions) = change.permissions else { return Ok(None) };
        let common = inode.common.read().clone();
        let acl = self.volume.access_acl(inode, &common)?;
        Ok(acl.map(|mut acl| {
            acl.apply_mode(permissions);
            acl.encode()
        }))
    }

    pub(crate) fn check_mask(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        if mask > 7 {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.volume.inode(ino)?;
        if mask & WRITE != 0 && matches!(inode.body, Body::Regular(_) | Body::Directory(_)) {
            self.volume.check_writable()?;
        }
        self.volume.check_access(caller, &inode, mask)
    }

    /// Takes over the times of a file that a kernel which collects writes has kept so far. They are logged as those of plain writes are:
    /// with the next flush (docs/design/0002). A later time of a write past its page cache, of which it knows nothing, stays.
    pub(crate) fn take_over_times(
        &self,
        caller: &Caller,
        ino: Ino,
        modified: Timestamp,
        changed: Timestamp,
    ) -> Result<Attributes> {
        self.volume.check_writable()?;
        let inode = self.volume.inode(ino)?;
        let file = inode.file().ok_or(Errno::EINVAL)?;
        let mut common = inode.common.write();
        let was_written_past_it = file.direct.written_past_pages.load(Ordering::Acquire);
        if modified > common.modified {
            file.direct.written_past_pages.store(false, Ordering::Release);
        }
        let newest = |own: Timestamp, kernel: Timestamp| if was_written_past_it { own.max(kernel) } else { kernel };
        (common.modified, common.changed) = (newest(common.modified, modified), newest(common.changed, changed));
        drop(common);
        inode.times_dirty.store(true, Ordering::Release);
        if file.is_inline() && inode.common.read().links > 0 {
            // This may be a close, and its last chance to report that there is no space for the bytes.
            self.data.log_inline(&inode, file, caller.wait)?;
        }
        // The kernel uses none of them, so no tier is asked how much space the file takes.
        Ok(known_attributes_of(&inode, file))
    }

    /// Attributes of a file as far as they are known without asking a tier. A kernel that collects writes ignores size, blocks and times of
    /// the attributes that it receives.
    pub(crate) fn known_attributes(&self, ino: Ino) -> Result<Attributes> {
        let inode = self.volume.inode(ino)?;
        Ok(known_attributes_of(&inode, inode.file().ok_or(Errno::EINVAL)?))
    }

    /// Notes that the data of a file changed just now. Where that takes set-id bits away, and memory outlives the daemon, the record
    /// is logged at once: times may be late after the daemon died, permissions may not.
    pub(crate) fn note_modified(&self, caller: &Caller, inode: &Inode) {
        let now = self.volume.now();
        let mut common = inode.common.write();
        common.modified = now;
        common.changed = now;
        let before = common.permissions;
        if caller.checks_permissions() {
            drop_set_id(&mut common, caller);
        }
        let is_dropped = common.permissions != before;
        drop(common);
        inode.times_dirty.store(true, Ordering::Release);
        let is_kept = self.volume.metadata.notes().is_some() && !is_planted(PlantedFault::SetIdNotLogged);
        if is_dropped
            && is_kept
            && let Err(error) = self.volume.put_with_state(inode, |_| Ok(()))
        {
            // The data is written, and the bits in memory are right; the next flush tries again.
            log::warn!("inode {}: that it lost its set-id bits is not logged yet: {error}", inode.ino);
        }
    }
}

/// The attributes of an inode, with those that its type decides about: size, blocks and device.
fn attributes_with(inode: &Inode, size: u64, blocks: u64, device: u64) -> Attributes {
    let common = inode.common.read();
    Attributes {
        ino: inode.ino,
        kind: inode.kind,
        permissions: common.permissions,
        links: common.links,
        uid: common.uid,
        gid: common.gid,
        device,
        size,
        blocks,
        accessed: common.accessed,
        modified: common.modified,
        changed: common.changed,
        born: inode.born,
    }
}

/// The attributes of a regular file as far as they are known without asking a tier.
fn known_attributes_of(inode: &Inode, file: &FileState) -> Attributes {
    attributes_with(inode, file.size(), 0, 0)
}

/// chown(2): the owner may give the file to a group of theirs; anything else needs privilege.
fn check_ownership_change(caller: &Caller, common: &Common, change: &SetAttributes) -> Result<()> {
    if caller.is_privileged() {
        return Ok(());
    }
    let keeps_owner = change.uid.is_none_or(|uid| uid == common.uid);
    let group_allowed = change.gid.is_none_or(|gid| gid == common.gid || caller.is_in_group(gid));
    if caller.uid == common.uid && keeps_owner && group_allowed { Ok(()) } else { Err(Errno::EPERM.into()) }
}

fn apply(common: &mut Common, caller: &Caller, inode: &Inode, change: &SetAttributes, now: Timestamp) {
    if let Some(permissions) = change.permissions {
        common.permissions = permissions & 0o7777;
        let clears = caller.checks_permissions() && !caller.is_privileged() && !caller.is_in_group(common.gid);
        if clears && !inode.is_directory() {
            common.permissions &= !libc::S_ISGID;
        }
    }
    if let SetIdBits::Clear { member_of } = change.set_id
        && !inode.is_directory()
    {
        common.permissions &= !set_id_taken(common.permissions, || member_of == Some(common.gid));
    }
    if change.uid.is_some() || change.gid.is_some() {
        if caller.checks_permissions() && !inode.is_directory() {
            // Judged by the group that the file had.
            drop_set_id_of_any_caller(common, caller);
        }
        common.uid = change.uid.unwrap_or(common.uid);
        common.gid = change.gid.unwrap_or(common.gid);
    }
    let moment = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    common.accessed = change.accessed.map_or(common.accessed, moment);
    common.modified = change.modified.map_or(common.modified, moment);
    common.changed = change.changed.unwrap_or(now);
}
