//! The lock of a volume: one process at a time serves a volume of this name, or has it open.
//!
//! Invariants:
//! * It is a lock on a file of the runtime directory, so that it ends with the last process that has the file open.
//! * The text of the file says where the volume is in use and by which process, or why the last use did not end cleanly.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process_end::{HOLDER_MARK, PROGRAM_MARK, ProcessEnd};
use crate::refusal::{Cause, Refusal};

/// How long a mount waits for an earlier daemon of the volume that is just ending.
const HOLDER_PATIENCE: Duration = Duration::from_secs(3);

/// Prefix of the reason in the lock of a volume that did not end cleanly.
pub const UNCLEAN_END: &str = "ended uncleanly: ";

/// In which way a process uses a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseOfVolume<'a> {
    /// It serves it to the kernel, mounted there.
    Mounted(&'a Path),
    /// It is a program that has the file system as a library.
    InProgram,
}

impl fmt::Display for UseOfVolume<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(mount_point) => write!(formatter, "on {}", mount_point.display()),
            Self::InProgram => formatter.write_str(PROGRAM_MARK),
        }
    }
}

/// The lock that keeps other users of a volume away.
pub struct VolumeLock {
    file: File,
}

impl AsFd for VolumeLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl VolumeLock {
    /// Takes the lock in the file at a path, and waits a moment for a user that is just ending.
    ///
    /// # Errors
    /// [`Cause::InUse`] where another process has it; the file cannot be made or written.
    pub fn take(path: &Path, name: &str, used: UseOfVolume<'_>) -> Result<Self> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        // A daemon that was killed may be ending still, and `umount` holds a shared lock while it looks whether one is gone.
        let start = Instant::now();
        let mut is_free = file.try_lock().is_ok();
        while !is_free && start.elapsed() < HOLDER_PATIENCE {
            thread::sleep(Duration::from_millis(25));
            is_free = file.try_lock().is_ok();
        }
        let mut holder = String::new();
        file.read_to_string(&mut holder)?;
        if !is_free {
            let way = if holder.starts_with(PROGRAM_MARK) { "in use" } else { "mounted" };
            let message = format!("volume `{name}` is {way} already {}", holder.trim());
            return Err(Refusal::new(message, Cause::InUse).into());
        }
        // The locks of the tiers end with the process that had this one.
        if let Some(ending) = ProcessEnd::of_holder(&holder)
            && !ending.is_over_within(HOLDER_PATIENCE)
        {
            log::warn!("volume `{name}`: process {}, which used it last, has not ended", ending.id());
        }
        Self::held(file, used)
    }

    /// The lock in a file that is locked already, by this process or by an earlier daemon whose supervisor kept it. Notes which process
    /// uses the volume.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn held(mut file: File, used: UseOfVolume<'_>) -> Result<Self> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{used} {HOLDER_MARK}{}", std::process::id())?;
        Ok(Self { file })
    }

    /// Records why this use did not end cleanly, for processes that wait for its end.
    pub fn note_unclean(&self, reason: &str) {
        note_unclean(&self.file, reason);
    }

    /// Notes that this use has ended cleanly, and that its process may live on.
    pub fn note_end(&self) {
        if let Err(error) = self.file.set_len(0) {
            log::debug!("the end of the use of a volume is not noted: {error}");
        }
    }

    /// Lets go of it before the process ends, and where a child of this process has the file open.
    pub fn release(&self) {
        if let Err(error) = self.file.unlock() {
            log::error!("the lock of the volume stays until the process is gone: {error}");
        }
    }
}

/// Writes to the locked file of a volume why its daemon did not end cleanly, for processes that wait for its end.
pub fn note_unclean(mut file: &File, reason: &str) {
    let written = file.set_len(0).and_then(|()| file.rewind());
    if let Err(error) = written.and_then(|()| writeln!(file, "{UNCLEAN_END}{reason}")) {
        log::debug!("the reason of the unclean end cannot be written: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_is_refused_with_the_way_in_which_the_volume_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("media.lock");
        let uses = [
            (
                UseOfVolume::Mounted(Path::new("/mnt/pool")),
                "volume `media` is mounted already on /mnt/pool by process ",
            ),
            (UseOfVolume::InProgram, "volume `media` is in use already in a program by process "),
        ];
        for (used, expected) in uses {
            let lock = VolumeLock::take(&path, "media", used).unwrap();
            let refusal = VolumeLock::take(&path, "media", UseOfVolume::InProgram).err().unwrap();
            assert!(matches!(refusal.downcast_ref::<Refusal>().unwrap().cause, Cause::InUse));
            assert_eq!(refusal.to_string(), format!("{expected}{}", std::process::id()));
            lock.release();
            VolumeLock::take(&path, "media", used).unwrap();
        }
    }
}
