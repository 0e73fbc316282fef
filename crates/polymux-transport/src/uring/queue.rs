//! The worker of one queue.
//!
//! What is true here:
//! * The worker owns the ring and the entries, and nobody else does anything with them.
//! * It sleeps in one place, where it waits for completions: of an entry that holds a request, or of its bell.
//! * An entry that the kernel refuses is dead. A worker ends when all of its entries are, which is when the connection closes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use polymux_types::Errno;
use rustix::thread::CpuSet;

use super::command;
use super::entry::EntryMemory;
use super::mailbox::{Answer, Body, Mailbox, RingReply};
use crate::classic::{Worker, spawn_worker};
use crate::connection::{Connection, Patience};
use crate::counters::ThreadCounters;
use crate::pool::Job;
use crate::reply::Reply;
use crate::wire::{Request, RingHeaders};

/// What a queue is to be.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) number: u16,
    pub(super) depth: usize,
    pub(super) payload_length: usize,
}

/// What the completion of the bell is known by; entries are known by their numbers.
const BELL: u64 = u64::MAX;

/// Starts the worker of a queue, which says over `ready` whether the kernel took its entries.
pub(super) fn start(connection: &Arc<Connection>, plan: Plan, ready: Sender<io::Result<()>>) -> io::Result<Worker> {
    let name = format!("fuse-ring-{}", plan.number);
    spawn_worker(&name, connection, move |connection| match Queue::new(connection, plan) {
        Ok(mut queue) => {
            // Nobody listens any more where another queue failed first.
            let _ = ready.send(Ok(()));
            queue.serve()
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            Ok(())
        }
    })
}

fn build_ring(size: u32) -> io::Result<IoUring<Entry128>> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(size)
}

/// Whether there can be rings at all.
pub(super) fn try_ring() -> io::Result<()> {
    build_ring(1).map(drop)
}

