//! Which new files are worth an object from the beginning, so that the kernel writes them itself (docs/design/0026).
//!
//! Invariants:
//! * A wrong guess gives a small file an object for its whole life, or a large one a message for each write; it changes nothing else.
//! * The sizes are known that earlier files had when their creator closed them: by kind, which is a directory and the part of the
//!   name that files of one kind share, and by creator. The kind says more, because a creator makes files of many kinds.
//! * The memory is of constant size, and two keys that meet in it forget one another. Nothing is on record.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_types::{Ino, StreamId};

/// Sizes from which a file is worth an object from the beginning: sixteen messages of a program that writes 4 KiB at a time cost as
/// much as the object, its registration and the record that has to be durable first.
const LARGE_FILE_MIN: u64 = 64 * 1024;
/// Keys that are remembered; a power of two.
const ENTRIES: usize = 4096;
/// Longest part of a name behind its last dot that counts as its kind.
const EXTENSION_LENGTH_MAX: usize = 16;

/// Small files after which a creator is taken for one that makes nothing else. Many, because a large file that is taken for a small
/// one costs a message for each write, and a small one that is taken for a large one costs an object: databases make half a dozen small
/// files before their log.
const SMALL_FILES_MAX: u64 = 16;
/// Small files that one large file of a creator outweighs. Trees of sources have large files among the small ones.
const SMALL_FOR_A_LARGE: u64 = 4;

/// The low bits of an entry hold the knowledge about its key. An entry that was never written has none of them set.
const KNOWN_BITS: u64 = 0b11111;
/// Of a kind: how sure its size is.
const SURELY_SMALL: u64 = 1;
const PERHAPS_SMALL: u64 = 2;
const PERHAPS_LARGE: u64 = 3;
const SURELY_LARGE: u64 = 4;
/// Of a creator: no small file; more than that counts them, less those that large ones outweigh.
const NONE_SMALL: u64 = 1;

/// A new file, as far as its size can be guessed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation {
    kind: u64,
    creator: u64,
}

impl Creation {
    /// The creation of a file with a name in a directory.
    pub fn of(directory: Ino, name: &[u8], creator: StreamId) -> Self {
        Self { kind: key_of(&(directory.get(), kind_of_name(name))), creator: key_of(&creator.0) }
    }
}

/// The part of a name that files of its kind share: its extension, or all of it, without digits.
fn kind_of_name(name: &[u8]) -> Vec<u8> {
    let without_digits = |part: &[u8]| part.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect::<Vec<u8>>();
    let extension =
        name.iter().rposition(|byte| *byte == b'.').filter(|place| *place > 0).map(|place| &name[place + 1..]);
    match extension.map(without_digits) {
        Some(extension) if !extension.is_empty() && extension.len() <= EXTENSION_LENGTH_MAX => extension,
        _ => without_digits(name),
    }
}

fn key_of(key: &impl Hash) -> u64 {
    // Without a secret: names that are made to collide spoil guesses, and nothing else.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() & !KNOWN_BITS
}

/// Sizes of earlier new files.
#[derive(Debug)]
pub struct NewFileSizes {
    entries: Box<[AtomicU64]>,
}

