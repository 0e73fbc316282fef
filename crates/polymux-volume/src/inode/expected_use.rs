//! The likely use of a file, derived from the directory in which it was created (docs/design/0034).

use std::sync::atomic::{AtomicU8, Ordering};

use polymux_policy::Synced;

/// Why its writes are likely to be waited for, if they are.
#[derive(Debug, Default)]
pub struct ExpectedUse(AtomicU8);

impl ExpectedUse {
    pub fn set(&self, expected: Option<Synced>) {
        self.0.store(expected.map_or(0, |expected| expected as u8), Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<Synced> {
        match self.0.load(Ordering::Relaxed) {
            log if log == Synced::Log as u8 => Some(Synced::Log),
            message if message == Synced::Message as u8 => Some(Synced::Message),
            _ => None,
        }
    }
}
