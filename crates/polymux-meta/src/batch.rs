//! A set of changes that become visible and durable together.

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes a key; one that is not there is no error.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// Changes in order; where two name the same key, the later one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    changes: Vec<Change>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the setting of a key.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push(Change::Put { key: key.into(), value: value.into() });
    }

    /// Adds the removal of a key.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.push(Change::Delete { key: key.into() });
    }

    /// Adds all changes of another batch after those of this one.
    pub fn append(&mut self, other: Batch) {
        self.changes.extend(other.changes);
    }

    /// The changes in order.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Takes the changes out.
    #[must_use]
    pub fn into_changes(self) -> Vec<Change> {
        self.changes
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
