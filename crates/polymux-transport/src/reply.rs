//! What is owed for a request.
//!
//! What is true here: a request is answered exactly once. Whoever holds its [`Reply`] owes the answer; one that is dropped
//! answers `EIO`, because the program that asked would otherwise wait for ever.

use std::sync::Arc;

use polymux_types::Errno;

use crate::device::Device;

/// The answer that a request is still owed. Small, and may be given by any thread.
#[derive(Debug)]
pub struct Reply {
    unique: u64,
    target: Option<Arc<Device>>,
}

impl Reply {
    pub(crate) fn new(unique: u64, device: Arc<Device>) -> Self {
        Self { unique, target: Some(device) }
    }

    /// The operation failed.
    pub fn error(mut self, errno: Errno) {
        self.send(Err(errno), &[]);
    }

    /// The operation succeeded, and there is nothing to say.
    pub fn ok(mut self) {
        self.send(Ok(()), &[]);
    }

    /// The operation succeeded.
    pub fn body(mut self, body: &[u8]) {
        self.send(Ok(()), body);
    }

    /// Either, without a body.
    pub fn outcome(self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => self.ok(),
            Err(errno) => self.error(errno),
        }
    }

    fn send(&mut self, outcome: Result<(), Errno>, body: &[u8]) {
        if let Some(device) = self.target.take() {
            device.answer(self.unique, outcome, body);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Err(Errno::EIO), &[]);
    }
}
