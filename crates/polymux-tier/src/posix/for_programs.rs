//! Objects that programs use past the mount (docs/design/0046, docs/design/0048).
//!
//! Invariants:
//! * A program that only reads gets a description of a mount of its own, which is read-only and in no tree: not even root can open the object anew for writing through
//!   `/proc/self/fd`, or change its mode or attributes, as a container with a read-only volume may try. A daemon without the right to make such a mount gives
//!   the objects as they are: its user owns them in any case. The one of root gives none then.
//! * A program that may write the file gets a description of another such mount, which can be written.
//! * An object that a program may have open is emptied before its name goes, so that its space is free then and not when the program ends.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use parking_lot::Mutex;
use polymux_types::ObjectId;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::PosixTier;
use super::objects::path_of;
use crate::capabilities::Guarantee;
use crate::error::TierError;
use crate::object::{LoanPurpose, ObjectRef};
use crate::tier::Tier;

/// `struct mount_attr` of include/uapi/linux/mount.h.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `MOUNT_ATTR_RDONLY`.
const READ_ONLY: u64 = 1;
/// `MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC`.
const DATA_ALONE: u64 = 2 | 4 | 8;

/// The directory of the objects in a mount of its own; `None` where there is none to have.
type View = OnceLock<Option<OwnedFd>>;

/// Objects of a tier that were opened for programs.
#[derive(Default)]
pub(super) struct ForPrograms {
    to_read: View,
    to_change: View,
    opened: Mutex<HashSet<ObjectId>>,
}

/// A view of a directory and all below it, in no tree of mounts (Linux 5.12).
fn view_of(directory: &OwnedFd, purpose: LoanPurpose) -> std::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let view = rustix::mount::open_tree(directory, "", flags)?;
    let set = if purpose == LoanPurpose::Read { READ_ONLY | DATA_ALONE } else { DATA_ALONE };
    let attributes = MountAttributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the kernel reads an empty name, and as many bytes of the attributes as they have.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            view.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            size_of::<MountAttributes>(),
        )
    };
    if outcome == 0 { Ok(view) } else { Err(std::io::Error::last_os_error()) }
}

impl PosixTier {
    pub(super) fn open_object_for_program(
        &self,
        object: ObjectRef,
        purpose: LoanPurpose,
    ) -> Result<OwnedFd, TierError> {
        if self.capabilities().guarantee == Guarantee::Remote {
            return Err(TierError::Unsupported("opening an object of another machine for a program"));
        }
        let (view, access) = match purpose {
            LoanPurpose::Read => (&self.for_programs.to_read, OFlags::RDONLY),
            LoanPurpose::Change | LoanPurpose::Held => {
                self.require_writable()?;
                (&self.for_programs.to_change, OFlags::RDWR)
            }
        };
        let view = view.get_or_init(|| {
            let made = view_of(&self.objects, purpose);
            made.inspect_err(|error| log::debug!("tier {}: no view for programs: {error}", self.options.name)).ok()
        });
        let directory = match view {
            Some(view) => view.as_fd(),
            None if rustix::process::geteuid().is_root() => {
                return Err(TierError::Unsupported("opening an object for a program without a view of it"));
            }
            None => self.objects.as_fd(),
        };
        // Before it is opened: it may be removed at any moment.
        self.for_programs.opened.lock().insert(object.id);
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = self.open_path_below(directory, &path_of(object), flags | OFlags::NOATIME);
        // One that was removed meanwhile is not emptied any more.
        let is_there = |opened: &OwnedFd| Ok(rustix::fs::fstat(opened)?.st_nlink > 0);
        let opened = opened.and_then(|opened| if is_there(&opened)? { Ok(opened) } else { Err(Errno::NOENT) });
        opened.map_err(|errno| {
            self.for_programs.opened.lock().remove(&object.id);
            self.error("opening an object", object, errno)
        })
    }

    /// Empties an object that is to be removed, if a program may have it open. A hint: where it fails, the space is free when the program ends.
    pub(super) fn empty_if_opened_for_program(&self, object: ObjectRef) {
        if !self.for_programs.opened.lock().remove(&object.id) {
            return;
        }
        // Not to wait for a program that took a lease on it (`fcntl(2)`), which root in a container can.
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if let Err(errno) = self.open_path(&path_of(object), flags) {
            log::debug!("tier {}: an object is not emptied: {errno}", self.options.name);
        }
    }
}