/// Makes the kernel do without `io_uring`: it does when a registration is refused.
pub(super) fn give_up(connection: &Connection) -> io::Result<()> {
    let mut ring = build_ring(1)?;
    let command = command::broken_registration(connection.device.as_fd());
    // SAFETY: the command refers to no memory, and the descriptor is open until it completed.
    unsafe { ring.submission().push(&command) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    Ok(())
}

struct Queue<'a> {
    connection: &'a Connection,
    number: u16,
    mailbox: Arc<Mailbox>,
    counters: Arc<ThreadCounters>,
    /// Entries that are not dead.
    living: usize,
    ring: IoUring<Entry128>,
    entries: Vec<Arc<EntryMemory>>,
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        // The kernel may still have some of them, and nobody knows for how long.
        if self.living > 0 {
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

impl<'a> Queue<'a> {
    fn new(connection: &'a Connection, plan: Plan) -> io::Result<Self> {
        // A processor that is not there now gets requests when it is, and its worker runs elsewhere until then.
        let mut place = CpuSet::new();
        place.set(usize::from(plan.number));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &place) {
            log::debug!("the worker of queue {} runs anywhere: {error}", plan.number);
        }
        let size = u32::try_from(plan.depth + 1).expect("a queue is short").next_power_of_two();
        let ring = build_ring(size)?;
        let memory = |_| EntryMemory::new(plan.payload_length).map(Arc::new);
        let entries = (0..plan.depth).map(memory).collect::<io::Result<_>>()?;
        let mut queue = Self {
            connection,
            number: plan.number,
            mailbox: Arc::new(Mailbox::new()?),
            counters: connection.state.messages.for_thread(),
            living: plan.depth,
            ring,
            entries,
        };
        queue.listen_to_bell();
        for entry in 0..plan.depth {
            let parts = queue.entries[entry].parts();
            let register = command::register(connection.device.as_fd(), plan.number, parts);
            queue.push(&register.user_data(entry as u64));
        }
        queue.ring.submit()?;
        // A refusal completes at once, and an entry that was taken completes with its first request.
        let refused: Vec<i32> =
            queue.completions().into_iter().map(|(_, result)| result).filter(|result| *result < 0).collect();
        match refused.first() {
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Ok(queue),
        }
    }

    /// Puts a command where the next call submits it; where there is no room, it is submitted at once.
    fn push(&mut self, command: &Entry128) {
        loop {
            // SAFETY: what the command refers to lives as long as the kernel may use it: entries are let go only when they
            // are dead, and the descriptors belong to the connection and to the mailbox.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return;
            }
            if let Err(error) = self.ring.submit() {
                log::error!("commands of queue {} wait: {error}", self.number);
            }
        }
    }

    fn listen_to_bell(&mut self) {
        let bell = types::Fd(self.mailbox.bell().as_raw_fd());
        let events = u32::try_from(libc::POLLIN).expect("a small number");
        let poll = opcode::PollAdd::new(bell, events).build();
        self.push(&Entry128::from(poll).user_data(BELL));
    }

    fn completions(&mut self) -> Vec<(u64, i32)> {
        self.ring.completion().map(|one: cqueue::Entry| (one.user_data(), one.result())).collect()
    }

    fn serve(&mut self) -> io::Result<()> {
        while self.living > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            for (user_data, result) in self.completions() {
                if user_data == BELL {
                    self.mailbox.silence();
                    self.listen_to_bell();
                } else {
                    self.complete(usize::try_from(user_data).expect("the number of an entry"), result);
                }
                self.commit_answers();
            }
        }
        Ok(())
    }

    /// Sees to an entry that the kernel gave back.
    fn complete(&mut self, entry: usize, result: i32) {
        if result < 0 {
            self.living -= 1;
            // All of these say that the connection is being closed.
            if !matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV) {
                log::error!("queue {} lost an entry: {}", self.number, io::Error::from_raw_os_error(-result));
            }
            return;
        }
        // SAFETY: the entry came back and holds a request; its answer is not there yet.
        let headers = unsafe { self.entries[entry].headers() };
        // SAFETY: the same; answers are written by `commit_answers` alone, after this slice is gone.
        let payload = unsafe { self.entries[entry].payload(headers.payload_length) };
        // Where nothing of the memory is lent, an answer may be put there at once.
        let memory = (headers.payload_length == 0).then(|| self.entries[entry].clone());
        let ring = RingReply { mailbox: self.mailbox.clone(), entry, commit_id: headers.commit_id, memory };
        let parsed =
            Request::from_parts(&headers.header, &headers.structure, payload, self.connection.agreement.form());
        let request = match parsed {
            Ok(request) => request,
            Err(malformed) => {
                log::error!("{malformed}");
                // What the answer is recognized by is the number of the commit; the other is in the header.
                return ring.send(headers.commit_id, Err(Errno::EIO), &[]);
            }
        };
        self.counters.count(request.header.opcode);
        let reply = Reply::through_ring(request.header.unique, ring);
        if let Some(reply) = self.connection.dispatch(&request, reply, Patience::AtOnce) {
            let job = Job::copy(&headers.header, &headers.structure, payload, reply);
            if let Err(job) = self.connection.pool.hand_over(job) {
                job.carry_out(self.connection);
            }
        }
    }

    /// Gives entries back to the kernel whose requests were answered.
    fn commit_answers(&mut self) {
        for Answer { entry, commit_id, unique, outcome, body } in self.mailbox.take() {
            let memory = &self.entries[entry];
            let length = match &body {
                Body::InPlace(length) => Some(*length),
                // SAFETY: the entry holds the request that this is the answer to, and there is one answer to each, so that it
                // is not in the kernel's hands; what was lent of its memory is not there any more.
                Body::Bytes(bytes) => unsafe { memory.put_body(bytes) },
            };
            let outcome = if length.is_some() { outcome } else { Err(Errno::EIO) };
            let headers = RingHeaders::answer(commit_id, unique, outcome, length.unwrap_or(0));
            // SAFETY: the same.
            unsafe { memory.put_headers(&headers) };
            let commit = command::commit(self.connection.device.as_fd(), self.number, commit_id);
            self.push(&commit.user_data(entry as u64));
        }
    }
}
