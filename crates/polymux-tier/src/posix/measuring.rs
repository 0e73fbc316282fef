//! The file that a tier is measured with.
//!
//! Invariants:
//! * It has no name where the file system can make such files (`O_TMPFILE`): then the end of this process, or of the machine,
//!   removes it. Elsewhere its name is [`NAME`] in Polymux's own directory, and the next open of the tier for changes removes
//!   a leftover. It is never among the objects, so that nothing that looks for a file's data can find it.
//! * A read past the page cache reads bytes that were written past it; where a file system refuses that (`EINVAL`), writes are
//!   synced each (`RWF_DSYNC`), and pages are given up before they are read.

use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;

use polymux_types::Errno;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use rustix::io::ReadWriteFlags;

use super::{OpenAccess, PosixTier, io_error};
use crate::capabilities::Guarantee;
use crate::error::TierError;
use crate::measure::{AlignedBuffer, Ground, Way};
use crate::tier::Tier;

const NAME: &str = "measure";
/// Size of the trial write and read past the page cache, before it is believed that the file system supports them.
const TRIAL_BYTES: usize = 4096;

/// Removes the file that a crash left of a measurement.
pub(super) fn remove_leftover(own_directory: &OwnedFd) -> Result<(), TierError> {
    match rustix::fs::unlinkat(own_directory, NAME, AtFlags::empty()) {
        Ok(()) => {
            log::info!("what a measurement left on the tier that did not come to its end was removed");
            Ok(())
        }
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::ROFS) => Ok(()),
        Err(errno) => Err(io_error("removing what a measurement left")(errno)),
    }
}

struct FileGround {
    file: OwnedFd,
    way: Way,
    /// The directory in which the file has its name, where it has one.
    named_in: Option<OwnedFd>,
}

impl PosixTier {
    pub(super) fn make_measuring_ground(&self) -> Result<Box<dyn Ground>, TierError> {
        debug_assert_eq!(self.options.access, OpenAccess::ReadWrite);
        let in_memory = self.capabilities().guarantee == Guarantee::Volatile;
        if !in_memory && let Some(ground) = self.open_ground(OFlags::DIRECT, Way::Direct)? {
            return Ok(Box::new(ground));
        }
        let way = if in_memory { Way::Memory } else { Way::Synced };
        match self.open_ground(OFlags::empty(), way)? {
            Some(ground) => Ok(Box::new(ground)),
            None => Err(TierError::Unsupported("measuring it")),
        }
    }

    /// `None` where the file system cannot do it that way.
    fn open_ground(&self, flags: OFlags, way: Way) -> Result<Option<FileGround>, TierError> {
        let (mode, flags) = (Mode::RUSR | Mode::WUSR, OFlags::RDWR | OFlags::CLOEXEC | flags);
        let ground = match rustix::fs::openat(&self.own_directory, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => FileGround { file, way, named_in: None },
            Err(_) => {
                remove_leftover(&self.own_directory)?;
                let directory = rustix::io::fcntl_dupfd_cloexec(&self.own_directory, 0);
                let directory = directory.map_err(io_error("making a file to measure with"))?;
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                match rustix::fs::openat(&directory, NAME, flags, mode) {
                    Ok(file) => FileGround { file, way, named_in: Some(directory) },
                    Err(rustix::io::Errno::INVAL) if way == Way::Direct => {
                        // Some file systems make the file before they refuse.
                        remove_leftover(&self.own_directory)?;
                        return Ok(None);
                    }
                    Err(errno) => return Err(io_error("making a file to measure with")(errno)),
                }
            }
        };
        // Some refuse only the first request.
        let mut trial = AlignedBuffer::new(TRIAL_BYTES);
        match ground.write(0, trial.as_mut_slice()).and_then(|()| ground.read(0, trial.as_mut_slice())) {
            Ok(()) => Ok(Some(ground)),
            Err(TierError::Io { errno: Errno::EINVAL, .. } | TierError::Unsupported(_)) if way == Way::Direct => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for FileGround {
    fn drop(&mut self) {
        if let Some(directory) = &self.named_in
            && let Err(error) = remove_leftover(directory)
        {
            log::warn!("{error}; it goes when the tier is opened the next time");
        }
    }
}

impl FileGround {
    fn write_flags(&self) -> ReadWriteFlags {
        match self.way {
            Way::Synced => ReadWriteFlags::DSYNC,
            Way::Direct | Way::Memory => ReadWriteFlags::empty(),
        }
    }
}

impl Ground for FileGround {
    fn way(&self) -> Way {
        self.way
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), TierError> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            match rustix::io::pwritev2(&self.file, &[IoSlice::new(&data[done..])], at, self.write_flags()) {
                Ok(0) => return Err(TierError::NoSpace),
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io_error("writing to measure")(errno)),
            }
        }
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[done..], offset + done as u64) {
                Ok(0) => return Err(TierError::Io { operation: "reading to measure", errno: Errno::EIO }),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io_error("reading to measure")(errno)),
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), TierError> {
        rustix::fs::fdatasync(&self.file).map_err(io_error("syncing to measure"))
    }

    fn forget(&self) -> Result<(), TierError> {
        if self.way == Way::Memory {
            return Ok(());
        }
        self.flush()?;
        let size = rustix::fs::fstat(&self.file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
        if let Ok(Some(size)) = size.map(NonZeroU64::new) {
            // Whether it was done is looked for afterwards.
            let _ = rustix::fs::fadvise(&self.file, 0, Some(size), Advice::DontNeed);
        }
        Ok(())
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        let mut byte = [0_u8];
        let slices = &mut [IoSliceMut::new(&mut byte)];
        // Past the page cache nothing is in memory, and such a read would go to the device.
        self.way == Way::Synced
            && matches!(rustix::io::preadv2(&self.file, slices, offset, ReadWriteFlags::NOWAIT), Ok(read) if read > 0)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        rustix::fs::fstat(&self.file).ok().map(|stat| super::capacity::allocated_of(&stat))
    }
}
