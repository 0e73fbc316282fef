//! Children of fork(2): a child has the memory of its parent, with locks that threads hold which it has not, and copies of the descriptors.
//!
//! A page that the kernel empties in each child (`MADV_WIPEONFORK`) tells it from its parent, however it was made; a child that shares the memory (vfork(2), `CLONE_VM`) sees the page as it
//! is, and has another process number. Children of the C library's fork close the descriptors of leases at once, and are not made while some are being received; others
//! close them when they first come here.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::thread::Timespec;

use crate::{ALLOCATOR, bounce, files, interface};

const PAGE: usize = 4096;
/// States of the word in that page. Emptied, it is a child's which has not begun.
const CHILD: u32 = 0;
const BEGINNING: u32 = 1;
const STARTED: u32 = 2;

/// Between looks at a thread that receives.
const PAUSE_NS: i64 = 20_000;
/// Looks of one that waits for its turn to receive.
const ATTEMPTS: u32 = 200;

static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// Forks under way.
static FORKING: AtomicU32 = AtomicU32::new(0);
static IS_RECEIVING: AtomicBool = AtomicBool::new(false);

/// Before everything else. Without such a page nothing is served, ever.
pub fn start() {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses an address where nothing is.
    let Ok(page) = (unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, flags) }) else { return };
    // SAFETY: it is the page that was mapped just now.
    if unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        return;
    }
    // SAFETY: the three functions take no lock and allocate nothing, and are never unloaded.
    if unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) } == 0 {
        begin(page);
    }
}

fn begin(page: *mut c_void) {
    let word = page.cast::<AtomicU32>();
    PROCESS.store(process(), Ordering::Relaxed);
    // SAFETY: the page is mapped for ever, is as large and aligned as a word, and zeros are one.
    unsafe { (*word).store(STARTED, Ordering::Release) };
    WORD.store(word, Ordering::Release);
}

/// Waits for descriptors that are being received: that takes microseconds, and waits for nothing.
extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    while IS_RECEIVING.load(Ordering::SeqCst) {
        // Not by yielding: the other thread may have a lower priority.
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: PAUSE_NS });
    }
}

extern "C" fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn after_fork_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    if let Some(preload) = interface::preload() {
        (preload.close_all_placed)();
    }
}

/// A time in which descriptors are made or received, by one thread, and the process does not fork.
pub struct Receiving(());

impl Receiving {
    /// `None` where another thread has such a time, or forks.
    pub fn begin() -> Option<Self> {
        if IS_RECEIVING.swap(true, Ordering::SeqCst) {
            return None;
        }
        let receiving = Self(());
        (FORKING.load(Ordering::SeqCst) == 0).then_some(receiving)
    }
}

impl Receiving {
    /// Waits some milliseconds for such a time.
    pub fn begin_soon() -> Option<Self> {
        (0..ATTEMPTS).find_map(|_| {
            Self::begin().or_else(|| {
                let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: PAUSE_NS });
                None
            })
        })
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        IS_RECEIVING.store(false, Ordering::SeqCst);
    }
}

fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether this process may be served. A child drops, the first time, all that it has from its parent; its other threads go through the kernel meanwhile.
pub fn is_ready() -> bool {
    let word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        return false;
    }
    // SAFETY: as in `begin`.
    let word = unsafe { &*word };
    match word.load(Ordering::Acquire) {
        STARTED => true,
        CHILD if word.compare_exchange(CHILD, BEGINNING, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
            IS_RECEIVING.store(false, Ordering::SeqCst);
            ALLOCATOR.abandon();
            files::abandon_all();
            bounce::abandon();
            if let Some(preload) = interface::preload() {
                (preload.close_all_placed)();
            }
            PROCESS.store(process(), Ordering::Relaxed);
            word.store(STARTED, Ordering::Release);
            true
        }
        _ => false,
    }
}

/// Whether this process may be served and may change its notes about descriptors. One that shares the memory of the process that is served may not: descriptors that it closes or opens are
/// its own, but notes about them would be the other process's.
pub fn may_change() -> bool {
    is_ready() && PROCESS.load(Ordering::Relaxed) == process()
}
