//! Memory that only the kernel and this library touch, through which bytes go between the program and files.
//!
//! * Data that a lower file system is to write is copied here first: it would take them while it holds a lock of the object, and if they lay in a mapping of the file itself, the daemon would wait
//!   for that lock to bring the page.
//! * Bytes that were read past the page cache are copied from here to the program: the kernel would put them into the pages that were at the address when the call began, which a file may have lost since.
//!
//! Invariants: a region has one user. The memory is that of a file in memory, so that the kernel can copy it to an address that may be none. It is not there in children.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use polymux_client::{Host, WRITE_MAX};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::numbers::{Placed, Unaware};
use crate::quiet::Quiet;

const REGIONS: usize = 64;
const REGION: usize = WRITE_MAX;
/// Stacks of different threads are further apart.
const STACK_SHIFT: u32 = 16;

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(std::ptr::null_mut());

struct Memory {
    begin: *mut u8,
    file: Placed,
    are_taken: [AtomicBool; REGIONS],
}

/// A part of the memory, of one thread. Signals are blocked while it lives.
pub struct Region {
    memory: &'static Memory,
    place: usize,
}

/// Makes the memory, unless it is there. Without it data and bytes go the ordinary way.
pub fn prepare() -> io::Result<()> {
    let _quiet = Quiet::begin();
    // One thread at a time.
    let _receiving = Unaware::receiving().ok_or(io::ErrorKind::WouldBlock)?;
    if !MEMORY.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let length = REGIONS * REGION;
    let file: OwnedFd = rustix::fs::memfd_create(c"polymux", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, length as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an address where nothing is.
    let begin = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0)? };
    // SAFETY: these are the pages that were mapped just now.
    unsafe { madvise(begin, length, Advice::LinuxDontFork)? };
    let file = Unaware::place(vec![file])?.pop().ok_or(io::ErrorKind::Other)?;
    let memory = Memory { begin: begin.cast(), file, are_taken: [const { AtomicBool::new(false) }; REGIONS] };
    MEMORY.store(Box::into_raw(Box::new(memory)), Ordering::Release);
    Ok(())
}

/// In a child of a fork: there is none.
pub fn abandon() {
    MEMORY.store(std::ptr::null_mut(), Ordering::Release);
}

impl Region {
    /// A region; `None` where all are taken, or there are none.
    pub fn take() -> Option<Self> {
        // SAFETY: it lives for ever, once it is there.
        let memory = unsafe { MEMORY.load(Ordering::Acquire).as_ref() }?;
        let on_stack = 0_u8;
        let first = (std::ptr::from_ref(&on_stack).addr() >> STACK_SHIFT) % REGIONS;
        let places = (first..REGIONS).chain(0..first);
        let place = places.into_iter().find(|place| !memory.are_taken[*place].swap(true, Ordering::Acquire))?;
        Some(Self { memory, place })
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped for ever, is as long, and this is the one user of the region.
        unsafe { std::slice::from_raw_parts_mut(self.memory.begin.add(self.place * REGION), REGION) }
    }

    /// Copies data of the program here; returns whether all of them could be read.
    pub fn fill_from(&mut self, data: &[u8]) -> bool {
        let target = libc::iovec { iov_base: self.bytes().as_mut_ptr().cast(), iov_len: data.len() };
        let source = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        assert!(data.len() <= REGION, "longer writes are not made");
        // SAFETY: the kernel copies between the memory of this process and the region, which is as long, and finds out if there is no memory at the source.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const target, 1, &raw const source, 1, 0) };
        usize::try_from(copied) == Ok(data.len())
    }

    /// Copies the first bytes to the program; returns how many could be written there.
    pub fn copy_to(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if !Unaware::is_intact(&self.memory.file) {
            return Err(Errno::IO);
        }
        rustix::io::pread(&self.memory.file, buffer, (self.place * REGION) as u64)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.memory.are_taken[self.place].store(false, Ordering::Release);
    }
}
