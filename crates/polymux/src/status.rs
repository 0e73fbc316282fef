//! `polymux status`: lists volumes and their state.

use anyhow::{Result, bail};
use polymux_types::ByteSize;
use serde_json::json;

use crate::cli::OutputFormat;
use crate::client;
use crate::clients;
use crate::output::{self, Table};
use crate::protocol::{
    Answer, DamagedFilesReport, DeferralReport, DrainReport, IdleProcessorsReport, MetadataCopyReport,
    MetadataStoreReport, MovesSummary, Request, StatusReport, TierReport,
};
use polymux_config::registry::Registry;

/// Shows one volume, or all that are mounted or configured.
pub fn run(registry: &Registry, volume: Option<&str>, format: OutputFormat) -> Result<()> {
    match volume {
        Some(text) => {
            let name = client::volume_name(registry, text)?;
            match status_of(registry, &name)? {
                Some(report) if format == OutputFormat::Json => output::json(&report),
                Some(report) => output::line(&render(&report)),
                None => bail!("volume `{name}` is not mounted"),
            }
        }
        None => all(registry, format),
    }
}

/// The status of a volume; `None` where it is not mounted.
pub fn status_of(registry: &Registry, name: &str) -> Result<Option<StatusReport>> {
    match client::ask(registry, name, &Request::Status)? {
        Some(Answer::Status(report)) => Ok(Some(*report)),
        Some(_) => bail!("the daemon of volume `{name}` answered something else"),
        None => Ok(None),
    }
}

fn all(registry: &Registry, format: OutputFormat) -> Result<()> {
    let mut mounted = Vec::new();
    for name in registry.with_socket() {
        mounted.extend(status_of(registry, &name)?);
    }
    let is_mounted = |name: &String| mounted.iter().any(|report| report.name == *name);
    let others: Vec<String> = registry.configured().into_iter().filter(|name| !is_mounted(name)).collect();
    if format == OutputFormat::Json {
        return output::json(&json!({ "mounted": mounted, "not_mounted": others }));
    }
    for report in &mounted {
        output::line(&render(report))?;
        output::line("")?;
    }
    for name in &others {
        output::line(&format!("{name}: not mounted"))?;
    }
    if mounted.is_empty() && others.is_empty() {
        output::line("no volumes; `polymux create` makes one")?;
    }
    Ok(())
}

fn render(report: &StatusReport) -> String {
    let access = if report.read_only { "read-only" } else { "read-write" };
    let mut lines = vec![
        format!("{} on {} ({access}, pid {}, epoch {})", report.name, report.mount_point, report.pid, report.epoch),
        tier_table(&report.tiers),
    ];
    if let Some(space) = &report.space {
        lines.push(format!(
            "  volume: {} in all, {} free, {} can still be written",
            ByteSize(space.total),
            ByteSize(space.free),
            ByteSize(space.available)
        ));
    }
    lines.push(format!("  promise: {}: {}", report.guarantee, report.guarantee_meaning));
    lines.push(format!(
        "  metadata: {} on tier {}, {} transactions ({} not durable yet)",
        ByteSize(report.metadata_bytes),
        report.metadata_tier,
        report.transactions_committed,
        report.transactions_committed.saturating_sub(report.transactions_durable)
    ));
    lines.push(store_line(&report.metadata_store));
    lines.push(window_line(&report.metadata_store));
    lines.push(copy_line(&report.metadata_copy));
    lines.push(format!(
        "  in use: {} inodes in memory, {} open files, {} ranges waiting to be freed, {} files waiting to be described",
        report.inodes_cached, report.files_open, report.disowned_pending, report.stamps_late
    ));
    lines.extend(moves_lines(&report.name, &report.moves));
    lines.extend(made_way_line(&report.tiers));
    lines.push(format!("  transport: {}, {} threads", report.transport, report.threads));
    lines.push(idle_processors_line(&report.idle_processors));
    lines.push(format!("  passthrough: {}", report.passthrough));
    lines.push(clients::summary(report.leases.as_ref()));
    lines.push(match &report.ends_with_daemon {
        None => "  mount: outlives its daemon".to_owned(),
        Some(reason) => format!("  mount: ends with its daemon ({reason})"),
    });
    let reasons = report.tiers.iter().filter_map(|tier| Some((&tier.name, tier.reason.as_ref()?)));
    lines.extend(reasons.map(|(name, reason)| format!("  tier {name}: {reason}")));
    lines.extend(report.warnings.iter().map(|warning| format!("  warning: {warning}")));
    lines.extend(report.recovery.iter().map(|note| format!("  recovery: {note}")));
    lines.extend(damaged_lines(&report.name, &report.damaged));
    lines.join("\n")
}

