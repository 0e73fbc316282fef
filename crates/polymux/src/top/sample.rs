//! Computes the activity of a volume from two samples.
//!
//! Invariant: the reports are the output of `top --json`: keys are added to, never renamed. Sizes are in bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::protocol::{DrainReport, JobPhase, JobReport, MovesReport, StatusReport, TierReport};
use crate::rate::{self, Rate};

/// Counters of the file system that `top` shows, as the daemon names them.
const COUNTERS: [&str; 9] = [
    "move_conflicts",
    "move_retries",
    "move_lock_fallbacks",
    "moves_begun",
    "moves_committed",
    "moves_given_up",
    "moves_parked",
    "moves_woken",
    "bytes_moved",
];

/// Minutes whose device reads are reported together.
const MINUTES_TOGETHER: usize = 5;

/// One look at a volume.
#[derive(Clone, Debug)]
pub struct Look {
    /// When.
    pub at: Instant,
    /// The report of `status`.
    pub status: StatusReport,
    /// The report on moves.
    pub moves: MovesReport,
}

/// One report of `top`.
#[derive(Clone, Debug, Serialize)]
pub struct TopReport {
    /// Name of the volume.
    pub volume: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Milliseconds that the rates are about.
    pub interval_ms: u64,
    /// Tiers in speed order.
    pub tiers: Vec<TierActivity>,
    /// Small device reads served by the fastest tier; `None` without any in the last hour.
    pub device_hits: Option<DeviceHits>,
    /// Whether movers rest until they are resumed.
    pub is_paused: bool,
    /// Threads that move blocks.
    pub movers: u16,
    /// Minutes until movers may work on their own again; `None` while they may.
    pub window_opens_in_minutes: Option<u32>,
    /// Jobs at work.
    pub running: Vec<JobActivity>,
    /// Jobs that wait for their turn.
    pub queued_count: u64,
    /// Jobs that wait for an event.
    pub parked_count: u64,
    /// The conditions that these wait for, and how many of the first hundred.
    pub parked_reasons: BTreeMap<String, u64>,
    /// Tiers that are being emptied.
    pub drains: Vec<DrainReport>,
    /// Counters of moves since the volume was mounted.
    pub counters: BTreeMap<String, u64>,
    /// How much each of them grew in this interval.
    pub counters_grown: BTreeMap<String, u64>,
}

/// Small reads that the device of the fastest tier in service served, as a share of those that all devices served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceHits {
    /// Its name.
    pub tier: String,
    /// Share in the last hour, in percent.
    pub hour_percent: u64,
    /// Share in each five minutes of the last hour, oldest first; `None` where no device served one.
    pub by_five_minutes: Vec<Option<u64>>,
}

/// One tier in a [`TopReport`].
#[derive(Clone, Debug, Serialize)]
pub struct TierActivity {
    /// Its name.
    pub name: String,
    /// `online`, `failing` or `missing`.
    pub state: String,
    /// Whether it is being emptied.
    pub draining: bool,
    /// Capacity of the tier.
    pub total: Option<u64>,
    /// Space in use.
    pub used: Option<u64>,
    /// Used bytes above which files leave it.
    pub high_mark: u64,
    /// Used bytes at which that ends.
    pub low_mark: u64,
    /// Bytes read per second, those of movers included.
    pub read_bytes_per_second: u64,
    /// Bytes written per second, those of movers included.
    pub written_bytes_per_second: u64,
    /// Reads and writes per second.
    pub operations_per_second: u64,
    /// Share of all reads in this interval that this tier served, in hundredths; `None` where nothing was read.
    pub hit_percent: Option<u64>,
    /// Share of all reads since the mount that this tier served, in hundredths.
    pub hit_percent_since_mount: Option<u64>,
    /// Objects made less objects removed since the volume was mounted.
    pub objects_grown: i64,
    /// Operations that failed since the volume was mounted.
    pub errors: u64,
}

/// One job at work in a [`TopReport`].
#[derive(Clone, Debug, Serialize)]
pub struct JobActivity {
    /// The job.
    #[serde(flatten)]
    pub job: JobReport,
    /// Bytes per second over the last seconds; `None` before anything is known.
    pub bytes_per_second: Option<u64>,
    /// Seconds until it is done, at this rate.
    pub remaining_seconds: Option<u64>,
}

/// Remembers the state that the next report needs.
#[derive(Debug, Default)]
pub struct Sampler {
    start: Option<Instant>,
    last: Option<Look>,
    rates: BTreeMap<u64, Rate>,
}

impl Sampler {
    /// The activity since the last look. After the first one, rates are zero.
    pub fn take(&mut self, look: Look) -> TopReport {
        let start = *self.start.get_or_insert(look.at);
        let now = look.at.saturating_duration_since(start);
        self.note_jobs(&look.moves, now);
        let last = self.last.take();
        let before = last.as_ref().unwrap_or(&look);
        let time = look.at.saturating_duration_since(before.at);
        let report = self.report(before, &look, time);
        self.last = Some(look);
        report
    }

