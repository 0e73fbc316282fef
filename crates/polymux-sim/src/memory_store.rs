//! A metadata store in memory, with crashes.
//!
//! Invariants:
//! * `current` is `durable` with all of `pending` applied, in order.
//! * A crash keeps a prefix of the order of transactions that contains everything synced, as the trait promises.
//! * The death of the process loses nothing, where the store has memory for that; a crash empties that memory.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use polymux_meta::{Batch, Entry, MetadataStore, Notes, Sequence, StoreError};
use polymux_types::surviving::SurvivingMemory;
use polymux_types::sync::{AtomicU64, Ordering, RwLock};

pub(crate) type Image = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
struct State {
    current: Image,
    durable: Image,
    /// Committed and not durable, oldest first.
    pending: VecDeque<(Sequence, Batch)>,
    committed: Sequence,
    synced: Sequence,
    /// The error of every call, once a test requested it.
    poison: Option<StoreError>,
    /// Bytes of keys and values of the durable image.
    bytes: u64,
    /// Memory that outlives the process.
    surviving: Option<Arc<dyn SurvivingMemory>>,
    only_the_process_died: bool,
}

/// Memory that outlives the process that opens a store, while the store itself exists.
struct Heap(Vec<AtomicU64>);

impl Heap {
    fn for_notes() -> Arc<dyn SurvivingMemory> {
        Arc::new(Self((0..Notes::BYTES / 8).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl SurvivingMemory for Heap {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    fn description(&self) -> String {
        "memory of the simulation".to_owned()
    }

    fn discard(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }
}

/// A metadata store in memory. See the module.
#[derive(Default)]
pub struct MemoryStore {
    state: RwLock<State>,
}

pub(crate) fn apply(image: &mut Image, batch: &Batch) {
    for change in batch {
        match change.value {
            Some(value) => image.insert(change.key.to_vec(), value.to_vec()),
            None => image.remove(change.key),
        };
    }
}

impl State {
    fn check(&self) -> Result<(), StoreError> {
        self.poison.clone().map_or(Ok(()), Err)
    }

    /// Moves the oldest transactions, up to one, into the durable image.
    fn make_durable(&mut self, through: Sequence) {
        while let Some((sequence, batch)) = self.pending.pop_front_if(|(sequence, _)| *sequence <= through) {
            apply(&mut self.durable, &batch);
            self.synced = sequence;
        }
        self.bytes = self.durable.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A store as a crash left it: everything in it is durable.
    pub(crate) fn of_image(image: Image) -> Self {
        let bytes = image.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        let state = State { current: image.clone(), durable: image, bytes, ..State::default() };
        Self { state: RwLock::new(state) }
    }

    /// Loses every transaction that was not made durable, as a power failure would, and ends a failure.
    pub fn crash(&self) {
        self.crash_keeping(0);
    }

    /// Like [`MemoryStore::crash`], but the first `extra` of the transactions that would be lost are there all the
    /// same: a store may have written more than it was asked to.
    pub fn crash_keeping(&self, extra: usize) {
        let mut state = self.state.write();
        let last = extra.checked_sub(1).and_then(|index| state.pending.get(index).or(state.pending.back()));
        if let Some(through) = last.map(|(sequence, _)| *sequence) {
            state.make_durable(through);
        }
        state.pending.clear();
        state.current = state.durable.clone();
        state.committed = state.synced;
        state.poison = None;
        state.only_the_process_died = false;
        if let Some(memory) = &state.surviving {
            memory.discard();
        }
    }

    /// Has memory that outlives the process from the next opening on.
    pub fn survive_deaths(&self) {
        self.state.write().surviving.get_or_insert_with(Heap::for_notes);
    }

    /// The process that has the store open dies, and nothing else. Without surviving memory that is a crash.
    pub fn process_dies(&self) {
        if self.state.read().surviving.is_none() {
            return self.crash();
        }
        let mut state = self.state.write();
        state.poison = None;
        state.only_the_process_died = true;
    }

    /// Transactions that a crash now would lose.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.state.read().pending.len()
    }

    /// Every later call fails with `error`, until a crash.
    pub fn poison(&self, error: StoreError) {
        self.state.write().poison = Some(error);
    }
}

impl MetadataStore for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let state = self.state.read();
        state.check()?;
        Ok(state.current.get(key).cloned())
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        let state = self.state.read();
        state.check()?;
        if from >= to {
            return Ok(Vec::new());
        }
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        let entries = state.current.range::<[u8], _>(bounds).take(limit);
        Ok(entries.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        let mut state = self.state.write();
        state.check()?;
        if batch.is_empty() {
            return Ok(state.committed);
        }
        let sequence = Sequence(state.committed.0 + 1);
        apply(&mut state.current, &batch);
        state.pending.push_back((sequence, batch));
        state.committed = sequence;
        Ok(sequence)
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        let mut state = self.state.write();
        state.check()?;
        assert!(through <= state.committed, "only a committed transaction can be made durable");
        if through > state.synced {
            state.make_durable(through);
        }
        Ok(())
    }

    fn durable(&self) -> Sequence {
        self.state.read().synced
    }

    fn committed(&self) -> Sequence {
        self.state.read().committed
    }

    fn notes(&self) -> Option<Arc<Notes>> {
        let memory = self.state.read().surviving.clone()?;
        Some(Arc::new(Notes::over(memory, 1)))
    }

    fn only_the_process_died(&self) -> bool {
        self.state.read().only_the_process_died
    }

    fn survivors_are_taken_up(&self) {
        self.state.write().only_the_process_died = false;
    }

    fn bytes_used(&self) -> u64 {
        self.state.read().bytes
    }
}
