//! The trees of tables over a private directory.
//!
//! Opening a tree removes files that its current version does not name. It does so through the names
//! that it finds, and those are symbolic links of ours; the tables behind them are only ever read. A table does not change
//! once it is named, and the lock that the owner of this holds prevents its removal.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::error::StoreError;
use crate::log_store::open::failed;
use crate::tables::{TABLES_FOLDER, Tables, TablesOptions};

/// Where `lsm-tree` keeps the number of the version that counts, in the first eight bytes.
const CURRENT_FILE: &str = "current";

/// Memory for blocks that were read.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Size of tables that would be made, were any made.
const TABLE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Tables that cannot change the store they belong to.
pub(super) struct PrivateTables {
    tables: Tables,
    // Removed after the tables are closed.
    _directory: TempDir,
}

impl PrivateTables {
    pub(super) fn open(store: &Path, boundaries: &[Vec<u8>]) -> Result<Self, StoreError> {
        let store = fs::canonicalize(store).map_err(|error| failed(store, &error))?;
        let directory = tempfile::Builder::new().prefix("polymux-view-").tempdir();
        let directory = directory.map_err(|error| failed(&std::env::temp_dir(), &error))?;
        for index in 0..=boundaries.len() {
            let name = format!("part{index}");
            link_partition(&store.join(&name), &directory.path().join(&name))?;
        }
        let beyond = store.join(format!("part{}", boundaries.len() + 1));
        if beyond.exists() {
            return Err(StoreError::Open(format!("{} is a partition too many for this format", beyond.display())));
        }
        let options = TablesOptions {
            boundaries: boundaries.to_vec(),
            cache_bytes: CACHE_BYTES,
            table_bytes_max: TABLE_BYTES_MAX,
        };
        Ok(Self { tables: Tables::open(directory.path(), &options)?, _directory: directory })
    }

    pub(super) fn get(&self) -> &Tables {
        &self.tables
    }
}

/// Makes `target` look like the partition `source`.
fn link_partition(source: &Path, target: &Path) -> Result<(), StoreError> {
    let tables = source.join(TABLES_FOLDER);
    let linked = target.join(TABLES_FOLDER);
    fs::create_dir(target).and_then(|()| fs::create_dir(&linked)).map_err(|error| failed(target, &error))?;
    let current_path = source.join(CURRENT_FILE);
    let current = fs::read(&current_path).map_err(|error| failed(&current_path, &error))?;
    let Some(version) = current.first_chunk::<8>().copied().map(u64::from_le_bytes) else {
        return Err(StoreError::Corrupted(format!("{} is too short", current_path.display())));
    };
    let version_path = source.join(format!("v{version}"));
    let copied = fs::copy(&version_path, target.join(format!("v{version}")));
    copied.map_err(|error| failed(&version_path, &error))?;
    fs::write(target.join(CURRENT_FILE), current).map_err(|error| failed(target, &error))?;
    for entry in fs::read_dir(&tables).map_err(|error| failed(&tables, &error))? {
        let entry = entry.map_err(|error| failed(&tables, &error))?;
        symlink(entry.path(), linked.join(entry.file_name())).map_err(|error| failed(&linked, &error))?;
    }
    Ok(())
}
