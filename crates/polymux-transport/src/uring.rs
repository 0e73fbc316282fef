//! FUSE over `io_uring`: the kernel puts requests into memory that was given to it, on the processor of the program that asks.
//!
//! Invariants:
//! * There is one queue for each processor that there can be, served by a worker of its own on that processor: the kernel
//!   never sends a request to another queue, and sends none at all before each queue has an entry.
//! * The kernel switches to the queues with the first entry of the last of them, and never back. That entry is registered only
//!   when everything that can fail is done, and all other queues have theirs; until then the start can be given up.
//! * Either the last queue registers or the start is given up ([`Decision`]), whichever is decided first: a worker that comes
//!   late registers nothing.
//! * A worker never waits for a tier: a request that would wait is copied out and handed to a pool (`pool.rs`), and its answer comes
//!   back over the mailbox of the queue, because only the thread that gave an entry to the kernel may give it back.
//! * Forgets, interrupts and the negotiation still come over `/dev/fuse`, so that a classic worker runs beside the queues.
//! * Where a queue cannot be brought up in time, the kernel is made to do without (`WayBack`), and everything is classic.
//!
//! ```text
//!  kernel ──► entry ──► worker ──► Service ──at once──► entry ──► kernel
//!                          └─would wait─► pool ──► Service ──► mailbox ──► worker ──► entry ──► kernel
//! ```

mod command;
mod entry;
mod mailbox;
mod queue;
mod standing;
mod way_back;

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

use self::queue::{Plan, Starting};
use self::way_back::WayBack;
use crate::classic::Worker;
use crate::connection::Connection;
use crate::processor_list::count_of;

pub(crate) use self::mailbox::RingReply;

/// Whether the kernel's administrator allows it; read before the negotiation, and it counts from then on.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Processors that there can be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Longest time in which all queues must be there.
const START_DEADLINE: Duration = Duration::from_secs(5);

/// Memory of the entries that queues begin with; only the pages that are used are allocated. With very many processors it is
/// more, because each has a few.
const MEMORY_MAX: usize = 512 << 20;
const DEPTHS: std::ops::RangeInclusive<usize> = 16..=64;

/// From how many processors on requests are shorter, because each has memory for several.
const MANY_PROCESSORS: usize = 16;
/// Most bytes of a write with many processors.
const SHORT_WRITE_MAX: u32 = 256 * 1024;

/// The transport decided on for a connection that was negotiated with queues. It is decided once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// The last queue registers: the kernel switches to them.
    Rings,
    /// They do not all come up.
    Classic,
}

/// Result of an attempt to bring up the queues.
pub(crate) enum Start {
    /// Requests come through them, and these serve them.
    Up(Vec<Worker>),
    /// The kernel was switched back to `/dev/fuse`, and goes on with it.
    GivenUp(io::Error),
}

/// Why it cannot be asked for; `None` where it can. A kernel that was asked for it waits for the queues, and without a ring
/// it cannot even be switched back.
#[must_use]
pub fn obstacle() -> Option<String> {
    match std::fs::read_to_string(SWITCH) {
        Ok(text) if text.trim_start().starts_with(['Y', 'y', '1']) => {}
        Ok(_) => return Some(format!("{SWITCH} is off")),
        Err(_) => return Some("the kernel has no FUSE over io_uring".to_owned()),
    }
    if let Err(error) = possible_processors() {
        return Some(format!("it is not known how many processors there are: {error}"));
    }
    queue::try_ring().err().map(|error| format!("io_uring is not allowed here: {error}"))
}

/// Most bytes of a write that suit a machine with this many processors.
#[must_use]
pub fn write_max(wished: u32) -> u32 {
    let is_large = possible_processors().is_ok_and(|processors| processors > MANY_PROCESSORS);
    if is_large { wished.min(SHORT_WRITE_MAX) } else { wished }
}

/// The kernel has as many queues, numbered without gaps; a processor whose number is not among them uses queue 0.
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    count_of(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{POSSIBLE}: {}", text.trim())))
}

/// How many requests a queue takes at once to begin with.
fn depth(processors: usize, payload_length: usize) -> usize {
    (MEMORY_MAX / (processors * payload_length)).clamp(*DEPTHS.start(), *DEPTHS.end())
}

/// Brings up a queue for each processor.
///
/// # Errors
/// They do not come up, and the kernel cannot be made to do without: it waits for them, and the mount is unusable.
pub(crate) fn start(connection: &Arc<Connection>) -> io::Result<Start> {
    // Before all else, because it must be there when memory and descriptors have run out.
    let way_back = WayBack::new()?;
    match bring_up(connection) {
        Ok(workers) => Ok(Start::Up(workers)),
        Err(error) => {
            way_back.take(connection)?;
            Ok(Start::GivenUp(error))
        }
    }
}

/// Three steps, each of which all queues do before the next: memory, a first entry for all but the last, and that of the last.
fn bring_up(connection: &Arc<Connection>) -> io::Result<Vec<Worker>> {
    let processors = possible_processors()?;
    let payload_length = entry::payload_length(&connection.agreement);
    let plan = Plan {
        number: 0,
        depth: depth(processors, payload_length),
        payload_length,
        // Where this cannot be found out, workers run anywhere.
        allowed: sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new()),
        growth: Arc::default(),
        decision: Arc::default(),
    };
    let deadline = Instant::now() + START_DEADLINE;
    let (sender, ready) = channel();
    let start_one = |number| {
        let number = u16::try_from(number).map_err(io::Error::other)?;
        queue::start(connection, Plan { number, ..plan.clone() }, sender.clone())
    };
    let queues: Vec<Starting> = (0..processors).map(start_one).collect::<io::Result<_>>()?;
    register_all(&queues, &ready, deadline, &plan.decision).inspect_err(|_| {
        // A late worker registers nothing any more. Where the last queue was refused, it is decided already, to the same effect.
        let _ = plan.decision.set(Decision::Classic);
    })?;
    Ok(queues.into_iter().map(|queue| queue.worker).collect())
}

fn register_all(
    queues: &[Starting],
    ready: &Receiver<io::Result<()>>,
    deadline: Instant,
    decision: &OnceLock<Decision>,
) -> io::Result<()> {
    wait_for(ready, queues.len(), deadline)?;
    let (last, others) = queues.split_last().ok_or(io::ErrorKind::NotFound)?;
    others.iter().for_each(Starting::register);
    wait_for(ready, others.len(), deadline)?;
    last.register_last();
    match ready.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(outcome) => outcome,
        Err(_) if decision.set(Decision::Classic).is_ok() => Err(too_late()),
        // It is just being registered, so that nothing can be given up. The call that it is in says whether it was.
        Err(_) => ready.recv().map_err(io::Error::other)?,
    }
}

fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "not all queues came up in time")
}

/// Each queue says once for each step whether it is done.
fn wait_for(ready: &Receiver<io::Result<()>>, queues: usize, deadline: Instant) -> io::Result<()> {
    for _ in 0..queues {
        match ready.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(outcome) => outcome?,
            Err(_) => return Err(too_late()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_processors_the_fewer_requests_each_takes_at_once() {
        assert_eq!(depth(2, 1 << 20), 64);
        assert_eq!(depth(16, 1 << 20), 32);
        assert_eq!(depth(256, 256 << 10), 16);
    }

    #[test]
    fn queues_that_do_not_answer_in_time_are_given_up() {
        let (sender, ready) = channel();
        let soon = Instant::now() + Duration::from_millis(10);
        sender.send(Ok(())).unwrap();
        assert_eq!(wait_for(&ready, 2, soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
