//! Flags of files and directories, as chattr(1) sets them.
//!
//! Invariant: while a file is immutable or append-only, the kernel changes its object only through mappings that are older than the flag,
//! and only for an open file description that goes through the daemon. The flag is refused while a program may change the object directly.

use std::sync::atomic::Ordering;

use polymux_records::attributes::{AttributeFlags, FileKind, WriteOrigin};
use polymux_records::blockmap::PageChange;
use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_types::{Errno, Ino};
use polymux_volume::inode::{FileState, Handle, Inode, OpenPurpose, check_not_immutable, is_append_only};

use crate::mounted::Mounted;

/// Flags that take privilege to be set or cleared.
const PRIVILEGED: AttributeFlags = AttributeFlags::IMMUTABLE.with(AttributeFlags::APPEND_ONLY);

impl Mounted {
    pub(crate) fn attribute_flags(&self, ino: Ino) -> Result<AttributeFlags> {
        let inode = self.volume.inode(ino)?;
        check_kind(&inode)?;
        Ok(AttributeFlags::known(inode.common.read().attribute_flags))
    }

    pub(crate) fn set_attribute_flags(&self, caller: &Caller, ino: Ino, flags: AttributeFlags) -> Result<()> {
        self.volume.check_writable()?;
        self.check_may_wait(caller)?;
        let inode = self.volume.inode(ino)?;
        check_kind(&inode)?;
        self.volume.check_owner(caller, &inode)?;
        // Whether the kernel changes the object stays as it is meanwhile.
        let _passed = match inode.file() {
            Some(file) => {
                let passed = file.direct.passed.lock();
                // No lease is given while this is locked.
                file.nodes.outside_users.end_changes(PageChange::Written);
                let is_unheard = passed.modes.is_changed_directly()
                    || file.direct.users.now().held() == Some(OpenPurpose::Change)
                    // Writes that the kernel collects come later, and look like writes after this.
                    || self.data.collects_writes() && self.data.handles.has_cached_writer(ino);
                let old = AttributeFlags::known(inode.common.read().attribute_flags);
                let is_privileged = flags.without(old).intersects(PRIVILEGED);
                if is_privileged && (is_unheard || self.data.may_be_written_unheard(file)?) {
                    return Err(Errno::EBUSY.into());
                }
                Some(passed)
            }
            None => None,
        };
        self.volume.put_with_state(&inode, |_| {
            let mut common = inode.common.write();
            let old = AttributeFlags::known(common.attribute_flags);
            let changed = flags.without(old).with(old.without(flags));
            if changed.intersects(PRIVILEGED) && caller.checks_permissions() && !caller.is_privileged() {
                return Err(Errno::EPERM.into());
            }
            // The flags of an immutable file cannot be changed either.
            let stays_immutable =
                old.intersects(AttributeFlags::IMMUTABLE) && flags.intersects(AttributeFlags::IMMUTABLE);
            if stays_immutable && old != flags {
                return Err(Errno::EPERM.into());
            }
            if let Some(file) = inode.file().filter(|_| old.without(flags).intersects(AttributeFlags::APPEND_ONLY)) {
                // While it was append-only, pages that could not be written back may have stayed with the kernel.
                file.direct.pages_stale.store(true, Ordering::Release);
            }
            common.attribute_flags = flags.bits();
            common.changed = self.volume.now();
            Ok(())
        })
    }

    /// Fails with EPERM where a write is none that the flags of the file allow. A description that was opened to append may do nothing
    /// else while the file is append-only, although the kernel lets it clear `O_APPEND`; an older one may, as on ext4.
    pub(super) fn check_write(
        &self,
        handle: &Handle,
        file: &FileState,
        offset: u64,
        origin: WriteOrigin,
    ) -> Result<()> {
        // Pages of a mapping that is older than the flag are assumed to have been changed before it.
        if !origin.is_from_cache() {
            check_not_immutable(&handle.inode)?;
        }
        if !handle.options.positions_appends || !is_append_only(&handle.inode) {
            return Ok(());
        }
        self.data.ensure_size(&handle.inode, file)?;
        let is_append = !origin.is_from_cache() && offset >= file.size();
        if is_append { Ok(()) } else { Err(Errno::EPERM.into()) }
    }
}

/// Only files and directories have flags.
fn check_kind(inode: &Inode) -> Result<()> {
    if matches!(inode.kind, FileKind::Regular | FileKind::Directory) { Ok(()) } else { Err(Errno::ENOTTY.into()) }
}
