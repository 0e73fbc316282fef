//! The tiers as planning sees them: with the bytes on their way counted in.

use polymux_policy::TierTable;
use polymux_records::error::Error;
use polymux_types::{Ino, TierId};

use crate::Mover;

/// Notes in a table that bytes go to a tier.
pub(crate) fn note_coming(table: &mut TierTable, tier: u16, bytes: u64) {
    if let Some(fill) = table.offered_mut().iter_mut().find(|fill| fill.tier == tier) {
        fill.used = fill.used.saturating_add(bytes);
        fill.headroom = fill.headroom.saturating_sub(bytes);
        fill.write_budget_left = match fill.write_budget_left {
            u64::MAX => u64::MAX,
            left => left.saturating_sub(bytes),
        };
    }
}

/// A table in which as many bytes have left a tier: what leaves one that is below its mark finds its own place free if it comes back.
pub(crate) fn after_leaving(table: &TierTable, tier: u16, bytes: u64) -> TierTable {
    let mut table = *table;
    if let Some(fill) = table.offered_mut().iter_mut().find(|fill| fill.tier == tier) {
        fill.used = fill.used.saturating_sub(bytes);
        fill.headroom = fill.headroom.saturating_add(bytes);
    }
    table
}

impl Mover {
    /// The tiers with the bytes on their way counted in, and the data that could leave them.
    pub(crate) fn planning_table(&self) -> TierTable {
        let mut table = self.placement.tier_table();
        let state = self.planner.state.lock();
        for fill in table.offered_mut() {
            let tier = TierId(fill.tier);
            let coming = self.moves.bytes_coming(tier);
            fill.used = fill.used.saturating_add(coming);
            fill.headroom = fill.headroom.saturating_sub(coming);
            if let Some((heat, idle)) = state.coldest.get(&tier) {
                fill.coldest_heat = *heat;
                fill.longest_idle_seconds = *idle;
            }
        }
        table
    }

    /// Logs that planning passes over a file.
    pub(crate) fn pass_over(&self, ino: Ino, error: &Error) {
        if error.errno() != polymux_types::Errno::ENOENT {
            log::debug!("volume {}: inode {ino} is passed over: {error}", self.volume.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use polymux_policy::TierFill;

    use super::*;

    #[test]
    fn what_leaves_a_full_tier_finds_room_there_when_it_comes_back() {
        let mark = 1000;
        for (used, headroom) in [(mark, 0), (mark - 1, 1)] {
            let mut table = TierTable::default();
            table.offer(TierFill { tier: 7, used, headroom, high_mark: mark, low_mark: 900, ..TierFill::default() });
            let fits = |table: &TierTable| table.fill_of(7).expect("it is there").fits_below(100, mark);
            assert!(!fits(&table) && fits(&after_leaving(&table, 7, 100)), "{used} bytes used");
            assert_eq!(after_leaving(&table, 8, 100), table, "another tier");
        }
    }
}
