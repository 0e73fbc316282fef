//! Spread files whose readers waited for one of the tiers are laid out anew, once these have nothing else to do (P13, BW_Move;
//! docs/design/0021).
//!
//! What is true here:
//! * A file is laid out as its devices write. What devices read in another proportion waits, when it is read, for the one with the
//!   largest part for its speed, while the others idle.
//! * How fast devices serve such reads was measured (docs/design/0019); where it was not, nothing moves.
//! * Nothing is planned beside programs: the tiers of a file had nothing to do for [`window::REST_MIN`] before. What was planned goes on as
//!   all moves do.
//! * What moves goes up in the order of the tiers, off the tier that it was planned for, and below the low mark of the target
//!   (`polymux_policy::balance_reads`). A file has one plan at a time.
//! * What waits is in memory, and bounded. Who is forgotten waits until he is read again.
//!
//! ```text
//!  reads ──► heat::ReadUses ──► `window`: was a device busy with them? ──► waiting files ──► at rest: `layout`: jobs by source and target
//! ```

mod layout;
mod window;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_policy::{ReadBalance, TierTable, balance_reads};
use polymux_types::sync::Mutex;
use polymux_types::{ByteSize, Ino, TierId};

use self::layout::{NodeMoves, Shares, moves_for, parts_of, shares_of};
use super::planner::note_coming;
use crate::core::Core;
use crate::counters::Counters;
use crate::error::Result;
use crate::heat::ReadUse;
use crate::inode::FileState;
use crate::placement::Context;
use crate::report::MoveReason;

/// Files that wait.
const WAITING_MAX: usize = 1024;

/// Files looked at in a step.
const FILES_PER_STEP: usize = 16;

/// What is remembered of readers.
#[derive(Debug, Default)]
pub(crate) struct ReadersWaited {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    window_began: Duration,
    /// Bytes that each tier had read for anybody when it began.
    bytes_read: BTreeMap<TierId, u64>,
    /// When each tier was seen to have something to do last, while a file waits.
    busy_seen: BTreeMap<TierId, Duration>,
    /// Files to be laid out anew, and how they were read.
    waiting: BTreeMap<Ino, ReadUse>,
    /// Where the look through them goes on.
    next: Ino,
    /// Times that something was planned: of a large file another sample is looked at each time.
    plans: u64,
}

impl State {
    /// Whether no file waits. Then nobody need look at the tiers, and what was seen of them is of the past.
    fn has_nobody(&mut self) -> bool {
        let has_nobody = self.waiting.is_empty();
        if has_nobody {
            self.busy_seen.clear();
        }
        has_nobody
    }

    /// The next files that wait, from where the look ended.
    fn take_turn(&mut self) -> Vec<(Ino, ReadUse)> {
        let (before, from) = (self.waiting.range(..self.next), self.waiting.range(self.next..));
        let turn: Vec<_> = from.chain(before).take(FILES_PER_STEP).map(|(ino, reads)| (*ino, *reads)).collect();
        self.next = turn.last().map_or(Ino(0), |(ino, _)| Ino(ino.0.saturating_add(1)));
        turn
    }
}

/// How a file lies for its readers, and what of it moves.
pub(super) struct FilePlan {
    balance: ReadBalance,
    pub(super) moves: Vec<NodeMoves>,
}

/// What becomes of a file that waits.
enum Turn {
    /// Its tiers have something to do, or it is being moved.
    Later,
    /// Its moves are planned, or it needs none.
    Over,
}

impl Core {
    /// Part of each step of the planner. Returns whether something was planned.
    pub(super) fn balance_step(&self) -> Result<bool> {
        if !self.may_spread.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.end_window_of_readers();
        if self.readers_waited.state.lock().has_nobody() {
            return Ok(false);
        }
        let at_rest = self.tiers_at_rest();
        if at_rest.is_empty() || self.why_nothing_moves().is_some() {
            return Ok(false);
        }
        let turn = self.readers_waited.state.lock().take_turn();
        let mut table = self.planning_table();
        let mut has_planned = false;
        for (ino, reads) in &turn {
            match self.lay_out_for_readers(*ino, reads, &at_rest, &mut table) {
                Ok(Turn::Later) => continue,
                Ok(Turn::Over) => has_planned = true,
                Err(error) => self.pass_over(*ino, &error),
            }
            self.readers_waited.state.lock().waiting.remove(ino);
        }
        Ok(has_planned)
    }

