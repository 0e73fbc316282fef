//! Memory that only the kernel and this library touch, through which bytes go between the program and files.
//!
//! * Data that a lower file system is to write is copied here first: it would take them while it holds a lock of the object, and if they lay in a mapping of the file itself, the daemon would wait
//!   for that lock to bring the page.
//! * Bytes that were read past the page cache are copied from here to the program: the kernel would put them into the pages that were at the address when the call began, which a file may have lost since.
//!
//! Invariants: a region has one user. The memory is that of a file in memory, so that the kernel can copy it to an address that may be none. It is not there in children.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use polymux_client::{Host, WRITE_MAX};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use crate::forks::Receiving;
use crate::numbers::{Placed, Unaware};
use crate::quiet::Quiet;

const REGIONS: usize = 64;
const REGION: usize = WRITE_MAX;
const BYTES: usize = REGIONS * REGION;
/// Spreads addresses over regions: stacks of threads lie at regular distances.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const PAGE_SHIFT: u32 = 12;

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(null_mut());

struct Memory {
    begin: *mut u8,
    file: Placed,
    are_taken: [Taken; REGIONS],
}

/// Whether a region has a user, on a cache line of its own.
#[repr(align(64))]
struct Taken(AtomicBool);

/// A part of the memory, of one thread. A handler that jumps away leaves it taken.
pub struct Region {
    memory: &'static Memory,
    place: usize,
}

/// Makes the memory, unless it is there. Without it data and bytes go the ordinary way.
pub fn prepare() -> io::Result<()> {
    let _quiet = Quiet::begin();
    // One thread at a time.
    let _receiving = Receiving::begin_soon().ok_or(io::ErrorKind::WouldBlock)?;
    if present().is_some_and(|memory| Unaware::is_intact(&memory.file)) {
        return Ok(());
    }
    // A file that is longer than the program's may be is answered with a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < BYTES as u64) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file: OwnedFd = rustix::fs::memfd_create(c"polymux", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, BYTES as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an address where nothing is.
    let begin = unsafe { mmap(null_mut(), BYTES, protection, MapFlags::SHARED, &file, 0)? };
    // SAFETY: these are the pages that were mapped just now.
    let placed = unsafe { madvise(begin, BYTES, Advice::LinuxDontFork) }
        .map_err(io::Error::from)
        .and_then(|()| Unaware::place(vec![file])?.pop().ok_or_else(|| io::ErrorKind::Other.into()));
    match placed {
        Ok(file) => {
            let are_taken = [const { Taken(AtomicBool::new(false)) }; REGIONS];
            let memory = Memory { begin: begin.cast(), file, are_taken };
            // The memory before, whose file the program has closed, may have users.
            MEMORY.store(Box::into_raw(Box::new(memory)), Ordering::Release);
            Ok(())
        }
        Err(error) => {
            // SAFETY: nothing else knows of it.
            unsafe { munmap(begin, BYTES)? };
            Err(error)
        }
    }
}

fn present() -> Option<&'static Memory> {
    // SAFETY: it lives for ever, once it is there.
    unsafe { MEMORY.load(Ordering::Acquire).as_ref() }
}

/// In a child of a fork: there is none.
pub fn abandon() {
    MEMORY.store(null_mut(), Ordering::Release);
}

impl Region {
    /// A region; `None` where all are taken, or there are none.
    pub fn take() -> Option<Self> {
        let memory = present()?;
        let on_stack = 0_u8;
        let page = (std::ptr::from_ref(&on_stack).addr() >> PAGE_SHIFT) as u64;
        let first = usize::try_from(page.wrapping_mul(SPREAD) >> 32).ok()? % REGIONS;
        let is_free = |place: &usize| {
            let Taken(is_taken) = &memory.are_taken[*place];
            !is_taken.load(Ordering::Relaxed) && !is_taken.swap(true, Ordering::Acquire)
        };
        let place = (first..REGIONS).chain(0..first).find(is_free)?;
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
        let copied = unsafe { libc::process_vm_readv(libc::gettid(), &raw const target, 1, &raw const source, 1, 0) };
        usize::try_from(copied) == Ok(data.len())
    }

    /// Copies the first bytes to the program; returns how many could be written there, or `None` where the program has closed the file of the memory: the bytes of the buffer are undefined then.
    pub fn copy_to(&self, buffer: &mut [u8]) -> Option<Result<usize, Errno>> {
        let file = &self.memory.file;
        if !Unaware::is_intact(file) {
            return None;
        }
        let copied = rustix::io::pread(file, buffer, (self.place * REGION) as u64);
        Unaware::is_intact(file).then_some(copied)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.memory.are_taken[self.place].0.store(false, Ordering::Release);
    }
}
