//! Changes of a file that programs make past the daemon, by leases (docs/design/0048).

use polymux_types::sync::{AtomicU64, Mutex, Ordering};
use polymux_types::{ObjectId, Timestamp};

/// Leases that ended sooner because the file was used through the mount were not worth their price, in milliseconds.
const WORTHWHILE_MS: u64 = 10_000;
/// After such a one the next is given after this time, after each further one twice as much later.
const PAUSE_MIN_MS: u64 = 1_000;
const PAUSE_MAX_MS: u64 = 60_000;
/// Programs that get leases one after the other end those of each other once. After so many ends in a row they use the mount in ways for which they have no lease,
const ENDS_MAX: u32 = 32;
/// and a lease that lived so long ends the row.
const ROW_MS: u64 = 1_000;

/// A program that wants a lease and gets none asks again in this time.
const WANTED_MS: u64 = 2_000;

/// When leases are given to programs that change a file.
#[derive(Debug, Default)]
struct Worth {
    given_ms: u64,
    pause_ms: u64,
    /// Leases that programs which can use them ended, one soon after the other.
    ended_by_applicants: u32,
}

/// Knowledge of changes past the daemon.
#[derive(Debug, Default)]
pub struct OutsideChanges {
    /// Counts leases that were begun.
    begun: AtomicU64,
    /// The last lease whose changes may be unseen, by that count; 0 where all are seen.
    unseen: AtomicU64,
    /// Modification times of the objects, as last seen. Held while they are asked and the answer is applied, so that no older answer follows a newer one.
    pub seen: Mutex<Vec<(ObjectId, Timestamp)>>,
    /// No lease before this moment, in milliseconds since mounting.
    not_before_ms: AtomicU64,
    /// When a program last asked for a lease, in milliseconds since mounting, and 1; 0 where none has.
    wanted_ms: AtomicU64,
    worth: Mutex<Worth>,
}

impl OutsideChanges {
    /// A lease is about to be given, and its user is on the list. Before the kernel forgets attributes, which it must not keep from then on.
    pub fn begin(&self, now_ms: u64) {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.unseen.fetch_max(number, Ordering::SeqCst);
        self.worth.lock().given_ms = now_ms;
    }

    /// Whether objects may have been changed since they were last asked.
    #[inline]
    pub fn may_be_unseen(&self) -> bool {
        self.last_unseen() > 0
    }

    /// The last lease whose changes may be unseen; 0 where there is none.
    #[inline]
    pub fn last_unseen(&self) -> u64 {
        self.unseen.load(Ordering::SeqCst)
    }

    /// All changes by leases up to one have been seen, and their programs make no further ones. Returns whether there is no later lease. Called with `seen` held.
    pub fn note_all_seen(&self, up_to: u64) -> bool {
        self.unseen.compare_exchange(up_to, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// A program asks for a lease.
    pub fn note_wanted(&self, now_ms: u64) {
        self.wanted_ms.store(now_ms + 1, Ordering::Relaxed);
    }

    /// Programs get no lease, for a reason that may last.
    pub fn note_unwanted(&self) {
        self.wanted_ms.store(0, Ordering::Relaxed);
    }

    /// Whether programs want leases: pages that the kernel gets now would stand in the way of these.
    pub fn are_leases_wanted(&self, now_ms: u64) -> bool {
        let wanted_ms = self.wanted_ms.load(Ordering::Relaxed);
        wanted_ms > 0 && now_ms < wanted_ms + WANTED_MS
    }

    /// Leases ended because the file was used through the mount.
    pub fn note_used_through_mount(&self, now_ms: u64) {
        let mut worth = self.worth.lock();
        let was_worthwhile = now_ms.saturating_sub(worth.given_ms) >= WORTHWHILE_MS;
        worth.pause_ms =
            if was_worthwhile { PAUSE_MIN_MS } else { (worth.pause_ms * 2).clamp(PAUSE_MIN_MS, PAUSE_MAX_MS) };
        self.not_before_ms.store(now_ms + worth.pause_ms, Ordering::Relaxed);
    }

    /// A program that can use leases ended some through the mount.
    pub fn note_ended_by_applicant(&self, now_ms: u64) {
        let mut worth = self.worth.lock();
        let is_in_row = now_ms.saturating_sub(worth.given_ms) < ROW_MS;
        worth.ended_by_applicants = if is_in_row { worth.ended_by_applicants + 1 } else { 0 };
        let are_too_many = worth.ended_by_applicants > ENDS_MAX;
        if are_too_many {
            worth.ended_by_applicants = 0;
        }
        drop(worth);
        if are_too_many {
            self.note_used_through_mount(now_ms);
        }
    }

    /// Whether a lease would be worth its price now, or will be as soon as a program that wants one asks again.
    pub fn is_lease_worthwhile_soon(&self, now_ms: u64) -> bool {
        self.is_lease_worthwhile(now_ms + WANTED_MS)
    }

    /// Whether a lease would be worth its price now.
    pub fn is_lease_worthwhile(&self, now_ms: u64) -> bool {
        now_ms >= self.not_before_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_end_leases_of_each_other_all_the_time_get_none_for_a_while() {
        let changes = OutsideChanges::default();
        for now_ms in 0..=u64::from(ENDS_MAX) {
            assert!(changes.is_lease_worthwhile(now_ms));
            changes.begin(now_ms);
            changes.note_ended_by_applicant(now_ms);
        }
        assert!(!changes.is_lease_worthwhile(u64::from(ENDS_MAX)));
    }

    #[test]
    fn changes_by_a_later_lease_are_not_taken_for_seen() {
        let changes = OutsideChanges::default();
        changes.begin(0);
        let asked_up_to = changes.last_unseen();
        changes.begin(1);
        assert!(!changes.note_all_seen(asked_up_to) && changes.may_be_unseen());
        assert!(changes.note_all_seen(changes.last_unseen()) && !changes.may_be_unseen());
    }

    #[test]
    fn leases_are_wanted_for_a_while_after_a_program_asked() {
        let changes = OutsideChanges::default();
        assert!(!changes.are_leases_wanted(0));
        changes.note_wanted(0);
        assert!(changes.are_leases_wanted(WANTED_MS) && !changes.are_leases_wanted(WANTED_MS + 1));
    }

    #[test]
    fn a_file_that_is_used_through_the_mount_again_and_again_gets_leases_ever_later() {
        let changes = OutsideChanges::default();
        assert!(changes.is_lease_worthwhile(0));
        let (mut now_ms, mut pauses) = (0, Vec::new());
        for _ in 0..8 {
            changes.begin(now_ms);
            changes.note_used_through_mount(now_ms + 5);
            let pause_ms = (0..).find(|pause_ms| changes.is_lease_worthwhile(now_ms + 5 + pause_ms)).unwrap();
            pauses.push(pause_ms);
            now_ms += 5 + pause_ms;
        }
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        changes.begin(now_ms);
        changes.note_used_through_mount(now_ms + WORTHWHILE_MS);
        assert!(changes.is_lease_worthwhile(now_ms + WORTHWHILE_MS + PAUSE_MIN_MS), "one that lasted was worth it");
    }
}
