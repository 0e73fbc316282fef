//! Set-id bits under `HANDLE_KILLPRIV_V2`: the file system takes them away on writes, truncation and a change of owner,
//! by the rules that Linux has for every file system (`setattr_should_drop_suidgid` in the kernel's sources), which
//! `polymux-fs` applies to the mode that a file has at that moment: a `chmod` beside it is kept.
//!
//! Without that agreement the kernel asks for the file's capabilities before each single `write(2)`, so that every
//! write costs two requests. Capabilities themselves (`security.capability`) the kernel removes.
//!
//! How the kernel asks for it (docs/design/0024):
//!
//! | Action of a program | Request | The kernel learns the new mode |
//! |---|---|---|
//! | write, splice (cached, or passed through), `fallocate`, `copy_file_range` | a `SETATTR` that changes nothing, before the first byte | by its answer |
//! | truncation, change of owner | `SETATTR` with a flag | by its answer |
//! | open that empties the file | `OPEN` with a flag | not: `programs` |
//! | write with direct I/O | `WRITE` with a flag | not: `programs` |
//!
//! `chown(-1, -1)` is the same empty `SETATTR`, which any user may send: it takes the bits away only for the owner and for root. From others it
//! is recognized by the call that the thread is in, and counts as an announced write only while the file is open for writing.

use polymux_fs::{Attributes, Caller, FileSystem, SetAttributes, SetIdBits};
use polymux_transport::wire::{AttrChange, Header};
use polymux_types::{Errno, Ino};

use crate::adapter::{Adapter, caller};
use crate::threads::{CAP_FSETID, Credentials, credentials_of, is_in_chown};

/// Set-user-id and set-group-id.
pub(crate) const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// The change that takes the set-id bits of a file away by the rules of Linux. A file whose group changes meanwhile counts as one of
/// another group.
pub(crate) fn set_id_change(header: &Header, attributes: &Attributes) -> SetIdBits {
    let is_judged = attributes.permissions & libc::S_ISGID != 0;
    SetIdBits::Clear { member_of: Some(attributes.gid).filter(|group| is_judged && is_in_group(header, *group)) }
}

/// Whether the thread of a request is in a group, or has the capability that counts as much. One of which nothing is known has neither.
pub(crate) fn is_in_group(header: &Header, group: u32) -> bool {
    let is_in_group = |known: Credentials| known.groups.contains(&group) || known.has(CAP_FSETID) == Some(true);
    header.gid == group || credentials_of(header).is_some_and(is_in_group)
}

/// Whether the thread of this request lacks the capability to keep set-id bits. The kernel says so itself with a write, a
/// truncation and a change of owner; before other changes it announces itself where it lacks it (since Linux 6.1).
fn lacks_set_id_capability(header: &Header) -> bool {
    credentials_of(header).and_then(|credentials| credentials.has(CAP_FSETID)) != Some(true)
}

/// Whether a change says nothing at all: the kernel sends that before a write that takes privileges away.
pub(crate) fn is_empty(change: &AttrChange) -> bool {
    let AttrChange { mode, uid, gid, size, accessed, modified, changed: _, handle: _, kills_set_id } = change;
    !kills_set_id && mode.or(*uid).or(*gid).is_none() && size.is_none() && accessed.or(*modified).is_none()
}

/// Whether a change of owner leaves the set-id bits of a file as they are, although the kernel asks for their removal, as it does with
/// each: root gives away a file of root that has no name. So overlayfs copies a file up (mode first, owner after it); a program that does
/// the same is privileged, and POSIX leaves it to the file system. A file of another user loses the bits even without a name: its owner
/// may have removed the name at the moment when root looked it up, and holds it open.
pub(crate) fn keeps_set_id(header: &Header, change: &AttrChange, old: &Attributes) -> bool {
    header.uid == 0 && old.uid == 0 && old.links == 0 && change.size.is_none() && change.uid.or(change.gid).is_some()
}

fn clear(fs: &FileSystem, caller: &Caller, ino: Ino, set_id: SetIdBits) -> polymux_fs::Result<()> {
    fs.set_attributes(caller, ino, &SetAttributes { set_id, ..SetAttributes::default() }).map(drop)
}

