//! Which entries of a queue are where.
//!
//! Invariants:
//! * An entry is spare (the kernel knows nothing of it), with the kernel, held (by a request that is not answered yet), or
//!   dead. An entry that is neither spare nor dead is living.
//! * Held entries may be held for long: behind each is a request that waits in the pool, for a tier that hangs perhaps. So that
//!   whatever else the processor asks does not wait behind these, further entries are registered before the kernel has none.
//! * The kernel gives a request that found no entry to the next one that is committed, not to one that is registered. That is
//!   why there is a reserve: a queue that only grew once it had nothing left would grow too late for those that wait.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Entries that the kernel is to have at any time.
const RESERVE: usize = 8;
/// Most entries of a queue.
const ENTRIES_MAX: usize = 256;
/// Most memory of the entries by which all queues together grow; only the pages that are used are allocated.
const GROWTH_BYTES_MAX: usize = 512 << 20;

/// Memory by which all queues together may still grow.
pub(super) struct Growth(AtomicUsize);

impl Default for Growth {
    fn default() -> Self {
        Self(AtomicUsize::new(GROWTH_BYTES_MAX))
    }
}

impl Growth {
    /// Reserves bytes for an entry; returns whether enough were left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// State of the entries of a queue, by their numbers.
pub(super) struct Standing {
    living: usize,
    held: usize,
    spare: Vec<usize>,
    /// How many there are, the dead ones too.
    entries: usize,
    was_refused: bool,
}

impl Standing {
    /// So many spare ones.
    pub(super) fn new(entries: usize) -> Self {
        Self { living: 0, held: 0, spare: (0..entries).rev().collect(), entries, was_refused: false }
    }

    /// Whether the kernel has any entries, or will have some once the requests in them are answered.
    pub(super) fn is_alive(&self) -> bool {
        self.living > 0
    }

    pub(super) fn living(&self) -> usize {
        self.living
    }

    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// How many should be registered now. A kernel that refused one is not asked again before it has none.
    pub(super) fn missing(&self) -> usize {
        let with_kernel = self.living - self.held;
        match self.was_refused {
            true => usize::from(with_kernel == 0),
            false => RESERVE.saturating_sub(with_kernel),
        }
    }

    /// Whether there may be one more.
    pub(super) fn may_grow(&self) -> bool {
        self.entries < ENTRIES_MAX
    }

    /// There is one more, with the next number.
    pub(super) fn grow(&mut self) {
        self.spare.push(self.entries);
        self.entries += 1;
    }

    /// Takes a spare one, which is sent to the kernel.
    pub(super) fn send(&mut self) -> Option<usize> {
        let entry = self.spare.pop()?;
        self.living += 1;
        Some(entry)
    }

    /// Processes completions that arrived after these were sent: refusals complete at once, and accepted entries complete with
    /// their first request. Returns the other completions, and the error of the first refusal.
    pub(super) fn settle(&mut self, sent: &[usize], completed: Vec<(u64, i32)>) -> (Vec<(u64, i32)>, Option<i32>) {
        let is_refusal = |(user_data, result): &(u64, i32)| {
            *result < 0 && usize::try_from(*user_data).is_ok_and(|entry| sent.contains(&entry))
        };
        let (refusals, others): (Vec<_>, Vec<_>) = completed.into_iter().partition(is_refusal);
        for (user_data, _) in &refusals {
            self.living -= 1;
            self.spare.push(usize::try_from(*user_data).expect("the number of an entry"));
        }
        self.was_refused = !sent.is_empty() && !refusals.is_empty();
        (others, refusals.first().map(|(_, result)| -result))
    }

    /// One came back with a request.
    pub(super) fn note_request(&mut self) {
        self.held += 1;
    }

    /// One goes to the kernel again.
    pub(super) fn note_commit(&mut self) {
        self.held -= 1;
    }

    /// One that was with the kernel is dead.
    pub(super) fn note_death(&mut self) {
        self.living -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELL: u64 = u64::MAX;

    fn send(standing: &mut Standing, count: usize) -> Vec<usize> {
        (0..count).map_while(|_| standing.send()).collect()
    }

    #[test]
    fn entries_that_are_refused_make_a_queue_shorter_and_can_be_sent_again() {
        let mut standing = Standing::new(16);
        let sent = send(&mut standing, 16);
        let completed = vec![(3, -libc::ENOMEM), (5, 0), (BELL, 1), (7, -libc::EAGAIN)];
        let (others, refusal) = standing.settle(&sent, completed);
        assert_eq!((others, refusal), (vec![(5, 0), (BELL, 1)], Some(libc::ENOMEM)));
        assert_eq!((standing.living(), standing.spare()), (14, 2));
        assert!(standing.is_alive());
        assert_eq!(standing.missing(), 0, "a kernel that refuses is asked again only once it has none");
        for _ in 0..14 {
            standing.note_request();
        }
        assert_eq!(standing.missing(), 1);
        let sent = send(&mut standing, 1);
        assert!([3, 7].contains(&sent[0]));
        assert_eq!(standing.settle(&sent, Vec::new()), (Vec::new(), None));
        assert_eq!(standing.missing(), RESERVE - 1, "it takes entries again");
    }

    #[test]
    fn a_queue_whose_requests_are_not_answered_grows_before_the_kernel_has_no_entry() {
        let mut standing = Standing::new(16);
        let sent = send(&mut standing, 16);
        standing.settle(&sent, Vec::new());
        let mut held = 0;
        while standing.may_grow() || standing.spare() > 0 {
            standing.note_request();
            held += 1;
            for _ in 0..standing.missing() {
                standing.grow();
                let sent = send(&mut standing, 1);
                standing.settle(&sent, Vec::new());
            }
            assert!(standing.living() - held >= RESERVE, "after {held} requests");
        }
        assert_eq!(standing.living(), ENTRIES_MAX);
        for _ in 0..held {
            standing.note_commit();
        }
        assert_eq!(standing.missing(), 0);
    }

    #[test]
    fn all_queues_together_grow_no_further_than_memory_allows() {
        let growth = Growth::default();
        let taken = (0..1000).take_while(|_| growth.take(1 << 20)).count();
        assert_eq!(taken, GROWTH_BYTES_MAX >> 20);
    }

    #[test]
    fn a_queue_is_dead_once_all_entries_are() {
        let mut standing = Standing::new(2);
        let sent = send(&mut standing, 2);
        standing.settle(&sent, Vec::new());
        standing.note_death();
        assert!(standing.is_alive());
        standing.note_death();
        assert!(!standing.is_alive());
    }
}
