//! Ranges that keep a slower device busy move up as soon as that pays back (P11-P15, docs/design/0033).
//!
//! Invariants:
//! * Device time counts: a move is begun if it saves more time within `PAYS_BACK_SOON_SECONDS` than it takes,
//!   including the evictions that free space for it, or if the range is overdue: it has cost the slower device as much already.
//! * Such moves take their share of a device instead of waiting until it is unused ([`MoverPace::TakesShare`]); all others stay low-priority.
//! * No range is evicted for them that is read more than half as much as the least read incoming one, nor one that came itself within
//!   `PAYS_BACK_SOON_SECONDS`. For a range that is only overdue, none is evicted either that was read more than half as much in about a minute: of
//!   ranges that are read a few times a second alike, chance makes some look twice as busy as others in any second.
//! * If programs wait for the writes of a log, the rest of it moves up with the part that they write (docs/design/0034).
//! * Streams keep a range where it is, and move none: whether one comes again is unknown.
//! * Where readers of the faster device wait no less than those of the slower one, everything stays, and some of it goes down: it is the
//!   limit (P11; `load_balance.rs`).
//! * Bounded: windows of a second, [`LOCATED_MAX`] nodes in each, [`JOBS_OPEN_MAX`] open jobs; a search for candidates that found
//!   nothing rests for `REST_FACTOR` times as long as it took.
//! * Planning changes nothing: `polymux plan` runs the code that the movers follow.
//!
//! ```text
//! reads that a device served ──► DeviceDemand ──► plan_reliefs ──► Planned ──► relief_step ──► moves up, or space for evict_step
//!                                                                       └────► plan (report)
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_data::placement::Context;
use polymux_policy::{
    Demand, DeviceSpeed, PolicyKind, TierFill, TierTable, WAITED_FOR_FILE_MAX, is_half_as_fast_again, lost_ns, move_ns,
    pay_back_seconds, saved_ns_per_second,
};
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::parts::Promotion;
use polymux_records::report::{Benefit, JobReport, JobState, MoveReason};
use polymux_tier::measure::Direction as MeasuredDirection;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::{MINUTES_REMEMBERED, at_least};
use polymux_volume::inode::FileState;
use polymux_volume::sched::{GateState, MoverPace};
use polymux_volume::space::TierHandle;
use polymux_volume::tier_reads::{BYTES_PER_SECOND_UNKNOWN, PieceIs, ROOM_MAX, RoomFor, RoomWanted, Window};

use super::bundle::Bundle;
use super::facts::{Piece, pieces_of_node};
use super::mover::Mover;
use super::planner::{after_leaving, note_coming};

/// Moves that did not begin for so long take no share any more.
const SHARE_TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Nodes of which is found out in a window where they lie: those that are read most.
const LOCATED_MAX: usize = 2048;

/// Space freed for messages, as a multiple of those that found none in a window; and the least.
const ROOM_OF_MESSAGES: u64 = 4;
const ROOM_OF_MESSAGES_MIN: u64 = 4 << 20;

/// Open jobs from which on no others are planned here.
const JOBS_OPEN_MAX: usize = 4096;

/// Reads in about a minute below which a range that is only overdue makes nothing leave.
const READS_FOR_ROOM_MIN: u64 = 10;

/// Polite moves delay reads by less than this part of the time of one, so that a window beside them shows the device as it is.
const POLITE_DELAY_DIVISOR: u64 = 4;

/// Assumed request time of a device whose speed is unknown.
const REQUEST_NS_UNKNOWN: u64 = 1_000_000;

/// Requests that a move makes on each device beside those for the bytes: it makes an object and its entry durable, and removes the other.
pub(super) const REQUESTS_OF_MOVE: u64 = 4;

/// Share of writes in the requests of a range from which on it may move for their sake, although its reads have nothing to gain.
const WRITTEN_PERCENT_MIN: u8 = 20;

/// A read of a faster tier of which nothing is known is taken to need this part of the time of one of the slower tier.
const FASTER_BY_UNKNOWN: u64 = 4;

/// The benefit of moving a piece up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worth {
    pub(super) target: TierId,
    /// Nothing has to leave for it.
    pub(super) has_room: bool,
    pub(super) benefit: Benefit,
}

impl Worth {
    /// Whether it is worth disturbing readers for.
    fn is_worth_hurrying(&self) -> bool {
        self.benefit.is_soon() || self.benefit.is_overdue
    }
}

