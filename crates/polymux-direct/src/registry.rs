//! All watched files: their entries, and their reports.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use polymux_client::{Report, Way};

use crate::files::Watched;
use crate::past_pages::PastPages;
use crate::{ALLOCATOR, files, interface, report};

/// Files of which a report is kept after they were closed; those after them are added up.
const REPORTS_MAX: usize = 1000;
const LEFT_MAX: usize = 64;

/// Its own word, so that a child of a fork can have a new one: the lock of this one may be held for ever.
static REGISTRY: AtomicPtr<Mutex<Registry>> = AtomicPtr::new(std::ptr::null_mut());

/// One watched file.
struct Known {
    watched: &'static Watched,
    /// Where a report is wanted.
    path: Option<String>,
}

/// How the watch of a number ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program is about to close it.
    Closing,
    /// It was found to be another file, or to be used otherwise.
    Found,
}

#[derive(Default)]
pub struct Registry {
    known: BTreeMap<RawFd, Known>,
    free: Vec<&'static Watched>,
    /// Descriptions past the page cache of files that were closed without being seen.
    left: Vec<&'static PastPages>,
    closed: BTreeMap<String, Report>,
    others: Report,
}

/// Called with signals blocked.
pub fn lock() -> MutexGuard<'static, Registry> {
    let mut registry = REGISTRY.load(Ordering::Acquire);
    if registry.is_null() {
        let new = Box::into_raw(Box::default());
        let (ordering, null) = (Ordering::AcqRel, std::ptr::null_mut());
        registry = match REGISTRY.compare_exchange(null, new, ordering, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: it was made just now, and is not used by anything.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: each registry lives for ever.
    let registry = unsafe { &*registry };
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves the present one alone from now on.
pub fn replace(registry: Registry) {
    REGISTRY.store(Box::into_raw(Box::new(Mutex::new(registry))), Ordering::Release);
}

/// Takes over the calls that the preloaded library left to the kernel.
fn count_calls(number: RawFd, watched: &Watched) {
    if let Some(preload) = interface::preload() {
        watched.reader.note_reads(Way::NoLeaseYet, u64::from((preload.take_reads)(number)));
        watched.reader.note_writes(Way::NoLeaseYet, u64::from((preload.take_writes)(number)));
    }
}

fn path_of(number: RawFd) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{number}"));
    path.map_or_else(|_| format!("descriptor {number}"), |path| path.to_string_lossy().into_owned())
}

impl Registry {
    pub fn watch(&mut self, number: RawFd) -> &'static Watched {
        let watched = self.free.pop().unwrap_or_else(|| Box::leak(Box::new(Watched::new())));
        let path = report::is_wanted().then(|| path_of(number));
        self.known.insert(number, Known { watched, path });
        watched
    }

    /// Returns descriptions past the page cache that are to be closed without the lock.
    pub fn forget(&mut self, number: RawFd, end: End) -> Vec<&'static PastPages> {
        let Some(Known { watched, path }) = self.known.remove(&number) else { return Vec::new() };
        count_calls(number, watched);
        let closed = self.end_past_pages(number, watched, end);
        let report = watched.reader.restart();
        self.free.push(watched);
        if let Some(path) = path.filter(|_| ALLOCATOR.has_reserve()) {
            self.note_closed(path, &report);
        }
        closed
    }

    /// Takes all descriptions past the page cache away.
    pub fn take_all_past_pages(&mut self) -> Vec<&'static PastPages> {
        let of_known = self.known.values().filter_map(|known| known.watched.take_past_pages());
        of_known.chain(self.left.drain(..)).collect()
    }

    /// A program that closes numbers without being seen leaves so many descriptions open that it gets no more.
    pub fn has_many_left(&self) -> bool {
        self.left.len() >= LEFT_MAX
    }

    /// Whether a number still is that of an entry.
    pub fn is_watched(&self, number: RawFd, watched: &Watched) -> bool {
        self.known.get(&number).is_some_and(|known| std::ptr::eq(known.watched, watched))
    }

    /// Leaves a description open: closing it would end locks of the program.
    pub fn leave(&mut self, past_pages: Option<&'static PastPages>) {
        self.left.extend(past_pages);
    }

    /// The description of a number, and others of the same file, if the number is closed and still names the file.
    fn end_past_pages(&mut self, number: RawFd, watched: &Watched, end: End) -> Vec<&'static PastPages> {
        let Some(past_pages) = watched.take_past_pages() else { return Vec::new() };
        if end == End::Found || !past_pages.is_of(files::borrow(number)) {
            self.left.push(past_pages);
            return Vec::new();
        }
        let identity = past_pages.identity();
        let of_same_file = self.left.extract_if(.., |left| left.identity() == identity);
        of_same_file.chain([past_pages]).collect()
    }

    pub fn watched(&self) -> impl Iterator<Item = &'static Watched> {
        self.known.values().map(|known| known.watched)
    }

    fn note_closed(&mut self, path: String, report: &Report) {
        if let Some(known) = self.closed.get_mut(&path) {
            known.add(report);
        } else if self.closed.len() < REPORTS_MAX {
            self.closed.insert(path, *report);
        } else {
            self.others.add(report);
        }
    }

    /// How the files were read that are open or were closed, by their paths, and all others together.
    pub fn reports(&mut self) -> (&BTreeMap<String, Report>, Report) {
        let report = |(number, known): (&RawFd, &Known)| {
            count_calls(*number, known.watched);
            Some((known.path.clone()?, known.watched.reader.report()))
        };
        let open: Vec<_> = self.known.iter().filter_map(report).collect();
        for (path, report) in open {
            self.note_closed(path, &report);
        }
        (&self.closed, self.others)
    }
}
