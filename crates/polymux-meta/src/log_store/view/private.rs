//! The trees of tables over a private directory.
//!
//! Opening a tree removes files that its current version does not name. It does so through the names
//! that it finds, and those are symbolic links of ours; the tables behind them are only ever read. A table does not change
//! once it is named, and the lock that the owner of this holds prevents its removal.
//!
//! A process that is killed leaves its private directory behind. The next one that needs such a directory removes it: each holds
//! a lock on its own while it lives.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use polymux_tier::{LockOutcome, LockableFile};
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

/// Beginning of the names of private directories, and of those whose lock was not granted, which stay when their reader is killed.
const DIRECTORY_PREFIX: &str = "polymux-reader-";
const UNLOCKED_PREFIX: &str = "polymux-view-";

/// Age from which on a directory without a lock is taken to be left behind: a younger one may not have its lock yet.
const LEFT_BEHIND_AGE: Duration = Duration::from_secs(60);

/// Tables that cannot change the store they belong to.
pub(super) struct PrivateTables {
    tables: Tables,
    // Removed after the tables are closed.
    _directory: TempDir,
    _lock: LockableFile,
}

impl PrivateTables {
    pub(super) fn open(store: &Path, boundaries: &[Vec<u8>]) -> Result<Self, StoreError> {
        let store = fs::canonicalize(store).map_err(|error| failed(store, &error))?;
        let parent = std::env::temp_dir();
        remove_left_behind(&parent);
        let (mut directory, mut lock) = make_directory(&parent, DIRECTORY_PREFIX)?;
        if lock.lock_exclusive() != Ok(LockOutcome::Locked) {
            (directory, lock) = make_directory(&parent, UNLOCKED_PREFIX)?;
        }
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
        Ok(Self { tables: Tables::open(directory.path(), &options)?, _directory: directory, _lock: lock })
    }

    pub(super) fn get(&self) -> &Tables {
        &self.tables
    }
}

fn make_directory(parent: &Path, prefix: &str) -> Result<(TempDir, LockableFile), StoreError> {
    let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
    let directory = directory.map_err(|error| failed(parent, &error))?;
    let opened = File::open(directory.path()).map_err(|error| failed(directory.path(), &error))?;
    Ok((directory, LockableFile::new(opened)))
}

/// Removes private directories of processes that were killed. One that cannot be removed stays, and harms nothing.
fn remove_left_behind(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(DIRECTORY_PREFIX.as_bytes())
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == own && is_old(&it));
        let is_locked = || File::open(entry.path()).map(LockableFile::new).and_then(|it| Ok(it.lock_exclusive()?));
        if is_ours && is_locked().is_ok_and(|outcome| outcome == LockOutcome::Locked) {
            let _stays = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_old(metadata: &fs::Metadata) -> bool {
    metadata.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= LEFT_BEHIND_AGE))
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::log_store::{LogStore, LogStoreOptions, OpenMode};

    #[test]
    fn directories_of_killed_readers_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("current"), "content").unwrap();
            File::open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let hour = Duration::from_secs(3600);
        let killed = make("polymux-reader-killed", hour);
        let young = make("polymux-reader-young", Duration::from_secs(1));
        let foreign = make("another-program", hour);
        symlink(&foreign, parent.path().join("polymux-reader-link")).unwrap();
        remove_left_behind(parent.path());
        assert!(!killed.exists());
        assert!(young.exists() && foreign.join("current").exists());
    }

    #[test]
    fn the_directory_of_a_living_reader_stays_however_old_it_is() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("store");
        let options =
            LogStoreOptions { log_bytes: 1 << 20, ballast_bytes: 0, ..LogStoreOptions::new(OpenMode::CreateNew) };
        drop(LogStore::open(&store, &options).unwrap());
        let reader = PrivateTables::open(&store, &[]).unwrap();
        let directory = reader._directory.path();
        File::open(directory).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        remove_left_behind(directory.parent().unwrap());
        assert!(directory.join("part0").join(CURRENT_FILE).exists());
    }
}
