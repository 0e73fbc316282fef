//! Tables: the contents of former memtables, sorted and immutable, in log-structured merge trees of the crate `lsm-tree`.
//!
//! Invariants:
//! * The key space is cut into partitions at fixed keys, each with a tree of its own. Records of one kind mostly arrive in
//!   the order of their keys, so within a partition tables seldom overlap and compaction moves them instead of copying.
//! * A memtable is written to all partitions before the log's checkpoint passes it; after a crash in between, replay
//!   writes the same changes again, which changes nothing (A9). The log is durable as far as a memtable reaches before the
//!   first of its tables is registered, so tables never know more than the log.
//! * The removal of a key that was set in the same memtable is written only where the tables below hold the key: names that
//!   come and go between two flushes (a spool) leave nothing behind.
//! * Old versions are never read: every read sees the latest tables, and compaction drops whatever was replaced.

mod compaction;
mod levels;
mod open;
mod range;
mod snapshot;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_tree::{AbstractTree, AnyTree, InternalValue, ValueType};

use crate::error::StoreError;
use crate::memtable::{Key, Memtable, Origin, Slot};
use polymux_types::sync::Mutex;

pub use levels::{PartitionView, TableLevel};

pub(crate) use compaction::{CompactionNeed, Urgency};
pub(crate) use range::TableEntry;
pub(crate) use snapshot::{CURRENT_FILE, PartitionSnapshot, version_of};

/// A sequence after all others: the upper bound for reads, and for entries that compaction may drop.
const LATEST: u64 = 1 << 62;

/// Where `lsm-tree` keeps the tables of a tree.
pub(crate) const TABLES_FOLDER: &str = "tables";

/// Counters of the tables since they were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounters {
    /// Memtables written.
    pub flushes: u64,
    /// Bytes of keys and values written from memtables.
    pub flushed_bytes: u64,
    /// Removals that needed no entry.
    pub removals_dropped: u64,
    /// Compactions carried out.
    pub compactions: u64,
    /// Bytes that tables took less afterwards.
    pub dropped_bytes: u64,
}

#[derive(Default)]
struct Counts {
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    removals_dropped: AtomicU64,
    compactions: AtomicU64,
    dropped_bytes: AtomicU64,
}

struct Partition {
    /// The smallest key that belongs here.
    first_key: Vec<u8>,
    tree: AnyTree,
    path: PathBuf,
}

/// All trees of a store.
pub(crate) struct Tables {
    partitions: Vec<Partition>,
    counts: Counts,
    table_bytes_max: u64,
    /// Held while tables are merged: the highest number of a table that each partition had when that began last.
    compacting: Mutex<Vec<u64>>,
}

/// How tables are kept.
#[derive(Clone, Debug)]
pub(crate) struct TablesOptions {
    /// Keys at which partitions begin, ascending; the first partition begins before all keys.
    pub(crate) boundaries: Vec<Vec<u8>>,
    /// Memory for blocks that were read, in bytes.
    pub(crate) cache_bytes: u64,
    /// Size of a table in bytes.
    pub(crate) table_bytes_max: u64,
}

impl Tables {
    /// Opens the trees below a directory, or makes them.
    pub(crate) fn open(path: &Path, options: &TablesOptions) -> Result<Self, StoreError> {
        assert!(options.boundaries.is_sorted(), "partitions are given in the order of their keys");
        let firsts: Vec<Vec<u8>> = std::iter::once(&Vec::new()).chain(&options.boundaries).cloned().collect();
        let partitions = open::open_partitions(path, firsts, options.cache_bytes)?;
        Ok(Self {
            partitions,
            counts: Counts::default(),
            table_bytes_max: options.table_bytes_max,
            compacting: Mutex::default(),
        })
    }

