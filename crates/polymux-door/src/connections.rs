//! Connections that have shown no ticket yet.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use polymux_lease::message::{self, Rights};
use rustix::net::{SocketFlags, accept_with};

use crate::closing::Closers;
use crate::connection::Connection;
use crate::limits::CALLER_LIFE;
use crate::permits::Permits;

struct Caller {
    connection: Connection,
    since: Instant,
}

/// All of them, by number.
pub struct Callers {
    callers: BTreeMap<u64, Caller>,
    permits: Permits,
    closers: Closers,
    rights: Rights,
}

/// The kernel's answer to an accept.
pub enum Accepted {
    /// A connection, to be watched under this number.
    Caller(u64),
    /// One that was refused: its user has too many.
    Refused,
    /// No connection waits.
    None,
}

impl Callers {
    pub fn new(permits: Permits, rights: Rights) -> Self {
        Self { callers: BTreeMap::new(), permits, closers: Closers::default(), rights }
    }

    /// Accepts one connection.
    pub fn accept(&mut self, listener: &OwnedFd, next: &mut u64) -> io::Result<Accepted> {
        if !self.closers.are_left() {
            return Err(io::Error::other("connections that were refused are still being closed"));
        }
        let descriptor = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::AGAIN) => return Ok(Accepted::None),
            // It was gone before it was accepted.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => return Ok(Accepted::Refused),
            Err(error) => return Err(error.into()),
        };
        let peer = message::peer_of(&descriptor)?;
        let Some(permit) = self.permits.give(peer.uid) else {
            match self.rights {
                Rights::Refused => drop(descriptor),
                Rights::Possible => self.closers.close(descriptor),
            }
            return Ok(Accepted::Refused);
        };
        let number = *next;
        *next += 1;
        let connection = Connection::new(peer, self.rights, descriptor, permit);
        self.callers.insert(number, Caller { connection, since: Instant::now() });
        Ok(Accepted::Caller(number))
    }

    pub fn get(&self, number: u64) -> Option<&Connection> {
        self.callers.get(&number).map(|caller| &caller.connection)
    }

    /// Takes a connection out, which is closed when it is dropped.
    pub fn take(&mut self, number: u64) -> Option<Connection> {
        self.callers.remove(&number).map(|caller| caller.connection)
    }

    /// Closes those that took too long. Returns whether any is left.
    pub fn close_old(&mut self) -> bool {
        self.callers.retain(|_, caller| caller.since.elapsed() < CALLER_LIFE);
        !self.callers.is_empty()
    }
}
