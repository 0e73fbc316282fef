//! The bytes of an object in the page cache of the kernel.
//!
//! Invariants: a query brings nothing into memory and takes nothing out of it. `cachestat` came with Linux 6.5; an older
//! kernel, or one that refuses it to this user, gives no answer, and the result is unknown then.

use rustix::fd::{AsRawFd, OwnedFd};

use super::PosixTier;
use crate::object::ObjectRef;

/// Number of `cachestat` on every architecture: it is younger than the common table of system calls.
const CACHESTAT: libc::c_long = 451;

/// Bytes to be looked at, as `struct cachestat_range` of the kernel has them.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of the kernel: numbers of pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    evicted_lately: u64,
}

/// Pages of a range that are in memory; `None` where the kernel does not say.
fn cached_pages(descriptor: &OwnedFd, offset: u64, length: u64) -> Option<u64> {
    let (range, mut found) = (CachestatRange { offset, length }, Cachestat::default());
    let flags: libc::c_uint = 0;
    // SAFETY: both structs have the layout that the kernel reads and writes, and outlive the call; the descriptor is open for as long
    // as the reference lives.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            descriptor.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut found),
            flags,
        )
    };
    (result == 0).then_some(found.cached)
}

impl PosixTier {
    /// Bytes of a range of an object that are in memory, in whole pages.
    pub(super) fn bytes_in_page_cache(&self, object: ObjectRef, offset: u64, length: u64) -> Option<u64> {
        if length == 0 {
            // The kernel would take that for all up to the end.
            return Some(0);
        }
        let open = self.object(object).ok()?;
        let pages = cached_pages(&open.descriptor, offset, length)?;
        Some(pages.saturating_mul(u64::try_from(rustix::param::page_size()).ok()?))
    }
}
