//! From jobs to batches and back: who goes next, who is parked, who is woken.
//!
//! Invariant: `move_step` either carries a batch out, or leaves every job where it is or parked; so a thread that
//! calls it again and again while there is nothing to do costs a look at the queue.

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_data::placement::Request;
use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::parts::Progress;
use polymux_records::report::{Destination, JobState, MoveReason, WaitsFor};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Block, TierId};
use polymux_volume::sched::{GateState, MoverPace};

use crate::Mover;
use crate::execution::batch::{BATCH_FILES, BATCH_NODES, Outcome, STOPS_MAX};
use crate::execution::interrupt::Interrupt;
use crate::execution::part::{Selection, is_unwanted};
use crate::queue::{Job, Scope};

/// Failures of one kind in a row before a job is parked.
const FAILURES_MAX: u32 = 5;

/// Number of times that a job restarts for data appended meanwhile. A drain never gives up.
const RERUNS_MAX: u32 = 8;

/// Bytes in a batch.
const BATCH_BYTES: u64 = BATCH_NODES * RANGE_NODE_SIZE;

/// Milliseconds between two looks for free space that others made.
const ROOM_LOOK_MS: u64 = 5000;

/// How often the end of moves is looked for when the volume stops,
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// and for how long, where a tier does not answer,
const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// and where one holds up a thread behind a program.
const HELD_STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Growth of the free space that counts as an event.
const ROOM_APPEARED_BYTES: u64 = 64 * 1024 * 1024;

impl Mover {
    /// Carries out one batch of moves; see `FileSystem::move_step`.
    pub fn move_step(&self) -> Progress {
        if self.volume.check_writable().is_err() || self.volume.unmounted.load(Ordering::Acquire) {
            return Progress::Idle;
        }
        let gate = self.gate.state(self.minute_of_week());
        let may_begin = |job: &Job| match gate {
            GateState::Open => true,
            GateState::Paused => false,
            GateState::Shut(_) => matches!(job.reason, MoveReason::User | MoveReason::Drain),
        };
        // A program that holds an object stops the whole batch, so such a file is the first and last one.
        let first_is_held = OnceCell::new();
        let fits = |taken: &[Job], job: &Job| {
            let Some(first) = taken.first() else { return true };
            fits(taken, job) && !first_is_held.get_or_init(|| self.may_be_held(first)) && !self.may_be_held(job)
        };
        let (batch, parked) =
            self.moves.take_batch(may_begin, |job| self.target_of(job), |waits_for| self.event_count(waits_for), fits);
        Counters::add(&self.volume.counters.moves_parked, parked);
        let Some(batch) = batch else { return Progress::Idle };
        let target = batch.target;
        let began = self.volume.clock.elapsed();
        let takes_share = batch.jobs.iter().all(|job| job.pace.get() == MoverPace::TakesShare);
        let ended = self.carry_out_batch(target, batch.jobs);
        if takes_share {
            let copied = ended.iter().map(|(job, _)| job.progress.bytes_copied).sum();
            self.placement.tier_reads.note_shared_batch(
                target,
                copied,
                self.volume.clock.elapsed().saturating_sub(began),
            );
        }
        self.moves.free_tier(target);
        for (job, outcome) in ended {
            self.moves.note_progress(&job);
            self.go_on_with(job, outcome, target);
        }
        Progress::Worked
    }

    /// Whether a program may have an object of the file (docs/design/0050).
    fn may_be_held(&self, job: &Job) -> bool {
        if self.data.is_passed_through(job.ino) {
            return true;
        }
        // Without leases no inode is loaded for this.
        if !self.data.may_have_given_objects_out() {
            return false;
        }
        let Ok(inode) = self.volume.inode(job.ino) else { return false };
        inode.file().is_some_and(|file| self.data.may_be_written_unheard(file).unwrap_or(true))
    }

    /// The present target of a job, or the event that it waits for.
    fn target_of(&self, job: &Job) -> std::result::Result<TierId, WaitsFor> {
        let length = job.bytes_left().clamp(1, BATCH_BYTES);
        match job.destination {
            Destination::To(tier) => {
                let handle = self.volume.tiers.by_id(tier).map_err(|_| WaitsFor::Tier(tier))?;
                if handle.present().is_none() || handle.is_failing() || handle.is_draining() {
                    return Err(WaitsFor::Tier(tier));
                }
                if handle.headroom() < length { Err(WaitsFor::Room(Some(tier))) } else { Ok(tier) }
            }
            Destination::AwayFrom(tier) => {
                let request =
                    Request { length, file_end: job.progress.bytes_total.max(1), partial: true, except: Some(tier) };
                // One that is gone has an end of its own.
                let Ok(inode) = self.volume.inode(job.ino) else { return self.any_tier_but(tier) };
                self.tier_to_drain_to(&inode, &request, tier).ok_or(WaitsFor::Room(None))
            }
        }
    }

    fn any_tier_but(&self, tier: TierId) -> std::result::Result<TierId, WaitsFor> {
        self.volume.tiers.all().iter().map(|handle| handle.id).find(|id| *id != tier).ok_or(WaitsFor::Room(None))
    }