/// A piece of a file that moves up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceUp {
    pub(super) ino: Ino,
    pub(super) node: u64,
    pub(super) from: TierId,
    pub(super) to: TierId,
    pub(super) bytes: u64,
    pub(super) benefit: Benefit,
}

/// The plan of a window.
#[derive(Default)]
pub(super) struct Planned {
    pub(super) pieces: Vec<PieceUp>,
    pub(super) room_wanted: BTreeMap<TierId, RoomWanted>,
    /// Free space for ranges that are only overdue. It counts on tiers where none is wanted for ranges that pay back soon: nothing else is read
    /// as much as those, so that overdue ranges beside them would keep everything where it is.
    room_overdue: BTreeMap<TierId, RoomWanted>,
    /// Files that are on their way already, by where to.
    pub(super) hurried: BTreeMap<TierId, BTreeMap<Ino, Benefit>>,
    /// Nodes of `pieces`.
    nodes: BTreeSet<(Ino, u64)>,
    /// Nodes that cannot move up for now, so that others are looked at instead.
    passed_over: Vec<(Ino, u64)>,
}

impl Planned {
    /// A piece moves up; once, whatever asks for it.
    fn add(&mut self, piece: PieceUp, table: &mut TierTable) {
        if self.nodes.insert((piece.ino, piece.node)) {
            note_coming(table, piece.to.0, piece.bytes);
            self.pieces.push(piece);
        }
    }

    /// On tiers where no range that pays back soon wants free space, overdue ranges do.
    fn want_room_for_overdue(&mut self) {
        for (tier, wanted) in std::mem::take(&mut self.room_overdue) {
            self.room_wanted.entry(tier).or_insert(wanted.made_for(RoomFor::Overdue));
        }
    }

    /// On a tier where no range that pays back soon wants free space, those do that go there because theirs is the limit.
    pub(super) fn want_room_for_handover(&mut self, tier: TierId, wanted: RoomWanted) {
        if wanted.bytes > 0 {
            let wanted = wanted.made_for(RoomFor::Handover);
            let known = self.room_wanted.entry(tier).or_insert(wanted);
            if known.purpose() == RoomFor::Overdue {
                *known = wanted;
            }
        }
    }

    /// Whether a node moves up.
    pub(super) fn has_node(&self, ino: Ino, node: u64) -> bool {
        self.nodes.contains(&(ino, node))
    }
}

/// The rest of a log behind a piece that moves up.
struct Rest<'a> {
    first: PieceUp,
    demand: &'a Demand,
    context: &'a Context,
}

/// Adds the space that a piece with this demand wants on a tier, within its write budget. A range that is only overdue, and read less
/// than [`READS_FOR_ROOM_MIN`] times a minute, only comes into free space: it would keep nearly everything from leaving for the others.
fn want_room(worth: &Worth, bytes: u64, demand: &Demand, table: &TierTable, planned: &mut Planned) {
    if !worth.benefit.is_soon() && demand.lately_reads < READS_FOR_ROOM_MIN {
        return;
    }
    let wanted = if worth.benefit.is_soon() { &mut planned.room_wanted } else { &mut planned.room_overdue };
    let wanted = wanted.entry(worth.target).or_default();
    let budget = table.fill_of(worth.target.0).map(|fill| fill.write_budget_left);
    if budget.is_some_and(|left| wanted.bytes.saturating_add(bytes) <= left) {
        wanted.add(bytes, demand);
    }
}

/// The tiers as a rule prefers them for a file, else the fastest first.
fn in_order_of<'a>(context: &Context, table: &'a TierTable) -> Cow<'a, TierTable> {
    let mut table = Cow::Borrowed(table);
    if !context.preferred.is_empty() {
        table.to_mut().prefer(&context.preferred);
    }
    table
}

