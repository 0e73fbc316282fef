//! A mounted volume: from mounting until the kernel has let go of it.
//!
//! Unmounting is asked of the kernel by path and never waits for this process; [`Session::wait`] returns when the
//! kernel has closed the connection, no matter who asked for it. A mount that another process made at the same path afterwards
//! is never touched.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use polymux_fs::FileSystem;
use polymux_transport::wire::Capabilities;
use polymux_transport::{
    Agreement, Connection, ConnectionState, Device, Keeping, Unmount, Worker, negotiate, unmount, uring,
};
use polymux_types::Ino;

use crate::adapter::Adapter;
use crate::open_files::OpenFiles;
use crate::options::{FuseOptions, IoStyle, Transport};
use crate::passthrough::{Backings, Pages};
use crate::takeover::{self, Supervision};
use crate::watcher::Watcher;
use crate::wishes::{self, Rings, wishes};
use crate::write_back::WriteBack;

/// Version of the protocol, that of Linux 6.16, from which on the kernel has no copies of pages that it writes back: it forgets a page when it was written.
const PAGES_FORGOTTEN_AFTER_WRITING: (u32, u32) = (7, 44);
/// How often a wait for the end of a thread checks whether to give up.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How often a wait for the end of a thread checks whether to give up while the volume is idle: a volume with a thread that hangs is not.
const RESTING_LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// How long the end of a thread is waited for while programs hold objects.
const HELD_PATIENCE: Duration = Duration::from_secs(10);

/// A mounted volume that is served once [`Session::wait`] runs; requests made before wait for it. Dropped without
/// that, it is unmounted.
pub struct Session {
    connection: Arc<Connection>,
    adapter: Adapter,
    threads: usize,
    mountpoint: PathBuf,
    /// Dropping the session unmounts: this process mounted it, and it is not served yet.
    is_taken_down_with_it: bool,
    /// Of a connection that was taken over: files without a name, which the kernel may have.
    orphans: Option<Vec<Ino>>,
    /// Whether the connection outlives this process, or why not.
    keeping: Result<(), &'static str>,
}

/// Asks the kernel to unmount, from any thread and any number of times.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
}

/// Mounts a file system. The mount point must exist. With a supervision the connection outlives this process where it can: it does once the
/// state returned by [`Session::state_to_keep`] is kept.
///
/// # Errors
/// The mount point does not exist, `/dev/fuse` cannot be opened, the kernel or `fusermount3` refuses, or the supervisor is gone.
pub fn mount(
    fs: Arc<FileSystem>,
    mountpoint: &Path,
    options: &FuseOptions,
    supervision: Option<Supervision>,
) -> io::Result<Session> {
    let mountpoint = mountpoint.canonicalize()?;
    let extended_attributes = options.extended_attributes;
    let device = polymux_transport::mount(&mountpoint, &options.to_settings())?;
    let obstacle = if options.transport == Transport::Classic { None } else { uring::obstacle() };
    let may_have_rings = options.transport != Transport::Classic && obstacle.is_none();
    let rings = if may_have_rings { Rings::Wished } else { Rings::NotWished };
    let io = io_style(&fs, options.io);
    let can_be_kept = supervision.is_some() && options.transport != Transport::IoUring && fs.outlives_its_process();
    let keeping = if can_be_kept { wishes::Keeping::Possible } else { wishes::Keeping::Impossible };
    let agreement = negotiate(&device, |offered| wishes(offered, rings, io, keeping, extended_attributes))
        .inspect_err(|_| take_down(&mountpoint))?;
    let device = Arc::new(device);
    let mut adapter = Adapter::new(fs, extended_attributes, Arc::clone(&device), &agreement);
    if agreement.kernel_version >= PAGES_FORGOTTEN_AFTER_WRITING {
        adapter.fs.set_pages_port(Arc::new(Pages(Arc::clone(&device))));
    }
    if agreement.capabilities.contains(Capabilities::PASSTHROUGH) {
        let port = Arc::new(Backings::new(Arc::clone(&device)));
        if let Err(error) = adapter.fs.set_passthrough_port(port) {
            log::warn!("files are not passed through: that cannot be recorded: {error}");
        }
    }
    match (io, adapter.write_back) {
        (_, WriteBack::On) => adapter.fs.set_kernel_collects_writes(),
        (IoStyle::WriteBack, WriteBack::Off) => log::warn!("writes are not collected: the kernel does not offer it"),
        _ => {}
    }
    let (keeping, supervision) = match (takeover::obstacle(&adapter.fs, &agreement), supervision) {
        (_, None) => (Err("no supervisor keeps it"), None),
        (Some(obstacle), Some(_)) => (Err(obstacle), None),
        (None, supervision) => (Ok(()), supervision),
    };
    let kept = match supervision {
        None => None,
        Some(supervision) => {
            supervision.keeper.keep(device.as_fd()).inspect_err(|_| take_down(&mountpoint))?;
            let keeper = Arc::clone(&supervision.keeper);
            adapter.open_files = Arc::new(OpenFiles::within(supervision.open_files));
            Some(Keeping::new(keeper, Vec::new()))
        }
    };
    let connection =
        Connection::new(device, agreement, adapter.clone()).with_processor_latency(options.processor_latency);
    let connection = Arc::new(match kept {
        Some(kept) => connection.kept(kept),
        None => connection,
    });
    if options.transport == Transport::IoUring && !agreement.capabilities.contains(Capabilities::OVER_IO_URING) {
        let why = obstacle.unwrap_or_else(|| "the kernel does not offer io_uring".to_owned());
        log::warn!("no FUSE over io_uring: {why}");
        connection.note_obstacle(&why);
    }
    let threads = options.threads.max(1);
    Ok(Session { connection, adapter, threads, mountpoint, is_taken_down_with_it: true, orphans: None, keeping })
}

