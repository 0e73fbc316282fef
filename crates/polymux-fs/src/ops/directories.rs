//! Listing directories.

use polymux_records::attributes::{DirectoryEntry, DirectoryNames};
use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_types::{Errno, Ino};
use polymux_volume::access::READ;
use polymux_volume::inode::DirectoryState;

use crate::mounted::Mounted;

impl Mounted {
    pub(crate) fn check_listing(&self, caller: &Caller, ino: Ino) -> Result<()> {
        let directory = self.namespace.directory_inode(ino)?;
        self.volume.check_access(caller, &directory, READ)
    }

    pub(crate) fn directory_names(&self, ino: Ino) -> Result<DirectoryNames> {
        self.with_directory(ino, |state| DirectoryNames {
            edition: state.edition.now(&self.editions),
            end: state.next_cookie,
        })
    }

    pub(crate) fn end_edition(&self, ino: Ino) -> Result<()> {
        self.with_directory(ino, |state| state.edition.end())
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
