//! `/dev/fuse`: one descriptor of a connection.
//!
//! Invariants:
//! * An answer is written to the descriptor that its request was read from: the kernel looks for it nowhere else.
//! * A closed connection is no error for a thread that answers: no program waits for that answer any more.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use polymux_types::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Setter, opcode};

use crate::keeping::Keeper;
use crate::wire::{answer_header, expiry, outdated_pages, resend};

const PATH: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// A descriptor of a connection to the kernel.
#[derive(Debug)]
pub struct Device {
    descriptor: OwnedFd,
    /// Who carries out notifications, where that is another process.
    notifier: OnceLock<Arc<dyn Keeper>>,
}

impl From<OwnedFd> for Device {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor, notifier: OnceLock::new() }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Device {
    /// A descriptor that belongs to no connection yet.
    ///
    /// # Errors
    /// As `open(2)`.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self::from(rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// A further descriptor of the same connection, with a queue of answers of its own.
    ///
    /// # Errors
    /// As `open(2)` and `ioctl(2)`.
    pub(crate) fn clone_queue(&self) -> io::Result<Self> {
        let clone = Self::open()?;
        let number = u32::try_from(self.descriptor.as_raw_fd()).expect("an open descriptor is not negative");
        // SAFETY: the kernel reads one 32-bit number, the descriptor to clone, through the pointer that it is given.
        let request = unsafe { Setter::<CLONE, u32>::new(number) };
        // SAFETY: `clone` is a descriptor of /dev/fuse, whose driver knows this request.
        unsafe { rustix::ioctl::ioctl(&clone.descriptor, request) }?;
        Ok(clone)
    }

    /// Makes [`Device::receive_if_any`] possible, and [`Device::receive`] a busy loop. Not for the descriptor that a connection was
    /// mounted with, which others share.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub(crate) fn never_wait(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_setfl(&self.descriptor, OFlags::RDWR | OFlags::NONBLOCK)?)
    }

    /// Makes [`Device::receive`] wait, which an earlier process may have turned off.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub(crate) fn wait_for_requests(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_setfl(&self.descriptor, OFlags::RDWR)?)
    }

    /// Reads a request if one is there; returns its length.
    ///
    /// # Errors
    /// As `read(2)`.
    pub(crate) fn receive_if_any(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        use rustix::io::Errno as Number;
        match rustix::io::read(&self.descriptor, buffer) {
            Ok(length) => Ok(Some(length)),
            // Another thread was sooner, the request was taken back, or the connection is closed, which the waiting thread finds out.
            Err(Number::NOENT | Number::INTR | Number::AGAIN | Number::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a request and reads it; returns its length, or `None` when the connection is closed.
    ///
    /// # Errors
    /// As `read(2)`.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        use rustix::io::Errno as Number;
        loop {
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                // Taken back before it was read, or nothing about the request at all.
                Err(Number::NOENT | Number::INTR | Number::AGAIN) => {}
                Err(Number::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, unique: u64, outcome: Result<(), Errno>, body: &[u8]) {
        use rustix::io::Errno as Number;
        let header = answer_header(unique, outcome, body.len());
        loop {
            match rustix::io::writev(&self.descriptor, &[IoSlice::new(&header), IoSlice::new(body)]) {
                // The program was killed, or the connection closed.
                Ok(_) | Err(Number::NOENT | Number::NODEV) => return,
                Err(Number::INTR | Number::AGAIN) => {}
                Err(error) if body.is_empty() => {
                    log::error!("the kernel takes no answer to request {unique}: {error}");
                    return;
                }
                Err(error) => {
                    log::error!("the kernel takes no answer of {} bytes to request {unique}: {error}", body.len());
                    return self.answer(unique, Err(Errno::EIO), &[]);
                }
            }
        }
    }

    /// Has another process carry out notifications from now on: one that waits in the kernel keeps this one from ending.
    pub fn notify_through(&self, keeper: Arc<dyn Keeper>) {
        assert!(self.notifier.set(keeper).is_ok(), "a connection has one keeper");
    }

    /// Tells the kernel that the attributes which it keeps of an inode are outdated; it asks before it uses them again. May be
    /// called while a request is served: it neither takes the lock of the inode nor touches a page.
    pub fn expire_attributes(&self, node: u64) {
        self.notify(node, &expiry(node));
    }

    /// Whether the kernel has an inode; so it seems where that cannot be found out. It may have to wait until one that it gives up is
    /// written back: never called before requests are served, nor by a thread that serves them.
    #[must_use]
    pub fn has_inode(&self, node: u64) -> bool {
        !matches!(self.send(&expiry(node)), Err(error) if error.raw_os_error() == Some(libc::ENOENT))
    }

    /// Makes the kernel resend the requests that were read and not answered, marked as such ([`crate::wire::Header::is_resent`]).
    ///
    /// # Errors
    /// As `write(2)`.
    pub fn resend(&self) -> io::Result<()> {
        self.send_directly(&resend())
    }

    /// Makes the kernel write back all pages of an inode that programs changed, forget all that it has, and its attributes with them. Returns when they
    /// were written. Never called by a thread that serves requests, nor with a lock of anything that a write needs: the kernel sends
    /// the writes meanwhile.
    pub fn write_back(&self, node: u64) {
        self.notify(node, &outdated_pages(node));
    }

    /// As [`Self::write_back`]; whether the kernel has no page of the inode that is older than this call.
    #[must_use]
    pub fn has_written_back(&self, node: u64) -> bool {
        match self.send(&outdated_pages(node)) {
            Ok(()) => true,
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT)),
        }
    }

    /// Makes the kernel forget the names that it keeps of a directory. It waits while it gives such names to a program: called where the kernel keeps
    /// programs from listing the directory, or by a thread for which others do not wait.
    pub fn forget_listing(&self, node: u64) {
        self.notify(node, &outdated_pages(node));
    }

    fn notify(&self, node: u64, notification: &[u8]) {
        match self.send(notification) {
            Ok(()) => {}
            // The kernel does not keep that inode any more, or the connection is closed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(error) => log::error!("the kernel is not told that what it has of inode {node} is outdated: {error}"),
        }
    }

    /// Sends a notification, by another process where there is one for that.
    fn send(&self, notification: &[u8]) -> io::Result<()> {
        match self.notifier.get().map(|keeper| keeper.notify(notification)) {
            None => self.send_directly(notification),
            Some(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => self.send_directly(notification),
            Some(outcome) => outcome,
        }
    }

    fn send_directly(&self, notification: &[u8]) -> io::Result<()> {
        use rustix::io::Errno as Number;
        loop {
            match rustix::io::write(&self.descriptor, notification) {
                Ok(_) => return Ok(()),
                Err(Number::INTR | Number::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether a request waits to be read.
    pub(crate) fn has_request(&self) -> bool {
        self.state(PollFlags::IN).contains(PollFlags::IN)
    }

    /// Whether the kernel has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state(PollFlags::empty()).intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// The events of `asked` that hold now; that the connection is closed is reported in any case.
    fn state(&self, asked: PollFlags) -> PollFlags {
        let mut asked = [PollFd::new(&self.descriptor, asked)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut asked, Some(&at_once)) {
            Ok(1..) => asked[0].revents(),
            Ok(0) | Err(_) => PollFlags::empty(),
        }
    }
}