impl Mover {
    /// Ends a window that is due, and plans the moves that pay back. Returns whether anything was submitted.
    pub(super) fn relief_step(&self) -> Result<bool> {
        let now = self.volume.clock.elapsed();
        let Some(length) = self.placement.tier_reads.end_window(now) else { return Ok(false) };
        self.note_device_reads();
        if self.volume.options.promotion != Promotion::Prompt {
            return Ok(false);
        }
        let work: Vec<_> = self
            .volume
            .tiers
            .all()
            .iter()
            .map(|handle| (handle.id, handle.speed.read_lane.work(), self.window_of(handle)))
            .collect();
        self.placement.tier_reads.note_reads(&work, length, &self.pairs_for_handovers());
        for handle in self.volume.tiers.all().iter() {
            self.placement.tier_reads.note_small_writes(handle.id, handle.speed.small_writes.work(now), length);
        }
        self.placement.tier_reads.set_pointless(work.len() < 2 || !self.placement.may_promote_promptly());
        let has_demand = self.placement.heat.demand.end_window(length);
        self.moves.calm_older_than(SHARE_TAKEN_WITHIN, now);
        // A tier that was the limit then may be idle now.
        let is_stale = |job: &JobReport| {
            let is_old = u128::from(job.age_ms) > SHARE_TAKEN_WITHIN.as_millis();
            job.reason == MoveReason::Handover && is_old && job.state != JobState::Running
        };
        self.moves.cancel(is_stale, now);
        // A plan made while nothing may move would be outdated when moves may run.
        let may_move = self.gate.state(self.minute_of_week()) == GateState::Open;
        let (mut planned, mut has_handed_over) = (Planned::default(), false);
        if may_move
            && has_demand
            && !self.placement.tier_reads.is_pointless()
            && self.moves.open_jobs(|_| true).0 < JOBS_OPEN_MAX
        {
            let mut table = self.planning_table();
            planned = self.plan_reliefs(None, &mut table);
            has_handed_over = self.hand_reads_over(&mut planned, &mut table);
        }
        planned.passed_over.iter().for_each(|(ino, node)| self.placement.heat.demand.pass_over(*ino, *node));
        for (tier, wanted) in &planned.room_wanted {
            // Everything above the mark has to leave before the first wanted byte has space below it.
            let above_mark = self.volume.tiers.by_id(*tier).map_or(0, |handle| self.bytes_above_mark(&handle));
            let about_to_be_free = self.volume.disowned.bytes_on(*tier);
            self.moves.hurry_off(*tier, wanted.bytes.saturating_add(above_mark.saturating_sub(about_to_be_free)));
        }
        self.hurry_for_messages(may_move);
        self.placement.tier_reads.note_room_wanted(&planned.room_wanted, now);
        planned.hurried.iter().for_each(|(tier, files)| self.moves.hurry_to(*tier, files));
        Ok(self.submit_relief(&planned.pieces) || has_handed_over)
    }

    /// The moves on a tier in the window that ends now.
    fn window_of(&self, handle: &TierHandle) -> Window {
        let (is_shared, is_active) = (handle.speed.schedule.take_was_shared(), handle.speed.schedule.mover_is_active());
        // A device that needs much longer for a read than polite moves may delay it shows whether it is the limit.
        let delay_ns = || handle.speed.schedule.polite_delay_us_max().saturating_mul(1000);
        let unqueued_ns = || self.placement.tier_reads.unqueued_ns(handle.id).unwrap_or(0);
        match is_shared {
            false if !is_active => Window::Undisturbed,
            false if delay_ns() <= unqueued_ns() / POLITE_DELAY_DIVISOR => Window::BesidePoliteMoves,
            _ => Window::BesideMoves,
        }
    }

    /// Where messages found no free space in the last window, some evictions off the tier take their share: otherwise they would yield to the very
    /// syncs that go to a slower tier for lack of free space. While nothing may move, these messages are forgotten.
    fn hurry_for_messages(&self, may_move: bool) {
        for handle in self.volume.tiers.all().iter() {
            let Some(bytes) = handle.refused_messages.take().filter(|_| may_move) else { continue };
            let wanted = bytes.saturating_mul(ROOM_OF_MESSAGES).clamp(ROOM_OF_MESSAGES_MIN, ROOM_MAX);
            let hurried = self.moves.hurry_off(handle.id, wanted.min(self.bytes_above_mark(handle)));
            Counters::add(
                &self.volume.counters.bytes_hurried_for_messages,
                usize::try_from(hurried).unwrap_or(usize::MAX),
            );
        }
    }

    /// Bytes on a tier above its high mark; 0 where its free space is not known.
    fn bytes_above_mark(&self, handle: &TierHandle) -> u64 {
        let Some(space) = handle.space() else { return 0 };
        let fill = self.placement.fill_of(handle, &space);
        fill.used.saturating_sub(fill.high_mark)
    }

