//! Directories that are open for listing: where each listing ends, and whether it may complete the kernel's copy of the names
//! (docs/design/0025, docs/design/0043).
//!
//! Invariants:
//! * Positions in a directory rise with each name that is made, and a name that is renamed within its directory or replaced
//!   keeps its position. So a listing that ends at the position that was next when it began shows each name that was there all
//!   the time exactly once, and comes to its end whatever is made meanwhile.
//! * The kernel collects the entries of all listings that *use* its copy, each that follows the last one, without regard to changes in between. Once the
//!   copy is complete it answers from it, and finds out whether it is outdated only where a listing begins. So a copy is completed only by a listing that
//!   is alone with it, and the last one that began: others that are under way, or begin just now, would go on in entries from before their beginning,
//!   and in a copy that was begun later an earlier end would hide names.
//! * The kernel may answer a listing from a complete copy, without a request. From its first request on until it is closed, a listing counts as using
//!   the copy, and no listing that is opened meanwhile does.
//! * Listings from before this daemon use the copy, as far as is known.
//! * The kernel holds the lock of a directory shared while a program reads it, and alone while a name is changed. So nothing changes between a request and
//!   the moment at which its answer becomes part of the copy, but by changes whose request was answered before (with EIO, because a tier hangs).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_types::Ino;
use polymux_types::sync::Mutex;

/// Open directories by the handle that the kernel has of them.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// Handles up to this one may have been given out by an earlier daemon.
    before: u64,
    /// The last handle that was given out.
    last: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, OpenListing>,
    /// Directories with listings that use the copy or may use it.
    in_use: HashMap<Ino, CopyUsers>,
}

#[derive(Debug)]
struct OpenListing {
    directory: Ino,
    /// The cookie at which it ends; `None` where an earlier daemon knew it.
    end: Option<u64>,
    stage: Stage,
}

/// How a listing and the kernel's copy depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It does not use the copy.
    Apart,
    /// There was no request yet: the kernel may be answering it from a complete copy.
    Silent,
    /// Its entries become part of the copy.
    Using,
}

/// The listings of a directory for which the kernel may use the copy.
#[derive(Debug, Default)]
struct CopyUsers {
    silent: usize,
    using: usize,
    /// The handle of the one that began last; 0 where no beginning was seen.
    last_begun: u64,
}

/// Whether the kernel uses its copy for a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelCopy {
    Used,
    NotUsed,
}

impl Listings {
    /// Handles begin above this one.
    pub(crate) fn beginning_after(earlier: u64) -> Self {
        Self { before: earlier, last: AtomicU64::new(earlier), ..Self::default() }
    }

    /// Begins a listing of a directory in which the next name gets the cookie `end`. Returns its handle, and whether it uses the copy, as far
    /// as that is `allowed`.
    pub(crate) fn open(&self, directory: Ino, end: u64, allowed: KernelCopy) -> (u64, KernelCopy) {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut state = self.state.lock();
        let is_used = state.in_use.get(&directory).is_some_and(|users| users.using > 0);
        let copy = if is_used { KernelCopy::NotUsed } else { allowed };
        let stage = match copy {
            KernelCopy::Used => {
                state.in_use.entry(directory).or_default().silent += 1;
                Stage::Silent
            }
            KernelCopy::NotUsed => Stage::Apart,
        };
        state.open.insert(handle, OpenListing { directory, end: Some(end), stage });
        (handle, copy)
    }

    /// A listing is read from an offset on, while the next name gets the cookie `end`. Returns the cookie at which it ends: nowhere for a handle of
    /// an earlier daemon that goes on.
    pub(crate) fn read(&self, directory: Ino, handle: u64, offset: u64, end: u64) -> u64 {
        let mut state = self.state.lock();
        let state = &mut *state;
        let begins = offset == 0;
        if handle > self.before && !state.open.contains_key(&handle) {
            // It was closed while this request was on its way: the watcher had answered it.
            return end;
        }
        let listing = state.open.entry(handle).or_insert_with(|| {
            state.in_use.entry(directory).or_default().using += 1;
            OpenListing { directory, end: None, stage: Stage::Using }
        });
        // Up to here a silent one was answered from a copy that may be newer than its beginning.
        if begins || listing.stage == Stage::Silent {
            // A request that was held up may know an earlier end than one that came after it.
            listing.end = listing.end.max(Some(end));
        }
        let end = listing.end.unwrap_or(u64::MAX);
        if listing.stage == Stage::Apart {
            return end;
        }
        let users = state.in_use.get_mut(&listing.directory).expect("the listing was counted");
        if listing.stage == Stage::Silent {
            listing.stage = Stage::Using;
            users.silent -= 1;
            users.using += 1;
        }
        if begins {
            users.last_begun = handle;
        }
        end
    }

    /// Whether the end of a listing may complete the kernel's copy. One that does not use it cannot.
    pub(crate) fn may_complete_copy(&self, handle: u64) -> bool {
        let state = self.state.lock();
        let Some(listing) = state.open.get(&handle) else { return false };
        match listing.stage {
            Stage::Apart => true,
            Stage::Silent => false,
            Stage::Using => {
                let users = &state.in_use[&listing.directory];
                users.using == 1 && users.silent == 0 && users.last_begun == handle
            }
        }
    }

