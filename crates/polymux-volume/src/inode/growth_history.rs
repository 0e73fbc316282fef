//! Whether a file was only overwritten while it was last open for changes (docs/design/0026).
//!
//! Invariants:
//! * A file is steady once a description that changed it was closed and its size did not grow meanwhile. Growth ends that at once,
//!   and the next such description can earn it again.
//! * It is known in memory only: an unknown history is taken for growth.

use std::sync::atomic::{AtomicBool, Ordering};

/// How the size of a file changed while it was open for changes.
#[derive(Debug, Default)]
pub struct GrowthHistory {
    /// It grew since a description for changes was closed.
    grew: AtomicBool,
    /// Bytes inside it were overwritten since.
    overwritten: AtomicBool,
    is_steady: AtomicBool,
}

impl GrowthHistory {
    /// The file became longer, or begins anew.
    pub fn note_growth(&self) {
        // Most writes find it noted already.
        if !self.grew.load(Ordering::Relaxed) {
            self.grew.store(true, Ordering::Release);
        }
    }

    /// Bytes inside the file were written.
    pub fn note_overwrite(&self) {
        if !self.overwritten.load(Ordering::Relaxed) {
            self.overwritten.store(true, Ordering::Release);
        }
    }

    /// A description for changes was closed, and all that it did was noted.
    pub fn end_of_description(&self) {
        let overwritten = self.overwritten.swap(false, Ordering::AcqRel);
        if self.grew.swap(false, Ordering::AcqRel) {
            self.is_steady.store(false, Ordering::Release);
        } else if overwritten {
            self.is_steady.store(true, Ordering::Release);
        }
    }

    /// Whether the file was only overwritten, as far as is known.
    pub fn is_steady(&self) -> bool {
        self.is_steady.load(Ordering::Acquire) && !self.grows()
    }

    /// Whether it was made longer since a description for changes was closed.
    pub fn grows(&self) -> bool {
        self.grew.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_steady_after_a_description_that_only_overwrote_it_and_until_it_grows() {
        let history = GrowthHistory::default();
        history.end_of_description();
        assert!(!history.is_steady(), "nothing was seen of it");
        history.note_overwrite();
        assert!(!history.is_steady(), "the description is still open");
        history.end_of_description();
        assert!(history.is_steady());
        history.end_of_description();
        assert!(history.is_steady(), "a description that changed nothing says nothing");
        history.note_growth();
        assert!(!history.is_steady(), "at once");
        history.note_overwrite();
        history.end_of_description();
        assert!(!history.is_steady(), "it grew while it was open");
        history.note_overwrite();
        history.end_of_description();
        assert!(history.is_steady());
    }
}
