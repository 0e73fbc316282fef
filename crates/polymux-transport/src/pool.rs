//! Threads that carry out what would hold up a worker of a ring.
//!
//! What is true here:
//! * A job has a copy of its request: the memory it came in may be given back to the kernel before the job ends, where
//!   somebody else answers.
//! * Jobs wait for a thread in the order in which they came; threads can be added at any time, and end with the pool.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::classic::{Worker, spawn_worker};
use crate::connection::{Connection, Patience};
use crate::reply::Reply;
use crate::wire::{HEADER_LENGTH, Request};

/// A request that somebody else than its worker carries out.
pub(crate) struct Job {
    header: [u8; HEADER_LENGTH],
    structure: Vec<u8>,
    payload: Vec<u8>,
    reply: Reply,
}

impl Job {
    pub(crate) fn copy(header: &[u8; HEADER_LENGTH], structure: &[u8], payload: &[u8], reply: Reply) -> Self {
        Self { header: *header, structure: structure.to_vec(), payload: payload.to_vec(), reply }
    }

    fn carry_out(self, connection: &Connection) {
        let form = connection.agreement.form();
        let request = Request::from_parts(&self.header, &self.structure, &self.payload, form);
        let request = request.expect("it was read before it was handed over");
        let left = connection.dispatch(&request, self.reply, Patience::MayWait);
        assert!(left.is_none(), "whoever may wait answers");
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// Jobs that wait for a thread.
#[derive(Default)]
pub(crate) struct Pool {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Pool {
    pub(crate) fn hand_over(&self, job: Job) {
        self.waiting.lock().jobs.push_back(job);
        self.changed.notify_one();
    }

    /// Lets all threads end once nothing waits any more.
    pub(crate) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.is_closed {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }
}

/// Starts one more thread of a connection's pool.
pub(crate) fn start(connection: &Arc<Connection>) -> io::Result<Worker> {
    spawn_worker("fuse-pool", connection, |connection| {
        while let Some(job) = connection.pool.next() {
            job.carry_out(connection);
        }
        Ok(())
    })
}