    /// The directory was closed.
    pub(crate) fn close(&self, handle: u64) {
        let mut state = self.state.lock();
        let Some(OpenListing { stage, directory, .. }) = state.open.remove(&handle) else { return };
        let Some(users) = state.in_use.get_mut(&directory) else {
            return assert_eq!(stage, Stage::Apart, "the others are counted");
        };
        match stage {
            Stage::Apart => return,
            Stage::Silent => users.silent -= 1,
            Stage::Using => users.using -= 1,
        }
        if users.silent == 0 && users.using == 0 {
            state.in_use.remove(&directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Ino = Ino(7);
    const OTHER: Ino = Ino(8);

    fn open(listings: &Listings, end: u64) -> (u64, KernelCopy) {
        listings.open(DIRECTORY, end, KernelCopy::Used)
    }

    #[test]
    fn a_listing_that_is_alone_completes_the_copy() {
        let listings = Listings::default();
        let (handle, copy) = open(&listings, 5);
        assert_eq!(copy, KernelCopy::Used);
        assert_eq!((listings.read(DIRECTORY, handle, 0, 5), listings.read(DIRECTORY, handle, 3, 9)), (5, 5));
        assert!(listings.may_complete_copy(handle));
        assert_eq!(listings.read(DIRECTORY, handle, 0, 9), 9, "it begins anew");
        assert!(listings.may_complete_copy(handle));
    }

    #[test]
    fn a_listing_that_is_opened_beside_one_that_has_begun_does_not_use_the_copy() {
        let listings = Listings::default();
        let (first, _) = open(&listings, 5);
        listings.read(DIRECTORY, first, 0, 5);
        let (second, copy) = open(&listings, 9);
        assert_eq!(copy, KernelCopy::NotUsed);
        assert_eq!(listings.open(OTHER, 5, KernelCopy::Used).1, KernelCopy::Used);
        assert_eq!(
            (listings.read(DIRECTORY, second, 0, 9), listings.read(DIRECTORY, first, 3, 9)),
            (9, 5),
            "each has its end"
        );
        assert!(listings.may_complete_copy(first) && listings.may_complete_copy(second), "the kernel tells them apart");
        listings.close(first);
        assert_eq!(open(&listings, 9).1, KernelCopy::Used, "the other one does not hinder it");
    }

    #[test]
    fn of_two_listings_that_use_the_copy_none_completes_it() {
        let listings = Listings::default();
        let [(first, _), (second, _)] = [(); 2].map(|()| open(&listings, 5));
        listings.read(DIRECTORY, first, 0, 5);
        listings.read(DIRECTORY, second, 0, 9);
        assert!(!listings.may_complete_copy(first) && !listings.may_complete_copy(second));
        listings.close(second);
        assert!(!listings.may_complete_copy(first), "the copy may have been begun by the other one");
        listings.read(DIRECTORY, first, 0, 9);
        assert!(listings.may_complete_copy(first));
    }

    #[test]
    fn a_listing_that_may_begin_just_now_keeps_another_one_from_completing_the_copy() {
        let listings = Listings::default();
        let [(silent, _), (reader, _)] = [(); 2].map(|()| open(&listings, 5));
        listings.read(DIRECTORY, reader, 0, 5);
        assert!(!listings.may_complete_copy(reader));
        listings.close(silent);
        assert!(listings.may_complete_copy(reader));
    }

    #[test]
    fn a_listing_that_was_answered_without_requests_shows_names_that_came_meanwhile_and_completes_nothing() {
        let listings = Listings::default();
        let (silent, _) = open(&listings, 5);
        let (reader, copy) = open(&listings, 5);
        assert_eq!(copy, KernelCopy::Used, "the silent one does not hinder it");
        listings.read(DIRECTORY, reader, 0, 9);
        assert!(!listings.may_complete_copy(silent));
        assert_eq!(
            listings.read(DIRECTORY, silent, 7, 9),
            9,
            "the copy that it was answered from may have had more names"
        );
        assert!(!listings.may_complete_copy(reader), "there are two");
        listings.close(reader);
        assert!(!listings.may_complete_copy(silent), "its beginning was not seen");
    }

    #[test]
    fn a_listing_from_before_the_daemon_counts_from_its_first_request_on() {
        let listings = Listings::beginning_after(100);
        let (own, _) = open(&listings, 5);
        assert!(own > 100);
        listings.read(DIRECTORY, own, 0, 5);
        assert_eq!(listings.read(DIRECTORY, 3, 7, 5), u64::MAX, "its end is not known");
        assert!(!listings.may_complete_copy(3) && !listings.may_complete_copy(own));
        listings.close(3);
        assert!(listings.may_complete_copy(own));
        listings.close(4);
    }

    #[test]
    fn a_request_that_comes_after_the_close_leaves_nothing() {
        let listings = Listings::beginning_after(100);
        let (handle, _) = open(&listings, 5);
        listings.close(handle);
        assert_eq!(listings.read(DIRECTORY, handle, 0, 7), 7);
        assert!(!listings.may_complete_copy(handle));
        let (next, _) = open(&listings, 9);
        assert_eq!(listings.read(DIRECTORY, next, 0, 9), 9);
        assert_eq!(listings.read(DIRECTORY, next, 0, 7), 9, "it was held up, and knows an earlier end");
        assert!(listings.may_complete_copy(next));
    }

    #[test]
    fn nothing_is_left_of_directories_that_are_closed() {
        let listings = Listings::default();
        let handles = [KernelCopy::Used, KernelCopy::Used, KernelCopy::NotUsed]
            .map(|allowed| listings.open(DIRECTORY, 5, allowed).0);
        for handle in handles {
            listings.read(DIRECTORY, handle, 0, 5);
        }
        handles.into_iter().for_each(|handle| listings.close(handle));
        let state = listings.state.lock();
        assert!(state.open.is_empty() && state.in_use.is_empty());
    }
}
