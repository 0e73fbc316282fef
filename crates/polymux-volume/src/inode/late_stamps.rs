//! Which back-references of objects do not match their file any more (docs/design/0013).
//!
//! Invariants:
//! * Files are in the order in which they became late, each once while its `FileState` stays in memory.
//! * Memory is bounded: files that do not fit here, or could not be described, are *forgotten*, and found again by a walk
//!   over inode records from the durable mark on ([`StampMark`]).
//! * A directory that was renamed has a durable record of its own; here is only how often that happened in this mount, so
//!   that a walk below it that began before the last rename does not count.

use std::collections::{BTreeMap, VecDeque};

use polymux_records::store::StampMark;
use polymux_types::sync::Mutex;
use polymux_types::{Ino, Timestamp};

/// Files that are remembered; a few MiB of memory.
const FILES_MAX: usize = 262_144;

/// A file whose objects are described late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateFile {
    pub ino: Ino,
    /// Since when, in milliseconds of the volume's clock,
    pub since_ms: u64,
    /// and as people count.
    pub since: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    files: VecDeque<LateFile>,
    /// Renames of a directory in this mount, while files below it are still to be described.
    directories: BTreeMap<Ino, u64>,
    has_forgotten: bool,
    /// A walk over all records is under way.
    is_walking: bool,
}

/// The late back-references.
#[derive(Debug, Default)]
pub struct LateStamps {
    state: Mutex<State>,
}

impl LateStamps {
    /// Notes a file.
    pub fn add(&self, file: LateFile) {
        let mut state = self.state.lock();
        if state.files.len() < FILES_MAX {
            state.files.push_back(file);
        } else {
            state.has_forgotten = true;
        }
    }

    /// Takes the file that is late for the longest time, where that is since `before_ms` or earlier.
    pub fn take(&self, before_ms: u64) -> Option<LateFile> {
        self.state.lock().files.pop_front_if(|file| file.since_ms <= before_ms)
    }

    /// Since when the oldest file is late.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.state.lock().files.front().map(|file| file.since)
    }

    /// Files and directories that are late and known here, and one more where others may be.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        state.files.len() + state.directories.len() + usize::from(state.has_forgotten || state.is_walking)
    }

    /// Something that is late is not known here.
    pub(crate) fn forget_some(&self) {
        self.state.lock().has_forgotten = true;
    }

    /// Whether something that is late is not known here.
    pub(crate) fn has_forgotten(&self) -> bool {
        self.state.lock().has_forgotten
    }

    /// Begins a walk that finds the files forgotten until now.
    pub(crate) fn begin_walk(&self) {
        let mut state = self.state.lock();
        state.has_forgotten = false;
        state.is_walking = true;
    }

    /// The walk came to its end.
    pub(crate) fn end_walk(&self) {
        self.state.lock().is_walking = false;
    }

    /// Notes that a directory has another path, and so has all below it.
    pub fn add_directory(&self, ino: Ino) {
        *self.state.lock().directories.entry(ino).or_default() += 1;
    }

    /// A directory below which everything is to be described, and how often it was renamed.
    pub(crate) fn any_directory(&self) -> Option<(Ino, u64)> {
        self.state.lock().directories.first_key_value().map(|(ino, renames)| (*ino, *renames))
    }

    /// Whether a directory was renamed as often as that, and not more.
    pub(crate) fn is_unchanged(&self, ino: Ino, renames: u64) -> bool {
        self.state.lock().directories.get(&ino) == Some(&renames)
    }

    /// Everything below a directory is described.
    pub fn remove_directory(&self, ino: Ino) {
        self.state.lock().directories.remove(&ino);
    }
}

/// Where the walks of a mount are.
#[derive(Debug, Default)]
pub(crate) struct StampWalks {
    /// Last inode record looked at; `None`: no walk is under way.
    pub after: Option<Ino>,
    /// The mark as it is in the store; `None` before the first step.
    pub mark: Option<StampMark>,
    pub below: Option<WalkBelow>,
    /// Not before this moment anything is tried again.
    pub(crate) retry_ms: u64,
}

/// A walk below a directory that was renamed.
#[derive(Debug)]
pub(crate) struct WalkBelow {
    pub top: Ino,
    pub renames: u64,
    /// Directories on the way down, each with the last position looked at.
    pub path: Vec<(Ino, u64)>,
    pub is_whole: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(ino: u64, since_ms: u64) -> LateFile {
        LateFile { ino: Ino(ino), since_ms, since: Timestamp::new(i64::try_from(since_ms).unwrap(), 0) }
    }

    #[test]
    fn files_come_in_the_order_in_which_they_became_late_and_not_before_their_time() {
        let stamps = LateStamps::default();
        stamps.add(late(7, 10));
        stamps.add(late(5, 20));
        assert_eq!((stamps.take(9), stamps.oldest()), (None, Some(Timestamp::new(10, 0))));
        assert_eq!(stamps.take(15), Some(late(7, 10)));
        assert_eq!((stamps.take(15), stamps.take(20)), (None, Some(late(5, 20))));
    }

    #[test]
    fn what_finds_no_room_is_known_to_be_forgotten() {
        let stamps = LateStamps::default();
        (0..FILES_MAX as u64).for_each(|ino| stamps.add(late(ino, 0)));
        assert!(!stamps.has_forgotten());
        stamps.add(late(1, 1));
        assert!(stamps.has_forgotten());
        assert_eq!(stamps.len(), FILES_MAX + 1);
        stamps.begin_walk();
        assert!(!stamps.has_forgotten());
        stamps.end_walk();
        assert_eq!(stamps.len(), FILES_MAX);
    }

    #[test]
    fn a_walk_below_a_directory_that_was_renamed_meanwhile_does_not_count() {
        let stamps = LateStamps::default();
        stamps.add_directory(Ino(9));
        let (ino, renames) = stamps.any_directory().unwrap();
        stamps.add_directory(Ino(9));
        assert!(!stamps.is_unchanged(ino, renames));
        assert!(stamps.is_unchanged(ino, renames + 1));
    }
}