    fn note_jobs(&mut self, moves: &MovesReport, now: Duration) {
        let at_work = |id: &u64| moves.running.iter().chain(&moves.queued).any(|job| job.job == *id);
        self.rates.retain(|id, _| at_work(id));
        // A job that gave way for a moment is queued; one that never began is not worth remembering.
        let begun = |job: &&JobReport| job.state == JobPhase::Running || job.bytes_done > 0;
        for job in moves.running.iter().chain(&moves.queued).filter(begun) {
            self.rates.entry(job.job).or_default().note(now, job.bytes_done);
        }
    }

    fn report(&self, before: &Look, look: &Look, time: Duration) -> TopReport {
        let status = &look.status;
        let counter = |status: &StatusReport, name: &str| status.counters.get(name).copied().unwrap_or(0);
        let grown = |name: &str| counter(status, name).saturating_sub(counter(&before.status, name));
        let mut parked_reasons = BTreeMap::new();
        for job in &look.moves.parked {
            *parked_reasons.entry(job.why.clone().unwrap_or_default()).or_default() += 1;
        }
        TopReport {
            volume: status.name.clone(),
            mount_point: status.mount_point.clone(),
            interval_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            tiers: tiers(&before.status.tiers, &status.tiers, time),
            device_hits: device_hits(&status.tiers),
            is_paused: look.moves.is_paused,
            movers: look.moves.movers,
            window_opens_in_minutes: look.moves.window_opens_in_minutes,
            running: look.moves.running.iter().map(|job| self.job(job)).collect(),
            queued_count: look.moves.queued_count,
            parked_count: look.moves.parked_count,
            parked_reasons,
            drains: look.moves.drains.clone(),
            counters: COUNTERS.iter().map(|name| ((*name).to_owned(), counter(status, name))).collect(),
            counters_grown: COUNTERS.iter().map(|name| ((*name).to_owned(), grown(name))).collect(),
        }
    }

    fn job(&self, job: &JobReport) -> JobActivity {
        let rate = self.rates.get(&job.job);
        let left = job.bytes_total.saturating_sub(job.bytes_done);
        JobActivity {
            job: job.clone(),
            bytes_per_second: rate.and_then(Rate::per_second),
            remaining_seconds: rate.and_then(|rate| rate.time_for(left)).map(|time| time.as_secs()),
        }
    }
}

fn device_hits(tiers: &[TierReport]) -> Option<DeviceHits> {
    let sum = |minutes: &[u64]| minutes.iter().sum::<u64>();
    let fastest = tiers.iter().find(|tier| tier.state == "online" && !tier.draining)?;
    let share_of = |minutes: std::ops::Range<usize>| {
        let of = |tier: &TierReport| sum(tier.device_reads_by_minute.get(minutes.clone()).unwrap_or_default());
        (of(fastest) * 100).checked_div(tiers.iter().map(of).sum())
    };
    let length = fastest.device_reads_by_minute.len();
    let twelfths = (0..length).step_by(MINUTES_TOGETHER);
    Some(DeviceHits {
        tier: fastest.name.clone(),
        hour_percent: share_of(0..length)?,
        by_five_minutes: twelfths.map(|first| share_of(first..length.min(first + MINUTES_TOGETHER))).collect(),
    })
}

