//! The daemon's end of the connection to its supervisor.
//!
//! Invariants:
//! * One thread reads the messages of the supervisor. Any number of threads wait for the outcome of a notification, one for something to be kept.
//! * A supervisor that is gone ends every wait with `BrokenPipe`, and the daemon goes on without it.
//!
//! Lock order: `keeping`, then `state`, which is a leaf.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use polymux_fuse::Keeper;
use polymux_types::sync::{Condvar, Mutex};

use super::messages::{ToDaemon, ToSupervisor, receive, send};

/// First messages of the supervisor to a daemon.
#[derive(Debug)]
pub struct Beginning {
    /// Number of daemons before this one.
    pub generation: u64,
    /// Memory in which open files are on record.
    pub open_files: File,
    /// State left by the last daemon; `None` for the first one.
    pub inheritance: Option<Inheritance>,
}

/// State of the previous daemon.
#[derive(Debug)]
pub struct Inheritance {
    /// Descriptors of the connection to the kernel, the first one first.
    pub devices: Vec<OwnedFd>,
    /// The locked file of the volume.
    pub lock: Option<OwnedFd>,
    /// State negotiated with the kernel.
    pub state: Vec<u8>,
}

/// The connection to the supervisor.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    /// Held while a thread waits until the supervisor has kept something.
    keeping: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last notification.
    last: u64,
    /// Notifications that were answered and not looked at yet.
    outcomes: HashMap<u64, Option<i32>>,
    /// Things that were kept.
    kept: u64,
    /// Things that the supervisor could not keep.
    not_kept: u64,
    is_gone: bool,
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the supervisor of this mount is gone")
}

impl Link {
    /// Receives the initial state from the supervisor, and goes on listening to it.
    ///
    /// # Errors
    /// The supervisor ends, or is of another version.
    pub fn connect(socket: OwnedFd) -> Result<(Arc<Self>, Beginning)> {
        let beginning = begin(&socket)?;
        let link = Arc::new(Self { socket, keeping: Mutex::new(()), state: Mutex::default(), changed: Condvar::new() });
        let listening = Arc::clone(&link);
        thread::Builder::new().name("supervisor".to_owned()).spawn(move || listening.listen())?;
        Ok((link, beginning))
    }

    /// Has it keep the locked file of the volume.
    ///
    /// # Errors
    /// The supervisor is gone, or as `sendmsg(2)`.
    pub fn keep_lock(&self, lock: BorrowedFd<'_>) -> io::Result<()> {
        self.have_kept(&ToSupervisor::KeepLock, Some(lock))
    }

    /// Has it keep the state negotiated with the kernel. From here on another daemon is started when this one dies.
    ///
    /// # Errors
    /// The supervisor is gone, or as `sendmsg(2)`.
    pub fn keep_state(&self, state: &[u8]) -> io::Result<()> {
        self.have_kept(&ToSupervisor::KeepState { bytes: state.to_owned() }, None)
    }

    /// No other daemon is to be started after this one.
    pub fn let_go(&self) {
        if let Err(error) = send(&self.socket, &ToSupervisor::LetGo, None) {
            log::debug!("the supervisor is not told that the mount ends: {error}");
        }
    }

    fn have_kept(&self, message: &ToSupervisor, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let _one_at_a_time = self.keeping.lock();
        let before = {
            let state = self.state.lock();
            (state.kept, state.not_kept)
        };
        send(&self.socket, message, descriptor)?;
        let mut state = self.state.lock();
        while (state.kept, state.not_kept) == before {
            if state.is_gone {
                return Err(gone());
            }
            self.changed.wait(&mut state);
        }
        if state.not_kept > before.1 {
            return Err(io::Error::other("the supervisor of this mount cannot keep another descriptor"));
        }
        Ok(())
    }

    fn listen(&self) {
        loop {
            let message = receive::<ToDaemon>(&self.socket).unwrap_or_else(|error| {
                log::error!("the supervisor of this mount cannot be understood: {error}");
                None
            });
            let mut state = self.state.lock();
            match message {
                Some((ToDaemon::Kept, _)) => state.kept += 1,
                Some((ToDaemon::NotKept, _)) => state.not_kept += 1,
                Some((ToDaemon::Notified { number, errno }, _)) => {
                    state.outcomes.insert(number, errno);
                }
                Some((other, _)) => log::error!("the supervisor of this mount says what it says only once: {other:?}"),
                None => {
                    log::warn!("the supervisor of this mount is gone: the mount ends with this process");
                    state.is_gone = true;
                }
            }
            let is_gone = state.is_gone;
            drop(state);
            self.changed.notify_all();
            if is_gone {
                return;
            }
        }
    }
}

