//! Open files of the program that are watched, by the numbers of their descriptors.
//!
//! Entries are never freed, only used again: a thread may have found one that another thread gives up. That does no harm, because each lease knows its file. Lock
//! order: the registry, with signals blocked, then nothing.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use polymux_client::Reader;
use rustix::fs::OFlags;
use rustix::thread::Timespec;

use crate::forks;
use crate::numbers::{UNSUITED, Unaware};
use crate::past_pages::PastPages;
use crate::quiet::Quiet;
use crate::registry::{self, End, Registry};

/// Numbers from here on are not watched; as in `preload/numbers.h`.
const NUMBERS: usize = 65536;
/// Looks at a description that is still used, and the time between them: calls through the kernel may have to wait for a device.
const ATTEMPTS: u32 = 50_000;
const PAUSE_NS: i64 = 100_000;

static FILES: [AtomicPtr<Watched>; NUMBERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; NUMBERS];

/// One open file.
pub struct Watched {
    pub reader: Reader<Unaware>,
    past_pages: AtomicPtr<PastPages>,
}

impl Watched {
    pub fn new() -> Self {
        Self { reader: Reader::new(0), past_pages: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its description past the page cache, where it has one.
    pub fn past_pages(&self) -> Option<&'static PastPages> {
        // SAFETY: those that were put there live for ever.
        unsafe { self.past_pages.load(Ordering::Acquire).as_ref() }
    }

    /// Takes that away.
    pub fn take_past_pages(&self) -> Option<&'static PastPages> {
        // SAFETY: as in `past_pages`.
        unsafe { self.past_pages.swap(std::ptr::null_mut(), Ordering::AcqRel).as_ref() }
    }

    /// Opens it, unless it is open; returns whether it is. Called by the thread that asks for a lease.
    pub fn open_past_pages(&self, number: RawFd) -> bool {
        let _quiet = Quiet::begin();
        if self.past_pages().is_some_and(|past_pages| past_pages.is_as(borrow(number))) {
            return true;
        }
        if registry::lock().has_many_left() {
            return false;
        }
        let Ok(opened) = PastPages::open(borrow(number)) else { return false };
        let mut registry = registry::lock();
        if registry.is_watched(number, self) {
            let old = self.past_pages.swap(std::ptr::from_ref(opened).cast_mut(), Ordering::AcqRel);
            // SAFETY: as in `past_pages`.
            registry.leave(unsafe { old.as_ref() });
            return true;
        }
        // The program has closed the number meanwhile, and perhaps has locks by another one.
        registry.leave(Some(opened));
        false
    }
}

fn place_of(number: RawFd) -> Option<&'static AtomicPtr<Watched>> {
    FILES.get(usize::try_from(number).ok()?)
}

/// The number as a descriptor for the time of a call.
pub fn borrow(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: it is handed on to the kernel in this call only, and closed by nothing here. The program may close it meanwhile: the kernel then says so, and that it
    // may name another file is expected everywhere (`Host::IS_UNAWARE`).
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// The file with a number, if it is watched.
pub fn get(number: RawFd) -> Option<&'static Watched> {
    let watched = place_of(number)?.load(Ordering::Acquire);
    // SAFETY: entries that were put there live for ever.
    unsafe { watched.as_ref() }
}

/// Ends the watch of a number, if it is watched. Returns descriptions to be closed without the lock.
fn take_out(place: &AtomicPtr<Watched>, number: RawFd, registry: &mut Registry, end: End) -> Vec<&'static PastPages> {
    if place.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null() {
        return Vec::new();
    }
    registry.forget(number, end)
}

/// Watches a file from now on, whatever the number named before; `None` where it can never have a lease.
pub fn watch(number: RawFd) -> Option<&'static Watched> {
    let place = place_of(number)?;
    let flags = rustix::fs::fcntl_getfl(borrow(number)).ok()?;
    let _quiet = Quiet::begin();
    let mut registry = registry::lock();
    // Found to be another file: none is closed.
    drop(take_out(place, number, &mut registry, End::Found));
    // A description that only writes cannot read the objects.
    if flags.intersects(UNSUITED | OFlags::WRONLY) {
        return None;
    }
    let watched = registry.watch(number);
    place.store(std::ptr::from_ref(watched).cast_mut(), Ordering::Release);
    Some(watched)
}

/// The number is about to be closed, or names another file. Returns whether that is for this process to note.
pub fn forget(number: RawFd, end: End) -> bool {
    // A child that shares the memory closes its own copy.
    if !forks::may_change() {
        return false;
    }
    let Some(place) = place_of(number) else { return true };
    let _quiet = Quiet::begin();
    let closed = take_out(place, number, &mut registry::lock(), end);
    // Each sends a message, which may have to wait.
    closed.into_iter().for_each(PastPages::close);
    true
}

/// The process is about to use locks of its own: all descriptions past the page cache are closed, while that ends none.
pub fn close_all_past_pages() {
    if !forks::may_change() {
        return;
    }
    let _quiet = Quiet::begin();
    let all = registry::lock().take_all_past_pages();
    all.iter().for_each(|past_pages| past_pages.close());
    // The last use of each closes it.
    let is_used = || all.iter().any(|past_pages| past_pages.is_used());
    for _ in 0..ATTEMPTS {
        if !is_used() {
            return;
        }
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: PAUSE_NS });
    }
}

/// Gives all leases back; the files stay watched.
pub fn give_back_all() {
    if !forks::may_change() {
        return;
    }
    let _quiet = Quiet::begin();
    registry::lock().watched().for_each(|watched| watched.reader.give_back());
}

/// In a child of a fork: nothing is watched. Entries of the parent stay untouched where they are.
pub fn abandon_all() {
    FILES.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()).for_each(|place| {
        place.store(std::ptr::null_mut(), Ordering::Relaxed);
    });
    registry::replace(Registry::default());
}
