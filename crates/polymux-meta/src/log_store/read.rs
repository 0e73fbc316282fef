//! Reading: memtables over tables.
//!
//! What is true here: a read takes its references to the memtables and its view of the tables together, under `levels`, so
//! a memtable that moves into the tables meanwhile is seen in at least one of them.

use std::iter::Peekable;
use std::sync::Arc;

use super::Inner;
use crate::error::StoreError;
use crate::memtable::{MemoryEntry, Memtable};
use crate::store::Entry;

/// Entries taken from a memtable at once.
const STEP: usize = 256;

impl Inner {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.log.check()?;
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
        self.log.check()?;
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let (memtables, tables) = {
            let levels = self.levels.read();
            let sealed = levels.sealed.as_ref().map(|sealed| sealed.memtable.clone());
            let memtables: Vec<_> = std::iter::once(levels.active.clone()).chain(sealed).collect();
            (memtables, self.tables.range(from, to))
        };
        range_over(&memtables, tables, (from, to), limit)
    }
}

/// Entries of a range as memtables, newest first, and the tables below them show them together.
pub(super) fn range_over(
    memtables: &[Arc<Memtable>],
    tables: impl Iterator<Item = Result<Entry, StoreError>>,
    (from, to): (&[u8], &[u8]),
    limit: usize,
) -> Result<Vec<Entry>, StoreError> {
    let mut tables = tables.peekable();
    let mut found = Vec::new();
    let mut from = from.to_vec();
    loop {
        let step = limit.saturating_sub(found.len()).clamp(16, STEP);
        let (memory, next) = newest(memtables, &from, to, step);
        let end = next.as_deref().unwrap_or(to);
        merge(memory, &mut tables, end, limit, &mut found)?;
        match next {
            Some(next) if found.len() < limit => from = next,
            _ => return Ok(found),
        }
    }
}

/// What all memtables together say of `from .. to`, the newest change of each key in ascending order; and where they
/// stopped, if not at `to`.
fn newest(memtables: &[Arc<Memtable>], from: &[u8], to: &[u8], step: usize) -> (Vec<MemoryEntry>, Option<Vec<u8>>) {
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
    if memtables.len() > 1 {
        all.sort_unstable_by(|(left, one), (right, other)| left.cmp(right).then(other.sequence.cmp(&one.sequence)));
        all.dedup_by(|later, earlier| later.0 == earlier.0);
    }
    (all, cut)
}

/// Merges the changes in memory with the entries of the tables below `end`, until there are `limit`.
fn merge(
    memory: Vec<MemoryEntry>,
    tables: &mut Peekable<impl Iterator<Item = Result<Entry, StoreError>>>,
    end: &[u8],
    limit: usize,
    found: &mut Vec<Entry>,
) -> Result<(), StoreError> {
    for (key, slot) in memory {
        take_below(tables, &key, limit, found)?;
        if found.len() >= limit {
            return Ok(());
        }
        // What is in memory replaces what the tables hold.
        if tables.peek().is_some_and(|entry| entry.as_ref().is_ok_and(|(other, _)| *other == key)) {
            tables.next();
        }
        if let Some(value) = slot.value {
            found.push((key, value.into_vec()));
        }
    }
    if found.len() < limit { take_below(tables, end, limit, found) } else { Ok(()) }
}

fn take_below(
    tables: &mut Peekable<impl Iterator<Item = Result<Entry, StoreError>>>,
    end: &[u8],
    limit: usize,
    found: &mut Vec<Entry>,
) -> Result<(), StoreError> {
    while found.len() < limit {
        match tables.next_if(|entry| entry.as_ref().map_or(true, |(key, _)| key.as_slice() < end)) {
            Some(entry) => found.push(entry?),
            None => break,
        }
    }
    Ok(())
}
