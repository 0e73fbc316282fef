//! What is known of the reads that each tier serves: how long one takes, which tier is the limit of its readers, and the free space wanted on
//! a faster tier for ranges that are read more (P11-P15, docs/design/0033).
//!
//! Invariants:
//! * Windows of a second; the mover ends them and records the reads, everything else only asks.
//! * A search for eviction candidates that found nothing rests for [`REST_FACTOR`] times as long as it took.
//! * Lock order: nothing is taken while `TierReads::state` is held.

mod limits;
mod observation;
mod small_reads;
mod small_writes;

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_policy::Demand;
use polymux_types::TierId;
use polymux_types::sync::{AtomicBool, Mutex, Ordering};

use self::limits::Limits;
pub use self::limits::{HandoverOutcome, Pair};
use self::observation::Observation;
use self::small_reads::SmallReads;
pub use self::small_reads::Window;
use self::small_writes::SmallWrites;
use polymux_records::report::{PAYS_BACK_SOON_SECONDS, SmallReadsReport};

use crate::heat::follow;
use crate::sched::{LaneWork, SmallWriteWork, microseconds};

/// Length of a window.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);

/// Most space that is freed at once.
pub const ROOM_MAX: u64 = 256 << 20;

/// Stream bytes per second below which a range may leave for any that comes.
const STREAM_IGNORED: u64 = 4096;

/// Shortest rest of a search for space on a tier from which nothing could leave.
const SOUGHT_IN_VAIN: Duration = Duration::from_secs(10);

/// Rest of a search that found nothing, in terms of the time that it took: it costs a twentieth of a processor at most.
const REST_FACTOR: u32 = 20;

/// Longest rest: the tier may be above its mark, and the reason that keeps everything in place may end.
const REST_MAX: Duration = Duration::from_secs(300);

/// Time for which a tier that had to evict data counts as short of space.
const ROOM_WANTED_LATELY: Duration = Duration::from_secs(60);

/// Bytes of a batch that tells how fast moves are.
const BATCH_TELLS_BYTES: u64 = 8 << 20;

/// Assumed bandwidth in bytes per second of a device that was not measured.
pub const BYTES_PER_SECOND_UNKNOWN: u64 = 100_000_000;

/// Space to be freed on a tier, and the data that may not leave for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomWanted {
    /// Bytes to be freed.
    pub bytes: u64,
    /// Demand of the least read range that is to come.
    least: Demand,
    purpose: RoomFor,
}

/// Why ranges want free space on a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoomFor {
    /// Their moves pay back soon.
    #[default]
    PaysBackSoon,
    /// They have cost the slower device as much as their moves, and would not pay back soon.
    Overdue,
    /// Their tier, which is read alike, is the limit of its readers.
    Handover,
}

/// The state known of the devices, and the free space that is wanted.
#[derive(Debug, Default)]
pub struct TierReads {
    state: Mutex<State>,
    /// Nothing could move up whatever is read, as of the end of the last window.
    is_pointless: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    window_began: Duration,
    small_reads: BTreeMap<TierId, SmallReads>,
    small_writes: BTreeMap<TierId, SmallWrites>,
    limits: Limits,
    observation: Observation,
    /// Bytes per second of moves to a tier that take their share of the devices.
    moves: BTreeMap<TierId, u64>,
    /// The last space wanted, and in which window.
    room_wanted: BTreeMap<TierId, (Duration, RoomWanted)>,
    /// Until when a tier from which nothing could leave is not searched again.
    rests_until: BTreeMap<TierId, Duration>,
    /// Until when a tier between its marks of which everything would come back is not searched again.
    unpressed_rests_until: BTreeMap<TierId, Duration>,
    /// When space was last wanted on a tier and nothing could leave for it.
    wanted_in_vain: BTreeMap<TierId, Duration>,
}

impl RoomWanted {
    /// As much space, for another purpose.
    pub fn made_for(self, purpose: RoomFor) -> Self {
        Self { purpose, ..self }
    }

    /// Why it is wanted.
    pub fn purpose(&self) -> RoomFor {
        self.purpose
    }

