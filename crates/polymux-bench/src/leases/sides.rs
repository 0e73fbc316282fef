//! The sides, the bytes of their files, and the memory that these take.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, ensure};
use polymux_client::{File as ClientFile, Report, Way};
use polymux_types::LeaseRefusal;
use rustix::fs::Advice;

use super::volume::MountedVolume;
use crate::noise::Noise;

/// Places of the sides.
pub(crate) const NATIVE: usize = 0;
pub(crate) const MOUNT: usize = 1;
pub(crate) const CLIENT: usize = 2;

/// Pieces in which files are written, compared and read into memory.
const PIECE: usize = 1 << 20;

/// An open file that is read.
pub(super) trait Side: Sync {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
}

impl Side for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(FileExt::read_at(self, buffer, offset)?)
    }
}

impl Side for ClientFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(Self::read_at(self, buffer, offset)?)
    }
}

/// Open files of all sides.
pub(super) struct Sides {
    native: File,
    mount: File,
    client: ClientFile,
}

impl Sides {
    pub(super) fn open(native: &Path, mounted: &Path) -> Result<Self> {
        Ok(Self { native: File::open(native)?, mount: File::open(mounted)?, client: ClientFile::open(mounted)? })
    }

    /// By their places.
    pub(super) fn all(&self) -> [&dyn Side; 3] {
        [&self.native, &self.mount, &self.client]
    }

    pub(super) fn client_report(&self) -> Report {
        self.client.report()
    }

    pub(super) fn direct_reads(&self) -> u64 {
        self.client.report().reads(Way::Directly)
    }

    pub(super) fn refused(&self) -> Option<LeaseRefusal> {
        self.client.report().refused
    }

    /// Drops the bytes in memory of the files of all sides.
    pub(super) fn evict(&self, volume: &MountedVolume) -> Result<()> {
        evict(&self.native)?;
        evict(&self.mount)?;
        for object in volume.objects()? {
            evict(&File::open(object)?)?;
        }
        Ok(())
    }
}

fn evict(file: &File) -> Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

/// The bytes of a piece.
fn content(offset: u64) -> Vec<u8> {
    Noise::new(offset ^ 0x6c65_6173_6573).bytes(PIECE)
}

/// Writes a file, durably.
pub(super) fn write(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create_new(path)?;
    for offset in (0..bytes).step_by(PIECE) {
        file.write_all_at(&content(offset), offset)?;
    }
    file.sync_all()?;
    drop(file);
    // The system of a mount hears of the end of a description a moment later.
    ensure!(fs::metadata(path)?.len() == bytes, "{} has another length", path.display());
    Ok(())
}

/// Compares the bytes of a side with those that were written.
pub(super) fn compare(side: &dyn Side, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    for offset in (0..bytes).step_by(PIECE) {
        ensure!(side.read_at(&mut buffer, offset)? == PIECE, "the file ends before {offset}");
        ensure!(buffer == content(offset), "the bytes from {offset} on are not those that were written");
    }
    Ok(())
}

/// Reads the file of a side, so that it is in memory.
pub(super) fn warm(side: &dyn Side, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    for offset in (0..bytes).step_by(PIECE) {
        ensure!(side.read_at(&mut buffer, offset)? == PIECE, "the file ends before {offset}");
    }
    Ok(())
}
