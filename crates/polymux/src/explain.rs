//! `polymux explain`: why a file is where it is, and how it is treated next.
//!
//! Invariant: every sentence is based on the report of the daemon; nothing is guessed here.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use polymux_types::ByteSize;

use crate::cli::OutputFormat;
use crate::client;
use crate::migrate::Places;
use crate::output;
use crate::protocol::{
    Answer, ExplainReport, ExplainedGrowth, ExplainedRange, JobPhase, JobReport, Request, SteeredBy,
};
use crate::rate;
use polymux_config::registry::Registry;

/// Most ranges of a file that the text output lists; JSON has all.
const RANGES_SHOWN_MAX: usize = 40;

/// Explains a file.
pub fn run(registry: &Registry, file: &Path, format: OutputFormat) -> Result<()> {
    let places = Places::of(&[PathBuf::from(file)])?;
    let path = &places.paths[0];
    let metadata = path.symlink_metadata()?;
    if metadata.is_dir() {
        bail!("{} is a directory: name a file in it (`polymux pin --list` shows pins)", file.display());
    }
    let report = match client::ask(registry, &places.volume, &Request::Explain { ino: metadata.ino() })? {
        Some(Answer::Explain(report)) => report,
        Some(_) => bail!("the daemon of volume `{}` answered something else", places.volume),
        None => bail!("the daemon of volume `{}` is not there", places.volume),
    };
    match format {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => output::line(&render(file, &report)),
    }
}

fn render(file: &Path, report: &ExplainReport) -> String {
    let mut lines = vec![format!("{}: {}, inode {}", output::path(file), ByteSize(report.size), report.ino)];
    lines.push(format!("  {}", steering(report)));
    lines.push(format!("  Policy {}: {}", report.policy, report.policy_description));
    match report.allowed_tiers.as_slice() {
        [] => lines.push("  It may be on every tier.".to_owned()),
        [tier] => lines.push(format!("  It may be on tier `{tier}` only.")),
        tiers => lines.push(format!("  It may be on the tiers {}, the first if possible.", tiers.join(", "))),
    }
    if report.size == 0 {
        lines.push("  It is empty: there is nothing to move.".to_owned());
    } else if report.bytes_inline > 0 {
        lines.push("  It is so small that it is in the metadata store: there is nothing to move.".to_owned());
    }
    for range in report.ranges.iter().take(RANGES_SHOWN_MAX) {
        lines.extend(range_lines(range, report));
    }
    if report.ranges.len() > RANGES_SHOWN_MAX {
        lines.push(format!("  {} more ranges: --json has them all", report.ranges.len() - RANGES_SHOWN_MAX));
    }
    lines.extend(report.growth_why.iter().map(|why| format!("  {why}")));
    lines.extend(growth_line(&report.growth));
    lines.extend(report.readers.iter().map(|readers| format!("  {readers}")));
    lines.extend(report.tiers_out.iter().map(|(tier, why)| format!("  Tier `{tier}` takes no new data: {why}.")));
    lines.extend(report.jobs.iter().map(|job| format!("  {}", job_line(job))));
    lines.join("\n")
}

/// Who decides.
fn steering(report: &ExplainReport) -> String {
    match &report.steered_by {
        SteeredBy::Volume => "No pin and no rule is about it: the policy of the volume decides.".to_owned(),
        SteeredBy::Rule { number, name, config, line } => {
            let title = if name.is_empty() { format!("Rule {number}") } else { format!("Rule {number}, `{name}`,") };
            match line {
                Some(line) => format!("{title} is the first to match it ({config}, line {line})."),
                None => format!("{title} is the first to match it ({config})."),
            }
        }
        SteeredBy::Pin { is_own: true, .. } => "It is pinned.".to_owned(),
        SteeredBy::Pin { path: Some(path), .. } => format!("The directory /{} above it is pinned.", output::name(path)),
        SteeredBy::Pin { path: None, .. } => "A directory above it is pinned.".to_owned(),
    }
}

