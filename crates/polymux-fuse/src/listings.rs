//! Listings of directories under way, and the kernel's copy of the names (docs/design/0025, docs/design/0043).
//!
//! Directories are opened and closed without a message, so the daemon sees a listing where it begins (offset 0), where it goes on (the offset after the
//! last name that the kernel took), and where it comes to its end.
//!
//! Invariants:
//! * The kernel puts a copy together from the answers to all listings of a directory, each name that follows the last one *by its offset*, and has a
//!   listing go on in a complete copy where it finds its offset. Whether names were changed it checks only where a listing begins.
//! * So an offset names a group beside the position ([`Cursor`]). Listings are of one group if they began with the same names (their *edition*): then the
//!   beginning of the copy is as new as each of them. Others never go on in it, nor complete it, because their offsets are not there.
//! * A copy that was begun and not completed keeps its group: no later edition gets it. It stays incomplete if its listings are given up, and then
//!   listings are answered by the daemon as long as the kernel has the directory.
//! * A listing ends at the position that was next when it began, so that it comes to its end whatever is made meanwhile.
//! * The kernel holds the lock of a directory shared while a program reads it, and alone while a name is changed. So nothing changes between a request and
//!   the moment at which its answer becomes part of the copy, but by changes whose request was answered before (with EIO, because a tier hangs).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use polymux_fs::DirectoryNames;
use polymux_types::Ino;
use polymux_types::sync::Mutex;

mod cursor;

pub(crate) use cursor::{Cursor, Group};

/// Most directories of which anything is known.
const DIRECTORIES_MAX: usize = 1 << 16;
/// Most groups of a directory whose listings may be under way: those that were given up are among them.
const GROUPS_UNDER_WAY_MAX: usize = 64;

/// Listings by directory.
#[derive(Debug)]
pub(crate) struct Listings {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The group that the next directory begins with. At random, because an earlier daemon, or this one before it forgot some directories, may have
    /// given out any, and the kernel may have an incomplete copy with it.
    first: u64,
    directories: HashMap<Ino, Directory>,
}

/// Facts known of a directory.
#[derive(Debug)]
struct Directory {
    edition: u64,
    /// Of listings that began with this edition.
    group: Group,
    /// The group of the kernel's copy while that is incomplete.
    copy: Option<Group>,
    under_way: Vec<UnderWay>,
}

/// Listings of a group.
#[derive(Debug)]
struct UnderWay {
    group: Group,
    /// The cookie at which they end.
    end: u64,
    /// Beginnings without an end.
    count: u32,
}

impl Default for Listings {
    fn default() -> Self {
        Self { state: Mutex::new(State { first: any_number(), directories: HashMap::new() }) }
    }
}

fn any_number() -> u64 {
    RandomState::new().hash_one(0)
}

impl State {
    /// Forgets directories without a listing under way, or all of them.
    fn forget_some(&mut self) {
        self.directories.retain(|_, known| !known.under_way.is_empty());
        if self.directories.len() >= DIRECTORIES_MAX / 2 {
            self.directories.clear();
        }
        self.first = any_number();
    }
}

impl Listings {
    /// A listing of a directory begins, which has these names. Returns its group; it ends where these names do.
    pub(crate) fn begin(&self, directory: Ino, names: DirectoryNames) -> Group {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.directories.len() >= DIRECTORIES_MAX && !state.directories.contains_key(&directory) {
            state.forget_some();
        }
        let known = state.directories.entry(directory).or_insert_with(|| {
            let group = Group::of(state.first.wrapping_add(directory.get()));
            Directory { edition: names.edition, group, copy: None, under_way: Vec::new() }
        });
        known.begin(names)
    }

    /// The cookie at which a listing of a directory ends, in which the next name gets the cookie `next`.
    pub(crate) fn end_of(&self, directory: Ino, group: Group, next: u64) -> u64 {
        let state = self.state.lock();
        let known = state.directories.get(&directory);
        let listing = known.and_then(|known| known.under_way.iter().find(|listing| listing.group == group));
        listing.map_or(next, |listing| listing.end)
    }

    /// A listing has come to its end: if the copy has its last name, it is complete now.
    pub(crate) fn end(&self, directory: Ino, group: Group) {
        if let Some(known) = self.state.lock().directories.get_mut(&directory) {
            known.end(group);
        }
    }
}

