//! The trait of the store; the interim implementation is [`crate::FjallStore`].

use polymux_types::Sequence;

use crate::batch::Batch;
use crate::error::StoreError;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// An ordered transactional key-value store. All methods may be called from any thread.
pub trait MetadataStore: Send + Sync {
    /// The value of a key, as of the last committed transaction.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Up to `limit` entries with `from <= key < to`, in ascending order of their keys (bytewise).
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Applies a batch atomically and returns its place in the order. It is visible to every later `get` at once, and
    /// durable only after [`MetadataStore::sync`]. An empty batch is not a transaction: it returns the last sequence.
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError>;

    /// Makes every transaction up to `through` durable. Returns at once where that is so already.
    fn sync(&self, through: Sequence) -> Result<(), StoreError>;

    /// The last transaction known to be durable.
    fn durable(&self) -> Sequence;

    /// The last transaction committed.
    fn committed(&self) -> Sequence;

    /// Bytes that the store takes on its medium.
    fn bytes_used(&self) -> u64;
}
