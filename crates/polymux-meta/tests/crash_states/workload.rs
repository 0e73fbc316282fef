//! Work on a store in a recorded directory, and the content required after a crash at any of its operations.
//!
//! Batch number `n` (from 1 on) sets the key `COUNT` to `n` and changes keys of all partitions beside
//! it. So the content of a store tells which batches it holds, and one that holds half a batch, or a batch and not those
//! before it, holds nothing that a [`History`] knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polymux_meta::{Batch, LogStore, LogStoreOptions, MetadataStore, OpenMode, StepProgress, StoreError, Workers};
use polymux_sim::recording_file_system::RecordedDirectory;
use tempfile::TempDir;

/// Key that holds the number of the last batch.
const COUNT: &[u8] = b"count";

/// Everything small, so that a short run sees memtables change, tables merge and the log go round.
pub(crate) fn options(mode: OpenMode, workers: Workers) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 256 * 1024,
        log_bytes: 1024 * 1024,
        window_bytes: 64 * 1024,
        ballast_bytes: 64 * 1024,
        table_bytes_max: 64 * 1024,
        boundaries: vec![b"h".to_vec(), b"r".to_vec()],
        seeds: [1, 0x5eed],
        workers,
        ..LogStoreOptions::new(mode)
    }
}

/// A directory that a store works in.
pub(crate) trait Place {
    fn path(&self) -> &Path;

    /// Operations recorded so far; 0 where nothing is recorded.
    fn position(&self) -> usize;
}

impl Place for RecordedDirectory {
    fn path(&self) -> &Path {
        self.path()
    }

    fn position(&self) -> usize {
        self.position()
    }
}

impl Place for TempDir {
    fn path(&self) -> &Path {
        self.path()
    }

    fn position(&self) -> usize {
        0
    }
}

/// The directory of the store in a place.
pub(crate) fn store_path(place: &dyn Place) -> PathBuf {
    place.path().join("meta")
}

pub(crate) fn open(path: &Path) -> Result<LogStore, StoreError> {
    LogStore::open(path, &options(OpenMode::Existing, Workers::Manual))
}

/// A generator of its own, so that a failure can be repeated (xorshift).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Small seeds look alike to a xorshift.
        let mut random = Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The committed batches, and since when how many of them are durable.
#[derive(Clone, Default)]
pub(crate) struct History {
    batches: Vec<Changes>,
    /// Position in the record from which on so many batches are durable; both ascending.
    durable: Vec<(usize, usize)>,
}

impl History {
    /// Batches committed.
    pub(crate) fn committed(&self) -> usize {
        self.batches.len()
    }

    /// Batches that a crash at a position of the record must leave; `None` where the store was not made yet.
    pub(crate) fn durable_at(&self, position: usize) -> Option<usize> {
        self.durable.iter().rev().find(|(from, _)| *from <= position).map(|(_, batches)| *batches)
    }

    /// From a position on, everything committed is durable.
    pub(crate) fn note_durable(&mut self, position: usize) {
        self.durable.push((position, self.committed()));
    }

    /// The state that remains after a crash that left so many batches; all of them are durable.
    pub(crate) fn after_crash(&self, batches: usize) -> Self {
        Self { batches: self.batches[..batches].to_vec(), durable: vec![(0, batches)] }
    }

    /// The state that remains where a process was killed and the next one found so many batches.
    pub(crate) fn after_kill(&self, batches: usize) -> Self {
        Self { batches: self.batches[..batches].to_vec(), durable: self.durable.clone() }
    }

