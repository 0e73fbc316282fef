//! Listing directories.

use std::time::Duration;

use polymux_records::attributes::{DirectoryEntry, OpenedDirectory};
use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_types::{Errno, Ino};
use polymux_volume::access::READ;
use polymux_volume::inode::DirectoryState;

use crate::mounted::Mounted;

impl Mounted {
    pub(crate) fn open_directory(&self, caller: &Caller, ino: Ino) -> Result<OpenedDirectory> {
        let directory = self.namespace.directory_inode(ino)?;
        self.volume.check_access(caller, &directory, READ)?;
        let state = directory.directory().ok_or(Errno::ENOTDIR)?.read();
        let since = |listed_ms: u64| Duration::from_millis(self.volume.elapsed_ms().saturating_sub(listed_ms));
        Ok(OpenedDirectory {
            end: state.next_cookie,
            is_outdated: state.listings.take_outdated(),
            since_listed: state.listings.listed_ms().map(since),
        })
    }

    pub(crate) fn outdate_listings(&self, ino: Ino) -> Result<()> {
        self.with_directory(ino, |state| state.listings.outdate())
    }

    pub(crate) fn directory_end(&self, ino: Ino) -> Result<u64> {
        self.with_directory(ino, |state| state.next_cookie)
    }

    pub(crate) fn note_listed(&self, ino: Ino) -> Result<()> {
        self.with_directory(ino, |state| state.listings.note_listed(self.volume.elapsed_ms()))
    }

    /// Looks at the state of a directory.
    fn with_directory<T>(&self, ino: Ino, look: impl FnOnce(&DirectoryState) -> T) -> Result<T> {
        let directory = self.namespace.directory_inode(ino)?;
        let state = directory.directory().ok_or(Errno::ENOTDIR)?.read();
        Ok(look(&state))
    }

    pub(crate) fn read_directory(&self, ino: Ino, after: u64, limit: usize) -> Result<Vec<DirectoryEntry>> {
        let directory = self.namespace.directory_inode(ino)?;
        self.data.note_accessed(&directory);
        self.volume.metadata.directory_entries(ino, after, limit)
    }

    pub(crate) fn sync_directory(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.check_may_wait(caller)?;
        let inode = self.volume.inode(ino)?;
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        self.data.flush_times(&inode)?;
        if is_planted(PlantedFault::DirectorySyncWithoutLog) {
            return Ok(());
        }
        self.volume.flush_inode(&inode)
    }
}
