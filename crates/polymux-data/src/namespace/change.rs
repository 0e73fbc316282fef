//! The building blocks of every change of a name, used inside a transaction.

use std::sync::atomic::Ordering;

use polymux_records::error::Result;
use polymux_volume::inode::{DirectoryState, Inode};
use polymux_volume::transaction::Transaction;

use crate::namespace::Namespace;

/// Cookies that an open record reserves: one more record in so many creations.
const COOKIES_RESERVED: u64 = 4096;

/// Whether a change of names changes the link count of the directory, because subdirectories came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkChange {
    Same,
    Changed,
}

impl Namespace {
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
        state.edition.end();
        let is_open = directory.is_record_open.load(Ordering::Acquire);
        if !is_open && self.volume.metadata.durable() >= directory.last_sequence() {
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
    pub fn is_empty(&self, directory: &Inode, state: &DirectoryState) -> Result<bool> {
        match state.entries {
            Some(count) => Ok(count == 0),
            None => Ok(self.volume.metadata.directory_entries(directory.ino, 0, 1)?.is_empty()),
        }
    }
}
