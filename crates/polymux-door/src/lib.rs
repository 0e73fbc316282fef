//! The door of a daemon: programs that have a file open get a lease there, and use the file past the mount (docs/design/0046, docs/design/0048).
//!
//! Invariants:
//! * A lease is given for a ticket, which the daemon issues through the kernel to a process that has the file open; to a process of the same user; once, and within seconds.
//! * The door waits for no program: messages are sent and received without waiting, a recall is a store into shared memory, and a program that keeps a connection keeps
//!   nothing else. The file system waits for writes under way, for a bounded time, and a user that made it wait in vain gets no such lease for a while.
//! * A lease ends with its connection. Recalled or not, it counts until then, because the program may have the descriptors.
//! * All that one user has is limited, and so is all together.
//!
//! Threads: the keeper accepts connections, sees them end and collects counters; the giver opens objects, which may wait for a tier. A recall comes from whichever thread
//! changes a map. Lock order: `leases`, then nothing; `tickets`, then nothing.

#![forbid(unsafe_code)]

mod closing;
mod connection;
mod connections;
mod giver;
mod keeper;
mod late_users;
mod lease;
mod limits;
mod permits;
mod tickets;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polymux_fs::{FileSystem, HandleId, LeasePort};
use polymux_lease::{LifeKeeper, message};
use polymux_types::sync::Mutex;
use polymux_types::{LeaseApplicant, LeaseRefusal, LeaseTicket};
use rustix::event::{EventfdFlags, epoll};

use crate::giver::Giver;
use crate::keeper::Keeper;
use crate::late_users::LateUsers;
use crate::lease::Leases;
use crate::limits::REQUESTS_MAX;
use crate::permits::Permits;
use crate::tickets::Tickets;

pub use crate::lease::LeaseReport;

/// Connections that the kernel keeps waiting for the keeper.
const WAITING_MAX: i32 = 64;
/// How long a close waits for the keeper.
const CLOSING_PATIENCE: Duration = Duration::from_secs(2);

/// The door of one mounted volume.
pub struct Door {
    shared: Arc<Shared>,
    /// Until it is closed.
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// The state that all threads of a door share.
struct Shared {
    tickets: Tickets,
    leases: Leases,
    permits: Permits,
    late_users: Arc<LateUsers>,
    /// Until the door is closed: then no map is believed any more, whoever still has one.
    life: Mutex<Option<LifeKeeper>>,
    /// Wakes the keeper.
    wake: OwnedFd,
    /// The keeper's connections.
    watched: OwnedFd,
    is_over: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        // Any number but 0 wakes it; a counter that is full has woken it already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }

    /// Has the keeper hear of a descriptor.
    fn watch(&self, descriptor: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.watched, descriptor, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// Has the keeper hear of the end of a connection, even if it ended before this; messages on it are none of its business.
    fn watch_end(&self, connection: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.watched, connection, epoll::EventData::new_u64(number), epoll::EventFlags::RDHUP)?)
    }
}

impl Door {
    /// Opens the door of a file system.
    ///
    /// # Errors
    /// There are no descriptors, threads or random numbers.
    pub fn open(file_system: &Arc<FileSystem>) -> io::Result<Self> {
        let name = tickets::secret()?;
        let listening = message::open_door(&name, WAITING_MAX)?;
        let shared = Arc::new(Shared {
            tickets: Tickets::new(name),
            leases: Leases::default(),
            permits: Permits::default(),
            late_users: Arc::default(),
            life: Mutex::new(Some(LifeKeeper::start()?)),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            watched: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_over: AtomicBool::new(false),
        });
        let (asked, to_give) = mpsc::sync_channel(REQUESTS_MAX);
        let giver = Giver { file_system: Arc::downgrade(file_system), shared: Arc::clone(&shared) };
        let keeper = Keeper::new(Arc::downgrade(file_system), Arc::clone(&shared), listening, asked)?;
        // It ends when the keeper, which asks it, is gone; one that hangs in a tier is left behind.
        drop(spawn("leases-give", move || giver.run(&to_give))?);
        let keeper = spawn("leases-keep", move || keeper.run())?;
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// The leases of programs, in the order of their processes.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseReport> {
        self.shared.leases.report()
    }

    /// Ends all leases, and gives no more. Called before the lock of the volume is given up; never waits for a program or a tier.
    pub fn close(&self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.wake();
        self.shared.leases.recall_all();
        // One that the giver hands out just now ends with this.
        drop(self.shared.life.lock().take());
        let keeper = self.keeper.lock().take();
        let began = Instant::now();
        while let Some(keeper) = &keeper
            && !keeper.is_finished()
            && began.elapsed() < CLOSING_PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

impl LeasePort for Door {
    fn issue(&self, handle: HandleId, applicant: LeaseApplicant) -> Result<LeaseTicket, LeaseRefusal> {
        if self.shared.is_over() {
            return Err(LeaseRefusal::Off);
        }
        if !self.shared.permits.are_left(applicant.uid) {
            return Err(LeaseRefusal::TooMany);
        }
        let ticket = self.shared.tickets.issue(handle, applicant)?;
        // It forgets tickets that are not shown.
        self.shared.wake();
        Ok(ticket)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

/// Asks the giver for a lease.
type Asked = SyncSender<giver::Request>;
