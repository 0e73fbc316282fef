//! Makes the kernel do without `io_uring`.
//!
//! A kernel that agreed on it holds up all requests until the queues are registered, or until a registration is refused.
//! The ring for such a registration is built before the queues, because resources that they could not get would be missing
//! for it, too.

use std::io;
use std::os::fd::AsFd;
use std::thread;

use io_uring::IoUring;
use io_uring::squeue::Entry128;

use super::command;
use super::queue::{ATTEMPTS_MAX, RETRY_PAUSE, build_ring, passes};
use crate::connection::Connection;

/// The way back from a start that does not succeed.
pub(super) struct WayBack(IoUring<Entry128>);

impl WayBack {
    pub(super) fn new() -> io::Result<Self> {
        build_ring(1).map(Self)
    }

    /// Makes the kernel go on without queues. It has not switched to them.
    pub(super) fn take(mut self, connection: &Connection) -> io::Result<()> {
        let command = command::broken_registration(connection.device.as_fd());
        // SAFETY: the command refers to no memory, and the descriptor is open until it completed.
        unsafe { self.0.submission().push(&command) }.map_err(io::Error::other)?;
        let mut attempts = 0;
        loop {
            match self.0.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(error) if passes(&error) && attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    thread::sleep(RETRY_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
