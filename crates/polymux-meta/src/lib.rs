//! The ordered transactional store that holds all metadata of a volume.
//!
//! Invariants:
//! * The store knows keys and values as bytes. It knows no inode, no directory and no tier.
//! * A [`Batch`] is atomic: after a crash all of it is there or nothing.
//! * Transactions have one order, given by [`Sequence`]. After a crash a prefix of that order is there, and it contains
//!   at least everything up to the last sequence that [`MetadataStore::sync`] confirmed.
//! * After an error while writing, the store is poisoned: every later change and sync fails with [`StoreError::Poisoned`], or
//!   with [`StoreError::ReadOnly`] where the file system below turned read-only. It stops and reports the error. Transactions
//!   committed before remain readable.

#![forbid(unsafe_code)]

mod ballast;
mod batch;
pub mod conformance;
mod copy;
mod error;
mod formats;
mod log;
mod log_store;
mod memtable;
mod notes;
#[cfg(all(test, shuttle))]
mod schedules;
mod slots;
mod store;
mod tables;

pub use batch::{Batch, ChangeRef, Changes};
pub use copy::{CopyDescription, CopyOptions, CopyReport, CopyState, CopyWorth, StoreEnd};
pub use copy::{CopyPlace, StoreState, WayOut, describe_copy, newest_copy, restore_from_copy, verify_copy};
pub use error::StoreError;
#[doc(hidden)]
pub use formats::on_disk_formats;
pub use log::{BLOCK, LogCounters, LogDamage, LogEnd, LogMedium};
pub use log_store::{InUse, LogEntry, LogSummary, LogView, PartitionView, StoreView, TableLevel};
pub use log_store::{
    LogPlacement, LogStore, LogStoreOptions, OpenMode, RegionKind, StepProgress, StoreReport, WindowPlace,
    WindowReport, Workers, sequence_at,
};
pub use memtable::GROUP_LENGTH;
pub use notes::{CONTENT_MAX as NOTE_LENGTH_MAX, Note, NotePlace, Notes};
pub use store::{CopySync, Entry, MetadataStore, Room};
pub use tables::TableCounters;

pub use polymux_types::Sequence;
