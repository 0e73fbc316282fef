//! Compaction, one step at a time and never larger than the room there is for it.
//!
//! What is true here: a step merges or moves tables of one partition, as the leveled strategy of `lsm-tree` chooses. The
//! strategy cannot be told a limit, so before a step the most that it could write is compared with the room: where that
//! is not there, the step is left out. So compaction never needs more than the ballast (DESIGN section 5).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use super::{LATEST, Partition, TABLES_FOLDER, Tables, error_of};
use crate::error::StoreError;

/// The strategy merges at most this many tables of the next level at once, and those of its own that they cover.
const TABLES_MERGED_MAX: u64 = 64;

/// Unsorted runs from which on a compaction is pressing.
const PRESSING_RUNS: usize = 8;

/// How much a compaction is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It tidies up.
    Ordinary,
    /// Without it every read looks through many tables.
    Pressing,
}

/// What a compaction needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactionNeed {
    /// The most that it can write.
    pub(crate) bytes: u64,
    /// How much it is wanted.
    pub(crate) urgency: Urgency,
}

impl Tables {
    /// Carries out one compaction in each partition where one is due and `may_write` grants what it may need. Returns
    /// whether anything was done.
    pub(crate) fn compact(
        &self,
        may_write: impl Fn(CompactionNeed) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let _compacting = self.compacting.lock();
        let mut worked = false;
        for partition in &self.partitions {
            let runs = partition.tree.l0_run_count();
            let urgency = if runs >= PRESSING_RUNS { Urgency::Pressing } else { Urgency::Ordinary };
            if !may_write(CompactionNeed { bytes: self.written_at_most(partition), urgency })? {
                continue;
            }
            let before = partition.tree.current_version().id();
            let bytes = partition.tree.disk_space();
            let strategy = Leveled::default().with_table_target_size(self.table_bytes_max);
            partition.tree.compact(Arc::new(strategy), LATEST).map_err(|error| error_of(&error))?;
            if partition.tree.current_version().id() != before {
                self.counts.compactions.fetch_add(1, Ordering::Relaxed);
                let dropped = bytes.saturating_sub(partition.tree.disk_space());
                self.counts.dropped_bytes.fetch_add(dropped, Ordering::Relaxed);
                worked = true;
            }
        }
        Ok(worked)
    }

    /// The most that one compaction of a partition can write, in bytes.
    fn written_at_most(&self, partition: &Partition) -> u64 {
        partition.tree.disk_space().min(TABLES_MERGED_MAX * self.table_bytes_max)
    }

    /// Deletes files of tables that were begun and never registered, which only a failed write leaves. Not while a
    /// compaction runs: its own tables are not registered yet. Under the lock that writes memtables.
    pub(crate) fn remove_leftovers(&self) -> Result<(), StoreError> {
        let Some(_compacting) = self.compacting.try_lock() else { return Ok(()) };
        for partition in &self.partitions {
            let version = partition.tree.current_version();
            let live: Vec<String> = version.iter_tables().map(|table| table.id().to_string()).collect();
            let directory = partition.path.join(TABLES_FOLDER);
            let failed = |error: std::io::Error| StoreError::Io(format!("{}: {error}", directory.display()));
            for file in std::fs::read_dir(&directory).map_err(failed)? {
                let file = file.map_err(failed)?;
                if !live.iter().any(|name| file.file_name() == name.as_str()) {
                    std::fs::remove_file(file.path()).map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}
