//! Eviction from tiers above their high mark, and for ranges that are to come.
//!
//! Invariants:
//! * A tier that rose above its high mark is evicted from until it is at its low mark, not around the high one; but down to the low one only of
//!   data that would not come back within minutes.
//! * Candidates are found by a walk over the inode records that goes on where it stopped, like the hand of a clock: of every window of
//!   candidates the best are taken, so no walk over everything precedes the first move (`victims.rs`).

use std::time::Duration;

use polymux_policy::TierFill;
use polymux_records::error::Result;
use polymux_types::TierId;

use crate::Mover;
use crate::mover::planner::Needed;

impl Mover {
    /// Plans evictions and searches for candidates. Returns whether there may be more.
    pub(crate) fn evict_step(&self) -> Result<bool> {
        // The saved use of files is restored in steps; until then everything would look cold.
        if !self.placement.heat.is_restored() {
            return Ok(false);
        }
        let table = self.planning_table();
        let mut has_more = false;
        for fill in table.offered() {
            let tier = TierId(fill.tier);
            self.planner.note_fill(fill);
            let wanted = self.placement.tier_reads.room_wanted(tier).map_or(0, |wanted| wanted.bytes);
            let needed = self.bytes_needed(fill, wanted);
            let is_wanted = self.planner.state.lock().wants_victims.contains(&tier);
            let now = self.volume.clock.elapsed();
            let is_wished_for =
                || is_wanted && !needed.keeps_returning() && self.placement.tier_reads.may_seek(tier, now);
            if self.seeks_victims(tier, needed, now) || is_wished_for() {
                let makes_room = self.placement.tier_reads.spared(tier, now);
                has_more |= self.search_step(tier, needed, makes_room, &table)?;
            }
        }
        Ok(has_more)
    }

    /// Bytes that still must leave a tier, `wanted` of them for ranges that are to come. Bytes on their way there count as used, and those on
    /// their way off it as gone, whether a move is under way or has ended and its source is yet to be freed.
    pub(crate) fn bytes_needed(&self, fill: &TierFill, wanted: u64) -> Needed {
        if fill.flags & TierFill::DRAINING != 0 {
            return Needed::default();
        }
        let tier = TierId(fill.tier);
        let leaving = self.moves.bytes_leaving_now(tier).saturating_add(self.volume.disowned.bytes_on(tier));
        Needed::on(fill, self.planner.is_evicted_from(fill), wanted, leaving)
    }

    /// Whether candidates for eviction are looked for now, because something is needed.
    pub(crate) fn seeks_victims(&self, tier: TierId, needed: Needed, now: Duration) -> bool {
        match needed.keeps_returning() {
            true => self.placement.tier_reads.may_seek_unpressed(tier, now),
            false => needed.bytes > 0 && self.placement.tier_reads.may_seek(tier, now),
        }
    }
}
