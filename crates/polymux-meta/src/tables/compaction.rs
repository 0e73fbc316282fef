//! Compaction, one step at a time and never larger than the available space.
//!
//! Invariants:
//! * A step merges or moves tables of one partition, as the leveled strategy of `lsm-tree` chooses. The strategy cannot be
//!   given a limit, so before a step the most that it could write is compared with the available space: if that is too small, the
//!   step is skipped. So compaction never needs more than the ballast (DESIGN section 5).
//! * Tables with entries older than all others, written only once (the parents of inodes, for one), are never merged by that strategy,
//!   only moved to the last level, and each memtable would leave a small table there for ever: opening a store opens each
//!   of them. So such tables wait in the youngest level until there are [`GATHERED_TABLES`] of them or a whole one, and
//!   become one table on their way. They overlap nothing, hence they are one sorted run, and reads look into one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lsm_tree::compaction::{CompactionStrategy, Leveled, MoveDown, PullDown};
use lsm_tree::{AbstractTree, KeyRange};

use super::{LATEST, Partition, TABLES_FOLDER, Tables, error_of};
use crate::error::StoreError;

/// The strategy merges at most this many tables of the next level at once, and those of its own that they cover.
const TABLES_MERGED_MAX: u64 = 64;

/// Unsorted runs from which on a compaction is pressing.
const PRESSING_RUNS: usize = 8;

/// Small tables that become one on their way to the last level.
const GATHERED_TABLES: usize = 24;

/// The last of the seven levels that a tree of `lsm-tree` has.
const LAST_LEVEL: u8 = 6;

/// Where gathered tables become one, empty before and afterwards.
const GATHERING_LEVEL: u8 = LAST_LEVEL - 1;

/// How compaction handles tables that nothing overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathering {
    /// The leveled strategy decides.
    NotHere,
    /// They wait for more.
    Waits,
    /// They become one table.
    Due,
    /// They have become one, which belongs into the last level.
    Merged,
}

/// How much a compaction is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It tidies up.
    Ordinary,
    /// Without it every read looks through many tables.
    Pressing,
}

/// The needs of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactionNeed {
    /// The most that it can write.
    pub(crate) bytes: u64,
    /// How much it is wanted.
    pub(crate) urgency: Urgency,
}

impl Tables {
    /// Carries out one compaction in each partition where one is due and `may_write` grants the most that it could write. Returns
    /// whether anything was done.
    pub(crate) fn compact(
        &self,
        may_write: impl Fn(CompactionNeed) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let mut compacting = self.compacting.lock();
        *compacting = self.partitions.iter().map(highest_table).collect();
        let mut worked = false;
        for partition in &self.partitions {
            let runs = partition.tree.l0_run_count();
            let urgency = if runs >= PRESSING_RUNS { Urgency::Pressing } else { Urgency::Ordinary };
            if !may_write(CompactionNeed { bytes: self.written_at_most(partition), urgency })? {
                continue;
            }
            let before = partition.tree.current_version().id();
            let bytes = partition.tree.disk_space();
            self.compact_partition(partition)?;
            if partition.tree.current_version().id() != before {
                self.counts.compactions.fetch_add(1, Ordering::Relaxed);
                let dropped = bytes.saturating_sub(partition.tree.disk_space());
                self.counts.dropped_bytes.fetch_add(dropped, Ordering::Relaxed);
                worked = true;
            }
        }
        Ok(worked)
    }

    fn compact_partition(&self, partition: &Partition) -> Result<(), StoreError> {
        let compact = |strategy: Arc<dyn CompactionStrategy>| {
            partition.tree.compact(strategy, LATEST).map_err(|error| error_of(&error))
        };
        match self.gathering(partition) {
            Gathering::NotHere => compact(Arc::new(Leveled::default().with_table_target_size(self.table_bytes_max))),
            Gathering::Waits => Ok(()),
            Gathering::Due => {
                compact(Arc::new(PullDown(0, GATHERING_LEVEL)))?;
                // A memtable that was written meanwhile may have joined them, and may overlap tables of the last level.
                if self.gathering(partition) == Gathering::Merged {
                    compact(Arc::new(MoveDown(GATHERING_LEVEL, LAST_LEVEL)))?;
                }
                Ok(())
            }
            Gathering::Merged => compact(Arc::new(MoveDown(GATHERING_LEVEL, LAST_LEVEL))),
        }
    }