    /// Bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        let changes = self.batches.iter().flatten();
        changes.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum()
    }

    /// The first position from which on the store is there.
    pub(crate) fn begins(&self) -> usize {
        self.durable.first().expect("the store was made").0
    }

    /// The content after so many batches.
    fn content(&self, batches: usize) -> BTreeMap<&[u8], &[u8]> {
        let mut content = BTreeMap::new();
        for (key, value) in self.batches[..batches].iter().flatten() {
            match value {
                Some(value) => content.insert(key.as_slice(), value.as_slice()),
                None => content.remove(key.as_slice()),
            };
        }
        content
    }

    /// Commits one batch of random changes.
    pub(crate) fn commit(
        &mut self,
        store: &LogStore,
        random: &mut Random,
        value_length_max: u64,
    ) -> Result<(), StoreError> {
        let number = self.committed() as u64 + 1;
        let mut changes = vec![(COUNT.to_vec(), Some(number.to_le_bytes().to_vec()))];
        for first in [b'a', b'k', b'z'] {
            for _ in 0..random.below(3) {
                let key = [&[first; 12][..], &random.below(30).to_be_bytes()].concat();
                let length = usize::try_from(random.below(value_length_max)).expect("values are short");
                let value = (random.below(4) > 0).then(|| vec![number.to_le_bytes()[0]; length]);
                changes.push((key, value));
            }
        }
        let mut batch = Batch::new();
        for (key, value) in &changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        // Noted first: whether a failed commit is in the store is unknown.
        self.batches.push(changes);
        store.commit(batch).map(|_| ())
    }

    /// The number of batches that a store holds, or the fault in its content.
    pub(crate) fn batches_in(&self, store: &LogStore) -> Result<usize, String> {
        let failed = |error: StoreError| format!("reading the store: {error}");
        let count =
            store.get(COUNT).map_err(failed)?.map_or(Some(0), |bytes| bytes.try_into().ok().map(u64::from_le_bytes));
        let batches = count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= self.committed());
        let Some(batches) = batches else { return Err("it holds a batch that was never committed".to_owned()) };
        let found = store.range(&[0], &[0xff], usize::MAX).map_err(failed)?;
        let same = found.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).eq(self.content(batches));
        if same { Ok(batches) } else { Err(format!("it is not what {batches} batches make")) }
    }
}

/// Which kind of run is made.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) commits: u64,
    /// Length of values in bytes.
    pub(crate) value_length_max: u64,
    /// Of 100 commits, after so many everything is written to tables.
    pub(crate) checkpoints: u64,
    /// Who does the background work. With threads no two runs are the same.
    pub(crate) workers: Workers,
}

/// Few small batches, and tables every other moment.
pub(crate) const SHORT: Shape = Shape { commits: 14, value_length_max: 300, checkpoints: 35, workers: Workers::Manual };

/// So much that memtables fill and the log goes round.
pub(crate) const LONG: Shape = Shape { commits: 220, value_length_max: 6000, checkpoints: 1, workers: Workers::Manual };

/// Makes a store.
pub(crate) fn make(directory: &RecordedDirectory, workers: Workers) -> (LogStore, History) {
    let mut history = History::default();
    let store =
        LogStore::open(&store_path(directory), &options(OpenMode::CreateNew, workers)).expect("the store is made");
    history.note_durable(directory.position());
    (store, history)
}

/// Makes a store and works on it.
pub(crate) fn run_new(directory: &RecordedDirectory, random: &mut Random, shape: Shape) -> History {
    let (store, mut history) = make(directory, shape.workers);
    work(directory, store, &mut history, random, shape).expect("the file system works");
    history
}

/// Commits, syncs, steps, reopenings in random order. Where an operation fails, the history says which states are possible.
pub(crate) fn work(
    directory: &RecordedDirectory,
    mut store: LogStore,
    history: &mut History,
    random: &mut Random,
    shape: Shape,
) -> Result<(), StoreError> {
    let existing = options(OpenMode::Existing, shape.workers);
    for _ in 0..shape.commits {
        history.commit(&store, random, shape.value_length_max)?;
        match random.below(100) {
            0..25 => {
                store.sync(store.committed())?;
                history.note_durable(directory.position());
            }
            25..35 => drop(store.step()?),
            35..45 => while store.step()? == StepProgress::Worked {},
            45 => {
                drop(store);
                store = LogStore::open(&store_path(directory), &existing)?;
                history.note_durable(directory.position());
            }
            46 => {
                store.close()?;
                history.note_durable(directory.position());
                store = LogStore::open(&store_path(directory), &existing)?;
            }
            _ => {}
        }
        if random.below(100) < shape.checkpoints {
            store.checkpoint()?;
            history.note_durable(directory.position());
        }
    }
    Ok(())
}
