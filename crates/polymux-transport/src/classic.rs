//! The classic transport: threads that read requests from `/dev/fuse` and answer them there.
//!
//! Invariants:
//! * One thread waits for a request; a thread that is about to wait for something else is replaced first (`turns`).
//! * Each thread has a descriptor with a queue of answers of its own, where the kernel can clone them, and a buffer for one
//!   request. Threads can be added at any time.
//! * A thread that was held up polls for the next request for a moment (`pace::Lingering`): it is awake, and the thread that
//!   waits in the kernel is not.
//! * A thread ends when the kernel closes the connection, and not before.
//! * A panic or an error that reaches a thread ends the process: requests would never be answered, and the mount would hang
//!   once all threads were gone. A process that ends makes every request fail at once, and the next mount recovers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polymux_types::Errno;

use crate::buffer::RequestBuffer;
use crate::connection::{Connection, Patience};
use crate::device::Device;
use crate::pace::{Lingering, Pace};
use crate::planted_death::{Moment, may_die};
use crate::pool::ClosesPool;
use crate::processor_latency::EndsAwakeProcessors;
use crate::reply::Reply;
use crate::turns::{Backlog, EndsTurns, Seat};
use crate::wire::{Header, Malformed, Request};

/// A thread that serves requests.
pub type Worker = JoinHandle<io::Result<()>>;

/// Starts a thread that serves requests of a connection.
pub(crate) fn start(connection: &Arc<Connection>) -> io::Result<Worker> {
    spawn_worker("fuse", connection, serve)
}

/// Longest time for which a connection that is being closed does not show it yet.
const CLOSING_MAX: Duration = Duration::from_secs(1);
/// Time between two looks whether it shows.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Starts a thread of the transport. A panic on it ends the process, and so does an error while there is a connection.
pub(crate) fn spawn_worker(
    name: &str,
    connection: &Arc<Connection>,
    work: impl FnOnce(&Arc<Connection>) -> io::Result<()> + Send + 'static,
) -> io::Result<Worker> {
    let connection = connection.clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let failure = match catch_unwind(AssertUnwindSafe(|| work(&connection))) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if closes(&connection.device) => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a thread panicked".to_owned(),
        };
        log::error!("the FUSE transport failed, ending the process so that the mount does not hang: {failure}");
        std::process::abort()
    })
}

/// Whether the connection is closed. The kernel refuses requests a moment before it says so.
pub(crate) fn closes(device: &Device) -> bool {
    let began = Instant::now();
    while !device.is_closed() {
        if began.elapsed() >= CLOSING_MAX {
            return false;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    true
}

/// A further descriptor of the connection.
fn further_queue(connection: &Connection) -> io::Result<Device> {
    match &connection.keeping {
        Some(keeping) => keeping.own_queue(&connection.device),
        None => connection.device.clone_queue(),
    }
}

/// A descriptor with a queue of answers of its own.
fn own_queue(connection: &Connection) -> Arc<Device> {
    let waiting = |queue: Device| queue.wait_for_requests().map(|()| queue);
    further_queue(connection).and_then(waiting).map_or_else(
        |error| {
            log::debug!("threads share a descriptor of /dev/fuse: {error}");
            connection.device.clone()
        },
        Arc::new,
    )
}

/// One that never waits; `None` where the kernel clones none.
fn queue_for_lingering(connection: &Connection) -> Option<Arc<Device>> {
    let device = further_queue(connection).ok()?;
    device.never_wait().ok()?;
    Some(Arc::new(device))
}

/// Whether serving a request held up the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    AtOnce,
    AfterWaiting,
}

fn serve(connection: &Arc<Connection>) -> io::Result<()> {
    // The connection is closed when this thread ends, and only these guards notify the other threads.
    let _closes_pool = ClosesPool(&connection.pool);
    let _ends_turns = EndsTurns(&connection.turns);
    let _ends_awake = EndsAwakeProcessors(&connection.state.awake);
    let device = own_queue(connection);
    let for_lingering = queue_for_lingering(connection);
    let counters = connection.state.messages.for_thread();
    let mut buffer = RequestBuffer::new(connection.agreement.write_max);
    if connection.keeping.is_some() {
        buffer.make_resident();
    }
    let (seat, mut backlog, mut pace) = (Arc::new(Seat::default()), Backlog::default(), Pace::default());
    let mut lingering = Lingering::default();
    let serve_one = |device: &Arc<Device>, bytes: &[u8]| match Request::parse(bytes, connection.agreement.form()) {
        Ok(request) => {
            counters.count(request.header.opcode);
            connection.state.awake.note_request();
            may_die(request.header.opcode, Moment::Start);
            let reply = Reply::to_device(&request.header, device.clone());
            let Some(reply) = connection.dispatch(&request, reply, Patience::AtOnce) else { return Ok(Served::AtOnce) };
            connection.call_next();
            connection.serve(&request, reply);
            Ok(Served::AfterWaiting)
        }
        Err(malformed) => refuse(device, bytes, malformed).map(|()| Served::AtOnce),
    };
    while connection.turns.take(&seat) {
        let is_behind = backlog.is_behind(|| device.has_request());
        pace.wait(|| device.has_request());
        let Some(length) = device.receive(buffer.room())? else { break };
        pace.got();
        connection.turns.give_back();
        if is_behind {
            connection.call_next();
        }
        let served = serve_one(&device, buffer.filled(length))?;
        let Some(device) = for_lingering.as_ref().filter(|_| served == Served::AfterWaiting && lingering.pays()) else {
            continue;
        };
        while lingering.wait(|| device.has_request()) {
            let Some(length) = device.receive_if_any(buffer.room())? else { break };
            serve_one(device, buffer.filled(length))?;
        }
    }
    Ok(())
}

/// Answers a malformed request with `EIO`. Without a header there is no request number to answer to, which is an error.
fn refuse(device: &Device, bytes: &[u8], malformed: Malformed) -> io::Result<()> {
    let header = Header::parse(bytes)?;
    log::error!("{malformed} (kind {}, {} bytes)", header.opcode, bytes.len());
    device.answer(header.unique, Err(Errno::EIO), &[]);
    Ok(())
}
