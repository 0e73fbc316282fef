//! Jobs: by urgency, at work, parked, and the last ones that ended.
//!
//! Invariants:
//! * A job is in exactly one place: `ready`, with a mover, or `parked`.
//! * A file is with one mover at a time, and a tier is the destination of one batch at a time, of those whose movers are not stuck.
//! * Nothing is asked of a tier or an inode while the queue is locked.
//! * A parked job comes back when the event that it waits for was counted after it was parked, never by itself.

mod job;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use polymux_records::report::{Benefit, Destination, JobId, JobReport, JobState, MoveReason, MovesReport, WaitsFor};
use polymux_types::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use polymux_types::{Ino, TierId, thread_token};
use polymux_volume::sched::MoverPace;

pub(crate) use self::job::{ArrivedBytes, Job, Order, PaceOfJob, Scope};

/// Ended jobs that are remembered.
const FINISHED_MAX: usize = 256;

/// Failures in a row of one job after which it rests a little longer each time, whatever events come.
const FAILURES_IN_A_ROW: u32 = 8;

/// How much longer.
const REST_UNIT: Duration = Duration::from_secs(2);

/// Units in the longest rest.
const RESTS_MAX: u32 = 300;

/// Jobs that a mover looks at when it takes a batch,
const LOOKED_AT_MAX: usize = 16_384;
/// and those of them of which it asks where they go now.
const ASKED_MAX: usize = 512;

/// How often a job whose target changes while it is asked for is asked again.
const SETTLE_ATTEMPTS: u32 = 4;

/// Jobs of each kind that a report lists.
const LISTED_MAX: usize = 100;

#[derive(Debug)]
struct ParkedJob {
    job: Job,
    waits_for: WaitsFor,
    /// Count of the event when the job was parked.
    event: u64,
    /// Earliest time of a retry: if each attempt fails, giving up its copy frees space and so triggers the event.
    rests_until: Duration,
}

/// Place of a job that waits for its turn.
type Key = (MoveReason, JobId);

#[derive(Debug, Default)]
struct State {
    /// Most urgent first, then in the order of submission.
    ready: BTreeMap<Key, Job>,
    running: BTreeMap<JobId, Job>,
    parked: BTreeMap<JobId, ParkedJob>,
    finished: VecDeque<JobReport>,
    busy_files: HashSet<Ino>,
    /// Destinations of batches, with the threads of their movers.
    busy_tiers: BTreeMap<TierId, usize>,
    /// Moves that are wanted already: none is queued twice.
    wanted: BTreeSet<Wanted>,
}

/// All jobs of a volume.
#[derive(Debug, Default)]
pub struct MoveQueue {
    state: Mutex<State>,
    next: AtomicU64,
    /// Movers at work must come to an end.
    must_stop: AtomicBool,
}

/// Jobs that a mover took together, all to one tier.
pub(crate) struct Batch {
    pub(crate) target: TierId,
    pub(crate) jobs: Vec<Job>,
}

/// Key of jobs that must not be queued twice: file, source tier, target or tier to leave, which of the two it is, reason.
type Wanted = (Ino, Option<TierId>, TierId, bool, MoveReason);

fn wanted_key(job: &Job) -> Wanted {
    match job.destination {
        Destination::To(tier) => (job.ino, job.leaves, tier, true, job.reason),
        Destination::AwayFrom(tier) => (job.ino, job.leaves, tier, false, job.reason),
    }
}

/// Bytes that some jobs still take off a tier.
fn bytes_off<'a>(tier: TierId, jobs: impl Iterator<Item = &'a Job>) -> u64 {
    let leaving = |job: &&Job| job.destination == Destination::AwayFrom(tier) || job.leaves == Some(tier);
    jobs.filter(leaving).map(Job::bytes_left).sum()
}

