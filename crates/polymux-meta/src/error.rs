//! Errors of the store.

/// Why the store could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// An earlier write failed, so what is on the medium is not known. Unmount and mount again.
    #[error("the metadata store stopped after an earlier error: {0}")]
    Poisoned(String),
    /// The medium has no room.
    #[error("no space left for metadata")]
    NoSpace,
    /// A batch is larger than the log takes at once.
    #[error("a metadata transaction of {bytes} bytes is too large")]
    TooLarge {
        /// Bytes of the batch.
        bytes: usize,
    },
    /// Reading or writing failed.
    #[error("the metadata store failed: {0}")]
    Io(String),
    /// The store could not be opened: it is missing, in use, or there already where a new one was to be made.
    #[error("{0}")]
    Open(String),
    /// What was read is not what was written.
    #[error("the metadata store is damaged: {0}")]
    Corrupted(String),
}