fn idle_processors_line(report: &IdleProcessorsReport) -> String {
    match &report.sleep_reason {
        Some(reason) => format!("  idle processors: sleep as the system decides ({reason})"),
        None => format!(
            "  idle processors: kept awake during bursts of requests ({} so far, {:.1} s)",
            report.bursts, report.awake_seconds
        ),
    }
}

/// Files with lost bytes, and the remedy; nothing where no file lost any.
fn damaged_lines(volume: &str, damaged: &DamagedFilesReport) -> Vec<String> {
    let unreadable = damaged.unreadable.iter().map(|ino| {
        format!("  warning: the record of inode {ino} cannot be read; unmount, and `polymux fsck {volume}` says what that means")
    });
    let mut lines: Vec<String> = unreadable.collect();
    if damaged.files == 0 {
        return lines;
    }
    let so_far = if damaged.complete { "" } else { " so far" };
    lines.push(format!(
        "  lost bytes: in {}{so_far}; `polymux fsck --online {volume}` names all, `polymux fsck --accept FILE...` makes lost \
         bytes zeros",
        output::files(damaged.files)
    ));
    lines.extend(damaged.listed.iter().map(|path| format!("    {path}")));
    lines
}

/// The longest that anything made way for reads and syncs, with its tier; nothing where nothing did.
fn made_way_line(tiers: &[TierReport]) -> Option<String> {
    let worst = |words: &str, of: fn(&TierReport) -> &DeferralReport| {
        let tier = tiers.iter().max_by_key(|tier| of(tier).longest_us)?;
        let longest_us = of(tier).longest_us;
        let ms = longest_us.div_ceil(1000);
        (longest_us > 0).then(|| format!("{words} for up to {ms} ms on tier {}", tier.name))
    };
    let moves = worst("moves", |tier| &tier.moves_waited);
    let behind = worst("writing behind", |tier| &tier.behind_waited);
    let words: Vec<String> = [moves, behind].into_iter().flatten().collect();
    (!words.is_empty()).then(|| format!("  made way for reads and syncs: {}", words.join(", ")))
}

fn moves_lines(volume: &str, moves: &MovesSummary) -> Vec<String> {
    let mut lines =
        vec![format!("  moves: {} running, {} queued, {} parked", moves.running, moves.queued, moves.parked)];
    if moves.movers == 0 {
        lines.push("  moves: none is carried out, because the configuration says `movers = 0`".to_owned());
    }
    if moves.is_paused {
        lines.push(format!("  moves: moving is paused; `polymux resume {volume}` goes on"));
    }
    if let Some(minutes) = moves.window_opens_in_minutes {
        lines.push(format!(
            "  moves: outside its time windows only what people and drains want moves; the next one opens {}",
            opens_in(minutes)
        ));
    }
    lines.extend(moves.parked_why.iter().map(|why| format!("  moves: parked: {why}")));
    lines.extend(moves.drains.iter().map(|drain| format!("  {}", drain_line(drain))));
    lines
}

/// When the next time window of the movers opens.
pub fn opens_in(minutes: u32) -> String {
    match minutes {
        u32::MAX => "never".to_owned(),
        minutes => format!("in {} h {} min", minutes / 60, minutes % 60),
    }
}

/// How far the emptying of a tier is.
pub fn drain_line(drain: &DrainReport) -> String {
    let tier = &drain.tier;
    let waiting =
        drain.why.as_ref().map_or_else(String::new, |why| format!("; {} waiting: {why}", output::files(drain.parked)));
    match (drain.is_empty, drain.bytes_total, drain.files_total) {
        (true, ..) => format!("drain of tier `{tier}`: it is empty: safe to remove"),
        (false, Some(bytes), Some(files)) => format!(
            "drain of tier `{tier}`: {} of {}, {} of {}{waiting}",
            ByteSize(drain.bytes_done),
            ByteSize(bytes),
            drain.files_done,
            output::files(files)
        ),
        (false, ..) => format!("drain of tier `{tier}`: {} moved, counting{waiting}", ByteSize(drain.bytes_done)),
    }
}

