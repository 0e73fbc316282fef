//! A tier that is the limit of its readers hands some of its most read ranges over to one that would answer sooner (BW_Move: P11-P13,
//! docs/design/0033).
//!
//! Invariants:
//! * It goes down where the faster tier has more to read than it can serve, and up only where too much of that went there or both are read alike.
//! * A range moves only if it pays back: the device time of its reads on the tier which is the limit, against that of the move.
//! * Files with an order of tiers of their own, pinned and passed through ones, logs, and files of policies that move nothing at once stay.
//! * Nothing goes down above the low mark of a tier or up above the high mark, nor from a tier that does not rotate to one that may.
//! * One handover of a tier at a time, of [`BYTES_MAX`] at the most. Its effect is observed before the next one.
//! * Planning changes nothing: `polymux plan` runs the code that the movers follow.
//!
//! ```text
//!  TierReads::note_reads ──► Limits ──► reads to hand over ──► busiest ranges of the tier ──► jobs that take their share
//!                           └────► promotions between these tiers wait (`cache_look`, `worth`)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polymux_policy::{
    Demand, DeviceSpeed, PolicyKind, TierFill, TierTable, lost_ns, move_ns, pay_back_seconds, saved_ns_per_second,
};
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::report::{MoveReason, PAYS_BACK_SOON_SECONDS};
use polymux_tier::Rotation;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::at_least_alone;
use polymux_volume::sched::MoverPace;
use polymux_volume::space::TierHandle;
use polymux_volume::tier_reads::{HandoverOutcome, Pair, RoomWanted};

use super::bundle::Bundle;
use super::facts::{Piece, pieces_of_node};
use super::planned::Planned;
use super::tables::note_coming;
use super::worth::REQUESTS_OF_MOVE;
use crate::Mover;

/// Nodes that are looked at for handovers: those that are read most.
const NODES_MAX: usize = 4096;

/// Bytes of one handover.
const BYTES_MAX: u64 = 512 << 20;

/// Bytes per second of a stream from which on a range stays: a stream needs bandwidth.
const STREAM_MIN: u64 = 1 << 20;

/// The part of a file that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    pub(crate) ino: Ino,
    pub(crate) node: u64,
    pub(crate) bytes: u64,
}

/// Amount that is still to go between two tiers: reads in a thousand seconds, and bytes at the most.
struct Wanted {
    from: TierId,
    to: TierId,
    goes: Direction,
    reads: u64,
    bytes: u64,
    /// A range would have moved, had there been space below the mark.
    lacked_room: bool,
    /// Space for such ranges, where data that is read less may leave for them: between tiers that are read alike no benefit frees it.
    room: Option<RoomWanted>,
}

/// The ranges that move from one tier of a pair to the other.
pub(crate) struct PairPlan {
    pub(crate) pair: Pair,
    pub(crate) handovers: Vec<Handover>,
    outcome: HandoverOutcome,
}

/// How two tiers of a pair lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Down,
    Up,
}

impl Mover {
    /// Between which tiers reads may be handed over: from the first one of a pair to the second.
    pub(crate) fn pairs_for_handovers(&self) -> Vec<Pair> {
        let tiers = self.volume.tiers.all();
        let takes_part =
            |tier: &&Arc<TierHandle>| tier.present().is_some() && !tier.is_draining() && !tier.is_failing();
        let rotation = |tier: &TierHandle| tier.present().map(|present| present.capabilities().rotation);
        let never_rotates = |tier: &TierHandle| rotation(tier) == Some(Rotation::NonRotational);
        let mut pairs = Vec::new();
        for tier in tiers.iter().filter(takes_part) {
            for other in tiers.iter().filter(takes_part).filter(|other| other.id != tier.id) {
                // The speed of a tier that seeks, or may seek, must be known.
                let is_known = || self.placement.tier_reads.small_read_ns(other.id).is_some();
                if never_rotates(other) || !never_rotates(tier) && is_known() {
                    pairs.push((tier.id, other.id));
                }
            }
        }
        pairs
    }

