//! A part of a file in memory.

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Shared, and written.
    Written,
    /// Shared, and only read.
    Shared,
    /// Private, and only read.
    Private,
}

/// The first bytes of a file. Bytes are copied one way or the other; no reference into it is handed out, because others change
/// the file.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to the process, and every access goes through raw copies.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn new(file: &File, length: usize, kind: Kind) -> Self {
        let (protection, flags) = match kind {
            Kind::Written => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Kind::Shared => (ProtFlags::READ, MapFlags::SHARED),
            Kind::Private => (ProtFlags::READ, MapFlags::PRIVATE),
        };
        // SAFETY: the kernel chooses the address, so that nothing that is there is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        let start = start.unwrap_or_else(|error| panic!("a file is mapped as {kind:?}: {error}"));
        Self { start: NonNull::new(start.cast()).expect("nothing is mapped at address zero"), length }
    }

    /// Loads; the file must be at least as long as that.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: the range lies within the mapping; the file is as long, so that its pages can be read.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), bytes.as_mut_ptr(), length) };
        bytes
    }

    pub fn all(&self) -> Vec<u8> {
        self.read(0, self.length)
    }

    /// Gets pages into memory as loads would; `EFAULT` where a load would end the program (`SIGBUS`).
    pub fn populate(&self, offset: usize, length: usize) -> rustix::io::Result<()> {
        assert!(offset + length <= self.length);
        // SAFETY: the range lies within the mapping, and no memory is changed.
        unsafe { madvise(self.start.as_ptr().add(offset).cast(), length, Advice::LinuxPopulateRead) }
    }

    /// Stores; the file must be at least as long as that, and mapped to be written.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: as for reading, and the caller mapped it to be written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) };
    }

    pub fn sync(&self) {
        // SAFETY: this is the whole mapping, and writing its pages back changes nothing in memory.
        let outcome = unsafe { msync(self.start.as_ptr().cast(), self.length, MsyncFlags::SYNC) };
        outcome.expect("a mapping is synced");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and it is not used any more.
        let outcome = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        assert!(outcome.is_ok(), "a mapping can be taken away");
    }
}
