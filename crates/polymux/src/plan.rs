//! `polymux plan`: the migrations that would run if nothing changed.

use std::time::Duration;

use anyhow::Result;
use polymux_fs::PAYS_BACK_SOON_SECONDS;
use polymux_types::ByteSize;

use crate::cli::OutputFormat;
use crate::client;
use crate::output::{self, Table};
use crate::protocol::{Answer, PlanReport, PlannedFile, Request};
use crate::rate;
use crate::steering_view;
use polymux_config::registry::Registry;

/// Files that are listed for people; JSON has more.
const FILES_SHOWN_MAX: usize = 10;

/// Shows the planned migrations, with another policy where one is named.
pub fn run(registry: &Registry, volume: &str, policy: Option<&str>, format: OutputFormat) -> Result<()> {
    let policy = policy.map(steering_view::policy_of_command).transpose()?;
    let name = client::volume_name(registry, volume)?;
    let report = match client::ask_mounted(registry, &name, &Request::Plan { policy })? {
        Answer::Plan(report) => report,
        _ => return Err(client::answered_something_else(&name)),
    };
    match format {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => {
            report.warnings.iter().for_each(|warning| output::warn(warning));
            output::line(&render(&report))
        }
    }
}

fn render(report: &PlanReport) -> String {
    let policy = if report.is_current {
        format!("policy {}", report.policy)
    } else {
        format!("policy {}, if it were the volume's", report.policy)
    };
    let time = |seconds: Option<u64>| {
        seconds.map_or_else(|| "not known yet".to_owned(), |s| rate::duration(Duration::from_secs(s)))
    };
    let mut lines = Vec::new();
    if report.moves.is_empty() {
        lines.push(format!("nothing would move ({policy})"));
    } else {
        lines.push(format!(
            "{} would move, of {} ({policy}); time: {}",
            ByteSize(report.bytes_total),
            count(report.files_total, "file"),
            time(report.seconds_total)
        ));
        let mut moves = Table::new(&["why", "from", "to", "files", "bytes", "time"]);
        for planned in &report.moves {
            moves.row(vec![
                planned.reason.clone(),
                planned.from.clone(),
                planned.to.clone(),
                planned.files.to_string(),
                output::size(Some(planned.bytes)),
                time(planned.seconds),
            ]);
        }
        lines.push(moves.render("  "));
        // Files that pay back soonest come first, then those that have cost as much already as moving them does, then the largest ones.
        let pays_back = |file: &PlannedFile| match (file.pays_back_seconds, file.is_overdue) {
            (seconds, true) if seconds.is_none_or(|seconds| seconds > PAYS_BACK_SOON_SECONDS) => "overdue".to_owned(),
            (Some(seconds), _) => format!("{seconds} s"),
            (None, _) => "-".to_owned(),
        };
        let mut files = Table::new(&["bytes", "why", "pays back in", "to", "path"]);
        for file in report.files.iter().take(FILES_SHOWN_MAX) {
            let path = file
                .path
                .as_ref()
                .map_or_else(|| format!("inode {}", file.ino), |path| format!("/{}", output::name(path)));
            files.row(vec![
                output::size(Some(file.bytes)),
                file.reason.clone(),
                pays_back(file),
                file.to.clone(),
                path,
            ]);
        }
        lines.push(files.render("  "));
    }
    if report.jobs_open > 0 {
        lines.push(format!("{} open already (`polymux top` shows them)", count(report.jobs_open, "job")));
    }
    lines.extend(report.why_not_now.as_ref().map(|why| format!("not now: {why}")));
    lines.join("\n")
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
