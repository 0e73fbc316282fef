//! Errors of the store.

/// Why the store could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// An earlier write failed, so the content of the medium is unknown. Unmount and mount again.
    #[error("the metadata store stopped after an earlier error: {0}")]
    Poisoned(String),
    /// The file system below takes no changes, or takes none any more: nothing is written from now on. Existing data can be read.
    #[error("the file system of the metadata is read-only: {0}")]
    ReadOnly(String),
    /// The medium is full.
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
    /// The data read differs from the data written.
    #[error("the metadata store is damaged: {0}")]
    Corrupted(String),
}

impl StoreError {
    /// Converts a write error; `doing` describes the failed operation.
    pub(crate) fn of_write(doing: &str, error: &std::io::Error) -> Self {
        let words = format!("{doing}: {error}");
        if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem { Self::ReadOnly(words) } else { Self::Io(words) }
    }
}
