//! Extended attributes, POSIX ACLs among them.

use std::sync::atomic::Ordering;

use polymux_data::placement::PIN_ATTRIBUTE;
use polymux_records::attributes::{CAPABILITIES, FileKind, XattrMode};
use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_records::store::{keys, put_xattr};
use polymux_types::{Errno, Ino, limits};
use polymux_volume::access::{ACCESS_ACL, Acl, DEFAULT_ACL, READ, WRITE};
use polymux_volume::inode::{Inode, check_not_protected};

use crate::mounted::Mounted;

/// Name spaces of attributes (xattr(7)).
enum NameSpace {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
}

fn name_space(name: &[u8]) -> Result<NameSpace> {
    if name.is_empty() || name.len() > limits::XATTR_NAME_LENGTH_MAX {
        return Err(Errno::ERANGE.into());
    }
    let in_space = |prefix: &[u8]| name.starts_with(prefix) && name.len() > prefix.len();
    match name {
        ACCESS_ACL => Ok(NameSpace::AccessAcl),
        DEFAULT_ACL => Ok(NameSpace::DefaultAcl),
        _ if in_space(b"user.") => Ok(NameSpace::User),
        _ if in_space(b"trusted.") => Ok(NameSpace::Trusted),
        _ if in_space(b"security.") => Ok(NameSpace::Security),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

impl Mounted {
    pub(crate) fn xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.volume.inode(ino)?;
        match name_space(name)? {
            NameSpace::User => {
                check_user_kind(&inode, Errno::ENODATA)?;
                self.volume.check_access(caller, &inode, READ)?;
            }
            NameSpace::Trusted if caller.checks_permissions() && !caller.is_privileged() => {
                return Err(Errno::ENODATA.into());
            }
            _ => {}
        }
        Ok(self.volume.metadata.xattr(ino, name)?.ok_or(Errno::ENODATA)?)
    }

    pub(crate) fn list_xattrs(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.volume.inode(ino)?;
        let mut names = self.volume.metadata.xattr_names(ino)?;
        if caller.checks_permissions() && !caller.is_privileged() {
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    pub(crate) fn set_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.volume.check_writable()?;
        self.check_may_wait(caller)?;
        if value.len() > limits::XATTR_VALUE_LENGTH_MAX {
            return Err(Errno::E2BIG.into());
        }
        let inode = self.volume.inode(ino)?;
        let space = self.check_xattr_change(caller, &inode, name)?;
        self.volume.check_metadata_room()?;
        let _held_off = match inode.file().filter(|_| name == CAPABILITIES) {
            Some(file) => Some(self.hold_off_for_privileges(&inode, file)?),
            None => None,
        };
        let state = inode.directory().map(|directory| directory.read());
        self.volume.transact(&[&inode], |transaction| {
            // Under the record lock no other thread sets or removes an attribute of this inode, or deletes it.
            if inode.lifecycle.lock().gone {
                return Err(Errno::ENOENT.into());
            }
            match (mode, self.volume.metadata.xattr(ino, name)?.is_some()) {
                (XattrMode::Create, true) => return Err(Errno::EEXIST.into()),
                (XattrMode::Replace, false) => return Err(Errno::ENODATA.into()),
                _ => {}
            }
            let stored = match space {
                NameSpace::AccessAcl => set_access_acl(&inode, caller, value)?,
                NameSpace::DefaultAcl => set_default_acl(&inode, value)?,
                _ => true,
            };
            if name == CAPABILITIES {
                inode.lacks_capabilities.store(false, Ordering::Release);
            }
            if stored {
                inode.lacks_xattrs.store(false, Ordering::Release);
                put_xattr(&mut transaction.batch, ino, name, value);
            } else {
                transaction.batch.delete(keys::xattr(ino, name));
            }
            inode.common.write().changed = self.volume.now();
            match &state {
                Some(state) => transaction.put_directory(&inode, state),
                None => transaction.put_inode(&inode),
            }
            Ok(())
        })?;
        self.stamps.stamp_later(&inode);
        if name == PIN_ATTRIBUTE {
            self.placement.pins.note_pin();
        }
        Ok(())
    }

    pub(crate) fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.volume.check_writable()?;
        self.check_may_wait(caller)?;
        let inode = self.volume.inode(ino)?;
        let space = self.check_xattr_change(caller, &inode, name)?;
        let state = inode.directory().map(|directory| directory.read());
        self.volume.transact(&[&inode], |transaction| {
            if self.volume.metadata.xattr(ino, name)?.is_none() || inode.lifecycle.lock().gone {
                return Err(Errno::ENODATA.into());
            }
            let mut common = inode.common.write();
            match space {
                NameSpace::AccessAcl => common.has_access_acl = false,
                NameSpace::DefaultAcl => common.has_default_acl = false,
                _ => {}
            }
            common.changed = self.volume.now();
            drop(common);
            transaction.batch.delete(keys::xattr(ino, name));
            match &state {
                Some(state) => transaction.put_directory(&inode, state),
                None => transaction.put_inode(&inode),
            }
            Ok(())
        })?;
        if name == PIN_ATTRIBUTE {
            self.placement.pins.look_again();
        }
        Ok(())
    }

    fn check_xattr_change(&self, caller: &Caller, inode: &Inode, name: &[u8]) -> Result<NameSpace> {
        check_not_protected(inode)?;
        let space = name_space(name)?;
        match space {
            NameSpace::User => {
                check_user_kind(inode, Errno::EPERM)?;
                let sticky = inode.is_directory() && inode.common.read().permissions & libc::S_ISVTX != 0;
                if sticky {
                    self.volume.check_owner(caller, inode)?;
                }
                self.volume.check_access(caller, inode, WRITE)?;
            }
            NameSpace::Trusted | NameSpace::Security => {
                if caller.checks_permissions() && !caller.is_privileged() {
                    return Err(Errno::EPERM.into());
                }
            }
            NameSpace::AccessAcl | NameSpace::DefaultAcl => {
                if inode.kind == FileKind::Symlink {
                    return Err(Errno::EOPNOTSUPP.into());
                }
                self.volume.check_owner(caller, inode)?;
            }
        }
        Ok(space)
    }
}

/// `user.` attributes exist on files and directories only (xattr(7)).
fn check_user_kind(inode: &Inode, refusal: Errno) -> Result<()> {
    if matches!(inode.kind, FileKind::Regular | FileKind::Directory) { Ok(()) } else { Err(refusal.into()) }
}

/// Applies an access ACL to the permission bits; returns whether it must be stored beside them.
fn set_access_acl(inode: &Inode, caller: &Caller, value: &[u8]) -> Result<bool> {
    let acl = Acl::parse(value)?;
    let mut common = inode.common.write();
    common.has_access_acl = acl.as_ref().is_some_and(|acl| !acl.is_plain());
    if let Some(acl) = &acl {
        common.permissions = (common.permissions & !0o777) | acl.mode_bits();
        // A kernel that checks permissions leaves this to the file system: only members keep the set-group-id bit.
        if !caller.is_privileged() && !caller.is_in_group(common.gid) {
            common.permissions &= !libc::S_ISGID;
        }
    }
    Ok(common.has_access_acl)
}

fn set_default_acl(inode: &Inode, value: &[u8]) -> Result<bool> {
    let acl = Acl::parse(value)?;
    if acl.is_some() && !inode.is_directory() {
        return Err(Errno::EACCES.into());
    }
    inode.common.write().has_default_acl = acl.is_some();
    Ok(acl.is_some())
}
