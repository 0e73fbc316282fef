//! The worker of one queue.
//!
//! Invariants:
//! * The worker owns the ring and the entries, and no other thread uses them.
//! * It sleeps in one place, where it waits for completions: of an entry that holds a request, or of its bell.
//! * An entry that the kernel refuses at once makes the queue shorter; one that it loses later is dead. A worker ends when all
//!   of its entries are, which is when the connection closes; at any other time that is a failure.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use polymux_types::Errno;
use rustix::thread::CpuSet;

use super::Decision;
use super::command;
use super::entry::EntryMemory;
use super::mailbox::{Answer, Body, Mailbox, RingReply};
use super::standing::{Growth, Standing};
use crate::classic::{Worker, closes, spawn_worker};
use crate::connection::{Connection, Patience};
use crate::counters::ThreadCounters;
use crate::pool::Job;
use crate::reply::Reply;
use crate::wire::{Request, RingHeaders};

/// Parameters of a queue.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) number: u16,
    /// Entries that it begins with.
    pub(super) depth: usize,
    pub(super) payload_length: usize,
    /// The processors that this process may run on.
    pub(super) allowed: CpuSet,
    /// Memory by which all queues together may grow.
    pub(super) growth: Arc<Growth>,
    /// Whether there are to be queues.
    pub(super) decision: Arc<OnceLock<Decision>>,
}

/// A queue whose worker has been started. It registers when it gets its turn, and ends if its turn never comes.
pub(super) struct Starting {
    pub(super) worker: Worker,
    go: Sender<Turn>,
}

/// Result of the registration of a queue for the start.
enum Turn {
    /// Others follow.
    NotLast,
    /// The kernel switches to the queues.
    Last,
}

impl Starting {
    /// Lets it register, with others to follow.
    pub(super) fn register(&self) {
        // A worker that ended has said why.
        let _ = self.go.send(Turn::NotLast);
    }

    /// Lets it register as the last of all.
    pub(super) fn register_last(&self) {
        let _ = self.go.send(Turn::Last);
    }
}

/// User data of the completion of the bell; entries are identified by their numbers.
const BELL: u64 = u64::MAX;

/// Time until an operation that failed temporarily is tried again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Attempts to submit an operation that the start waits for.
pub(super) const ATTEMPTS_MAX: usize = 1000;

/// Starts the worker of a queue. It reports over `ready` that its memory is allocated and, after its turn to register has
/// come, whether the kernel took its first entry.
pub(super) fn start(connection: &Arc<Connection>, plan: Plan, ready: Sender<io::Result<()>>) -> io::Result<Starting> {
    let name = format!("fuse-ring-{}", plan.number);
    let (go, turn) = channel();
    let worker = spawn_worker(&name, connection, move |connection| match prepare(connection, &plan, &ready, &turn) {
        Some(mut queue) => {
            drop(ready);
            queue.fill();
            queue.serve()
        }
        None => Ok(()),
    })?;
    Ok(Starting { worker, go })
}

/// The steps of a start; `None` where it was given up. The receiver of `ready` is gone where another queue failed first.
fn prepare<'a>(
    connection: &'a Connection,
    plan: &Plan,
    ready: &Sender<io::Result<()>>,
    turn: &Receiver<Turn>,
) -> Option<Queue<'a>> {
    let mut queue = match Queue::new(connection, plan) {
        Ok(queue) => queue,
        Err(error) => {
            let _ = ready.send(Err(error));
            return None;
        }
    };
    let _ = ready.send(Ok(()));
    let may_register = match turn.recv().ok()? {
        Turn::NotLast => plan.decision.get().is_none(),
        Turn::Last => plan.decision.set(Decision::Rings).is_ok(),
    };
    if !may_register {
        return None;
    }
    let outcome = queue.register(1);
    let is_registered = outcome.is_ok();
    let _ = ready.send(outcome);
    is_registered.then_some(queue)
}

pub(super) fn build_ring(size: u32) -> io::Result<IoUring<Entry128>> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(size)
}

/// Whether there can be rings at all.
pub(super) fn try_ring() -> io::Result<()> {
    build_ring(1).map(drop)
}

/// Whether a call failed only for the moment: a signal came, completions have to be taken first, or memory is short.
pub(super) fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}

/// Runs the calling thread on the processor of its queue. One that is not there now gets requests when it is, and one that this
/// process was kept from is left to others; their workers run where the process may.
fn pin(plan: &Plan) {
    let number = usize::from(plan.number);
    if number >= CpuSet::MAX_CPU || !plan.allowed.is_set(number) {
        return;
    }
    let mut place = CpuSet::new();
    place.set(number);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &place) {
        log::debug!("the worker of queue {number} runs anywhere: {error}");
    }
}

