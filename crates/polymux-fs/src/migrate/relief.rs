//! Ranges that keep a slower device busy move up as soon as that pays back (P11-P15, docs/design/0033).
//!
//! What is true here:
//! * What counts is device time: a move is begun where what it saves within [`PAY_BACK_SECONDS_MAX`] is more than the time that it takes,
//!   the way back of what makes room for it included.
//! * Such moves take their share of a device instead of waiting until nobody uses it ([`MoverPace::TakesShare`]); all others stay polite.
//! * Nothing leaves for them that is read more than half as much as the least read of what comes.
//! * Where programs wait for the writes of a log, what follows in it moves up with the part that they write (docs/design/0034).
//! * Streams keep a range where it is, and move none: whether one comes again nobody knows.
//! * Where readers of the faster device wait no less than those of the slower one, everything stays: it is the limit (P11).
//! * Bounded: windows of a second, [`LOCATED_MAX`] nodes in each.
//! * Lock order: nothing is taken while `Relief::state` is held.
//!
//! ```text
//!  reads that a device served ──► DeviceDemand ──► relief_step ──► moves up, or room that is wanted ──► evict_step
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_policy::{
    Demand, ReadSpeed, TierFill, TierTable, WAITED_FOR_FILE_MAX, move_ns, pay_back_seconds, saved_ns_per_second,
};
use polymux_tier::measure::Direction as MeasuredDirection;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::sync::Mutex;
use polymux_types::{Ino, TierId};

use super::facts::{Piece, pieces_of_node};
use super::planner::{Bundle, note_coming};
use crate::core::Core;
use crate::counters::Counters;
use crate::error::Result;
use crate::heat::{at_least, follow};
use crate::inode::FileState;
use crate::placement::Context;
use crate::sched::{GateState, LaneWork, MoverPace, microseconds};
use crate::volume::Promotion;

/// A move that pays back within so many seconds is worth disturbing readers for.
const PAY_BACK_SECONDS_MAX: u64 = 30;

/// Moves that did not begin for so long take no share any more.
const SHARE_TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(1);

/// Nodes of which is found out in a window where they lie: those that are read most.
const LOCATED_MAX: usize = 2048;

/// Most room that is made at once.
const ROOM_MAX: u64 = 256 << 20;

/// Stream bytes per second below which a range may leave for any that comes.
const STREAM_IGNORED: u64 = 4096;

/// How long a tier from which nothing could leave is not searched again,
const SOUGHT_IN_VAIN: Duration = Duration::from_secs(10);
/// and how long one counts as short of room from which something had to leave.
const ROOM_WANTED_LATELY: Duration = Duration::from_secs(60);

/// Small reads that tell something of the time that each takes.
const READS_ENOUGH: u64 = 100;
/// Windows without any after which it is not known any more how soon they are answered.
const WINDOWS_ANSWERED: u8 = 10;
/// Share in percent of earlier reads that is kept with each window in which there were others.
const KEPT_READS_PERCENT: u64 = 95;

/// Bytes of a batch that tells how fast moves are.
const BATCH_TELLS_BYTES: u64 = 8 << 20;

/// What a device is taken for of which nothing is known.
const REQUEST_NS_UNKNOWN: u64 = 1_000_000;
const BYTES_PER_SECOND_UNKNOWN: u64 = 100_000_000;

/// Requests that a move makes on each device beside those for the bytes: it makes an object and its entry durable, and removes the other.
const REQUESTS_OF_MOVE: u64 = 4;

/// A read of a faster tier of which nothing is known is taken to need this part of the time of one of the slower tier.
const FASTER_BY_UNKNOWN: u64 = 4;

/// Room that is to be made on a tier, and what may not leave for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomWanted {
    pub(super) bytes: u64,
    /// Demand of the least read of what is to come.
    least: Demand,
}

/// What small reads of a tier take.
#[derive(Clone, Copy, Debug, Default)]
struct SmallReads {
    /// Reads lately, and the time in microseconds in which any was under way; of earlier windows the less.
    reads: u64,
    busy_us: u64,
    /// Time in nanoseconds until one is answered, what it waits for others included; 0 while nothing is known.
    answered_ns: u64,
    windows_without: u8,
    /// What was done when that was last reckoned.
    reckoned: LaneWork,
}

/// What is known of the devices, and the room that is wanted.
#[derive(Debug, Default)]
pub(crate) struct Relief {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    window_began: Duration,
    small_reads: BTreeMap<TierId, SmallReads>,
    /// Bytes per second of moves to a tier that take their share of the devices.
    moves: BTreeMap<TierId, u64>,
    /// Room that was wanted last, and in which window.
    room_wanted: BTreeMap<TierId, (Duration, RoomWanted)>,
    /// Until when it is not sought again.
    sought_in_vain_until: BTreeMap<TierId, Duration>,
}

