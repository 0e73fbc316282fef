//! Extended attributes, POSIX ACLs among them. A question of size 0 asks for the size alone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{INodeNo, Request};
use polymux_types::Errno;
use polymux_types::limits::XATTR_LIST_LENGTH_MAX;

use crate::adapter::{Adapter, caller, caller_with_groups, ino};
use crate::convert;
use crate::names::Reply;

/// The ACL whose change may clear the set-group-id bit of a file whose group the caller is not in.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// What is answered to a question about attributes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Size(u32),
    Bytes(Vec<u8>),
}

impl Adapter {
    pub(crate) fn get_xattr(&self, request: &Request, number: INodeNo, name: &OsStr, size: u32) -> Reply<Value> {
        self.run("getxattr", number.0, |fs| {
            let value = fs.xattr(&caller(request), ino(number), name.as_bytes())?;
            Ok(fit(value, size)?)
        })
    }

    pub(crate) fn list_xattrs(&self, request: &Request, number: INodeNo, size: u32) -> Reply<Value> {
        self.run("listxattr", number.0, |fs| {
            let mut list = Vec::new();
            for name in fs.list_xattrs(&caller(request), ino(number))? {
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
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Reply<()> {
        self.run("setxattr", number.0, |fs| {
            let mode = convert::xattr_mode(flags)?;
            let name = name.as_bytes();
            let caller = if name == ACCESS_ACL { caller_with_groups(request) } else { caller(request) };
            fs.set_xattr(&caller, ino(number), name, value, mode)
        })
    }

    pub(crate) fn remove_xattr(&self, request: &Request, number: INodeNo, name: &OsStr) -> Reply<()> {
        self.run("removexattr", number.0, |fs| fs.remove_xattr(&caller(request), ino(number), name.as_bytes()))
    }
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
