//! Descriptors of leases, which have numbers that are not in the way of the program (`preload/numbers.h`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use polymux_client::{FileIdentity, Host};
use rustix::fs::OFlags;

use crate::bounce::Region;
use crate::forks::Receiving;
use crate::interface;
use crate::quiet::Quiet;

/// Calls that are to bypass the page cache, to append or to be durable go on doing so.
pub const UNSUITED: OFlags = OFlags::PATH.union(OFlags::DIRECT).union(OFlags::APPEND).union(OFlags::DSYNC);

/// The program in which this library was loaded.
pub struct Unaware;

impl Host for Unaware {
    const IS_UNAWARE: bool = true;
    type Quiet = Quiet;
    type Receiving = Receiving;
    type Descriptor = Placed;

    fn quiet() -> Quiet {
        Quiet::begin()
    }

    fn receiving() -> Option<Receiving> {
        Receiving::begin()
    }

    fn overwrites(file: BorrowedFd<'_>) -> bool {
        rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags & (OFlags::RWMODE | UNSUITED) == OFlags::RDWR)
    }

    fn with_copy<T>(data: &[u8], body: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut region = Region::take()?;
        if region.fill_from(data) { Some(body(&region.bytes()[..data.len()])) } else { None }
    }

    fn place(descriptors: Vec<OwnedFd>) -> io::Result<Vec<Placed>> {
        let Some(preload) = interface::preload() else { return Err(io::ErrorKind::Unsupported.into()) };
        let identities: Vec<FileIdentity> =
            descriptors.iter().map(|descriptor| FileIdentity::of(descriptor.as_fd())).collect::<io::Result<_>>()?;
        let mut numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let count = i32::try_from(numbers.len()).map_err(io::Error::other)?;
        // SAFETY: so many numbers can be read and written there.
        if unsafe { (preload.place)(numbers.as_mut_ptr(), count) } != 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        // They were closed.
        descriptors.into_iter().for_each(std::mem::forget);
        let placed = numbers.into_iter().zip(identities);
        Ok(placed.map(|(number, identity)| Placed { number, identity, is_closed: AtomicBool::new(false) }).collect())
    }

    /// A program can close any number by a raw system call, and open something else under it.
    fn is_intact(descriptor: &Placed) -> bool {
        FileIdentity::of(descriptor.as_fd()).is_ok_and(|identity| identity == descriptor.identity)
    }

    /// A signal handler may have jumped out of a read, which then never ends.
    fn release(descriptor: &Placed) {
        descriptor.close();
    }
}

/// A descriptor of a lease.
#[derive(Debug)]
pub struct Placed {
    number: RawFd,
    identity: FileIdentity,
    is_closed: AtomicBool,
}

impl Placed {
    /// Closes it, once.
    pub fn close(&self) {
        if let Some(preload) = interface::preload()
            && !self.is_closed.swap(true, Ordering::AcqRel)
        {
            (preload.close_placed)(self.number);
        }
    }
}

impl AsFd for Placed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is handed on to the kernel in one call, which says if it is closed. That it may name something else is looked at before a read and after it.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.close();
    }
}
