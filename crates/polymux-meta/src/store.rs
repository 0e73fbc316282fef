//! The trait of the store; the implementation is [`crate::LogStore`].

use std::sync::Arc;

use polymux_types::Sequence;

use crate::batch::Batch;
use crate::error::StoreError;
#[cfg(doc)]
use crate::memtable::GROUP_LENGTH;
use crate::notes::Notes;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Whether there is space for more metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is.
    Plenty,
    /// Only the ballast: operations that free space may go on, everything else is refused (DESIGN section 5).
    Ballast,
}

/// Outcome of waiting for the second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CopySync {
    /// The copy has it, or no store can be started from the copy: actions that depend on it may proceed.
    Safe,
    /// The copy does not come along, and something older could be started from it: see [`MetadataStore::abandon_copy`].
    Late,
}

/// An ordered transactional key-value store. All methods may be called from any thread.
pub trait MetadataStore: Send + Sync {
    /// The value of a key, as of the last committed transaction.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Up to `limit` entries with `from <= key < to`, in ascending order of their keys (bytewise).
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Applies a batch and returns its place in the order. It is visible to every later `get` at once; a `range` beside it
    /// sees the changes to one group, keys that share their first [`GROUP_LENGTH`] bytes, together. It is durable, as a
    /// whole, only after [`MetadataStore::sync`]. An empty batch is not a transaction: it returns the last sequence.
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError>;

    /// Makes every transaction up to `through` durable. Returns at once where that is so already.
    fn sync(&self, through: Sequence) -> Result<(), StoreError>;

    /// The last transaction known to be durable.
    fn durable(&self) -> Sequence;

    /// The last transaction committed.
    fn committed(&self) -> Sequence;

    /// Bytes that the store takes on its medium.
    fn bytes_used(&self) -> u64;

    /// Makes everything durable and lets the next opening find nothing to replay, as far as there is space for that.
    fn checkpoint(&self) -> Result<(), StoreError> {
        self.sync(self.committed())
    }

    /// The last transaction that the second copy is known to hold, or the last committed one where no caller has to wait for
    /// a copy.
    fn copied(&self) -> Sequence {
        self.committed()
    }

    /// Waits until the second copy holds every transaction up to `through`, which is durable, where there is a copy from which
    /// the store could be started: for a caller about to act in a way that requires every copy to know the transaction.
    fn sync_copy(&self, through: Sequence) -> Result<CopySync, StoreError> {
        assert!(through <= self.durable(), "what is in the copy is durable in the store before");
        Ok(CopySync::Safe)
    }

    /// Gives a copy up that does not come along. The caller has seen to it that nothing is started from a copy without the
    /// durable transaction `raised`. [`CopySync::Late`]: the copy may hold that transaction, and has to be waited for again.
    fn abandon_copy(&self, raised: Sequence) -> CopySync {
        let _nothing_to_give_up = raised;
        CopySync::Safe
    }

    /// Memory for notes that outlive the process, where there is any. Notes that an earlier process left there belong to this store
    /// and this boot of the machine.
    fn notes(&self) -> Option<Arc<Notes>> {
        None
    }

    /// Whether only the process that had the store open before this one died: all that it committed is there,
    /// and so is everything that it wrote to any file on this machine, synced or not.
    fn only_the_process_died(&self) -> bool {
        false
    }

    /// All that the process that died left behind is taken up by now: no caller asks for it again.
    fn survivors_are_taken_up(&self) {}

    /// Why nothing can be committed any more, where an error stopped the store.
    fn stopped(&self) -> Option<StoreError> {
        None
    }

    /// Whether metadata may grow.
    fn room(&self) -> Room {
        Room::Plenty
    }
}