    /// Hands reads over between tiers if that is due, in addition to the moves up in `planned`. Returns whether anything was submitted.
    pub(crate) fn hand_reads_over(&self, planned: &mut Planned, table: &mut TierTable) -> bool {
        let now = self.volume.clock.elapsed();
        let takers = self.moves.takers_of_handovers();
        self.placement.tier_reads.note_handovers_under_way(&takers, now);
        takers.iter().for_each(|tier| self.moves.hurry_running_to(*tier));
        let mut bundles: BTreeMap<(Ino, Pair), Bundle> = BTreeMap::new();
        for PairPlan { pair, handovers, outcome } in self.plan_handovers(None, planned, table) {
            if handovers.is_empty() {
                self.placement.tier_reads.note_handover(pair, outcome, now);
            }
            for Handover { ino, node, bytes } in handovers {
                bundles.entry((ino, pair)).or_default().add(node, bytes);
            }
        }
        let mut has_submitted = false;
        for ((ino, pair), bundle) in bundles {
            let bytes = bundle.bytes;
            let (from, to) = pair;
            let job = self.submit_move_off(ino, bundle, from, to, MoveReason::Handover, MoverPace::TakesShare);
            if job.is_some() {
                self.placement.tier_reads.note_handover(pair, HandoverOutcome::Begun, now);
                self.placement.write_budget.charge(to, bytes, self.placement.logical_clock.now());
                Counters::add(&self.volume.counters.bytes_handed_over, usize::try_from(bytes).unwrap_or(usize::MAX));
                has_submitted = true;
            }
        }
        has_submitted
    }

    /// Plans the handovers for the present, beside the promotions of `planned`, to which it adds the space that ranges going up to a tier which is
    /// read alike want there. `policy` takes the place of the volume's. A tier takes part in one handover at a time.
    pub(crate) fn plan_handovers(
        &self,
        policy: Option<PolicyKind>,
        planned: &mut Planned,
        table: &mut TierTable,
    ) -> Vec<PairPlan> {
        let now = self.volume.clock.elapsed();
        let due = self.placement.tier_reads.to_be_handed_over(now);
        let (mut all, mut taken): (Vec<PairPlan>, BTreeSet<TierId>) = Default::default();
        let mut busiest = None;
        for ((from, to), reads) in due {
            let goes = if table.position(to.0) < table.position(from.0) { Direction::Up } else { Direction::Down };
            // An excess of reads on a slower tier moves up by its benefit (`relief`), unless that is held back because of a handover, or there
            // is none, because both are read alike.
            let is_held_back = || {
                self.placement.tier_reads.is_limit(to, Some(from))
                    || self.placement.tier_reads.has_handed_over((to, from), now)
            };
            let is_alike = goes == Direction::Up && self.placement.reads_alike(to, from);
            let is_ours = goes == Direction::Down || is_alike || is_held_back();
            if !is_ours || taken.contains(&from) || taken.contains(&to) {
                continue;
            }
            let room = (is_alike && self.placement.tier_reads.may_seek(to, now)).then(RoomWanted::default);
            let mut wanted = Wanted { from, to, goes, reads, bytes: BYTES_MAX, lacked_room: false, room };
            let mut handovers = Vec::new();
            for (key, demand) in
                busiest.get_or_insert_with(|| self.placement.heat.demand.busiest_anywhere(NODES_MAX)).iter()
            {
                if wanted.reads == 0 || wanted.bytes == 0 {
                    break;
                }
                if planned.has_node(key.0, key.1) {
                    continue;
                }
                match self.plan_handover(key.0, key.1, demand, policy, table, &mut wanted) {
                    Ok(handover) => handovers.extend(handover),
                    Err(error) => self.pass_over(key.0, &error),
                }
            }
            let room = wanted.room.unwrap_or_default();
            let outcome = match wanted.lacked_room {
                _ if !handovers.is_empty() => HandoverOutcome::Begun,
                _ if room.bytes > 0 => HandoverOutcome::WaitsForRoom,
                true => HandoverOutcome::NoRoom,
                false => HandoverOutcome::NothingCouldMove,
            };
            if matches!(outcome, HandoverOutcome::Begun | HandoverOutcome::WaitsForRoom) {
                taken.extend([from, to]);
            }
            planned.want_room_for_handover(to, room);
            all.push(PairPlan { pair: (from, to), handovers, outcome });
        }
        all
    }