impl SmallReads {
    /// A window ended: this was done since mounting.
    fn note(&mut self, work: LaneWork) {
        let before = std::mem::replace(&mut self.reckoned, work);
        let since = |of: fn(&LaneWork) -> u64| of(&work).saturating_sub(of(&before));
        let (reads, took_us) = (since(|work| work.small), since(|work| work.small_service_us));
        if reads == 0 {
            self.windows_without = self.windows_without.saturating_add(1);
            if self.windows_without >= WINDOWS_ANSWERED {
                self.answered_ns = 0;
            }
            return;
        }
        self.windows_without = 0;
        // The time of the device goes to all who are served, each by what it waits.
        let busy_us = u128::from(since(|work| work.busy_us)) * u128::from(took_us)
            / u128::from(since(|work| work.service_us).max(1));
        // By reads and not by windows: a few that met something else say little beside thousands.
        let kept = |known: u64| known.saturating_mul(KEPT_READS_PERCENT) / 100;
        self.reads = kept(self.reads) + reads;
        self.busy_us = kept(self.busy_us) + u64::try_from(busy_us).unwrap_or(u64::MAX);
        let answered = took_us.saturating_mul(1000) / reads;
        self.answered_ns = if self.answered_ns == 0 { answered } else { follow(self.answered_ns, answered) };
    }

    /// Device time of one in nanoseconds; `None` while too little is known.
    fn device_ns(&self) -> Option<u64> {
        (self.reads >= READS_ENOUGH).then(|| self.busy_us.saturating_mul(1000) / self.reads)
    }
}

impl RoomWanted {
    /// Whether a node with this demand may leave for it.
    pub(super) fn may_take(&self, demand: &Demand) -> bool {
        demand.random_reads_per_kilosecond <= self.least.random_reads_per_kilosecond / 2
            && demand.stream_bytes_per_second <= (self.least.stream_bytes_per_second / 2).max(STREAM_IGNORED)
    }

    fn add(&mut self, bytes: u64, demand: &Demand) {
        self.least = if self.bytes == 0 { *demand } else { self.least.min_of(demand) };
        self.bytes = self.bytes.saturating_add(bytes).min(ROOM_MAX);
    }
}

impl Relief {
    /// Ends the window, if it is long enough. Returns how long it was.
    fn end_window(&self, now: Duration) -> Option<Duration> {
        let mut state = self.state.lock();
        let length = now.saturating_sub(state.window_began);
        if length < WINDOW {
            return None;
        }
        state.window_began = now;
        Some(length)
    }

    /// What the tiers did for readers since mounting, at the end of a window.
    fn note_reads(&self, work: &[(TierId, LaneWork)]) {
        let mut state = self.state.lock();
        work.iter().for_each(|(tier, work)| state.small_reads.entry(*tier).or_default().note(*work));
    }

    /// Room that is to be made on a tier.
    pub(super) fn room_wanted(&self, tier: TierId) -> Option<RoomWanted> {
        let state = self.state.lock();
        let (at, wanted) = state.room_wanted.get(&tier).copied()?;
        (at == state.window_began).then_some(wanted)
    }

    /// Whether something had to leave a tier for what is read more, lately.
    pub(crate) fn wanted_room_lately(&self, tier: TierId, now: Duration) -> bool {
        let state = self.state.lock();
        let since = |at: Duration| now.saturating_sub(at) < ROOM_WANTED_LATELY;
        state.room_wanted.get(&tier).is_some_and(|(at, _)| since(*at))
            || state.sought_in_vain_until.get(&tier).is_some_and(|until| since(*until))
    }

    /// What came to a tier lately, or is to come: nothing that is read as much leaves, as long as there is something else.
    pub(super) fn spared(&self, tier: TierId, now: Duration) -> Option<RoomWanted> {
        let (at, wanted) = self.state.lock().room_wanted.get(&tier).copied()?;
        (now.saturating_sub(at) < ROOM_WANTED_LATELY).then_some(wanted)
    }

    /// Everything on a tier was looked at, and nothing could leave for what is read more.
    pub(super) fn note_sought_in_vain(&self, tier: TierId, now: Duration) {
        let mut state = self.state.lock();
        if state.room_wanted.remove(&tier).is_some() {
            state.sought_in_vain_until.insert(tier, now.saturating_add(SOUGHT_IN_VAIN));
        }
    }

