//! The two messages at the door of a daemon: a ticket, and descriptors for it. Each connection serves one lease, and ends with it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use polymux_types::{LeaseTicket, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::VERSION;

/// Most objects of a lease: as many as a volume has tiers.
pub const OBJECTS_MAX: usize = 64;
/// The life of the daemon, the map and the counters come before the objects.
const FIXED: usize = 3;
/// "PmxL": connections that are meant for something else are refused.
const MAGIC: u32 = 0x4c78_6d50;
const REQUEST_LENGTH: usize = 24;
const REPLY_LENGTH: usize = 32;
/// How long a program waits at a door.
const PATIENCE: Duration = Duration::from_millis(250);

/// Descriptors of a lease.
#[derive(Debug)]
pub struct Granted {
    /// Of [`crate::Life`].
    pub life: OwnedFd,
    /// Of [`crate::LeasedMap`].
    pub map: OwnedFd,
    /// Of [`crate::UseCounts`].
    pub counts: OwnedFd,
    /// Opened to be read, in the order of the map.
    pub objects: Vec<OwnedFd>,
}

/// The address of a door.
///
/// # Errors
/// The name is too long, which it is not.
pub fn address_of(door: &Secret) -> io::Result<SocketAddrUnix> {
    let name: String = door.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(SocketAddrUnix::new_abstract_name(format!("polymux-{name}").as_bytes())?)
}

/// Whether callers can send descriptors to a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The kernel refuses them (Linux 6.16).
    Refused,
    /// They can, and the last close of one may take long: of a TCP socket that lingers, of a file whose server does not answer. Closing the connection, and
    /// receiving the message, would wait for that.
    Possible,
}

/// `SO_PASSRIGHTS` of include/uapi/asm-generic/socket.h, Linux 6.16.
const PASS_RIGHTS: libc::c_int = 83;

/// Opens a door, which others connect to.
///
/// # Errors
/// As `bind(2)` and `listen(2)`.
pub fn open_door(door: &Secret, waiting_max: i32) -> io::Result<(OwnedFd, Rights)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Connections inherit it.
    let rights = if refuse_rights(&socket) { Rights::Refused } else { Rights::Possible };
    rustix::net::bind(&socket, &address_of(door)?)?;
    rustix::net::listen(&socket, waiting_max)?;
    Ok((socket, rights))
}

fn refuse_rights(socket: &OwnedFd) -> bool {
    let no: libc::c_int = 0;
    let length = libc::socklen_t::try_from(size_of_val(&no)).expect("it is short");
    // SAFETY: the kernel reads as many bytes of the number as it has.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, PASS_RIGHTS, std::ptr::from_ref(&no).cast(), length)
    };
    outcome == 0
}

/// A process at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number; 0 where this process cannot see it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

/// The process that connected.
///
/// # Errors
/// As `getsockopt(2)`.
pub fn peer_of(connection: &OwnedFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = libc::socklen_t::try_from(size_of_val(&credentials)).expect("it is short");
    let place = std::ptr::from_mut(&mut credentials).cast();
    // SAFETY: the kernel writes no more than the length says, and any numbers are good ones.
    let outcome = unsafe {
        libc::getsockopt(connection.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length)
    };
    if outcome == 0 { Ok(Peer { pid: credentials.pid, uid: credentials.uid }) } else { Err(io::Error::last_os_error()) }
}

/// `SO_PEERPIDFD` of include/uapi/asm-generic/socket.h, Linux 6.5.
const PEER_PROCESS: libc::c_int = 77;