    /// Whether the youngest tables of a partition overlap nothing, and how far they are on their way.
    fn gathering(&self, partition: &Partition) -> Gathering {
        let version = partition.tree.current_version();
        let levels: Vec<_> = version.iter_levels().collect();
        let [youngest, between @ .., gathered, last] = levels.as_slice() else { return Gathering::NotHere };
        if between.iter().any(|level| !level.is_empty()) {
            return Gathering::NotHere;
        }
        let apart = |keys: &KeyRange| {
            last.is_empty() || last.is_disjoint() && !last.aggregate_key_range().overlaps_with_key_range(keys)
        };
        if !gathered.is_empty() {
            let merged = gathered.is_disjoint() && apart(&gathered.aggregate_key_range());
            return if merged { Gathering::Merged } else { Gathering::NotHere };
        }
        if youngest.is_empty() || !youngest.is_disjoint() || !apart(&youngest.aggregate_key_range()) {
            return Gathering::NotHere;
        }
        let bytes: u64 = youngest.iter().flat_map(|run| run.iter()).map(|table| table.metadata.file_size).sum();
        // Whole tables are as good in the last level as they are.
        if youngest.table_count() == 1 && bytes >= self.table_bytes_max / 2 {
            return Gathering::NotHere;
        }
        let due = youngest.table_count() >= GATHERED_TABLES || bytes >= self.table_bytes_max;
        if due { Gathering::Due } else { Gathering::Waits }
    }

    /// The most that one compaction of a partition can write, in bytes.
    fn written_at_most(&self, partition: &Partition) -> u64 {
        partition.tree.disk_space().min(TABLES_MERGED_MAX * self.table_bytes_max)
    }

    /// Deletes files of tables that were begun and never registered, which only a failed write leaves. Not while a
    /// compaction runs: its own tables are not registered yet. Under the lock that writes memtables.
    pub(crate) fn remove_leftovers(&self) -> Result<(), StoreError> {
        let Some(_compacting) = self.compacting.try_lock() else { return Ok(()) };
        self.partitions.iter().try_for_each(|partition| remove_unregistered(partition, None))
    }

    /// As [`Self::remove_leftovers`], for tables that the last merge began. Tables that readers of an earlier state still use are older.
    pub(crate) fn remove_leftovers_of_merge(&self) -> Result<(), StoreError> {
        let Some(compacting) = self.compacting.try_lock() else { return Ok(()) };
        let mut partitions = self.partitions.iter().zip(compacting.iter());
        partitions.try_for_each(|(partition, highest)| remove_unregistered(partition, Some(*highest)))
    }
}

/// The highest number of a table that a partition has; 0 where it has none.
fn highest_table(partition: &Partition) -> u64 {
    partition.tree.current_version().iter_tables().map(|table| table.id()).max().unwrap_or(0)
}

