//! Open directories.
//!
//! Invariants:
//! * An open directory stays in service while it is open, also where its last name is gone.
//! * A listing returns each name that is there from its beginning to its end exactly once; names that come or go meanwhile may be in it
//!   or not.

use std::collections::VecDeque;
use std::sync::Arc;

use polymux_fs::{Attributes, DirectoryEntry, FileSystem, Result, SetAttributes};
use polymux_types::Ino;
use polymux_types::sync::Mutex;

use crate::opened::Opened;

/// Entries that are asked for at once.
const BATCH: usize = 256;

/// How far a listing is.
#[derive(Default)]
struct Listing {
    /// Cookie of the entry that was returned last; 0 at the beginning.
    after: u64,
    /// Entries that come next.
    ready: VecDeque<DirectoryEntry>,
}

/// An open directory.
pub struct Directory {
    opened: Arc<Opened>,
    ino: Ino,
    listing: Mutex<Listing>,
}

impl Directory {
    /// Opens a directory that was found a moment ago.
    pub(crate) fn open(opened: Arc<Opened>, ino: Ino) -> Result<Self> {
        let file_system = opened.file_system()?;
        file_system.check_listing(opened.caller(), ino)?;
        file_system.pin(ino);
        Ok(Self { opened, ino, listing: Mutex::default() })
    }

    fn file_system(&self) -> Result<&FileSystem> {
        self.opened.file_system()
    }

    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The next entry, `None` at the end. `.` and `..` are not among them.
    ///
    /// # Errors
    /// `EIO`: the directory cannot be read.
    pub fn next_entry(&self) -> Result<Option<DirectoryEntry>> {
        let file_system = self.file_system()?;
        let mut listing = self.listing.lock();
        if listing.ready.is_empty() {
            let more = file_system.read_directory(self.opened.caller(), self.ino, listing.after, BATCH)?;
            listing.ready.extend(more);
        }
        let entry = listing.ready.pop_front();
        if let Some(entry) = &entry {
            listing.after = entry.cookie;
        }
        Ok(entry)
    }

    /// The position of the listing: 0 at its beginning, otherwise the [`DirectoryEntry::cookie`] of the entry that was returned last.
    ///
    /// # Errors
    /// `ENOTCONN`: this process is a child of the one that opened the volume.
    pub fn position(&self) -> Result<u64> {
        self.file_system()?;
        Ok(self.listing.lock().after)
    }

    /// Goes on after the entry with this cookie; 0: from the beginning. The names are read anew.
    ///
    /// # Errors
    /// `ENOTCONN`: this process is a child of the one that opened the volume.
    pub fn seek(&self, after: u64) -> Result<()> {
        self.file_system()?;
        *self.listing.lock() = Listing { after, ready: VecDeque::new() };
        Ok(())
    }

    /// Its attributes.
    ///
    /// # Errors
    /// `EIO`: they cannot be read.
    pub fn attributes(&self) -> Result<Attributes> {
        self.file_system()?.attributes(self.opened.caller(), self.ino)
    }

    /// Attributes of the directory above it; its own for the root.
    ///
    /// # Errors
    /// `EIO`: they cannot be read.
    pub fn parent(&self) -> Result<Attributes> {
        self.file_system()?.parent_of(self.opened.caller(), self.ino)
    }

    /// Changes attributes; returns them all.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`: the caller may not; `EISDIR`: a size.
    pub fn set_attributes(&self, change: &SetAttributes) -> Result<Attributes> {
        self.file_system()?.set_attributes(self.opened.caller(), self.ino, change)
    }

    /// Makes its names durable.
    ///
    /// # Errors
    /// `EIO`: they could not be written.
    pub fn sync(&self) -> Result<()> {
        self.file_system()?.sync_directory(self.opened.caller(), self.ino)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Ok(file_system) = self.file_system() {
            file_system.unpin(self.ino, 1);
        }
    }
}

/// Entries in turn, from where the listing is.
impl Iterator for &Directory {
    type Item = Result<DirectoryEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().transpose()
    }
}
