//! Whose turn it is on a tier (M13, C13): requests that a program waits for go before those that none waits for.
//!
//! Invariants:
//! * Urgent are reads that the device serves and syncs. Deferrable are the copies of moves and write-behind.
//! * A deferrable request that could go waits while something urgent is under way or was within [`LINGER`], and no longer than the
//!   bound; then it goes, whatever is under way. As a waiting thread may wake up late on busy processors, it goes before the bound, after
//!   [`Deferral::patience`]. It waits as the first of its class, so that of many that become ready
//!   together one goes after the other, and not all of them at the end of the first one's wait.
//! * Where nothing is deferrable, an urgent request costs two atomic additions if it is a sync, and nothing if it is a read:
//!   reads are observed by the tier's lane. Reads from memory differ from others by the time that they take.
//! * Every moment is passed in, and nothing waits here: a caller that has to wait asks again after that.
//! * How long each request waited is counted, also where it did not.

use std::time::Duration;

use polymux_records::parts::DEFERRAL_MS_MAX_DEFAULT;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::report::DEFERRAL_WAIT_CLASSES;
use polymux_types::sync::{AtomicU32, AtomicU64, Ordering};

use super::bandwidth::Lane;
use super::microseconds;

/// How long after an urgent request the next one is expected: who reads one block after the other leaves less between them.
const LINGER: Duration = Duration::from_millis(5);

/// Time without a request after which nothing is known of how long the next one will wait.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Requests over which the mean wait is taken.
const REQUESTS_AVERAGED: u64 = 16;

/// When to ask again where the end of an urgent request is waited for.
const ASK_AGAIN: Duration = Duration::from_micros(500);

/// How long a deferrable request waits at most, unless the configuration says otherwise.
pub(crate) const BOUND_DEFAULT: Duration = Duration::from_millis(DEFERRAL_MS_MAX_DEFAULT as u64);

/// Requests that yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deferrable {
    /// A request of a mover.
    Move,
    /// Written data, on its way to the device before it is synced.
    WriteBehind,
}

/// Whether a tier has something urgent to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Quiet,
    /// It is under way, or came just now.
    Urgent,
}

/// Since when a request could go. It belongs to the caller that asks for the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready(Option<Duration>);

/// Waiting times of one class, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Requests that went.
    pub requests: u64,
    /// Of these: went although something urgent was under way, because they had waited for as long as the bound lets them.
    pub(crate) at_bound: u64,
    /// The longest wait in microseconds.
    pub(crate) longest_us: u64,
    /// Requests by how long they waited, see [`polymux_records::report::deferral_wait_ends_ms`].
    pub(crate) by_wait: [u64; DEFERRAL_WAIT_CLASSES],
}

#[derive(Debug, Default)]
struct ClassRecord {
    at_bound: AtomicU64,
    longest_us: AtomicU64,
    by_wait: [AtomicU64; DEFERRAL_WAIT_CLASSES],
    /// When the last one went, in microseconds.
    went_us: AtomicU64,
    /// How long the last ones waited, on average, in microseconds.
    mean_wait_us: AtomicU64,
}

/// The order of requests on one tier.
#[derive(Debug)]
pub(crate) struct Deferral {
    bound_us: AtomicU64,
    syncs_in_flight: AtomicU32,
    /// When the last one ended, in microseconds; 0: never.
    synced_us: AtomicU64,
    moves: ClassRecord,
    written_behind: ClassRecord,
}

/// The class of a waiting time, of [`polymux_records::report::deferral_wait_ends_ms`].
fn class_of(waited: Duration) -> usize {
    let started_ms = waited.as_micros().div_ceil(1000);
    match started_ms {
        0 => 0,
        1..=1024 => usize::try_from(started_ms.next_power_of_two().ilog2() + 1).expect("a class is small"),
        _ => DEFERRAL_WAIT_CLASSES - 1,
    }
}

impl ClassRecord {
    fn went(&self, waited: Duration, now: Duration) {
        self.by_wait[class_of(waited)].fetch_add(1, Ordering::Relaxed);
        let waited_us = microseconds(waited);
        self.longest_us.fetch_max(waited_us, Ordering::Relaxed);
        let mean_us = microseconds(self.mean_wait(now)).saturating_mul(REQUESTS_AVERAGED - 1).saturating_add(waited_us);
        self.mean_wait_us.store(mean_us / REQUESTS_AVERAGED, Ordering::Relaxed);
        self.went_us.fetch_max(microseconds(now), Ordering::Relaxed);
    }

