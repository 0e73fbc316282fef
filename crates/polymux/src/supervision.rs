//! The supervisor of a mount: a process that keeps the state that must outlive a daemon, and starts the next one when that dies
//! (docs/design/0037).
//!
//! Invariants:
//! * There is one daemon at a time: the next one is started when the one before it is gone with all of its threads, so that its locks are
//!   free and no write of it is under way.
//! * All kept state is released when the mount ends, in whatever way: a connection that this process alone has would hang every program.
//! * A notification waits in the kernel for as long as it takes, also over the death of a daemon; each has a thread of its own.
//!
//! Lock order: `Kept` is a leaf; nothing waits with it.

mod child;
pub mod link;
mod messages;
mod restarts;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polymux_types::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use self::child::{Addressee, Child, watch_signals};
use self::messages::{ToDaemon, ToSupervisor, receive, send};
use self::restarts::{Next, Restarts};

/// Daemons that fail to take the mount over, one after the other, before a supervisor that is asked to end does so without them.
const TRIES_AT_THE_END: u32 = 3;

/// Pause after a daemon that could not even be started.
const START_PAUSE: Duration = Duration::from_millis(200);

/// How often a supervisor that waits before it starts the next daemon looks whether the mount is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How a daemon is started.
#[derive(Debug)]
pub struct DaemonCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables of its environment, beside those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the volume is mounted.
    pub mount_point: PathBuf,
}

/// State that outlives a daemon.
#[derive(Debug, Default)]
struct Kept {
    /// Descriptors of the connection to the kernel, the one that it was mounted with first.
    devices: Vec<OwnedFd>,
    /// The locked file of the volume.
    lock: Option<File>,
    /// State negotiated with the kernel; `None` before the volume is mounted.
    state: Option<Vec<u8>>,
    /// The mount ends with the daemon that lives now.
    is_let_go: bool,
}

impl Kept {
    /// Whether there is a mount that another daemon can serve.
    fn is_to_be_served(&self) -> bool {
        let is_open = self.devices.first().is_some_and(|device| !is_closed(device));
        is_open && self.state.is_some() && !self.is_let_go
    }
}

/// Whether the kernel has closed a connection.
fn is_closed(device: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(device, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut asked, Some(&at_once)), Ok(1..))
        && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Runs daemons, one after the other, until the mount ends; returns how the last one ended. The start messages of the first one are
/// given to `relay`.
///
/// # Errors
/// The first daemon cannot be started, or the state that must outlive it cannot be kept.
pub fn run(command: &DaemonCommand, relay: impl FnOnce(&str) -> Result<()>) -> Result<ExitStatus> {
    let memory = rustix::fs::memfd_create("polymux-open-files", MemfdFlags::CLOEXEC);
    let supervisor = Supervisor {
        command,
        memory: File::from(memory.context("no memory for open files")?),
        kept: Arc::default(),
        signals: watch_signals()?,
    };
    let first = supervisor.run_daemon(0, |line| {
        // The process that asked for the mount may be gone; the daemon serves, and needs this process.
        relay(line).unwrap_or_else(|error| log::warn!("the start of the mount cannot be reported: {error:#}"));
    });
    supervisor.go_on_after(first?)
}

/// The supervisor of one mount.
struct Supervisor<'a> {
    command: &'a DaemonCommand,
    /// In which open files are on record.
    memory: File,
    kept: Arc<Mutex<Kept>>,
    signals: Arc<Mutex<Addressee>>,
}

/// How a daemon ended, and how long it served before; `None` where it never did.
#[derive(Clone, Copy)]
struct Life {
    ended: ExitStatus,
    served: Option<Duration>,
}