    fn submit_relief(&self, pieces: &[PieceUp]) -> bool {
        let mut bundles: BTreeMap<(Ino, TierId), Bundle> = BTreeMap::new();
        for piece in pieces {
            bundles.entry((piece.ino, piece.to)).or_default().add(piece.node, piece.bytes);
        }
        let mut has_submitted = false;
        for ((ino, tier), bundle) in bundles {
            let bytes = bundle.bytes;
            if self.submit_promotion(ino, tier, bundle, MoverPace::TakesShare) {
                Counters::add(
                    &self.volume.counters.bytes_promoted_at_once,
                    usize::try_from(bytes).unwrap_or(usize::MAX),
                );
                has_submitted = true;
            }
        }
        has_submitted
    }

    /// The moves that pay back among the nodes that are read most. `policy` takes the place of the volume's.
    pub(super) fn plan_reliefs(&self, policy: Option<PolicyKind>, table: &mut TierTable) -> Planned {
        let mut planned = Planned::default();
        // The saved use of files is restored in steps; until then everything would look cold.
        if self.volume.options.promotion != Promotion::Prompt || !self.placement.heat.is_restored() {
            return planned;
        }
        for ((ino, node), demand) in self.placement.heat.demand.busiest(LOCATED_MAX) {
            if let Err(error) = self.plan_relief(ino, node, &demand, policy, table, &mut planned) {
                self.pass_over(ino, &error);
            }
        }
        planned.want_room_for_overdue();
        planned
    }

