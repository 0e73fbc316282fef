//! A connection to the kernel, and the service and threads that serve it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use polymux_types::Errno;

use crate::classic::{self, Worker};
use crate::counters::MessageCounters;
use crate::device::Device;
use crate::keeping::Keeping;
use crate::negotiation::Agreement;
use crate::pool::{self, Pool};
use crate::processor_latency::{self, AwakeProcessors, Bursts, ProcessorLatency};
use crate::reply::Reply;
use crate::turns::{Called, Turns};
use crate::uring;
use crate::wire::{Capabilities, Header, Operation, Request};

/// Whether the thread that serves a request may be held up by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It may.
    MayWait,
    /// It may not: others wait for it.
    AtOnce,
}

/// A file system that answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers one request, now or later, on any thread. Where that would wait although it must not
    /// ([`Patience::AtOnce`]), nothing is done and the reply comes back; the request is served again by a thread that may.
    fn serve(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply>;

    /// The kernel gives back so many references to an inode. There is no answer.
    fn forget(&self, node: u64, count: u64);
}

/// State of a connection for reports; it changes while the connection is served.
#[derive(Debug)]
pub struct ConnectionState {
    /// Counts of the messages received so far.
    pub messages: MessageCounters,
    pub(crate) awake: AwakeProcessors,
    transport: Mutex<String>,
    /// Why idle processors are not kept awake. `None` where they are, and before the connection is served.
    sleep: Mutex<Option<String>>,
}

impl ConnectionState {
    /// How requests come, in words, with the reason where it is not as it was wished.
    #[must_use]
    pub fn transport(&self) -> String {
        self.transport.lock().clone()
    }

    /// Bursts of requests during which idle processors were kept awake.
    ///
    /// # Errors
    /// The reason why none are.
    pub fn bursts(&self) -> Result<Bursts, String> {
        self.sleep.lock().clone().map_or_else(|| Ok(self.awake.bursts()), Err)
    }
}

/// Most threads that are started because all others wait for a device. More requests than this on their way to devices are of no
/// use; where devices hang, it is the adapter that adds threads.
const GROWN_MAX: usize = 56;

/// Name of the classic transport.
const CLASSIC: &str = "classic /dev/fuse";
/// The other one.
const IO_URING: &str = "io_uring";

/// State shared by all threads that serve one mount.
pub struct Connection {
    /// The descriptor that it was mounted with.
    pub device: Arc<Device>,
    /// The result of the negotiation.
    pub agreement: Agreement,
    /// Its state for reports.
    pub state: Arc<ConnectionState>,
    /// Where the connection outlives this process.
    pub(crate) keeping: Option<Keeping>,
    pub(crate) pool: Pool,
    pub(crate) turns: Turns,
    /// Threads that were started because all others were busy.
    grown: Mutex<Vec<Worker>>,
    has_rings: AtomicBool,
    processor_latency: ProcessorLatency,
    service: Box<dyn Service>,
}

impl Connection {
    /// One that was negotiated.
    #[must_use]
    pub fn new(device: Arc<Device>, agreement: Agreement, service: impl Service) -> Self {
        let state = ConnectionState {
            messages: MessageCounters::default(),
            awake: AwakeProcessors::default(),
            transport: Mutex::new(CLASSIC.to_owned()),
            sleep: Mutex::default(),
        };
        Self {
            device,
            agreement,
            state: Arc::new(state),
            keeping: None,
            pool: Pool::default(),
            turns: Turns::default(),
            grown: Mutex::default(),
            has_rings: AtomicBool::new(false),
            processor_latency: ProcessorLatency::default(),
            service: Box::new(service),
        }
    }

    /// Makes this a connection that another process keeps. That process has the descriptor that it was mounted with.
    #[must_use]
    pub fn kept(self, keeping: Keeping) -> Self {
        self.device.notify_through(keeping.keeper());
        Self { keeping: Some(keeping), ..self }
    }

    /// Chooses whether idle processors are kept awake during bursts of requests.
    #[must_use]
    pub fn with_processor_latency(self, processor_latency: ProcessorLatency) -> Self {
        Self { processor_latency, ..self }
    }

    /// Says why requests do not come as it was wished.
    pub fn note_obstacle(&self, why: &str) {
        *self.state.transport.lock() = format!("{CLASSIC} ({why})");
    }

