//! Description of the tables, for people.

use lsm_tree::{AbstractTree, Table};

use super::{Partition, Tables};

/// One level of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableLevel {
    /// Sorted runs in it; each read may have to look into each.
    pub runs: usize,
    /// Tables in it.
    pub tables: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Entries in them, removals included.
    pub entries: u64,
    /// Removals among the entries.
    pub removals: u64,
}

/// One partition of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Name of its directory below that of the store.
    pub name: String,
    /// Its first key; empty for the first partition.
    pub first_key: Vec<u8>,
    /// Number of the version that counts.
    pub version: u64,
    /// Its levels, youngest first; empty ones are left out at the end only.
    pub levels: Vec<TableLevel>,
}

impl PartitionView {
    /// All levels as one.
    #[must_use]
    pub fn total(&self) -> TableLevel {
        self.levels.iter().fold(TableLevel::default(), |sum, level| TableLevel {
            runs: sum.runs + level.runs,
            tables: sum.tables + level.tables,
            bytes: sum.bytes + level.bytes,
            entries: sum.entries + level.entries,
            removals: sum.removals + level.removals,
        })
    }
}

impl Tables {
    /// All partitions in the order of their keys.
    pub(crate) fn partitions_view(&self) -> Vec<PartitionView> {
        self.partitions.iter().map(Partition::view).collect()
    }
}

impl Partition {
    fn view(&self) -> PartitionView {
        let version = self.tree.current_version();
        let mut levels = Vec::new();
        for level in version.iter_levels() {
            let mut view = TableLevel { runs: level.run_count(), ..TableLevel::default() };
            for table in level.iter().flat_map(|run| run.iter()) {
                view.add(table);
            }
            levels.push(view);
        }
        while levels.last().is_some_and(|level| level.tables == 0) {
            levels.pop();
        }
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        PartitionView { name, first_key: self.first_key.clone(), version: version.id(), levels }
    }
}

impl TableLevel {
    fn add(&mut self, table: &Table) {
        self.tables += 1;
        self.bytes += table.metadata.file_size;
        self.entries += table.metadata.item_count;
        self.removals += table.metadata.tombstone_count;
    }
}