/// The change that takes the set-id bits of a file away whose writer announces himself; the answer carries the new mode.
///
/// # Errors
/// `EPERM`: the user of the request may not change the mode, and the file has no writer, or the request is a change of owner that names
/// neither user nor group.
pub(crate) fn set_id_change_of_writer(fs: &FileSystem, header: &Header, ino: Ino) -> polymux_fs::Result<SetIdBits> {
    let attributes = fs.attributes(&caller(header), ino)?;
    let change = set_id_change(header, &attributes);
    let is_allowed =
        || header.uid == 0 || header.uid == attributes.uid || fs.is_open_for_changes(ino) && !is_in_chown(header);
    if attributes.loses_set_id(change) && !is_allowed() { Err(Errno::EPERM.into()) } else { Ok(change) }
}

impl Adapter {
    /// Drops the set-id bits of a file before its data is changed by a request that does not say whether its caller may keep
    /// them. The kernel announces such changes (`is_empty`), so that there is rarely anything left to drop.
    pub(crate) fn take_set_id_unless_capable(
        &self,
        fs: &FileSystem,
        header: &Header,
        ino: Ino,
    ) -> polymux_fs::Result<()> {
        let has_bits = fs.attributes(&caller(header), ino)?.permissions & SET_ID != 0;
        if has_bits && lacks_set_id_capability(header) { self.take_set_id_unheard(fs, header, ino) } else { Ok(()) }
    }

    /// Takes the set-id bits of a file away, before its data is changed by a request whose answer does not carry the new mode.
    pub(crate) fn take_set_id_unheard(&self, fs: &FileSystem, header: &Header, ino: Ino) -> polymux_fs::Result<()> {
        let caller = caller(header);
        let due = || -> polymux_fs::Result<Option<SetIdBits>> {
            let attributes = fs.attributes(&caller, ino)?;
            Ok(Some(set_id_change(header, &attributes)).filter(|change| attributes.loses_set_id(*change)))
        };
        if due()?.is_none() {
            return Ok(());
        }
        self.programs.remove_unheard(ino, || {
            let removed = due()?.map_or(Ok(()), |change| clear(fs, &caller, ino, change));
            // Before any program may execute the file again. Nothing waits for the kernel here: its cached attributes are marked as outdated,
            // and no page is touched.
            self.device.expire_attributes(ino.get());
            removed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_fs::FileKind;
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
    fn only_root_keeps_set_id_bits_and_only_of_its_own_file_without_a_name_that_gets_another_owner() {
        let header = |uid| Header { length: 128, opcode: 4, unique: 2, node: 7, uid, gid: 0, pid: 1 };
        let chown = AttrChange { uid: Some(3), gid: Some(3), kills_set_id: true, ..AttrChange::default() };
        let unnamed = Attributes { links: 0, uid: 0, ..with(FileKind::Regular, 0o4755) };
        assert!(keeps_set_id(&header(0), &chown, &unnamed));
        assert!(!keeps_set_id(&header(1), &chown, &unnamed));
        assert!(!keeps_set_id(&header(0), &chown, &Attributes { uid: 1, ..unnamed }));
        assert!(!keeps_set_id(&header(0), &chown, &with(FileKind::Regular, 0o4755)));
        assert!(!keeps_set_id(&header(0), &AttrChange { size: Some(0), ..chown }, &unnamed));
        assert!(!keeps_set_id(&header(0), &AttrChange { kills_set_id: true, ..AttrChange::default() }, &unnamed));
    }

    #[test]
    fn only_a_change_of_nothing_is_empty() {
        assert!(is_empty(&AttrChange::default()));
        assert!(is_empty(&AttrChange { handle: Some(1), ..AttrChange::default() }));
        for change in [
            AttrChange { mode: Some(0), ..AttrChange::default() },
            AttrChange { uid: Some(0), ..AttrChange::default() },
            AttrChange { gid: Some(0), ..AttrChange::default() },
            AttrChange { size: Some(0), ..AttrChange::default() },
            AttrChange { accessed: Some(None), ..AttrChange::default() },
            AttrChange { modified: Some(None), ..AttrChange::default() },
            AttrChange { kills_set_id: true, ..AttrChange::default() },
        ] {
            assert!(!is_empty(&change), "{change:?}");
        }
    }
}