fn store_line(store: &MetadataStoreReport) -> String {
    let ballast = match store.ballast_wanted_bytes.saturating_sub(store.ballast_held_bytes) {
        0 => format!("{} of ballast", ByteSize(store.ballast_held_bytes)),
        missing => format!("{} of ballast missing: nothing may grow until the tier has room", ByteSize(missing)),
    };
    format!(
        "  metadata log: {}, {} of {} in use; {} tables, {}; {ballast}",
        store.log_medium,
        ByteSize(store.log_used_bytes),
        ByteSize(store.log_bytes),
        store.tables,
        ByteSize(store.table_bytes)
    )
}

/// Whether operations that were reported as done survive the daemon.
fn window_line(store: &MetadataStoreReport) -> String {
    match (&store.log_window, &store.log_window_reason) {
        (Some(place), _) => format!("  not flushed yet: outlives the daemon ({place})"),
        (None, Some(reason)) => format!("  not flushed yet: lost if the daemon dies ({reason})"),
        (None, None) => "  not flushed yet: lost if the daemon dies".to_owned(),
    }
}

fn copy_line(copy: &MetadataCopyReport) -> String {
    let reason = copy.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let (Some(tier), Some(lag_bytes), Some(lag_ms)) = (&copy.tier, copy.lag_bytes, copy.lag_ms) else {
        return match &copy.tier {
            Some(tier) => format!("  second copy: on tier {tier}, {}{reason}", copy.state),
            None => format!("  second copy: none{reason}"),
        };
    };
    let lag = match lag_bytes {
        0 => "nothing is missing".to_owned(),
        bytes => format!("{} behind, {lag_ms} ms", ByteSize(bytes)),
    };
    format!("  second copy: on tier {tier}, {}, {lag}{reason}", copy.state)
}

/// The state of a tier in one word.
pub fn state_of(tier: &TierReport) -> &str {
    if tier.draining && tier.state == "online" { "draining" } else { &tier.state }
}

fn tier_table(tiers: &[TierReport]) -> String {
    let mut table =
        Table::new(&["tier", "state", "file system", "promise", "capacity", "used", "free", "reserve", "path"]);
    for tier in tiers {
        table.row(vec![
            tier.name.clone(),
            state_of(tier).to_owned(),
            tier.file_system.clone().unwrap_or_else(|| "-".to_owned()),
            tier.guarantee.clone().unwrap_or_else(|| "-".to_owned()),
            output::size(tier.total),
            output::size(tier.used),
            output::size(tier.free),
            output::size(Some(tier.reserve)),
            tier.path.clone(),
        ]);
    }
    table.render("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(name: &str, moves_us: u64, behind_us: u64) -> TierReport {
        let waits = |longest_us: u64| json!({ "requests": 3, "at_bound": 1, "longest_us": longest_us, "waits": [] });
        serde_json::from_value(json!({
            "id": 0, "name": name, "path": "/", "state": "online", "reserve": 0, "shares_file_system_with": [],
            "capabilities": {}, "counters": {}, "moves_waited": waits(moves_us), "behind_waited": waits(behind_us),
        }))
        .unwrap()
    }

    #[test]
    fn the_longest_that_anything_made_way_is_shown_with_its_tier() {
        assert_eq!(made_way_line(&[tier("fast", 0, 0), tier("slow", 0, 0)]), None);
        let line = made_way_line(&[tier("fast", 1500, 0), tier("slow", 29_100, 0)]);
        assert_eq!(line.as_deref(), Some("  made way for reads and syncs: moves for up to 30 ms on tier slow"));
        let line = made_way_line(&[tier("fast", 0, 8000), tier("slow", 29_100, 0)]).unwrap();
        assert!(line.ends_with("on tier slow, writing behind for up to 8 ms on tier fast"), "{line}");
    }
}