fn range_lines(range: &ExplainedRange, report: &ExplainReport) -> Vec<String> {
    let (start, end) = (range.offset, range.offset + range.length);
    let whole = start == 0 && end >= report.size;
    let place = if whole { "All of it".to_owned() } else { format!("From {} to {}", ByteSize(start), ByteSize(end)) };
    let mut lines = vec![format!("  {place} is on tier `{}`: {}.", range.tier, use_of(range))];
    match &range.wanted_on {
        Some(tier) => {
            lines.push(format!("    It is to move to tier `{tier}`: {}", range.why));
            lines.push(format!("    {}", what_happens(report)));
        }
        None => {
            lines.push(format!("    It stays: {}", range.why));
            if let (Some(tier), Some(why)) = (&range.would_leave_to, &range.would_leave_why) {
                lines.push(format!("    If `{}` became too full, it could go to `{tier}`: {why}", range.tier));
            }
        }
    }
    lines
}

/// Where a file that is spread grows.
fn growth_line(growth: &[ExplainedGrowth]) -> Option<String> {
    let facts = |tier: &ExplainedGrowth| {
        let speed = match tier.bytes_per_second {
            0 => "speed not known yet".to_owned(),
            speed => format!("{}/s", ByteSize(speed)),
        };
        let threads = match tier.threads {
            None => String::new(),
            Some(1) => ", 1 thread".to_owned(),
            Some(threads) => format!(", {threads} threads"),
        };
        format!("`{}` ({} on their way, {speed}{threads})", tier.tier, ByteSize(tier.outstanding_bytes))
    };
    let tiers: Vec<String> = growth.iter().map(facts).collect();
    let maps_threads = growth.iter().any(|tier| tier.threads.is_some());
    let begin = if maps_threads {
        "Each thread that writes it on has a tier of its own"
    } else {
        "Its next 2 MiB would go to the first of these that takes them"
    };
    (!tiers.is_empty()).then(|| format!("  {begin}: {}.", tiers.join(", ")))
}

/// The recorded use of a range, in words.
fn use_of(range: &ExplainedRange) -> String {
    let ago = |seconds: u32| rate::duration(Duration::from_secs(u64::from(seconds)));
    let mut facts = match range.idle_seconds {
        Some(idle) if range.heat > 0.0 => vec![
            format!("heat {:.1} (reads {:.1}, writes {:.1})", range.heat, range.reads, range.writes),
            format!("last used {} ago", ago(idle)),
            format!("{} % of its uses in streams", range.sequential_percent),
        ],
        _ => vec!["no use is remembered".to_owned()],
    };
    if range.sync_percent > 0 {
        facts.push(format!("{} % of the file's writes are waited for", range.sync_percent));
    }
    if range.device_reads_per_second > 0.0 {
        facts.push(format!("{:.1} random requests a second to its device now", range.device_reads_per_second));
    }
    facts.extend(range.pays_back_on.as_ref().zip(range.pays_back_seconds).map(|(tier, seconds)| {
        format!("moving it to `{tier}` pays back in {}", rate::duration(Duration::from_secs(seconds)))
    }));
    facts.extend(
        range
            .pays_back_on
            .as_ref()
            .filter(|_| range.is_overdue)
            .map(|tier| format!("its reads have cost the device as much already as moving it to `{tier}` would")),
    );
    facts.extend(range.moved_seconds_ago.map(|seconds| format!("moved {} ago", ago(seconds))));
    facts.join(", ")
}

/// When a range that is to move does so.
fn what_happens(report: &ExplainReport) -> String {
    let running = report.jobs.iter().any(|job| job.state == JobPhase::Running);
    match (&report.why_not_now, report.jobs.is_empty()) {
        _ if running => "It is being moved now.".to_owned(),
        (Some(why), _) => format!("Not now: {why}"),
        (None, false) => "A job for it waits (see below).".to_owned(),
        (None, true) => "A job for it is made when the planner next looks at it.".to_owned(),
    }
}

fn job_line(job: &JobReport) -> String {
    let to = match (&job.to, &job.away_from) {
        (Some(to), _) => format!("to `{to}`"),
        (None, Some(from)) => format!("away from `{from}`"),
        (None, None) => String::new(),
    };
    let state = match (&job.state, &job.why) {
        (JobPhase::Running, _) => "is running".to_owned(),
        (JobPhase::Parked, Some(why)) => format!("waits: {why}"),
        _ => "waits for its turn".to_owned(),
    };
    format!(
        "Job {} {to} ({}) {state}; {} of {} done.",
        job.job,
        job.reason,
        ByteSize(job.bytes_done),
        ByteSize(job.bytes_total)
    )
}