    /// Starts the threads that serve it: so many that may wait, and with `io_uring` a worker for each processor.
    ///
    /// # Errors
    /// As [`std::thread::Builder::spawn`]; or the kernel waits for queues that do not come up. In either case the mount is
    /// unusable, and has to be taken down.
    pub fn start(self: &Arc<Self>, threads: usize) -> io::Result<Vec<Worker>> {
        // It handles the requests that never come through a ring, and all requests where rings do not come up.
        let mut workers = vec![classic::start(self)?];
        if self.agreement.capabilities.contains(Capabilities::OVER_IO_URING) {
            match uring::start(self)? {
                uring::Start::Up(rings) => {
                    workers.extend(rings);
                    self.has_rings.store(true, Ordering::Release);
                    IO_URING.clone_into(&mut self.state.transport.lock());
                }
                uring::Start::GivenUp(error) => {
                    log::warn!("FUSE over io_uring does not come up, going on without: {error}");
                    self.note_obstacle(&format!("io_uring did not come up: {error}"));
                }
            }
        }
        // The first one is there; beside rings it does not serve, and one more has to.
        let threads_min = if self.has_rings.load(Ordering::Acquire) { 2 } else { 1 };
        for _ in 1..threads.max(threads_min) {
            workers.push(self.start_worker()?);
        }
        workers.extend(self.start_keeping_awake());
        Ok(workers)
    }

    /// Starts the thread that keeps idle processors awake during bursts of requests, where that is of use. A mount works without it.
    fn start_keeping_awake(self: &Arc<Self>) -> Option<Worker> {
        let start = |device| {
            let keep_awake = move |connection: &Arc<Self>| {
                let outcome = connection.state.awake.keep_awake(device);
                outcome.unwrap_or_else(|error| connection.note_sleep(error.to_string()));
                Ok(())
            };
            classic::spawn_worker("fuse-awake", self, keep_awake).map_err(|error| error.to_string())
        };
        processor_latency::open(self.processor_latency).and_then(start).map_err(|why| self.note_sleep(why)).ok()
    }

    fn note_sleep(&self, why: String) {
        log::debug!("idle processors sleep as the system decides: {why}");
        *self.state.sleep.lock() = Some(why);
    }

    /// Starts one more thread that may wait.
    ///
    /// # Errors
    /// As [`std::thread::Builder::spawn`].
    pub fn start_worker(self: &Arc<Self>) -> io::Result<Worker> {
        if self.has_rings.load(Ordering::Acquire) { pool::start(self) } else { classic::start(self) }
    }

    /// Ensures that a thread waits for requests on the classic transport while the calling thread waits for something else.
    pub(crate) fn call_next(self: &Arc<Self>) {
        if self.turns.call() == Called::Somebody {
            return;
        }
        let mut grown = self.grown.lock();
        if grown.len() < GROWN_MAX {
            match classic::start(self) {
                Ok(worker) => grown.push(worker),
                // The first thread that comes back serves the waiting requests.
                Err(error) => log::warn!("no further thread to serve requests: {error}"),
            }
        }
    }

    /// Threads that were started while the connection was served, beside those of [`Connection::start_worker`]. They end with it.
    pub fn take_grown(&self) -> Vec<Worker> {
        std::mem::take(&mut *self.grown.lock())
    }

    /// Sees to one request on a thread that may wait.
    pub(crate) fn serve(&self, request: &Request<'_>, reply: Reply) {
        let left = self.dispatch(request, reply, Patience::MayWait);
        assert!(left.is_none(), "whoever may wait answers");
    }

    /// Dispatches one request; its reply comes back where it has to be served by a thread that may wait.
    pub(crate) fn dispatch(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
        let Header { node, .. } = request.header;
        match request.operation {
            Operation::Forget { count } => {
                reply.not_owed();
                self.service.forget(node, count);
            }
            Operation::BatchForget { inodes } => {
                reply.not_owed();
                inodes.for_each(|(node, count)| self.service.forget(node, count));
            }
            // Operations end by themselves; one that hangs in a tier is answered by the watcher of the service. An interrupt has no
            // answer, and the program goes on waiting for that of the request itself.
            Operation::Interrupt { .. } => reply.not_owed(),
            // The connection closes next.
            Operation::Destroy => reply.ok(),
            // A connection begins only once.
            Operation::Init { .. } => reply.error(Errno::EIO),
            _ => return self.service.serve(request, reply, patience),
        }
        None
    }
}
