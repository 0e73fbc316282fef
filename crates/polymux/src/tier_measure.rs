//! `polymux tier measure`: profiles of the devices of the tiers, kept with the volume (docs/design/0019).
//!
//! Invariants:
//! * Of a mounted volume the daemon measures, because it has the tiers; it ends when no client waits for its answer any more.
//!   A volume that is not mounted is taken into service for it without a mount point, as by a daemon, so that everything is
//!   checked, recovered and left as a mount would.
//! * Ctrl-C ends it; earlier measurements stay on record, and nothing stays on a tier.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::opening::{self, OpenedVolume};
use polymux_config::request::OpenRequest;
use polymux_config::tiers::AskedBy;
use polymux_fs::{FileSystem, KernelConnection, VolumeError};
use polymux_tier::measure::{MeasureProgress, TIME_DEFAULT, TIME_MAX, TIME_MIN};
use polymux_types::{ByteSize, Errno};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::OutputFormat;
use crate::cli::{TierMeasureArguments, output_format};
use crate::client;
use crate::output::{self, Table};
use crate::progress::StepLine;
use crate::protocol::{Answer, MeasureProgressReport, MeasuredTierReport, ProfileReport, Request};
use crate::status;
use polymux_config::config::VolumeConfig;
use polymux_config::registry::{Registry, VolumeReference};

/// Measures tiers and prints the results.
pub fn run(registry: &Registry, arguments: &TierMeasureArguments) -> Result<()> {
    let time = time_of(arguments.seconds)?;
    let name = client::volume_name(registry, &arguments.volume)?;
    let found = if status::status_of(registry, &name)?.is_some() {
        ask_daemon(registry, &name, &arguments.tiers, time)?
    } else {
        let path = registry.config_path(&VolumeReference::parse(&arguments.volume))?;
        unmounted(&VolumeConfig::read(&path)?, &arguments.tiers, time)?
    };
    match output_format(arguments.json) {
        OutputFormat::Json => output::json(&found),
        OutputFormat::Text => output::line(&found.iter().map(render).collect::<Vec<_>>().join("\n")),
    }
}

/// How long each tier may take.
pub fn time_of(seconds: Option<u64>) -> Result<Duration> {
    let Some(seconds) = seconds else { return Ok(TIME_DEFAULT) };
    if !(TIME_MIN..=TIME_MAX).contains(&Duration::from_secs(seconds)) {
        bail!("a measurement takes {} to {} seconds, not {seconds}", TIME_MIN.as_secs(), TIME_MAX.as_secs());
    }
    Ok(Duration::from_secs(seconds))
}

/// Has the daemon of a volume measure tiers, all where none is named.
pub fn ask_daemon(
    registry: &Registry,
    name: &str,
    tiers: &[String],
    time: Duration,
) -> Result<Vec<MeasuredTierReport>> {
    let all = status::status_of(registry, name)?.map(|report| report.tiers).unwrap_or_default();
    let all: Vec<String> = all.into_iter().map(|tier| tier.name).collect();
    let mut line = Line::start();
    let mut found = Vec::new();
    for tier in chosen(&all, tiers) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = Request::TierMeasure { tier: tier.clone(), millis };
        let answer = client::ask_with_progress(registry, name, &request, &mut |answer| {
            if let Answer::MeasureProgress(progress) = answer {
                line.show(progress);
            }
        });
        match answer? {
            Some(Answer::TierMeasured(report)) => found.push(*report),
            Some(_) => bail!("the daemon of volume `{name}` gave an answer to another question"),
            None => bail!("the daemon of volume `{name}` is not there any more"),
        }
    }
    Ok(found)
}

fn chosen<'a>(all: &'a [String], tiers: &'a [String]) -> &'a [String] {
    if tiers.is_empty() { all } else { tiers }
}

/// Measures tiers of a volume that is not mounted, all where none is named.
pub fn unmounted(config: &VolumeConfig, tiers: &[String], time: Duration) -> Result<Vec<MeasuredTierReport>> {
    let all: Vec<String> = config.tiers.iter().map(|tier| tier.name.clone()).collect();
    let tiers = chosen(&all, tiers);
    if let Some(unknown) = tiers.iter().find(|tier| !all.contains(tier)) {
        bail!("volume `{}` has no tier `{unknown}`", config.name);
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancelled)).context("cannot watch signals")?;
    }
    let OpenedVolume { file_system, metadata, warnings } =
        opening::open(config, &OpenRequest::default(), KernelConnection::New, AskedBy::Process)?;
    warnings.iter().for_each(|warning| output::warn(warning));
    let found = measure_each(&file_system, tiers, time, &cancelled);
    let ended = file_system.unmount();
    metadata.writable().inspect(|store| store.finish_copy());
    let found = found?;
    ended.map_err(|error| anyhow!("volume `{}` did not end cleanly: {error}", config.name))?;
    Ok(found)
}

