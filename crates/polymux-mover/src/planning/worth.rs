//! The benefit of moving a piece of a file to another tier (P11-P15, docs/design/0033).

use std::borrow::Cow;

use polymux_data::placement::Context;
use polymux_policy::{
    Demand, DeviceSpeed, TierFill, TierTable, is_half_as_fast_again, lost_ns, move_ns, pay_back_seconds,
    saved_ns_per_second,
};
use polymux_records::report::Benefit;
use polymux_tier::measure::Direction;
use polymux_types::TierId;
use polymux_volume::heat::{MINUTES_REMEMBERED, at_least};
use polymux_volume::inode::FileState;
use polymux_volume::tier_reads::{BYTES_PER_SECOND_UNKNOWN, PieceIs};

use super::facts::Piece;
use super::tables::after_leaving;
use crate::Mover;

/// Requests that a move makes on each device beside those for the bytes: it makes an object and its entry durable, and removes the other.
pub(crate) const REQUESTS_OF_MOVE: u64 = 4;

/// Assumed request time of a device whose speed is unknown.
const REQUEST_NS_UNKNOWN: u64 = 1_000_000;

/// Share of writes in the requests of a range from which on it may move for their sake, although its reads have nothing to gain.
const WRITTEN_PERCENT_MIN: u8 = 20;

/// A read of a faster tier of which nothing is known is taken to need this part of the time of one of the slower tier.
const FASTER_BY_UNKNOWN: u64 = 4;

/// The benefit of moving a piece up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worth {
    pub(crate) target: TierId,
    /// Nothing has to leave for it.
    pub(crate) has_room: bool,
    pub(crate) benefit: Benefit,
}

impl Worth {
    /// Whether it is worth disturbing readers for.
    pub(crate) fn is_worth_hurrying(&self) -> bool {
        self.benefit.is_soon() || self.benefit.is_overdue
    }
}

/// The tiers as a rule prefers them for a file, else the fastest first.
pub(crate) fn in_order_of<'a>(context: &Context, table: &'a TierTable) -> Cow<'a, TierTable> {
    let mut table = Cow::Borrowed(table);
    if !context.preferred.is_empty() {
        table.to_mut().prefer(&context.preferred);
    }
    table
}

impl Mover {
    /// The benefit of moving a piece up at a demand, by tier, the fastest first that is not the limit of its readers; empty if there is none. Of a
    /// demand that was seen, callers that move anything pass what chance does not account for ([`at_least`]).
    pub(crate) fn worth_of_moving(
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
    pub(crate) fn pays_back_on(
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
    pub(crate) fn would_return(
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
        let streamed = handle.look_at_profile(|profile| profile.bytes_per_second(Direction::Read));
        Some(DeviceSpeed {
            read_ns,
            write_ns: self.placement.tier_reads.small_write_ns(tier).unwrap_or(read_ns),
            // Of tiers that were not measured all are alike, and streams alone move nothing.
            bytes_per_second: streamed.unwrap_or(BYTES_PER_SECOND_UNKNOWN),
        })
    }
}
