//! Whether the volume has any pin, so that files of one without are not looked up.

use std::sync::atomic::{AtomicBool, Ordering};

use polymux_records::error::Result;
use polymux_types::sync::Mutex;

use super::{PIN_ATTRIBUTE, Placement};

/// Extended attributes looked at in a step of the look for pins.
const XATTRS_PER_STEP: usize = 1024;

/// Whether the volume has any pin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    /// The attributes up to this key were looked at, and none of them is one.
    UpTo(Vec<u8>),
    /// There was one at the last look.
    Some,
    None,
}

impl Default for Known {
    fn default() -> Self {
        Self::UpTo(Vec::new())
    }
}

/// Whether the volume has any pin.
#[derive(Debug, Default)]
pub struct Pins {
    known: Mutex<Known>,
    /// Nothing is pinned: everything was looked at since the mount or the last pin. Changes with `known`, under its lock.
    has_none: AtomicBool,
}

/// The outcome of a step of the look for pins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinsStep {
    pub has_found: bool,
    pub has_more: bool,
}

impl Pins {
    /// Something was pinned.
    pub fn note_pin(&self) {
        let mut known = self.known.lock();
        *known = Known::Some;
        self.has_none.store(false, Ordering::Release);
    }

    /// A pin was taken away: perhaps it was the last one.
    pub fn look_again(&self) {
        *self.known.lock() = Known::default();
    }

    /// Whether it is certain that nothing is pinned.
    pub(crate) fn has_none(&self) -> bool {
        self.has_none.load(Ordering::Acquire)
    }

    /// Whether something was pinned at the last look.
    pub fn has_some(&self) -> bool {
        *self.known.lock() == Known::Some
    }
}

impl Placement {
    /// A piece of the look for pins, after the mount and after one was taken away.
    pub fn pins_step(&self) -> Result<PinsStep> {
        let Known::UpTo(after) = self.pins.known.lock().clone() else { return Ok(PinsStep::default()) };
        let (has_found, last) = self.volume.metadata.look_for_xattr(PIN_ATTRIBUTE, &after, XATTRS_PER_STEP)?;
        let mut known = self.pins.known.lock();
        // Another thread may have set a pin meanwhile.
        if *known != Known::UpTo(after) {
            return Ok(PinsStep { has_found: false, has_more: true });
        }
        let has_more = !has_found && last.is_some();
        *known = match last {
            _ if has_found => Known::Some,
            Some(last) => Known::UpTo(last),
            None => Known::None,
        };
        self.pins.has_none.store(*known == Known::None, Ordering::Release);
        Ok(PinsStep { has_found, has_more })
    }
}
