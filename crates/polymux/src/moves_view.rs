//! The daemon's answers about blocks that move (DESIGN sections 8 and 13).
//!
//! Invariants: every refusal is one line that names the tier, and an unknown tier is answered with those that
//! there are. Numbers of tiers become names here and nowhere else.

use anyhow::{Result, anyhow};
use polymux_fs::{Destination, JobId, JobState, MoveRefusal, MoversState, WaitsFor};
use polymux_types::{Ino, TierId};

use crate::protocol::{
    ByteRange, DrainReport, JobPhase, JobReport, JobsReport, MigrateReport, MovesReport, MovesSummary, RefusedFile,
    SubmittedJob,
};
use crate::report::DaemonView;

/// Waiting jobs whose paths are looked for.
const PATHS_OF_WAITING_MAX: usize = 20;

impl DaemonView {
    /// Submits a job for each file. Nothing is submitted where the tier takes none of them.
    pub fn migrate(&self, files: &[u64], tier: &str, range: Option<ByteRange>) -> Result<MigrateReport> {
        let mut report = MigrateReport { movers: self.background.movers(), ..MigrateReport::default() };
        for &ino in files {
            let range = range.map(|range| range.start..range.end.unwrap_or(u64::MAX));
            match self.file_system.migrate(Ino(ino), tier, range) {
                Ok(JobId(job)) => {
                    let bytes_total = self.file_system.job(JobId(job)).map_or(0, |job| job.bytes_total);
                    report.jobs.push(SubmittedJob { job, ino, bytes_total });
                }
                Err(refusal) if concerns_the_tier(&refusal) => return Err(self.explained(refusal)),
                Err(refusal) => report.refused.push(RefusedFile { ino, why: refusal.to_string() }),
            }
        }
        self.background.wake();
        report.is_paused = self.file_system.moves().is_paused;
        Ok(report)
    }

    /// How far jobs are.
    pub fn jobs(&self, jobs: &[u64]) -> JobsReport {
        let found = jobs.iter().filter_map(|job| self.file_system.job(JobId(*job)));
        JobsReport {
            jobs: found.map(|job| self.job_report(job)).collect(),
            is_paused: self.file_system.moves().is_paused,
        }
    }

    /// Begins to empty a tier.
    pub fn drain(&self, tier: &str) -> Result<MovesReport> {
        self.check_tier_name(tier)?;
        self.file_system.start_drain(tier)?;
        self.background.wake();
        Ok(self.moves())
    }

    /// Takes the emptying of a tier back.
    pub fn cancel_drain(&self, tier: &str) -> Result<MovesReport> {
        self.check_tier_name(tier)?;
        self.file_system.cancel_drain(tier)?;
        self.background.wake();
        Ok(self.moves())
    }

    /// Lets movers rest, or work again.
    pub fn set_movers(&self, state: MoversState) -> MovesReport {
        self.file_system.set_movers(state);
        self.background.wake();
        self.moves()
    }

    /// Everything about moves.
    pub fn moves(&self) -> MovesReport {
        let moves = self.file_system.moves();
        let with_path = |mut job: JobReport| {
            let path = self.file_system.path_of(Ino(job.ino)).ok().flatten();
            job.path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
            job
        };
        let waiting = |jobs: Vec<polymux_fs::JobReport>| {
            let reports = jobs.into_iter().map(|job| self.job_report(job)).enumerate();
            reports.map(|(index, job)| if index < PATHS_OF_WAITING_MAX { with_path(job) } else { job }).collect()
        };
        MovesReport {
            is_paused: moves.is_paused,
            movers: self.background.movers(),
            window_opens_in_minutes: moves.window_opens_in_minutes,
            running: moves.running.into_iter().map(|job| with_path(self.job_report(job))).collect(),
            queued_count: moves.queued_count,
            queued: waiting(moves.queued),
            parked_count: moves.parked_count,
            parked: waiting(moves.parked),
            finished: waiting(moves.finished),
            drains: self.drains(),
        }
    }

    /// The summary of moves in `status`.
    pub fn moves_summary(&self) -> MovesSummary {
        let moves = self.file_system.moves();
        let parked = moves.parked.into_iter().next().and_then(|job| self.job_report(job).why);
        MovesSummary {
            is_paused: moves.is_paused,
            movers: self.background.movers(),
            window_opens_in_minutes: moves.window_opens_in_minutes,
            running: moves.running.len() as u64,
            queued: moves.queued_count,
            parked: moves.parked_count,
            parked_why: parked,
            drains: self.drains(),
        }
    }

