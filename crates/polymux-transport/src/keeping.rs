//! A connection that outlives the process that serves it.
//!
//! The kernel ends the requests that were read through a descriptor when the last copy of that descriptor is closed, and the connection
//! with the last descriptor of all. Another process, the [`Keeper`], has a copy of each, so that after the death of this one both are
//! there: the next process serves the connection through the same descriptors, and asks for the requests that were not answered
//! (`FUSE_NOTIFY_RESEND`, Linux 6.9).
//!
//! Invariants:
//! * No request is read through a descriptor that the keeper does not have yet.
//! * A notification can wait in the kernel, and cannot be killed there, until requests are answered that this process has to serve. A
//!   process with such a thread never ends completely and holds its locks. So the keeper carries notifications out, and this process waits
//!   for its word.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;

/// The process that keeps a connection.
pub trait Keeper: Send + Sync + Debug {
    /// Gives it a copy of a descriptor of the connection; returns once it has it.
    ///
    /// # Errors
    /// The keeper is gone (`BrokenPipe`), or cannot take it.
    fn keep(&self, device: BorrowedFd<'_>) -> io::Result<()>;

    /// Has it write a notification to the connection; returns when the kernel has carried it out.
    ///
    /// # Errors
    /// Those of the kernel; or the keeper is gone (`BrokenPipe`).
    fn notify(&self, notification: &[u8]) -> io::Result<()>;
}

/// The keeper of a connection, and the descriptors that it got from an earlier server.
#[derive(Debug)]
pub struct Keeping {
    keeper: Arc<dyn Keeper>,
    /// Descriptors of an earlier process that none of this one uses yet.
    spare: Mutex<Vec<OwnedFd>>,
}

impl Keeping {
    /// A connection whose keeper has these descriptors beside the one that it was mounted with.
    #[must_use]
    pub fn new(keeper: Arc<dyn Keeper>, spare: Vec<OwnedFd>) -> Self {
        Self { keeper, spare: Mutex::new(spare) }
    }

    /// The process that carries out notifications.
    #[must_use]
    pub fn keeper(&self) -> Arc<dyn Keeper> {
        Arc::clone(&self.keeper)
    }

    /// A descriptor with a queue of answers of its own that the keeper has as well.
    ///
    /// # Errors
    /// As [`Device::clone_queue`] and [`Keeper::keep`].
    pub(crate) fn own_queue(&self, device: &Device) -> io::Result<Device> {
        if let Some(spare) = self.spare.lock().pop() {
            return Ok(Device::from(spare));
        }
        let queue = device.clone_queue()?;
        self.keeper.keep(queue.as_fd())?;
        Ok(queue)
    }
}
