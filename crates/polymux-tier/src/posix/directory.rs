//! The directories of a tier.

use std::path::Path;

use polymux_types::limits::BUCKETS;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};

use super::{OWN_DIRECTORY, io_error, labels};
use crate::error::TierError;

/// Opens a directory.
pub(super) fn open(path: &Path) -> Result<OwnedFd, TierError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| {
        let reason = std::io::Error::from(errno);
        TierError::Label(format!("{}: {reason}", path.display()))
    })
}

/// Refuses a directory that is a tier already.
pub(super) fn refuse_labelled(path: &Path) -> Result<(), TierError> {
    match labels::require(path) {
        Ok(label) => Err(TierError::Label(format!(
            "{}: is already tier `{}` of volume `{}`",
            path.display(),
            label.tier_name,
            label.volume_name
        ))),
        Err(_) if path.join(OWN_DIRECTORY).join("label").exists() => {
            Err(TierError::Label(format!("{}: has a label that cannot be read", path.display())))
        }
        Err(_) => Ok(()),
    }
}

/// Makes the directories, durably.
pub(super) fn make(path: &Path) -> Result<(), TierError> {
    let top = open(path)?;
    let own = make_in(&top, OWN_DIRECTORY)?;
    let objects = make_in(&own, "objects")?;
    for bucket in 0..BUCKETS {
        make_in(&objects, &format!("{bucket:03x}"))?;
    }
    rustix::fs::syncfs(&objects).map_err(io_error("syncing the tier's directories"))
}

/// Removes the directories that [`make`] made, as far as they are empty, and the file of the lock, which its holder keeps open.
pub(super) fn remove_empty(path: &Path) {
    let own = path.join(OWN_DIRECTORY);
    let objects = own.join("objects");
    for bucket in 0..BUCKETS {
        // A directory that is not empty refuses, and then those above it do.
        let _ = std::fs::remove_dir(objects.join(format!("{bucket:03x}")));
    }
    if std::fs::remove_dir(&objects).is_ok() {
        let _ = std::fs::remove_file(own.join("lock"));
        let _ = std::fs::remove_dir(&own);
    }
}

fn make_in(parent: &OwnedFd, name: &str) -> Result<OwnedFd, TierError> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(io_error("making a directory on the tier")(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(io_error("opening a directory on the tier"))
}

/// A quarter of the descriptors that the process may open, at the most: other tiers and the metadata need some too.
pub(super) fn descriptors_allowed(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let quarter = limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX));
    wanted.min(quarter).max(4)
}