    /// Plans what of a file moves up for its readers, where its tiers have nothing else to do.
    fn lay_out_for_readers(
        &self,
        ino: Ino,
        reads: &ReadUse,
        at_rest: &[TierId],
        table: &mut TierTable,
    ) -> Result<Turn> {
        let inode = self.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(Turn::Over) };
        if inode.common.read().links == 0 {
            return Ok(Turn::Over);
        }
        let is_at_rest = file.layout.read().objects.iter().all(|entry| at_rest.contains(&entry.tier));
        if !is_at_rest || !self.moves.jobs_of(ino, self.clock.elapsed()).is_empty() {
            return Ok(Turn::Later);
        }
        self.ensure_size(&inode, file)?;
        let Some(plan) = self.plan_for_readers(file, &self.context_of(&inode), reads, table) else {
            return Ok(Turn::Over);
        };
        if plan.moves.iter().any(|moves| !at_rest.contains(&moves.to)) {
            return Ok(Turn::Later);
        }
        if !plan.moves.is_empty() {
            Counters::count(&self.counters.files_laid_out_for_readers);
            self.readers_waited.state.lock().plans += 1;
        }
        for NodeMoves { from, to, bundle } in plan.moves {
            let bytes = bundle.bytes;
            let job = self.submit_move_off(ino, bundle.into_ranges(), (from, to), MoveReason::Rebalance, bytes);
            if job.is_some() {
                note_coming(table, to.0, bytes);
                self.counters.bytes_moved_for_readers.fetch_add(bytes, Ordering::Relaxed);
                self.write_budget.charge(to, bytes, self.logical_clock.now());
            }
        }
        Ok(Turn::Over)
    }

    /// How a file lies for its readers; `None` where that is nobody's business, or not known.
    pub(super) fn plan_for_readers(
        &self,
        file: &FileState,
        context: &Context,
        reads: &ReadUse,
        table: &TierTable,
    ) -> Option<FilePlan> {
        if !context.policy.balances_reads() || file.is_passed_through() {
            return None;
        }
        let mut table = *table;
        table.prefer(&context.preferred);
        let shares: Shares = shares_of(file, self.readers_waited.state.lock().plans);
        let balance = balance_reads(&parts_of(self, &shares, reads), context.allowed, &table)?;
        let moves = moves_for(shares, &balance.shifts);
        Some(FilePlan { balance, moves })
    }

    /// Files to be laid out anew, and how they were read.
    pub(super) fn files_of_waiting_readers(&self) -> BTreeMap<Ino, ReadUse> {
        self.readers_waited.state.lock().waiting.clone()
    }

    /// A sentence about a file whose readers waited, where it is to be laid out anew, or where nobody could tell whether it should be.
    pub(super) fn explain_readers(&self, ino: Ino, file: &FileState, context: &Context) -> Option<String> {
        if !context.policy.balances_reads() {
            return None;
        }
        let waiting = self.readers_waited.state.lock().waiting.get(&ino).copied();
        let Some(reads) = waiting else { return self.explain_unknown_speeds(file) };
        let plan = self.plan_for_readers(file, context, &reads, &self.planning_table())?;
        let bytes: u64 = plan.moves.iter().map(|moves| moves.bundle.bytes).sum();
        let slowest = self.name_of_tier(TierId(plan.balance.slowest));
        let percent = plan.balance.time_then * 100 / plan.balance.time_now.max(1);
        let size = ByteSize(bytes);
        (bytes > 0).then(|| {
            format!(
                "Its readers waited for a tier, most for `{slowest}`: {size} go up when its tiers have nothing else to do. To read all of \
                 it takes {percent} % of the time then."
            )
        })
    }

    fn explain_unknown_speeds(&self, file: &FileState) -> Option<String> {
        let tiers: Vec<TierId> = file.layout.read().objects.iter().map(|entry| entry.tier).collect();
        let is_unknown = |tier: &TierId| {
            self.tiers.by_id(*tier).is_ok_and(|handle| handle.look_at_profile(|profile| profile.measured.is_none()))
        };
        let unknown = tiers.iter().copied().find(is_unknown).filter(|_| tiers.len() > 1)?;
        let (tier, volume) = (self.name_of_tier(unknown), &self.name);
        Some(format!(
            "It stays laid out as it was written: how fast tier `{tier}` is read is not known (`polymux tier measure {volume}`)."
        ))
    }
}
