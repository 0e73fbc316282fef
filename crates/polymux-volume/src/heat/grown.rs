//! Files that grew over several tiers and have their size logged, for a caller that takes them at intervals.
//!
//! Invariants: bounded; nothing is called with the lock held. Of more files the later ones are not remembered.

use std::collections::BTreeSet;

use polymux_types::Ino;
use polymux_types::sync::Mutex;

/// Files that are remembered.
const FILES_MAX: usize = 512;

/// Files that grew since they were last taken.
#[derive(Debug, Default)]
pub struct GrownFiles {
    files: Mutex<BTreeSet<Ino>>,
}

impl GrownFiles {
    /// Notes one.
    pub fn note(&self, ino: Ino) {
        let mut files = self.files.lock();
        if files.len() < FILES_MAX {
            files.insert(ino);
        }
    }

    /// Takes all.
    pub fn take(&self) -> BTreeSet<Ino> {
        std::mem::take(&mut *self.files.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_told_once_and_not_too_many_are_remembered() {
        let grown = GrownFiles::default();
        for ino in [1, 2, 1] {
            grown.note(Ino(ino));
        }
        assert_eq!(grown.take(), BTreeSet::from([Ino(1), Ino(2)]));
        (0..10_000).for_each(|ino| grown.note(Ino(ino)));
        assert_eq!(grown.take().len(), FILES_MAX);
        assert!(grown.take().is_empty());
    }
}
