//! Moves that rules and pins demand.
//!
//! Invariants:
//! * Those that are not possible yet are looked for again, at intervals, by a walk over all files, a bounded number in each step.
//! * Without rules about tiers or pins, the walk is skipped.

use polymux_data::placement::Context;
use polymux_policy::{Action, TierTable, decide};
use polymux_records::error::Result;
use polymux_records::report::{Destination, MoveReason};
use polymux_types::{Ino, TierId};
use polymux_volume::inode::Inode;
use polymux_volume::sched::MoverPace;

use super::facts::Piece;
use crate::Mover;

/// Files examined in a step for moves that rules and pins demand.
const RULED_PER_STEP: usize = 512;

/// Logical seconds between two walks: rules depend on age, and space may have become free.
const WALK_INTERVAL_SECONDS: u64 = 600;

/// The demand of a rule or pin on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// It lies where it may.
    Nothing,
    /// All of it belongs on another tier.
    Move { from: TierId, to: TierId, bytes: u64 },
    /// It lies where it may not, and no tier where it may takes it.
    NoRoom { bytes: u64 },
}

impl Mover {
    /// A piece of the look for pins. Returns whether there is more to look at.
    fn pins_step(&self) -> Result<bool> {
        let step = self.placement.pins_step()?;
        if step.has_found {
            self.want_walk();
        }
        Ok(step.has_more)
    }

    /// Plans moves that rules and pins demand, a piece of the walk. Returns whether any were planned.
    pub(crate) fn walk_step(&self) -> Result<bool> {
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
    pub(crate) fn wanted_by_rule(&self, inode: &Inode, context: &Context, table: &TierTable) -> Result<Demand> {
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
        let mut facts = self.range_facts(inode, file, 0, Piece { tier: from, bytes }, context, table);
        // The file moves as a whole.
        facts.file_size = facts.range_bytes;
        let decision = decide(context.policy, &facts);
        Ok(match decision.action {
            Action::Move => Demand::Move { from, to: TierId(decision.target), bytes },
            Action::Stay => Demand::NoRoom { bytes },
        })
    }
}
