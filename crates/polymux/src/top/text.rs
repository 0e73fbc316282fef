//! `top` as lines of plain text, where there is no terminal; the parts that the picture on a terminal shares.

use std::time::Duration;

use polymux_types::ByteSize;

use super::sample::{JobActivity, TierActivity, TopReport};
use crate::output::{self, Table};
use crate::rate;
use crate::status;

/// Jobs that are listed.
const JOBS_MAX: usize = 20;

/// Shares from 0 to 100 % as heights, and a time without reads.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const NO_READS: char = '·';

/// The whole report.
pub fn render(report: &TopReport) -> String {
    let mut lines = vec![heading(report), tier_table(&report.tiers)];
    lines.extend(device_hits(report).map(|line| format!("  {line}")));
    lines.extend(report.drains.iter().map(|drain| format!("  {}", status::drain_line(drain))));
    if !report.running.is_empty() {
        lines.push(job_table(&report.running));
    }
    lines.extend(waiting(report).into_iter().map(|line| format!("  {line}")));
    lines.push(format!("  {}", counters(report)));
    lines.join("\n")
}

/// Volume, and whether blocks move.
pub fn heading(report: &TopReport) -> String {
    let state = match (report.movers, report.is_paused) {
        (0, _) => "no movers (`movers = 0`)".to_owned(),
        (_, true) => format!("MOVING IS PAUSED (`polymux resume {}`)", report.volume),
        (movers, false) => match report.window_opens_in_minutes {
            Some(minutes) => format!("{movers} movers, time window opens {}", status::opens_in(minutes)),
            None => format!("{movers} movers"),
        },
    };
    format!("{} on {}, {state}", report.volume, report.mount_point)
}

fn tier_table(tiers: &[TierActivity]) -> String {
    let mut table = Table::new(&["tier", "state", "read/s", "written/s", "ops/s", "hits", "used", "full", "marks"]);
    for tier in tiers {
        let full = fill_percent(tier.used, tier.total).map_or_else(|| "-".to_owned(), |full| format!("{full} %"));
        let marks = [tier.low_mark, tier.high_mark].map(|mark| fill_percent(Some(mark), tier.total));
        let marks = match marks {
            [Some(low), Some(high)] => format!("{low}-{high} %"),
            _ => "-".to_owned(),
        };
        table.row(vec![
            tier.name.clone(),
            state_of(tier).to_owned(),
            ByteSize(tier.read_bytes_per_second).to_string(),
            ByteSize(tier.written_bytes_per_second).to_string(),
            tier.operations_per_second.to_string(),
            hits(tier),
            output::size(tier.used),
            full,
            marks,
        ]);
    }
    table.render("  ")
}

fn job_table(jobs: &[JobActivity]) -> String {
    let mut table = Table::new(&["move", "why", "done", "of", "rate", "left", "file"]);
    for activity in jobs.iter().take(JOBS_MAX) {
        let job = &activity.job;
        table.row(vec![
            direction(activity),
            job.reason.clone(),
            ByteSize(job.bytes_done).to_string(),
            ByteSize(job.bytes_total).to_string(),
            rate_of(activity),
            remaining(activity),
            output::one_line(&file_of(activity)),
        ]);
    }
    let more = jobs.len().saturating_sub(JOBS_MAX);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    format!("{}{more}", table.render("  "))
}

/// The share of small device reads that the fastest tier serves, and how that changed within the hour.
pub fn device_hits(report: &TopReport) -> Option<String> {
    let hits = report.device_hits.as_ref()?;
    let height = |share: &Option<u64>| match share {
        None => NO_READS,
        Some(percent) => HEIGHTS[usize::try_from(percent * 7 / 100).unwrap_or(7).min(7)],
    };
    let course: String = hits.by_five_minutes.iter().map(height).collect();
    Some(format!("{} served {} % of small device reads in the last hour [{course}]", hits.tier, hits.hour_percent))
}

/// Waiting jobs and the conditions they wait for.
pub fn waiting(report: &TopReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{} running, {} queued, {} parked",
        report.running.len(),
        report.queued_count,
        report.parked_count
    )];
    lines.extend(report.parked_reasons.iter().map(|(why, count)| format!("parked {count}: {}", output::one_line(why))));
    lines
}

/// Counters of the moves that met writers.
pub fn counters(report: &TopReport) -> String {
    let counter = |name: &str| {
        let grown = report.counters_grown.get(name).copied().unwrap_or(0);
        let all = report.counters.get(name).copied().unwrap_or(0);
        if grown > 0 { format!("{all} (+{grown})") } else { all.to_string() }
    };
    let moved = ByteSize(report.counters.get("bytes_moved").copied().unwrap_or(0));
    format!(
        "conflicts {}, retries {}, locked fallbacks {}, given up {}, {moved} moved",
        counter("move_conflicts"),
        counter("move_retries"),
        counter("move_lock_fallbacks"),
        counter("moves_given_up"),
    )
}

/// The state of a tier in one word.
pub fn state_of(tier: &TierActivity) -> &str {
    if tier.draining && tier.state == "online" { "draining" } else { &tier.state }
}

/// Share of reads that the tier served: in this interval, or since the mount where nothing was read.
pub fn hits(tier: &TierActivity) -> String {
    let percent = tier.hit_percent.or(tier.hit_percent_since_mount);
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"))
}

/// A part of the capacity of a tier in hundredths.
pub fn fill_percent(bytes: Option<u64>, total: Option<u64>) -> Option<u64> {
    let total = total.filter(|total| *total > 0)?;
    u64::try_from(u128::from(bytes?) * 100 / u128::from(total)).ok()
}

/// Where a job goes.
pub fn direction(activity: &JobActivity) -> String {
    match (&activity.job.to, &activity.job.away_from) {
        (Some(to), _) => format!("to {to}"),
        (None, Some(from)) => format!("off {from}"),
        (None, None) => "-".to_owned(),
    }
}

/// How fast a job is.
pub fn rate_of(activity: &JobActivity) -> String {
    activity.bytes_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", ByteSize(rate)))
}

/// How long a job takes yet.
pub fn remaining(activity: &JobActivity) -> String {
    let seconds = activity.remaining_seconds;
    seconds.map_or_else(|| "-".to_owned(), |seconds| rate::duration(Duration::from_secs(seconds)))
}

/// The file that moves.
pub fn file_of(activity: &JobActivity) -> String {
    activity.job.path.as_deref().map(output::name).unwrap_or_else(|| format!("inode {}", activity.job.ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_tiers_moves_reasons_and_counters() {
        let text = render(&super::super::sample::tests::report());
        for needle in [
            "media on /media, 2 movers",
            "draining",
            "10 MiB",
            "75 %",
            "off slow",
            "films/a-rather",
            "10 MiB/s",
            "7 s",
            "1 running, 5 queued, 2 parked",
            "parked 2: no other tier has room for it",
            "conflicts 30 (+20)",
            "fast served 48 % of small device reads in the last hour [······▁▂▃▄▆▇]",
        ] {
            assert!(text.contains(needle), "{needle} is not in:\n{text}");
        }
    }
}
