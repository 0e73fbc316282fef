//! Mounting and unmounting.
//!
//! Invariants:
//! * A user who may mount does so by system call; for all others the set-id helper of the system (`mounting/helper.rs`) does,
//!   which hands over a descriptor that is mounted.
//! * The kernel checks permissions, always (`default_permissions`).

mod helper;
pub(crate) mod table;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::device::Device;

/// Who may use a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountAudience {
    /// Only the user who mounted it.
    Owner,
    /// Every user, within the permissions of the files (`allow_other`).
    Everybody,
}

/// Settings of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSettings {
    /// Shown as the source of the mount.
    pub source: String,
    /// The type is shown as `fuse.` and this.
    pub subtype: &'static str,
    /// Who may use it.
    pub audience: MountAudience,
    /// `RDONLY`, `NOSUID`, `NODEV`, `NOEXEC`, `NOSYMFOLLOW` or none of them.
    pub flags: MountFlags,
}

impl MountSettings {
    /// The options that only the FUSE driver understands.
    fn driver_options(&self) -> String {
        let shared = match self.audience {
            MountAudience::Owner => "",
            MountAudience::Everybody => ",allow_other",
        };
        format!("subtype={},default_permissions{shared}", self.subtype)
    }
}

/// Mounts on a directory. Requests wait until the connection is served, beginning with the negotiation.
///
/// # Errors
/// `/dev/fuse` cannot be opened, or the kernel or the helper refuses.
pub fn mount(mountpoint: &Path, settings: &MountSettings) -> io::Result<Device> {
    match mount_directly(mountpoint, settings) {
        // The device may be closed to this user, and the mount forbidden; the helper has the right to both.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            helper::mount(mountpoint, settings)
        }
        outcome => outcome,
    }
}

fn mount_directly(mountpoint: &Path, settings: &MountSettings) -> io::Result<Device> {
    let root_mode = std::fs::metadata(mountpoint)?.mode();
    let device = Device::open()?;
    let data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={},{}",
        device.as_fd().as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        settings.driver_options(),
    );
    let data = CString::new(data)?;
    rustix::mount::mount(settings.source.as_str(), mountpoint, "fuse", settings.flags, data.as_c_str())?;
    Ok(device)
}

/// When a mount goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Now, or not at all while it is in use.
    Idle,
    /// Now; open files remain usable until they are closed.
    Detach,
}

/// Unmounts a path. One that is not mounted is no error.
///
/// # Errors
/// As `umount(2)`.
pub fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    use rustix::io::Errno as Number;
    let flags = match how {
        Unmount::Idle => UnmountFlags::NOFOLLOW,
        Unmount::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(path, flags) {
        Ok(()) | Err(Number::INVAL | Number::NOENT) => Ok(()),
        Err(Number::PERM) => helper::unmount(path, how),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_always_checks_permissions() {
        for audience in [MountAudience::Owner, MountAudience::Everybody] {
            let settings =
                MountSettings { source: "media".to_owned(), subtype: "polymux", audience, flags: MountFlags::empty() };
            let options = settings.driver_options();
            assert!(options.contains("default_permissions"));
            assert_eq!(options.contains("allow_other"), audience == MountAudience::Everybody);
        }
    }

    #[test]
    fn unmounting_what_is_not_mounted_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        match unmount(directory.path(), Unmount::Idle) {
            // A user who may not unmount needs the helper.
            Err(error) if error.kind() == io::ErrorKind::NotFound => eprintln!("skipped: there is no helper"),
            outcome => outcome.unwrap(),
        }
    }
}