    /// A number that changes when the event that a job waits for may have occurred.
    fn event_count(&self, waits_for: &WaitsFor) -> u64 {
        match waits_for {
            WaitsFor::Room(Some(tier)) => self.volume.tiers.by_id(*tier).map_or(0, |tier| tier.room_generation()),
            WaitsFor::Room(None) => self.volume.tiers.room_generation(),
            WaitsFor::Close(ino) => u64::from(!self.data.is_passed_through(*ino)),
            WaitsFor::Tier(tier) => u64::from(self.is_usable(*tier)),
            WaitsFor::Repair(tier, _) => u64::from(self.is_working(*tier)),
        }
    }

    /// Whether a tier is there and does not fail. One that is being emptied works as long as it can be read.
    fn is_working(&self, tier: TierId) -> bool {
        self.volume.tiers.by_id(tier).is_ok_and(|tier| tier.present().is_some() && !tier.is_failing())
    }

    fn is_usable(&self, tier: TierId) -> bool {
        let handle = self.volume.tiers.by_id(tier);
        handle.is_ok_and(|tier| tier.present().is_some() && !tier.is_failing() && !tier.is_draining())
    }

    fn go_on_with(&self, mut job: Job, outcome: Outcome, target: TierId) {
        match outcome {
            Outcome::Advanced => self.advance(job),
            Outcome::Over => self.finish_job(job),
            Outcome::Again => self.moves.put_back(job, self.volume.clock.elapsed()),
            Outcome::Interrupted(interrupt) => {
                job.setbacks.stops += u32::from(!matches!(interrupt, Interrupt::PassedThrough));
                job.setbacks.interruptions += 1;
                self.interrupted(job, interrupt, target);
            }
        }
    }

    fn interrupted(&self, job: Job, interrupt: Interrupt, target: TierId) {
        let many = job.setbacks.stops > STOPS_MAX + FAILURES_MAX;
        let waits_for = match interrupt {
            Interrupt::Stopped => {
                Counters::count(&self.volume.counters.moves_stopped);
                None
            }
            Interrupt::NoRoom(tier) => {
                if let Ok(handle) = self.volume.tiers.by_id(tier) {
                    handle.space_now();
                }
                // A tier that reports free space but accepts no bytes (a quota) is not retried forever.
                many.then_some(WaitsFor::Room(Some(tier)))
            }
            Interrupt::PassedThrough => Some(WaitsFor::Close(job.ino)),
            Interrupt::Offline(tier) => Some(WaitsFor::Tier(tier)),
            Interrupt::SyncFailed(tier) => {
                many.then(|| WaitsFor::Repair(tier, "its copy could not be made durable".to_owned()))
            }
            Interrupt::Failed(error) if error.errno() == polymux_types::Errno::ENOENT => {
                return self.finish_job(job);
            }
            Interrupt::Failed(error) => {
                log::warn!("volume {}: moving inode {}: {error}", self.volume.name, job.ino);
                // The failure may be that of the source; then its repair is the event.
                let at = match error.kind() {
                    ErrorKind::Tier { tier, .. } | ErrorKind::ObjectShort { tier, .. } => *tier,
                    _ => target,
                };
                Some(WaitsFor::Repair(at, error.to_string()))
            }
        };
        let now = self.volume.clock.elapsed();
        match waits_for {
            Some(waits_for) => {
                Counters::count(&self.volume.counters.moves_parked);
                let event = match &waits_for {
                    // It may have been closed since the move looked.
                    WaitsFor::Close(_) => 0,
                    // The tier does not fail, so no repair will be reported: the job is retried with growing delays.
                    WaitsFor::Repair(tier, _) if self.is_working(*tier) => u64::MAX,
                    waits_for => self.event_count(waits_for),
                };
                self.moves.park(job, waits_for, event, now);
            }
            None => self.moves.put_back(job, now),
        }
    }

    /// The next ranges of a job, or its end.
    fn advance(&self, job: Job) {
        match &job.scope {
            Scope::Ranges(ranges) if ranges.is_empty() => self.finish_job(job),
            _ => self.moves.put_back(job, self.volume.clock.elapsed()),
        }
    }

    fn finish_job(&self, mut job: Job) {
        let now = self.volume.clock.elapsed();
        match self.clear_up_after(&job) {
            Ok(false) => self.moves.finish(job, JobState::Done, now),
            // It grew where it was while it was being moved.
            Ok(true) => {
                job.scope = Scope::Whole;
                job.setbacks.reruns += 1;
                job.progress.bytes_done = 0;
                self.moves.put_back(job, now);
            }
            Err(error) => self.moves.finish(job, JobState::Failed(error.to_string()), now),
        }
    }

