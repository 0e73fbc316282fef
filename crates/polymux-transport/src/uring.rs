//! FUSE over `io_uring`: the kernel puts requests into memory that was given to it, on the processor of the program that asks.
//!
//! What is true here:
//! * There is one queue for each processor that there can be, served by a worker of its own on that processor: the kernel
//!   never sends a request to another queue, and sends none at all before each queue has an entry.
//! * A worker never waits for a tier: what would wait is copied out and handed to a pool (`pool.rs`), and its answer comes
//!   back over the mailbox of the queue, because only the thread that gave an entry to the kernel may give it back.
//! * Forgets, interrupts and the negotiation still come over `/dev/fuse`, so that a classic worker runs beside the queues.
//! * Where a queue cannot be brought up in time, the kernel is told to do without (`give_up`), and everything is classic.
//!
//! ```text
//!  kernel ──► entry ──► worker ──► Service ──at once──► entry ──► kernel
//!                          └─would wait─► pool ──► Service ──► mailbox ──► worker ──► entry ──► kernel
//! ```

mod command;
mod entry;
mod mailbox;
mod queue;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::classic::Worker;
use crate::connection::Connection;

pub(crate) use self::mailbox::RingReply;

/// Whether the kernel's administrator allows it; read before the negotiation, and it counts from then on.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Processors that there can be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Longest time in which all queues must be there.
const START_DEADLINE: Duration = Duration::from_secs(5);

/// Memory of all entries together, of which only what is used becomes real.
const MEMORY_MAX: usize = 512 << 20;
const DEPTHS: std::ops::RangeInclusive<usize> = 8..=64;

/// From how many processors on requests are shorter, because each has memory for several.
const MANY_PROCESSORS: usize = 16;
/// Most bytes of a write with many processors.
const SHORT_WRITE_MAX: u32 = 256 * 1024;

/// Why it cannot be asked for; `None` where it can. A kernel that was asked for it waits for the queues, and without a ring
/// it cannot even be told not to.
#[must_use]
pub fn obstacle() -> Option<String> {
    match std::fs::read_to_string(SWITCH) {
        Ok(text) if text.trim_start().starts_with(['Y', 'y', '1']) => {}
        Ok(_) => return Some(format!("{SWITCH} is off")),
        Err(_) => return Some("the kernel has no FUSE over io_uring".to_owned()),
    }
    queue::try_ring().err().map(|error| format!("io_uring is not allowed here: {error}"))
}

/// Most bytes of a write that suit a machine with this many processors.
#[must_use]
pub fn write_max(wished: u32) -> u32 {
    let is_large = possible_processors().is_ok_and(|processors| processors > MANY_PROCESSORS);
    if is_large { wished.min(SHORT_WRITE_MAX) } else { wished }
}

fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    last_number(&text)
        .and_then(|last| last.checked_add(1))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{POSSIBLE}: {}", text.trim())))
}

/// The last number of a list like `0-3,8-11`: queues are counted from 0 whatever is missing in between.
fn last_number(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// How many requests a queue takes at once.
fn depth(processors: usize, payload_length: usize) -> usize {
    (MEMORY_MAX / (processors * payload_length)).clamp(*DEPTHS.start(), *DEPTHS.end())
}

/// Brings up a queue for each processor; returns their workers.
///
/// # Errors
/// Not all of them are there in time. The kernel is told to do without then, and the connection goes on.
pub(crate) fn start(connection: &Arc<Connection>) -> io::Result<Vec<Worker>> {
    let processors = possible_processors()?;
    let payload_length = entry::payload_length(&connection.agreement);
    let depth = depth(processors, payload_length);
    let (sender, ready) = channel();
    let mut workers = Vec::new();
    let mut outcome = Ok(());
    for number in 0..processors {
        let number = u16::try_from(number).expect("there are fewer processors than that");
        match queue::start(connection, queue::Plan { number, depth, payload_length }, sender.clone()) {
            Ok(worker) => workers.push(worker),
            Err(error) => outcome = Err(error),
        }
    }
    drop(sender);
    outcome.and_then(|()| wait_for_all(&ready, processors)).inspect_err(|_| {
        if let Err(error) = queue::give_up(connection) {
            log::error!("the kernel cannot be told to do without io_uring: {error}");
        }
    })?;
    Ok(workers)
}

/// Each queue says once whether the kernel took its entries.
fn wait_for_all(ready: &Receiver<io::Result<()>>, processors: usize) -> io::Result<()> {
    let deadline = Instant::now() + START_DEADLINE;
    for _ in 0..processors {
        match ready.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(outcome) => outcome?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "not all queues came up in time"));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("a queue ended at once")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_up_to_the_last_one() {
        assert_eq!(last_number("0\n"), Some(0));
        assert_eq!(last_number("0-1\n"), Some(1));
        assert_eq!(last_number("0-3,8-11\n"), Some(11));
        assert_eq!(last_number("\n"), None);
    }

    #[test]
    fn the_more_processors_the_fewer_requests_each_takes_at_once() {
        assert_eq!(depth(2, 1 << 20), 64);
        assert_eq!(depth(16, 1 << 20), 32);
        assert_eq!(depth(256, 256 << 10), 8);
    }
}
