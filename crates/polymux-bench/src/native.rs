//! The native side: plain system calls, relative to open directories, so that no path is walked.
//!
//! ext4 does not use an inode again for minutes after its file was deleted, and looks for another past
//! all of those, one by one: creating files where others were deleted just before is up to fifty times as slow. A
//! comparison must not live on that, so private directories lie in a directory that ext4 takes for the top of a hierarchy
//! (`chattr +T`): it gives each of them a part of the disk of its own.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polymux_meta::LogCounters;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags};

use crate::side::{Appender, Durability, PrivateDirectory, Side};

const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory of the file system under comparison.
pub struct NativeSide {
    path: PathBuf,
    directory: OwnedFd,
}

impl NativeSide {
    /// Over a directory that exists.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn new(path: &Path) -> Result<Self> {
        let directory = open_directory(CWD, path)?;
        // Other file systems have no such flag, and need none.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&directory) {
            let _ = rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR);
        }
        Ok(Self { path: path.to_owned(), directory })
    }
}

fn open_directory(at: impl rustix::fd::AsFd, path: &Path) -> Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| path.display().to_string())
}

impl Side for NativeSide {
    fn name(&self) -> &'static str {
        "native"
    }

    fn private_directory(&self, name: &str, _stream: u64) -> Result<Box<dyn PrivateDirectory>> {
        rustix::fs::mkdirat(&self.directory, name, DIRECTORY_MODE)
            .with_context(|| self.path.join(name).display().to_string())?;
        Ok(Box::new(NativeDirectory { directory: open_directory(&self.directory, Path::new(name))? }))
    }

    fn drain(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.directory)?)
    }

    fn log_counters(&self) -> Option<LogCounters> {
        None
    }
}

struct NativeDirectory {
    directory: OwnedFd,
}

impl NativeDirectory {
    fn make(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.directory, name, flags, FILE_MODE)?)
    }

    fn sync_if(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Later => Ok(()),
            Durability::Synced => Ok(rustix::fs::fsync(&self.directory)?),
        }
    }
}

fn write_all(file: &OwnedFd, data: &[u8], offset: u64) -> Result<()> {
    let written = rustix::io::pwrite(file, data, offset)?;
    ensure!(written == data.len(), "a write of {} bytes wrote {written}", data.len());
    Ok(())
}

impl PrivateDirectory for NativeDirectory {
    fn create(&self, name: &str, durability: Durability) -> Result<()> {
        let file = self.make(name)?;
        if durability == Durability::Synced {
            rustix::fs::fsync(&file)?;
        }
        Ok(())
    }

    fn create_written(&self, name: &str, data: &[u8], durability: Durability) -> Result<()> {
        let file = self.make(name)?;
        write_all(&file, data, 0)?;
        if durability == Durability::Synced {
            rustix::fs::fsync(&file)?;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, durability: Durability) -> Result<()> {
        rustix::fs::renameat(&self.directory, from, &self.directory, to)?;
        self.sync_if(durability)
    }

    fn unlink(&self, name: &str, durability: Durability) -> Result<()> {
        rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?;
        self.sync_if(durability)
    }

    fn make_directory(&self, name: &str, durability: Durability) -> Result<()> {
        rustix::fs::mkdirat(&self.directory, name, DIRECTORY_MODE)?;
        self.sync_if(durability)
    }

    fn remove_directory(&self, name: &str, durability: Durability) -> Result<()> {
        rustix::fs::unlinkat(&self.directory, name, AtFlags::REMOVEDIR)?;
        self.sync_if(durability)
    }

    fn appender(&self, name: &str, size: usize) -> Result<Box<dyn Appender>> {
        let file = self.make(name)?;
        write_all(&file, &vec![1; size], 0)?;
        rustix::fs::fsync(&file)?;
        Ok(Box::new(NativeAppender { file, end: size as u64 }))
    }
}

struct NativeAppender {
    file: OwnedFd,
    end: u64,
}

impl Appender for NativeAppender {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        write_all(&self.file, data, self.end)?;
        rustix::fs::fdatasync(&self.file)?;
        self.end += data.len() as u64;
        Ok(())
    }
}