    fn may_seek(&self, tier: TierId, now: Duration) -> bool {
        self.state.lock().sought_in_vain_until.get(&tier).is_none_or(|until| *until <= now)
    }

    /// A batch to a tier that took its share of the devices came to its end.
    pub(super) fn note_shared_batch(&self, target: TierId, bytes: u64, took: Duration) {
        if bytes >= BATCH_TELLS_BYTES {
            let seen = bytes.saturating_mul(1_000_000) / microseconds(took).max(1);
            let mut state = self.state.lock();
            let speed = state.moves.entry(target).or_insert(seen);
            *speed = follow(*speed, seen);
        }
    }

    /// Bytes per second of moves to a tier that take their share.
    fn speed_of_moves(&self, target: TierId) -> u64 {
        self.state.lock().moves.get(&target).copied().unwrap_or(BYTES_PER_SECOND_UNKNOWN)
    }

    /// Whether readers of the faster tier wait less than those of the slower one, as far as is known.
    fn answers_sooner(&self, faster: TierId, slower: TierId) -> bool {
        let state = self.state.lock();
        let answered = |tier| state.small_reads.get(&tier).map_or(0, |reads| reads.answered_ns);
        answered(faster) == 0 || answered(slower) == 0 || answered(faster) < answered(slower)
    }
}

/// What moving a piece up is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worth {
    pub(super) target: TierId,
    /// Nothing has to leave for it.
    pub(super) has_room: bool,
    pub(super) pays_back_seconds: u64,
}

/// What a step plans.
#[derive(Default)]
struct Planned {
    bundles: BTreeMap<(Ino, TierId), Bundle>,
    room_wanted: BTreeMap<TierId, RoomWanted>,
    /// Files that are on their way already, by where to.
    hurried: BTreeMap<TierId, BTreeSet<Ino>>,
    /// Nodes that are in a bundle.
    nodes: BTreeSet<(Ino, u64)>,
}

impl Planned {
    /// A node moves to a tier; once, whatever asks for it.
    fn add(&mut self, (ino, node): (Ino, u64), bytes: u64, target: TierId, table: &mut TierTable) {
        if self.nodes.insert((ino, node)) {
            note_coming(table, target.0, bytes);
            self.bundles.entry((ino, target)).or_default().add(node, bytes);
        }
    }
}

/// What follows a piece that moves up in a log.
struct Rest<'a> {
    piece: Piece,
    node: u64,
    target: TierId,
    demand: &'a Demand,
    context: &'a Context,
}

/// The tiers as a rule prefers them for a file, else the fastest first.
fn in_order_of<'a>(context: &Context, table: &'a TierTable) -> Cow<'a, TierTable> {
    let mut table = Cow::Borrowed(table);
    if !context.preferred.is_empty() {
        table.to_mut().prefer(&context.preferred);
    }
    table
}

impl Core {
    /// Ends a window, if it is time, and plans what pays back. Returns whether anything was submitted.
    pub(super) fn relief_step(&self) -> Result<bool> {
        if self.options.promotion != Promotion::Prompt {
            return Ok(false);
        }
        let now = self.clock.elapsed();
        let Some(length) = self.planner.relief.end_window(now) else { return Ok(false) };
        let work: Vec<_> = self.tiers.all().iter().map(|handle| (handle.id, handle.read_lane.work())).collect();
        self.planner.relief.note_reads(&work);
        let has_demand = self.heat.demand.end_window(length);
        self.moves.calm_older_than(SHARE_TAKEN_WITHIN, now);
        // What is planned while nothing may move would be of another hour when it may.
        let may_move = self.gate.state(self.minute_of_week()) == GateState::Open;
        // What was known of the use of files is brought back in steps; until then everything would look cold.
        let mut planned = Planned::default();
        if may_move && has_demand && work.len() > 1 && self.heat.is_restored() {
            let mut table = self.planning_table();
            for ((ino, node), demand) in self.heat.demand.busiest(LOCATED_MAX) {
                if let Err(error) = self.plan_relief((ino, node), &demand, &mut table, &mut planned) {
                    self.pass_over(ino, &error);
                }
            }
        }
        planned.room_wanted.iter().for_each(|(tier, wanted)| self.moves.hurry_off(*tier, wanted.bytes));
        let wanted = planned.room_wanted.into_iter().map(|(tier, wanted)| (tier, (now, wanted)));
        self.planner.relief.state.lock().room_wanted.extend(wanted);
        planned.hurried.iter().for_each(|(tier, files)| self.moves.hurry_to(*tier, files));
        Ok(self.submit_relief(planned.bundles))
    }