fn tiers(before: &[TierReport], now: &[TierReport], time: Duration) -> Vec<TierActivity> {
    let counter = |tier: &TierReport, name: &str| tier.counters.get(name).copied().unwrap_or(0);
    let grown = |tier: &TierReport, name: &str| {
        let last = before.iter().find(|last| last.id == tier.id).unwrap_or(tier);
        counter(tier, name).saturating_sub(counter(last, name))
    };
    let per_second = |number: u64| rate::per_second(number, time).unwrap_or(0);
    let percent = |part: u64, whole: u64| (part * 100).checked_div(whole);
    let reads: u64 = now.iter().map(|tier| grown(tier, "reads")).sum();
    let reads_ever: u64 = now.iter().map(|tier| counter(tier, "reads")).sum();
    let activity = |tier: &TierReport| TierActivity {
        name: tier.name.clone(),
        state: tier.state.clone(),
        draining: tier.draining,
        total: tier.total,
        used: tier.used,
        high_mark: tier.high_mark,
        low_mark: tier.low_mark,
        read_bytes_per_second: per_second(grown(tier, "bytes_read")),
        written_bytes_per_second: per_second(grown(tier, "bytes_written")),
        operations_per_second: per_second(grown(tier, "reads") + grown(tier, "writes")),
        hit_percent: percent(grown(tier, "reads"), reads),
        hit_percent_since_mount: percent(counter(tier, "reads"), reads_ever),
        objects_grown: counter(tier, "creates").cast_signed().saturating_sub_unsigned(counter(tier, "removes")),
        errors: counter(tier, "errors"),
    };
    now.iter().map(activity).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A look at a volume of two tiers whose counters stand at a number.
    pub fn look_at(at: Instant, count: u64) -> Look {
        let tier = |id: u16, name: &str, share: u64| {
            // The faster one served more and more of the last half hour.
            let minutes: Vec<u64> = (0_u64..60)
                .map(|minute| match (minute < 30, id) {
                    (true, _) => 0,
                    (false, 0) => minute - 30,
                    (false, _) => 60 - minute,
                })
                .collect();
            let counters = BTreeMap::from([
                ("reads".to_owned(), count * share),
                ("bytes_read".to_owned(), count * share * 4096),
                ("writes".to_owned(), count),
                ("bytes_written".to_owned(), count << 20),
            ]);
            serde_json::json!({
                "id": id, "name": name, "path": "/x", "state": "online", "reason": null, "file_system": "ext4",
                "guarantee": "durable", "capacity": null, "total": 1_u64 << 30, "used": 3_u64 << 28, "free": 1_u64 << 28,
                "reserve": 0, "draining": id == 1, "high_mark": (1_u64 << 30) / 10 * 9, "low_mark": (1_u64 << 30) / 10 * 8,
                "shares_file_system_with": [], "capabilities": {}, "counters": counters, "device_reads_by_minute": minutes,
            })
        };
        let status = serde_json::json!({
            "name": "media", "volume": "v", "mount_point": "/media", "pid": 1, "epoch": 1, "read_only": false,
            "guarantee": "durable", "guarantee_meaning": "", "transport": "", "threads": 1, "metadata_tier": "fast",
            "metadata_bytes": 0,
            "metadata_store": {
                "log_medium": "", "log_bytes": 0, "log_used_bytes": 0, "memtable_bytes": 0, "tables": 0,
                "table_bytes": 0, "ballast_held_bytes": 0, "ballast_wanted_bytes": 0, "replayed_entries": 0,
                "stalled_operations": 0, "log_syncs": 0, "log_flushes": 0, "log_payload_bytes": 0,
                "log_appended_bytes": 0, "log_device_bytes": 0,
            },
            "metadata_copy": { "tier": null, "state": "none", "reason": null, "lag_bytes": null, "lag_ms": null,
                "transaction": null, "table_bytes": 0, "shipped_bytes": 0, "rebuilds": 0 },
            "tiers": [tier(0, "fast", 3), tier(1, "slow", 1)], "space": null, "inodes_cached": 0, "files_open": 0,
            "disowned_pending": 0, "transactions_committed": 0, "transactions_durable": 0, "recovery": [],
            "warnings": [], "counters": { "move_conflicts": count },
        });
        let job = |job: u64, state: JobPhase| JobReport {
            job,
            ino: 7,
            path: Some("films/a-rather-long-name-of-a-film-that-does-not-fit-on-a-narrow-terminal.mkv".to_owned()),
            reason: "drain".to_owned(),
            to: None,
            away_from: Some("slow".to_owned()),
            state,
            why: (state == JobPhase::Parked).then(|| "no other tier has room for it".to_owned()),
            bytes_total: 100 << 20,
            bytes_done: count << 20,
            bytes_copied: count << 20,
            interruptions: 0,
            age_ms: 5,
        };
        let moves = MovesReport {
            movers: 2,
            running: vec![job(1, JobPhase::Running)],
            queued_count: 5,
            parked_count: 2,
            parked: vec![job(2, JobPhase::Parked), job(3, JobPhase::Parked)],
            ..MovesReport::default()
        };
        Look { at, status: serde_json::from_value(status).expect("the report is whole"), moves }
    }

    /// A report of two looks, two seconds apart.
    pub fn report() -> TopReport {
        let start = Instant::now();
        let mut sampler = Sampler::default();
        sampler.take(look_at(start, 10));
        sampler.take(look_at(start + Duration::from_secs(2), 30))
    }

    #[test]
    fn rates_are_differences_over_time() {
        let report = report();
        assert_eq!(report.interval_ms, 2000);
        let [fast, slow] = &report.tiers[..] else { panic!("there are two tiers") };
        assert_eq!((fast.read_bytes_per_second, slow.read_bytes_per_second), (10 * 3 * 4096, 10 * 4096));
        assert_eq!((fast.written_bytes_per_second, fast.operations_per_second), (10 << 20, 40));
        assert_eq!((fast.hit_percent, slow.hit_percent), (Some(75), Some(25)));
        assert_eq!((report.counters["move_conflicts"], report.counters_grown["move_conflicts"]), (30, 20));
        let hits = report.device_hits.as_ref().expect("devices served reads");
        assert_eq!((hits.tier.as_str(), hits.hour_percent), ("fast", 48));
        let course = [6, 23, 40, 56, 73, 90].map(Some);
        assert_eq!(hits.by_five_minutes, [[None; 6], course].concat());
        let job = &report.running[0];
        assert_eq!((job.bytes_per_second, job.remaining_seconds), (Some(10 << 20), Some(7)));
        assert_eq!(report.parked_reasons["no other tier has room for it"], 2);
    }

    #[test]
    fn the_first_look_has_no_rates_and_no_division_by_zero() {
        let report = Sampler::default().take(look_at(Instant::now(), 10));
        assert_eq!((report.tiers[0].read_bytes_per_second, report.tiers[0].hit_percent), (0, None));
        assert_eq!(report.tiers[0].hit_percent_since_mount, Some(75));
        assert_eq!(report.running[0].remaining_seconds, None);
    }
}
