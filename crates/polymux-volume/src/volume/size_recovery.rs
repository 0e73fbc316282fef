//! Sizes after an unclean stop: objects may be longer than their files say (DESIGN section 6), until each was asked.

use std::sync::atomic::{AtomicBool, Ordering};

use polymux_types::Ino;
use polymux_types::sync::Mutex;

/// How far the sizes of files are known since the mount.
#[derive(Debug, Default)]
pub struct SizeRecovery {
    /// The last stop was unclean.
    pub after_unclean_stop: AtomicBool,
    /// The size of a file that was asked since `asked_up_to` was 0 could not be found out.
    pub has_failed: AtomicBool,
    /// After an unclean stop: the last file whose size was asked of its objects. `None` as soon as all of them were; only
    /// then may a stop be clean again.
    pub asked_up_to: Mutex<Option<Ino>>,
    /// A caller got a size that is a guess, because the tier that knows it is missing or does not answer.
    pub has_guessed: AtomicBool,
}

impl SizeRecovery {
    /// Whether no size is left to be asked for after an unclean stop.
    pub fn is_complete(&self) -> bool {
        self.asked_up_to.lock().is_none() && !self.has_failed.load(Ordering::Acquire)
    }
}
