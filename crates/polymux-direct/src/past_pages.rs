//! A description of a file past the page cache, beside that of the program: calls that go through the kernel while programs have leases on a file that changes, or are about to get them, leave no page by
//! it, which would end the leases.
//!
//! Invariants:
//! * The program's own description is as the program made it.
//! * Closing any descriptor of a file ends the locks that the process has on it (`F_SETLK`), and moving one to its number closes one. So a process that uses such locks has none of these: they are closed
//!   before it gets its first lock. Where locks may have come unseen it is closed only when the program closes a descriptor of the file. Where the program closed it without being
//!   seen, this one stays open until the program closes another one of the file, or ends.
//! * It is not closed while a call uses it: another file could have the number then.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use polymux_client::{FileIdentity, Host, open_past_pages};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::bounce::Region;
use crate::forks::Receiving;
use crate::interface;
use crate::numbers::{Placed, Unaware};

pub struct PastPages {
    descriptor: Placed,
    access: OFlags,
    users: AtomicU32,
    is_closing: AtomicBool,
}

/// Lives while a call uses it.
struct Use<'a>(&'a PastPages);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let is_last = self.0.users.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.0.is_closing.load(Ordering::SeqCst) {
            self.0.descriptor.close();
        }
    }
}

impl PastPages {
    /// Opens a file once more, with the access of one of its descriptors. Called with signals blocked.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<&'static Self> {
        let not_now = || io::Error::from(io::ErrorKind::WouldBlock);
        let preload = interface::preload().ok_or_else(not_now)?;
        if preload.may_have_locks(file.as_raw_fd()) {
            return Err(not_now());
        }
        let opened = open_past_pages(file)?;
        // Not before: a fork would wait for the daemon.
        let receiving = Receiving::begin_soon();
        let Some(_without_locks) = preload.without_locks() else {
            // It stays open where it is.
            std::mem::forget(opened);
            return Err(not_now());
        };
        let Some(_receiving) = receiving else {
            drop(opened);
            return Err(not_now());
        };
        let descriptor = Unaware::place(vec![opened])?.pop().ok_or(io::ErrorKind::Other)?;
        if FileIdentity::of(file)? != FileIdentity::of(descriptor.as_fd())? {
            return Err(io::Error::other("the program opened another file meanwhile"));
        }
        let access = rustix::fs::fcntl_getfl(descriptor.as_fd())? & OFlags::RWMODE;
        let (users, is_closing) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Box::leak(Box::new(Self { descriptor, access, users, is_closing })))
    }

    /// Whether a number names the file.
    pub fn is_of(&self, file: BorrowedFd<'_>) -> bool {
        FileIdentity::of(file).is_ok_and(|identity| FileIdentity::of(self.descriptor.as_fd()).ok() == Some(identity))
    }

    /// Whether a number names the file, and gives the same access.
    pub fn is_as(&self, file: BorrowedFd<'_>) -> bool {
        let has_access = |flags: OFlags| flags & OFlags::RWMODE == self.access;
        rustix::fs::fcntl_getfl(file).is_ok_and(has_access) && self.is_of(file)
    }

    /// Whether a call uses it.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    /// The file, for as long as it is open.
    pub fn identity(&self) -> Option<FileIdentity> {
        FileIdentity::of(self.descriptor.as_fd()).ok()
    }

    /// Closes it when no call uses it.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        if self.users.load(Ordering::SeqCst) == 0 {
            self.descriptor.close();
        }
    }

    fn begin_use(&self, file: BorrowedFd<'_>) -> Option<Use<'_>> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let used = Use(self);
        (!self.is_closing.load(Ordering::SeqCst) && self.is_of(file)).then_some(used)
    }

    /// Reads through the kernel; `None` where the program's own number is to be used.
    pub fn read(&self, file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Option<Result<usize, Errno>> {
        let mut region = Region::take()?;
        let _used = self.begin_use(file)?;
        let mut filled = 0;
        while filled < buffer.len() {
            let bytes = region.bytes();
            let wanted = bytes.len().min(buffer.len() - filled);
            let outcome = match rustix::io::pread(&self.descriptor, &mut bytes[..wanted], offset + filled as u64) {
                Ok(count) => region.copy_to(&mut buffer[filled..filled + count]),
                Err(error) => Some(Err(error)),
            };
            match outcome {
                Some(Ok(copied)) => {
                    filled += copied;
                    if copied < wanted {
                        break;
                    }
                }
                // The next call begins there, and gets the error.
                _ if filled > 0 => break,
                None | Some(Err(Errno::FAULT | Errno::INVAL)) => return None,
                Some(Err(error)) => return Some(Err(error)),
            }
        }
        Some(Ok(filled))
    }

    /// Writes through the kernel, which looks first whether the program's own description would write there.
    pub fn write(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Option<Result<usize, Errno>> {
        let _used = self.begin_use(file).filter(|_| self.access == OFlags::RDWR && Unaware::overwrites(file))?;
        match rustix::io::pwrite(&self.descriptor, data, offset) {
            // Past the page cache there is memory from which no bytes can be taken.
            Err(Errno::FAULT | Errno::INVAL) => None,
            outcome => Some(outcome),
        }
    }
}
