//! Reading a range of the tables in order.
//!
//! Invariants:
//! * A range keeps the tables that it reads, so it shows them as they were when it began, whatever is merged meanwhile. An
//!   iterator of `lsm-tree` over one table does not: it opens the file by its path whenever the descriptor was closed, and a
//!   table that was merged away deletes its file with its last handle. So the handle stays beside the iterator.
//! * No table holds two versions of a key: a memtable has one, and merging keeps the newest. So where the tables that a
//!   range touches do not overlap, which is the ordinary case within a partition, they are read one after the other, and
//!   only where they do overlap are they merged.
//! * Entries come as the slices of their blocks; a caller that keeps them for longer copies them once.

use std::ops::Bound;
use std::vec;

use lsm_tree::{AbstractTree, BoxedIterator, Guard, InternalValue, Slice, Table};

use super::{LATEST, Partition, Tables, error_of};
use crate::error::StoreError;

/// A key and its value, in the memory of the block that they were read from.
pub(crate) type TableEntry = (Slice, Slice);

/// Entries of all partitions, in ascending order.
pub(crate) struct TableRange {
    parts: vec::IntoIter<Part>,
    current: Option<Part>,
}

/// The part of a range in one partition.
enum Part {
    Apart { tables: vec::IntoIter<Table>, current: Option<OpenTable>, to: Slice, from: Slice },
    Overlapping(Box<dyn Iterator<Item = lsm_tree::Result<TableEntry>> + Send>),
}

/// The table that a range is reading. The handle keeps its file.
struct OpenTable {
    entries: BoxedIterator<'static>,
    _handle: Table,
}

impl Tables {
    /// Entries with `from <= key < to`, in ascending order, as the tables are now.
    pub(crate) fn range(&self, from: &[u8], to: &[u8]) -> TableRange {
        let after = self.partitions.partition_point(|partition| partition.first_key.as_slice() <= from);
        let first = after.checked_sub(1).expect("the first partition begins before all keys");
        let concerned = self.partitions[first..].iter().take_while(|partition| partition.first_key.as_slice() < to);
        let parts: Vec<Part> = concerned.filter_map(|partition| Part::of(partition, from, to)).collect();
        TableRange { parts: parts.into_iter(), current: None }
    }
}

impl Part {
    fn of(partition: &Partition, from: &[u8], to: &[u8]) -> Option<Self> {
        let version = partition.tree.current_version();
        let mut tables = Vec::new();
        for run in version.iter_levels().flat_map(|level| level.iter()) {
            let key_range =
                |table: &Table| (**table.metadata.key_range.min() < *to, **table.metadata.key_range.max() < *from);
            let first = run.partition_point(|table| key_range(table).1);
            let end = run.partition_point(|table| key_range(table).0);
            tables.extend_from_slice(run.get(first..end).unwrap_or_default());
        }
        if tables.is_empty() {
            return None;
        }
        tables.sort_unstable_by(|left, right| left.metadata.key_range.min().cmp(right.metadata.key_range.min()));
        let apart = tables.is_sorted_by(|one, next| one.metadata.key_range.max() < next.metadata.key_range.min());
        if apart {
            return Some(Self::Apart { tables: tables.into_iter(), current: None, from: from.into(), to: to.into() });
        }
        let entries = partition.tree.range::<&[u8], _>(from..to, LATEST, None);
        Some(Self::Overlapping(Box::new(entries.map(Guard::into_inner))))
    }

    fn next(&mut self) -> Option<lsm_tree::Result<TableEntry>> {
        let (tables, current, from, to) = match self {
            Self::Apart { tables, current, from, to } => (tables, current, from, to),
            Self::Overlapping(entries) => return entries.next(),
        };
        loop {
            if let Some(open) = current {
                for entry in &mut open.entries {
                    match entry {
                        Ok(entry) if entry.is_tombstone() => {}
                        Ok(InternalValue { key, value }) => return Some(Ok((key.user_key, value))),
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
            let table = tables.next()?;
            let key_range = &table.metadata.key_range;
            // A bound costs a search in every block, so there is none where the whole table lies within it.
            let begin = if *from <= *key_range.min() { Bound::Unbounded } else { Bound::Included(from.clone()) };
            let end = if *to > *key_range.max() { Bound::Unbounded } else { Bound::Excluded(to.clone()) };
            *current = Some(OpenTable { entries: Box::new(table.range((begin, end))), _handle: table });
        }
    }
}

impl Iterator for TableRange {
    type Item = Result<TableEntry, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.current.as_mut().and_then(Part::next) {
                return Some(entry.map_err(|error| error_of(&error)));
            }
            self.current = Some(self.parts.next()?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::memtable::Memtable;
    use crate::tables::TablesOptions;

    /// Writes a table with 64 values of 4 KiB, of which no two share a block, and returns its keys.
    fn write_table(tables: &Tables, first: u32) -> Vec<Vec<u8>> {
        let memtable = Memtable::new(0);
        let mut batch = Batch::new();
        let keys: Vec<Vec<u8>> = (first..first + 64).map(|number| number.to_be_bytes().to_vec()).collect();
        for key in &keys {
            batch.put(key, vec![0x5a; 4096]);
        }
        memtable.apply(&batch, u64::from(first) + 1);
        tables.write(&memtable).unwrap();
        keys
    }

    #[test]
    fn a_range_reads_on_when_the_table_under_it_is_merged_away() {
        let directory = tempfile::tempdir().unwrap();
        let options = TablesOptions { boundaries: Vec::new(), cache_bytes: 1 << 14, table_bytes_max: 1 << 20 };
        let tables = Tables::open(directory.path(), &options).unwrap();
        let keys = [write_table(&tables, 0), write_table(&tables, 64)].concat();
        for read_before in [0, 1, 40, 64, 65, 127] {
            let mut range = tables.range(b"", &[0xff]);
            let mut found: Vec<Vec<u8>> =
                range.by_ref().take(read_before).map(|entry| entry.unwrap().0.to_vec()).collect();
            tables.partitions[0].tree.major_compact(1 << 17, LATEST).unwrap();
            found.extend(range.map(|entry| entry.expect("the range keeps its table").0.to_vec()));
            assert_eq!(found, keys, "after {read_before} entries");
        }
    }
}
