//! The lock of a tier and who holds it.
//!
//! The lock is a `flock`, which ends with its process. Who holds it stands in the file, for the message. On a file
//! system that does not share locks between hosts the text is all there is: a holder on another host that did not
//! release the tier is believed.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

use super::{OpenAccess, io_error};
use crate::error::TierError;
use crate::lockable_file::{LockOutcome, LockableFile};

const RELEASED: &str = "released";

/// The lock, held for as long as this lives.
pub(super) struct TierLock {
    file: LockableFile,
    access: OpenAccess,
}

impl TierLock {
    pub(super) fn take(path: &Path, own_directory: &OwnedFd, access: OpenAccess) -> Result<Self, TierError> {
        let flags = match access {
            OpenAccess::ReadWrite => OFlags::RDWR | OFlags::CREATE,
            OpenAccess::ReadOnly => OFlags::RDONLY,
        };
        let opened = rustix::fs::openat(own_directory, "lock", flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let opened = match (opened, access) {
            // A copy of a tier may lack the lock file; a read-only open must not create one.
            (Err(rustix::io::Errno::NOENT), OpenAccess::ReadOnly) => {
                rustix::fs::openat(own_directory, "label", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            }
            (opened, _) => opened,
        };
        let file = LockableFile::new(opened.map_err(io_error("opening the tier's lock"))?.into());
        let mut holder = String::new();
        let readable = (&*file).read_to_string(&mut holder).is_ok();
        let holder = if readable { holder.trim().to_owned() } else { String::new() };
        match file.lock_exclusive().map_err(io_error("locking the tier"))? {
            LockOutcome::Locked => {}
            LockOutcome::InUse => return Err(TierError::InUse(format!("{}: in use by {holder}", path.display()))),
        }
        if access == OpenAccess::ReadWrite {
            // A local file system shares its locks with every process that could mount the volume; a remote one may not.
            if !super::probe::is_local(own_directory) {
                refuse_other_host(path, &holder)?;
            }
            write_holder(&file, &own_identity())?;
        }
        Ok(Self { file, access })
    }

    /// Syncs the file of the lock.
    pub(super) fn sync(&self) -> rustix::io::Result<()> {
        rustix::fs::fdatasync(&*self.file)
    }
}

fn refuse_other_host(path: &Path, holder: &str) -> Result<(), TierError> {
    let host = holder.strip_prefix("host ").and_then(|rest| rest.split(',').next());
    match host {
        Some(host) if host != host_name() => Err(TierError::InUse(format!(
            "{}: in use by {holder}, another host; if that host is gone for good, remove {}/.polymux/lock",
            path.display(),
            path.display()
        ))),
        _ => Ok(()),
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn own_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("host {}, boot {}, pid {}", host_name(), boot.trim(), std::process::id())
}

fn write_holder(mut file: &std::fs::File, holder: &str) -> Result<(), TierError> {
    let line = format!("{holder}\n");
    // Written over before it is cut: on a full file system a block that was given back may be gone.
    let written = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.write_all(line.as_bytes()))
        .and_then(|()| file.set_len(line.len() as u64));
    written.map_err(|error| TierError::Io { operation: "writing the tier's lock", errno: error.into() })
}

impl Drop for TierLock {
    fn drop(&mut self) {
        if self.access == OpenAccess::ReadWrite
            && let Err(error) = write_holder(&self.file, RELEASED)
        {
            log::debug!("the lock of a tier keeps its holder's name: {error}");
        }
    }
}
