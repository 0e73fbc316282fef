//! Memory that two processes map.
//!
//! Invariants:
//! * It is sealed against a change of its length, so that no access faults (`memfd_create(2)`).
//! * It is used through atomic words alone: the other process may write at any moment.
//! * Memory that others may only read is sealed against further writable mappings: a read-only descriptor alone could be opened anew for writing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Most bytes that are mapped of another process.
const LENGTH_MAX: u64 = 64 << 20;
/// Length of a page; a mapping of a whole number of these has no rest.
const PAGE: usize = 4096;

/// The access that other processes have to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read it.
    Read,
    /// To read and to write it.
    ReadWrite,
}

/// A file in memory that can be sealed.
fn memory_file(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A system may refuse memory that could be executed (`vm.memfd_noexec`); before Linux 6.3 there is no other.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }
}

/// A mapping of shared memory.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the process, lives until this is dropped, and is used through atomic words alone.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Zeroed memory of at least `length` bytes, and the descriptor by which others map it with `access`.
    ///
    /// # Errors
    /// There is no memory or no descriptor left.
    pub fn create(name: &str, length: usize, access: Access) -> io::Result<(Self, OwnedFd)> {
        let length = length.max(1).next_multiple_of(PAGE);
        let descriptor = memory_file(name)?;
        rustix::fs::ftruncate(&descriptor, length as u64)?;
        let memory = Self::of(descriptor.as_fd(), length, Access::ReadWrite)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if access == Access::Read {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&descriptor, seals | SealFlags::SEAL)?;
        Ok((memory, descriptor))
    }

    /// Maps memory that another process made, of at least `length_min` bytes.
    ///
    /// # Errors
    /// It is shorter than that or far too long, its length may change, or it cannot be mapped.
    pub fn map(descriptor: impl AsFd, access: Access, length_min: usize) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&descriptor)?;
        let length = u64::try_from(rustix::fs::fstat(&descriptor)?.st_size).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || length < length_min.max(1) as u64 || length > LENGTH_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory may shrink, or has a wrong length"));
        }
        let length = usize::try_from(length).expect("it is at most as long as LENGTH_MAX");
        Self::of(descriptor.as_fd(), length, access)
    }

    fn of(descriptor: impl AsFd, length: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the address, so that nothing that is there is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, descriptor, 0)? };
        let start = NonNull::new(start.cast()).expect("nothing is mapped at address zero");
        Ok(Self { start, length })
    }

    /// Bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The word of 32 bits at an offset. Panics beyond the end, and where it is not aligned.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && self.length - 4 >= offset, "a word lies within the memory");
        // SAFETY: it lies within the mapping and is aligned, because mappings begin on a page. Atomic access may meet writes of other processes. A mapping
        // that can only be read is only loaded from by those who made it so: a store would end the process, and corrupt nothing.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// The word of 64 bits at an offset, as [`Self::word`].
    #[must_use]
    pub fn long_word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && self.length - 8 >= offset, "a word lies within the memory");
        // SAFETY: as above.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and the words that were handed out do not live longer than this.
        unsafe {
            let _ = munmap(self.start.as_ptr().cast(), self.length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_one_side_stores_the_other_loads() {
        let (ours, descriptor) = SharedMemory::create("test", 100, Access::ReadWrite).unwrap();
        let theirs = SharedMemory::map(&descriptor, Access::ReadWrite, 100).unwrap();
        ours.long_word(8).store(7, Ordering::Release);
        theirs.word(96).store(9, Ordering::Release);
        assert_eq!(theirs.long_word(8).load(Ordering::Acquire), 7);
        assert_eq!(ours.word(96).load(Ordering::Acquire), 9);
        assert_eq!(theirs.length(), PAGE);
    }

    #[test]
    fn memory_that_others_may_read_cannot_be_written_by_them_whatever_they_try() {
        let (ours, descriptor) = SharedMemory::create("test", 100, Access::Read).unwrap();
        assert!(SharedMemory::map(&descriptor, Access::ReadWrite, 100).is_err(), "a mapping");
        assert!(rustix::io::write(&descriptor, b"x").is_err(), "a write");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
        if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
            assert!(SharedMemory::map(&again, Access::ReadWrite, 100).is_err(), "a mapping of another description");
            assert!(rustix::io::write(&again, b"x").is_err(), "a write through another description");
        }
        let theirs = SharedMemory::map(&descriptor, Access::Read, 100).unwrap();
        ours.word(0).store(5, Ordering::Release);
        assert_eq!(theirs.word(0).load(Ordering::Acquire), 5, "its maker goes on writing");
    }

    #[test]
    fn memory_whose_length_may_change_is_refused() {
        let (_ours, descriptor) = SharedMemory::create("test", 100, Access::ReadWrite).unwrap();
        assert!(rustix::fs::ftruncate(&descriptor, 0).is_err());
        assert!(SharedMemory::map(&descriptor, Access::ReadWrite, PAGE + 1).is_err(), "it is shorter than that");
        let open = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(SharedMemory::map(&open, Access::Read, 100).is_err());
    }

    #[test]
    #[should_panic(expected = "within the memory")]
    fn a_word_beyond_the_end_is_a_mistake_of_the_programmer() {
        let (ours, _descriptor) = SharedMemory::create("test", 4096, Access::ReadWrite).unwrap();
        let _ = ours.long_word(4096);
    }
}
