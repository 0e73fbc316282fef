//! Notes in memory that outlives the process: effects of operations that no transaction records yet (docs/design/0023).
//!
//! Invariants:
//! * A note is a whole state of something that has a number, never a change of an earlier note: of two notes with one number
//!   the later one counts, and taking a note up twice does no harm.
//! * A note is put in a free place, and its first word, which makes it one, is stored last. The earlier note of the same number
//!   is forgotten after that. So whenever the process dies, one of them is whole.
//! * A caller that puts the state of a note into a transaction forgets the note after the commit, and before anything else may
//!   be committed about it. So no note is older than the state in the log.
//! * Notes belong to one opening of the store. The next one takes those of the opening before it over, in this order: a second
//!   header names the new generation, then the log's header does. So the notes are known by whichever of the two generations
//!   the log has.

mod format;

use std::collections::BTreeMap;
use std::sync::Arc;

use polymux_types::Timestamp;
use polymux_types::surviving::{SurvivingMemory, SurvivingPlace, boot_words, snapshot};
use polymux_types::sync::{AtomicU64, Mutex, Ordering};

use self::format::{HEADER_PLACES, HEADER_WORDS, PLACE_WORDS, encode_header};
use crate::log::LogHeader;

pub use self::format::CONTENT_MAX;

/// Notes that there are at most.
const PLACES: u32 = 1024;

/// A note that outlived the process that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Number of its subject.
    pub number: u64,
    /// When it was made, for the caller that made it.
    pub time: Timestamp,
    /// The state.
    pub content: Vec<u8>,
}

/// Where a note is. It stays until it is given to [`Notes::forget`].
#[derive(Debug, PartialEq, Eq)]
pub struct NotePlace {
    place: u32,
    /// Greater for a later note.
    pub version: u64,
}

/// Notes in one piece of surviving memory.
pub struct Notes {
    memory: Arc<dyn SurvivingMemory>,
    salt: u64,
    free: Mutex<Vec<u32>>,
    /// Version of the next note.
    next: AtomicU64,
    /// Notes that an earlier process left, with the places that they occupy.
    left: Mutex<Left>,
}

#[derive(Default)]
struct Left {
    notes: BTreeMap<u64, (u64, Note)>,
    places: Vec<u32>,
}

/// Name of the memory that belongs to a store.
fn name_of(store: u64) -> String {
    format!("{store:016x}.notes")
}

impl Notes {
    /// Bytes of memory that notes need.
    pub const BYTES: u64 = (HEADER_WORDS as u64 + PLACES as u64 * PLACE_WORDS as u64) * 8;

    /// Notes in memory whose content belongs to this store. Notes that are damaged, or were being made when the process died,
    /// are cleared.
    ///
    /// # Panics
    ///
    /// Where the memory is not of [`Notes::BYTES`] bytes.
    #[must_use]
    pub fn over(memory: Arc<dyn SurvivingMemory>, salt: u64) -> Self {
        assert_eq!(memory.words().len() as u64 * 8, Self::BYTES, "memory for notes has their length");
        let notes =
            Self { memory, salt, free: Mutex::new(Vec::new()), next: AtomicU64::new(1), left: Mutex::default() };
        let (mut left, mut free) = (Left::default(), Vec::new());
        // The first place is on top, so that few are ever used.
        for place in (0..PLACES).rev() {
            let words = notes.place(place);
            if words[0].load(Ordering::Acquire) == 0 {
                free.push(place);
                continue;
            }
            let Some((version, note)) = format::decode_note(&snapshot(words), salt) else {
                words[0].store(0, Ordering::Release);
                free.push(place);
                continue;
            };
            left.places.push(place);
            notes.next.fetch_max(version + 1, Ordering::Relaxed);
            if left.notes.get(&note.number).is_none_or(|(of, _)| *of < version) {
                left.notes.insert(note.number, (version, note));
            }
        }
        *notes.free.lock() = free;
        *notes.left.lock() = left;
        notes
    }

    /// The notes of the store with this log, whose header is still that of the last opening, made ready for the next one.
    ///
    /// # Errors
    ///
    /// Why there is no memory for them, for people.
    pub(crate) fn open(place: &dyn SurvivingPlace, header: &LogHeader, trust: Trust) -> Result<Opened, String> {
        let memory = place.open(&name_of(header.store), Self::BYTES)?;
        let boot = boot_words(place.boot());
        let next = LogHeader { generation: header.generation.saturating_add(1), ..*header };
        let words = memory.words();
        let place_of = |of: &LogHeader| {
            let expected = encode_header(of, boot);
            let is_there = |at: &usize| snapshot(&words[*at..*at + expected.len()]) == expected;
            HEADER_PLACES.into_iter().find(is_there)
        };
        let known_at = place_of(header).filter(|_| trust == Trust::AsTheHeaderSays);
        if known_at.is_none() {
            // The headers go first: no process takes up half-cleared notes.
            for word in words {
                word.store(0, Ordering::Release);
            }
        }
        let other = HEADER_PLACES.into_iter().find(|at| Some(*at) != known_at).expect("there are two");
        words[other].store(0, Ordering::Release);
        for (word, value) in words[other..].iter().zip(encode_header(&next, boot)).rev() {
            word.store(value, Ordering::Release);
        }
        Ok(Opened { notes: Self::over(memory, header.salt), are_known: known_at.is_some() })
    }

    fn place(&self, place: u32) -> &[AtomicU64] {
        let first = HEADER_WORDS + usize::try_from(place).expect("a small number") * PLACE_WORDS;
        &self.memory.words()[first..first + PLACE_WORDS]
    }

    /// Puts a note down; it outlives the process from then on. `earlier` is the last one of the same number, which is forgotten.
    /// `None`: there is no space, or it is too long; then `earlier` is still there, and outdated.
    pub fn put(&self, number: u64, time: Timestamp, content: &[u8], earlier: &mut Option<NotePlace>) -> Option<u64> {
        if content.len() > CONTENT_MAX {
            return None;
        }
        let place = self.free.lock().pop()?;
        let version = self.next.fetch_add(1, Ordering::Relaxed);
        format::encode_note(self.place(place), self.salt, version, (number, time, content));
        if let Some(earlier) = earlier.replace(NotePlace { place, version }) {
            self.forget(earlier);
        }
        Some(version)
    }

    /// Forgets a note: a transaction says the same by now, or more.
    pub fn forget(&self, note: NotePlace) {
        self.place(note.place)[0].store(0, Ordering::Release);
        self.free.lock().push(note.place);
    }

    /// Notes that an earlier process left: the last one of each number.
    #[must_use]
    pub fn left(&self) -> Vec<Note> {
        self.left.lock().notes.values().map(|(_, note)| note.clone()).collect()
    }

    /// Forgets the notes that an earlier process left.
    pub fn forget_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        for place in left.places {
            self.forget(NotePlace { place, version: 0 });
        }
    }

    /// Removes the memory: the store is closed in order.
    pub(crate) fn discard(&self) {
        for at in HEADER_PLACES {
            self.memory.words()[at].store(0, Ordering::Release);
        }
        self.memory.discard();
    }
}

impl std::fmt::Debug for Notes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "notes in {}", self.memory.description())
    }
}

/// Whether notes may be taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// If their header names the last opening.
    AsTheHeaderSays,
    /// The log lost commits of the last opening: a note may be older or newer than the rest.
    No,
}

/// Notes as they were found.
pub(crate) struct Opened {
    pub(crate) notes: Notes,
    /// They are of the last opening, and of this boot of the machine.
    pub(crate) are_known: bool,
}

#[cfg(test)]
#[path = "notes/tests.rs"]
mod tests;
