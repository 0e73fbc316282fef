//! Directories that are open for listing: where each listing ends, and whether the kernel may keep a copy of it
//! (docs/design/0025, docs/design/0043).
//!
//! Invariants:
//! * Positions in a directory rise with each name that is made, and a name that is renamed within its directory or replaced
//!   keeps its position. So a listing that ends at the position that was next when it began shows each name that was there all
//!   the time exactly once, and comes to its end whatever is made meanwhile.
//! * The kernel puts its copy together from the answers to all listings that may be kept, and believes the end that any of them reaches. So these
//!   have one end in common, for each directory. A listing that would need another one is not kept.
//! * The kernel drops its copy by itself after each change of names that was answered with success. A directory that changed without that is noted
//!   here until it is opened again, which then drops the copy.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_types::Ino;
use polymux_types::sync::Mutex;

/// Open directories by the handle that the kernel has of them.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// The last handle that was given out; the first one is 1.
    last: AtomicU64,
    state: Mutex<State>,
    /// Whether `State::outdated` has any, so that changing names and forgetting inodes need not lock.
    has_outdated: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, OpenListing>,
    /// The listings of each directory that the kernel may keep.
    kept: HashMap<Ino, KeptListings>,
    /// Directories of which the kernel may have a copy that it does not know to be outdated.
    outdated: HashSet<Ino>,
}

#[derive(Debug)]
struct OpenListing {
    directory: Ino,
    end: End,
}

/// The cookie at which a listing ends.
#[derive(Debug)]
enum End {
    /// That of all listings of the directory that the kernel may keep.
    Common,
    Own(u64),
}

#[derive(Debug)]
struct KeptListings {
    end: u64,
    count: usize,
}

/// How the kernel treats its copy of the names of a directory that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelCopy {
    /// It may use the one that it has, or make one.
    Kept,
    /// It drops the one that it has, and may make another.
    MadeAnew,
    /// It leaves the one that it has to other listings.
    NotUsed,
}

impl Listings {
    /// Handles begin above this one: those up to it may have been given out by an earlier daemon.
    pub(crate) fn beginning_after(last: u64) -> Self {
        Self { last: AtomicU64::new(last), ..Self::default() }
    }

    /// Begins a listing of a directory in which the next name gets this cookie; returns its handle.
    pub(crate) fn open(&self, directory: Ino, next_cookie: u64) -> (u64, KernelCopy) {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut state = self.state.lock();
        let kept = state.kept.entry(directory).or_insert(KeptListings { end: next_cookie, count: 0 });
        if kept.end != next_cookie {
            state.open.insert(handle, OpenListing { directory, end: End::Own(next_cookie) });
            return (handle, KernelCopy::NotUsed);
        }
        kept.count += 1;
        state.open.insert(handle, OpenListing { directory, end: End::Common });
        let copy = if state.outdated.remove(&directory) { KernelCopy::MadeAnew } else { KernelCopy::Kept };
        self.has_outdated.store(!state.outdated.is_empty(), Ordering::Release);
        (handle, copy)
    }

    /// The listing begins anew. One that the kernel may keep takes along the others of its directory.
    pub(crate) fn rewind(&self, directory: Ino, handle: u64, next_cookie: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        match state.open.get_mut(&handle) {
            Some(OpenListing { end: End::Own(end), .. }) => *end = next_cookie,
            // The kernel may keep those of an earlier daemon, too.
            Some(OpenListing { end: End::Common, .. }) | None => {
                let Some(kept) = state.kept.get_mut(&directory).filter(|kept| kept.end < next_cookie) else { return };
                kept.end = next_cookie;
                // An answer to another listing that ends at the earlier position may still be on its way.
                state.outdated.insert(directory);
                self.has_outdated.store(true, Ordering::Release);
            }
        }
    }

    /// Where the listing ends; nowhere for a handle that was not given out.
    pub(crate) fn end(&self, handle: u64) -> u64 {
        let state = self.state.lock();
        match state.open.get(&handle) {
            Some(OpenListing { end: End::Own(end), .. }) => *end,
            Some(OpenListing { end: End::Common, directory }) => state.kept[directory].end,
            None => u64::MAX,
        }
    }

    /// The directory was closed.
    pub(crate) fn close(&self, handle: u64) {
        let mut state = self.state.lock();
        let Some(OpenListing { end: End::Common, directory }) = state.open.remove(&handle) else { return };
        let kept = state.kept.get_mut(&directory).expect("the listing was counted");
        kept.count -= 1;
        if kept.count == 0 {
            state.kept.remove(&directory);
        }
    }

