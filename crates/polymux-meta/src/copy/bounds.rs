//! Where a second copy ends, for readers of its directory.
//!
//! Invariants:
//! * A copy is locked through the file of its slots, not through its log. The lock is tried to see whether another process ships to the copy, and
//!   released at once: a reader must not keep the store from going on with its copy, which would be made anew then.
//! * A directory is that of a copy where it has slots and no ballast: a copy that was renamed to be a store got one when it was opened.
//! * Bytes of the log behind the end are not part of the copy. They may be entries of a process that was killed while it shipped
//!   them, in a history that a start from this copy has ended since.

use std::path::Path;

use super::directory::{SLOT_FILE, failed};
use super::restore::{complete_slot, incomplete};
use super::slot_format::{FILE_LENGTH, Slot};
use crate::error::StoreError;
use crate::log::LogMedium;
use crate::log_store::{BALLAST_FILE, LogFile};

/// A copy as a reader finds it.
pub(crate) enum FoundCopy {
    /// No other process ships to it. Its slot says where it ends.
    AtRest(Slot),
    /// Another process ships to it: its end moves on.
    InUse,
}

/// Finds the copy in a directory; `None` where a store is there and no copy.
///
/// # Errors
///
/// [`StoreError::Open`] where the copy is incomplete and not in use; others where it cannot be read.
pub(crate) fn find_copy(path: &Path) -> Result<Option<FoundCopy>, StoreError> {
    let exists = |file: &Path| file.try_exists().map_err(|error| failed(file, &error));
    let file = path.join(SLOT_FILE);
    if !exists(&file)? || exists(&path.join(BALLAST_FILE))? {
        return Ok(None);
    }
    let slots = LogFile::open(&file)?;
    if !slots.lock_shared()? {
        return Ok(Some(FoundCopy::InUse));
    }
    if slots.length() < FILE_LENGTH {
        return Err(incomplete(path));
    }
    Ok(Some(FoundCopy::AtRest(complete_slot(&slots, path)?)))
}
