//! The store that Polymux began with: the crate `fjall`, a log-structured merge tree with a journal.
//!
//! What is true here:
//! * Sequences count the transactions of this opening: the first commit after an open gets 1, and 0 is everything that
//!   was found there. `order` is held from the append to the journal until the sequence is given out, so that the order
//!   of sequences is the order of the journal, and what survives a crash is a prefix of both.
//! * A commit reaches the page cache before it returns (it survives the death of the process); `sync` makes it durable.
//! * Lock order: `flush` before nothing else; `order` before fjall's own journal lock. Never both at once.
//! * fjall gives all changes of a batch one internal number, so a key may occur only once in it: [`last_changes`].

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::Mutex;
use polymux_meta::{Batch, Entry, MetadataStore, StoreError};
use polymux_types::Sequence;

/// Name of the one keyspace.
const KEYSPACE: &str = "metadata";

/// Upper limit of all journals together, in bytes; the least that fjall takes. Replay after a crash reads this much.
const JOURNALS_SIZE_MAX: u64 = 64 * 1024 * 1024;

/// Size in bytes at which changes in memory are written as a table. Small, because a range read passes over every
/// version of a key that is still in memory.
const MEMTABLE_SIZE_MAX: u64 = 4 * 1024 * 1024;

/// A [`MetadataStore`] over `fjall`. Keys are 1 to 65,535 bytes long.
pub struct FjallStore {
    keyspace: Keyspace,
    database: Database,
    path: PathBuf,
    order: Mutex<()>,
    flush: Mutex<()>,
    committed: AtomicU64,
    durable: AtomicU64,
    poison: OnceLock<String>,
}

impl FjallStore {
    /// Opens the store in the directory `path`, or makes it. One process at a time can have it open. `cache_bytes` is the
    /// memory for blocks that were read.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where another process has it open, [`StoreError::Io`] or [`StoreError::Corrupted`] where it
    /// cannot be read.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(1)
            .max_journaling_size(JOURNALS_SIZE_MAX)
            .journal_compression(fjall::CompressionType::None)
            .manual_journal_persist(true)
            .open()
            .map_err(|error| error_of_opening(path, error))?;
        let keyspace = database
            .keyspace(KEYSPACE, || {
                KeyspaceCreateOptions::default()
                    .manual_journal_persist(true)
                    .max_memtable_size(MEMTABLE_SIZE_MAX)
                    .data_block_compression_policy(fjall::config::CompressionPolicy::disabled())
                    .index_block_compression_policy(fjall::config::CompressionPolicy::disabled())
            })
            .map_err(|error| error_of_opening(path, error))?;
        Ok(Self {
            keyspace,
            database,
            path: path.to_owned(),
            order: Mutex::new(()),
            flush: Mutex::new(()),
            committed: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            poison: OnceLock::new(),
        })
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.poison.get() {
            Some(reason) => Err(StoreError::Poisoned(reason.clone())),
            None => Ok(()),
        }
    }

    /// Stops the store after a failed write, because what is on the medium is not known any more.
    fn poison(&self, error: fjall::Error) -> StoreError {
        let error = error_of(error);
        // The first reason is the one that explains the others.
        let _ = self.poison.set(error.to_string());
        error
    }
}

impl MetadataStore for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.check()?;
        // A snapshot, because a plain read of fjall sees a batch that is only half applied.
        let value = self.database.snapshot().get(&self.keyspace, key).map_err(error_of)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.check()?;
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let entries = self.database.snapshot().range(&self.keyspace, from..to);
        entries
            .take(limit)
            .map(|entry| entry.into_inner().map(|(key, value)| (key.to_vec(), value.to_vec())).map_err(error_of))
            .collect()
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.check()?;
        if batch.is_empty() {
            return Ok(self.committed());
        }
        let mut changes = self.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in last_changes(&batch) {
            match value {
                Some(value) => changes.insert(&self.keyspace, key, value),
                None => changes.remove(&self.keyspace, key),
            }
        }
        let _order = self.order.lock();
        self.check()?;
        changes.commit().map_err(|error| self.poison(error))?;
        Ok(Sequence(self.committed.fetch_add(1, Ordering::AcqRel) + 1))
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        assert!(through <= self.committed(), "only a committed transaction can be made durable");
        self.check()?;
        if self.durable() >= through {
            return Ok(());
        }
        let _flush = self.flush.lock();
        self.check()?;
        // Whoever held the lock before may have flushed for us too: one flush serves everybody who waited.
        if self.durable() >= through {
            return Ok(());
        }
        let covered = self.committed();
        self.database.persist(PersistMode::SyncData).map_err(|error| self.poison(error))?;
        self.durable.store(covered.get(), Ordering::Release);
        Ok(())
    }

    fn durable(&self) -> Sequence {
        Sequence(self.durable.load(Ordering::Acquire))
    }

    fn committed(&self) -> Sequence {
        Sequence(self.committed.load(Ordering::Acquire))
    }

    fn bytes_used(&self) -> u64 {
        // Not fjall's own figure: that counts the length of its journals, which are mostly holes.
        bytes_allocated_below(&self.path)
    }
}

/// Reduces a batch to one change per key, the last one; `None` is a removal.
fn last_changes(batch: &Batch) -> BTreeMap<&[u8], Option<&[u8]>> {
    batch.iter().map(|change| (change.key, change.value)).collect()
}

fn error_of_opening(path: &Path, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Locked => {
            StoreError::Open(format!("the metadata store in {} is in use by another process", path.display()))
        }
        fjall::Error::InvalidVersion(_) => {
            StoreError::Open(format!("the metadata store in {} has another version", path.display()))
        }
        error => error_of(error),
    }
}

fn error_of(error: fjall::Error) -> StoreError {
    use fjall::Error;
    match error {
        Error::Io(error) => error_of_io(&error),
        Error::Storage(fjall_storage_error) => match std::error::Error::source(&fjall_storage_error) {
            Some(source) => match source.downcast_ref::<std::io::Error>() {
                Some(error) => error_of_io(error),
                None => StoreError::Corrupted(fjall_storage_error.to_string()),
            },
            None => StoreError::Corrupted(fjall_storage_error.to_string()),
        },
        Error::Poisoned => StoreError::Poisoned("an earlier write in the background failed".to_owned()),
        Error::Locked | Error::KeyspaceDeleted => StoreError::Io(error.to_string()),
        error => StoreError::Corrupted(error.to_string()),
    }
}

fn error_of_io(error: &std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::Io(error.to_string()),
    }
}

/// Room that a directory's files take. Files that vanish meanwhile (tables are merged at any time) count as nothing.
fn bytes_allocated_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_allocated_below(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
