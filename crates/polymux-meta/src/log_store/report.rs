//! The report of a store about itself.

use super::{Inner, LogStore};
use crate::copy::CopyReport;
use crate::log::LogCounters;
use crate::tables::TableCounters;
use std::sync::atomic::Ordering;

/// Where the end of the log is until it is flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowPlace {
    /// In memory that outlives the process: a name for people.
    Surviving(String),
    /// In memory of the process alone, and why.
    Plain(String),
    /// In the region of the log, which is durable.
    Region,
}

/// The window of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowReport {
    /// Where it is.
    pub place: WindowPlace,
    /// Entries that the last opening took over from a process that died.
    pub survived_entries: u64,
}

/// State and counters of a store, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// How the log is written: `block device, direct`, for instance.
    pub medium: String,
    /// Bytes of the ring of the log.
    pub log_bytes: u64,
    /// Bytes of the log that the tables do not have yet.
    pub log_used_bytes: u64,
    /// Memory of the memtables in bytes.
    pub memtable_bytes: u64,
    /// Number of tables.
    pub tables: usize,
    /// Bytes that all tables take.
    pub table_bytes: u64,
    /// Bytes of ballast held, and bytes that should be.
    pub ballast_bytes: (u64, u64),
    /// Inodes held, and how many should be: none where the file system does not count them.
    pub spare_inodes: (u32, u32),
    /// Entries that the last opening took from the log.
    pub replayed_entries: u64,
    /// Where the log is until it is flushed.
    pub window: WindowReport,
    /// Commits that had to wait for tables.
    pub stalled_commits: u64,
    /// How the second copy does, where there is one.
    pub copy: Option<CopyReport>,
    /// Counters of the log.
    pub log: LogCounters,
    /// Counters of the tables.
    pub table_counters: TableCounters,
}

impl LogStore {
    /// State and counters.
    #[must_use]
    pub fn report(&self) -> StoreReport {
        self.inner.report()
    }
}

impl Inner {
    fn report(&self) -> StoreReport {
        let memtable_bytes = {
            let levels = self.levels.read();
            levels.active.bytes() + levels.sealed.as_ref().map_or(0, |sealed| sealed.memtable.bytes())
        };
        StoreReport {
            medium: self.log.description(),
            log_bytes: self.log.ring_length(),
            log_used_bytes: self.log.tail() - self.log.checkpoint(),
            memtable_bytes,
            tables: self.tables.count(),
            table_bytes: self.tables.bytes(),
            ballast_bytes: self.ballast.fill(),
            spare_inodes: self.ballast.spare_inodes(),
            replayed_entries: self.replayed_entries,
            window: self.window.clone(),
            stalled_commits: self.stalled_commits.load(Ordering::Relaxed),
            copy: self.second_copy().map(|copy| copy.report(self.log.durable())),
            log: self.log.counters(),
            table_counters: self.tables.counters(),
        }
    }
}
