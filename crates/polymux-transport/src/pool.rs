//! Threads that carry out requests that would block a worker of a ring.
//!
//! Invariants:
//! * A job has a copy of its request: the memory it came in may be given back to the kernel before the job ends, if another
//!   thread answers first.
//! * Jobs wait for a thread in the order in which they came; threads can be added at any time, and end with the pool.
//! * Of threads that rest, the one that came last is woken: its caches are warm. A condition that all wait for would wake them in
//!   turn.
//! * A closed pool takes no jobs: its threads may be gone, and the jobs would never be carried out.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::classic::{Worker, spawn_worker};
use crate::connection::Connection;
use crate::reply::Reply;
use crate::wire::{HEADER_LENGTH, Request};

/// A request that is carried out by another thread than its worker.
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

    pub(crate) fn carry_out(self, connection: &Connection) {
        let form = connection.agreement.form();
        let request = Request::from_parts(&self.header, &self.structure, &self.payload, form);
        let request = request.expect("it was read before it was handed over");
        connection.serve(&request, self.reply);
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Condition variables of the idle threads; the thread that became idle last is at the end.
    resting: Vec<Arc<Condvar>>,
    is_closed: bool,
}

/// Jobs that wait for a thread.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Waiting>);

impl Pool {
    /// Gives a job to the pool. One that is closed gives it back, and the calling thread has to carry it out.
    pub(crate) fn hand_over(&self, job: Job) -> Result<(), Box<Job>> {
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return Err(Box::new(job));
        }
        waiting.jobs.push_back(job);
        let woken = waiting.resting.pop();
        drop(waiting);
        if let Some(woken) = woken {
            woken.notify_one();
        }
        Ok(())
    }

    /// Lets all threads end once nothing waits any more.
    pub(crate) fn close(&self) {
        let resting = {
            let mut waiting = self.0.lock();
            waiting.is_closed = true;
            std::mem::take(&mut waiting.resting)
        };
        for woken in resting {
            woken.notify_one();
        }
    }

    /// The next job, for a thread that waits for `woken`; `None` once the pool is closed.
    fn next(&self, woken: &Arc<Condvar>) -> Option<Job> {
        let mut waiting = self.0.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.is_closed {
                return None;
            }
            waiting.resting.push(Arc::clone(woken));
            woken.wait(&mut waiting);
            // After a spurious wakeup, the thread is still listed.
            waiting.resting.retain(|other| !Arc::ptr_eq(other, woken));
        }
    }
}

/// Closes the pool when the thread that holds it ends, in whichever way.
pub(crate) struct ClosesPool<'a>(pub(crate) &'a Pool);

impl Drop for ClosesPool<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts one more thread of a connection's pool.
pub(crate) fn start(connection: &Arc<Connection>) -> io::Result<Worker> {
    spawn_worker("fuse-pool", connection, |connection| {
        let woken = Arc::default();
        while let Some(job) = connection.pool.next(&woken) {
            job.carry_out(connection);
        }
        Ok(())
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use polymux_types::Errno;

    use super::*;
    use crate::connection::{Patience, Service};
    use crate::device::Device;
    use crate::negotiation::Agreement;
    use crate::wire::{Capabilities, Header, Opcode};

    /// Answers everything with an error that nothing else here answers with.
    struct Refusing;

    impl Service for Refusing {
        fn serve(&self, _: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
            assert_eq!(patience, Patience::MayWait, "a job is carried out by somebody who may wait");
            reply.error(Errno::ESTALE);
            None
        }

        fn forget(&self, _: u64, _: u64) {}
    }

    /// A connection whose kernel is a socket.
    pub(crate) fn connection() -> (UnixDatagram, Connection) {
        let (kernel, program) = UnixDatagram::pair().unwrap();
        kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let agreement =
            Agreement { kernel_version: (7, 45), capabilities: Capabilities::NONE, write_max: 4096, pages_max: 1 };
        (kernel, Connection::new(Arc::new(Device::from(OwnedFd::from(program))), agreement, Refusing))
    }

    #[expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]
    fn statfs(connection: &Connection, unique: u64) -> Job {
        let mut header = [0; HEADER_LENGTH];
        header[..4].copy_from_slice(&u32::try_from(HEADER_LENGTH).unwrap().to_ne_bytes());
        header[4..8].copy_from_slice(&Opcode::StatFs.number().to_ne_bytes());
        header[8..16].copy_from_slice(&unique.to_ne_bytes());
        let reply = Reply::to_device(&Header::parse(&header).unwrap(), connection.device.clone());
        Job::copy(&header, &[], &[], reply)
    }

    #[expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]
    fn answered(kernel: &UnixDatagram) -> (i32, u64) {
        let mut answer = [0; 64];
        assert_eq!(kernel.recv(&mut answer).unwrap(), 16);
        (i32::from_ne_bytes(answer[4..8].try_into().unwrap()), u64::from_ne_bytes(answer[8..16].try_into().unwrap()))
    }

    #[test]
    fn a_job_for_a_pool_that_is_closed_is_carried_out_by_whoever_has_it() {
        let (kernel, connection) = connection();
        assert!(connection.pool.hand_over(statfs(&connection, 7)).is_ok());
        drop(ClosesPool(&connection.pool));
        let given_back = connection.pool.hand_over(statfs(&connection, 9)).expect_err("it takes no more");
        given_back.carry_out(&connection);
        assert_eq!(answered(&kernel), (-libc::ESTALE, 9));
        // Jobs queued before the close are still carried out, and then the threads end.
        connection.pool.next(&Arc::default()).expect("it waits").carry_out(&connection);
        assert_eq!(answered(&kernel), (-libc::ESTALE, 7));
        assert!(connection.pool.next(&Arc::default()).is_none());
    }
}
