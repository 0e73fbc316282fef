//! Writes that find a full volume while space is being freed: by removed files, by moves, and by file systems that give back what they
//! preallocated (docs/design/0036).
//!
//! Invariants:
//! * A held write is tried again by the thread of `pending`, at intervals of at least [`RETRY_INTERVAL`] between which that serves one other
//!   request. It is refused after [`FREED_WITHIN`], or as soon as nothing is being freed any more.
//! * While a file system gives back space, it is asked for its free space by none of these: the answer would wait for that.
//! * After a refusal other writes are refused at once for [`REFUSED_FOR`]: a program that tries again and again waits no longer each time.
//! * Whether anything is being freed is asked before the free space is, so that space which is freed in between counts.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread;
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

/// Time after a refusal in which others are no news.
const NEWS_AFTER: Duration = Duration::from_secs(60);

/// Why a write is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `None`: that was not asked.
    NoSpace {
        available: Option<u64>,
    },
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
    writes: VecDeque<HeldWrite>,
    /// When they were last tried, or the first of them came.
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
    /// Whether a write is held without a look at the free space.
    pub(crate) fn must_hold(&self, shortage: &Shortage) -> bool {
        shortage.held.may_hold() && self.fs.is_giving_back_room_ahead()
    }

    /// Holds a write that found no free space. The first one makes file systems give back preallocated space.
    pub(crate) fn hold_write(&self, header: Header, reply: Reply, shortage: &mut Shortage) {
        let since = Instant::now();
        if shortage.held.writes.is_empty() {
            let fs = Arc::clone(&self.fs);
            // It waits for each file system for up to a second.
            let started =
                thread::Builder::new().name("fuse-give-back".to_owned()).spawn(move || fs.give_back_room_ahead());
            if let Err(error) = started {
                log::debug!("preallocated space is not asked back: {error}");
            }
            shortage.held.tried = Some(since);
        }
        shortage.held.writes.push_back(HeldWrite { header, reply, since });
    }

    /// Tries the held writes again, and refuses those that waited long enough.
    pub(crate) fn retry_held_writes(&self, shortage: &mut Shortage) {
        let mut admitted = BTreeSet::new();
        for _ in 0..shortage.held.writes.len() {
            let Some(write) = shortage.held.writes.pop_front() else { break };
            // One write of a file at a time: the margin is for one.
            if admitted.contains(&write.header.node) {
                shortage.held.writes.push_back(write);
                continue;
            }
            let waited = write.since.elapsed();
            let is_freeing = self.fs.is_freeing_space();
            let outcome = match self.fs.is_giving_back_room_ahead() {
                true => Err(Refusal::NoSpace { available: None }),
                false => {
                    self.send(write.header.node, write.header.pid, shortage);
                    self.admit_write(&write.header, shortage)
                }
            };
            match outcome {
                Ok(attr) => {
                    admitted.insert(write.header.node);
                    self.attr(write.reply, attr);
                }
                Err(Refusal::NoSpace { .. }) if goes_on(waited, is_freeing) => shortage.held.writes.push_back(write),
                Err(refusal) => {
                    if let Refusal::NoSpace { available } = refusal {
                        let before = shortage.held.refused.replace(Instant::now());
                        let is_news = before.is_none_or(|at| at.elapsed() >= NEWS_AFTER);
                        let level = if is_news { log::Level::Info } else { log::Level::Debug };
                        log_refusal(level, &write, available, is_freeing);
                    }
                    write.reply.error(refusal.errno());
                }
            }
        }
        shortage.held.tried = Some(Instant::now());
    }
}

fn log_refusal(level: log::Level, write: &HeldWrite, available: Option<u64>, is_freeing: bool) {
    let available = available.map_or_else(|| "not known how many".to_owned(), |bytes| bytes.to_string());
    log::log!(
        level,
        "a write to inode {} is refused: {available} bytes are available after {} ms{}",
        write.header.node,
        write.since.elapsed().as_millis(),
        if is_freeing { ", and more are being freed" } else { "" }
    );
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
