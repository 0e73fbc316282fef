//! Memory apart from the program's, which may be inside its own allocator when a signal handler reads.
//!
//! A child of a fork begins with an empty heap: in that of its parent another thread may have been at work. Memory of the parent is never freed (`forks`).

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::Dlmalloc;
use rustix::thread::Timespec;

use crate::quiet::Quiet;

/// Attempts to get the lock before the thread that has it is given time.
const SPINS: u32 = 100;
const SLEEP_NS: i64 = 20_000;

/// More than a call allocates.
const RESERVE: usize = 128 << 10;

pub struct Heap {
    heap: UnsafeCell<Dlmalloc>,
    is_taken: AtomicBool,
}

// SAFETY: the heap is touched by the holder of the lock only.
unsafe impl Sync for Heap {}

impl Heap {
    pub const fn new() -> Self {
        Self { heap: UnsafeCell::new(Dlmalloc::new()), is_taken: AtomicBool::new(false) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        // No handler may jump away with the lock.
        let _quiet = Quiet::begin();
        let mut attempts = 0;
        while self.is_taken.swap(true, Ordering::Acquire) {
            attempts += 1;
            if attempts > SPINS {
                // Sleeping lets a thread of a lower priority go on, too.
                let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: SLEEP_NS });
            }
        }
        // SAFETY: this thread has the lock.
        let outcome = work(unsafe { &mut *self.heap.get() });
        self.is_taken.store(false, Ordering::Release);
        outcome
    }

    /// Whether there is memory for a call into this library. Without it Rust would end the process.
    pub fn has_reserve(&self) -> bool {
        let layout = Layout::from_size_align(RESERVE, 16).expect("a power of two");
        // SAFETY: the layout has a size, and memory is freed by the layout that it was allocated by.
        unsafe {
            let reserve = self.alloc(layout);
            if !reserve.is_null() {
                self.dealloc(reserve, layout);
            }
            !reserve.is_null()
        }
    }

    /// Begins anew, in a child of a fork, of which no other thread is in this library.
    pub fn abandon(&self) {
        // SAFETY: the lock, which a thread of the parent may have had, is nothing to a process with one thread here. The old heap has no destructor.
        unsafe { self.heap.get().write(Dlmalloc::new()) };
        self.is_taken.store(false, Ordering::Release);
    }
}

// SAFETY: `Dlmalloc` keeps the contract for each call, and the lock makes calls one after the other.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), new_size) })
    }
}
