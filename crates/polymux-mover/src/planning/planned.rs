//! The plan of one window: pieces that move up, and the free space that others want for it.

use std::collections::{BTreeMap, BTreeSet};

use polymux_policy::{Demand, TierTable};
use polymux_records::report::Benefit;
use polymux_types::{Ino, TierId};
use polymux_volume::tier_reads::{RoomFor, RoomWanted};

use super::tables::note_coming;
use super::worth::Worth;

/// Reads in about a minute below which a range that is only overdue makes nothing leave.
const READS_FOR_ROOM_MIN: u64 = 10;

/// A piece of a file that moves up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceUp {
    pub(crate) ino: Ino,
    pub(crate) node: u64,
    pub(crate) from: TierId,
    pub(crate) to: TierId,
    pub(crate) bytes: u64,
    pub(crate) benefit: Benefit,
}

/// The plan of a window.
#[derive(Default)]
pub(crate) struct Planned {
    pub(crate) pieces: Vec<PieceUp>,
    pub(crate) room_wanted: BTreeMap<TierId, RoomWanted>,
    /// Free space for ranges that are only overdue. It counts on tiers where none is wanted for ranges that pay back soon: nothing else is read
    /// as much as those, so that overdue ranges beside them would keep everything where it is.
    room_overdue: BTreeMap<TierId, RoomWanted>,
    /// Files that are on their way already, by where to.
    pub(crate) hurried: BTreeMap<TierId, BTreeMap<Ino, Benefit>>,
    /// Nodes of `pieces`.
    nodes: BTreeSet<(Ino, u64)>,
    /// Nodes that cannot move up for now, so that others are looked at instead.
    pub(crate) passed_over: Vec<(Ino, u64)>,
}

impl Planned {
    /// A piece moves up; once, whatever asks for it.
    pub(crate) fn add(&mut self, piece: PieceUp, table: &mut TierTable) {
        if self.nodes.insert((piece.ino, piece.node)) {
            note_coming(table, piece.to.0, piece.bytes);
            self.pieces.push(piece);
        }
    }

    /// On tiers where no range that pays back soon wants free space, overdue ranges do.
    pub(crate) fn want_room_for_overdue(&mut self) {
        for (tier, wanted) in std::mem::take(&mut self.room_overdue) {
            self.room_wanted.entry(tier).or_insert(wanted.made_for(RoomFor::Overdue));
        }
    }

    /// On a tier where no range that pays back soon wants free space, those do that go there because theirs is the limit.
    pub(crate) fn want_room_for_handover(&mut self, tier: TierId, wanted: RoomWanted) {
        if wanted.bytes > 0 {
            let wanted = wanted.made_for(RoomFor::Handover);
            let known = self.room_wanted.entry(tier).or_insert(wanted);
            if known.purpose() == RoomFor::Overdue {
                *known = wanted;
            }
        }
    }

    /// Whether a node moves up.
    pub(crate) fn has_node(&self, ino: Ino, node: u64) -> bool {
        self.nodes.contains(&(ino, node))
    }
}

/// Adds the space that a piece with this demand wants on a tier, within its write budget. A range that is only overdue, and read less
/// than [`READS_FOR_ROOM_MIN`] times a minute, only comes into free space: it would keep nearly everything from leaving for the others.
pub(crate) fn want_room(worth: &Worth, bytes: u64, demand: &Demand, table: &TierTable, planned: &mut Planned) {
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
