//! Directories that are open for listing, and where each listing ends.
//!
//! Invariant: positions in a directory rise with each name that is made, and a name that is renamed within its
//! directory or replaced keeps its position. So a listing that ends at the position that was next when it began shows each
//! name that was there all the time exactly once, and comes to its end whatever is made meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_types::sync::Mutex;

/// Open directories by the handle that the kernel has of them.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// The last handle that was given out; the first one is 1.
    last: AtomicU64,
    /// The cookie at which the listing through a handle ends.
    ends: Mutex<HashMap<u64, u64>>,
}

impl Listings {
    /// Handles begin above this one: those up to it may have been given out by an earlier daemon.
    pub(crate) fn beginning_after(last: u64) -> Self {
        Self { last: AtomicU64::new(last), ..Self::default() }
    }

    /// Begins a listing that ends at a cookie; returns its handle.
    pub(crate) fn open(&self, end: u64) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.ends.lock().insert(handle, end);
        handle
    }

    /// The listing begins anew.
    pub(crate) fn rewind(&self, handle: u64, end: u64) {
        if let Some(of_handle) = self.ends.lock().get_mut(&handle) {
            *of_handle = end;
        }
    }

    /// Where the listing ends; nowhere for a handle that was not given out.
    pub(crate) fn end(&self, handle: u64) -> u64 {
        self.ends.lock().get(&handle).copied().unwrap_or(u64::MAX)
    }

    /// The directory was closed.
    pub(crate) fn close(&self, handle: u64) {
        self.ends.lock().remove(&handle);
    }
}
