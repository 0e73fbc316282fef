//! Open files of the program that are watched, by the numbers of their descriptors.
//!
//! Entries are never freed, only used again: a thread may have found one that another thread gives up. That does no harm, because each lease knows its file. Lock
//! order: the registry, with signals blocked, then nothing.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use polymux_client::Reader;
use rustix::fs::OFlags;

use crate::forks;
use crate::numbers::Unaware;
use crate::quiet::Quiet;
use crate::registry::{self, Registry};

/// Numbers from here on are not watched; as in `preload/numbers.h`.
const NUMBERS: usize = 65536;

static FILES: [AtomicPtr<Watched>; NUMBERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; NUMBERS];

/// One open file.
pub struct Watched {
    pub reader: Reader<Unaware>,
}

impl Watched {
    pub fn new() -> Self {
        Self { reader: Reader::new(0) }
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

/// Ends the watch of a number, if it is watched.
fn take_out(place: &AtomicPtr<Watched>, number: RawFd, registry: &mut Registry) {
    if !place.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null() {
        registry.forget(number);
    }
}

/// Watches a file from now on, whatever the number named before; `None` where it can never have a lease.
pub fn watch(number: RawFd) -> Option<&'static Watched> {
    let place = place_of(number)?;
    let flags = rustix::fs::fcntl_getfl(borrow(number)).ok()?;
    let _quiet = Quiet::begin();
    let mut registry = registry::lock();
    take_out(place, number, &mut registry);
    // Reads that are to bypass the page cache go on doing so.
    if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::PATH | OFlags::DIRECT) {
        return None;
    }
    let watched = registry.watch(number);
    place.store(std::ptr::from_ref(watched).cast_mut(), Ordering::Release);
    Some(watched)
}

/// The number is about to be closed, or names another file. Returns whether that is for this process to note.
pub fn forget(number: RawFd) -> bool {
    // A child that shares the memory closes its own copy.
    if !forks::may_change() {
        return false;
    }
    let Some(place) = place_of(number) else { return true };
    let _quiet = Quiet::begin();
    take_out(place, number, &mut registry::lock());
    true
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