/// The tier that a job goes to now, or the event that it waits for, with its count from before the job was seen to wait: so an event
/// in between is not missed. `None`: it changes too often to be told.
fn settled_target(
    job: &Job,
    target: impl Fn(&Job) -> Result<TierId, WaitsFor>,
    event: impl Fn(&WaitsFor) -> u64,
) -> Result<TierId, Option<(WaitsFor, u64)>> {
    let mut waits_for = match target(job) {
        Ok(tier) => return Ok(tier),
        Err(waits_for) => waits_for,
    };
    for _ in 0..SETTLE_ATTEMPTS {
        let count = event(&waits_for);
        match target(job) {
            Ok(tier) => return Ok(tier),
            Err(same) if same == waits_for => return Err(Some((waits_for, count))),
            Err(other) => waits_for = other,
        }
    }
    Err(None)
}

impl MoveQueue {
    /// Takes a job in; `None` where the same is wanted already.
    pub(crate) fn submit(&self, order: Order, now: Duration) -> Option<JobId> {
        let reason = order.reason;
        let mut state = self.state.lock();
        let id = JobId(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        let job = Job::new(id, order, now);
        // User requests are always accepted: ranges may differ, and each request ends separately.
        if reason != MoveReason::User && !state.wanted.insert(wanted_key(&job)) {
            return None;
        }
        state.ready.insert((reason, id), job);
        Some(id)
    }

    /// Whether a promotion of a file to a tier is open.
    pub(crate) fn is_promoting(&self, ino: Ino, tier: TierId) -> bool {
        self.state.lock().wanted.contains(&(ino, None, tier, true, MoveReason::Promote))
    }

    /// Open promotions of these files to a tier take their share until the end of their present or next batch, and so do other promotions
    /// that are on their way there before them.
    pub(crate) fn hurry_to(&self, tier: TierId, files: &BTreeMap<Ino, Benefit>) {
        let state = self.state.lock();
        let comes = |job: &&Job| job.destination == Destination::To(tier) && job.reason == MoveReason::Promote;
        state.running.values().filter(comes).for_each(|job| job.pace.hurry());
        let is_meant = |job: &&Job| comes(job) && files.contains_key(&job.ino);
        state.ready.values().filter(is_meant).for_each(|job| job.pace.hurry());
    }

    /// Moves by policy to a tier that are under way take their share: others wait for the end of their batch.
    pub(crate) fn hurry_running_to(&self, tier: TierId) {
        let is_by_policy = |job: &Job| matches!(job.reason, MoveReason::Promote | MoveReason::Demote);
        let comes = |job: &&Job| job.destination == Destination::To(tier) && is_by_policy(job);
        self.state.lock().running.values().filter(comes).for_each(|job| job.pace.hurry());
    }

    /// Evictions off a tier take their share: all that are running, because a batch frees its space as a whole, and as many others as it takes
    /// until those that do have `bytes` left to move. Returns how many of these they have.
    pub(crate) fn hurry_off(&self, tier: TierId, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let state = self.state.lock();
        let mut left = bytes;
        let is_meant = |job: &&Job| job.leaves == Some(tier) && job.reason == MoveReason::Demote;
        for job in state.running.values().filter(is_meant) {
            job.pace.hurry();
            left = left.saturating_sub(job.bytes_left());
        }
        for job in state.ready.values().filter(is_meant) {
            if left == 0 {
                break;
            }
            job.pace.hurry();
            left = left.saturating_sub(job.bytes_left());
        }
        bytes - left
    }

    /// Moves with `TakesShare` that have not begun within this time after their submission become polite: their purpose may have
    /// ended.
    pub(crate) fn calm_older_than(&self, age: Duration, now: Duration) {
        let mut state = self.state.lock();
        let State { ready, parked, .. } = &mut *state;
        let waiting = ready.values_mut().chain(parked.values_mut().map(|parked| &mut parked.job));
        let is_stale = |job: &&mut Job| {
            let has_begun = job.progress.bytes_done > 0;
            job.own_pace == MoverPace::TakesShare && !has_begun && now.saturating_sub(job.submitted) > age
        };
        for job in waiting.filter(is_stale) {
            job.own_pace = MoverPace::Polite;
            job.pace = PaceOfJob::new(job.own_pace);
        }
    }

    /// Takes the most urgent job that can go on, and others to the same tier, while `fits` says so. `target` names the
    /// tier of a job, or the event that it has to wait for; it asks tiers and loads inodes, so the queue is not locked meanwhile.
    /// Returns the batch, and the number of jobs that were parked.
    pub(crate) fn take_batch(
        &self,
        may_begin: impl Fn(&Job) -> bool,
        target: impl Fn(&Job) -> Result<TierId, WaitsFor>,
        event: impl Fn(&WaitsFor) -> u64,
        fits: impl Fn(&[Job], &Job) -> bool,
    ) -> (Option<Batch>, usize) {
        let mut batch: Option<Batch> = None;
        let mut parked = 0;
        let mut asked = 0;
        for key in self.keys_by_urgency() {
            let Some(job) = self.candidate(key, batch.as_ref(), &may_begin) else { continue };
            asked += 1;
            if asked > ASKED_MAX {
                break;
            }
            if batch.as_ref().is_some_and(|batch| !fits(&batch.jobs, &job)) {
                continue;
            }
            let tier = match settled_target(&job, &target, &event) {
                Ok(tier) => tier,
                Err(Some((waits_for, count))) => {
                    parked += usize::from(self.park_ready(key, waits_for, count));
                    continue;
                }
                Err(None) => continue,
            };
            if batch.as_ref().is_some_and(|batch| batch.target != tier) {
                continue;
            }
            let Some(job) = self.take_ready(key, tier, batch.as_ref()) else { continue };
            // Asked again now that the tier counts as busy: it may have been removed meanwhile.
            if target(&job) != Ok(tier) {
                self.put_back(job, Duration::ZERO);
                if batch.is_none() {
                    self.free_tier(tier);
                }
                continue;
            }
            batch.get_or_insert_with(|| Batch { target: tier, jobs: Vec::new() }).jobs.push(job);
        }
        (batch, parked)
    }

    /// Jobs that are looked at for a batch, most urgent first, of each reason those that take their share before the others.
    fn keys_by_urgency(&self) -> Vec<Key> {
        let state = self.state.lock();
        if self.must_stop.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut keys: Vec<Key> = state.ready.keys().take(LOOKED_AT_MAX).copied().collect();
        keys.sort_by_cached_key(|key| (key.0, state.ready[key].pace.get() == MoverPace::Polite));
        keys
    }

    /// A job that may join a batch, or begin one, as far as this is known without asking anything: so many jobs to a busy tier hide
    /// no others.
    fn candidate(&self, key: Key, batch: Option<&Batch>, may_begin: impl Fn(&Job) -> bool) -> Option<Job> {
        let state = self.state.lock();
        let job = state.ready.get(&key)?;
        let goes_elsewhere = match (job.destination, batch) {
            (Destination::To(tier), Some(batch)) => batch.target != tier,
            (Destination::To(tier), None) => state.busy_tiers.contains_key(&tier),
            (Destination::AwayFrom(_), _) => false,
        };
        (!goes_elsewhere && !state.busy_files.contains(&job.ino) && may_begin(job)).then(|| job.clone())
    }

    /// Gives a job to a mover, and with the first of a batch the tier; `None` where another mover was faster, the job was taken back, or
    /// movers must come to an end.
    fn take_ready(&self, key: Key, tier: TierId, batch: Option<&Batch>) -> Option<Job> {
        let mut state = self.state.lock();
        let job = state.ready.get(&key)?;
        let is_taken = batch.is_none() && state.busy_tiers.contains_key(&tier) || state.busy_files.contains(&job.ino);
        if is_taken || self.must_stop.load(Ordering::Acquire) {
            return None;
        }
        let job = state.ready.remove(&key).expect("it was there");
        state.busy_files.insert(job.ino);
        if batch.is_none() {
            state.busy_tiers.insert(tier, thread_token());
        }
        state.running.insert(job.id, job.clone());
        Some(job)
    }

    /// Parks a job until an event is counted beyond `count`. Returns whether it still waited for its turn.
    fn park_ready(&self, key: Key, waits_for: WaitsFor, count: u64) -> bool {
        let mut state = self.state.lock();
        let Some(job) = state.ready.remove(&key) else { return false };
        let rests_until = Duration::ZERO;
        state.parked.insert(job.id, ParkedJob { job, waits_for, event: count, rests_until });
        true
    }

    /// Records the progress of a mover, for reports.
    pub(crate) fn note_progress(&self, job: &Job) {
        if let Some(running) = self.state.lock().running.get_mut(&job.id) {
            running.progress.clone_from(&job.progress);
            running.progress.arrived.end();
        }
    }

    /// The batch of the calling thread to a tier ended.
    pub(crate) fn free_tier(&self, tier: TierId) {
        let mut state = self.state.lock();
        if state.busy_tiers.get(&tier) == Some(&thread_token()) {
            state.busy_tiers.remove(&tier);
        }
    }

    /// Lets other movers begin batches to the tiers of those that are stuck.
    pub fn free_tiers_of(&self, stuck: &[usize]) {
        self.state.lock().busy_tiers.retain(|_, mover| !stuck.contains(mover));
    }

    /// Whether a batch to a tier is under way.
    pub fn is_busy(&self, tier: TierId) -> bool {
        self.state.lock().busy_tiers.contains_key(&tier)
    }

    fn leave_mover(state: &mut State, mut job: Job) -> Job {
        let running = state.running.remove(&job.id).expect("the mover had it");
        job.is_cancelled |= running.is_cancelled;
        // It was hurried for the batch that ended.
        job.pace = PaceOfJob::new(job.own_pace);
        state.busy_files.remove(&job.ino);
        job
    }

    /// A mover gives a job back that has more to do.
    pub(crate) fn put_back(&self, job: Job, now: Duration) {
        let mut state = self.state.lock();
        let job = Self::leave_mover(&mut state, job);
        if job.is_cancelled {
            Self::end(&mut state, &job, JobState::Cancelled, now);
        } else {
            state.ready.insert((job.reason, job.id), job);
        }
    }

    /// A mover gives a job back that cannot go on before an event.
    pub(crate) fn park(&self, job: Job, waits_for: WaitsFor, event: u64, now: Duration) {
        let mut state = self.state.lock();
        let job = Self::leave_mover(&mut state, job);
        if job.is_cancelled {
            Self::end(&mut state, &job, JobState::Cancelled, now);
        } else {
            let rests_until = now + REST_UNIT * job.setbacks.stops.saturating_sub(FAILURES_IN_A_ROW).min(RESTS_MAX);
            state.parked.insert(job.id, ParkedJob { job, waits_for, event, rests_until });
        }
    }

    /// A job came to its end.
    pub(crate) fn finish(&self, job: Job, outcome: JobState, now: Duration) {
        let mut state = self.state.lock();
        let job = Self::leave_mover(&mut state, job);
        Self::end(&mut state, &job, outcome, now);
    }

    fn end(state: &mut State, job: &Job, outcome: JobState, now: Duration) {
        assert!(outcome.is_final(), "a job ends in a final state");
        state.wanted.remove(&wanted_key(job));
        state.finished.push_front(job.report(outcome, now));
        state.finished.truncate(FINISHED_MAX);
    }

    /// Brings back parked jobs whose event was counted since. Returns how many.
    pub(crate) fn wake(&self, event: impl Fn(&WaitsFor) -> u64, now: Duration) -> usize {
        // Events are counted by asking tiers, and without the lock.
        let waiting: Vec<(JobId, WaitsFor, u64)> = {
            let state = self.state.lock();
            let due = state.parked.iter().filter(|(_, parked)| parked.rests_until <= now);
            due.map(|(id, parked)| (*id, parked.waits_for.clone(), parked.event)).collect()
        };
        let due = waiting.into_iter().filter(|(_, waits_for, before)| event(waits_for) != *before);
        due.filter(|(id, ..)| self.unpark(*id)).count()
    }

    /// Returns whether the job was parked.
    fn unpark(&self, id: JobId) -> bool {
        let mut state = self.state.lock();
        let Some(ParkedJob { job, .. }) = state.parked.remove(&id) else { return false };
        state.ready.insert((job.reason, job.id), job);
        true
    }

    /// Takes a job back, or all that `which` names. Those that a mover has end after the present part. Returns how many.
    pub fn cancel(&self, which: impl Fn(&JobReport) -> bool, now: Duration) -> usize {
        self.end_open(which, &JobState::Cancelled, now)
    }

    /// Ends all jobs that `which` names as failed, with a reason. Those that a mover has are taken back.
    pub fn fail(&self, which: impl Fn(&JobReport) -> bool, why: &str, now: Duration) {
        self.end_open(which, &JobState::Failed(why.to_owned()), now);
    }

    fn end_open(&self, which: impl Fn(&JobReport) -> bool, outcome: &JobState, now: Duration) -> usize {
        let mut state = self.state.lock();
        let ready: Vec<_> = state
            .ready
            .iter()
            .filter(|(_, job)| which(&job.report(JobState::Queued, now)))
            .map(|(key, _)| *key)
            .collect();
        let parked: Vec<_> = state
            .parked
            .iter()
            .filter(|(_, parked)| which(&parked.job.report(JobState::Parked(parked.waits_for.clone()), now)))
            .map(|(id, _)| *id)
            .collect();
        let mut count = ready.len() + parked.len();
        for key in ready {
            let job = state.ready.remove(&key).expect("it was there");
            Self::end(&mut state, &job, outcome.clone(), now);
        }
        for id in parked {
            let job = state.parked.remove(&id).expect("it was there").job;
            Self::end(&mut state, &job, outcome.clone(), now);
        }
        for job in state.running.values_mut() {
            if which(&job.report(JobState::Running, now)) {
                job.is_cancelled = true;
                count += 1;
            }
        }
        count
    }

    /// Whether movers must stop their present work.
    pub(crate) fn must_stop(&self) -> bool {
        self.must_stop.load(Ordering::Acquire)
    }

    /// No batch begins any more, and those under way end soon.
    pub(crate) fn stop_for_good(&self) {
        self.must_stop.store(true, Ordering::Release);
    }

    /// Jobs with a mover.
    pub(crate) fn running_count(&self) -> usize {
        self.state.lock().running.len()
    }

    /// Unfinished jobs for this reason, and the event that the first parked one waits for.
    pub(crate) fn open_jobs(&self, which: impl Fn(&Job) -> bool) -> (usize, usize, Option<WaitsFor>) {
        let state = self.state.lock();
        let parked: Vec<&ParkedJob> = state.parked.values().filter(|parked| which(&parked.job)).collect();
        let open = state.ready.values().chain(state.running.values()).filter(|job| which(job)).count();
        (open + parked.len(), parked.len(), parked.first().map(|parked| parked.waits_for.clone()))
    }

    /// Whether ranges of a file are being handed over from one tier to another.
    pub(crate) fn is_handing_over(&self, ino: Ino, from: TierId, to: TierId) -> bool {
        self.state.lock().wanted.contains(&(ino, Some(from), to, true, MoveReason::Handover))
    }

    /// Tiers that open jobs hand reads over to.
    pub(crate) fn takers_of_handovers(&self) -> Vec<TierId> {
        let state = self.state.lock();
        let open = state.ready.values().chain(state.running.values()).filter(|job| job.reason == MoveReason::Handover);
        let to = open.filter_map(|job| if let Destination::To(tier) = job.destination { Some(tier) } else { None });
        let tiers: BTreeSet<TierId> = to.collect();
        tiers.into_iter().collect()
    }

    /// Bytes that jobs which have not ended still bring to a tier, those that lie there already not included.
    pub(crate) fn bytes_coming(&self, tier: TierId) -> u64 {
        let state = self.state.lock();
        let coming = |job: &&Job| job.destination == Destination::To(tier);
        state
            .ready
            .values()
            .chain(state.running.values())
            .filter(coming)
            .map(|job| job.bytes_left().saturating_sub(job.progress.arrived.get()))
            .sum()
    }

    /// Bytes that jobs which have not ended still take off a tier, those of parked ones included.
    pub(crate) fn bytes_leaving(&self, tier: TierId) -> u64 {
        let state = self.state.lock();
        let parked = state.parked.values().map(|parked| &parked.job);
        bytes_off(tier, state.ready.values().chain(state.running.values()).chain(parked))
    }

    /// As [`Self::bytes_leaving`], without parked jobs: a job that waits for an event frees nothing, so others may have to leave instead.
    pub(crate) fn bytes_leaving_now(&self, tier: TierId) -> u64 {
        let state = self.state.lock();
        bytes_off(tier, state.ready.values().chain(state.running.values()))
    }

    /// The state of one job.
    pub fn job(&self, id: JobId, now: Duration) -> Option<JobReport> {
        let state = self.state.lock();
        if let Some(job) = state.running.get(&id) {
            return Some(job.report(JobState::Running, now));
        }
        if let Some(parked) = state.parked.get(&id) {
            return Some(parked.job.report(JobState::Parked(parked.waits_for.clone()), now));
        }
        if let Some(job) = state.ready.values().find(|job| job.id == id) {
            return Some(job.report(JobState::Queued, now));
        }
        state.finished.iter().find(|job| job.id == id).cloned()
    }

    /// Jobs of a file that have not ended.
    pub(crate) fn jobs_of(&self, ino: Ino, now: Duration) -> Vec<JobReport> {
        let state = self.state.lock();
        let running = state.running.values().map(|job| (job, JobState::Running));
        let ready = state.ready.values().map(|job| (job, JobState::Queued));
        let parked = state.parked.values().map(|parked| (&parked.job, JobState::Parked(parked.waits_for.clone())));
        let all = running.chain(ready).chain(parked).filter(|(job, _)| job.ino == ino);
        all.map(|(job, state)| job.report(state, now)).collect()
    }

    /// Everything, for reports.
    pub fn report(&self, now: Duration) -> MovesReport {
        let state = self.state.lock();
        MovesReport {
            is_paused: false,
            window_opens_in_minutes: None,
            running: state.running.values().map(|job| job.report(JobState::Running, now)).collect(),
            queued_count: state.ready.len() as u64,
            queued: state.ready.values().take(LISTED_MAX).map(|job| job.report(JobState::Queued, now)).collect(),
            parked_count: state.parked.len() as u64,
            parked: state
                .parked
                .values()
                .take(LISTED_MAX)
                .map(|parked| parked.job.report(JobState::Parked(parked.waits_for.clone()), now))
                .collect(),
            finished: state.finished.iter().take(LISTED_MAX).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: TierId = TierId(1);
    const SLOW: TierId = TierId(2);

    fn order(ino: u64, to: TierId, reason: MoveReason) -> Order {
        let (destination, pace) = (Destination::To(to), MoverPace::Polite);
        Order { ino: Ino(ino), scope: Scope::Whole, destination, leaves: None, reason, pace, bytes: 1 }
    }

    #[test]
    fn the_batch_that_a_handover_waits_for_takes_its_share_until_it_ends() {
        let (queue, now) = (MoveQueue::default(), Duration::ZERO);
        let orders = [(10, FAST, MoveReason::Promote), (11, SLOW, MoveReason::Demote), (12, FAST, MoveReason::User)];
        for (ino, to, reason) in orders {
            queue.submit(order(ino, to, reason), now).expect("taken");
        }
        let target = |job: &Job| match job.destination {
            Destination::To(tier) | Destination::AwayFrom(tier) => Ok(tier),
        };
        let take = || queue.take_batch(|_| true, target, |_| 0, |_, _| true).0.expect("a batch");
        let (to_fast, to_slow) = (take(), take());
        assert_eq!((to_fast.target, to_slow.target), (FAST, SLOW));
        queue.submit(order(13, FAST, MoveReason::Promote), now).expect("taken");
        queue.hurry_running_to(FAST);
        let shares = |batch: &Batch| {
            let mut paces: Vec<_> = batch.jobs.iter().map(|job| (job.ino, job.pace.get())).collect();
            paces.sort_unstable_by_key(|(ino, _)| *ino);
            paces
        };
        assert_eq!(shares(&to_fast), [(Ino(10), MoverPace::TakesShare), (Ino(12), MoverPace::Polite)]);
        assert_eq!(shares(&to_slow), [(Ino(11), MoverPace::Polite)]);
        queue.free_tier(FAST);
        to_fast.jobs.into_iter().for_each(|job| queue.put_back(job, now));
        let again = take();
        assert!(again.jobs.iter().all(|job| job.pace.get() == MoverPace::Polite), "{:?}", shares(&again));
        assert_eq!(again.jobs.len(), 3);
    }

    #[test]
    fn bytes_that_a_mover_has_brought_are_not_coming_any_more() {
        let (queue, now) = (MoveQueue::default(), Duration::ZERO);
        let bytes = 100;
        queue.submit(Order { bytes, ..order(10, FAST, MoveReason::Promote) }, now).expect("taken");
        let mut batch = queue.take_batch(|_| true, |_| Ok(FAST), |_| 0, |_, _| true).0.expect("a batch");
        let job = &mut batch.jobs[0];
        let of_part = job.progress.arrived.begin(60);
        of_part.add(30);
        assert_eq!(queue.bytes_coming(FAST), 70);
        // Blocks that were written meanwhile are copied once more.
        of_part.add(90);
        assert_eq!(queue.bytes_coming(FAST), 40);
        job.progress.bytes_done = 60;
        queue.note_progress(job);
        assert_eq!(queue.bytes_coming(FAST), 40);
    }

    #[test]
    fn of_a_batch_that_frees_wanted_space_all_moves_take_their_share() {
        let (queue, now) = (MoveQueue::default(), Duration::ZERO);
        let leaving = |ino| Order { leaves: Some(FAST), bytes: 10, ..order(ino, SLOW, MoveReason::Demote) };
        for ino in 10..14 {
            queue.submit(leaving(ino), now).expect("taken");
        }
        let take = || queue.take_batch(|_| true, |_| Ok(SLOW), |_| 0, |taken, _| taken.len() < 2).0.expect("a batch");
        let batch = take();
        assert_eq!((batch.jobs.len(), queue.hurry_off(FAST, 0)), (2, 0));
        assert!(batch.jobs.iter().all(|job| job.pace.get() == MoverPace::Polite));
        assert_eq!(queue.hurry_off(FAST, 5), 5);
        assert!(
            batch.jobs.iter().all(|job| job.pace.get() == MoverPace::TakesShare),
            "space is free when both have ended"
        );
        assert_eq!(queue.hurry_off(FAST, 25), 25);
        batch.jobs.into_iter().for_each(|job| queue.finish(job, JobState::Done, now));
        queue.free_tier(SLOW);
        let paces: Vec<_> = take().jobs.iter().map(|job| job.pace.get()).collect();
        assert_eq!(paces, [MoverPace::TakesShare, MoverPace::Polite], "one more is enough");
    }
}
