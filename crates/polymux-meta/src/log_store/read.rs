//! Reading: memtables over tables.
//!
//! Invariants:
//! * A read takes its references to the memtables and its view of the tables together, under `levels`, so a memtable that
//!   moves into the tables meanwhile is seen in at least one of them.
//! * A store that stopped after a failed write is read as before: memtables and tables hold the committed transactions, durable or not.

use std::borrow::Cow;
use std::iter::Peekable;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Inner;
use crate::error::StoreError;
use crate::memtable::{MemoryEntry, Memtable};
use crate::store::Entry;
use crate::tables::TableEntry;

/// Most entries taken from a memtable at once.
const STEP: usize = 256;

/// Entries taken from a memtable at first, where tables hold entries of the range too.
const STEP_FIRST: usize = 4;

impl Inner {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        {
            let levels = self.levels.read();
            let sealed = levels.sealed.as_ref().map(|sealed| &sealed.memtable);
            for memtable in std::iter::once(&levels.active).chain(sealed) {
                if let Some(slot) = memtable.get(key) {
                    return Ok(slot.value.map(Vec::from));
                }
            }
        }
        self.tables.get(key)
    }

    pub(super) fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let (memtables, tables) = {
            let levels = self.levels.read();
            let sealed = levels.sealed.as_ref().map(|sealed| sealed.memtable.clone());
            let memtables: SmallVec<[Arc<Memtable>; 2]> =
                std::iter::once(levels.active.clone()).chain(sealed).collect();
            (memtables, self.tables.range(from, to))
        };
        range_over(&memtables, tables, (from, to), limit)
    }
}

/// Entries of a range as memtables, newest first, and the tables below them show them together.
pub(super) fn range_over(
    memtables: &[Arc<Memtable>],
    tables: impl Iterator<Item = Result<TableEntry, StoreError>>,
    (from, to): (&[u8], &[u8]),
    limit: usize,
) -> Result<Vec<Entry>, StoreError> {
    let mut tables = tables.peekable();
    let mut found = Vec::with_capacity(limit.min(STEP));
    let mut from = Cow::Borrowed(from);
    // Entries that are taken from memory and not used were copied for nothing. So where the tables have entries too, few are
    // taken at first, and more each time that they were used up.
    let mut step = if tables.peek().is_some() { STEP_FIRST } else { STEP };
    loop {
        let wanted = limit.saturating_sub(found.len()).min(step);
        let (memory, next) = newest(memtables, &from, to, wanted);
        merge(memory, &mut tables, next.as_deref().unwrap_or(to), limit, &mut found)?;
        match next {
            Some(next) if found.len() < limit => from = Cow::Owned(next),
            _ => return Ok(found),
        }
        step = (step * 2).min(STEP);
    }
}

/// Reads `from .. to` from all memtables: the newest change of each key in ascending order, and where they
/// stopped, if not at `to`.
fn newest(memtables: &[Arc<Memtable>], from: &[u8], to: &[u8], step: usize) -> (Vec<MemoryEntry>, Option<Vec<u8>>) {
    if let [memtable] = memtables {
        return memtable.range(from, to, step);
    }
    let mut all: Vec<MemoryEntry> = Vec::new();
    let mut cut: Option<Vec<u8>> = None;
    for memtable in memtables {
        let (entries, next) = memtable.range(from, to, step);
        all.extend(entries);
        cut = match (cut, next) {
            (Some(cut), Some(next)) => Some(cut.min(next)),
            (cut, next) => cut.or(next),
        };
    }
    if let Some(cut) = &cut {
        all.retain(|(key, _)| key < cut);
    }
    all.sort_unstable_by(|(left, one), (right, other)| left.cmp(right).then(other.sequence.cmp(&one.sequence)));
    all.dedup_by(|later, earlier| later.0 == earlier.0);
    (all, cut)
}

/// Merges the changes in memory with the entries of the tables below `end`, until there are `limit`.
fn merge(
    memory: Vec<MemoryEntry>,
    tables: &mut Peekable<impl Iterator<Item = Result<TableEntry, StoreError>>>,
    end: &[u8],
    limit: usize,
    found: &mut Vec<Entry>,
) -> Result<(), StoreError> {
    for (key, slot) in memory {
        take_below(tables, &key, limit, found)?;
        if found.len() >= limit {
            return Ok(());
        }
        // A change in memory replaces the entry of the tables.
        if tables.peek().is_some_and(|entry| entry.as_ref().is_ok_and(|(other, _)| **other == *key)) {
            tables.next();
        }
        if let Some(value) = slot.value {
            found.push((key, value.into_vec()));
        }
    }
    take_below(tables, end, limit, found)
}

fn take_below(
    tables: &mut Peekable<impl Iterator<Item = Result<TableEntry, StoreError>>>,
    end: &[u8],
    limit: usize,
    found: &mut Vec<Entry>,
) -> Result<(), StoreError> {
    while found.len() < limit {
        match tables.peek() {
            Some(Ok((key, value))) if **key < *end => found.push((key.to_vec(), value.to_vec())),
            Some(Err(_)) => {}
            _ => return Ok(()),
        }
        tables.next().transpose()?;
    }
    Ok(())
}
