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

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_data::placement::Context;
use polymux_policy::{Demand, PolicyKind, TierTable, WAITED_FOR_FILE_MAX};
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::parts::Promotion;
use polymux_records::report::{JobReport, JobState, MoveReason};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::at_least;
use polymux_volume::inode::FileState;
use polymux_volume::sched::{GateState, MoverPace};
use polymux_volume::space::TierHandle;
use polymux_volume::tier_reads::{PieceIs, ROOM_MAX, Window};

use super::bundle::Bundle;
use super::facts::{Piece, pieces_of_node};
use super::planned::{PieceUp, Planned, want_room};
use super::worth::{Worth, in_order_of};
use crate::Mover;

/// Moves that did not begin for so long take no share any more.
const SHARE_TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Nodes of which is found out in a window where they lie: those that are read most.
const LOCATED_MAX: usize = 2048;

/// Space freed for messages, as a multiple of those that found none in a window; and the least.
const ROOM_OF_MESSAGES: u64 = 4;
const ROOM_OF_MESSAGES_MIN: u64 = 4 << 20;

/// Open jobs from which on no others are planned here.
const JOBS_OPEN_MAX: usize = 4096;

/// Polite moves delay reads by less than this part of the time of one, so that a window beside them shows the device as it is.
const POLITE_DELAY_DIVISOR: u64 = 4;

/// The rest of a log behind a piece that moves up.
struct Rest<'a> {
    first: PieceUp,
    demand: &'a Demand,
    context: &'a Context,
}

impl Mover {
    /// Ends a window that is due, and plans the moves that pay back. Returns whether anything was submitted.
    pub(crate) fn relief_step(&self) -> Result<bool> {
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
    pub(crate) fn plan_reliefs(&self, policy: Option<PolicyKind>, table: &mut TierTable) -> Planned {
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
}
