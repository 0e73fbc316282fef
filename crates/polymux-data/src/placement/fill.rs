//! Facts about tiers, for policies.

use polymux_policy::{TierFill, TierTable};
use polymux_tier::Space;
use polymux_volume::space::TierHandle;

use crate::placement::Placement;

impl Placement {
    /// Facts about one tier. Its eviction candidates are filled in by the planner, which looks for them.
    pub fn fill_of(&self, tier: &TierHandle, space: &Space) -> TierFill {
        let headroom = space.free.saturating_sub(tier.reserve_of(space));
        let mut fill = TierFill::new(tier.id.0, space.total, space.unavailable(), headroom);
        fill.high_mark = tier.high_mark_bytes(space);
        fill.low_mark = tier.low_mark_bytes(space);
        fill.flags = 0;
        if tier.present().is_some() && !tier.is_failing() && !tier.is_draining() {
            fill.flags |= TierFill::TAKES_NEW_DATA;
        }
        if tier.is_draining() {
            fill.flags |= TierFill::DRAINING;
        }
        if tier.present().is_some_and(|tier| tier.capabilities().holds_partial_files()) {
            fill.flags |= TierFill::HOLDS_PARTIAL_FILES;
        }
        if tier.takes_spread_growth() {
            fill.flags |= TierFill::TAKES_SPREAD_GROWTH;
        }
        fill.write_budget_left = self.write_budget.budget_left(tier.id, self.logical_clock.now());
        self.fill_load(tier, &mut fill);
        fill
    }

    /// Facts about all tiers that are there, in speed order.
    pub fn tier_table(&self) -> TierTable {
        let mut table = TierTable::default();
        for tier in self.volume.tiers.all().iter() {
            if let Some(space) = tier.space() {
                table.offer(self.fill_of(tier, &space));
            }
        }
        table
    }
}