/// The process that connected, by a descriptor: its number may be that of another one by now.
///
/// # Errors
/// As `getsockopt(2)`: the process is gone, or the kernel does not know the option.
pub fn process_of(connection: impl AsFd) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of_val(&descriptor)).expect("it is short");
    let place = std::ptr::from_mut(&mut descriptor).cast();
    // SAFETY: the kernel writes no more than the length says, and any number is a good one.
    let outcome = unsafe {
        libc::getsockopt(connection.as_fd().as_raw_fd(), libc::SOL_SOCKET, PEER_PROCESS, place, &raw mut length)
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The time that a program still has for a daemon. The kernel has the same bytes, so it waits for none that is busy, or stopped; signals do not make it longer.
#[derive(Clone, Copy, Debug)]
struct Patience(Instant);

impl Patience {
    fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Sets the rest of it for the next call in a direction; `TimedOut` where there is none.
    fn set(&self, socket: impl AsFd, direction: Timeout) -> io::Result<()> {
        let left = self.left()?;
        // A time of 0 would be for ever.
        Ok(sockopt::set_socket_timeout(socket, direction, Some(left.max(Duration::from_millis(1))))?)
    }
}

/// The program's side: shows a ticket, and waits for the descriptors. Returns the connection, which keeps the lease.
///
/// # Errors
/// There is no such door here (another network name space, a dead daemon), its keeper is not the daemon that gave the ticket, or it takes longer than a
/// quarter of a second.
pub fn redeem(ticket: &LeaseTicket) -> io::Result<Result<(OwnedFd, Granted), u32>> {
    let visit = Visit::begin(connection()?, ticket)?;
    visit.wait()?;
    Ok(visit.receive()?.map(|granted| (visit.end(), granted)))
}

/// A socket that is not connected yet.
///
/// # Errors
/// As `socket(2)`.
pub fn connection() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// [`redeem`] in steps, for a program that receives descriptors at moments of its choice.
#[derive(Debug)]
pub struct Visit<S> {
    socket: S,
    proof: Secret,
    patience: Patience,
}

impl<S: AsFd> Visit<S> {
    /// Connects a socket with a door, and shows the ticket.
    ///
    /// # Errors
    /// As [`redeem`].
    pub fn begin(socket: S, ticket: &LeaseTicket) -> io::Result<Self> {
        let patience = Patience(Instant::now() + PATIENCE);
        patience.set(&socket, Timeout::Send)?;
        rustix::net::connect(&socket, &address_of(&ticket.door)?)?;
        let mut request = [0; REQUEST_LENGTH];
        request[..4].copy_from_slice(&MAGIC.to_le_bytes());
        request[4..8].copy_from_slice(&VERSION.to_le_bytes());
        request[8..].copy_from_slice(&ticket.ticket);
        patience.set(&socket, Timeout::Send)?;
        rustix::net::send(&socket, &request, SendFlags::NOSIGNAL)?;
        Ok(Self { socket, proof: ticket.proof, patience })
    }

    /// Waits until the daemon has answered.
    ///
    /// # Errors
    /// It does not in time.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            let left = Timespec::try_from(self.patience.left()?).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                other => return other.map(drop).map_err(Into::into),
            }
        }
    }

    /// Receives the descriptors, at once if the answer was waited for; or the code of a refusal.
    ///
    /// # Errors
    /// As [`redeem`].
    pub fn receive(&self) -> io::Result<Result<Granted, u32>> {
        let (reply, mut descriptors) = receive_reply(&self.socket, self.patience)?;
        let word = |at: usize| u32::from_le_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        let wrong = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        if word(0) != MAGIC || word(4) != VERSION || reply[16..32] != self.proof {
            return wrong("the door of a daemon is kept by another process");
        }
        if word(8) != 0 {
            return Ok(Err(word(8)));
        }
        let count = usize::try_from(word(12)).unwrap_or(usize::MAX);
        if count > OBJECTS_MAX || descriptors.len() != FIXED + count {
            return wrong("descriptors of a lease are missing: this process may have too many open files");
        }
        let objects = descriptors.split_off(FIXED);
        let Ok([life, map, counts]) = <[OwnedFd; FIXED]>::try_from(descriptors) else {
            unreachable!("they were counted")
        };
        Ok(Ok(Granted { life, map, counts, objects }))
    }

    /// The connection, which keeps the lease.
    pub fn end(self) -> S {
        self.socket
    }
}

fn receive_reply(socket: impl AsFd, patience: Patience) -> io::Result<([u8; REPLY_LENGTH], Vec<OwnedFd>)> {
    let mut reply = [0; REPLY_LENGTH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FIXED + OBJECTS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut reply)];
    let received = loop {
        patience.set(&socket, Timeout::Recv)?;
        match rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes != REPLY_LENGTH {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed its door"));
    }
    Ok((reply, descriptors))
}

/// The daemon's side: the ticket that a connection shows. `None` where it has not shown it yet. Where descriptors may have come
/// with the message, it stays where it is: to take it means to close them ([`Rights`]). A refusal then reaches the program as a connection that was reset.
///
/// # Errors
/// It is closed, or shows something else.
pub fn shown_ticket(connection: impl AsFd, rights: Rights) -> io::Result<Option<Secret>> {
    let flags = match rights {
        Rights::Refused => RecvFlags::DONTWAIT,
        Rights::Possible => RecvFlags::DONTWAIT | RecvFlags::PEEK,
    };
    let mut request = [0; REQUEST_LENGTH];
    let count = match rustix::net::recv(connection, &mut request, flags) {
        Ok((_, count)) => count,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("four bytes"));
    if count != REQUEST_LENGTH || word(0) != MAGIC || word(4) != VERSION {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no ticket was shown"));
    }
    Ok(Some(request[8..].try_into().expect("sixteen bytes")))
}

