//! Answers on their way to the worker of a queue.
//!
//! Invariant: only the worker gives entries back to the kernel. An answer of its own waits in the mailbox until the
//! operation has returned; one of another thread also wakes it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;
use polymux_types::Errno;
use rustix::event::EventfdFlags;

use super::entry::EntryMemory;
use crate::wire::one_ring;

/// An answer to the request that an entry holds.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) entry: usize,
    pub(super) commit_id: u64,
    pub(super) unique: u64,
    pub(super) outcome: Result<(), Errno>,
    pub(super) body: Body,
}

/// Where the body of an answer is.
#[derive(Debug)]
pub(super) enum Body {
    /// In the memory of the entry already, with this length.
    InPlace(usize),
    /// Here, because names or data of the request may still be in use.
    Bytes(Vec<u8>),
}

/// Where answers wait for the worker of a queue.
#[derive(Debug)]
pub(super) struct Mailbox {
    answers: Mutex<Vec<Answer>>,
    bell: OwnedFd,
    worker: ThreadId,
}

impl Mailbox {
    /// One of the calling thread.
    pub(super) fn new() -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { answers: Mutex::default(), bell, worker: std::thread::current().id() })
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn put(&self, answer: Answer) {
        self.answers.lock().push(answer);
        if std::thread::current().id() != self.worker
            && let Err(error) = rustix::io::write(&self.bell, &one_ring())
        {
            log::error!("a worker of the FUSE transport cannot be woken: {error}");
        }
    }

    /// Rearms the bell for the next message.
    pub(super) fn silence(&self) {
        // The read fails if the bell was silenced already.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    pub(super) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut self.answers.lock())
    }
}

/// The answer that is owed to the kernel for the request in an entry.
pub(crate) struct RingReply {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) entry: usize,
    pub(super) commit_id: u64,
    /// The memory of the entry, if the request borrows none of it.
    pub(super) memory: Option<Arc<EntryMemory>>,
}

impl std::fmt::Debug for RingReply {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "RingReply(entry {}, commit {})", self.entry, self.commit_id)
    }
}

impl RingReply {
    pub(crate) fn send(self, unique: u64, outcome: Result<(), Errno>, body: &[u8]) {
        let Self { mailbox, entry, commit_id, memory } = self;
        let (outcome, body) = match memory {
            // SAFETY: the request is answered here and now, once, so that its entry is not in the kernel's hands; nothing of
            // its payload was borrowed.
            Some(memory) => match unsafe { memory.put_body(body) } {
                Some(length) => (outcome, Body::InPlace(length)),
                None => (Err(Errno::EIO), Body::InPlace(0)),
            },
            None => (outcome, Body::Bytes(body.to_vec())),
        };
        mailbox.put(Answer { entry, commit_id, unique, outcome, body });
    }
}
