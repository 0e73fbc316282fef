//! How the open descriptions of one inode do their I/O (DESIGN section 10).
//!
//! Invariants:
//! * While a description goes to the object directly, every other one does too; while one goes through the daemon, none does.
//!   The kernel answers any other mix with `EIO` (fuse_inode_uncached_io_start in fs/fuse/iomode.c).
//! * A description counts from before its open is answered until its release arrives. The kernel lets go before it says so,
//!   so that the count here is never less than the count of the kernel.
//! * A mapping may outlive its description: then the object is held (`UsersNow::held`), which these counts do not know.
//! * Who has to change an object that is passed through and may not do so directly gets a description whose calls come to the
//!   daemon (`FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO`), and whose mappings are of the object all the same.

use polymux_records::passthrough::IoMode;

/// The access that a description is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenPurpose {
    /// For reading only.
    Read,
    /// For writing.
    Change,
}

/// State that the kernel holds for an object beside the counted descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Nothing.
    Free,
    /// It is registered for the next open of the file, because it is held: all go to the same object.
    Registered,
}

/// Whether an object may be used directly for a purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grant {
    /// It may.
    Given,
    /// It may not.
    Refused,
}

/// Open descriptions of one inode, by how they do their I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoModes {
    /// Passed through, for whatever purpose.
    passed: u32,
    /// Of these, those that may change the object.
    changing: u32,
    through_daemon: u32,
    /// Of all of them, those that may change the file.
    writing: u32,
}

impl IoModes {
    /// Whether a description may change the file, in whatever way.
    pub fn is_open_for_changes(self) -> bool {
        self.writing > 0
    }

    pub fn is_passed_through(self) -> bool {
        self.passed > 0
    }

    /// Whether one of those who are passed through may change the object.
    pub fn is_changed_directly(self) -> bool {
        self.changing > 0
    }

    /// Whether no description is open.
    pub fn is_closed(self) -> bool {
        self == Self::default()
    }

    /// Counts a description and says how it does its I/O. `grant` is asked only where the answer matters; `through_daemon` is
    /// how it does it where it goes through the daemon.
    pub fn open(
        &mut self,
        purpose: OpenPurpose,
        grant: impl FnOnce() -> Grant,
        through_daemon: IoMode,
        standing: Standing,
    ) -> IoMode {
        debug_assert!(!through_daemon.is_passed_through(), "{through_daemon:?} does not go through the daemon");
        let is_passed = self.is_passed_through() || standing == Standing::Registered && self.through_daemon == 0;
        let mode = match (is_passed, self.through_daemon > 0, purpose) {
            // An open for reading only is always admitted.
            (true, _, OpenPurpose::Read) => IoMode::Passthrough,
            (true, _, OpenPurpose::Change) => match grant() {
                Grant::Given => IoMode::Passthrough,
                Grant::Refused => IoMode::PassthroughDirect,
            },
            (false, true, _) => through_daemon,
            (false, false, _) => match grant() {
                Grant::Given => IoMode::Passthrough,
                Grant::Refused => through_daemon,
            },
        };
        if mode.is_passed_through() {
            self.passed += 1;
            self.changing += u32::from(purpose == OpenPurpose::Change);
        } else {
            self.through_daemon += 1;
        }
        self.writing += u32::from(purpose == OpenPurpose::Change);
        mode
    }

