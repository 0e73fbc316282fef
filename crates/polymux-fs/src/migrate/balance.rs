//! Spread files whose readers waited for one of the tiers are laid out anew, once the tiers have nothing else to do (P13, BW_Move).
//!
//! What is true here:
//! * A file is laid out as its devices write. What devices read in another proportion waits, when it is read, for the one with the
//!   largest part for its speed, while the others idle.
//! * Only what was seen counts: how files were read in a window of a second, and whether that kept a device busy. How fast devices serve
//!   such reads was measured (docs/design/0019); where it was not, nothing moves.
//! * Nothing moves beside programs: the tiers of a file had nothing to do for [`IDLE_MIN`] before.
//! * What moves goes up, and below the low mark (`polymux_policy::balance_reads`).
//! * What waits is in memory, and bounded. Who is forgotten waits until he is read again.
//!
//! ```text
//!  reads ──► heat::ReadUses ──► each second: was a device busy with them? ──► waiting files ──► idle: a job for each target
//! ```

mod layout;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_policy::{ReadBalance, TierTable, balance_reads};
use polymux_types::sync::Mutex;
use polymux_types::{Ino, TierId};

use self::layout::{bundles_of, parts_of};
use super::facts::bytes_mapped_on;
use super::planner::note_coming;
use crate::core::Core;
use crate::counters::Counters;
use crate::error::Result;
use crate::heat::ReadUse;
use crate::inode::{FileState, Inode};
use crate::placement::Context;
use crate::report::{Destination, MoveReason};
use crate::space::TierHandle;

/// Least length of a window.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Part of a window in percent for which reads must have kept a device busy. Not all of it: what was measured is not exact, and the
/// window begins and ends at any time.
const BUSY_PERCENT_MIN: u128 = 70;

/// What would have kept one busy for more of the window came from memory, at least in part.
const BUSY_PERCENT_MAX: u128 = 150;

/// How long the tiers must have had nothing to do.
const IDLE_MIN: Duration = Duration::from_secs(2);

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
    /// Files to be laid out anew, and how they were read.
    waiting: BTreeMap<Ino, ReadUse>,
    /// When a tier was seen to have something to do.
    busy_seen: Duration,
}

impl ReadersWaited {
    /// Files to be laid out anew, and how they were read.
    pub(super) fn waiting(&self) -> BTreeMap<Ino, ReadUse> {
        self.state.lock().waiting.clone()
    }
}

impl Core {
    /// Part of each step of the planner. Returns whether something was planned.
    pub(super) fn balance_step(&self) -> Result<bool> {
        if !self.may_spread.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.end_window_of_readers();
        // Asked in any case: it looks at the tiers.
        let is_idle = self.tiers_had_nothing_to_do();
        if !is_idle || self.why_nothing_moves().is_some() {
            return Ok(false);
        }
        let waiting: Vec<(Ino, ReadUse)> = {
            let state = self.readers_waited.state.lock();
            state.waiting.iter().take(FILES_PER_STEP).map(|(ino, reads)| (*ino, *reads)).collect()
        };
        if waiting.is_empty() {
            return Ok(false);
        }
        let mut table = self.planning_table();
        let mut has_submitted = false;
        for (ino, reads) in &waiting {
            self.readers_waited.state.lock().waiting.remove(ino);
            match self.lay_out_for_readers(*ino, reads, &mut table) {
                Ok(submitted) => has_submitted |= submitted,
                Err(error) => self.pass_over(*ino, &error),
            }
        }
        Ok(has_submitted || waiting.len() == FILES_PER_STEP)
    }

    /// Looks at what was read, where a window is over.
    fn end_window_of_readers(&self) {
        let now = self.clock.elapsed();
        let length = {
            let mut state = self.readers_waited.state.lock();
            let length = now.saturating_sub(state.window_began);
            if length < WINDOW_MIN {
                return;
            }
            state.window_began = now;
            length
        };
        let uses = self.read_uses.take();
        if uses.is_empty() {
            return;
        }
        let busy = self.busy_tiers(&uses, length);
        let waits = |ino: &Ino| {
            let inode = self.inode(*ino).ok()?;
            let file = inode.file()?;
            Some(busy.iter().any(|tier| bytes_mapped_on(file, *tier) > 0))
        };
        for (ino, reads) in uses.into_iter().filter(|(ino, _)| waits(ino) == Some(true)) {
            let mut state = self.readers_waited.state.lock();
            if state.waiting.len() < WAITING_MAX || state.waiting.contains_key(&ino) {
                if state.waiting.insert(ino, reads).is_none() {
                    Counters::count(&self.counters.readers_waited);
                }
            }
        }
    }

