//! Whether a tier works: a file of its own is written, synced, read from the device and removed.
//!
//! Invariant: no data of users is touched, and no file is left behind where the attempt succeeds.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::{OWN_DIRECTORY, PosixTier, io_error};
use crate::error::TierError;

const NAME: &str = "probe";
/// Too long for file systems that keep the bytes of small files with their inodes.
const CONTENT: &[u8; 8192] = &[0x70; 8192];

impl PosixTier {
    /// See [`crate::Tier::probe`].
    pub(super) fn try_out(&self) -> Result<(), TierError> {
        self.require_same_directory()?;
        self.require_writable()?;
        let failed = io_error("trying the tier out");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file: OwnedFd =
            rustix::fs::openat(&self.own_directory, NAME, flags, Mode::RUSR | Mode::WUSR).map_err(&failed)?;
        rustix::io::pwrite(&file, CONTENT, 0).map_err(&failed)?;
        rustix::fs::fsync(&file).map_err(&failed)?;
        // A hint: a file system in memory has it nowhere else.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let mut found = [0; CONTENT.len()];
        let length = rustix::io::pread(&file, &mut found, 0).map_err(&failed)?;
        // Another attempt at the same time may have emptied it.
        if found[..length] != CONTENT[..length] {
            return Err(failed(Errno::IO));
        }
        match rustix::fs::unlinkat(&self.own_directory, NAME, AtFlags::empty()) {
            // Another attempt at the same time has removed it.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// The path of the tier may lead elsewhere by now: its file system was unmounted, or another one mounted over it.
    /// Open descriptors go on working then, and do not show which directory the next mount will find.
    fn require_same_directory(&self) -> Result<(), TierError> {
        let open = rustix::fs::fstat(&self.own_directory).map_err(io_error("looking at the tier"))?;
        let by_path = rustix::fs::statat(CWD, self.path.join(OWN_DIRECTORY), AtFlags::empty());
        match by_path {
            Ok(found) if (found.st_dev, found.st_ino) == (open.st_dev, open.st_ino) => Ok(()),
            Ok(_) => Err(TierError::Label(format!("{}: leads to another file system by now", self.path.display()))),
            Err(errno) => {
                let reason = std::io::Error::from(errno);
                Err(TierError::Label(format!("{}: {reason}: its file system is not there", self.path.display())))
            }
        }
    }
}