    /// How long the last requests waited, on average; zero when none went for long.
    fn mean_wait(&self, now: Duration) -> Duration {
        let went = Duration::from_micros(self.went_us.load(Ordering::Relaxed));
        let is_old = now.saturating_sub(went) >= FORGOTTEN_AFTER;
        if is_old { Duration::ZERO } else { Duration::from_micros(self.mean_wait_us.load(Ordering::Relaxed)) }
    }

    fn waits(&self) -> Waits {
        let by_wait: [u64; DEFERRAL_WAIT_CLASSES] =
            std::array::from_fn(|class| self.by_wait[class].load(Ordering::Relaxed));
        Waits {
            requests: by_wait.iter().sum(),
            at_bound: self.at_bound.load(Ordering::Relaxed),
            longest_us: self.longest_us.load(Ordering::Relaxed),
            by_wait,
        }
    }
}

impl Default for Deferral {
    fn default() -> Self {
        Self {
            bound_us: AtomicU64::new(microseconds(BOUND_DEFAULT)),
            syncs_in_flight: AtomicU32::new(0),
            synced_us: AtomicU64::new(0),
            moves: ClassRecord::default(),
            written_behind: ClassRecord::default(),
        }
    }
}

impl Deferral {
    /// How long a request waits at most. Zero: nothing yields.
    pub fn bound(&self) -> Duration {
        Duration::from_micros(self.bound_us.load(Ordering::Relaxed))
    }

    /// After how long a request goes whatever is under way: half of the bound. The rest is for waking up where others have the
    /// processors; 13 ms were seen with two of them that were busy for half of the time.
    fn patience(&self) -> Duration {
        self.bound() / 2
    }

    pub(crate) fn set_bound(&self, bound: Duration) {
        self.bound_us.store(microseconds(bound), Ordering::Relaxed);
    }

    /// A sync goes to the tier. Each is ended by [`Deferral::sync_ended`], also one that fails.
    pub(crate) fn sync_began(&self) {
        self.syncs_in_flight.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn sync_ended(&self, now: Duration) {
        self.synced_us.fetch_max(microseconds(now).max(1), Ordering::Relaxed);
        let before = self.syncs_in_flight.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a sync that ends was begun");
    }

    /// Whether a sync is under way.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncs_in_flight.load(Ordering::Acquire) > 0
    }

    /// Whether a sync ended since a moment.
    pub(crate) fn synced_since(&self, moment: Duration) -> bool {
        self.synced_us.load(Ordering::Relaxed) > microseconds(moment)
    }

    /// Whether the tier has urgent work; `reads` is its lane for readers.
    pub(crate) fn urgency(&self, reads: &Lane, now: Duration) -> Urgency {
        let synced_us = self.synced_us.load(Ordering::Relaxed);
        let synced = (synced_us > 0).then(|| now.saturating_sub(Duration::from_micros(synced_us)));
        let just_now = [synced, reads.served_by_device(now)].into_iter().flatten().any(|age| age < LINGER);
        if just_now || self.is_syncing() { Urgency::Urgent } else { Urgency::Quiet }
    }

    /// Whether a request that could go may go now. Zero: it goes, and the next one begins with a new `ready`. Otherwise: after how
    /// long to ask again.
    pub fn ask(&self, class: Deferrable, ready: &mut Ready, urgency: Urgency, now: Duration) -> Duration {
        let record = match class {
            Deferrable::Move => &self.moves,
            Deferrable::WriteBehind => &self.written_behind,
        };
        let ready_since = *ready.0.get_or_insert(now);
        let first_since = ready_since.max(Duration::from_micros(record.went_us.load(Ordering::Relaxed)));
        let waited = now.saturating_sub(first_since);
        let patience = self.patience();
        if urgency == Urgency::Urgent {
            if waited < patience || is_planted(PlantedFault::DeferrableStarves) {
                return ASK_AGAIN.min(patience.saturating_sub(waited).max(Duration::from_micros(1)));
            }
            record.at_bound.fetch_add(1, Ordering::Relaxed);
        }
        record.went(waited, now);
        *ready = Ready::default();
        Duration::ZERO
    }

    /// Whether the last requests of movers found times without urgent ones soon: on average within twice [`LINGER`], and within half of their patience.
    /// Never where nothing yields. Unknown, which counts as yes, when no request went for [`FORGOTTEN_AFTER`].
    pub(crate) fn moves_find_time(&self, now: Duration) -> bool {
        let soon = (2 * LINGER).min(self.patience() / 2);
        !soon.is_zero() && self.moves.mean_wait(now) < soon
    }

    /// How long the requests of a class waited since mounting.
    pub fn waits(&self, class: Deferrable) -> Waits {
        match class {
            Deferrable::Move => self.moves.waits(),
            Deferrable::WriteBehind => self.written_behind.waits(),
        }
    }
}

#[cfg(test)]
mod tests;