    /// Whether a node with this demand may leave for it.
    pub fn may_take(&self, demand: &Demand) -> bool {
        demand.random_reads_per_kilosecond <= self.least.random_reads_per_kilosecond / 2
            && demand.stream_bytes_per_second <= (self.least.stream_bytes_per_second / 2).max(STREAM_IGNORED)
            && (self.purpose != RoomFor::Overdue || demand.lately_reads <= self.least.lately_reads / 2)
    }

    /// Whether data stays whose own move back would pay back soon. It may leave where the newcomers come from the tier that it goes to and are read
    /// more than twice as much; those of a handover come from another one.
    pub fn keeps_what_pays(&self) -> bool {
        self.purpose == RoomFor::Handover
    }

    /// Once it is as much as is made at once, later ones, which are read less, count in the next window.
    pub fn add(&mut self, bytes: u64, demand: &Demand) {
        if self.bytes >= ROOM_MAX {
            return;
        }
        self.least = if self.bytes == 0 { *demand } else { self.least.min_of(demand) };
        self.bytes = self.bytes.saturating_add(bytes).min(ROOM_MAX);
    }
}

impl TierReads {
    /// Ends the window, if it is long enough. Returns how long it was.
    pub fn end_window(&self, now: Duration) -> Option<Duration> {
        let mut state = self.state.lock();
        let length = now.saturating_sub(state.window_began);
        if length < WINDOW {
            return None;
        }
        state.window_began = now;
        Some(length)
    }

    /// Whether nothing could move up whatever is read: there is one tier, or no policy that moves it.
    pub fn is_pointless(&self) -> bool {
        self.is_pointless.load(Ordering::Relaxed)
    }

    /// Whether anything could move up is known anew.
    pub fn set_pointless(&self, is_pointless: bool) {
        self.is_pointless.store(is_pointless, Ordering::Relaxed);
    }

    /// Records the free space that ranges want on each tier, as of now.
    pub fn note_room_wanted(&self, wanted: &BTreeMap<TierId, RoomWanted>, now: Duration) {
        let wanted = wanted.iter().map(|(tier, wanted)| (*tier, (now, *wanted)));
        self.state.lock().room_wanted.extend(wanted);
    }

    /// Records the reads of the tiers since mounting, at the end of a window of this length; reads may be handed over between `pairs`.
    pub fn note_reads(&self, work: &[(TierId, LaneWork, Window)], length: Duration, pairs: &[Pair]) {
        let mut state = self.state.lock();
        for (tier, work, window) in work {
            state.small_reads.entry(*tier).or_default().note(*work, *window, length);
        }
        let State { limits, observation, small_reads, window_began, .. } = &mut *state;
        let loads = work.iter().map(|(tier, ..)| (*tier, small_reads[tier].load())).collect();
        let disturbed = work.iter().filter(|(_, _, window)| *window == Window::BesideMoves).map(|(tier, ..)| *tier);
        limits.note(loads, &disturbed.collect::<Vec<_>>(), pairs, *window_began);
        work.iter()
            .filter(|(tier, ..)| limits.is_limit(*tier, None))
            .for_each(|(tier, ..)| observation.note_limit(*tier));
    }

    /// Records the small writes of a tier since mounting, at the end of a window of this length.
    pub fn note_small_writes(&self, tier: TierId, work: SmallWriteWork, length: Duration) {
        self.state.lock().small_writes.entry(tier).or_default().note(work, length);
    }

    /// Device time of a small write of a tier in nanoseconds; `None` while too few syncs were seen.
    pub fn small_write_ns(&self, tier: TierId) -> Option<u64> {
        self.state.lock().small_writes.get(&tier).and_then(SmallWrites::write_ns)
    }

    /// Whether reads of the first tier of a pair may be handed over to the second one, should it be the limit of its readers.
    pub fn may_hand_over(&self, pair: Pair) -> bool {
        self.state.lock().limits.may_hand_over(pair)
    }