fn measure_each(
    file_system: &FileSystem,
    tiers: &[String],
    time: Duration,
    cancelled: &AtomicBool,
) -> Result<Vec<MeasuredTierReport>> {
    let mut line = Line::start();
    let mut found = Vec::new();
    for tier in tiers {
        found.push(measure(file_system, tier, time, &mut |progress| {
            line.show(progress);
            if cancelled.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?);
    }
    Ok(found)
}

/// Measures a tier of a volume that this process serves.
pub fn measure(
    file_system: &FileSystem,
    tier: &str,
    time: Duration,
    on_progress: &mut dyn FnMut(&MeasureProgressReport) -> ControlFlow<()>,
) -> Result<MeasuredTierReport> {
    let mut tell = |progress: &MeasureProgress| on_progress(&MeasureProgressReport::of(tier, progress));
    let profile = file_system.measure_tier(tier, time, &mut tell).map_err(|error| match &error {
        VolumeError::FileSystem(inner) if inner.errno() == Errno::EINTR => {
            anyhow!("the measurement of tier `{tier}` was ended before it was through; nothing of it is kept")
        }
        _ => anyhow!(error),
    })?;
    let profile = ProfileReport::of(&profile).ok_or_else(|| anyhow!("nothing was measured of tier `{tier}`"))?;
    Ok(MeasuredTierReport { tier: tier.to_owned(), profile })
}

/// The line on which it is shown how far it is; goes when it is dropped.
struct Line(StepLine<String>);

impl Line {
    fn start() -> Self {
        Self(StepLine::start("measure"))
    }

    fn show(&mut self, progress: &MeasureProgressReport) {
        let MeasureProgressReport { tier, done, total, load } = progress;
        self.0.show(format!("{tier} {done}"), |_| format!("tier {tier}: load {} of {total}: {load}", done + 1));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Bytes per second for people; a dash where they are not known.
pub fn rate(bytes_per_second: Option<u64>) -> String {
    bytes_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", ByteSize(rate)))
}

fn count(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// The results for one tier, for people.
pub fn render(report: &MeasuredTierReport) -> String {
    let ProfileReport { file_bytes, elapsed_ms, .. } = report.profile;
    let profile = &report.profile;
    let way = match profile.way.as_deref() {
        Some("direct") => "past the page cache",
        Some("synced") => "through the page cache, each write synced, nothing read from it",
        _ => "in memory, without a device",
    };
    let mut lines = vec![format!(
        "tier {}: measured on a file of {} in {}.{} s, {way}",
        report.tier,
        ByteSize(file_bytes),
        elapsed_ms / 1000,
        elapsed_ms % 1000 / 100
    )];
    lines.push(format!(
        "  sequential: read {}, write {}",
        rate(profile.sequential_read),
        rate(profile.sequential_write)
    ));
    lines.push(format!(
        "  random 4 KiB: {} reads/s with {} at once, {} writes/s",
        count(profile.random_reads),
        count(profile.saturating_reads),
        count(profile.random_writes)
    ));
    lines.push(format!(
        "  one read of 4 KiB: median {} us, 99 % within {} us",
        count(profile.read_latency_median_us),
        count(profile.read_latency_p99_us)
    ));
    lines.extend(profile.caveats.iter().map(|caveat| format!("  think of it: {caveat}")));
    let mut table = Table::new(&["load", "request", "at once", "bytes", "requests", "median", "99 %"]);
    for point in &profile.points {
        table.row(vec![
            format!("{} {}", point.pattern, point.direction),
            ByteSize(u64::from(point.request_bytes)).to_string(),
            point.in_flight.to_string(),
            rate(Some(point.bytes_per_second)),
            format!("{}/s", point.requests_per_second),
            format!("{} us", point.median_us),
            format!("{} us", point.p99_us),
        ]);
    }
    lines.push(table.render("  "));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_measurement_has_bounds() {
        assert_eq!(time_of(None).unwrap(), TIME_DEFAULT);
        assert_eq!(time_of(Some(3)).unwrap(), Duration::from_secs(3));
        for seconds in [0, 601, u64::MAX] {
            assert!(time_of(Some(seconds)).is_err(), "{seconds}");
        }
    }
}
