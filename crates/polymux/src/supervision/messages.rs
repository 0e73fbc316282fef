//! The messages between a supervisor and its daemon.
//!
//! Invariants: each message is one packet with at most one descriptor, and arrives whole or not at all. Reading from a peer that is gone
//! is no error.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest message in bytes. The kept state of a connection and a notification are some tens of bytes.
const LENGTH_MAX: usize = 16 << 10;

/// Messages of a daemon.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// Comes with a descriptor of the connection to the kernel.
    KeepDevice,
    /// Comes with the locked file of the volume.
    KeepLock,
    /// State negotiated with the kernel. From here on a daemon that dies is replaced.
    KeepState {
        /// For the next daemon.
        bytes: Vec<u8>,
    },
    /// A notification to be written to the connection.
    Notify {
        /// Comes back with the outcome.
        number: u64,
        /// The notification.
        bytes: Vec<u8>,
    },
    /// The mount ends, or ends with this daemon: no other one is to be started.
    LetGo,
}

/// Messages of a supervisor.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDaemon {
    /// The first message. Comes with the memory in which open files are on record.
    Begin {
        /// Number of daemons before this one.
        generation: u64,
        /// Descriptors of the connection that follow.
        devices: usize,
        /// State kept by the last daemon; absent for the first one.
        state: Option<Vec<u8>>,
    },
    /// Comes with the locked file of the volume, before devices.
    Lock,
    /// Comes with a descriptor of the connection.
    Device,
    /// Something was kept.
    Kept,
    /// It was not: its descriptor did not arrive, because this process has too many.
    NotKept,
    /// A notification was written.
    Notified {
        /// The one of the request.
        number: u64,
        /// The error number of the kernel.
        errno: Option<i32>,
    },
}

/// Two ends of a connection.
///
/// # Errors
/// As `socketpair(2)`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// Sends a message.
///
/// # Errors
/// As `sendmsg(2)`; `BrokenPipe` where the peer is gone.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > LENGTH_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the peer is gone"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for a message; `None` where the peer is gone.
///
/// # Errors
/// As `recvmsg(2)`, and for a packet that is no message.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; LENGTH_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            // A peer that died with something unread is reported once, before its messages, which come next.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..length])?, descriptor)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_message_comes_whole_with_its_descriptor() {
        let (ours, theirs) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"within").unwrap();
        send(&ours, &ToSupervisor::KeepDevice, Some(file.as_fd())).unwrap();
        send(&ours, &ToSupervisor::Notify { number: 7, bytes: vec![0, 255] }, None).unwrap();
        let (message, descriptor) = receive::<ToSupervisor>(&theirs).unwrap().unwrap();
        assert_eq!(message, ToSupervisor::KeepDevice);
        let (mut copy, mut text) = (File::from(descriptor.unwrap()), String::new());
        copy.rewind().unwrap();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "within");
        let (message, descriptor) = receive::<ToSupervisor>(&theirs).unwrap().unwrap();
        assert_eq!(message, ToSupervisor::Notify { number: 7, bytes: vec![0, 255] });
        assert!(descriptor.is_none());
    }

    #[test]
    fn a_peer_that_is_gone_is_no_message_and_takes_none() {
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        assert!(receive::<ToDaemon>(&ours).unwrap().is_none());
        let error = send(&ours, &ToSupervisor::LetGo, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_a_peer_said_before_it_died_is_heard_although_it_did_not_read_everything() {
        let (ours, theirs) = pair().unwrap();
        send(&ours, &ToDaemon::Kept, None).unwrap();
        send(&theirs, &ToSupervisor::LetGo, None).unwrap();
        drop(theirs);
        assert_eq!(receive::<ToSupervisor>(&ours).unwrap().unwrap().0, ToSupervisor::LetGo);
        assert!(receive::<ToSupervisor>(&ours).unwrap().is_none());
    }
}
