//! Waiting for jobs.
//!
//! Invariants:
//! * The daemon carries jobs out in the order of submission and remembers the last ones that ended, so only the oldest
//!   that have not ended are asked about.
//! * A job that the daemon forgot meanwhile is submitted again: blocks that are on its tier already cost nothing.
//! * Waiting ends when every job has ended, when those that are left all wait for an event for a while, or when moving is paused
//!   for as long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::SIGINT;

use crate::output;
use crate::progress::{Progress, Reading};
use crate::protocol::{ByteRange, JobPhase, JobReport, SubmittedJob};
use polymux_config::registry::Registry;

/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Jobs that are asked about at once.
const ASKED_MAX: usize = 64;

/// How long nothing but parked jobs may be left, or moving be paused, before waiting ends.
const PARKED_PATIENCE: Duration = Duration::from_secs(8);

/// How often a job may be forgotten before it counts as failed.
const RESUBMISSIONS_MAX: u32 = 3;

/// A job that is waited for.
#[derive(Clone, Debug)]
pub struct Watched {
    job: SubmittedJob,
    path: String,
    range: Option<ByteRange>,
    bytes_done: u64,
    bytes_copied: u64,
    resubmissions: u32,
    why: String,
}

impl Watched {
    /// A job that was just submitted.
    pub fn new(job: SubmittedJob, path: String, range: Option<ByteRange>) -> Self {
        Self { job, path, range, bytes_done: 0, bytes_copied: 0, resubmissions: 0, why: String::new() }
    }
}

/// How jobs ended. Files are given with the reason.
#[derive(Debug, Default)]
pub struct Ended {
    /// Files on their tier.
    pub done: u64,
    /// Bytes that were copied for them.
    pub bytes_copied: u64,
    /// Files that were not moved.
    pub failed: Vec<(String, String)>,
    /// Files that wait for an event.
    pub parked: Vec<(String, String)>,
}

/// Jobs by their known state.
struct Watch {
    /// Not known to have ended or to be parked, oldest first.
    pending: VecDeque<Watched>,
    parked: VecDeque<Watched>,
    ended: Ended,
    bytes_ended: u64,
    bytes_total: u64,
    files_total: u64,
    is_paused: bool,
}

/// Waits until jobs have ended, showing how far they are.
pub fn until_ended(registry: &Registry, volume: &str, tier: &str, jobs: Vec<Watched>) -> Result<Ended> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted)).context("cannot watch signals")?;
    let mut watch = Watch::of(jobs);
    let mut progress = Progress::start("moving");
    let mut moving_since = Instant::now();
    let mut resumed_since = Instant::now();
    let result = loop {
        match watch.look(registry, volume, tier) {
            Ok(()) => {}
            Err(error) => break Err(error),
        }
        if watch.pending.is_empty() && watch.parked.is_empty() {
            break Ok(());
        }
        if !watch.pending.is_empty() {
            moving_since = Instant::now();
        } else if moving_since.elapsed() > PARKED_PATIENCE {
            break Ok(());
        }
        if !watch.is_paused {
            resumed_since = Instant::now();
        } else if resumed_since.elapsed() > PARKED_PATIENCE {
            break Err(watch.paused(volume));
        }
        progress.show(&watch.reading(volume));
        if interrupted.load(Ordering::Acquire) {
            let left = watch.pending.len() + watch.parked.len();
            break Err(anyhow::anyhow!(
                "no longer waiting; the daemon goes on with the {} left (`polymux top {volume}` shows how far it is)",
                output::files(left as u64)
            ));
        }
        thread::sleep(POLL_INTERVAL);
    };
    progress.finish();
    result.map(|()| watch.into_ended())
}

impl Watch {
    fn of(jobs: Vec<Watched>) -> Self {
        Self {
            bytes_total: jobs.iter().map(|job| job.job.bytes_total).sum(),
            files_total: jobs.len() as u64,
            pending: jobs.into(),
            parked: VecDeque::new(),
            ended: Ended::default(),
            bytes_ended: 0,
            is_paused: false,
        }
    }

    /// Asks about the oldest pending jobs, and about some of the parked ones in turn.
    fn look(&mut self, registry: &Registry, volume: &str, tier: &str) -> Result<()> {
        let mut asked: Vec<Watched> = Vec::new();
        for queue in [&mut self.pending, &mut self.parked] {
            let count = queue.len().min(ASKED_MAX);
            asked.extend(queue.drain(..count));
        }
        let numbers = asked.iter().map(|watched| watched.job.job).collect();
        let (reports, is_paused) = super::jobs(registry, volume, numbers)?;
        self.is_paused = is_paused;
        let mut still_pending = Vec::new();
        for mut watched in asked {
            match reports.iter().find(|report| report.job == watched.job.job) {
                Some(report) => still_pending.extend(self.sort_in(watched, report)),
                None if watched.resubmissions < RESUBMISSIONS_MAX => {
                    watched.resubmissions += 1;
                    match resubmit(registry, volume, tier, &watched)? {
                        Ok(job) => still_pending.push(Watched { job, ..watched }),
                        Err(why) => self.fail(watched, why),
                    }
                }
                None => self.fail(watched, "the daemon does not know the job any more".to_owned()),
            }
        }
        for watched in still_pending.into_iter().rev() {
            self.pending.push_front(watched);
        }
        Ok(())
    }

