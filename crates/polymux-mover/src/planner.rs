//! From facts to jobs: eviction from tiers above their high mark, and the moves that rules and pins demand. `promotion` does the same for
//! newly hot ranges. What is decided here `plan` asks for, too, and changes nothing by it.
//!
//! Invariants:
//! * Each step looks at a bounded number of nodes and files, whatever the size of the volume.
//! * Bytes that jobs on their way will bring to a tier, or take off it, count as moved already, and those that are about to be freed as
//!   free: nothing is planned twice.
//! * A tier that rose above its high mark is evicted from until it is at its low mark, not around the high one; but down to the low one only of
//!   data that would not come back within minutes.
//! * A file that cannot be asked for its size (its tier is missing) is passed over, and all others are planned.
//! * Moves that rules and pins demand and that are not possible yet are looked for again, at intervals, by a walk over all files;
//!   without rules about tiers or pins, the walk is skipped.
//! * Eviction candidates are found by a walk over the inode records that goes on where it stopped, like the hand of a
//!   clock: of every window of candidates the best are taken, so no walk over everything precedes the first move.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_data::placement::Context;
use polymux_policy::{Action, TierFill, TierTable, decide};
use polymux_records::error::{Error, Result};
use polymux_records::report::{Destination, MoveReason};
use polymux_types::sync::Mutex;
use polymux_types::{Ino, TierId};
use polymux_volume::inode::Inode;
use polymux_volume::sched::MoverPace;

use super::mover::Mover;
use super::victims::{Needed, Search};

/// Files examined in a step for moves that rules and pins demand.
const RULED_PER_STEP: usize = 512;

/// Logical seconds between two walks: rules depend on age, and space may have become free.
const WALK_INTERVAL_SECONDS: u64 = 600;

/// State of the planner between steps.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Tiers that rose above their high mark and are not at their low mark yet.
    pub(super) evicting: BTreeSet<TierId>,
    /// Tiers on which something hot waits for something colder to be found.
    pub(super) wants_victims: BTreeSet<TierId>,
    pub(super) searches: BTreeMap<TierId, Search>,
    /// Heat and idle time of the coldest that was found lately.
    pub(super) coldest: BTreeMap<TierId, (u32, u32)>,
    /// The last inode of the walk for rules, while there is one.
    walk: Option<Ino>,
    walk_due: u64,
    /// Something changed that all files are to be looked at for, where anything is demanded of them.
    pub(super) is_walk_wanted: bool,
}

impl Planner {
    /// Whether it walks over all files for moves that rules and pins demand.
    pub(super) fn is_walking(&self) -> bool {
        self.state.lock().walk.is_some()
    }

    /// Whether a tier is evicted from: from when it rises above its high mark until it is at its low one.
    fn is_evicted_from(&self, fill: &TierFill) -> bool {
        let was = || self.state.lock().evicting.contains(&TierId(fill.tier));
        fill.used > fill.high_mark || fill.used > fill.low_mark && was()
    }

    /// Remembers whether a tier is evicted from.
    fn note_fill(&self, fill: &TierFill) {
        let (is_evicted_from, tier) = (self.is_evicted_from(fill), TierId(fill.tier));
        let mut state = self.state.lock();
        match is_evicted_from {
            true => state.evicting.insert(tier),
            false => state.evicting.remove(&tier),
        };
    }
}

/// Notes in a table that bytes go to a tier.
pub(super) fn note_coming(table: &mut TierTable, tier: u16, bytes: u64) {
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
pub(super) fn after_leaving(table: &TierTable, tier: u16, bytes: u64) -> TierTable {
    let mut table = *table;
    if let Some(fill) = table.offered_mut().iter_mut().find(|fill| fill.tier == tier) {
        fill.used = fill.used.saturating_sub(bytes);
        fill.headroom = fill.headroom.saturating_add(bytes);
    }
    table
}

/// The demand of a rule or pin on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// It lies where it may.
    Nothing,
    /// All of it belongs on another tier.
    Move { from: TierId, to: TierId, bytes: u64 },
    /// It lies where it may not, and no tier where it may takes it.
    NoRoom { bytes: u64 },
}