    fn plan_handover(
        &self,
        ino: Ino,
        node: u64,
        demand: &Demand,
        policy: Option<PolicyKind>,
        table: &mut TierTable,
        wanted: &mut Wanted,
    ) -> Result<Option<Handover>> {
        let Wanted { from, to, goes, .. } = *wanted;
        let reads = demand.random_reads_per_kilosecond;
        // A range with more reads than wanted would only make the other tier the limit; an excess of handed-over reads may come back.
        let reads_max = if goes == Direction::Up { wanted.reads.saturating_mul(2) } else { wanted.reads };
        if reads == 0 || reads > reads_max || demand.stream_bytes_per_second >= STREAM_MIN {
            return Ok(None);
        }
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(None) };
        self.data.ensure_size(&inode, file)?;
        let context = self.context_for(&inode, policy);
        let is_free =
            context.preferred.is_empty() && context.allows(to) && self.placement.promotes_promptly(context.policy);
        // For a log the time until its writes are durable counts.
        if !is_free || file.is_passed_through() || file.is_waited_for(self.volume.clock.elapsed()) {
            return Ok(None);
        }
        let moved_seconds_ago =
            self.placement.heat.node(ino, node, self.placement.logical_clock.now()).moved_seconds_ago;
        // An excess that was handed over comes back at once; a range that moved up for its benefit has not paid back yet.
        let came_lately = moved_seconds_ago.is_some_and(|seconds| u64::from(seconds) < PAYS_BACK_SOON_SECONDS);
        if came_lately && goes == Direction::Down
            || self.moves.is_handing_over(ino, from, to)
            || self.moves.is_promoting(ino, to)
        {
            return Ok(None);
        }
        let Some(piece) = pieces_of_node(file, node).into_iter().find(|piece| piece.tier == from) else {
            return Ok(None);
        };
        let takes = |fill: &&TierFill| fill.takes_piece(piece.bytes, file.size());
        let Some(fill) = table.fill_of(to.0).filter(takes) else { return Ok(None) };
        let has_room = fill.fits_below(piece.bytes, if goes == Direction::Up { fill.high_mark } else { fill.low_mark });
        let evicted_per_second =
            (goes == Direction::Up && !has_room).then(|| self.placement.tier_reads.speed_of_moves(from));
        if !self.handover_pays_back(piece, to, evicted_per_second, demand) {
            return Ok(None);
        }
        if !has_room {
            wanted.lacked_room = true;
            if let Some(room) = wanted.room.as_mut().filter(|_| !came_lately)
                && room.bytes.saturating_add(piece.bytes) <= fill.write_budget_left
            {
                room.add(piece.bytes, demand);
                wanted.reads = wanted.reads.saturating_sub(reads);
            }
            return Ok(None);
        }
        note_coming(table, to.0, piece.bytes);
        wanted.reads = wanted.reads.saturating_sub(reads);
        wanted.bytes = wanted.bytes.saturating_sub(piece.bytes);
        Ok(Some(Handover { ino, node, bytes: piece.bytes }))
    }

    /// Whether the device time that the reads of a piece take on its tier, which is the limit, is soon more than that of moving it, and of evicting
    /// as much for it at so many bytes per second.
    fn handover_pays_back(&self, piece: Piece, to: TierId, evicted_per_second: Option<u64>, demand: &Demand) -> bool {
        let relief = &self.placement.tier_reads;
        let Some(read_ns) = relief.small_read_ns(piece.tier) else { return false };
        let there_ns = relief.small_read_ns(to).unwrap_or(read_ns);
        let of_file = REQUESTS_OF_MOVE.saturating_mul(read_ns.saturating_add(there_ns));
        let cost = move_ns(piece.bytes, relief.speed_of_moves(to), evicted_per_second).saturating_add(of_file);
        // Reads of the other tier cost nothing: it would have had time for them.
        let speed = |ns| DeviceSpeed { read_ns: ns, write_ns: ns, bytes_per_second: 1 };
        let (here, there) = (speed(read_ns), speed(0));
        let surely = Demand { stream_bytes_per_second: 0, ..at_least_alone(demand) };
        let soon = pay_back_seconds(cost, saved_ns_per_second(&surely, &here, &there));
        soon.is_some_and(|seconds| seconds <= PAYS_BACK_SOON_SECONDS) || lost_ns(&surely, &here, &there) >= cost
    }
}
