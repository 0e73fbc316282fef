//! Spread files are laid out anew for those who read them, once their tiers have nothing else to do (P13, BW_Move; docs/design/0021).
//!
//! Invariants:
//! * A file is laid out as its devices write. Where they read in another proportion, its readers wait for the one with the largest part
//!   for its speed, while the others idle.
//! * A written file is laid out for a stream of all of it, and a file whose readers waited is laid out for them
//!   ([`ReaderLayout`]).
//! * The speed of devices for such reads is measured (docs/design/0019); without a measurement nothing moves.
//! * Nothing is planned beside programs: the tiers of a file must have been idle for [`window::REST_MIN`]. Planned jobs proceed as
//!   all moves do.
//! * A migrated range goes up in the order of the tiers, off the tier that it was planned for, and below the low mark of the target
//!   (`polymux_policy::balance_reads`). A file has one plan at a time.
//! * A file that was written is not touched while it is open.
//! * The queue is in memory, and bounded. A file that is forgotten, or finds no place or budget, stays as it lies until its readers wait again.
//!
//! ```text
//!  reads ──► heat::ReadUses ──► `window`: was a device busy with them? ──┐
//!  sizes put on record ──► heat::GrownFiles ─────────────────────────────┴──► `mover::layout_queue` ──► at rest: `layout`: jobs by source and target
//! ```

mod layout;
mod window;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use polymux_policy::{ReadBalance, Rounding, TierTable, balance_reads};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{ByteSize, Ino, TierId};

use self::layout::{NodeMoves, Shares, moves_for, parts_of, shares_of};
use polymux_data::placement::Context;
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::parts::ReaderLayout;
use polymux_records::report::MoveReason;
use polymux_volume::heat::ReadUse;
use polymux_volume::inode::FileState;
use polymux_volume::sched::MoverPace;

use super::tables::note_coming;
use crate::Mover;
use crate::mover::layout_queue::{Cause, QueuedFile};

/// The layout of a file for its readers, and the ranges of it that move.
pub(crate) struct FilePlan {
    balance: ReadBalance,
    pub(crate) moves: Vec<NodeMoves>,
    /// They are of one node in so many; the others follow.
    one_in: u64,
}

impl FilePlan {
    /// Bytes that move, as far as the sample tells.
    fn bytes(&self) -> u64 {
        self.moves.iter().map(|moves| self.bytes_of(moves)).sum()
    }

    /// Those that move from one tier to another.
    pub(crate) fn bytes_of(&self, moves: &NodeMoves) -> u64 {
        moves.bundle.bytes.saturating_mul(self.one_in)
    }
}

/// The outcome for a file in the queue.
enum Turn {
    /// Its tiers have something to do, it is being moved, or it is likely to grow on.
    Later,
    /// The moves of this sample of it are planned, and there is another one.
    Next,
    /// Its moves are planned, or it needs none.
    Over,
}

impl Mover {
    /// Part of each step of the planner. Returns whether something was planned.
    pub(crate) fn balance_step(&self) -> Result<bool> {
        if !self.placement.may_spread.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.end_window_of_readers();
        self.queue_grown_files();
        if self.layout_queue.state.lock().has_nobody() {
            return Ok(false);
        }
        let at_rest = self.tiers_at_rest();
        if at_rest.is_empty() || self.why_nothing_moves().is_some() {
            return Ok(false);
        }
        let turn = self.layout_queue.state.lock().take_turn();
        let mut table = self.planning_table();
        let mut has_planned = false;
        for (ino, mut file) in turn {
            match self.lay_out_for_readers(ino, &file, &at_rest, &mut table) {
                Ok(Turn::Later) => {}
                Ok(Turn::Next) => file.samples_done += 1,
                Ok(Turn::Over) => {
                    has_planned = true;
                    continue;
                }
                Err(error) => {
                    self.pass_over(ino, &error);
                    continue;
                }
            }
            self.layout_queue.state.lock().put_back(ino, file);
        }
        Ok(has_planned)
    }

    /// Queues files that grew over several tiers: they are likely to be read from their beginning to their end.
    fn queue_grown_files(&self) {
        for ino in self.placement.grown_files.take() {
            let Ok(inode) = self.volume.inode(ino) else { continue };
            let Some(file) = inode.file() else { continue };
            let tiers: Vec<TierId> = file.layout.read().objects.iter().map(|entry| entry.tier).collect();
            if tiers.len() > 1 && tiers.iter().all(|tier| self.is_measured(*tier)) {
                let reads = ReadUse { stream_bytes: file.size(), ..ReadUse::default() };
                self.layout_queue.state.lock().add(ino, QueuedFile::new(reads, Cause::Written));
            }
        }
    }

