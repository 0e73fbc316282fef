//! The building blocks of every change of a name, used inside a transaction.

use std::sync::atomic::Ordering;

use polymux_types::Ino;

use crate::attributes::FileKind;
use crate::core::{Core, Transaction};
use crate::error::Result;
use crate::inode::{DirectoryState, Inode};
use crate::store::{Dirent, PositionEntry, keys};

/// Cookies that an open record reserves: one more record in so many creations.
const COOKIES_RESERVED: u64 = 4096;

/// Whether a change of names changes the link count of the directory, because subdirectories came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkChange {
    Same,
    Changed,
}

impl Core {
    /// Adds the effect of a change of names to the record of their directory. Called once the names are changed, by the
    /// exclusive holder of the state.
    ///
    /// The first record since the log was flushed is exact, so that a program that syncs each change writes one record for
    /// each. The second is open, and those after it are saved until times are flushed (docs/design/0009).
    pub(crate) fn put_names_changed(
        &self,
        transaction: &mut Transaction,
        directory: &Inode,
        state: &mut DirectoryState,
        links: LinkChange,
    ) {
        let is_open = directory.is_record_open.load(Ordering::Acquire);
        if !is_open && self.metadata.durable() >= directory.last_sequence() {
            transaction.put_directory(directory, state);
            return;
        }
        let is_reserved = is_open && state.next_cookie <= state.cookies_end;
        if !is_reserved {
            state.cookies_end = state.next_cookie.saturating_add(COOKIES_RESERVED);
        }
        if !is_reserved || links == LinkChange::Changed {
            transaction.put_open_directory(directory, state);
        }
        directory.times_dirty.store(true, Ordering::Release);
    }

    /// Whether a directory, whose state is locked, holds no name.
    pub(crate) fn is_empty(&self, directory: &Inode, state: &DirectoryState) -> Result<bool> {
        match state.entries {
            Some(count) => Ok(count == 0),
            None => Ok(self.metadata.directory_entries(directory.ino, 0, 1)?.is_empty()),
        }
    }
}

impl Transaction {
    /// Gives a name to an inode in a directory.
    pub(crate) fn add_name(&mut self, directory: (Ino, &mut DirectoryState), name: &[u8], ino: Ino, kind: FileKind) {
        let (parent, state) = directory;
        let cookie = state.next_cookie;
        state.next_cookie += 1;
        state.entries = state.entries.map(|count| count + 1);
        self.put_name(parent, name, ino, kind, cookie);
    }

    /// Gives a name to an inode in a directory, at a position that a name which was just removed had: who lists the directory
    /// meanwhile neither misses the name nor sees the file twice.
    pub(crate) fn add_name_at(
        &mut self,
        directory: (Ino, &mut DirectoryState),
        name: &[u8],
        (ino, kind): (Ino, FileKind),
        cookie: u64,
    ) {
        let (parent, state) = directory;
        state.entries = state.entries.map(|count| count + 1);
        self.put_name(parent, name, ino, kind, cookie);
    }

    /// Writes the records of a name at a given position.
    pub(crate) fn put_name(&mut self, parent: Ino, name: &[u8], ino: Ino, kind: FileKind, cookie: u64) {
        self.put_record_with(keys::dirent(parent, name), |bytes| Dirent { ino, kind, cookie }.encode(bytes));
        self.put_record_with(keys::position(parent, cookie), |bytes| PositionEntry { ino, kind, name }.encode(bytes));
        self.batch.put(keys::parent_name(ino, parent, name), []);
    }

    /// Takes a name away.
    pub(crate) fn remove_name(&mut self, directory: (Ino, &mut DirectoryState), name: &[u8], dirent: &Dirent) {
        let (parent, state) = directory;
        state.entries = state.entries.map(|count| count.checked_sub(1).expect("a directory with a name has an entry"));
        self.delete_name(parent, name, dirent);
    }

    /// Deletes the records of a name.
    pub(crate) fn delete_name(&mut self, parent: Ino, name: &[u8], dirent: &Dirent) {
        self.batch.delete(keys::dirent(parent, name));
        self.batch.delete(keys::position(parent, dirent.cookie));
        self.batch.delete(keys::parent_name(dirent.ino, parent, name));
    }
}