    fn drains(&self) -> Vec<DrainReport> {
        let report = |drain: polymux_fs::DrainReport| DrainReport {
            tier: drain.name,
            files_total: drain.files_total,
            files_done: drain.files_done,
            bytes_total: drain.bytes_total,
            bytes_done: drain.bytes_done,
            parked: drain.parked,
            why: drain.waits_for.map(|waits_for| self.meaning_of_waiting(&waits_for)),
            is_empty: drain.is_empty,
        };
        self.file_system.drains().into_iter().map(report).collect()
    }

    pub(crate) fn job_report(&self, job: polymux_fs::JobReport) -> JobReport {
        let (to, away_from) = match job.destination {
            Destination::To(tier) => (Some(self.name_of(tier)), None),
            Destination::AwayFrom(tier) => (None, Some(self.name_of(tier))),
        };
        let (state, why) = match &job.state {
            JobState::Queued => (JobPhase::Queued, None),
            JobState::Running => (JobPhase::Running, None),
            JobState::Parked(waits_for) => (JobPhase::Parked, Some(self.meaning_of_waiting(waits_for))),
            JobState::Done => (JobPhase::Done, None),
            JobState::Cancelled => (JobPhase::Cancelled, None),
            JobState::Failed(why) => (JobPhase::Failed, Some(why.clone())),
        };
        JobReport {
            job: job.id.0,
            ino: job.ino.get(),
            path: None,
            reason: job.reason.word().to_owned(),
            to,
            away_from,
            state,
            why,
            bytes_total: job.bytes_total,
            bytes_done: job.bytes_done,
            bytes_copied: job.bytes_copied,
            interruptions: job.interruptions,
            age_ms: job.age_ms,
        }
    }

    /// Explains the condition that a job waits for, and the remedy.
    fn meaning_of_waiting(&self, waits_for: &WaitsFor) -> String {
        match waits_for {
            WaitsFor::Room(Some(tier)) => {
                format!("tier `{}` has no room for it; it goes on as soon as room is made there", self.name_of(*tier))
            }
            WaitsFor::Room(None) => {
                "no other tier has room for it; it goes on as soon as room is made, or a tier is added".to_owned()
            }
            WaitsFor::Close(_) => {
                "it is open, and the kernel uses its data directly (passthrough); it goes on when it is closed"
                    .to_owned()
            }
            WaitsFor::Tier(tier) => {
                let name = self.name_of(*tier);
                format!("tier `{name}` is missing, failing or being emptied; it goes on when the tier is back")
            }
            WaitsFor::Repair(tier, why) => {
                let name = self.name_of(*tier);
                format!("{why} (tier `{name}`); it is tried again when the tier changes its state or at the next mount")
            }
        }
    }

    fn name_of(&self, tier: TierId) -> String {
        let status = self.file_system.tier_names();
        status.into_iter().find(|(id, _)| *id == tier).map_or_else(|| format!("number {tier}"), |(_, name)| name)
    }

    /// Names of the tiers in speed order.
    fn tier_names(&self) -> Vec<String> {
        self.file_system.tier_names().into_iter().map(|(_, name)| name).collect()
    }

    fn check_tier_name(&self, tier: &str) -> Result<()> {
        let is_known = self.tier_names().iter().any(|name| name == tier);
        if is_known { Ok(()) } else { Err(self.explained(MoveRefusal::NoSuchTier(tier.to_owned()))) }
    }

    fn explained(&self, refusal: MoveRefusal) -> anyhow::Error {
        match refusal {
            MoveRefusal::NoSuchTier(name) => {
                let names: Vec<String> = self.tier_names().iter().map(|name| format!("`{name}`")).collect();
                anyhow!("the volume has no tier `{name}`; its tiers are {}", names.join(", "))
            }
            refusal => anyhow!(refusal),
        }
    }
}

/// Whether a refusal holds for every file alike.
fn concerns_the_tier(refusal: &MoveRefusal) -> bool {
    matches!(refusal, MoveRefusal::NoSuchTier(_) | MoveRefusal::Missing(_) | MoveRefusal::Draining(_))
}
