//! The program in which files are read past the mount.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, StatxFlags};

/// The ways of its program, as a reader has to know them.
pub trait Host: 'static {
    /// Whether the program knows nothing of leases, and may close the number of a file and open another one under it at any moment. Each call past the mount looks first whether
    /// it still is the file of the lease. Holes are left to the kernel, because the buffer may be at an address that is none. Calls wait for no lock: they may
    /// interrupt the thread that has it.
    const IS_UNAWARE: bool;
    /// Lives while a lock is held or memory allocated that a signal handler must not meet, and while a write is announced, which no handler may leave by a jump.
    type Quiet;
    /// Lives while descriptors are made or received.
    type Receiving;
    /// A descriptor of a lease.
    type Descriptor: AsFd + Send + Sync + 'static;

    /// Begins such a time.
    fn quiet() -> Self::Quiet;

    /// Begins such a time; `None` where this is not the moment.
    fn receiving() -> Option<Self::Receiving>;

    /// Whether a descriptor of the file of a lease still writes where it is asked to, as it did when the lease was given: it may have been made to append since.
    fn overwrites(file: BorrowedFd<'_>) -> bool;

    /// Has data in memory that no file stands behind, for the time of a call; `None` where there is none. A file system may hold a lock of the object while it takes bytes that it is
    /// to write: if these lay in a mapping of the file itself, the daemon, which has to read them, would wait for that lock.
    fn with_copy<T>(data: &[u8], body: impl FnOnce(&[u8]) -> T) -> Option<T>;

    /// Moves descriptors of a lease to where they are to be.
    ///
    /// # Errors
    /// There is no such place.
    fn place(descriptors: Vec<OwnedFd>) -> io::Result<Vec<Self::Descriptor>>;

    /// Whether a descriptor still is that of the lease.
    fn is_intact(descriptor: &Self::Descriptor) -> bool;

    /// Closes a descriptor of a lease that has ended, if that must not wait for all who have the lease: one may never give it back.
    fn release(descriptor: &Self::Descriptor);
}

/// A file, by which a descriptor is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    pub(crate) inode: u64,
}

impl FileIdentity {
    /// As the kernel knows it: file systems need not be asked.
    ///
    /// # Errors
    /// As `statx(2)`: there is no such descriptor.
    #[inline]
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = rustix::fs::statx(file, c"", flags, StatxFlags::INO)?;
        Ok(Self { device: rustix::fs::makedev(known.stx_dev_major, known.stx_dev_minor), inode: known.stx_ino })
    }
}

/// A program that calls this library, and leaves its descriptors alone.
#[derive(Debug)]
pub struct Linked;

impl Host for Linked {
    const IS_UNAWARE: bool = false;
    type Quiet = ();
    type Receiving = ();
    type Descriptor = OwnedFd;

    fn quiet() {}

    fn receiving() -> Option<()> {
        Some(())
    }

    fn overwrites(_: BorrowedFd<'_>) -> bool {
        true
    }

    fn with_copy<T>(data: &[u8], body: impl FnOnce(&[u8]) -> T) -> Option<T> {
        thread_local!(static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        COPY.with(|copy| {
            let mut copy = copy.try_borrow_mut().ok()?;
            copy.clear();
            copy.extend_from_slice(data);
            Some(body(&copy))
        })
    }

    fn place(descriptors: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        Ok(descriptors)
    }

    fn is_intact(_: &OwnedFd) -> bool {
        true
    }

    fn release(_: &OwnedFd) {}
}