/// How reads and writes are shared with the kernel: as it was asked for, unless files may change unheard. A kernel that collects writes would
/// go on using the first size that it received.
fn io_style(fs: &FileSystem, asked: IoStyle) -> IoStyle {
    if asked != IoStyle::Passthrough && fs.may_be_held() {
        let level = if asked == IoStyle::WriteBack { log::Level::Warn } else { log::Level::Info };
        log::log!(
            level,
            "writes are not collected on this mount: programs may have files open since before it, which they change unheard; unmount and mount \
             again once they are closed"
        );
        return IoStyle::Passthrough;
    }
    asked
}

/// Unmounts a volume that no process serves.
fn take_down(mountpoint: &Path) {
    if let Err(error) = unmount(mountpoint, Unmount::Detach) {
        log::error!("{} stays mounted: {error}", mountpoint.display());
    }
}

impl Session {
    /// One that goes on with the connection of a daemon that died.
    pub(crate) fn of_taken_over(
        agreement: Agreement,
        adapter: Adapter,
        keeping: Keeping,
        mountpoint: PathBuf,
        options: &FuseOptions,
        orphans: Vec<Ino>,
    ) -> Self {
        let connection = Connection::new(Arc::clone(&adapter.device), agreement, adapter.clone())
            .with_processor_latency(options.processor_latency)
            .kept(keeping);
        Self {
            connection: Arc::new(connection),
            adapter,
            threads: options.threads.max(1),
            mountpoint,
            is_taken_down_with_it: false,
            orphans: Some(orphans),
            keeping: Ok(()),
        }
    }

