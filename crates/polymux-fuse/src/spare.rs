//! Threads that serve requests while others are stuck.
//!
//! fuser 0.18 begins with as many threads as it was told and never adds one. So each further thread is a session of its own
//! on the same connection: it is begun on a socket, where this program plays the kernel that asks for `INIT`, and then the
//! connection takes the place of the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::thread::JoinHandle;

use fuser::{Config, SessionACL};

use crate::adapter::Adapter;

const INIT: u32 = 26;
const HEADER_LENGTH: usize = 40;
const BODY_LENGTH: usize = 64;

/// The request with which a kernel begins a connection: a header, and the version and everything that a kernel can offer.
/// What is answered is of no interest, because the connection was begun long ago.
#[expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]
fn init_request() -> Vec<u8> {
    let length = u32::try_from(HEADER_LENGTH + BODY_LENGTH).expect("a request is short");
    let mut request = Vec::with_capacity(HEADER_LENGTH + BODY_LENGTH);
    request.extend_from_slice(&length.to_ne_bytes());
    request.extend_from_slice(&INIT.to_ne_bytes());
    request.extend_from_slice(&1_u64.to_ne_bytes());
    request.resize(HEADER_LENGTH, 0);
    for word in [7_u32, 40, 1 << 20, u32::MAX, u32::MAX] {
        request.extend_from_slice(&word.to_ne_bytes());
    }
    request.resize(HEADER_LENGTH + BODY_LENGTH, 0);
    request
}

/// Starts one more thread on a connection.
pub(crate) fn start(
    adapter: Adapter,
    connection: BorrowedFd<'_>,
    acl: SessionACL,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let (kernel, program) = UnixDatagram::pair()?;
    kernel.send(&init_request())?;
    let mut config = Config::default();
    config.acl = acl;
    config.n_threads = Some(1);
    let session = fuser::Session::from_fd(adapter, OwnedFd::from(program), acl, config)?;
    replace(session.as_fd(), connection)?;
    Ok(session.spawn()?.guard)
}

/// Makes a descriptor of this process refer to what another one refers to.
fn replace(target: BorrowedFd<'_>, source: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for as long as they are borrowed; what `target` referred to is a socket that nobody
    // else knows.
    let outcome = unsafe { libc::dup3(source.as_raw_fd(), target.as_raw_fd(), libc::O_CLOEXEC) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