impl Supervisor<'_> {
    /// Starts a daemon and waits for its end. Its start messages are given to `tell`.
    fn run_daemon(&self, generation: u64, tell: impl FnOnce(&str)) -> Result<Life> {
        let (ours, theirs) = messages::pair().context("no socket for the daemon")?;
        let mut daemon = Child::start(self.command, theirs, &self.signals)?;
        let ours = Arc::new(ours);
        if let Err(error) = give(&ours, &self.kept.lock(), &self.memory, generation) {
            log::warn!("the daemon does not take what is left of the one before it: {error}");
        }
        let kept = Arc::clone(&self.kept);
        let listener = thread::Builder::new().name("daemon".to_owned()).spawn(move || listen(&ours, &kept));
        if let Err(error) = &listener {
            // Its socket closes, and it goes on without a supervisor, or ends.
            log::error!("no thread that listens to the daemon: {error}");
        }
        let mut serves_since = None;
        if let Some(line) = daemon.first_line() {
            tell(&line);
            serves_since = is_ready(&line).then(Instant::now);
        }
        let ended = daemon.wait()?;
        if let Ok(listener) = listener {
            // Its end of the socket is closed, and everything that it said is heard.
            let _ = listener.join();
        }
        Ok(Life { ended, served: serves_since.map(|since| since.elapsed()) })
    }

    /// Starts the next daemons until the mount ends.
    fn go_on_after(&self, mut life: Life) -> Result<ExitStatus> {
        let mut restarts = Restarts::default();
        for generation in 1.. {
            if !self.kept.lock().is_to_be_served() {
                break;
            }
            let next = restarts.after(life.ended, life.served);
            let is_asked_to_end = self.signals.lock().is_asked_to_end();
            let pause = match next {
                Next::StartAfter(_) if is_asked_to_end && restarts.short_lives() >= TRIES_AT_THE_END => None,
                Next::StartAfter(pause) => Some(pause),
                Next::GiveUp => None,
            };
            let Some(pause) = pause else {
                self.give_up(life.ended);
                break;
            };
            let died_at = Instant::now();
            log::warn!("the daemon ended ({}); another one takes the mount over", life.ended);
            if !stays(&self.kept, pause) {
                self.note_end_without_daemon();
                break;
            }
            match self.run_daemon(generation, |line| log_start(line, died_at.elapsed())) {
                Ok(next) => life = next,
                Err(error) => {
                    // There may be no memory for a process, for a moment.
                    log::error!("{error:#}");
                    life.served = None;
                    thread::sleep(START_PAUSE);
                }
            }
        }
        Ok(life.ended)
    }

    /// The mount was taken out of the tree while no daemon lived: data that the last one had not written back is recovered by the next mount.
    fn note_end_without_daemon(&self) {
        if let Some(lock) = &self.kept.lock().lock {
            let reason = "its daemon had died, and no other one served it yet; the next mount recovers it";
            polymux_config::lock::note_unclean(lock, reason);
        }
    }

    /// Ends a mount that no daemon can serve.
    fn give_up(&self, ended: ExitStatus) {
        log::error!(
            "daemons of this mount end one after the other ({ended}): it is given up, and programs that have files open get \
             ENOTCONN; unmount, look into this log, and mount again"
        );
        // A notification that waits for a daemon has a copy of the connection, and would keep it open.
        if let Err(error) =
            rustix::mount::unmount(&self.command.mount_point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW)
        {
            log::warn!("{} is not unmounted: {error}", self.command.mount_point.display());
        }
    }
}

/// Waits; returns whether the mount is still there.
fn stays(kept: &Mutex<Kept>, pause: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < pause {
        thread::sleep(LOOK_INTERVAL.min(pause));
        if !kept.lock().is_to_be_served() {
            return false;
        }
    }
    true
}

/// Whether a daemon says that it serves.
fn is_ready(line: &str) -> bool {
    matches!(serde_json::from_str(line), Ok(crate::daemonize::Readiness::Ready { .. }))
}