    /// Whether reads of a tier that pass the daemon by should reach it, as there is a reason to learn whether it is the limit of its readers. Begins
    /// that, unless it was in vain lately.
    pub fn should_observe(&self, tier: TierId, now: Duration) -> bool {
        self.state.lock().observation.is_due(tier, now)
    }

    /// Reads in a thousand seconds that each tier which is the limit of its readers should hand over to another one; none to one that took
    /// some over a moment ago.
    pub fn to_be_handed_over(&self, now: Duration) -> Vec<((TierId, TierId), u64)> {
        self.state.lock().limits.to_be_handed_over(now)
    }

    /// Whether one tier was to take reads over from another one lately.
    pub fn has_handed_over(&self, pair: Pair, now: Duration) -> bool {
        self.state.lock().limits.has_handed_over(pair, now)
    }

    /// How a handover ended for which there was a reason.
    pub fn note_handover(&self, pair: Pair, outcome: HandoverOutcome, now: Duration) {
        self.state.lock().limits.note_handover(pair, outcome, now);
    }

    /// Ranges are being moved to these tiers, which take reads over: their effect is observed after that.
    pub fn note_handovers_under_way(&self, tiers: &[TierId], now: Duration) {
        self.state.lock().limits.note_handovers_under_way(tiers, now);
    }

    /// Whether a tier is the limit of its readers, beside this one or, of `None`, any other one.
    pub fn is_limit(&self, tier: TierId, beside: Option<TierId>) -> bool {
        self.state.lock().limits.is_limit(tier, beside)
    }

    /// Space to be freed on a tier.
    pub fn room_wanted(&self, tier: TierId) -> Option<RoomWanted> {
        let state = self.state.lock();
        let (at, wanted) = state.room_wanted.get(&tier).copied()?;
        (at == state.window_began).then_some(wanted)
    }

    /// Whether something had to leave a tier lately for ranges that are read more.
    pub fn wanted_room_lately(&self, tier: TierId, now: Duration) -> bool {
        let state = self.state.lock();
        let since = |at: Duration| now.saturating_sub(at) < ROOM_WANTED_LATELY;
        state.room_wanted.get(&tier).is_some_and(|(at, _)| since(*at))
            || state.wanted_in_vain.get(&tier).is_some_and(|at| since(*at))
    }

    /// Demand of the data that came to a tier lately, or will come: data that is read as much stays while there are other candidates.
    pub fn spared(&self, tier: TierId, now: Duration) -> Option<RoomWanted> {
        let (at, wanted) = self.state.lock().room_wanted.get(&tier).copied()?;
        (now.saturating_sub(at) < ROOM_WANTED_LATELY).then_some(wanted)
    }

    /// All of a tier was searched, and nothing could leave. Free space that was wanted there for ranges that are read more is given up.
    pub fn note_sought_in_vain(&self, tier: TierId, sought: SoughtInVain, now: Duration) {
        let mut state = self.state.lock();
        if !sought.is_pressing {
            // Between its marks a tier stays full of data that would come back. Space for other data may be wanted any time.
            let rest = SOUGHT_IN_VAIN.max(sought.took.saturating_mul(REST_FACTOR)).min(REST_MAX);
            state.unpressed_rests_until.insert(tier, now.saturating_add(rest));
            return;
        }
        let is_wanted = state.room_wanted.remove(&tier).is_some();
        if is_wanted {
            state.wanted_in_vain.insert(tier, now);
        }
        let least = match (is_wanted, sought.may_find_soon) {
            (true, false) => SOUGHT_IN_VAIN,
            (true, true) => 2 * WINDOW,
            (false, _) => Duration::ZERO,
        };
        let most = if sought.may_find_soon { Duration::from_secs(PAYS_BACK_SOON_SECONDS) } else { REST_MAX };
        let rest = least.max(sought.took.saturating_mul(REST_FACTOR)).min(most);
        state.rests_until.insert(tier, now.saturating_add(rest));
    }

    /// Whether a tier may be searched for eviction candidates.
    pub fn may_seek(&self, tier: TierId, now: Duration) -> bool {
        self.state.lock().rests_until.get(&tier).is_none_or(|until| *until <= now)
    }