impl Directory {
    fn begin(&mut self, names: DirectoryNames) -> Group {
        if self.edition != names.edition {
            (self.edition, self.group) = (names.edition, self.unused_group());
        }
        let group = self.group;
        self.copy.get_or_insert(group);
        match self.under_way.iter_mut().find(|listing| listing.group == group) {
            Some(listing) => listing.count = listing.count.saturating_add(1),
            None => {
                if self.under_way.len() >= GROUPS_UNDER_WAY_MAX {
                    // The oldest.
                    self.under_way.remove(0);
                }
                self.under_way.push(UnderWay { group, end: names.end, count: 1 });
            }
        }
        group
    }

    /// A group that neither the copy nor a listing under way has.
    fn unused_group(&self) -> Group {
        let is_used = |group| self.copy == Some(group) || self.under_way.iter().any(|listing| listing.group == group);
        let mut group = self.group.next();
        while is_used(group) {
            group = group.next();
        }
        group
    }

    fn end(&mut self, group: Group) {
        if self.copy == Some(group) {
            self.copy = None;
        }
        if let Some(index) = self.under_way.iter().position(|listing| listing.group == group) {
            self.under_way[index].count -= 1;
            if self.under_way[index].count == 0 {
                self.under_way.remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Ino = Ino(7);

    fn names(edition: u64, end: u64) -> DirectoryNames {
        DirectoryNames { edition, end }
    }

    #[test]
    fn listings_that_begin_with_the_same_names_are_of_one_group() {
        let listings = Listings::default();
        let first = listings.begin(DIRECTORY, names(1, 50));
        assert_eq!(listings.begin(DIRECTORY, names(1, 50)), first);
        listings.end(DIRECTORY, first);
        assert_eq!(listings.begin(DIRECTORY, names(1, 50)), first, "also after the end of one");
        let second = listings.begin(DIRECTORY, names(2, 60));
        assert_ne!(second, first);
        assert_eq!(listings.end_of(DIRECTORY, first, 70), 50, "each ends where it did when it began");
        assert_eq!(listings.end_of(DIRECTORY, second, 70), 60);
    }

    #[test]
    fn no_later_listing_gets_the_group_of_a_copy_that_was_given_up() {
        let listings = Listings::default();
        let given_up = listings.begin(DIRECTORY, names(1, 50));
        for edition in 2..5000 {
            let group = listings.begin(DIRECTORY, names(edition, 50));
            assert_ne!(group, given_up);
            listings.end(DIRECTORY, group);
        }
        listings.end(DIRECTORY, given_up);
        let mut later = (5000..7000).map(|edition| {
            let group = listings.begin(DIRECTORY, names(edition, 50));
            listings.end(DIRECTORY, group);
            group
        });
        assert!(later.any(|group| group == given_up), "it went on to its end");
    }

    #[test]
    fn a_listing_of_which_nothing_is_known_ends_where_the_names_do_now() {
        let listings = Listings::default();
        assert_eq!(listings.end_of(DIRECTORY, Group::of(3), 70), 70);
        listings.end(DIRECTORY, Group::of(3));
        let group = listings.begin(DIRECTORY, names(1, 50));
        listings.end(DIRECTORY, group);
        listings.end(DIRECTORY, group);
        assert_eq!(listings.end_of(DIRECTORY, group, 70), 70);
        // Each is a listing that was given up; the memory for them is bounded.
        for edition in 2..2 + 2 * GROUPS_UNDER_WAY_MAX as u64 {
            listings.begin(DIRECTORY, names(edition, 50));
        }
        assert_eq!(listings.state.lock().directories[&DIRECTORY].under_way.len(), GROUPS_UNDER_WAY_MAX);
    }

    #[test]
    fn a_bounded_number_of_directories_is_remembered() {
        let listings = Listings::default();
        for ino in 0..=2 * DIRECTORIES_MAX as u64 {
            let group = listings.begin(Ino(ino), names(ino + 1, 50));
            if ino >= 10 {
                listings.end(Ino(ino), group);
            }
            assert!(listings.state.lock().directories.len() <= DIRECTORIES_MAX);
        }
        let state = listings.state.lock();
        assert!((0..10).all(|ino| state.directories.contains_key(&Ino(ino))), "these are being listed");
        drop(state);
        for ino in 0..=2 * DIRECTORIES_MAX as u64 {
            listings.begin(Ino(ino), names(ino + 1, 50));
            assert!(listings.state.lock().directories.len() <= DIRECTORIES_MAX);
        }
    }
}
