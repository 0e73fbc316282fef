//! The answer that is owed for a request.
//!
//! Invariant: a request is answered exactly once. The holder of its [`Reply`] owes the answer; one that is dropped answers
//! `EIO`, because the program that asked would otherwise wait for ever.

use std::sync::Arc;

use polymux_types::Errno;

use crate::device::Device;
use crate::planted_death::{Moment, may_die};
use crate::uring::RingReply;
use crate::wire::Header;

/// Where an answer goes.
#[derive(Debug)]
enum Target {
    Device(Arc<Device>),
    Ring(RingReply),
}

/// The answer that a request is still owed. Small, and may be given by any thread.
#[derive(Debug)]
pub struct Reply {
    unique: u64,
    /// Number of the kind of request.
    opcode: u32,
    target: Option<Target>,
}

impl Reply {
    pub(crate) fn to_device(header: &Header, device: Arc<Device>) -> Self {
        Self { unique: header.unique, opcode: header.opcode, target: Some(Target::Device(device)) }
    }

    pub(crate) fn through_ring(header: &Header, ring: RingReply) -> Self {
        Self { unique: header.unique, opcode: header.opcode, target: Some(Target::Ring(ring)) }
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

    /// Either, with a body where it succeeded.
    pub fn result(self, outcome: Result<impl AsRef<[u8]>, Errno>) {
        match outcome {
            Ok(body) => self.body(body.as_ref()),
            Err(errno) => self.error(errno),
        }
    }

    /// It was a request that has no answer.
    pub(crate) fn not_owed(mut self) {
        self.target = None;
    }

    fn send(&mut self, outcome: Result<(), Errno>, body: &[u8]) {
        let target = self.target.take();
        if target.is_some() {
            may_die(self.opcode, Moment::Answer);
        }
        match target {
            Some(Target::Device(device)) => device.answer(self.unique, outcome, body),
            Some(Target::Ring(ring)) => ring.send(self.unique, outcome, body),
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Err(Errno::EIO), &[]);
    }
}