    fn submit_relief(&self, bundles: BTreeMap<(Ino, TierId), Bundle>) -> bool {
        let mut has_submitted = false;
        for ((ino, tier), bundle) in bundles {
            let bytes = bundle.bytes;
            if self.submit_promotion((ino, tier), bundle, MoverPace::TakesShare) {
                Counters::add(&self.counters.bytes_promoted_at_once, usize::try_from(bytes).unwrap_or(usize::MAX));
                has_submitted = true;
            }
        }
        has_submitted
    }

    fn plan_relief(
        &self,
        (ino, node): (Ino, u64),
        demand: &Demand,
        table: &mut TierTable,
        planned: &mut Planned,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(()) };
        self.ensure_size(&inode, file)?;
        let context = self.context_of(&inode);
        if file.is_passed_through() || !self.promotes_promptly(context.policy) {
            self.heat.demand.pass_over(ino, node);
            return Ok(());
        }
        let now = self.clock.elapsed();
        let mut may_move = false;
        for piece in pieces_of_node(file, node) {
            let worth = self.worth_of_moving(file, piece, demand, &context, table);
            let own = in_order_of(&context, table).position(piece.tier.0);
            may_move |= own.is_some_and(|own| own > 0);
            let soon = |worth: &&Worth| worth.pays_back_seconds <= PAY_BACK_SECONDS_MAX;
            let into_room = worth.iter().filter(soon).find(|worth| worth.has_room);
            let for_others = || worth.iter().filter(soon).find(|worth| self.planner.relief.may_seek(worth.target, now));
            let Some(Worth { target, has_room, .. }) = into_room.or_else(for_others).copied() else { continue };
            if self.moves.is_promoting(ino, target) {
                planned.hurried.entry(target).or_default().insert(ino);
            } else if has_room {
                planned.add((ino, node), piece.bytes, target, table);
                if file.is_waited_for(now) {
                    let rest = Rest { piece, node, target, demand, context: &context };
                    self.plan_rest_of_log((ino, file), &rest, table, planned);
                }
                planned.hurried.entry(target).or_default();
            } else {
                let wanted = planned.room_wanted.entry(target).or_default();
                let budget =
                    table.offered().iter().find(|fill| fill.tier == target.0).map(|fill| fill.write_budget_left);
                if budget.is_some_and(|left| wanted.bytes.saturating_add(piece.bytes) <= left) {
                    wanted.add(piece.bytes, demand);
                }
            }
        }
        if !may_move {
            self.heat.demand.pass_over(ino, node);
        }
        Ok(())
    }

    /// A log is written from one end to the other, so what follows the part that keeps a device busy will do so next. It moves up with it
    /// as long as the demand of that part pays for it, and there is room.
    fn plan_rest_of_log(
        &self,
        (ino, file): (Ino, &FileState),
        rest: &Rest<'_>,
        table: &mut TierTable,
        planned: &mut Planned,
    ) {
        if file.size() >= WAITED_FOR_FILE_MAX {
            return;
        }
        let mut bytes = rest.piece.bytes;
        for node in rest.node + 1..file.size().div_ceil(RANGE_NODE_SIZE) {
            let pieces = pieces_of_node(file, node);
            let Some(piece) = pieces.into_iter().find(|piece| piece.tier == rest.piece.tier) else { continue };
            let all = Piece { bytes: bytes + piece.bytes, ..piece };
            // The first ones are in the table already, so that some room is left for others.
            let pays = |worth: &Worth| {
                worth.target == rest.target && worth.has_room && worth.pays_back_seconds <= PAY_BACK_SECONDS_MAX
            };
            if !self.worth_of_moving(file, all, rest.demand, rest.context, table).iter().any(pays) {
                break;
            }
            bytes = all.bytes;
            planned.add((ino, node), piece.bytes, rest.target, table);
        }
    }

    /// What moving a piece up is worth, by tier, the fastest first; nothing where it is worth nothing.
    pub(super) fn worth_of_moving(
        &self,
        file: &FileState,
        piece: Piece,
        demand: &Demand,
        context: &Context,
        table: &TierTable,
    ) -> Vec<Worth> {
        let by_speed = table;
        let table = in_order_of(context, by_speed);
        let Some((own, slower)) = table.position(piece.tier.0).zip(self.read_speed(piece.tier, None)) else {
            return Vec::new();
        };
        let is_partial = piece.bytes < file.size();
        let surely = Demand { stream_bytes_per_second: 0, ..at_least(demand) };
        let takes = |fill: &&TierFill| {
            context.allows(TierId(fill.tier))
                && fill.takes_new_data()
                && (!is_partial || fill.holds_partial_files())
                && piece.bytes <= fill.write_budget_left
                && self.planner.relief.answers_sooner(TierId(fill.tier), piece.tier)
                && !self.reads_alike(TierId(fill.tier), piece.tier)
        };
        let worth = |fill: &TierFill| {
            let target = TierId(fill.tier);
            // What a rule prefers need not be faster, and is not taken for that.
            let is_faster = by_speed.position(fill.tier) < by_speed.position(piece.tier.0);
            let faster = self.read_speed(target, is_faster.then_some(&slower))?;
            let has_room = fill.fits_below(piece.bytes, fill.high_mark);
            let back = (!has_room).then(|| self.planner.relief.speed_of_moves(piece.tier));
            let of_file = REQUESTS_OF_MOVE.saturating_mul(slower.request_ns.saturating_add(faster.request_ns));
            let cost = move_ns(piece.bytes, self.planner.relief.speed_of_moves(target), back).saturating_add(of_file);
            let pays_back_seconds = pay_back_seconds(cost, saved_ns_per_second(&surely, &slower, &faster))?;
            Some(Worth { target, has_room, pays_back_seconds })
        };
        table.offered()[..own].iter().filter(takes).filter_map(worth).collect()
    }

    /// What a tier takes to be read, as far as is known; `slower` is the tier that it is compared with.
    fn read_speed(&self, tier: TierId, slower: Option<&ReadSpeed>) -> Option<ReadSpeed> {
        let handle = self.tiers.by_id(tier).ok()?;
        let measured = self.planner.relief.state.lock().small_reads.get(&tier).and_then(SmallReads::device_ns);
        let unknown = slower.map_or(REQUEST_NS_UNKNOWN, |slower| slower.request_ns / FASTER_BY_UNKNOWN);
        let streamed = handle.look_at_profile(|profile| profile.bytes_per_second(MeasuredDirection::Read));
        Some(ReadSpeed {
            request_ns: measured.unwrap_or(unknown),
            // Of tiers that were not measured all are alike, and streams alone move nothing.
            bytes_per_second: streamed.unwrap_or(BYTES_PER_SECOND_UNKNOWN),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_half_as_much_as_what_comes_stays() {
        let demand = |reads| Demand { random_reads_per_kilosecond: reads, stream_bytes_per_second: 0 };
        let mut wanted = RoomWanted::default();
        wanted.add(2 << 20, &demand(10_000));
        wanted.add(2 << 20, &demand(4_000));
        assert_eq!(wanted.bytes, 4 << 20);
        assert!(wanted.may_take(&demand(2_000)) && !wanted.may_take(&demand(2_001)));
        let stream = Demand { random_reads_per_kilosecond: 0, stream_bytes_per_second: 1 << 20 };
        assert!(!wanted.may_take(&stream));
        (0..1000).for_each(|_| wanted.add(2 << 20, &demand(9_000)));
        assert_eq!(wanted.bytes, ROOM_MAX);
    }

    #[test]
    fn a_few_slow_reads_beside_thousands_change_little_and_streams_nothing() {
        let mut reads = SmallReads::default();
        let mut work = LaneWork::default();
        let mut window = |reads: &mut SmallReads, small: u64, streamed_us: u64, busy_us: u64, service_us: u64| {
            work.small += small;
            work.small_service_us += service_us;
            work.service_us += service_us + streamed_us;
            work.busy_us += busy_us;
            reads.note(work);
        };
        window(&mut reads, 50, 0, 50_000, 50_000);
        assert_eq!((reads.device_ns(), reads.answered_ns), (None, 1_000_000), "too few to tell");
        (0..20).for_each(|_| window(&mut reads, 3000, 0, 1_000_000, 8_000_000));
        assert!((330_000..340_000).contains(&reads.device_ns().unwrap()), "{reads:?}");
        assert!((2_600_000..2_700_000).contains(&reads.answered_ns), "{reads:?}");
        window(&mut reads, 10, 0, 100_000, 100_000);
        assert!((330_000..342_000).contains(&reads.device_ns().unwrap()), "{reads:?}");
        // A stream has the device for three quarters of the time.
        (0..200).for_each(|_| window(&mut reads, 750, 6_000_000, 1_000_000, 2_000_000));
        assert!((330_000..336_000).contains(&reads.device_ns().unwrap()), "{reads:?}");
        (0..u64::from(WINDOWS_ANSWERED)).for_each(|_| window(&mut reads, 0, 0, 0, 0));
        assert_eq!(reads.answered_ns, 0, "it is not known any more");
        assert!(reads.device_ns().is_some());
    }
}
