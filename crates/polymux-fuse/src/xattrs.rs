//! Extended attributes, POSIX ACLs among them. A question of size 0 asks for the size alone.

use std::cell::LazyCell;

use polymux_fs::{Caller, FileSystem, XattrMode};
use polymux_transport::wire::Header;
use polymux_types::Errno;
use polymux_types::limits::XATTR_LIST_LENGTH_MAX;

use crate::adapter::{Adapter, Outcome, caller, caller_with_groups, ino};
use crate::convert;
use crate::resent::{Existence, Standing};
use crate::threads::{CAP_SYS_ADMIN, credentials_of};

/// The ACL whose change may clear the set-group-id bit of a file whose group the caller is not in.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// Attributes that only privileged processes see and use.
const TRUSTED: &[u8] = b"trusted.";

/// Whether a thread is shown attributes of this class. The kernel keeps others from using them, and does not look into lists. Where the
/// capabilities of a thread are not known, root is shown everything: overlayfs asks with the credentials of the user who mounted it.
fn is_shown_trusted(header: &Header) -> bool {
    let known = credentials_of(header).and_then(|credentials| credentials.has(CAP_SYS_ADMIN));
    known.unwrap_or(header.uid == 0)
}

/// The answer to a request for extended attributes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Size(u32),
    Bytes(Vec<u8>),
}

impl Adapter {
    pub(crate) fn get_xattr(&self, header: &Header, name: &[u8], size: u32) -> Outcome<Value> {
        self.run("getxattr", ino(header), |fs| {
            let value = fs.xattr(&caller(header), ino(header), name)?;
            Ok(fit(value, size)?)
        })
    }

    pub(crate) fn list_xattrs(&self, header: &Header, size: u32) -> Outcome<Value> {
        self.run("listxattr", ino(header), |fs| {
            let mut list = Vec::new();
            let names = fs.list_xattrs(&caller(header), ino(header))?;
            let is_shown_trusted = LazyCell::new(|| is_shown_trusted(header));
            for name in names.into_iter().filter(|name| !name.starts_with(TRUSTED) || *is_shown_trusted) {
                list.extend_from_slice(&name);
                list.push(0);
            }
            if list.len() > XATTR_LIST_LENGTH_MAX {
                return Err(Errno::E2BIG.into());
            }
            Ok(fit(list, size)?)
        })
    }

    pub(crate) fn set_xattr(
        &self,
        header: &Header,
        name: &[u8],
        value: &[u8],
        flags: i32,
        kills_set_group_id: Option<bool>,
    ) -> Outcome<()> {
        self.run("setxattr", ino(header), |fs| {
            let mode = convert::xattr_mode(flags)?;
            if mode == XattrMode::Create
                && self.attribute_change(fs, header, name, Existence::Exists)? == Standing::Done
            {
                return Ok(());
            }
            let caller = if name == ACCESS_ACL { acl_caller(fs, header, kills_set_group_id)? } else { caller(header) };
            fs.set_xattr(&caller, ino(header), name, value, mode)
        })
    }

    pub(crate) fn remove_xattr(&self, header: &Header, name: &[u8]) -> Outcome<()> {
        self.run("removexattr", ino(header), |fs| {
            self.attribute_change(fs, header, name, Existence::IsMissing)?
                .carry_out(|| fs.remove_xattr(&caller(header), ino(header), name))
        })
    }
}

/// Who changes an ACL, as far as the set-group-id bit is concerned: the kernel says whether that goes, since the protocol
/// can (`SETXATTR_EXT`); else the groups of the process decide.
fn acl_caller(fs: &FileSystem, header: &Header, kills_set_group_id: Option<bool>) -> polymux_fs::Result<Caller> {
    /// No user and no group.
    const NOBODY: u32 = u32::MAX;
    Ok(match kills_set_group_id {
        Some(true) => Caller { uid: NOBODY, gid: NOBODY, ..caller(header) },
        Some(false) => {
            let caller = caller(header);
            let group = fs.attributes(&caller, ino(header))?.gid;
            Caller { groups: vec![group], ..caller }
        }
        None => caller_with_groups(header),
    })
}

fn fit(value: Vec<u8>, size: u32) -> Result<Value, Errno> {
    let length = u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?;
    if size == 0 {
        Ok(Value::Size(length))
    } else if length > size {
        Err(Errno::ERANGE)
    } else {
        Ok(Value::Bytes(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_answered_by_size_by_bytes_or_not_at_all() {
        assert_eq!(fit(vec![1, 2, 3], 0), Ok(Value::Size(3)));
        assert_eq!(fit(vec![1, 2, 3], 3), Ok(Value::Bytes(vec![1, 2, 3])));
        assert_eq!(fit(vec![1, 2, 3], 2), Err(Errno::ERANGE));
        assert_eq!(fit(Vec::new(), 10), Ok(Value::Bytes(Vec::new())));
    }
}
