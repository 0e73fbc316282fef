//! Objects that the kernel uses itself, where files are passed through (Documentation/filesystems/fuse-passthrough.rst).
//!
//! Invariants:
//! * A number that the kernel gave is good until it is given back, and open files that use it go on after that.
//! * The kernel knows an object by this number and not by its file: the same file registered twice is two objects to it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, opcode};

use crate::device::Device;
use crate::unprivileged::Unprivileged;

/// `FUSE_DEV_IOC_BACKING_OPEN`, which takes a `struct fuse_backing_map`.
const OPEN: Opcode = opcode::write::<BackingMap>(229, 1);
/// `FUSE_DEV_IOC_BACKING_CLOSE`.
const CLOSE: Opcode = opcode::write::<u32>(229, 2);

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    descriptor: i32,
    flags: u32,
    padding: u64,
}

/// The request that answers with a number.
struct Register(BackingMap);

// SAFETY: the kernel reads one `BackingMap` through the pointer, and writes nothing; the answer is the result of the call.
unsafe impl Ioctl for Register {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPEN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(answer).map_err(|_| rustix::io::Errno::RANGE)
    }
}

impl Device {
    /// Registers an open file with the kernel; returns its number. Writes of programs through it do not get the blocks that its
    /// file system keeps for root.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` or where passthrough was not agreed on, `ELOOP` where the file is on a file system that
    /// lies on others itself.
    pub fn register_backing(&self, object: BorrowedFd<'_>) -> io::Result<u32> {
        let _user = Unprivileged::begin()?;
        let map = BackingMap { descriptor: object.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: this is a descriptor of /dev/fuse, whose driver knows the request; both descriptors are open.
        Ok(unsafe { rustix::ioctl::ioctl(self.as_fd(), Register(map)) }?)
    }

    /// Gives a number back.
    ///
    /// # Errors
    /// As `ioctl(2)`.
    pub fn forget_backing(&self, number: u32) -> io::Result<()> {
        // SAFETY: the kernel reads one 32-bit number through the pointer.
        let request = unsafe { Setter::<CLOSE, u32>::new(number) };
        // SAFETY: this is a descriptor of /dev/fuse, whose driver knows the request.
        Ok(unsafe { rustix::ioctl::ioctl(self.as_fd(), request) }?)
    }
}
