//! Closes connections that may have descriptors of strangers in them: the last close of one may wait for hours.
//!
//! Invariant: connections with a permit are closed by a thread that has the permit. Those without one share a few threads; where all of them wait, no further
//! connection is accepted.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::CLOSERS_MAX;

/// Threads that close connections without a permit.
#[derive(Clone, Default)]
pub struct Closers(Arc<AtomicUsize>);

impl Closers {
    /// Whether another connection could be closed.
    pub fn are_left(&self) -> bool {
        self.0.load(Ordering::Acquire) < CLOSERS_MAX
    }

    /// Closes a connection some time.
    pub fn close(&self, connection: OwnedFd) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let closers = self.clone();
        spawn(move || {
            drop(connection);
            closers.0.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// Runs a close in a thread of its own; where there is none left, here.
pub fn spawn(close: impl FnOnce() + Send + 'static) {
    // A closure that is not run is dropped, and with it the connection.
    let _ = std::thread::Builder::new().name("leases-close".to_owned()).spawn(close);
}
