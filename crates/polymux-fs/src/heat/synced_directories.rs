//! Directories in which programs make files whose writes they wait for: logs of databases and journals (M5).
//!
//! What is true here:
//! * A directory is one of them from the second such file on, as long as that is at least every other file that is made in it.
//! * Files that were made before the mount say nothing.
//! * It is learned anew after each mount: tens of syncs are enough.
//! * Bounded: of [`DIRECTORIES_MAX`] directories those with the fewest such files go first.
//! * While none is known, a file that is made costs one atomic read.

use std::collections::BTreeMap;

use polymux_types::Ino;
use polymux_types::sync::{AtomicU64, Mutex, Ordering};

/// Directories that are remembered.
const DIRECTORIES_MAX: usize = 4096;

/// Such files after which others begin as one.
const FILES_ENOUGH: u32 = 2;

/// Files made after which older ones count half.
const AGES_AT: u32 = 64;

/// Files of one directory.
#[derive(Clone, Copy, Debug, Default)]
struct Files {
    made: u32,
    waited_for: u32,
}

impl Files {
    fn are_waited_for(self) -> bool {
        self.waited_for >= FILES_ENOUGH && self.waited_for.saturating_mul(2) >= self.made
    }

    fn age(&mut self) {
        (self.made, self.waited_for) = (self.made / 2, self.waited_for / 2);
    }
}

/// What is known of the directories of a volume.
#[derive(Debug, Default)]
pub(crate) struct SyncedDirectories {
    known: Mutex<BTreeMap<Ino, Files>>,
    count: AtomicU64,
}

impl SyncedDirectories {
    /// Programs wait for the writes of a file that was made in `directory`. Told once of each file.
    pub(crate) fn note_waited_for(&self, directory: Ino) {
        let mut known = self.known.lock();
        let is_new = !known.contains_key(&directory);
        if is_new && known.len() >= DIRECTORIES_MAX {
            known.values_mut().for_each(Files::age);
            known.retain(|_, files| files.waited_for > 0);
        }
        if !is_new || known.len() < DIRECTORIES_MAX {
            let files = known.entry(directory).or_default();
            files.waited_for += 1;
            // It was made before its directory was known, or it was counted when it was made.
            files.made = files.made.max(files.waited_for);
        }
        self.count.store(known.len() as u64, Ordering::Relaxed);
    }

    /// A file is made in `directory`. Whether its writes are likely to be waited for.
    pub(crate) fn note_made(&self, directory: Ino) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut known = self.known.lock();
        let Some(files) = known.get_mut(&directory) else { return false };
        let are_waited_for = files.are_waited_for();
        files.made += 1;
        if files.made >= AGES_AT {
            files.age();
        }
        are_waited_for
    }

    /// A directory is removed.
    pub(crate) fn forget(&self, directory: Ino) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut known = self.known.lock();
            known.remove(&directory);
            self.count.store(known.len() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGS: Ino = Ino(7);

    #[test]
    fn from_its_third_log_on_a_directory_makes_logs() {
        let directories = SyncedDirectories::default();
        assert!(!directories.note_made(LOGS));
        directories.note_waited_for(LOGS);
        assert!(!directories.note_made(LOGS), "one is none");
        directories.note_waited_for(LOGS);
        assert!(directories.note_made(LOGS) && !directories.note_made(Ino(8)));
        directories.forget(LOGS);
        assert!(!directories.note_made(LOGS));
    }

    #[test]
    fn a_few_of_many_files_say_nothing_of_the_others_and_a_change_of_use_is_learned() {
        let directories = SyncedDirectories::default();
        (0..2).for_each(|_| directories.note_waited_for(LOGS));
        let taken = (0..1000).filter(|_| directories.note_made(LOGS)).count();
        assert!(taken <= 3, "{taken}");
        for _ in 0..200 {
            directories.note_made(LOGS);
            directories.note_waited_for(LOGS);
        }
        assert!(directories.note_made(LOGS));
    }

    #[test]
    fn memory_is_bounded() {
        let directories = SyncedDirectories::default();
        for number in 0..3 * DIRECTORIES_MAX as u64 {
            directories.note_waited_for(Ino(number + 1));
            (number % 2 == 0).then(|| directories.note_waited_for(LOGS));
        }
        assert!(directories.known.lock().len() <= DIRECTORIES_MAX);
        assert!(directories.note_made(LOGS), "the one with the most files stays");
    }
}