    /// Takes a description out again.
    pub fn release(&mut self, mode: IoMode, purpose: OpenPurpose) {
        let less = |count: &mut u32| *count = count.checked_sub(1).expect("each description is counted once");
        if mode.is_passed_through() {
            less(&mut self.passed);
            if purpose == OpenPurpose::Change {
                less(&mut self.changing);
            }
        } else {
            less(&mut self.through_daemon);
        }
        if purpose == OpenPurpose::Change {
            less(&mut self.writing);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The rules of the kernel for one inode, as fs/fuse/iomode.c of Linux 6.18 has them: how many descriptions use the page
    /// cache, how many the object.
    #[derive(Clone, Default, PartialEq, Eq, Hash)]
    struct Kernel {
        caching: u32,
        passed: u32,
        /// Direct descriptions that are mapped use the page cache from then on.
        open: Vec<(IoMode, OpenPurpose, Mapped)>,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    enum Mapped {
        Yes,
        No,
    }

    impl Kernel {
        /// Whether the kernel takes the answer to an open.
        fn open(&mut self, mode: IoMode, purpose: OpenPurpose) -> bool {
            let taken = match mode {
                IoMode::Passthrough | IoMode::PassthroughDirect => self.caching == 0,
                IoMode::Cached => self.passed == 0,
                IoMode::Direct => self.passed == 0,
            };
            self.passed += u32::from(mode.is_passed_through());
            self.caching += u32::from(mode == IoMode::Cached);
            self.open.push((mode, purpose, Mapped::No));
            taken
        }

        fn map(&mut self, place: usize) -> bool {
            let (mode, _, mapped) = &mut self.open[place];
            if *mode == IoMode::Direct && *mapped == Mapped::No {
                *mapped = Mapped::Yes;
                self.caching += 1;
                return self.passed == 0;
            }
            true
        }

        fn close(&mut self, place: usize) -> (IoMode, OpenPurpose) {
            let (mode, purpose, mapped) = self.open.remove(place);
            self.passed -= u32::from(mode.is_passed_through());
            self.caching -= u32::from(mode == IoMode::Cached || mapped == Mapped::Yes);
            (mode, purpose)
        }
    }

    /// The possible next events: all operations of programs, and both answers to a request for a grant.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Open(OpenPurpose, Grant, IoMode, Standing),
        Map(usize),
        Close(usize),
        /// The release of a description that the kernel let go of arrives.
        Hear(usize),
    }

    #[derive(Clone, Default, PartialEq, Eq, Hash)]
    struct World {
        kernel: Kernel,
        modes: IoModes,
        unheard: Vec<(IoMode, OpenPurpose)>,
    }

    impl World {
        fn events(&self) -> Vec<Event> {
            let mut events = Vec::new();
            if self.kernel.open.len() < 4 {
                for purpose in [OpenPurpose::Read, OpenPurpose::Change] {
                    for grant in [Grant::Given, Grant::Refused] {
                        for otherwise in [IoMode::Cached, IoMode::Direct] {
                            for standing in [Standing::Free, Standing::Registered] {
                                events.push(Event::Open(purpose, grant, otherwise, standing));
                            }
                        }
                    }
                }
            }
            events.extend((0..self.kernel.open.len()).flat_map(|place| [Event::Map(place), Event::Close(place)]));
            events.extend((0..self.unheard.len()).map(Event::Hear));
            events
        }

        fn happen(&mut self, event: Event) -> Result<(), String> {
            let taken = match event {
                Event::Open(purpose, grant, otherwise, standing) => {
                    let mode = self.modes.open(purpose, || grant, otherwise, standing);
                    self.kernel.open(mode, purpose)
                }
                Event::Map(place) => self.kernel.map(place),
                Event::Close(place) => {
                    let closed = self.kernel.close(place);
                    self.unheard.push(closed);
                    true
                }
                Event::Hear(place) => {
                    let (mode, purpose) = self.unheard.remove(place);
                    self.modes.release(mode, purpose);
                    true
                }
            };
            if taken { Ok(()) } else { Err(format!("{event:?} is answered with EIO by the kernel")) }
        }
    }

    /// Every order of opening, mapping, closing and late releases of up to four descriptions.
    #[test]
    fn no_order_of_opens_maps_and_releases_leads_to_an_error() {
        let mut known = HashSet::new();
        let mut next = vec![World::default()];
        while let Some(world) = next.pop() {
            if world.unheard.len() > 3 || !known.insert(world.clone()) {
                continue;
            }
            for event in world.events() {
                let mut after = world.clone();
                after.happen(event).expect("the kernel takes every answer");
                let counted = after.modes.is_closed();
                assert_eq!(counted, after.kernel.open.is_empty() && after.unheard.is_empty(), "{event:?}");
                next.push(after);
            }
        }
        assert!(known.len() > 1000, "{} states were looked at", known.len());
    }

    #[test]
    fn the_kernel_of_the_test_refuses_mixes() {
        let mut kernel = Kernel::default();
        assert!(kernel.open(IoMode::Passthrough, OpenPurpose::Read));
        assert!(!kernel.open(IoMode::Cached, OpenPurpose::Read));
        let mut kernel = Kernel::default();
        assert!(kernel.open(IoMode::Direct, OpenPurpose::Read) && kernel.map(0));
        assert!(!kernel.open(IoMode::Passthrough, OpenPurpose::Read));
    }

    #[test]
    fn who_changes_without_a_grant_shares_the_object_with_readers_through_the_daemon() {
        let mut modes = IoModes::default();
        assert_eq!(modes.open(OpenPurpose::Read, || Grant::Given, IoMode::Cached, Standing::Free), IoMode::Passthrough);
        assert_eq!(
            modes.open(OpenPurpose::Change, || Grant::Refused, IoMode::Cached, Standing::Free),
            IoMode::PassthroughDirect
        );
        assert!(modes.is_changed_directly(), "its mappings change the object");
        modes.release(IoMode::PassthroughDirect, OpenPurpose::Change);
        assert!(!modes.is_changed_directly() && modes.is_passed_through());
    }
}
