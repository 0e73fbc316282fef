//! Readers of a file in other processes, which go by a copy of its map (docs/design/0046).
//!
//! Invariants: a reader is in the list before its copy is made, and is recalled once, before any change of the map can be seen. It is out of the list from then on.

use std::fmt::Debug;
use std::sync::Arc;

use polymux_types::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// A reader by a copy of the map.
pub trait OutsideReader: Debug + Send + Sync {
    /// The map changes: bytes that are read by the copy after this are not those of the file. Never waits.
    fn recall(&self);
}

/// The readers of one file.
#[derive(Debug, Default)]
pub struct OutsideReaders {
    has_any: AtomicBool,
    readers: Mutex<Vec<(u64, Arc<dyn OutsideReader>)>>,
    /// Readers that have not given back their descriptors, recalled ones included.
    holding: AtomicU32,
}

impl OutsideReaders {
    /// Adds a reader of an owner, which looks at the map after this. It is given back in any case.
    pub fn add(&self, owner: u64, reader: Arc<dyn OutsideReader>) {
        self.holding.fetch_add(1, Ordering::AcqRel);
        let mut readers = self.readers.lock();
        readers.push((owner, reader));
        self.has_any.store(true, Ordering::SeqCst);
    }

    /// A reader gave back its descriptors, and reads no more.
    pub fn give_back(&self, reader: &Arc<dyn OutsideReader>) {
        self.readers.lock().retain(|(_, known)| !Arc::ptr_eq(known, reader));
        self.holding.fetch_sub(1, Ordering::AcqRel);
    }

    /// Recalls all of them.
    pub fn recall_all(&self) {
        if !self.has_any.load(Ordering::SeqCst) {
            return;
        }
        let mut readers = self.readers.lock();
        readers.drain(..).for_each(|(_, reader)| reader.recall());
        self.has_any.store(false, Ordering::SeqCst);
    }

    /// Recalls those of an owner.
    pub fn recall_those_of(&self, owner: u64) {
        let mut readers = self.readers.lock();
        readers.iter().filter(|(of, _)| *of == owner).for_each(|(_, reader)| reader.recall());
        readers.retain(|(of, _)| *of != owner);
    }

    /// Whether a reader is on the list, which means that it was not recalled.
    pub fn list(&self, reader: &Arc<dyn OutsideReader>) -> bool {
        self.readers.lock().iter().any(|(_, known)| Arc::ptr_eq(known, reader))
    }

    /// Whether a program may have objects of the file open, recalled or not.
    pub fn hold_objects(&self) -> bool {
        self.holding.load(Ordering::Acquire) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Debug, Default)]
    struct Recalls(AtomicU32);

    impl OutsideReader for Recalls {
        fn recall(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_reader_is_recalled_once_and_one_that_left_is_not() {
        let readers = OutsideReaders::default();
        let [stays, leaves] = [Arc::new(Recalls::default()), Arc::new(Recalls::default())];
        let others = Arc::new(Recalls::default());
        readers.add(1, stays.clone());
        readers.add(1, leaves.clone());
        readers.add(2, others.clone());
        let [staying, leaving, of_other]: [Arc<dyn OutsideReader>; 3] = [stays.clone(), leaves.clone(), others.clone()];
        readers.give_back(&leaving);
        readers.recall_those_of(2);
        let counts = || [&stays, &leaves, &others].map(|recalls| recalls.0.load(Ordering::SeqCst));
        assert_eq!(counts(), [0, 0, 1]);
        readers.recall_all();
        readers.recall_all();
        assert_eq!(counts(), [1, 0, 1]);
        assert!(readers.hold_objects(), "two have not given theirs back");
        readers.give_back(&staying);
        readers.give_back(&of_other);
        assert!(!readers.hold_objects());
    }
}
