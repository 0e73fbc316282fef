//! Set-id bits under `HANDLE_KILLPRIV_V2`: the file system takes them away on writes, truncation and a change of owner,
//! by the rules that Linux has for every file system (`setattr_should_drop_suidgid` in the kernel's sources).
//!
//! Without that agreement the kernel asks for the file's capabilities before each single `write(2)`, so that every
//! write costs two requests. Capabilities themselves (`security.capability`) the kernel removes.

use polymux_fs::{Attributes, Caller, FileKind, FileSystem, SetAttributes};
use polymux_transport::wire::Header;
use polymux_types::Ino;

/// What is left of the permission bits once the set-id bits are taken away; `None` where there is nothing to take.
/// The set-group-id bit of a file that its group cannot execute means something else, and stays.
pub(crate) fn without_set_id(attributes: &Attributes) -> Option<u32> {
    if attributes.kind == FileKind::Directory {
        return None;
    }
    let old = attributes.permissions;
    let mut new = old & !libc::S_ISUID;
    if old & libc::S_IXGRP != 0 {
        new &= !libc::S_ISGID;
    }
    (new != old).then_some(new)
}

/// Whether what the process of this request changes takes set-id bits away. The kernel says so itself with a write, a
/// truncation and a change of owner; for other requests it does not, and privilege is taken from the user id.
pub(crate) fn takes_set_id(header: &Header) -> bool {
    header.uid != 0
}

/// Takes the set-id bits of a file away, before its data is changed.
pub(crate) fn take_set_id(fs: &FileSystem, caller: &Caller, ino: Ino) -> polymux_fs::Result<()> {
    if let Some(permissions) = without_set_id(&fs.attributes(caller, ino)?) {
        fs.set_attributes(caller, ino, &SetAttributes { permissions: Some(permissions), ..SetAttributes::default() })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_types::Timestamp;

    fn with(kind: FileKind, permissions: u32) -> Attributes {
        let time = Timestamp::default();
        Attributes {
            ino: Ino(7),
            kind,
            permissions,
            links: 1,
            uid: 1,
            gid: 1,
            device: 0,
            size: 0,
            blocks: 0,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
        }
    }

    #[test]
    fn set_id_bits_go_by_the_rules_of_linux() {
        for (old, new) in [
            (0o4755, Some(0o755)),
            (0o6755, Some(0o755)),
            (0o2755, Some(0o755)),
            (0o2745, None),
            (0o6745, Some(0o2745)),
            (0o1777, None),
        ] {
            assert_eq!(without_set_id(&with(FileKind::Regular, old)), new, "{old:o}");
        }
        assert_eq!(without_set_id(&with(FileKind::Directory, 0o2777)), None);
    }
}