    /// The state that a supervisor has to keep, beside descriptors, for a later daemon; or why the connection ends with this one.
    ///
    /// # Errors
    /// The reason.
    pub fn state_to_keep(&self) -> Result<Vec<u8>, &'static str> {
        self.keeping.map(|()| self.connection.agreement.encode())
    }

    /// Serves requests until the volume is unmounted. Threads that hang in a tier which does not answer are left behind then.
    ///
    /// # Errors
    /// The connection to the kernel failed. The volume may then still be mounted, and answers `ENOTCONN`.
    pub fn wait(mut self) -> io::Result<()> {
        self.is_taken_down_with_it = false;
        self.adapter.fs.allow_rest();
        let is_taken_over = self.orphans.is_some();
        if is_taken_over {
            self.adapter.room.assume_short();
            // Before any request is read: requests that this process reads would be sent again, too, and be carried out twice.
            self.connection.device.resend()?;
        }
        // A mount that was not served as a whole from the beginning may hang the programs that use it.
        let workers = self.connection.start(self.threads).inspect_err(|_| {
            // One that was taken over is left to the next daemon.
            if !is_taken_over {
                take_down(&self.mountpoint);
            }
        })?;
        let must_end = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            adapter: self.adapter.clone(),
            connection: self.connection.clone(),
            must_end: Arc::clone(&must_end),
        };
        let watcher = thread::Builder::new().name("fuse-watch".to_owned()).spawn(move || watcher.run())?;
        let pending = self.start_serving_pending()?;
        if let Some(orphans) = self.orphans.take() {
            takeover::ask_for_orphans(&self.adapter, orphans)?;
        }
        let mut outcome = self.end_of_all(workers);
        self.adapter.pending.end();
        outcome = outcome.and(self.end_of_all(pending.into_iter().collect()));
        must_end.store(true, Ordering::Release);
        // The watcher of a volume that rests sleeps for long.
        self.adapter.fs.forbid_rest();
        let spare = watcher.join().map_err(|_| io::Error::other("the watcher of the FUSE transport panicked"))?;
        outcome = outcome.and(self.end_of_all(spare));
        outcome = outcome.and(self.end_of_all(self.connection.take_grown()));
        outcome
    }

    /// Starts the thread that serves requests waiting for a write-back, where the kernel collects writes.
    fn start_serving_pending(&self) -> io::Result<Option<Worker>> {
        if self.adapter.write_back == WriteBack::Off {
            return Ok(None);
        }
        let adapter = self.adapter.clone();
        let serve = move || {
            adapter.serve_pending();
            Ok(())
        };
        thread::Builder::new().name("fuse-pending".to_owned()).spawn(serve).map(Some)
    }

    /// Waits for the end of all of these, and returns the first error.
    fn end_of_all(&self, workers: Vec<Worker>) -> io::Result<()> {
        let began = Instant::now();
        let end = |worker| end_of(worker, &self.connection.device, &self.adapter, began);
        workers.into_iter().map(end).fold(Ok(()), io::Result::and)
    }

    /// Something that can unmount this volume while [`Session::wait`] runs.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { mountpoint: self.mountpoint.clone() }
    }

    /// How requests come, and how many of each kind came; it goes on counting.
    #[must_use]
    pub fn state(&self) -> Arc<ConnectionState> {
        self.connection.state.clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_taken_down_with_it && !self.connection.device.is_closed() {
            take_down(&self.mountpoint);
        }
    }
}

/// Waits for a thread of the transport; not for one that hangs in a tier while there is no connection any more.
fn end_of(thread: Worker, device: &Device, adapter: &Adapter, began: Instant) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let waiting = thread::Builder::new().name("fuse-end".to_owned()).spawn(move || {
        let outcome = thread.join().unwrap_or_else(|_| Err(io::Error::other("the FUSE transport panicked")));
        // The receiver may be gone.
        let _ = sender.send(outcome);
    });
    drop(waiting?);
    loop {
        match receiver.recv_timeout(if adapter.fs.is_resting() { RESTING_LOOK_INTERVAL } else { LOOK_INTERVAL }) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the FUSE transport ended")),
            Err(RecvTimeoutError::Timeout) => {
                let is_held_up = || began.elapsed() > HELD_PATIENCE && !adapter.fs.held_up_threads().is_empty();
                if device.is_closed() && (!adapter.fs.tiers_not_answering().is_empty() || is_held_up()) {
                    log::warn!("threads that serve requests and are stuck in a tier are left behind");
                    return Ok(());
                }
            }
        }
    }
}

impl Unmounter {
    /// Unmounts. Fails with `EBUSY` while files are open or the working directory of a process lies within.
    ///
    /// # Errors
    /// As `umount(2)`; a mount point that is not mounted any more is no error.
    pub fn unmount(&self) -> io::Result<()> {
        unmount(&self.mountpoint, Unmount::Idle)
    }

    /// Takes the volume out of the tree at once; open files remain usable until they are closed.
    ///
    /// # Errors
    /// As `umount(2)`; a mount point that is not mounted any more is no error.
    pub fn detach(&self) -> io::Result<()> {
        unmount(&self.mountpoint, Unmount::Detach)
    }

    /// The directory that the volume is mounted on.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}
