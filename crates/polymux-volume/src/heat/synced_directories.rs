//! Directories in which programs make files whose writes they wait for: logs of databases, journals, queues and boxes of mail (M5).
//!
//! Invariants:
//! * A directory is one of them from the second log on, and from the eighth *message* on (a small file that was synced after it was made),
//!   as long as that is at least every other file that is made in it.
//! * Files that were made before the mount say nothing.
//! * It is learned anew after each mount: tens of syncs are enough.
//! * Bounded: of [`DIRECTORIES_MAX`] directories those with the fewest messages go first, those with logs last.
//! * While none is known, a file that is made costs one atomic read.

use std::collections::BTreeMap;

use polymux_policy::Synced;
use polymux_types::Ino;
use polymux_types::sync::{AtomicU64, Mutex, Ordering};

/// Directories that are remembered.
const DIRECTORIES_MAX: usize = 4096;

/// Logs after which other files begin as one.
const LOGS_ENOUGH: u32 = 2;

/// Messages after which other files begin as one: more, because one sync says less than a row of them.
const MESSAGES_ENOUGH: u32 = 8;

/// Files made after which older ones count half.
const AGES_AT: u32 = 64;

/// Files of one directory.
#[derive(Clone, Copy, Debug, Default)]
struct Files {
    made: u32,
    logs: u32,
    messages: u32,
}

impl Files {
    /// The likely kind of the next file.
    fn likely(self) -> Option<Synced> {
        let are_most = |files: u32| files.saturating_mul(2) >= self.made;
        if self.logs >= LOGS_ENOUGH && are_most(self.logs) {
            Some(Synced::Log)
        } else {
            (self.messages >= MESSAGES_ENOUGH && are_most(self.messages)).then_some(Synced::Message)
        }
    }

    fn age(&mut self) {
        (self.made, self.logs, self.messages) = (self.made / 2, self.logs / 2, self.messages / 2);
    }
}

/// The counts known of the directories of a volume.
#[derive(Debug, Default)]
pub struct SyncedDirectories {
    known: Mutex<BTreeMap<Ino, Files>>,
    count: AtomicU64,
    /// Directories that found all places taken.
    refused: AtomicU64,
}

impl SyncedDirectories {
    /// Programs wait for the writes of a file that was made in `directory`. Called once for each file as a log, and once as a message.
    pub fn note_waited_for(&self, directory: Ino, as_what: Synced) {
        let mut known = self.known.lock();
        if known.contains_key(&directory) || self.has_room(&mut known, as_what) {
            let files = known.entry(directory).or_default();
            match as_what {
                Synced::Log => files.logs += 1,
                Synced::Message => files.messages += 1,
            }
            // It was made before its directory was known, or it was counted when it was made.
            files.made = files.made.max(files.logs).max(files.messages);
        }
        self.count.store(known.len() as u64, Ordering::Relaxed);
    }

    /// Whether another directory can be remembered. Forgets those with few messages for that, and where that is not enough, those with few logs.
    fn has_room(&self, known: &mut BTreeMap<Ino, Files>, for_what: Synced) -> bool {
        if known.len() < DIRECTORIES_MAX {
            return true;
        }
        let refused = self.refused.fetch_add(1, Ordering::Relaxed);
        if for_what == Synced::Message && !refused.is_multiple_of(DIRECTORIES_MAX as u64) {
            // All of them are looked at only once for as many.
            return false;
        }
        known.values_mut().filter(|files| files.logs == 0).for_each(Files::age);
        known.retain(|_, files| files.logs > 0 || files.messages > 0);
        if known.len() >= DIRECTORIES_MAX {
            known.values_mut().for_each(Files::age);
            known.retain(|_, files| files.logs > 0);
        }
        known.len() < DIRECTORIES_MAX
    }

    /// A file is made in `directory`. Returns its likely kind.
    pub fn note_made(&self, directory: Ino) -> Option<Synced> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut known = self.known.lock();
        let files = known.get_mut(&directory)?;
        let likely = files.likely();
        files.made += 1;
        if files.made >= AGES_AT {
            files.age();
        }
        likely
    }

    /// A file taken for a message in `directory` is larger than one.
    pub fn forget_messages(&self, directory: Ino) {
        if let Some(files) = self.known.lock().get_mut(&directory) {
            files.messages = 0;
        }
    }

    /// A directory is removed.
    pub fn forget(&self, directory: Ino) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut known = self.known.lock();
            known.remove(&directory);
            self.count.store(known.len() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use polymux_policy::Synced::{Log, Message};

    use super::*;

    const LOGS: Ino = Ino(7);

    #[test]
    fn from_its_third_log_on_a_directory_makes_logs() {
        let directories = SyncedDirectories::default();
        assert_eq!(directories.note_made(LOGS), None);
        directories.note_waited_for(LOGS, Log);
        assert_eq!(directories.note_made(LOGS), None, "one is none");
        directories.note_waited_for(LOGS, Log);
        assert_eq!((directories.note_made(LOGS), directories.note_made(Ino(8))), (Some(Log), None));
        directories.forget(LOGS);
        assert_eq!(directories.note_made(LOGS), None);
    }

    #[test]
    fn a_few_of_many_files_say_nothing_of_the_others_and_a_change_of_use_is_learned() {
        let directories = SyncedDirectories::default();
        (0..2).for_each(|_| directories.note_waited_for(LOGS, Log));
        let taken = (0..1000).filter(|_| directories.note_made(LOGS).is_some()).count();
        assert!(taken <= 3, "{taken}");
        for _ in 0..200 {
            directories.note_made(LOGS);
            directories.note_waited_for(LOGS, Log);
        }
        assert_eq!(directories.note_made(LOGS), Some(Log));
    }

    #[test]
    fn from_its_ninth_message_on_a_directory_makes_messages_as_long_as_most_files_are_some() {
        let directories = SyncedDirectories::default();
        (0..7).for_each(|_| directories.note_waited_for(LOGS, Message));
        assert_eq!(directories.note_made(LOGS), None, "seven are too few");
        directories.note_waited_for(LOGS, Message);
        assert_eq!(directories.note_made(LOGS), Some(Message));
        directories.forget_messages(LOGS);
        assert_eq!(directories.note_made(LOGS), None, "one was larger");
        (0..9).for_each(|_| directories.note_waited_for(LOGS, Message));
        let taken = (0..1000).filter(|_| directories.note_made(LOGS).is_some()).count();
        assert!(taken <= 10, "{taken}");
    }

    #[test]
    fn directories_of_messages_do_not_crowd_out_one_of_logs() {
        let directories = SyncedDirectories::default();
        (0..2).for_each(|_| directories.note_waited_for(LOGS, Log));
        (0..5 * DIRECTORIES_MAX as u64).for_each(|number| directories.note_waited_for(Ino(number + 100), Message));
        assert!(directories.known.lock().len() <= DIRECTORIES_MAX);
        assert_eq!(directories.note_made(LOGS), Some(Log));
    }

    #[test]
    fn memory_is_bounded() {
        let directories = SyncedDirectories::default();
        for number in 0..3 * DIRECTORIES_MAX as u64 {
            directories.note_waited_for(Ino(number + 1), Log);
            (number % 2 == 0).then(|| directories.note_waited_for(LOGS, Log));
        }
        assert!(directories.known.lock().len() <= DIRECTORIES_MAX);
        assert_eq!(directories.note_made(LOGS), Some(Log), "the one with the most files stays");
    }
}