impl Keeper for Link {
    fn keep(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.have_kept(&ToSupervisor::KeepDevice, Some(device))
    }

    fn notify(&self, notification: &[u8]) -> io::Result<()> {
        let number = {
            let mut state = self.state.lock();
            if state.is_gone {
                return Err(gone());
            }
            state.last += 1;
            state.last
        };
        send(&self.socket, &ToSupervisor::Notify { number, bytes: notification.to_owned() }, None)?;
        let mut state = self.state.lock();
        loop {
            if let Some(errno) = state.outcomes.remove(&number) {
                return errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
            }
            if state.is_gone {
                return Err(gone());
            }
            self.changed.wait(&mut state);
        }
    }
}

/// Reads the initial state of a daemon.
fn begin(socket: &OwnedFd) -> Result<Beginning> {
    let next = || receive::<ToDaemon>(socket)?.context("it ended");
    let (ToDaemon::Begin { generation, devices, state }, Some(memory)) = next()? else {
        bail!("it does not begin as it should");
    };
    let Some(state) = state else {
        return Ok(Beginning { generation, open_files: memory.into(), inheritance: None });
    };
    let mut inheritance = Inheritance { devices: Vec::with_capacity(devices), lock: None, state };
    while inheritance.devices.len() < devices {
        match next()? {
            (ToDaemon::Lock, Some(lock)) => inheritance.lock = Some(lock),
            (ToDaemon::Device, Some(device)) => inheritance.devices.push(device),
            (other, _) => bail!("it gives {other:?} where a device was expected"),
        }
    }
    Ok(Beginning { generation, open_files: memory.into(), inheritance: Some(inheritance) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::messages::pair;
    use super::*;

    fn connected() -> (OwnedFd, Arc<Link>) {
        let (theirs, ours) = pair().unwrap();
        let memory = tempfile::tempfile().unwrap();
        let begin = ToDaemon::Begin { generation: 0, devices: 0, state: None };
        send(&theirs, &begin, Some(memory.as_fd())).unwrap();
        let (link, beginning) = Link::connect(ours).unwrap();
        assert!(beginning.inheritance.is_none() && beginning.generation == 0);
        (theirs, link)
    }

    #[test]
    fn a_daemon_inherits_the_lock_and_all_devices() {
        let (theirs, ours) = pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let begin = ToDaemon::Begin { generation: 3, devices: 2, state: Some(vec![1, 2]) };
        send(&theirs, &begin, Some(file.as_fd())).unwrap();
        for message in [ToDaemon::Lock, ToDaemon::Device, ToDaemon::Device] {
            send(&theirs, &message, Some(file.as_fd())).unwrap();
        }
        let (_, beginning) = Link::connect(ours).unwrap();
        let inheritance = beginning.inheritance.unwrap();
        assert_eq!((beginning.generation, inheritance.devices.len(), inheritance.state), (3, 2, vec![1, 2]));
        assert!(inheritance.lock.is_some());
    }

    #[test]
    fn outcomes_reach_whoever_waits_for_them_in_whatever_order() {
        let (theirs, link) = connected();
        let ask = |byte: u8| {
            let link = Arc::clone(&link);
            thread::spawn(move || link.notify(&[byte]).map_err(|error| error.raw_os_error()))
        };
        let (first, second) = (ask(1), ask(2));
        let mut asked = HashMap::new();
        for _ in 0..2 {
            let Some((ToSupervisor::Notify { number, bytes }, _)) = receive(&theirs).unwrap() else { panic!() };
            asked.insert(bytes[0], number);
        }
        send(&theirs, &ToDaemon::Notified { number: asked[&2], errno: Some(libc::ENOENT) }, None).unwrap();
        assert_eq!(second.join().unwrap(), Err(Some(libc::ENOENT)));
        send(&theirs, &ToDaemon::Notified { number: asked[&1], errno: None }, None).unwrap();
        assert_eq!(first.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_supervisor_that_goes_ends_every_wait() {
        let (theirs, link) = connected();
        let waiting = Arc::clone(&link);
        let waiting = thread::spawn(move || waiting.keep_state(&[1]).unwrap_err().kind());
        assert!(receive::<ToSupervisor>(&theirs).unwrap().is_some());
        drop(theirs);
        assert_eq!(waiting.join().unwrap(), io::ErrorKind::BrokenPipe);
        assert_eq!(link.notify(&[1]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        link.let_go();
    }
}
