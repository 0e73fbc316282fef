//! Facts on a directory that decide whether the kernel may answer listings from its copy of the names (docs/design/0043).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What happened to a directory since it came into memory.
#[derive(Debug, Default)]
pub struct DirectoryListings {
    /// It got another parent since it was last opened.
    was_moved: AtomicBool,
    /// When it was last listed, on the volume's clock in milliseconds.
    listed_ms: AtomicU64,
}

impl DirectoryListings {
    /// The directory got another parent, which its listings show as `..`.
    pub fn note_moved(&self) {
        self.was_moved.store(true, Ordering::Release);
    }

    /// Whether it got another parent since the last call of [`Self::take_moved`].
    pub fn was_moved(&self) -> bool {
        self.was_moved.load(Ordering::Acquire)
    }

    /// As [`Self::was_moved`], once.
    pub fn take_moved(&self) -> bool {
        self.was_moved() && self.was_moved.swap(false, Ordering::AcqRel)
    }

    /// It is listed from its beginning on.
    pub fn note_listed(&self, now_ms: u64) {
        self.listed_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When it was last listed from its beginning on; 0 where that is not known.
    pub fn listed_ms(&self) -> u64 {
        self.listed_ms.load(Ordering::Relaxed)
    }
}
