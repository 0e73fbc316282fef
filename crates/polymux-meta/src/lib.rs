//! The ordered transactional store that holds all metadata of a volume.
//!
//! What is true here:
//! * The store knows keys and values as bytes. It knows no inode, no directory and no tier.
//! * A [`Batch`] is atomic: after a crash all of it is there or nothing.
//! * Transactions have one order, given by [`Sequence`]. After a crash a prefix of that order is there, and it contains
//!   at least everything up to the last sequence that [`MetadataStore::sync`] confirmed.
//! * After an error while writing, the store is poisoned: every later call fails with [`StoreError::Poisoned`]. It
//!   stops and says so, it does not limp.

#![forbid(unsafe_code)]

mod batch;
pub mod conformance;
mod error;
mod fjall_store;
mod store;

pub use batch::{Batch, Change};
pub use error::StoreError;
pub use fjall_store::{FjallStore, FjallStoreOptions, OpenMode};
pub use store::{Entry, MetadataStore};

pub use polymux_types::Sequence;
