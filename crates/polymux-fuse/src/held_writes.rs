//! Writes that find a full volume while space is being freed: by removed files, by moves, and by file systems that give back what they
//! preallocated (docs/design/0036).
//!
//! Invariants:
//! * A held write is tried again every [`RETRY_INTERVAL`] by the thread of `pending`, which serves other requests meanwhile. It is refused after
//!   [`FREED_WITHIN`], or as soon as nothing is being freed any more.
//! * After a refusal other writes are refused at once for [`REFUSED_FOR`]: a program that tries again and again waits no longer each time.
//! * Whether anything is being freed is asked before the free space is, so that space which is freed in between counts.

use std::time::{Duration, Instant};

use polymux_transport::Reply;
use polymux_transport::wire::Header;
use polymux_types::Errno;

use crate::adapter::Adapter;
use crate::pending::Shortage;

/// Time in which the kernel has forgotten a file that was removed, so that its space is being freed.
const FORGOTTEN_WITHIN: Duration = Duration::from_millis(300);
/// Longest wait of a write for space that is being freed.
const FREED_WITHIN: Duration = Duration::from_secs(2);
/// Time between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Time after a refusal in which no write is held.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Why a write is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoSpace { available: u64 },
    Failed(Errno),
}

impl Refusal {
    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::NoSpace { .. } => Errno::ENOSPC,
            Self::Failed(errno) => errno,
        }
    }
}

/// A write that waits.
struct HeldWrite {
    header: Header,
    reply: Reply,
    since: Instant,
}

/// The writes that wait.
#[derive(Default)]
pub(crate) struct HeldWrites {
    writes: Vec<HeldWrite>,
    tried: Option<Instant>,
    refused: Option<Instant>,
}

impl HeldWrites {
    /// Whether another write may be held.
    pub(crate) fn may_hold(&self) -> bool {
        self.refused.is_none_or(|at| at.elapsed() >= REFUSED_FOR)
    }

    /// When they are tried again; `None` while there are none.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let tried = self.tried.unwrap_or_else(Instant::now);
        (!self.writes.is_empty()).then(|| tried + RETRY_INTERVAL)
    }
}

/// Whether a write that has waited so long goes on waiting.
fn goes_on(waited: Duration, is_freeing: bool) -> bool {
    waited < FREED_WITHIN && (is_freeing || waited < FORGOTTEN_WITHIN)
}

impl Adapter {
    /// Holds a write that found no free space, and lets file systems give back preallocated space.
    pub(crate) fn hold_write(&self, header: Header, reply: Reply, shortage: &mut Shortage) {
        let since = Instant::now();
        if shortage.held.writes.is_empty() {
            self.fs.give_back_room_ahead();
        }
        shortage.held.writes.push(HeldWrite { header, reply, since });
        // At once for the first time.
        shortage.held.tried = since.checked_sub(RETRY_INTERVAL);
    }

    /// Tries the held writes again, and refuses those that waited long enough.
    pub(crate) fn retry_held_writes(&self, shortage: &mut Shortage) {
        shortage.held.tried = Some(Instant::now());
        // A question for the free space of a file system that is busy giving some back would wait for that.
        let is_giving_back = self.fs.is_giving_back_room_ahead();
        for write in std::mem::take(&mut shortage.held.writes) {
            let waited = write.since.elapsed();
            if is_giving_back && waited < FREED_WITHIN {
                shortage.held.writes.push(write);
                continue;
            }
            let is_freeing = self.fs.is_freeing_space();
            match self.admit_write(&write.header, shortage) {
                Ok(attr) => self.attr(write.reply, attr),
                Err(Refusal::NoSpace { .. }) if goes_on(waited, is_freeing) => shortage.held.writes.push(write),
                Err(refusal) => {
                    shortage.held.refused = Some(Instant::now());
                    note_refusal(&write, refusal, is_freeing);
                    write.reply.error(refusal.errno());
                }
            }
        }
    }
}

fn note_refusal(write: &HeldWrite, refusal: Refusal, is_freeing: bool) {
    if let Refusal::NoSpace { available } = refusal {
        log::info!(
            "a write to inode {} is refused: {available} bytes are available after {} ms{}",
            write.header.node,
            write.since.elapsed().as_millis(),
            if is_freeing { ", and more are being freed" } else { "" }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_waits_while_space_is_being_freed_and_for_a_moment_before_that_begins() {
        let milliseconds = Duration::from_millis;
        assert!(goes_on(milliseconds(0), false) && goes_on(milliseconds(299), false));
        assert!(!goes_on(milliseconds(300), false));
        assert!(goes_on(milliseconds(300), true) && goes_on(milliseconds(1999), true));
        assert!(!goes_on(milliseconds(2000), true), "it may never end");
    }

    #[test]
    fn no_write_is_held_right_after_one_was_refused() {
        let mut held = HeldWrites::default();
        assert!(held.may_hold() && held.retry_at().is_none());
        held.refused = Some(Instant::now());
        assert!(!held.may_hold());
        held.refused = Instant::now().checked_sub(REFUSED_FOR);
        assert!(held.may_hold());
    }
}
