//! Facts on a directory that decide whether the kernel may answer listings from its copy of the names (docs/design/0043).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Facts that are known since a directory came into memory.
#[derive(Debug, Default)]
pub struct DirectoryListings {
    is_outdated: AtomicBool,
    /// When it was last listed, on the volume's clock in milliseconds; 0 before.
    listed_ms: AtomicU64,
}

impl DirectoryListings {
    /// The directory got another parent, which its listings show as `..`, or a change of its names may have been made although it failed.
    pub fn outdate(&self) {
        self.is_outdated.store(true, Ordering::Release);
    }

    /// Whether it was outdated since the last call of [`Self::take_outdated`].
    pub fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Acquire)
    }

    /// As [`Self::is_outdated`], once.
    pub fn take_outdated(&self) -> bool {
        self.is_outdated() && self.is_outdated.swap(false, Ordering::AcqRel)
    }

    /// It is listed from its beginning on.
    pub fn note_listed(&self, now_ms: u64) {
        self.listed_ms.store(now_ms.max(1), Ordering::Relaxed);
    }

    /// When it was last listed from its beginning on; `None` where that is not known.
    pub fn listed_ms(&self) -> Option<u64> {
        Some(self.listed_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }
}
