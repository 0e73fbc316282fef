//! A part of a file in memory.

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Whether stores are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// The first bytes of a file, shared. Bytes are copied one way or the other; no reference into it is handed out, because other
/// threads change the file.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to the process, and every access goes through raw copies.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn new(file: &File, length: usize, access: Access) -> std::io::Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the address, so that nothing that is there is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).expect("nothing is mapped at address zero");
        Ok(Self { start, length })
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Reads; the file must be at least as long as that.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: the range lies within the mapping; the file is as long, so that its pages can be read.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), bytes.as_mut_ptr(), length) };
        bytes
    }

    /// Stores; the file must be at least as long as that, and mapped to be written.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: as for reading, and the caller mapped it to be written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and it is not used any more.
        let outcome = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        assert!(outcome.is_ok(), "a mapping can be taken away");
    }
}
