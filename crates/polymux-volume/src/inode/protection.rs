//! Operations refused on append-only and immutable files, at the points and with the errors of ext4 on Linux (`IS_IMMUTABLE`, `IS_APPEND`).
//! The kernel does not know these flags for files of a FUSE mount, so all checks are made here.

use polymux_records::attributes::{
    ATTRIBUTE_APPEND_ONLY, ATTRIBUTE_IMMUTABLE, AllocateKind, OpenOptions, SetAttributes, SetTime,
};
use polymux_records::error::Result;
use polymux_types::Errno;

use super::Inode;

const PROTECTED: u32 = ATTRIBUTE_IMMUTABLE | ATTRIBUTE_APPEND_ONLY;

/// Fails with EPERM where an inode has one of these flags.
fn refuse(inode: &Inode, flags: u32) -> Result<()> {
    if inode.common.read().attribute_flags & flags == 0 { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// Whether a file can only be appended to.
pub fn is_append_only(inode: &Inode) -> bool {
    inode.common.read().attribute_flags & ATTRIBUTE_APPEND_ONLY != 0
}

/// Before data changes, or names of a directory come.
pub fn check_not_immutable(inode: &Inode) -> Result<()> {
    refuse(inode, ATTRIBUTE_IMMUTABLE)
}

/// Before attributes change, or a file gets a further name.
pub fn check_not_protected(inode: &Inode) -> Result<()> {
    refuse(inode, PROTECTED)
}

/// Before a name of a directory goes, or gets another meaning.
pub fn check_removable(directory: &Inode, named: &Inode) -> Result<()> {
    check_not_protected(directory)?;
    check_not_protected(named)
}

/// Before a file is opened.
pub fn check_open(inode: &Inode, options: &OpenOptions) -> Result<()> {
    let appends = options.append || options.positions_appends;
    if options.write || options.append || options.truncate {
        check_not_immutable(inode)?;
    }
    if options.truncate || options.write && !appends { refuse(inode, ATTRIBUTE_APPEND_ONLY) } else { Ok(()) }
}

/// Called before space is reserved or bytes are zeroed.
pub fn check_allocation(inode: &Inode, kind: AllocateKind) -> Result<()> {
    match kind {
        AllocateKind::Extend | AllocateKind::KeepSize => check_not_immutable(inode),
        AllocateKind::PunchHole | AllocateKind::ZeroRange | AllocateKind::ZeroRangeKeepSize => {
            check_not_protected(inode)
        }
    }
}

/// Before attributes change: of an append-only file both times may become those of now, as after an append, and set-id bits go with one.
pub fn check_change(inode: &Inode, change: &SetAttributes) -> Result<()> {
    let SetAttributes { permissions, uid, gid, size, accessed, modified, changed, handle: _, set_id: _ } = change;
    // A kernel that keeps times itself sends the moment of the call in place of now, and the same as the change time.
    let is_now = matches!(modified, Some(SetTime::Now)) || changed.is_some() && *modified == changed.map(SetTime::To);
    let is_touch = matches!(accessed, Some(SetTime::Now)) && is_now || accessed.is_none() && modified.is_none();
    let is_append = permissions.or(*uid).or(*gid).is_none() && size.is_none() && is_touch;
    if is_append { check_not_immutable(inode) } else { check_not_protected(inode) }
}
