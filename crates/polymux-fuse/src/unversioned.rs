//! Answers that the kernel installs without looking whether it learned something newer meanwhile.
//!
//! The kernel drops attributes that answer a query (`GETATTR`, `LOOKUP`) sent before they were reported as outdated. Of a change
//! (`SETATTR`, `LINK`) it installs them in any case (`fuse_do_setattr`, `fuse_link`), as late as the thread that asked gets a processor. A mode
//! that was read before set-id bits were taken away unheard (`programs`) would come back that way, in the middle of an `execve`
//! too.
//!
//! Invariants:
//! * The kernel holds the lock of the inode over such a change, so that of one inode at most one answer is not installed yet.
//! * An answer with set-id bits is noted before it is sent; the attributes are looked up again where bits were taken away since they may
//!   have been read (`Programs::note_answer`). They are valid for no time.
//! * It counts as installed when its thread is gone or in another call, when another answer of the inode is noted, or after
//!   [`INSTALLED_WITHIN`].
//! * The number of notes is bounded. At the bound each file counts as one with such an answer for as long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use polymux_fs::Wait;
use polymux_transport::wire::{Attr, Header};
use polymux_types::Ino;

use crate::adapter::{Adapter, Outcome};
use crate::set_id::SET_ID;
use crate::threads::{Doing, doing};

/// A thread that was woken by an answer has had a processor by then.
pub(crate) const INSTALLED_WITHIN: Duration = Duration::from_secs(10);
/// Most notes.
const NOTES_MAX: usize = 1024;

/// An answer that may not be installed yet.
#[derive(Clone, Debug)]
struct Note {
    at: Instant,
    thread: u32,
    /// The activity of the thread before it was answered.
    did: Doing,
}

/// Answers with set-id bits that may not be installed yet.
#[derive(Debug, Default)]
pub(crate) struct UninstalledAnswers {
    notes: HashMap<Ino, Note>,
    /// There were more notes at this moment than are kept.
    overflowed: Option<Instant>,
}

impl UninstalledAnswers {
    /// An answer with set-id bits is about to be sent to a thread, which does that.
    pub(crate) fn note(&mut self, ino: Ino, thread: u32, did: Doing, now: Instant) {
        if self.notes.len() >= NOTES_MAX {
            self.notes.retain(|_, note| is_recent(note.at, now));
        }
        if self.notes.len() >= NOTES_MAX {
            self.notes.clear();
            self.overflowed = Some(now);
        }
        self.notes.insert(ino, Note { at: now, thread, did });
    }

    /// Whether the kernel may still install set-id bits of a file that were answered before; a thread asks.
    pub(crate) fn may_come(&mut self, ino: Ino, asking: u32, now: Instant) -> bool {
        self.may_come_as(ino, asking, now, doing)
    }

    /// Drops the note of a file whose answer is seen to be installed.
    pub(crate) fn forget_installed(&mut self, ino: Ino) {
        let _ = self.may_come(ino, 0, Instant::now());
    }

    fn may_come_as(&mut self, ino: Ino, asking: u32, now: Instant, doing: impl Fn(u32) -> Doing) -> bool {
        if self.overflowed.is_some_and(|at| is_recent(at, now)) {
            return true;
        }
        let Some(note) = self.notes.get(&ino) else { return false };
        let is_installed = !is_recent(note.at, now)
            // A thread that asks again has its answer; 0 stands for one of another process namespace.
            || asking == note.thread && asking != 0
            || note.thread != 0
                && match doing(note.thread) {
                    Doing::Gone => true,
                    Doing::Unknown => false,
                    does @ Doing::Waits(_) => matches!(note.did, Doing::Waits(_)) && does != note.did,
                };
        if is_installed {
            self.notes.remove(&ino);
        }
        !is_installed
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < INSTALLED_WITHIN
}

/// Whether the kernel would execute the file with other rights because of these attributes.
pub(crate) fn gives_rights(attr: &Attr) -> bool {
    attr.mode & libc::S_IFMT == libc::S_IFREG && attr.mode & SET_ID != 0
}

impl Adapter {
    /// The attributes that answer a change of attributes, or a link: `attr`, or the current ones if they changed since it was read.
    pub(crate) fn settled(&self, header: &Header, attr: Attr, wait: Wait) -> Outcome<Attr> {
        // A mount of another user has no set-id programs.
        if !gives_rights(&attr) || !self.runs_as_root || !self.programs.note_answer(Ino(attr.ino), header.pid) {
            return Ok(attr);
        }
        self.get_attributes(&Header { node: attr.ino, ..*header }, wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);
    const THREAD: u32 = 100;
    const OTHER_THREAD: u32 = 200;

    fn waits(call: &str) -> Doing {
        Doing::Waits(call.to_owned())
    }

    #[test]
    fn an_answer_may_come_until_its_thread_is_seen_elsewhere_or_had_time_enough() {
        let now = Instant::now();
        let noted = || {
            let mut answers = UninstalledAnswers::default();
            answers.note(FILE, THREAD, waits("90"), now);
            answers
        };
        let may_come = |doing: Doing| noted().may_come_as(FILE, OTHER_THREAD, now, |_| doing.clone());
        assert!(may_come(waits("90")) && may_come(Doing::Unknown));
        assert!(!may_come(waits("202")) && !may_come(Doing::Gone));
        let runs = |_| Doing::Unknown;
        assert!(!noted().may_come_as(Ino(8), OTHER_THREAD, now, runs), "of another file nothing was answered");
        assert!(!noted().may_come_as(FILE, THREAD, now, runs), "the thread has its answer");
        assert!(noted().may_come_as(FILE, OTHER_THREAD, now + INSTALLED_WITHIN / 2, runs));
        assert!(!noted().may_come_as(FILE, OTHER_THREAD, now + INSTALLED_WITHIN, runs));
        let mut answers = noted();
        answers.note(FILE, THREAD, Doing::Unknown, now);
        assert!(
            answers.may_come_as(FILE, OTHER_THREAD, now, |_| waits("202")),
            "it is not known that this is another call"
        );
        answers.note(FILE, 0, Doing::Unknown, now);
        assert!(answers.may_come_as(FILE, 0, now, |_| Doing::Gone), "nothing is known of threads of other namespaces");
    }

    #[test]
    fn more_answers_than_are_noted_make_every_file_one_of_them_for_a_while() {
        let now = Instant::now();
        let mut answers = UninstalledAnswers::default();
        for number in 0..=NOTES_MAX as u64 {
            answers.note(Ino(number), THREAD, waits("90"), now);
            assert!(answers.notes.len() <= NOTES_MAX);
        }
        assert!(answers.may_come_as(Ino(0), OTHER_THREAD, now, |_| Doing::Gone));
        assert!(!answers.may_come_as(Ino(0), OTHER_THREAD, now + INSTALLED_WITHIN, |_| Doing::Gone));
        let mut old = UninstalledAnswers::default();
        for number in 0..10 * NOTES_MAX as u64 {
            // Three minutes for as many as are kept.
            old.note(Ino(number), THREAD, waits("90"), now + Duration::from_millis(number * 180));
        }
        assert!(old.notes.len() <= NOTES_MAX && old.overflowed.is_none());
    }
}