impl Default for NewFileSizes {
    fn default() -> Self {
        Self { entries: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl NewFileSizes {
    fn entry(&self, key: u64) -> &AtomicU64 {
        let place = usize::try_from((key >> KNOWN_BITS.count_ones()) % ENTRIES as u64);
        &self.entries[place.expect("a remainder below the number of entries fits")]
    }

    fn known(&self, key: u64) -> Option<u64> {
        let entry = self.entry(key).load(Ordering::Relaxed);
        (entry & !KNOWN_BITS == key && entry != key).then_some(entry & KNOWN_BITS)
    }

    /// Whether a new file is worth an object from the beginning: those of a kind that was large, and all others unless their kind was
    /// small again and again, or their creator makes small files.
    pub fn expects_large(&self, creation: &Creation) -> bool {
        match self.known(creation.kind) {
            Some(SURELY_SMALL) => false,
            Some(PERHAPS_LARGE | SURELY_LARGE) => true,
            _ => self.known(creation.creator).is_none_or(|known| known - NONE_SMALL < SMALL_FILES_MAX),
        }
    }

    /// A file was closed by its creator with this size. Of two that are noted at once one may be forgotten.
    pub fn note_closed(&self, creation: &Creation, size: u64) {
        let is_large = size >= LARGE_FILE_MIN;
        let kind = match (self.known(creation.kind), is_large) {
            (None, false) => PERHAPS_SMALL,
            (None, true) => PERHAPS_LARGE,
            (Some(before), false) => before.saturating_sub(1).max(SURELY_SMALL),
            (Some(before), true) => (before + 1).min(SURELY_LARGE),
        };
        self.entry(creation.kind).store(creation.kind | kind, Ordering::Relaxed);
        let small = self.known(creation.creator).map_or(0, |known| known - NONE_SMALL);
        let small = if is_large { small.saturating_sub(SMALL_FOR_A_LARGE) } else { (small + 1).min(SMALL_FILES_MAX) };
        let creator = NONE_SMALL + small;
        self.entry(creation.creator).store(creation.creator | creator, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Ino = Ino(7);
    const LARGE: u64 = LARGE_FILE_MIN;

    fn creation(name: &str, creator: u64) -> Creation {
        Creation::of(DIRECTORY, name.as_bytes(), StreamId(creator))
    }

    #[test]
    fn files_of_one_kind_share_the_extension_or_the_name_without_digits() {
        let kind = |name: &str| String::from_utf8(kind_of_name(name.as_bytes())).unwrap();
        assert_eq!(["000012.sst", "x.log.1", "MANIFEST-000004", "a"].map(kind), ["sst", "x.log.", "MANIFEST-", "a"]);
        assert_eq!([".hidden", "name.", "1234"].map(kind), [".hidden", "name.", ""]);
        let long = "a.name-that-is-no-extension-at-all";
        assert_eq!(kind(long), long);
    }

    #[test]
    fn a_creator_of_small_files_is_known_after_sixteen_and_a_large_one_outweighs_four() {
        let sizes = NewFileSizes::default();
        for made in 0..SMALL_FILES_MAX {
            assert!(sizes.expects_large(&creation(&format!("{made}.{}", name_of(made)), 1)), "{made} small files");
            sizes.note_closed(&creation(&format!("a.{}", name_of(made)), 1), 900);
        }
        assert!(!sizes.expects_large(&creation("notes", 1)));
        assert!(sizes.expects_large(&creation("notes", 2)), "another creator");
        sizes.note_closed(&creation("video", 1), LARGE);
        for made in 0..SMALL_FOR_A_LARGE {
            assert!(sizes.expects_large(&creation("notes", 1)), "{made} small files after a large one");
            sizes.note_closed(&creation(&format!("b.{}", name_of(made)), 1), 900);
        }
        assert!(!sizes.expects_large(&creation("notes", 1)));
    }

    /// A different extension for each number.
    fn name_of(number: u64) -> String {
        "x".repeat(usize::try_from(number).unwrap() % EXTENSION_LENGTH_MAX + 1)
    }

    #[test]
    fn a_kind_is_small_after_two_of_its_files_and_large_after_one() {
        let sizes = NewFileSizes::default();
        sizes.note_closed(&creation("1.c", 1), 900);
        assert!(sizes.expects_large(&creation("2.c", 2)), "one small file says little");
        sizes.note_closed(&creation("2.c", 1), 900);
        assert!(!sizes.expects_large(&creation("3.c", 2)), "of any creator");
        let elsewhere = Creation::of(Ino(8), b"3.c", StreamId(2));
        assert!(sizes.expects_large(&elsewhere), "of that directory nothing is known");
        sizes.note_closed(&creation("1.sst", 1), LARGE);
        for _ in 0..20 {
            sizes.note_closed(&creation("OPTIONS-1", 1), 4000);
        }
        assert!(sizes.expects_large(&creation("2.sst", 1)), "although its creator makes many small ones");
        sizes.note_closed(&creation("2.sst", 1), LARGE);
        sizes.note_closed(&creation("3.sst", 1), 100);
        assert!(sizes.expects_large(&creation("4.sst", 1)), "one exception changes no mind");
    }
}
