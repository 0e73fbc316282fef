//! Who uses the one object of a file beside the daemon, in one word, so that a look sees a state that there was.

use std::sync::atomic::{AtomicU8, Ordering};

use super::OpenPurpose;

/// Descriptions of this mount go to the object.
const OPEN: u8 = 1;
/// They may change it.
const OPEN_FOR_CHANGES: u8 = 2;
/// It is in use without an open file description of this mount.
const HELD: u8 = 4;
/// A holder may change it.
const HELD_FOR_CHANGES: u8 = 8;
/// A program has it open since an earlier mount.
const SINCE_EARLIER_MOUNT: u8 = 16;

/// Users of the one object of a file beside the daemon. Begins and ends for descriptions of this mount change under `DirectState::passed`,
/// and where the object was not used before, or is not used any more, under the barrier alone. A hold since an earlier mount begins
/// under `SizeState::finding`, before anything else is done with the file.
#[derive(Debug, Default)]
pub struct DirectUsers(AtomicU8);

/// Users of an object at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsersNow(u8);

impl UsersNow {
    /// Whether there is any.
    #[inline]
    pub const fn is_any(self) -> bool {
        self.0 & (OPEN | HELD) != 0
    }

    /// Whether any of them may change it.
    #[inline]
    pub const fn may_change(self) -> bool {
        self.0 & (OPEN_FOR_CHANGES | HELD_FOR_CHANGES) != 0
    }

    /// Whether descriptions of this mount that go to the object may change it.
    pub const fn is_open_for_changes(self) -> bool {
        self.0 & OPEN_FOR_CHANGES != 0
    }

    /// The use without an open file description of this mount: by a mapping whose descriptor was closed, or by a program that has the object
    /// open since an earlier mount.
    pub const fn held(self) -> Option<OpenPurpose> {
        match self.0 & (HELD | HELD_FOR_CHANGES) {
            0 => None,
            HELD => Some(OpenPurpose::Read),
            _ => Some(OpenPurpose::Change),
        }
    }

    /// Whether a program has the object open since an earlier mount, through descriptions whose requests do not arrive here; a mapping of this
    /// mount does not count.
    pub const fn is_held_since_earlier_mount(self) -> bool {
        self.0 & SINCE_EARLIER_MOUNT != 0
    }
}

impl DirectUsers {
    /// The users at this moment.
    #[inline]
    pub fn now(&self) -> UsersNow {
        UsersNow(self.0.load(Ordering::Acquire))
    }

    /// Descriptions of this mount go to the object from now on.
    pub fn open(&self) {
        self.0.fetch_or(OPEN, Ordering::AcqRel);
    }

    /// They may change it from now on.
    pub fn open_for_changes(&self) {
        self.0.fetch_or(OPEN_FOR_CHANGES, Ordering::AcqRel);
    }

    /// No description of this mount goes to the object any more.
    pub fn close(&self) {
        self.0.fetch_and(!(OPEN | OPEN_FOR_CHANGES), Ordering::AcqRel);
    }

    /// The object is in use without an open file description of this mount.
    pub fn hold(&self, purpose: OpenPurpose) {
        let bits = match purpose {
            OpenPurpose::Read => HELD,
            OpenPurpose::Change => HELD | HELD_FOR_CHANGES,
        };
        self.0.fetch_or(bits, Ordering::AcqRel);
    }

    /// A program has the object open since an earlier mount and may change it.
    pub fn hold_since_earlier_mount(&self) {
        self.0.fetch_or(HELD | HELD_FOR_CHANGES | SINCE_EARLIER_MOUNT, Ordering::AcqRel);
    }

    /// The object is not in use any more without an open file description of this mount.
    pub fn end_hold(&self) {
        self.0.fetch_and(!(HELD | HELD_FOR_CHANGES | SINCE_EARLIER_MOUNT), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_stays_in_use_by_its_holder_when_its_descriptions_close() {
        let users = DirectUsers::default();
        assert!(!users.now().is_any());
        users.open();
        users.open_for_changes();
        assert!(users.now().is_any() && users.now().may_change() && users.now().held().is_none());
        users.hold(OpenPurpose::Read);
        users.close();
        assert_eq!(users.now().held(), Some(OpenPurpose::Read));
        assert!(users.now().is_any() && !users.now().may_change(), "the holder only reads");
        users.hold_since_earlier_mount();
        assert_eq!(users.now().held(), Some(OpenPurpose::Change));
        assert!(users.now().is_held_since_earlier_mount());
        users.open();
        users.end_hold();
        assert!(users.now().is_any() && users.now().held().is_none() && !users.now().may_change());
    }
}
