//! The tables as they are at one moment, for the second copy.
//!
//! Invariants:
//! * A snapshot holds its tables, so their files stay until it is dropped. The files of a version are small and are read
//!   at once: the trees remove those of older versions at any time.
//! * `lsm-tree` writes the file of a version, then the pointer to it, and only then makes it the current one in memory. So
//!   where pointer, file and memory agree, the three belong together; where they do not, another version is just coming.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use lsm_tree::{AbstractTree, Table};

use super::{Partition, Tables};
use crate::error::StoreError;

/// Pointer to the current version of a tree.
pub(crate) const CURRENT_FILE: &str = "current";

/// How often a version that is just being replaced is looked at again, and the pause in between.
const TRIES_MAX: usize = 500;
const PAUSE: Duration = Duration::from_millis(2);

/// One partition at one moment.
pub(crate) struct PartitionSnapshot {
    /// Number of the version.
    pub(crate) version: u64,
    /// Its file.
    pub(crate) version_bytes: Vec<u8>,
    /// The pointer to it.
    pub(crate) current_bytes: Vec<u8>,
    /// Its tables.
    pub(crate) tables: Vec<Table>,
}

impl Tables {
    /// All partitions, each at a moment of its own: only a lock that blocks the writing of memtables makes it one moment.
    pub(crate) fn snapshot(&self) -> Result<Vec<PartitionSnapshot>, StoreError> {
        self.partitions.iter().map(Partition::snapshot).collect()
    }

    /// Numbers of the current versions.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.partitions.iter().map(|partition| partition.tree.current_version().id()).collect()
    }

    /// Tables of each partition, and the highest number among them: later ones get higher numbers.
    pub(crate) fn identities(&self) -> Vec<(Vec<u64>, u64)> {
        let of = |partition: &Partition| {
            let ids: Vec<u64> = partition.tree.current_version().iter_tables().map(Table::id).collect();
            let highest = ids.iter().copied().max().unwrap_or(0);
            (ids, highest)
        };
        self.partitions.iter().map(of).collect()
    }
}

impl Partition {
    fn snapshot(&self) -> Result<PartitionSnapshot, StoreError> {
        for _ in 0..TRIES_MAX {
            let version = self.tree.current_version();
            let current_bytes = read(&self.path.join(CURRENT_FILE))?;
            let version_bytes = read(&self.path.join(format!("v{}", version.id())))?;
            if let (Some(current_bytes), Some(version_bytes)) = (current_bytes, version_bytes)
                && version_of(&current_bytes) == Some(version.id())
            {
                let tables = version.iter_tables().cloned().collect();
                return Ok(PartitionSnapshot { version: version.id(), version_bytes, current_bytes, tables });
            }
            std::thread::sleep(PAUSE);
        }
        Err(StoreError::Io(format!("the versions of {} do not come to rest", self.path.display())))
    }
}

/// The number that a pointer to a version names.
pub(crate) fn version_of(current: &[u8]) -> Option<u64> {
    current.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::Io(format!("{}: {error}", path.display()))),
    }
}
