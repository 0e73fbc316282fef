//! Where a second copy ends, for readers of its directory.
//!
//! Invariants:
//! * A copy is locked through the file of its slots, not through its log. The shared lock is held as long as this lives, so that the
//!   end that was read stays true; where another process ships to the copy it is not granted, and the copy goes on meanwhile.
//! * Bytes of the log behind the end are not part of the copy. They may be entries of a process that was killed while it shipped
//!   them, in a history that a start from this copy has ended since.

use std::path::Path;

use super::directory::{SLOT_FILE, failed};
use super::restore::{check_end, check_header, complete_slot};
use super::slot_format::Slot;
use crate::error::StoreError;
use crate::log::LogHeader;
use crate::log_store::LogFile;

/// The slot of a copy that is open for reading.
pub(crate) struct CopyBounds {
    slot: Slot,
    /// Holds the lock where it was granted.
    _slots: LogFile,
    is_locked: bool,
}

impl CopyBounds {
    /// Reads those of the copy in a directory; `None` where a store is there and no copy.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where the copy is incomplete; others where it cannot be read.
    pub(crate) fn find(path: &Path) -> Result<Option<Self>, StoreError> {
        let file = path.join(SLOT_FILE);
        if !file.try_exists().map_err(|error| failed(&file, &error))? {
            return Ok(None);
        }
        let slots = LogFile::open(&file)?;
        let is_locked = slots.lock_shared()?;
        let slot = complete_slot(&slots, path)?;
        Ok(Some(Self { slot, _slots: slots, is_locked }))
    }

    /// Whether no other process ships to the copy.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Position of the log up to which everything is in the copy.
    pub(crate) fn end(&self) -> u64 {
        self.slot.arrived
    }

    /// Fails where the log with this header is not that of the copy.
    pub(crate) fn check_header(&self, header: &LogHeader) -> Result<(), StoreError> {
        check_header(&self.slot, header)
    }

    /// Fails where the log ends elsewhere than the slot says. While another process ships, that proves nothing.
    pub(crate) fn check_end(&self, end: u64, header: &LogHeader) -> Result<(), StoreError> {
        if self.is_locked { check_end(&self.slot, end, header) } else { Ok(()) }
    }
}