    fn partition_of(&self, key: &[u8]) -> &Partition {
        let after = self.partitions.partition_point(|partition| partition.first_key.as_slice() <= key);
        &self.partitions[after.checked_sub(1).expect("the first partition begins before all keys")]
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.partition_of(key).tree.get(key, LATEST).map_err(|error| error_of(&error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Writes a sealed memtable to tables that are durable when this returns.
    pub(crate) fn write(&self, memtable: &Memtable) -> Result<(), StoreError> {
        memtable.sorted(|mut entries| {
            for (index, partition) in self.partitions.iter().enumerate() {
                let count = match self.partitions.get(index + 1) {
                    Some(next) => {
                        let first = Key::new(&next.first_key);
                        entries.partition_point(|(key, _)| **key < first)
                    }
                    None => entries.len(),
                };
                let (own, rest) = entries.split_at(count);
                self.write_partition(partition, own)?;
                entries = rest;
            }
            self.counts.flushes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    fn write_partition(&self, partition: &Partition, entries: &[(&Key, &Slot)]) -> Result<(), StoreError> {
        let items =
            entries.iter().filter_map(|(key, slot)| self.table_entry(partition, &key.to_bytes(), slot).transpose());
        let mut items = items.peekable();
        if items.peek().is_none() {
            return Ok(());
        }
        let _lock = partition.tree.get_flush_lock();
        let written = partition.tree.flush_to_tables(items).map_err(|error| error_of(&error))?;
        let Some((tables, _)) = written else { return Ok(()) };
        let registered = partition.tree.register_tables(&tables, None, None, &[], LATEST);
        registered.map_err(|error| error_of(&error))
    }

    /// The table entry for the latest change of a key; `None` for the removal of a key that no table holds.
    fn table_entry(&self, partition: &Partition, key: &[u8], slot: &Slot) -> lsm_tree::Result<Option<InternalValue>> {
        let length = key.len() + slot.value.as_ref().map_or(0, |value| value.len());
        let item = match &slot.value {
            Some(value) => InternalValue::from_components(key, &**value, slot.sequence, ValueType::Value),
            // The look-up is cheap where no table holds the key, the case it is meant for.
            None if slot.origin == Origin::Older || partition.tree.contains_key(key, LATEST)? => {
                InternalValue::new_tombstone(key, slot.sequence)
            }
            None => {
                self.counts.removals_dropped.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
        };
        self.counts.flushed_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(Some(item))
    }

    /// Bytes that all tables take.
    pub(crate) fn bytes(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.tree.disk_space()).sum()
    }

    /// Number of partitions.
    pub(crate) fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Number of tables.
    pub(crate) fn count(&self) -> usize {
        self.partitions.iter().map(|partition| partition.tree.table_count()).sum()
    }

    pub(crate) fn counters(&self) -> TableCounters {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TableCounters {
            flushes: count(&self.counts.flushes),
            flushed_bytes: count(&self.counts.flushed_bytes),
            removals_dropped: count(&self.counts.removals_dropped),
            compactions: count(&self.counts.compactions),
            dropped_bytes: count(&self.counts.dropped_bytes),
        }
    }
}

/// Converts an error of the trees to one of the store.
fn error_of(error: &lsm_tree::Error) -> StoreError {
    match error {
        lsm_tree::Error::Io(error) => match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
            _ => StoreError::of_write("a table of the metadata store", error),
        },
        lsm_tree::Error::InvalidVersion(version) => {
            StoreError::Open(format!("a table of the metadata store has format version {version}"))
        }
        error => StoreError::Corrupted(format!("a table of the metadata store: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;

    fn options() -> TablesOptions {
        TablesOptions { boundaries: vec![b"h".to_vec(), b"p".to_vec()], cache_bytes: 1 << 20, table_bytes_max: 1 << 20 }
    }

    fn memtable(changes: &[(&str, Option<&str>)], sequence: u64) -> Memtable {
        let memtable = Memtable::new(0);
        let mut batch = Batch::new();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        memtable.apply(&batch, sequence);
        memtable
    }

    fn all(tables: &Tables) -> Vec<(String, String)> {
        let text = |bytes: lsm_tree::Slice| String::from_utf8(bytes.to_vec()).unwrap();
        tables.range(b"", b"zz").map(|entry| entry.unwrap()).map(|(key, value)| (text(key), text(value))).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_was_written_is_found_in_all_partitions_also_after_opening_again() {
        let directory = tempfile::tempdir().unwrap();
        let tables = Tables::open(directory.path(), &options()).unwrap();
        tables.write(&memtable(&[("a", Some("1")), ("h", Some("2")), ("q", Some("3"))], 1)).unwrap();
        tables.write(&memtable(&[("a", Some("4")), ("h", None)], 2)).unwrap();
        for tables in [tables, Tables::open(directory.path(), &options()).unwrap()] {
            assert_eq!(all(&tables), pairs(&[("a", "4"), ("q", "3")]));
            assert_eq!(tables.get(b"a").unwrap().as_deref(), Some(b"4".as_slice()));
            assert_eq!(tables.get(b"h").unwrap(), None);
        }
    }

    #[test]
    fn a_removal_of_what_no_table_holds_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let tables = Tables::open(directory.path(), &options()).unwrap();
        let memtable = memtable(&[("a", Some("1")), ("b", Some("2")), ("z", Some("3"))], 1);
        let mut batch = Batch::new();
        for key in ["a", "b", "z"] {
            batch.delete(key);
        }
        memtable.apply(&batch, 2);
        tables.write(&memtable).unwrap();
        assert_eq!((tables.count(), tables.counters().removals_dropped), (0, 3));
    }

    #[test]
    fn compaction_keeps_the_latest_values_and_drops_what_was_removed() {
        let directory = tempfile::tempdir().unwrap();
        let tables = Tables::open(directory.path(), &options()).unwrap();
        for round in 0..12_u64 {
            let value = round.to_string();
            let changes = [("a", Some(value.as_str())), ("b", (round % 2 == 0).then_some("x")), ("z", Some("z"))];
            tables.write(&memtable(&changes, round + 1)).unwrap();
        }
        let before = tables.count();
        while tables.compact(|_| Ok(true)).unwrap() {}
        assert!(tables.count() < before, "{} of {before} tables are left", tables.count());
        assert_eq!(all(&tables), pairs(&[("a", "11"), ("z", "z")]));
    }
}