    /// The names of a directory, or its parent, changed or may have changed, and the kernel does not hear of it.
    pub(crate) fn outdate(&self, directory: Ino) {
        let mut state = self.state.lock();
        state.outdated.insert(directory);
        self.has_outdated.store(true, Ordering::Release);
    }

    /// The kernel has forgotten an inode, and its copy of the names with it.
    pub(crate) fn forget(&self, ino: Ino) {
        if !self.has_outdated.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        state.outdated.remove(&ino);
        self.has_outdated.store(!state.outdated.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Ino = Ino(7);
    const OTHER: Ino = Ino(8);

    #[test]
    fn listings_of_an_unchanged_directory_are_kept_by_the_kernel() {
        let listings = Listings::default();
        let (first, copy) = listings.open(DIRECTORY, 5);
        assert_eq!(copy, KernelCopy::Kept);
        let (second, copy) = listings.open(DIRECTORY, 5);
        assert_eq!(copy, KernelCopy::Kept);
        assert_eq!((listings.end(first), listings.end(second)), (5, 5));
    }

    #[test]
    fn a_listing_that_ends_elsewhere_than_one_that_is_open_is_not_kept() {
        let listings = Listings::default();
        let (first, _) = listings.open(DIRECTORY, 5);
        let (second, copy) = listings.open(DIRECTORY, 9);
        assert_eq!(copy, KernelCopy::NotUsed);
        assert_eq!((listings.end(first), listings.end(second)), (5, 9));
        listings.close(first);
        assert_eq!(listings.open(DIRECTORY, 9).1, KernelCopy::Kept, "the one that was not kept does not count");
    }

    #[test]
    fn a_listing_that_begins_anew_takes_along_those_whose_copy_it_shares() {
        let listings = Listings::default();
        let (first, _) = listings.open(DIRECTORY, 5);
        let (second, _) = listings.open(DIRECTORY, 5);
        let (elsewhere, _) = listings.open(OTHER, 5);
        listings.rewind(DIRECTORY, second, 9);
        assert_eq!((listings.end(first), listings.end(second), listings.end(elsewhere)), (9, 9, 5));
        assert_eq!(listings.open(DIRECTORY, 9).1, KernelCopy::MadeAnew, "an answer with the earlier end may come late");
        assert_eq!(listings.open(DIRECTORY, 9).1, KernelCopy::Kept);
    }

    #[test]
    fn a_listing_from_before_the_daemon_has_no_end_and_counts_as_kept() {
        let listings = Listings::beginning_after(100);
        let (known, _) = listings.open(DIRECTORY, 5);
        assert!(known > 100);
        assert_eq!(listings.end(3), u64::MAX);
        listings.rewind(DIRECTORY, 3, 9);
        assert_eq!(listings.end(known), 9);
        listings.close(3);
    }

    #[test]
    fn a_listing_with_an_end_of_its_own_leaves_the_others_alone_when_it_begins_anew() {
        let listings = Listings::default();
        let (kept, _) = listings.open(DIRECTORY, 5);
        let (own, _) = listings.open(DIRECTORY, 6);
        listings.rewind(DIRECTORY, own, 9);
        assert_eq!((listings.end(kept), listings.end(own)), (5, 9));
    }

    #[test]
    fn an_outdated_copy_is_dropped_by_the_next_listing_that_uses_it() {
        let listings = Listings::default();
        let (open, _) = listings.open(DIRECTORY, 5);
        listings.outdate(DIRECTORY);
        assert_eq!(listings.open(DIRECTORY, 6).1, KernelCopy::NotUsed);
        listings.close(open);
        assert_eq!(listings.open(DIRECTORY, 6).1, KernelCopy::MadeAnew);
        assert_eq!(listings.open(DIRECTORY, 6).1, KernelCopy::Kept);
    }

    #[test]
    fn nothing_is_left_of_directories_that_are_closed_and_forgotten() {
        let listings = Listings::default();
        let (kept, _) = listings.open(DIRECTORY, 5);
        let (own, _) = listings.open(DIRECTORY, 6);
        listings.outdate(DIRECTORY);
        listings.forget(DIRECTORY);
        listings.close(kept);
        listings.close(own);
        let state = listings.state.lock();
        assert!(state.open.is_empty() && state.kept.is_empty() && state.outdated.is_empty());
        assert!(!listings.has_outdated.load(Ordering::Acquire));
    }
}
