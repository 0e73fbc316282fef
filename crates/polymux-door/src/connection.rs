//! A connection of a program, and how it is closed.
//!
//! Invariant: no thread that serves others closes a connection that may have descriptors of a stranger in it: the last close of one may wait for hours.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polymux_lease::message::{Peer, Rights};

use crate::closing;
use crate::permits::Permit;

/// A connection with its permit.
pub struct Connection {
    pub peer: Peer,
    rights: Rights,
    held: Option<(OwnedFd, Permit)>,
}

impl Connection {
    pub fn new(peer: Peer, rights: Rights, descriptor: OwnedFd, permit: Permit) -> Self {
        Self { peer, rights, held: Some((descriptor, permit)) }
    }

    pub fn rights(&self) -> Rights {
        self.rights
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_ref().expect("it is open until it is dropped").0.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        match self.rights {
            Rights::Refused => drop(held),
            // The permit goes with it, so that there are no more of these threads than permits.
            Rights::Possible => closing::spawn(move || drop(held)),
        }
    }
}