/// Deletes files of tables that are not registered; where `beyond` is given, those with a higher number alone.
fn remove_unregistered(partition: &Partition, beyond: Option<u64>) -> Result<(), StoreError> {
    let version = partition.tree.current_version();
    let live: Vec<u64> = version.iter_tables().map(|table| table.id()).collect();
    let directory = partition.path.join(TABLES_FOLDER);
    let failed = |error: std::io::Error| StoreError::of_write(&directory.display().to_string(), &error);
    for file in std::fs::read_dir(&directory).map_err(failed)? {
        let file = file.map_err(failed)?;
        let number = file.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        let is_leftover = match (number, beyond) {
            (Some(number), Some(beyond)) => number > beyond && !live.contains(&number),
            (Some(number), None) => !live.contains(&number),
            (None, beyond) => beyond.is_none(),
        };
        if is_leftover {
            match std::fs::remove_file(file.path()) {
                // A reader that let go of it may have been first.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::memtable::Memtable;
    use crate::tables::TablesOptions;

    fn open(directory: &std::path::Path) -> Tables {
        let options = TablesOptions { boundaries: Vec::new(), cache_bytes: 1 << 20, table_bytes_max: 1 << 20 };
        Tables::open(directory, &options).unwrap()
    }

    fn key(number: u32) -> Vec<u8> {
        format!("key{number:06}").into_bytes()
    }

    /// A memtable of ten keys behind all that were written before.
    fn write_ascending(tables: &Tables, round: u32) {
        let memtable = Memtable::new(0);
        let mut batch = Batch::new();
        for number in round * 10..round * 10 + 10 {
            batch.put(key(number), b"value");
        }
        memtable.apply(&batch, u64::from(round) + 1);
        tables.write(&memtable).unwrap();
    }

    fn compact(tables: &Tables) {
        while tables.compact(|_| Ok(true)).unwrap() {}
    }

    fn assert_holds(tables: &Tables, keys: std::ops::Range<u32>) {
        let found: Vec<Vec<u8>> = tables.range(b"", b"zz").map(|entry| entry.unwrap().0.to_vec()).collect();
        assert_eq!(found, keys.map(key).collect::<Vec<_>>());
    }

    #[test]
    fn small_tables_that_nothing_overlaps_become_one() {
        let directory = tempfile::tempdir().unwrap();
        let tables = open(directory.path());
        let rounds = 10 * u32::try_from(GATHERED_TABLES).unwrap();
        for round in 0..rounds {
            write_ascending(&tables, round);
            compact(&tables);
            assert!(tables.partitions[0].tree.l0_run_count() <= 1, "reads look into one of those that wait");
        }
        let levels = tables.partitions_view()[0].levels.clone();
        assert_eq!((tables.count(), levels[usize::from(LAST_LEVEL)].tables), (10, 10), "{levels:?}");
        assert_holds(&tables, 0..rounds * 10);
        assert_holds(&open(directory.path()), 0..rounds * 10);
    }

    #[test]
    fn a_stop_between_merging_and_moving_is_made_up_for() {
        let directory = tempfile::tempdir().unwrap();
        let tables = open(directory.path());
        for round in 0..5 {
            write_ascending(&tables, round);
        }
        tables.partitions[0].tree.compact(Arc::new(PullDown(0, GATHERING_LEVEL)), LATEST).unwrap();
        drop(tables);
        let tables = open(directory.path());
        write_ascending(&tables, 5);
        assert_eq!(tables.gathering(&tables.partitions[0]), Gathering::Merged);
        compact(&tables);
        assert_eq!(tables.gathering(&tables.partitions[0]), Gathering::Waits);
        assert_eq!(tables.partitions_view()[0].levels[usize::from(LAST_LEVEL)].tables, 1);
        assert_holds(&tables, 0..60);
    }

    #[test]
    fn a_change_of_an_old_key_is_seen_whatever_waits() {
        let directory = tempfile::tempdir().unwrap();
        let tables = open(directory.path());
        let rounds = u32::try_from(GATHERED_TABLES).unwrap() + 3;
        for round in 0..rounds {
            write_ascending(&tables, round);
            compact(&tables);
        }
        let memtable = Memtable::new(0);
        let mut batch = Batch::new();
        batch.delete(key(0));
        batch.put(key(rounds * 10 - 1), b"new");
        memtable.apply(&batch, 1000);
        tables.write(&memtable).unwrap();
        for round in 0..8 {
            compact(&tables);
            assert_eq!(tables.get(&key(0)).unwrap(), None);
            assert_eq!(tables.get(&key(rounds * 10 - 1)).unwrap().as_deref(), Some(b"new".as_slice()));
            write_ascending(&tables, rounds + round);
        }
        assert_holds(&tables, 1..(rounds + 8) * 10);
    }
}