struct Queue<'a> {
    connection: &'a Connection,
    number: u16,
    payload_length: usize,
    mailbox: Arc<Mailbox>,
    counters: Arc<ThreadCounters>,
    standing: Standing,
    growth: Arc<Growth>,
    ring: IoUring<Entry128>,
    entries: Vec<Arc<EntryMemory>>,
    /// Completions that arrived during another operation.
    early: Vec<(u64, i32)>,
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        // The kernel may still have some of them, for an unknown time.
        if self.standing.is_alive() {
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

impl<'a> Queue<'a> {
    /// One with all that it needs, of which the kernel knows nothing yet.
    fn new(connection: &'a Connection, plan: &Plan) -> io::Result<Self> {
        pin(plan);
        let size = u32::try_from(plan.depth + 1).expect("a queue is short").next_power_of_two();
        let ring = build_ring(size)?;
        let memory = |_| EntryMemory::new(plan.payload_length).map(Arc::new);
        let entries = (0..plan.depth).map(memory).collect::<io::Result<_>>()?;
        let mut queue = Self {
            connection,
            number: plan.number,
            payload_length: plan.payload_length,
            mailbox: Arc::new(Mailbox::new()?),
            counters: connection.state.messages.for_thread(),
            standing: Standing::new(plan.depth),
            growth: plan.growth.clone(),
            ring,
            entries,
            early: Vec::new(),
        };
        queue.listen_to_bell();
        Ok(queue)
    }

    /// Gives so many spare entries to the kernel, as far as there are. An error says that it did not take all of them.
    fn register(&mut self, count: usize) -> io::Result<()> {
        let sent: Vec<usize> = (0..count).map_while(|_| self.standing.send()).collect();
        for entry in &sent {
            let parts = self.entries[*entry].parts();
            let register = command::register(self.connection.device.as_fd(), self.number, parts);
            self.push(&register.user_data(*entry as u64));
        }
        self.submit_all()?;
        let mut completed = std::mem::take(&mut self.early);
        completed.extend(self.completions());
        let (others, refusal) = self.standing.settle(&sent, completed);
        self.early = others;
        refusal.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
    }

    /// Registers the initial entries of the queue. Where the kernel does not take all of them, the queue is shorter.
    fn fill(&mut self) {
        if let Err(error) = self.register(self.standing.spare()) {
            log::warn!("queue {} has only {} entries: {error}", self.number, self.standing.living());
        }
    }

    /// Registers further entries where the kernel is about to have none: the requests in the others may take long.
    fn grow(&mut self) {
        let missing = self.standing.missing();
        if missing == 0 {
            return;
        }
        while self.standing.spare() < missing && self.standing.may_grow() && self.growth.take(self.payload_length) {
            match EntryMemory::new(self.payload_length) {
                Ok(memory) => self.entries.push(Arc::new(memory)),
                Err(error) => {
                    log::debug!("queue {} gets no memory for further entries: {error}", self.number);
                    break;
                }
            }
            self.standing.grow();
        }
        if self.standing.spare() > 0
            && let Err(error) = self.register(missing)
        {
            log::debug!("queue {} gets no further entries: {error}", self.number);
        }
    }

    /// Puts a command where the next call submits it; if the submission queue is full, it is submitted at once.
    fn push(&mut self, command: &Entry128) {
        loop {
            // SAFETY: everything the command refers to lives while the kernel may use it: entries are let go only when they
            // are dead, and the descriptors belong to the connection and to the mailbox.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return;
            }
            if let Err(error) = self.ring.submit() {
                log::debug!("commands of queue {} wait: {error}", self.number);
                let completed = self.completions();
                self.early.extend(completed);
                thread::sleep(RETRY_PAUSE);
            }
        }
    }

    /// Submits everything now, without waiting for any of it.
    fn submit_all(&mut self) -> io::Result<()> {
        let mut attempts = 0;
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(1..) => {}
                Err(error) if !passes(&error) || attempts == ATTEMPTS_MAX => return Err(error),
                Ok(0) | Err(_) => {
                    attempts += 1;
                    let completed = self.completions();
                    self.early.extend(completed);
                    thread::sleep(RETRY_PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Submits everything and waits until something completes, or until it is worth another look.
    fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) if passes(&error) => {
                if error.kind() != io::ErrorKind::Interrupted {
                    thread::sleep(RETRY_PAUSE);
                }
                Ok(())
            }
            Err(error) => Err(error),
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
        while self.standing.is_alive() {
            if self.early.is_empty() {
                self.wait()?;
            }
            let mut completed = std::mem::take(&mut self.early);
            completed.extend(self.completions());
            for (user_data, result) in completed {
                if user_data == BELL {
                    self.mailbox.silence();
                    self.listen_to_bell();
                } else {
                    self.complete(usize::try_from(user_data).expect("the number of an entry"), result);
                }
                self.commit_answers();
            }
            self.grow();
        }
        if closes(&self.connection.device) {
            return Ok(());
        }
        Err(io::Error::other(format!("queue {} has lost all of its entries", self.number)))
    }

    /// Sees to an entry that the kernel gave back.
    fn complete(&mut self, entry: usize, result: i32) {
        if result < 0 {
            self.standing.note_death();
            // All of these say that the connection is being closed.
            if !matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV) {
                log::error!("queue {} lost an entry: {}", self.number, io::Error::from_raw_os_error(-result));
            }
            return;
        }
        self.standing.note_request();
        // SAFETY: the entry came back and holds a request; its answer is not there yet.
        let headers = unsafe { self.entries[entry].headers() };
        // SAFETY: the same; answers are written by `commit_answers` alone, after this slice is gone.
        let payload = unsafe { self.entries[entry].payload(headers.payload_length) };
        // Where no part of the memory is borrowed, an answer may be put there at once.
        let memory = (headers.payload_length == 0).then(|| self.entries[entry].clone());
        let ring = RingReply { mailbox: self.mailbox.clone(), entry, commit_id: headers.commit_id, memory };
        let parsed =
            Request::from_parts(&headers.header, &headers.structure, payload, self.connection.agreement.form());
        let request = match parsed {
            Ok(request) => request,
            Err(malformed) => {
                log::error!("{malformed}");
                // The answer is identified by the number of the commit; the other is in the header.
                return ring.send(headers.commit_id, Err(Errno::EIO), &[]);
            }
        };
        self.counters.count(request.header.opcode);
        self.connection.state.awake.note_request();
        let reply = Reply::through_ring(&request.header, ring);
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
                // is not in the kernel's hands; no borrow of its memory is left.
                Body::Bytes(bytes) => unsafe { memory.put_body(bytes) },
            };
            let outcome = if length.is_some() { outcome } else { Err(Errno::EIO) };
            let headers = RingHeaders::answer(commit_id, unique, outcome, length.unwrap_or(0));
            // SAFETY: the same.
            unsafe { memory.put_headers(&headers) };
            self.standing.note_commit();
            let commit = command::commit(self.connection.device.as_fd(), self.number, commit_id);
            self.push(&commit.user_data(entry as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::connection;

    /// The reports of a queue that registers as the last one, and whether it goes on to serve; `None` without `io_uring`.
    fn started(decision: Option<Decision>) -> Option<(Vec<io::Result<()>>, bool)> {
        if let Err(error) = try_ring() {
            eprintln!("skipped: io_uring is not allowed here: {error}");
            return None;
        }
        let (_kernel, connection) = connection();
        let plan = Plan {
            // No processor has this number, so that the thread of the test stays where it is.
            number: u16::MAX,
            depth: 4,
            payload_length: 8192,
            allowed: CpuSet::new(),
            growth: Arc::default(),
            decision: Arc::new(decision.map_or_else(OnceLock::new, OnceLock::from)),
        };
        let (ready, said) = channel();
        let (go, turn) = channel();
        go.send(Turn::Last).unwrap();
        let serves = prepare(&connection, &plan, &ready, &turn).is_some();
        drop(ready);
        let before = decision.unwrap_or(Decision::Rings);
        assert_eq!(plan.decision.get(), Some(&before), "it is decided once");
        Some((said.iter().collect(), serves))
    }

    #[test]
    fn a_queue_that_comes_after_the_start_was_given_up_registers_nothing() {
        let Some((said, serves)) = started(Some(Decision::Classic)) else { return };
        // Its memory was there, and it did not even try: a socket would have refused.
        assert!(matches!(said[..], [Ok(())]), "{said:?}");
        assert!(!serves);
    }

    #[test]
    fn a_queue_whose_first_entry_is_refused_says_so_and_does_not_serve() {
        let Some((said, serves)) = started(None) else { return };
        assert!(matches!(said[..], [Ok(()), Err(_)]), "{said:?}");
        assert!(!serves);
    }

    #[test]
    fn only_what_passes_is_tried_again() {
        for number in [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
            assert!(passes(&io::Error::from_raw_os_error(number)));
        }
        for number in [libc::EBADF, libc::EFAULT, libc::ENXIO] {
            assert!(!passes(&io::Error::from_raw_os_error(number)));
        }
    }
}