fn log_start(line: &str, pause: Duration) {
    match serde_json::from_str(line) {
        Ok(crate::daemonize::Readiness::Ready { .. }) => {
            log::info!("another daemon serves the mount after {} ms", pause.as_millis());
        }
        Ok(crate::daemonize::Readiness::Failed(reason)) => log::error!("the mount cannot be taken over: {reason}"),
        Err(_) => log::error!("the daemon says {line:?}"),
    }
}

/// Sends a daemon its initial state.
fn give(socket: &OwnedFd, kept: &Kept, memory: &File, generation: u64) -> io::Result<()> {
    let begin = ToDaemon::Begin { generation, devices: kept.devices.len(), state: kept.state.clone() };
    send(socket, &begin, Some(memory.as_fd()))?;
    if kept.state.is_none() {
        return Ok(());
    }
    if let Some(lock) = &kept.lock {
        send(socket, &ToDaemon::Lock, Some(lock.as_fd()))?;
    }
    kept.devices.iter().try_for_each(|device| send(socket, &ToDaemon::Device, Some(device.as_fd())))
}

/// Serves the requests of a daemon until it is gone.
fn listen(socket: &Arc<OwnedFd>, kept: &Mutex<Kept>) {
    loop {
        let answered = match receive::<ToSupervisor>(socket) {
            Ok(Some((message, descriptor))) => serve(socket, kept, message, descriptor),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        match answered {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => {
                // It waits for no answer any more, and goes on without a supervisor.
                log::error!("the daemon cannot be understood, and has no supervisor any more: {error}");
                let _ = rustix::net::shutdown(&**socket, rustix::net::Shutdown::Both);
                return;
            }
        }
    }
}

fn serve(
    socket: &Arc<OwnedFd>,
    kept: &Mutex<Kept>,
    message: ToSupervisor,
    descriptor: Option<OwnedFd>,
) -> io::Result<()> {
    {
        let mut kept = kept.lock();
        match message {
            ToSupervisor::KeepDevice | ToSupervisor::KeepLock if descriptor.is_none() => {
                drop(kept);
                return send(socket, &ToDaemon::NotKept, None);
            }
            ToSupervisor::KeepDevice => kept.devices.extend(descriptor),
            ToSupervisor::KeepLock => kept.lock = descriptor.map(File::from),
            ToSupervisor::KeepState { bytes } => kept.state = Some(bytes),
            ToSupervisor::LetGo => {
                kept.is_let_go = true;
                return Ok(());
            }
            ToSupervisor::Notify { number, bytes } => {
                let device = kept.devices.first().map(OwnedFd::try_clone).transpose();
                drop(kept);
                let device = match device {
                    Ok(device) => device,
                    // The daemon waits for an answer.
                    Err(error) => {
                        let errno = Some(error.raw_os_error().unwrap_or(Errno::MFILE.raw_os_error()));
                        return send(socket, &ToDaemon::Notified { number, errno }, None);
                    }
                };
                return notify_in_background(Arc::clone(socket), device, number, bytes);
            }
        }
    }
    send(socket, &ToDaemon::Kept, None)
}

/// Writes a notification and tells the daemon the outcome, where it is still there then.
fn notify_in_background(socket: Arc<OwnedFd>, device: Option<OwnedFd>, number: u64, bytes: Vec<u8>) -> io::Result<()> {
    let answering = Arc::clone(&socket);
    let write = move || {
        let errno = device.map_or(Some(Errno::NODEV.raw_os_error()), |device| write_notification(&device, &bytes));
        // A daemon that is gone does not wait for it.
        let _ = send(&answering, &ToDaemon::Notified { number, errno }, None);
    };
    let started = thread::Builder::new().name("notification".to_owned()).spawn(write);
    if let Err(error) = started {
        log::error!("no thread for a notification: {error}");
        send(&socket, &ToDaemon::Notified { number, errno: Some(Errno::AGAIN.raw_os_error()) }, None)?;
    }
    Ok(())
}

/// Writes a notification to the kernel; returns the number of the error.
fn write_notification(device: &OwnedFd, bytes: &[u8]) -> Option<i32> {
    loop {
        match rustix::io::write(device, bytes) {
            Ok(_) => return None,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Some(error.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// A script in the place of a daemon.
    pub(super) fn shell(script: &str) -> DaemonCommand {
        DaemonCommand {
            program: "/bin/sh".into(),
            arguments: ["-c", script].map(OsString::from).into(),
            environment: Vec::new(),
            mount_point: "/nowhere".into(),
        }
    }

    /// The daemon's end of a socket that a supervisor listens to, and the thread that does.
    fn listening(kept: &Arc<Mutex<Kept>>) -> (OwnedFd, thread::JoinHandle<()>) {
        let (ours, theirs) = messages::pair().unwrap();
        let (ours, kept) = (Arc::new(ours), Arc::clone(kept));
        (theirs, thread::spawn(move || listen(&ours, &kept)))
    }

    #[test]
    fn a_daemon_that_keeps_nothing_is_not_replaced_and_its_word_is_passed_on() {
        let command = shell("echo a line; exit 3");
        let mut said = String::new();
        let ended = run(&command, |line| {
            said = line.to_owned();
            Ok(())
        });
        assert_eq!((ended.unwrap().into_raw() >> 8, said.trim_end()), (3, "a line"));
    }

    #[test]
    fn a_daemon_begins_with_what_was_kept_of_the_one_before() {
        let kept = Arc::default();
        let (theirs, listener) = listening(&kept);
        let file = tempfile::tempfile().unwrap();
        for message in [ToSupervisor::KeepLock, ToSupervisor::KeepDevice, ToSupervisor::KeepDevice] {
            send(&theirs, &message, Some(file.as_fd())).unwrap();
            assert!(matches!(receive(&theirs), Ok(Some((ToDaemon::Kept, None)))));
        }
        send(&theirs, &ToSupervisor::KeepState { bytes: vec![5] }, None).unwrap();
        assert!(matches!(receive(&theirs), Ok(Some((ToDaemon::Kept, None)))));
        assert!(kept.lock().is_to_be_served());
        // A notification that the kernel refuses is answered with its error.
        send(&theirs, &ToSupervisor::Notify { number: 9, bytes: vec![1] }, None).unwrap();
        let answer = receive::<ToDaemon>(&theirs).unwrap().unwrap().0;
        assert_eq!(answer, ToDaemon::Notified { number: 9, errno: None }, "a plain file takes it");
        drop(theirs);
        listener.join().unwrap();
        let (next, its) = messages::pair().unwrap();
        give(&next, &kept.lock(), &file, 1).unwrap();
        let (_, beginning) = link::Link::connect(its).unwrap();
        let inheritance = beginning.inheritance.unwrap();
        assert_eq!((beginning.generation, inheritance.devices.len(), inheritance.state), (1, 2, vec![5]));
        assert!(inheritance.lock.is_some());
        send(&next, &ToDaemon::Kept, None).unwrap();
        kept.lock().is_let_go = true;
        assert!(!kept.lock().is_to_be_served());
    }

    #[test]
    fn a_device_that_did_not_arrive_is_not_said_to_be_kept() {
        let (theirs, listener) = listening(&Arc::default());
        send(&theirs, &ToSupervisor::KeepDevice, None).unwrap();
        send(&theirs, &ToSupervisor::Notify { number: 1, bytes: vec![1] }, None).unwrap();
        let answer = receive::<ToDaemon>(&theirs).unwrap().unwrap().0;
        assert_ne!(answer, ToDaemon::Kept);
        drop(theirs);
        listener.join().unwrap();
    }

    #[test]
    fn a_daemon_keeps_its_supervisor_although_its_start_cannot_be_reported() {
        let command = shell("echo a line; exit 3");
        let ended = run(&command, |_| anyhow::bail!("the pipe is broken"));
        assert_eq!(ended.unwrap().code(), Some(3));
    }
}
