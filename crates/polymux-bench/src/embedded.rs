//! The Polymux side: a volume over directories of the device under measurement, used without FUSE.

use std::sync::Arc;

use anyhow::{Result, ensure};
use polymux_fs::{Caller, FileSystem, HandleId, OpenOptions, RenameMode, SyncKind, WriteOrigin};
use polymux_meta::LogCounters;
use polymux_types::{Ino, StreamId};

use crate::side::{Appender, Durability, PrivateDirectory, Side};
use crate::volume::MountedVolume;

const FILE_PERMISSIONS: u32 = 0o644;
const DIRECTORY_PERMISSIONS: u32 = 0o755;
const OPEN_NEW: OpenOptions = OpenOptions {
    read: false,
    write: true,
    append: false,
    positions_appends: false,
    truncate: false,
    exclusive: true,
    synchronous: false,
    execute: false,
};

/// A mounted volume under measurement.
pub struct EmbeddedSide<'a> {
    volume: &'a MountedVolume,
}

impl<'a> EmbeddedSide<'a> {
    /// Over a mounted volume.
    #[must_use]
    pub fn new(volume: &'a MountedVolume) -> Self {
        Self { volume }
    }
}

impl Side for EmbeddedSide<'_> {
    fn name(&self) -> &'static str {
        "polymux"
    }

    fn private_directory(&self, name: &str, stream: u64) -> Result<Box<dyn PrivateDirectory>> {
        let file_system = Arc::clone(self.volume.file_system());
        Ok(Box::new(EmbeddedDirectory::make(file_system, Ino::ROOT, name, stream)?))
    }

    fn drain(&self) -> Result<()> {
        self.volume.drain()
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume.file_system().sync_volume()?)
    }

    fn log_counters(&self) -> Option<LogCounters> {
        self.volume.store().log_counters()
    }
}

/// A directory of a volume, and the caller that works in it.
pub struct EmbeddedDirectory {
    file_system: Arc<FileSystem>,
    caller: Caller,
    directory: Ino,
}

impl EmbeddedDirectory {
    /// Makes a directory and enters it.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn make(file_system: Arc<FileSystem>, parent: Ino, name: &str, stream: u64) -> Result<Self> {
        let caller = Caller { stream: StreamId(stream), ..Caller::root() };
        let made = file_system.make_directory(&caller, parent, name.as_bytes(), DIRECTORY_PERMISSIONS)?;
        Ok(Self { file_system, caller, directory: made.ino })
    }

    /// Number of the directory.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.directory
    }

    fn open_new(&self, name: &str, options: OpenOptions) -> Result<HandleId> {
        let made = self.file_system.create(&self.caller, self.directory, name.as_bytes(), FILE_PERMISSIONS, options)?;
        Ok(made.1)
    }

    fn close(&self, handle: HandleId, durability: Durability) -> Result<()> {
        if durability == Durability::Synced {
            self.file_system.sync(&self.caller, handle, SyncKind::All)?;
        }
        self.file_system.flush(&self.caller, handle)?;
        Ok(self.file_system.release(handle)?)
    }

    fn sync_if(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Later => Ok(()),
            Durability::Synced => Ok(self.file_system.sync_directory(&self.caller, self.directory)?),
        }
    }
}

impl PrivateDirectory for EmbeddedDirectory {
    fn create(&self, name: &str, durability: Durability) -> Result<()> {
        let handle = self.open_new(name, OPEN_NEW)?;
        self.close(handle, durability)
    }

    fn create_written(&self, name: &str, data: &[u8], durability: Durability) -> Result<()> {
        let handle = self.open_new(name, OPEN_NEW)?;
        let written = self.file_system.write(&self.caller, handle, 0, data, WriteOrigin::Call)?;
        ensure!(written == data.len(), "a write of {} bytes wrote {written}", data.len());
        self.close(handle, durability)
    }

    fn rename(&self, from: &str, to: &str, durability: Durability) -> Result<()> {
        let (from, to, directory) = (from.as_bytes(), to.as_bytes(), self.directory);
        self.file_system.rename(&self.caller, directory, from, directory, to, RenameMode::Replace)?;
        self.sync_if(durability)
    }

    fn unlink(&self, name: &str, durability: Durability) -> Result<()> {
        self.file_system.unlink(&self.caller, self.directory, name.as_bytes())?;
        self.sync_if(durability)
    }

    fn make_directory(&self, name: &str, durability: Durability) -> Result<()> {
        let permissions = DIRECTORY_PERMISSIONS;
        self.file_system.make_directory(&self.caller, self.directory, name.as_bytes(), permissions)?;
        self.sync_if(durability)
    }

    fn remove_directory(&self, name: &str, durability: Durability) -> Result<()> {
        self.file_system.remove_directory(&self.caller, self.directory, name.as_bytes())?;
        self.sync_if(durability)
    }

    fn appender(&self, name: &str, size: usize) -> Result<Box<dyn Appender>> {
        let handle = self.open_new(name, OpenOptions { append: true, ..OPEN_NEW })?;
        let (file_system, caller) = (Arc::clone(&self.file_system), self.caller.clone());
        let mut appender = EmbeddedAppender { file_system, caller, handle };
        appender.append(&vec![1; size])?;
        Ok(Box::new(appender))
    }
}

struct EmbeddedAppender {
    file_system: Arc<FileSystem>,
    caller: Caller,
    handle: HandleId,
}

impl Appender for EmbeddedAppender {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        // The offset is not used: the file was opened for appending.
        let written = self.file_system.write(&self.caller, self.handle, 0, data, WriteOrigin::Call)?;
        ensure!(written == data.len(), "a write of {} bytes wrote {written}", data.len());
        Ok(self.file_system.sync(&self.caller, self.handle, SyncKind::Data)?)
    }
}

impl Drop for EmbeddedAppender {
    fn drop(&mut self) {
        if let Err(error) = self.file_system.release(self.handle) {
            eprintln!("warning: a file was not closed: {error}");
        }
    }
}
