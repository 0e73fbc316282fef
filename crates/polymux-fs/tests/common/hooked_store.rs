//! A wrapper store that passes everything on, except for the actions of its hook before a commit or a sync.

use std::sync::Arc;

use polymux_meta::{Batch, CopySync, Entry, MetadataStore, Notes, Sequence, StoreError};
use polymux_sim::MemoryStore;

/// Comes before the operations of a [`HookedStore`].
pub trait StoreHook: Send + Sync {
    /// Before a batch is committed; an error is the answer, and nothing is committed.
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        Ok(())
    }

    /// Before the log is flushed.
    fn before_sync(&self) {}

    /// Why nothing can be committed any more.
    fn stopped(&self) -> Option<StoreError> {
        None
    }

    /// Whether the second copy has come along.
    fn sync_copy(&self, _through: Sequence) -> CopySync {
        CopySync::Safe
    }

    /// The second copy is given up.
    fn abandon_copy(&self, _raised: Sequence) -> CopySync {
        CopySync::Safe
    }
}

/// A store with a hook in front of it.
pub struct HookedStore {
    inner: Arc<MemoryStore>,
    hook: Arc<dyn StoreHook>,
}

impl HookedStore {
    /// Puts a hook in front of a store.
    pub fn new(inner: Arc<MemoryStore>, hook: Arc<dyn StoreHook>) -> Self {
        Self { inner, hook }
    }
}

impl MetadataStore for HookedStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(key)
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.inner.range(from, to, limit)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.hook.before_commit(&batch)?;
        self.inner.commit(batch)
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        self.hook.before_sync();
        self.inner.sync(through)
    }

    fn notes(&self) -> Option<Arc<Notes>> {
        self.inner.notes()
    }

    fn only_the_process_died(&self) -> bool {
        self.inner.only_the_process_died()
    }

    fn survivors_are_taken_up(&self) {
        self.inner.survivors_are_taken_up();
    }

    fn durable(&self) -> Sequence {
        self.inner.durable()
    }

    fn committed(&self) -> Sequence {
        self.inner.committed()
    }

    fn stopped(&self) -> Option<StoreError> {
        self.hook.stopped()
    }

    fn bytes_used(&self) -> u64 {
        self.inner.bytes_used()
    }

    fn sync_copy(&self, through: Sequence) -> Result<CopySync, StoreError> {
        assert!(through <= self.durable(), "the store's own flush comes first");
        Ok(self.hook.sync_copy(through))
    }

    fn abandon_copy(&self, raised: Sequence) -> CopySync {
        assert!(raised <= self.durable(), "the new epoch is durable");
        self.hook.abandon_copy(raised)
    }
}