    /// Objects that own nothing leave the file. Returns whether something is left that the job is about.
    fn clear_up_after(&self, job: &Job) -> Result<bool> {
        let inode = match self.volume.inode(job.ino) {
            Ok(inode) => inode,
            Err(error) if error.errno() == polymux_types::Errno::ENOENT => return Ok(false),
            Err(error) => return Err(error),
        };
        let Some(file) = inode.file() else { return Ok(false) };
        self.compact_objects(&inode, file)?;
        match job.destination {
            Destination::AwayFrom(tier) => Ok(file.layout.read().slot_of(tier).is_some()),
            Destination::To(target) if job.is_whole && job.setbacks.reruns < RERUNS_MAX && !is_unwanted(&inode) => {
                let selection = Selection { from: job.leaves, target };
                let all = std::slice::from_ref(&(Block(0)..Block::END));
                Ok(!selection.runs(&file.layout.read(), all, file.size()).is_empty())
            }
            Destination::To(_) => Ok(false),
        }
    }

    /// Part of each background step: new jobs, and those that an event wakes.
    pub fn plan_step(&self) -> Progress {
        if self.volume.check_writable().is_err() || self.volume.unmounted.load(Ordering::Acquire) {
            return Progress::Idle;
        }
        let woken = self.wake_movers();
        let steps = [
            Mover::drain_step,
            Mover::relief_step,
            Mover::promote_step,
            Mover::evict_step,
            Mover::walk_step,
            Mover::balance_step,
        ];
        // The movers hear of it as of any other work.
        let mut progress = if woken > 0 { Progress::Worked } else { Progress::Idle };
        for step in steps {
            match step(self) {
                Ok(false) => {}
                Ok(true) => progress = Progress::Worked,
                Err(error) => log::error!("volume {}: looking for files to move failed: {error}", self.volume.name),
            }
        }
        progress
    }

    /// Whether a move is under way, or could begin now.
    pub fn has_moves_to_make(&self) -> bool {
        let is_shut = self.why_nothing_moves().is_some();
        let may_begin = |job: &Job| !is_shut || matches!(job.reason, MoveReason::User | MoveReason::Drain);
        let (open, parked, _) = self.moves.open_jobs(may_begin);
        self.moves.running_count() > 0 || open > parked
    }

    /// Whether more space is about to be available: removed bytes are still to be freed, a move holds space on two tiers, or a file system is
    /// still giving back preallocated space.
    pub fn is_freeing_space(&self) -> bool {
        let tiers = self.volume.tiers.all();
        // A move that is stuck in a silent tier frees nothing.
        let moves_go_on = || tiers.iter().all(|tier| !tier.is_silent());
        tiers.iter().any(|tier| self.volume.may_free_on(tier))
            || self.moves.running_count() > 0 && moves_go_on()
            || self.volume.tiers.are_giving_back_room_ahead()
    }

    /// Whether the planner continues unfinished work in its next step: a walk over all files, or a drain.
    pub fn is_planning(&self) -> bool {
        self.why_nothing_moves().is_none() && (self.planner.is_walking() || self.is_emptying_a_tier())
    }

    /// Counts events that are counted nowhere else, and wakes the jobs that wait for one. Returns how many.
    fn wake_movers(&self) -> usize {
        let now_ms = self.volume.elapsed_ms();
        if now_ms >= self.room_look_due_ms.load(Ordering::Relaxed) {
            self.room_look_due_ms.store(now_ms.saturating_add(ROOM_LOOK_MS), Ordering::Relaxed);
            let (_, parked, _) = self.moves.open_jobs(|_| true);
            for tier in self.volume.tiers.all().iter().filter(|_| parked > 0) {
                if tier.headroom() >= ROOM_APPEARED_BYTES {
                    tier.note_room_freed();
                }
            }
        }
        let woken = self.moves.wake(|waits_for| self.event_count(waits_for), self.volume.clock.elapsed());
        Counters::add(&self.volume.counters.moves_woken, woken);
        woken
    }

    /// Ends all moves for good; called before the volume is unmounted. Those under way are given up.
    pub fn stop_movers(&self) {
        let began = self.volume.clock.elapsed();
        self.moves.stop_for_good();
        while self.moves.running_count() > 0 {
            self.volume.clock.sleep(STOP_LOOK_INTERVAL);
            for handle in self.volume.tiers.all().iter() {
                handle.look(self.volume.clock.elapsed(), u64::from(self.volume.options.hang_after_ms));
            }
            let silent = self.volume.tiers.all().iter().any(|tier| tier.is_silent());
            let held_up = self.volume.tiers.all().iter().any(|tier| !tier.held_up_threads().is_empty());
            let waited = self.volume.clock.elapsed().saturating_sub(began);
            // One mover may wait behind another one, or behind a request.
            if silent && waited > STOP_PATIENCE || held_up && waited > HELD_STOP_PATIENCE {
                // A move that hangs changes nothing any more: its commit would find the volume stopped.
                return;
            }
        }
    }
}

/// Whether a job joins those that were taken already.
fn fits(taken: &[Job], job: &Job) -> bool {
    let together: u64 = taken.iter().map(Job::bytes_left).sum();
    let goes_alone = |job: &Job| job.setbacks.stops >= STOPS_MAX;
    taken.len() < BATCH_FILES
        && together + job.bytes_left() <= BATCH_BYTES
        && taken.first().is_none_or(|first| first.pace.get() == job.pace.get())
        && !taken.iter().any(goes_alone)
        && !goes_alone(job)
}
