//! Which files go on being synced, as a log does.
//!
//! A segment of a log that goes round is full within a second, and is not used again for a minute: by the time it could be on a faster tier it would
//! only take space there from ranges that are in use. So a file has to be synced in as many windows as another range is used in.
//!
//! Invariant: no more files than were synced in the last [`WINDOWS_BETWEEN_SYNCS`] windows.

use std::collections::{BTreeMap, BTreeSet};

use polymux_types::Ino;

use super::demand::WINDOWS_SURE;

/// Windows without a sync after which a file counts as not synced before.
const WINDOWS_BETWEEN_SYNCS: u8 = 10;

/// Files that were synced lately.
#[derive(Debug, Default)]
pub(super) struct SyncedFiles {
    /// Windows with small syncs, up to [`WINDOWS_SURE`], and windows since the last of them.
    windows: BTreeMap<Ino, (u8, u8)>,
}

impl SyncedFiles {
    /// Ends a window in which these files were synced; returns those of them that are known to go on.
    pub(super) fn end_window(&mut self, mut synced: BTreeSet<Ino>) -> BTreeSet<Ino> {
        self.windows.retain(|_, (_, since)| {
            *since += 1;
            *since < WINDOWS_BETWEEN_SYNCS
        });
        synced.retain(|ino| {
            let (windows, since) = self.windows.entry(*ino).or_default();
            (*windows, *since) = (windows.saturating_add(1).min(WINDOWS_SURE), 0);
            *windows >= WINDOWS_SURE
        });
        synced
    }
}