/// Descriptors to be handed out, in their order.
#[derive(Clone, Copy, Debug)]
pub struct ToGrant<'a> {
    /// Of [`crate::Life`].
    pub life: BorrowedFd<'a>,
    /// Of [`crate::LeasedMap`].
    pub map: BorrowedFd<'a>,
    /// Of [`crate::UseCounts`].
    pub counts: BorrowedFd<'a>,
    /// At most [`OBJECTS_MAX`].
    pub objects: &'a [OwnedFd],
}

/// Answers with descriptors, or with the code of a refusal. Never waits.
///
/// # Errors
/// As `sendmsg(2)`: the program is gone.
pub fn answer(connection: impl AsFd, proof: &Secret, answer: Result<ToGrant<'_>, u32>) -> io::Result<()> {
    let (code, descriptors) = match answer {
        Ok(granted) => {
            let objects = granted.objects.iter().map(AsFd::as_fd);
            (0, [granted.life, granted.map, granted.counts].into_iter().chain(objects).collect::<Vec<_>>())
        }
        Err(code) => (code, Vec::new()),
    };
    let objects = u32::try_from(descriptors.len().saturating_sub(FIXED)).expect("there are few");
    let mut reply = [0; REPLY_LENGTH];
    for (at, word) in [(0, MAGIC), (4, VERSION), (8, code), (12, objects)] {
        reply[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    reply[16..].copy_from_slice(proof);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FIXED + OBJECTS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
        assert!(fits, "a lease has at most {OBJECTS_MAX} objects");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(connection, &[IoSlice::new(&reply)], &mut control, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair_of(door: Secret) -> (OwnedFd, LeaseTicket) {
        let (listening, _) = open_door(&door, 4).unwrap();
        (listening, LeaseTicket { door, ticket: [5; 16], proof: [6; 16] })
    }

    /// Serves one connection of a door, as a daemon with this proof would.
    fn serve(listening: &OwnedFd, proof: Secret, code: Option<u32>) {
        let connection = loop {
            match rustix::net::accept(listening) {
                Ok(connection) => break connection,
                Err(_) => std::thread::yield_now(),
            }
        };
        let shown = loop {
            if let Some(shown) = shown_ticket(&connection, Rights::Refused).unwrap() {
                break shown;
            }
            std::thread::yield_now();
        };
        assert_eq!(shown, [5; 16]);
        let file = std::fs::File::open("/dev/null").unwrap();
        let objects = [file.try_clone().unwrap().into(), file.try_clone().unwrap().into()];
        let granted = ToGrant { life: file.as_fd(), map: file.as_fd(), counts: file.as_fd(), objects: &objects };
        answer(&connection, &proof, code.map_or(Ok(granted), Err)).unwrap();
    }

    #[test]
    fn a_ticket_is_exchanged_for_descriptors_or_a_refusal() {
        let (listening, ticket) = pair_of([11; 16]);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listening, ticket.proof, None));
            let (_connection, granted) = redeem(&ticket).unwrap().unwrap();
            assert_eq!(granted.objects.len(), 2);
            scope.spawn(|| serve(&listening, ticket.proof, Some(9)));
            assert_eq!(redeem(&ticket).unwrap().unwrap_err(), 9);
        });
    }

    #[test]
    fn where_descriptors_may_come_with_a_ticket_it_is_looked_at_and_left() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut request = [5; REQUEST_LENGTH];
        request[..4].copy_from_slice(&MAGIC.to_le_bytes());
        request[4..8].copy_from_slice(&VERSION.to_le_bytes());
        assert_eq!(shown_ticket(&ours, Rights::Possible).unwrap(), None);
        rustix::net::send(&theirs, &request, SendFlags::NOSIGNAL).unwrap();
        for _ in 0..2 {
            assert_eq!(shown_ticket(&ours, Rights::Possible).unwrap(), Some([5; 16]));
        }
        assert_eq!(shown_ticket(&ours, Rights::Refused).unwrap(), Some([5; 16]));
        assert_eq!(shown_ticket(&ours, Rights::Refused).unwrap(), None);
        assert_eq!(peer_of(&ours).unwrap().uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn another_keeper_of_the_door_is_not_believed() {
        let (listening, ticket) = pair_of([12; 16]);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listening, [7; 16], None));
            assert!(redeem(&ticket).is_err());
        });
        drop(listening);
        assert!(redeem(&ticket).is_err(), "there is no door any more");
    }
}
