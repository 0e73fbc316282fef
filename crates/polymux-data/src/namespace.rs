//! Names: directories, links, renames.
//!
//! Invariants:
//! * A name is a pair of records (`d`, `c`) and an entry in the list of the inode's names (`p`), changed together.
//! * Lookups take no lock: a single record answers. Changes hold the lock of every directory whose names change.
//! * Order of directory locks: `Namespace::rename_lock` (between directories only), then a directory before any directory in
//!   it, unrelated ones by ascending inode number. Unrelated directories are locked together only under the rename lock.
//! * A directory that was removed has no links, and nothing is ever made in it.

mod change;
mod create;
mod delete;
mod link;
mod lookup;
mod rename;

pub use create::{COOKIE_FIRST, NewInode};
pub use rename::MovedDirectories;

use std::sync::Arc;

use polymux_records::error::Result;
use polymux_types::sync::Mutex;
use polymux_types::{Errno, limits};
use polymux_volume::stamps::Stamps;
use polymux_volume::volume::Volume;

use crate::data_path::DataPath;
use crate::placement::Placement;

/// The tree of names.
pub struct Namespace {
    /// The volume whose names these are.
    pub volume: Arc<Volume>,
    /// Tracks objects whose back-references are out of date.
    pub stamps: Arc<Stamps>,
    /// Forgets the use of files that are deleted.
    pub placement: Arc<Placement>,
    /// Makes the content of new files and reclaims deleted ones.
    pub data: Arc<DataPath>,
    /// Held for the length of a rename between two directories, so that the tree stands still meanwhile.
    rename_lock: Mutex<()>,
}

impl Namespace {
    /// The tree of names of a volume.
    pub fn new(volume: Arc<Volume>, stamps: Arc<Stamps>, placement: Arc<Placement>, data: Arc<DataPath>) -> Self {
        Self { volume, stamps, placement, data, rename_lock: Mutex::new(()) }
    }
}

/// Fails where a byte string cannot be a name that is made or removed.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if name.len() > limits::NAME_LENGTH_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}
