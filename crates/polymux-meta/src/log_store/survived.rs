//! State that outlived the previous process with the store open, beside the window of its log (docs/design/0023).
//!
//! Invariants:
//! * Notes are kept only where the log itself outlives the process: in surviving memory, or in a region.
//! * While the notes of an earlier process are not taken up into transactions, the memory stays in place, even when the store is
//!   closed in order. The next opening finds it as if the process had died.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::open::{FoundWindow, LogStoreOptions};
use crate::log::{LogHeader, WindowMemory};
use crate::notes::{Notes, Trust};

/// State that outlived the previous process.
pub(super) struct Survived {
    /// `Err`: why there are none, for people; nothing where none were asked for.
    notes: Result<Arc<Notes>, String>,
    only_the_process_died: bool,
    /// Whether all of it was taken up.
    is_taken_up: AtomicBool,
}

impl Survived {
    /// Where the log is in a region, which lost nothing: notes of this boot say that the machine went on.
    pub(super) fn beside_region(path: &Path, options: &LogStoreOptions, header: &LogHeader) -> Self {
        let (notes, are_known) = open_notes(path, options, header, Trust::AsTheHeaderSays);
        Self::of(notes, are_known)
    }

    /// Where the end of the log was in a window.
    pub(super) fn beside_window(
        path: &Path,
        options: &LogStoreOptions,
        header: &LogHeader,
        window: &FoundWindow,
    ) -> Self {
        let trust = if window.was_taken_up { Trust::AsTheHeaderSays } else { Trust::No };
        match &window.memory {
            WindowMemory::Plain { .. } => Self::of(Err(String::new()), false),
            WindowMemory::Surviving(_) => Self::of(open_notes(path, options, header, trust).0, window.was_taken_up),
        }
    }

    fn of(notes: Result<Arc<Notes>, String>, only_the_process_died: bool) -> Self {
        Self { notes, only_the_process_died, is_taken_up: AtomicBool::new(!only_the_process_died) }
    }

    pub(super) fn notes(&self) -> Option<Arc<Notes>> {
        self.notes.as_ref().ok().cloned()
    }

    /// Why there is no memory for notes, where it was asked for.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.notes.as_ref().err().map(String::as_str).filter(|reason| !reason.is_empty())
    }

    pub(super) fn only_the_process_died(&self) -> bool {
        self.only_the_process_died
    }

    pub(super) fn note_taken_up(&self) {
        self.is_taken_up.store(true, Ordering::Release);
    }

    /// The store is closed in order. Returns whether its memory may go, too.
    pub(super) fn discard(&self) -> bool {
        let is_taken_up = self.is_taken_up.load(Ordering::Acquire);
        if let Ok(notes) = &self.notes
            && is_taken_up
        {
            notes.discard();
        }
        is_taken_up
    }
}

fn open_notes(
    path: &Path,
    options: &LogStoreOptions,
    header: &LogHeader,
    trust: Trust,
) -> (Result<Arc<Notes>, String>, bool) {
    let Some(place) = &options.surviving else { return (Err(String::new()), false) };
    match Notes::open(&**place, header, trust) {
        Ok(opened) => (Ok(Arc::new(opened.notes)), opened.are_known),
        Err(reason) => {
            log::warn!("{}: small files that are open lose what is not flushed: {reason}", path.display());
            (Err(reason), false)
        }
    }
}
