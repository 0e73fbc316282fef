//! Hard links.

use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_records::store::keys;
use polymux_types::{Errno, Ino, limits};
use polymux_volume::access::{EXECUTE, WRITE};
use polymux_volume::inode::{check_not_immutable, check_not_protected};

use super::change::LinkChange;
use super::check_name;
use super::create::note_entry_change;
use crate::namespace::Namespace;

impl Namespace {
    /// Gives an inode another name. One without a name, but with an open description, gets its first one.
    pub fn link_inode(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        self.volume.check_writable()?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EEXIST.into());
        }
        let inode = self.volume.inode(ino)?;
        let directory = self.directory_inode(parent)?;
        self.volume.check_access(caller, &directory, EXECUTE)?;
        let lock = directory.directory().ok_or(Errno::ENOTDIR)?;
        let mut state = lock.write();
        if self.find_name(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if directory.common.read().links == 0 {
            return Err(Errno::ENOENT.into());
        }
        check_not_immutable(&directory)?;
        check_not_protected(&inode)?;
        if inode.is_directory() {
            return Err(Errno::EPERM.into());
        }
        self.volume.check_access(caller, &directory, WRITE)?;
        if inode.common.read().links >= limits::LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        self.volume.check_metadata_room()?;
        let now = self.volume.now();
        self.volume.transact(&[&directory, &inode], |transaction| {
            {
                // Under the lifecycle lock a deletion either happened before or sees the new link.
                let lifecycle = inode.lifecycle.lock();
                if lifecycle.gone {
                    return Err(Errno::ENOENT.into());
                }
                let mut common = inode.common.write();
                if common.links == 0 {
                    transaction.batch.delete(keys::orphan(inode.ino));
                }
                common.links += 1;
                common.changed = now;
            }
            transaction.add_name(parent, &mut state, name, inode.ino, inode.kind);
            note_entry_change(&directory, 0, now);
            transaction.put_inode(&inode);
            self.put_names_changed(transaction, &directory, &mut state, LinkChange::Same);
            Ok(())
        })?;
        self.stamps.stamp_later(&inode);
        Ok(())
    }
}
