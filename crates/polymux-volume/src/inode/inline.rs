//! The bytes of a file that no object holds (DESIGN section 5, docs/design/0004).
//!
//! Invariants:
//! * They count only while the layout names no object. Then they are the whole file, and `size` is their length.
//! * They are in memory while they differ from the store, and while the file is open; a clean file that is not open
//!   keeps none.
//! * They change under the append lock (or the barrier, held alone) and under their own lock, so that a thread that logs or
//!   reads them sees a state between two operations, never the middle of one.
//! * They are forgotten only under the record lock: not before the transaction that logs them is committed.
//! * While they differ from the record, a note of them outlives the process, where there is memory for that (docs/design/0023). It
//!   is put under their lock, and goes after the transaction that logs them is committed, under the record lock; one that was
//!   put meanwhile stays.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_meta::{NotePlace, Notes};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_types::sync::{Mutex, RwLock};
use polymux_types::{Ino, Timestamp};

use super::{FileState, Inode};

/// The change that a transaction makes to the `b` record of a file.
pub enum InlineChange<'a> {
    /// It is written anew, with this content.
    Put(&'a [u8]),
    /// It goes: the file is empty.
    Delete,
}

/// Bytes of one file that are in the metadata store, or on their way there.
#[derive(Debug, Default)]
pub struct InlineData {
    /// The content, while it is in memory. Lock order: after `layout`.
    pub bytes: RwLock<Option<Vec<u8>>>,
    /// `bytes` is newer than the last record. Set under the lock of `bytes`.
    dirty: AtomicBool,
    /// The store may hold a `b` record of the file.
    stored: AtomicBool,
    /// The file was emptied since its last close, and the store had a `b` record of it then.
    emptied: AtomicBool,
    /// The note that preserves unlogged bytes beyond the life of the process. A leaf.
    note: Mutex<Option<NotePlace>>,
    /// Version of the note that the transaction under way makes needless; 0: none. Changes under the record lock.
    logged_note: AtomicU64,
}

impl InlineData {
    pub fn new(stored: bool) -> Self {
        Self { stored: AtomicBool::new(stored), ..Self::default() }
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    pub fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    /// Whether the store may hold a `b` record of the file.
    pub fn is_stored(&self) -> bool {
        self.stored.load(Ordering::Acquire)
    }

    /// All bytes are about to go, because the file is written anew.
    pub fn note_emptying(&self) {
        self.emptied.fetch_or(self.is_stored(), Ordering::AcqRel);
    }

    /// Whether that happened since the last close, to bytes that the store had.
    pub fn was_emptied(&self) -> bool {
        self.emptied.load(Ordering::Acquire)
    }

    /// The bytes went to an object, whose record takes the `b` record away. Returns whether there may be one. Called
    /// inside that transaction.
    pub fn give_up(&self) -> bool {
        *self.bytes.write() = None;
        self.log_note();
        self.dirty.store(false, Ordering::Release);
        self.stored.swap(false, Ordering::AcqRel)
    }

    /// Replaces the note with one of bytes that were just changed. Returns `false` if there is no space for it. Called
    /// with the lock of the bytes held.
    pub fn put_note(&self, notes: &Notes, ino: Ino, now: Timestamp, bytes: &[u8]) -> bool {
        notes.put(ino.0, now, bytes, &mut self.note.lock()).is_some()
    }

    /// Notes that the transaction under way logs the contents of the note.
    fn log_note(&self) {
        let version = self.note.lock().as_ref().map_or(0, |note| note.version);
        self.logged_note.store(version, Ordering::Release);
    }

    /// Removes the note of the bytes logged by a transaction that is committed. Called with the record lock held.
    pub(crate) fn forget_logged_note(&self, notes: &Notes) {
        let logged = self.logged_note.swap(0, Ordering::AcqRel);
        if logged == 0 || is_planted(PlantedFault::InlineNoteStays) {
            return;
        }
        if let Some(note) = self.note.lock().take_if(|note| note.version <= logged) {
            notes.forget(note);
        }
    }

    /// The transaction was not committed.
    fn keep_note(&self) {
        self.logged_note.store(0, Ordering::Release);
    }

    /// The file is deleted.
    pub fn forget_note(&self, notes: &Notes) {
        if let Some(note) = self.note.lock().take() {
            notes.forget(note);
        }
    }
}

impl FileState {
    /// Whether no object holds bytes of the file: they are in the metadata store, or there are none yet.
    pub fn is_inline(&self) -> bool {
        self.layout.read().objects.is_empty()
    }

    /// Passes `apply` the change to the `b` record that a transaction writing the record must make: every record of a file carries
    /// its inline bytes along, so that both are always of the same state. Called with the record lock held.
    pub fn log_inline(&self, apply: impl FnOnce(InlineChange<'_>)) {
        self.durability.uncommitted.store(false, Ordering::Release);
        if !self.inline.is_dirty() {
            return;
        }
        let mut layout = self.layout.write();
        let bytes = self.inline.bytes.read();
        if !self.inline.dirty.swap(false, Ordering::AcqRel) || !layout.objects.is_empty() {
            return;
        }
        let content = bytes.as_deref().expect("bytes that are newer than the record are in memory");
        self.inline.log_note();
        layout.size_floor = content.len() as u64;
        if !content.is_empty() {
            self.inline.stored.store(true, Ordering::Release);
            apply(InlineChange::Put(content));
        } else if self.inline.stored.swap(false, Ordering::AcqRel) {
            apply(InlineChange::Delete);
        }
    }
}

impl Inode {
    /// A transaction with the record of this inode was not committed, so memory is newer than the store: the next record
    /// is due, and the assumptions of the failed one about the `b` record may be wrong. Called with the record lock
    /// held.
    pub(crate) fn note_uncommitted(&self) {
        self.times_dirty.store(true, Ordering::Release);
        let Some(file) = self.file() else { return };
        file.durability.uncommitted.store(true, Ordering::Release);
        file.inline.stored.store(true, Ordering::Release);
        file.inline.keep_note();
        if file.inline.bytes.read().is_some() {
            file.inline.mark_dirty();
        }
    }

    /// The file is closed: lets the bytes go where the store has them too.
    pub fn forget_inline_bytes(&self) {
        let Some(file) = self.file() else { return };
        file.inline.emptied.store(false, Ordering::Release);
        if file.inline.bytes.read().is_none() {
            return;
        }
        // Until the transaction that logs them is committed, the store would answer with older ones.
        let _committed = self.record_lock.lock();
        let mut bytes = file.inline.bytes.write();
        if !file.inline.is_dirty() {
            *bytes = None;
        }
    }
}
