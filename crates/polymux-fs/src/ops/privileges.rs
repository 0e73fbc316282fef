//! Privileges that a file grants when it is executed (set-id bits, capabilities), and when it loses them.
//!
//! Invariant: a change of data or owner of a file removes its capabilities, whether the caller is privileged or not; its set-id
//! bits stay for privileged callers, as in `setattr_should_drop_suidgid` and `cap_inode_killpriv` of Linux. A kernel that
//! checks permissions drops set-id bits by itself and says so; capabilities it leaves to the file system wherever pages are not
//! cached (`FUSE_HANDLE_KILLPRIV_V2` in linux/fuse.h).

use std::sync::atomic::Ordering;

use polymux_records::attributes::{CAPABILITIES, set_id_taken};
use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_records::store::keys;
use polymux_volume::inode::{Common, Inode};

use crate::mounted::Mounted;

impl Mounted {
    /// Removes the capabilities of a file whose data or owner is about to change. Costs one look into the store for each
    /// stay of the inode in memory, and none where the file has no attribute.
    pub(super) fn drop_capabilities(&self, caller: &Caller, inode: &Inode) -> Result<()> {
        if inode.lacks_xattrs.load(Ordering::Acquire) || inode.lacks_capabilities.load(Ordering::Acquire) {
            return Ok(());
        }
        {
            // Under the record lock no other thread adds the attribute meanwhile.
            let _alone = inode.record_lock.lock();
            if self.volume.metadata.xattr(inode.ino, CAPABILITIES)?.is_none() {
                inode.lacks_capabilities.store(true, Ordering::Release);
                return Ok(());
            }
        }
        self.check_may_wait(caller)?;
        self.volume.put_with_state(inode, |transaction| {
            transaction.batch.delete(keys::xattr(inode.ino, CAPABILITIES));
            inode.common.write().changed = self.volume.now();
            inode.lacks_capabilities.store(true, Ordering::Release);
            Ok(())
        })
    }
}

/// Drops the set-id bits that a change of data by this caller takes away. The set-group-id bit of a file that its group cannot
/// execute stays for members of the group.
pub(super) fn drop_set_id(common: &mut Common, caller: &Caller) {
    if !caller.is_privileged() {
        drop_set_id_of_any_caller(common, caller);
    }
}

/// As [`drop_set_id`], for a change of owner, which takes the bits away from every caller.
pub(super) fn drop_set_id_of_any_caller(common: &mut Common, caller: &Caller) {
    let is_member = || caller.is_privileged() || caller.is_in_group(common.gid);
    common.permissions &= !set_id_taken(common.permissions, is_member);
}
