//! Bytes and records of a file that are not durable yet, and errors of those that were lost.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use polymux_types::ObjectId;
use polymux_types::sync::{Mutex, RwLock};

use super::rewritten::Emptyings;

/// Bytes and records of a file that are not durable yet, and errors of those that were lost.
#[derive(Debug)]
pub struct Durability {
    /// Per slot, the byte range written since the last successful sync, which a failed sync may have lost.
    pub unsynced: Mutex<Vec<(u8, u64, u64)>>,
    /// Shared by syncs until their losses are recorded; a caller that reports errors takes it exclusively first.
    pub sync_gate: RwLock<()>,
    /// Objects that were made since it was loaded and not synced since: their directory entries may not be durable. A leaf.
    pub entries_unsynced: Mutex<Vec<ObjectId>>,
    /// Highest error sequence of the layout, readable without its lock.
    pub error_sequence: AtomicU32,
    /// The log up to here determines which of several objects owns each block.
    pub layout_sequence: AtomicU64,
    /// Whether the file was emptied and not synced since.
    pub emptyings: Emptyings,
    /// A transaction with the record failed, so the state in memory is not in the store.
    pub uncommitted: AtomicBool,
}

impl Durability {
    /// Of a file whose record has this error sequence.
    pub(super) fn new(error_sequence: u32) -> Self {
        Self {
            unsynced: Mutex::default(),
            sync_gate: RwLock::new(()),
            entries_unsynced: Mutex::default(),
            error_sequence: AtomicU32::new(error_sequence),
            layout_sequence: AtomicU64::new(0),
            emptyings: Emptyings::default(),
            uncommitted: AtomicBool::new(false),
        }
    }
}