    /// As [`Self::may_seek`], where the tier is below its high mark and nothing is to come.
    pub fn may_seek_unpressed(&self, tier: TierId, now: Duration) -> bool {
        self.may_seek(tier, now) && self.state.lock().unpressed_rests_until.get(&tier).is_none_or(|until| *until <= now)
    }

    /// A batch to a tier that took its share of the devices came to its end.
    pub fn note_shared_batch(&self, target: TierId, bytes: u64, took: Duration) {
        if bytes >= BATCH_TELLS_BYTES {
            let seen = bytes.saturating_mul(1_000_000) / microseconds(took).max(1);
            let mut state = self.state.lock();
            let speed = state.moves.entry(target).or_insert(seen);
            *speed = follow(*speed, seen);
        }
    }

    /// Bytes per second of moves to a tier that take their share.
    pub fn speed_of_moves(&self, target: TierId) -> u64 {
        self.state.lock().moves.get(&target).copied().unwrap_or(BYTES_PER_SECOND_UNKNOWN)
    }

    /// Whether readers of the faster tier wait less than those of the slower one, as far as is known. One that handed reads over to the slower
    /// tier counts as no sooner. Latency alone lets nothing leave that lies there already:
    /// for some windows a busy tier answers later than a resting one that is slower.
    pub fn answers_sooner(&self, faster: TierId, slower: TierId, piece: PieceIs) -> bool {
        let state = self.state.lock();
        if state.limits.is_limit(faster, Some(slower)) {
            return false;
        }
        if piece == PieceIs::There {
            return true;
        }
        let latency = |tier| state.small_reads.get(&tier).and_then(SmallReads::latency_ns);
        latency(faster).zip(latency(slower)).is_none_or(|(faster, slower)| faster < slower)
    }

    /// Device time of a small read of a tier in nanoseconds; `None` while too few were seen.
    pub fn small_read_ns(&self, tier: TierId) -> Option<u64> {
        self.state.lock().small_reads.get(&tier).and_then(SmallReads::device_ns)
    }

    /// The small reads of a tier, for people.
    pub fn small_reads(&self, tier: TierId) -> SmallReadsReport {
        let state = self.state.lock();
        let reads = state.small_reads.get(&tier).copied().unwrap_or_default();
        let load = reads.load();
        let in_microseconds = |nanoseconds: Option<u64>| nanoseconds.map(|nanoseconds| nanoseconds / 1000);
        SmallReadsReport {
            per_second: load.reads_per_kilosecond / 1000,
            latency_us: in_microseconds(load.latency_ns),
            alone_us: in_microseconds(load.unqueued_ns),
            device_us: in_microseconds(load.device_ns),
            most_per_second: load.most_per_kilosecond.map(|most| most / 1000),
            depth_hundredths: load.depth_hundredths,
            busy_percent: load.busy_percent,
            sampled: reads.sampled(),
            is_limit: state.limits.is_limit(tier, None),
        }
    }

    /// Time in nanoseconds of a small read of a tier that waited for no other; `None` while none was seen.
    pub fn unqueued_ns(&self, tier: TierId) -> Option<u64> {
        self.state.lock().small_reads.get(&tier).and_then(SmallReads::unqueued_ns)
    }

    /// Device time in nanoseconds of one more small read of a tier that does not seek; `None` while too few were seen.
    pub fn small_read_ns_of_one_more(&self, tier: TierId) -> Option<u64> {
        self.state.lock().small_reads.get(&tier).and_then(SmallReads::device_ns_of_one_more)
    }
}

/// A search of all of a tier that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoughtInVain {
    /// How long it took.
    pub took: Duration,
    /// The tier is above its high mark, or data that is read more is to come.
    pub is_pressing: bool,
    /// Some data of the tier may leave soon: it only came lately, or is open and passed through.
    pub may_find_soon: bool,
}