    /// Puts a job where it belongs; gives back one that is still pending.
    fn sort_in(&mut self, mut watched: Watched, report: &JobReport) -> Option<Watched> {
        watched.bytes_done = report.bytes_done.min(watched.job.bytes_total);
        watched.bytes_copied = report.bytes_copied;
        let why = report.why.clone().unwrap_or_default();
        match report.state {
            JobPhase::Queued | JobPhase::Running => return Some(watched),
            JobPhase::Parked => {
                watched.why = why;
                self.parked.push_back(watched);
            }
            JobPhase::Done => {
                self.ended.done += 1;
                self.ended.bytes_copied += report.bytes_copied;
                self.bytes_ended += watched.job.bytes_total;
            }
            JobPhase::Cancelled => self.fail(watched, "somebody took it back".to_owned()),
            JobPhase::Failed => self.fail(watched, why),
        }
        None
    }

    fn fail(&mut self, watched: Watched, why: String) {
        self.bytes_ended += watched.job.bytes_total;
        self.ended.bytes_copied += watched.bytes_copied;
        self.ended.failed.push((watched.path, why));
    }

    fn reading(&self, volume: &str) -> Reading {
        let under_way: u64 = self.pending.iter().take(ASKED_MAX).chain(&self.parked).map(|job| job.bytes_done).sum();
        let mut notes = Vec::new();
        if self.is_paused {
            notes.push(format!("moving is paused: `polymux resume {volume}` goes on"));
        }
        if let Some(first) = self.parked.front() {
            notes.push(format!("{} waiting: {}", output::files(self.parked.len() as u64), first.why));
        }
        Reading {
            bytes_done: self.bytes_ended + under_way,
            bytes_total: Some(self.bytes_total),
            files_done: self.ended.done + self.ended.failed.len() as u64,
            files_total: Some(self.files_total),
            note: notes.join(", "),
        }
    }

    /// Why waiting ends while moving is paused.
    fn paused(&self, volume: &str) -> anyhow::Error {
        let left = output::files((self.pending.len() + self.parked.len()) as u64);
        anyhow::anyhow!(
            "moving is paused, and {left} would be waited for without end: `polymux resume {volume}` goes on with them"
        )
    }

    fn into_ended(self) -> Ended {
        let parked = self.parked.into_iter().map(|watched| (watched.path, watched.why)).collect();
        Ended { parked, ..self.ended }
    }
}

/// Submits a job again; the inner error is a refusal of this file.
fn resubmit(
    registry: &Registry,
    volume: &str,
    tier: &str,
    watched: &Watched,
) -> Result<std::result::Result<SubmittedJob, String>> {
    let report = super::submit(registry, volume, tier, vec![watched.job.ino], watched.range)?;
    match (report.jobs.first(), report.refused.first()) {
        (Some(job), _) => Ok(Ok(*job)),
        (None, Some(refused)) => Ok(Err(refused.why.clone())),
        (None, None) => bail!("the daemon of volume `{volume}` neither took nor refused a file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(job: u64) -> Watched {
        Watched::new(SubmittedJob { job, ino: job, bytes_total: 100 }, format!("/m/{job}"), None)
    }

    fn report(job: u64, state: JobPhase, bytes_done: u64) -> JobReport {
        JobReport {
            job,
            ino: job,
            path: None,
            reason: "user".to_owned(),
            to: Some("fast".to_owned()),
            away_from: None,
            state,
            why: Some("no room".to_owned()),
            bytes_total: 100,
            bytes_done,
            bytes_copied: bytes_done,
            interruptions: 0,
            age_ms: 1,
        }
    }

    #[test]
    fn jobs_are_counted_by_how_they_ended() {
        let mut watch = Watch::of((0..4).map(watched).collect());
        let states = [(JobPhase::Done, 100), (JobPhase::Running, 40), (JobPhase::Parked, 10), (JobPhase::Failed, 20)];
        for (state, bytes) in states {
            let job = watch.pending.pop_front().unwrap();
            let number = job.job.job;
            let back = watch.sort_in(job, &report(number, state, bytes));
            watch.pending.extend(back);
        }
        let reading = watch.reading("media");
        assert_eq!((reading.bytes_done, reading.bytes_total), (100 + 100 + 40 + 10, Some(400)));
        assert_eq!((reading.files_done, reading.files_total), (2, Some(4)));
        assert!(reading.note.contains("1 file waiting: no room"), "{}", reading.note);
        let ended = watch.into_ended();
        assert_eq!((ended.done, ended.bytes_copied), (1, 120));
        assert_eq!(ended.failed, [("/m/3".to_owned(), "no room".to_owned())]);
        assert_eq!(ended.parked, [("/m/2".to_owned(), "no room".to_owned())]);
    }
}
