//! The checks themselves.

use polymux_records::caller::Caller;
use polymux_records::error::{Error, Result};
use polymux_types::Errno;

use super::acl::{ACCESS_ACL, Acl};
use crate::inode::{Common, Inode};
use crate::volume::Volume;

/// Permission to read, as in a mode.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute a file or search a directory.
pub const EXECUTE: u32 = 1;

impl Volume {
    /// Fails with EACCES where the caller may not do all of `wanted`.
    pub fn check_access(&self, caller: &Caller, inode: &Inode, wanted: u32) -> Result<()> {
        if !caller.checks_permissions() || wanted == 0 {
            return Ok(());
        }
        // Asked several times in every operation, and answered without a lock.
        if caller.is_privileged() && inode.is_directory() {
            return Ok(());
        }
        let common = inode.common.read().clone();
        if caller.is_privileged() {
            // Execution needs one execute bit even for those who may do everything else.
            let may = wanted & EXECUTE == 0 || common.permissions & 0o111 != 0;
            return if may { Ok(()) } else { Err(Errno::EACCES.into()) };
        }
        let may = match self.access_acl(inode, &common)? {
            Some(acl) => acl.permits(caller, common.uid, common.gid, wanted),
            None => {
                let shift = if caller.uid == common.uid {
                    6
                } else if caller.is_in_group(common.gid) {
                    3
                } else {
                    0
                };
                (common.permissions >> shift) & wanted == wanted
            }
        };
        if may { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    /// The access ACL of an inode; `None` where its mode says everything.
    pub fn access_acl(&self, inode: &Inode, common: &Common) -> Result<Option<Acl>> {
        if !common.has_access_acl {
            return Ok(None);
        }
        let value = self.metadata.xattr(inode.ino, ACCESS_ACL)?;
        let parsed = value.map(|value| Acl::parse(&value)).transpose();
        parsed
            .map(Option::flatten)
            .map_err(|_| Error::corrupted(format!("the ACL of inode {}", inode.ino), "it is invalid"))
    }

    /// Fails with EPERM where the caller does not own the file.
    pub fn check_owner(&self, caller: &Caller, inode: &Inode) -> Result<()> {
        let owns = caller.is_privileged() || !caller.checks_permissions() || caller.uid == inode.common.read().uid;
        if owns { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// Fails with EPERM where a sticky directory keeps the caller from removing or renaming a name that belongs to another user.
    pub fn check_sticky(&self, caller: &Caller, directory: &Inode, child: &Inode) -> Result<()> {
        if !caller.checks_permissions() || caller.is_privileged() {
            return Ok(());
        }
        let (sticky, directory_owner) = {
            let common = directory.common.read();
            (common.permissions & libc::S_ISVTX != 0, common.uid)
        };
        let owns = caller.uid == directory_owner || caller.uid == child.common.read().uid;
        if !sticky || owns { Ok(()) } else { Err(Errno::EPERM.into()) }
    }
}
