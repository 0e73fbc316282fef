//! Requests that wait for their turn without a thread: those of users whose other requests hold up as many threads as one user may.
//!
//! Invariants:
//! * A request is put off only before anything of it was carried out, on a thread that may wait.
//! * Requests of one user go on in the order in which they were put off, each on a thread of its own, and are not put off again.
//! * Those that are left when the connection ends are answered with `EIO`, to a kernel that does not wait for them any more.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::classic::{Worker, spawn_worker};
use crate::connection::Connection;
use crate::pool::Job;

/// Requests that were put off, with their users.
#[derive(Default)]
pub(crate) struct PutOff {
    jobs: Mutex<VecDeque<(u32, Job)>>,
    /// As many as wait.
    count: AtomicUsize,
    /// Threads of those that go on.
    threads: Mutex<Vec<Worker>>,
}

impl PutOff {
    pub(crate) fn add(&self, user: u32, job: Job) {
        let mut jobs = self.jobs.lock();
        jobs.push_back((user, job));
        self.count.store(jobs.len(), Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The users of the requests that wait.
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        if self.is_empty() { BTreeSet::new() } else { self.jobs.lock().iter().map(|(user, _)| *user).collect() }
    }

    fn take(&self, of: u32) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        let place = jobs.iter().position(|(user, _)| *user == of)?;
        let job = jobs.remove(place).map(|(_, job)| job);
        self.count.store(jobs.len(), Ordering::Release);
        job
    }

    /// Carries out up to `count` requests of a user.
    pub(crate) fn resume(&self, connection: &Arc<Connection>, user: u32, count: usize) -> io::Result<()> {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        for _ in 0..count {
            let Some(job) = self.take(user) else { break };
            // Where no thread starts, the job is dropped, which answers the request.
            threads.push(spawn_worker("fuse-late", connection, move |connection| {
                job.carry_out(connection);
                Ok(())
            })?);
        }
        Ok(())
    }

    /// The threads that may still be at work.
    pub(crate) fn take_threads(&self) -> Vec<Worker> {
        std::mem::take(&mut *self.threads.lock())
    }

    /// Answers all that wait.
    pub(crate) fn end(&self) {
        self.jobs.lock().clear();
        self.count.store(0, Ordering::Release);
    }
}