    /// Tiers that reads like these kept busy, as far as is known.
    fn busy_tiers(&self, uses: &BTreeMap<Ino, ReadUse>, length: Duration) -> Vec<TierId> {
        let mut times: BTreeMap<u16, u128> = BTreeMap::new();
        for (ino, reads) in uses {
            let Ok(inode) = self.inode(*ino) else { continue };
            let Some(file) = inode.file() else { continue };
            for part in parts_of(self, file, reads) {
                // Each tier has served its part of what was read.
                let served = u128::from(reads.bytes()) * u128::from(part.bytes) / u128::from(file.size().max(1));
                *times.entry(part.tier).or_default() += served * u128::from(part.picoseconds_per_byte);
            }
        }
        let percent = |time: u128| time * 100 / (length.as_nanos().max(1) * 1000);
        let is_of_memory = times.values().any(|time| percent(*time) > BUSY_PERCENT_MAX);
        let is_busy = |time: u128| percent(time) >= BUSY_PERCENT_MIN && !is_of_memory;
        times.into_iter().filter(|(_, time)| is_busy(*time)).map(|(tier, _)| TierId(tier)).collect()
    }

    /// Whether no program used a tier lately, and nothing is on its way to one.
    fn tiers_had_nothing_to_do(&self) -> bool {
        let now = self.clock.elapsed();
        let has_work = |handle: &Arc<TierHandle>| {
            // Asking for the load ends an interval that nobody else ends.
            let load = handle.schedule.load(now);
            load.queue_depth > load.mover_queue_depth
                || handle.schedule.foreground_is_active(now)
                || handle.bytes_behind() > 0
        };
        let is_busy = self.tiers.all().iter().any(has_work);
        let mut state = self.readers_waited.state.lock();
        if is_busy {
            state.busy_seen = now;
        }
        now.saturating_sub(state.busy_seen) >= IDLE_MIN
    }

    /// Plans what of a file moves up for its readers.
    fn lay_out_for_readers(&self, ino: Ino, reads: &ReadUse, table: &mut TierTable) -> Result<bool> {
        let inode = self.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(false) };
        self.ensure_size(&inode, file)?;
        let Some(balance) = self.balance_of(file, &self.context_of(&inode), reads, table) else { return Ok(false) };
        let mut has_submitted = false;
        for (tier, bundle) in bundles_of(file, &balance.shifts) {
            let (bytes, target) = (bundle.bytes, TierId(tier));
            let ranges = bundle.into_ranges();
            if self.submit_move(ino, ranges, Destination::To(target), MoveReason::Rebalance, bytes).is_some() {
                note_coming(table, tier, bytes);
                self.counters.bytes_moved_for_readers.fetch_add(bytes, Ordering::Relaxed);
                self.write_budget.charge(target, bytes, self.logical_clock.now());
                has_submitted = true;
            }
        }
        Ok(has_submitted)
    }

    /// How a file lies for its readers; `None` where that is nobody's business, or not known.
    pub(super) fn balance_of(
        &self,
        file: &FileState,
        context: &Context,
        reads: &ReadUse,
        table: &TierTable,
    ) -> Option<ReadBalance> {
        if !context.policy.balances_reads() || file.is_passed_through() {
            return None;
        }
        balance_reads(&parts_of(self, file, reads), context.allowed, table)
    }

    /// A sentence about a file whose readers waited, where it is to be laid out anew, or where nobody could tell whether it should be.
    pub(super) fn explain_readers(&self, inode: &Inode, file: &FileState) -> Option<String> {
        let waiting = self.readers_waited.state.lock().waiting.get(&inode.ino).copied();
        let Some(reads) = waiting else { return self.explain_unknown_speeds(inode, file) };
        let balance = self.balance_of(file, &self.context_of(inode), &reads, &self.planning_table())?;
        let bytes: u64 = bundles_of(file, &balance.shifts).values().map(|bundle| bundle.bytes).sum();
        let slowest = self.name_of_tier(TierId(balance.slowest));
        let percent = balance.time_then * 100 / balance.time_now.max(1);
        let size = polymux_types::ByteSize(bytes);
        (bytes > 0).then(|| {
            format!(
                "Its readers waited for tier `{slowest}`: {size} go up when the tiers have nothing else to do, and reading it then takes \
                 {percent} % of the time."
            )
        })
    }

    fn explain_unknown_speeds(&self, inode: &Inode, file: &FileState) -> Option<String> {
        let streams = ReadUse { stream_bytes: 1, ..ReadUse::default() };
        let parts = parts_of(self, file, &streams);
        let parts = parts.iter().filter(|part| part.bytes > 0);
        let unknown = parts.clone().find(|part| part.picoseconds_per_byte == 0)?;
        let is_spread = parts.count() > 1 && self.context_of(inode).policy.balances_reads();
        let (tier, volume) = (self.name_of_tier(TierId(unknown.tier)), &self.name);
        is_spread.then(|| {
            format!(
                "It stays laid out as it was written: how fast tier `{tier}` is read is not known (`polymux tier measure {volume}`)."
            )
        })
    }
}