    /// Plans which ranges of a file move up for its readers, if its tiers are otherwise idle.
    fn lay_out_for_readers(
        &self,
        ino: Ino,
        queued: &QueuedFile,
        at_rest: &[TierId],
        table: &mut TierTable,
    ) -> Result<Turn> {
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(Turn::Over) };
        if inode.common.read().links == 0 {
            return Ok(Turn::Over);
        }
        // Who has it open may write on, and a file that is being moved grows on one tier.
        let may_grow = queued.cause == Cause::Written && inode.lifecycle.lock().handles > 0;
        let is_at_rest = file.layout.read().objects.iter().all(|entry| at_rest.contains(&entry.tier));
        if may_grow || !is_at_rest || !self.moves.jobs_of(ino, self.volume.clock.elapsed()).is_empty() {
            return Ok(Turn::Later);
        }
        self.data.ensure_size(&inode, file)?;
        let Some(plan) = self.plan_for_readers(ino, file, &self.placement.context_of(&inode), queued, table) else {
            return Ok(Turn::Over);
        };
        if plan.moves.iter().any(|moves| !at_rest.contains(&moves.to)) {
            return Ok(Turn::Later);
        }
        let (one_in, mut has_moves) = (plan.one_in, false);
        for NodeMoves { from, to, bundle } in plan.moves {
            let bytes = bundle.bytes;
            let job = self.submit_move_off(ino, bundle, from, to, MoveReason::Rebalance, MoverPace::Polite);
            if job.is_some() {
                note_coming(table, to.0, bytes);
                self.volume.counters.bytes_moved_for_readers.fetch_add(bytes, Ordering::Relaxed);
                self.placement.write_budget.charge(to, bytes, self.placement.logical_clock.now());
                has_moves = true;
            }
        }
        if has_moves {
            Counters::count(&self.volume.counters.files_laid_out_for_readers);
        }
        Ok(if queued.samples_done + 1 < one_in { Turn::Next } else { Turn::Over })
    }

    /// How a file lies for its readers, as far as a sample of it tells; `None` where its layout is not to be changed, or not known.
    pub(crate) fn plan_for_readers(
        &self,
        ino: Ino,
        file: &FileState,
        context: &Context,
        queued: &QueuedFile,
        table: &TierTable,
    ) -> Option<FilePlan> {
        if !context.policy.balances_reads() || file.is_passed_through() {
            return None;
        }
        let mut table = *table;
        table.prefer(&context.preferred);
        let shares: Shares = shares_of(file, queued.samples_done);
        let one_in = shares.one_in;
        let rounding = rounding_of(ino);
        let parts = parts_of(self, &shares, &queued.reads);
        let unit = RANGE_NODE_SIZE.saturating_mul(one_in);
        let balance = balance_reads(&parts, context.allowed, &table, (unit, rounding))?;
        let moves = moves_for(shares, &balance.shifts);
        Some(FilePlan { balance, moves, one_in })
    }

    /// Files to be laid out anew, and how they are read.
    pub(crate) fn files_to_be_laid_out(&self) -> BTreeMap<Ino, QueuedFile> {
        self.layout_queue.state.lock().files()
    }

    fn is_measured(&self, tier: TierId) -> bool {
        self.volume.tiers.by_id(tier).is_ok_and(|handle| handle.look_at_profile(|profile| profile.measured.is_some()))
    }

    /// A sentence about a spread file, where it is to be laid out anew, or where it is unknown whether it should be.
    pub(crate) fn explain_readers(&self, ino: Ino, file: &FileState, context: &Context) -> Option<String> {
        if !context.policy.balances_reads() || self.volume.options.reader_layout == ReaderLayout::Never {
            return None;
        }
        let queued = self.layout_queue.state.lock().file(ino);
        let Some(queued) = queued else { return self.explain_unknown_speeds(file) };
        let plan = self.plan_for_readers(ino, file, context, &queued, &self.planning_table())?;
        let slowest = self.name_of_tier(TierId(plan.balance.slowest));
        let percent = plan.balance.time_then * 100 / plan.balance.time_now.max(1);
        let size = ByteSize(plan.bytes());
        let why = match queued.cause {
            Cause::ReadersWaited => format!("Its readers waited for a tier, most for `{slowest}`"),
            Cause::Written => format!("Who reads all of it would wait for a tier, most for `{slowest}`"),
        };
        (!plan.moves.is_empty()).then(|| {
            format!(
                "{why}: {size} go up when its tiers have nothing else to do. To read all of it takes {percent} % of the time then."
            )
        })
    }

    fn explain_unknown_speeds(&self, file: &FileState) -> Option<String> {
        let tiers: Vec<TierId> = file.layout.read().objects.iter().map(|entry| entry.tier).collect();
        let unknown = tiers.iter().copied().find(|tier| !self.is_measured(*tier)).filter(|_| tiers.len() > 1)?;
        let (tier, volume) = (self.name_of_tier(unknown), &self.volume.name);
        Some(format!(
            "It stays laid out as it was written: how fast tier `{tier}` is read is not known (`polymux tier measure {volume}`)."
        ))
    }
}

/// Half of the files, by chance: those of a few dozen nodes are often read together.
fn rounding_of(ino: Ino) -> Rounding {
    let mut hasher = DefaultHasher::new();
    ino.hash(&mut hasher);
    if hasher.finish().is_multiple_of(2) { Rounding::Soonest } else { Rounding::Fullest }
}