impl Mover {
    /// The tiers with the bytes on their way counted in, and the data that could leave them.
    pub(super) fn planning_table(&self) -> TierTable {
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

    /// Plans evictions and searches for candidates. Returns whether there may be more.
    pub(super) fn evict_step(&self) -> Result<bool> {
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
    pub(super) fn bytes_needed(&self, fill: &TierFill, wanted: u64) -> Needed {
        if fill.flags & TierFill::DRAINING != 0 {
            return Needed::default();
        }
        let tier = TierId(fill.tier);
        let leaving = self.moves.bytes_leaving_now(tier).saturating_add(self.volume.disowned.bytes_on(tier));
        Needed::on(fill, self.planner.is_evicted_from(fill), wanted, leaving)
    }

    /// All files are to be examined for moves that rules and pins demand.
    pub fn want_walk(&self) {
        self.planner.state.lock().is_walk_wanted = true;
    }

    /// A piece of the look for pins. Returns whether there is more to look at.
    fn pins_step(&self) -> Result<bool> {
        let step = self.placement.pins_step()?;
        if step.has_found {
            self.want_walk();
        }
        Ok(step.has_more)
    }

    /// Whether candidates for eviction are looked for now, because something is needed.
    pub(super) fn seeks_victims(&self, tier: TierId, needed: Needed, now: Duration) -> bool {
        match needed.keeps_returning() {
            true => self.placement.tier_reads.may_seek_unpressed(tier, now),
            false => needed.bytes > 0 && self.placement.tier_reads.may_seek(tier, now),
        }
    }

    /// Logs that planning passes over a file.
    pub(super) fn pass_over(&self, ino: Ino, error: &Error) {
        if error.errno() != polymux_types::Errno::ENOENT {
            log::debug!("volume {}: inode {ino} is passed over: {error}", self.volume.name);
        }
    }

    /// Plans moves that rules and pins demand, a piece of the walk. Returns whether any were planned.
    pub(super) fn walk_step(&self) -> Result<bool> {
        if self.pins_step()? {
            return Ok(true);
        }
        let now = self.placement.logical_clock.now();
        let has_tier_rules = self.placement.steering.read().rules.rules().any(|rule| !rule.tiers.is_empty());
        let has_pins = self.placement.pins.has_some();
        let after = {
            let mut state = self.planner.state.lock();
            let has_demands = has_tier_rules || has_pins;
            let is_due = has_demands && (state.is_walk_wanted || now >= state.walk_due);
            match state.walk {
                Some(after) => after,
                None if is_due => {
                    state.is_walk_wanted = false;
                    state.walk_due = now + WALK_INTERVAL_SECONDS;
                    Ino(0)
                }
                None => return Ok(false),
            }
        };
        let page = self.volume.metadata.inodes_after(after, RULED_PER_STEP)?;
        let table = self.planning_table();
        let mut planned = false;
        for (ino, record) in &page {
            if matches!(&record.body, polymux_records::store::InodeBody::Regular(file) if !file.objects.is_empty()) {
                match self.plan_rules(*ino, &table) {
                    Ok(has_planned) => planned |= has_planned,
                    Err(error) => self.pass_over(*ino, &error),
                }
            }
        }
        let last = page.last().filter(|_| page.len() == RULED_PER_STEP).map(|(ino, _)| *ino);
        self.planner.state.lock().walk = last;
        Ok(planned)
    }

    /// Plans to bring a file to where its rule or pin allows it to be.
    pub(crate) fn plan_rules(&self, ino: Ino, table: &TierTable) -> Result<bool> {
        let Ok(inode) = self.volume.inode(ino) else { return Ok(false) };
        let context = self.placement.context_of(&inode);
        let Demand::Move { to, bytes, .. } = self.wanted_by_rule(&inode, &context, table)? else { return Ok(false) };
        Ok(self.submit_move(ino, None, Destination::To(to), MoveReason::Pin, MoverPace::Polite, bytes).is_some())
    }

    /// The demand of a rule or pin on a file as a whole.
    pub(super) fn wanted_by_rule(&self, inode: &Inode, context: &Context, table: &TierTable) -> Result<Demand> {
        let Some(file) = inode.file() else { return Ok(Demand::Nothing) };
        if context.allowed == u64::MAX {
            return Ok(Demand::Nothing);
        }
        self.data.ensure_size(inode, file)?;
        let wrong = {
            let layout = file.layout.read();
            layout.objects.iter().map(|entry| entry.tier).find(|tier| !context.allows(*tier))
        };
        let Some(from) = wrong else { return Ok(Demand::Nothing) };
        let bytes = file.size().max(1);
        let mut facts = self.range_facts(inode, file, 0, super::facts::Piece { tier: from, bytes }, context, table);
        // The file moves as a whole.
        facts.file_size = facts.range_bytes;
        let decision = decide(context.policy, &facts);
        Ok(match decision.action {
            Action::Move => Demand::Move { from, to: TierId(decision.target), bytes },
            Action::Stay => Demand::NoRoom { bytes },
        })
    }
}

#[cfg(test)]
mod tests {
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