    fn plan_relief(
        &self,
        ino: Ino,
        node: u64,
        demand: &Demand,
        policy: Option<PolicyKind>,
        table: &mut TierTable,
        planned: &mut Planned,
    ) -> Result<()> {
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(()) };
        self.data.ensure_size(&inode, file)?;
        let context = self.context_for(&inode, policy);
        if file.is_passed_through() || !self.placement.promotes_promptly(context.policy) {
            planned.passed_over.push((ino, node));
            return Ok(());
        }
        let now = self.volume.clock.elapsed();
        let mut may_move = false;
        for piece in pieces_of_node(file, node) {
            let worth = self.worth_of_moving(file, piece, PieceIs::Here, &at_least(demand), &context, table);
            let own = in_order_of(&context, table).position(piece.tier.0);
            may_move |= own.is_some_and(|own| own > 0);
            let hurries = || worth.iter().filter(|worth| worth.is_worth_hurrying());
            let into_room = hurries().find(|worth| worth.has_room);
            let for_others = || hurries().find(|worth| self.placement.tier_reads.may_seek(worth.target, now));
            let Some(worth) = into_room.or_else(for_others).copied() else { continue };
            if self.moves.is_handing_over(ino, piece.tier, worth.target) {
                // It is on its way there with its share of the devices already.
                continue;
            }
            if self.moves.is_promoting(ino, worth.target) {
                planned.hurried.entry(worth.target).or_default().insert(ino, worth.benefit);
            } else if worth.has_room {
                let Worth { target: to, benefit, .. } = worth;
                let first = PieceUp { ino, node, from: piece.tier, to, bytes: piece.bytes, benefit };
                planned.add(first, table);
                if file.is_waited_for(now) {
                    self.plan_rest_of_log(file, &Rest { first, demand, context: &context }, table, planned);
                }
                planned.hurried.entry(to).or_default();
            } else {
                want_room(&worth, piece.bytes, demand, table, planned);
            }
        }
        if !may_move {
            planned.passed_over.push((ino, node));
        }
        Ok(())
    }

    /// A log is written from one end to the other, so the data behind the part that keeps a device busy will do so next. It moves up with it
    /// while the demand of that part pays for it, and there is space.
    fn plan_rest_of_log(&self, file: &FileState, rest: &Rest<'_>, table: &mut TierTable, planned: &mut Planned) {
        if file.size() >= WAITED_FOR_FILE_MAX {
            return;
        }
        let first = rest.first;
        let mut bytes = first.bytes;
        for node in first.node + 1..file.size().div_ceil(RANGE_NODE_SIZE) {
            let pieces = pieces_of_node(file, node);
            let Some(piece) = pieces.into_iter().find(|piece| piece.tier == first.from) else { continue };
            let all = Piece { bytes: bytes + piece.bytes, ..piece };
            // The first ones are in the table already, so that some space is left for others.
            let pays = |worth: &&Worth| worth.target == first.to && worth.has_room && worth.benefit.is_soon();
            let worth = self.worth_of_moving(file, all, PieceIs::Here, &at_least(rest.demand), rest.context, table);
            let Some(Worth { benefit, .. }) = worth.iter().find(pays).copied() else { break };
            bytes = all.bytes;
            planned.add(PieceUp { node, bytes: piece.bytes, benefit, ..first }, table);
        }
    }

    /// The benefit of moving a piece up at a demand, by tier, the fastest first that is not the limit of its readers; empty if there is none. Of a
    /// demand that was seen, callers that move anything pass what chance does not account for ([`at_least`]).
    pub(super) fn worth_of_moving(
        &self,
        file: &FileState,
        piece: Piece,
        piece_is: PieceIs,
        demand: &Demand,
        context: &Context,
        table: &TierTable,
    ) -> Vec<Worth> {
        let by_speed = table;
        let table = in_order_of(context, by_speed);
        let Some((own, slower)) = table.position(piece.tier.0).zip(self.device_speed(piece.tier, None)) else {
            return Vec::new();
        };
        let random = Demand { stream_bytes_per_second: 0, ..*demand };
        let takes = |fill: &&TierFill| context.allows(TierId(fill.tier)) && fill.takes_piece(piece.bytes, file.size());
        let tier_reads = &self.placement.tier_reads;
        let reads_gain = |target| {
            tier_reads.answers_sooner(target, piece.tier, piece_is) && !self.placement.reads_alike(target, piece.tier)
        };
        let worth = |fill: &TierFill| {
            let target = TierId(fill.tier);
            // A tier that a rule prefers need not be faster, and is not assumed to be.
            let is_faster = by_speed.position(fill.tier) < by_speed.position(piece.tier.0);
            let faster = self.device_speed(target, is_faster.then_some(&slower))?;
            let write_ns = self.write_ns_there(piece.tier, target, faster.read_ns, is_faster);
            let faster = DeviceSpeed { write_ns, ..faster };
            let writes_gain = || {
                random.written_percent >= WRITTEN_PERCENT_MIN
                    && tier_reads.small_write_ns(piece.tier).is_some()
                    && !tier_reads.is_limit(target, Some(piece.tier))
                    && is_half_as_fast_again(faster.request_ns(&random), slower.request_ns(&random))
            };
            if !reads_gain(target) && !writes_gain() {
                return None;
            }
            // For what would only have cost as much as its move the means count, and only where they differ: what is read alike would change
            // places for it again and again.
            let read_ns = tier_reads.small_read_ns(target).unwrap_or(faster.read_ns);
            let faster_mean = DeviceSpeed { read_ns, ..faster };
            let differs = is_half_as_fast_again(faster_mean.request_ns(&random), slower.request_ns(&random));
            let has_room = fill.fits_below(piece.bytes, fill.high_mark);
            let back = (!has_room).then(|| tier_reads.speed_of_moves(piece.tier));
            let of_file = REQUESTS_OF_MOVE.saturating_mul(slower.read_ns.saturating_add(faster.read_ns));
            let cost = move_ns(piece.bytes, tier_reads.speed_of_moves(target), back).saturating_add(of_file);
            let benefit = Benefit {
                pays_back_seconds: pay_back_seconds(cost, saved_ns_per_second(&random, &slower, &faster)),
                is_overdue: differs && lost_ns(&random, &slower, &faster_mean) >= cost,
            };
            (benefit != Benefit::default()).then_some(Worth { target, has_room, benefit })
        };
        let mut worth: Vec<Worth> = table.offered()[..own].iter().filter(takes).filter_map(worth).collect();
        // One that has more to read than it can serve comes last, unless people chose the order.
        if context.preferred.is_empty() {
            worth.sort_by_key(|worth| tier_reads.is_limit(worth.target, None));
        }
        worth
    }

    /// Whether a piece that lay on another tier would pay back on this one soon enough to be moved at once.
    pub(super) fn pays_back_on(
        &self,
        tier: TierId,
        file: &FileState,
        piece: Piece,
        demand: &Demand,
        context: &Context,
        table: &TierTable,
    ) -> bool {
        let table = || after_leaving(table, tier.0, piece.bytes);
        demand.random_reads_per_kilosecond > 0
            && self.benefit_there(tier, file, piece, demand, context, &table()).is_some_and(Benefit::is_soon)
    }

    /// Whether a piece that lay on another tier would have cost that, in the minutes for which reads are remembered, as much as the move back, if
    /// programs go on reading it as in about the last minute: then it would come back as soon as there is space.
    pub(super) fn would_return(
        &self,
        tier: TierId,
        file: &FileState,
        piece: Piece,
        demand: &Demand,
        context: &Context,
        table: &TierTable,
    ) -> bool {
        let served_reads = demand.lately_reads.saturating_mul(MINUTES_REMEMBERED);
        let to_come = Demand { random_reads_per_kilosecond: 0, served_reads, ..*demand };
        let table = || {
            // What is above the mark leaves in any case.
            let above = table.fill_of(tier.0).map_or(0, |fill| fill.used.saturating_sub(fill.high_mark));
            after_leaving(table, tier.0, piece.bytes.saturating_add(above))
        };
        served_reads > 0
            && self
                .benefit_there(tier, file, piece, &to_come, context, &table())
                .is_some_and(|benefit| benefit.is_overdue)
    }

    /// The benefit that a piece which leaves a tier would have there, with the table as it is after that.
    fn benefit_there(
        &self,
        tier: TierId,
        file: &FileState,
        piece: Piece,
        demand: &Demand,
        context: &Context,
        table: &TierTable,
    ) -> Option<Benefit> {
        let worth = self.worth_of_moving(file, piece, PieceIs::There, &at_least(demand), context, table);
        worth.into_iter().find(|worth| worth.target == tier).map(|worth| worth.benefit)
    }

    /// Device time of a small write on a tier where a piece of `own` would be; `read_ns` is that of a read there. Where that of `own` is not
    /// known, both tiers are compared by their reads.
    fn write_ns_there(&self, own: TierId, target: TierId, read_ns: u64, is_faster: bool) -> u64 {
        let small_write_ns = |tier| self.placement.tier_reads.small_write_ns(tier);
        match (small_write_ns(own), small_write_ns(target)) {
            (None, _) => read_ns,
            (Some(_), Some(known)) => known,
            (Some(own_ns), None) if is_faster => own_ns / FASTER_BY_UNKNOWN,
            (Some(own_ns), None) => own_ns,
        }
    }

    /// The speed of a tier, as far as it is known; `slower` is the tier that requests would leave for it.
    fn device_speed(&self, tier: TierId, slower: Option<&DeviceSpeed>) -> Option<DeviceSpeed> {
        let handle = self.volume.tiers.by_id(tier).ok()?;
        let measured = match slower {
            Some(_) => self.placement.small_read_ns_of_one_more(tier),
            None => self.placement.tier_reads.small_read_ns(tier),
        };
        let unknown = slower.map_or(REQUEST_NS_UNKNOWN, |slower| slower.read_ns / FASTER_BY_UNKNOWN);
        let read_ns = measured.unwrap_or(unknown);
        let streamed = handle.look_at_profile(|profile| profile.bytes_per_second(MeasuredDirection::Read));
        Some(DeviceSpeed {
            read_ns,
            write_ns: self.placement.tier_reads.small_write_ns(tier).unwrap_or(read_ns),
            // Of tiers that were not measured all are alike, and streams alone move nothing.
            bytes_per_second: streamed.unwrap_or(BYTES_PER_SECOND_UNKNOWN),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overdue_does_not_bound_what_may_leave_for_what_pays_back_soon() {
        let room_for = |reads| {
            let mut wanted = RoomWanted::default();
            wanted.add(2 << 20, &Demand { random_reads_per_kilosecond: reads, ..Demand::default() });
            wanted
        };
        let (both, overdue) = (TierId(1), TierId(2));
        let mut planned = Planned::default();
        planned.room_wanted.insert(both, room_for(100_000));
        planned.room_overdue.extend([(both, room_for(800)), (overdue, room_for(800))]);
        planned.want_room_for_overdue();
        let for_overdue = room_for(800).made_for(RoomFor::Overdue);
        assert_eq!(planned.room_wanted, BTreeMap::from([(both, room_for(100_000)), (overdue, for_overdue)]));
        planned.want_room_for_handover(TierId(3), RoomWanted::default());
        [both, overdue].iter().for_each(|tier| planned.want_room_for_handover(*tier, room_for(3_000)));
        let for_handover = room_for(3_000).made_for(RoomFor::Handover);
        assert_eq!(planned.room_wanted, BTreeMap::from([(both, room_for(100_000)), (overdue, for_handover)]));
    }
}