/// Where a piece is whose benefit on a faster tier is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceIs {
    /// On the slower tier.
    Here,
    /// On the faster one, and would leave it.
    There,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_found_nothing_rests_in_proportion_to_what_it_cost() {
        let (reads, tier) = (TierReads::default(), TierId(1));
        let at = Duration::from_secs;
        assert!(reads.may_seek(tier, at(0)));
        let sought = |seconds, may_find_soon| SoughtInVain { took: at(seconds), is_pressing: true, may_find_soon };
        reads.note_sought_in_vain(tier, sought(3, false), at(100));
        assert!(!reads.may_seek(tier, at(159)) && reads.may_seek(tier, at(160)));
        assert!(!reads.wanted_room_lately(tier, at(100)), "it was for nothing that is read more");
        reads.note_sought_in_vain(tier, sought(0, false), at(200));
        assert!(reads.may_seek(tier, at(200)), "one that costs nothing needs no rest");
        reads.state.lock().room_wanted.insert(tier, (at(300), RoomWanted::default()));
        reads.note_sought_in_vain(tier, sought(0, false), at(300));
        assert!(!reads.may_seek(tier, at(309)), "nothing gets colder at once");
        assert!(reads.may_seek(tier, at(310)) && reads.room_wanted(tier).is_none());
        assert!(reads.wanted_room_lately(tier, at(359)) && !reads.wanted_room_lately(tier, at(360)));
        reads.note_sought_in_vain(tier, sought(60, false), at(400));
        assert!(!reads.may_seek(tier, at(699)) && reads.may_seek(tier, at(700)), "no rest is longer");
        reads.note_sought_in_vain(tier, sought(60, true), at(700));
        assert!(reads.may_seek(tier, at(730)), "newcomers may leave by then");
        reads.state.lock().room_wanted.insert(tier, (at(800), RoomWanted::default()));
        reads.note_sought_in_vain(tier, sought(0, true), at(800));
        assert!(!reads.may_seek(tier, at(801)) && reads.may_seek(tier, at(802)), "files are closed any time");
        reads.note_sought_in_vain(tier, SoughtInVain { is_pressing: false, ..sought(0, false) }, at(900));
        assert!(!reads.may_seek_unpressed(tier, at(909)) && reads.may_seek_unpressed(tier, at(910)));
        assert!(reads.may_seek(tier, at(900)), "what is to come does not wait for that");
    }

    #[test]
    fn for_what_is_only_overdue_nothing_leaves_that_was_read_as_much_and_rests_for_a_second() {
        let demand = |now, lately_reads| Demand { random_reads_per_kilosecond: now, lately_reads, ..Demand::default() };
        let mut soon = RoomWanted::default();
        soon.add(2 << 20, &demand(4_000, 1_200));
        let overdue = RoomWanted { purpose: RoomFor::Overdue, ..soon };
        let (equal, cold) = (demand(0, 1_150), demand(0, 600));
        assert!(soon.may_take(&equal) && soon.may_take(&cold), "a set that is hot now takes the place of one that was");
        assert!(!overdue.may_take(&equal) && overdue.may_take(&cold));
        assert!(!overdue.may_take(&demand(2_001, 0)), "nor does what is read at present");
    }

    #[test]
    fn what_is_read_half_as_much_as_what_comes_stays() {
        let demand = |reads| Demand { random_reads_per_kilosecond: reads, ..Demand::default() };
        let mut wanted = RoomWanted::default();
        wanted.add(2 << 20, &demand(10_000));
        wanted.add(2 << 20, &demand(4_000));
        assert_eq!(wanted.bytes, 4 << 20);
        assert!(wanted.may_take(&demand(2_000)) && !wanted.may_take(&demand(2_001)));
        let stream = Demand { stream_bytes_per_second: 1 << 20, ..Demand::default() };
        assert!(!wanted.may_take(&stream));
        (0..1000).for_each(|_| wanted.add(2 << 20, &demand(9_000)));
        assert_eq!(wanted.bytes, ROOM_MAX);
        wanted.add(2 << 20, &demand(100));
        assert!(wanted.may_take(&demand(2_000)), "what finds no room in this window keeps nothing where it is");
    }
}
