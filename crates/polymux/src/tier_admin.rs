//! `polymux tier`: the tiers of a mounted volume.
//!
//! Invariant: the daemon does it all; here its answer is asked for and printed.

use anyhow::{Result, bail};
use polymux_tier::measure::TIME_DEFAULT;

use crate::cli::{OutputFormat, TierAddArguments};
use crate::client;
use crate::create;
use crate::output::{self, Table};
use crate::protocol::{Answer, ProfileReport, Request, TierPlace, TierReport};
use crate::status;
use crate::tier_measure;
use polymux_config::registry::Registry;

/// Takes a tier into a volume.
pub fn add(registry: &Registry, arguments: &TierAddArguments) -> Result<()> {
    let name = mounted_volume(registry, &arguments.volume)?;
    let mut tier = create::candidate(&arguments.tier)?;
    tier.capacity = arguments.capacity.map(|capacity| capacity.0);
    tier.reserve = arguments.reserve.map(|reserve| reserve.0);
    let place = match (arguments.position, &arguments.before) {
        (Some(position), _) => TierPlace::Position(position.get()),
        (None, Some(before)) => TierPlace::Before(before.clone()),
        (None, None) => TierPlace::Last,
    };
    let volatile_for_tests = arguments.volatile_for_tests;
    let new = tier.name.clone();
    change(registry, &name, &Request::TierAdd { tier: tier.to_entry(), place, volatile_for_tests })?;
    if arguments.measure {
        // It has joined, whatever comes of this.
        match tier_measure::ask_daemon(registry, &name, std::slice::from_ref(&new), TIME_DEFAULT) {
            Ok(found) => found.iter().try_for_each(|report| output::line(&tier_measure::render(report)))?,
            Err(error) => output::warn(&format!("{error:#}; `polymux tier measure {name} {new}` tries again")),
        }
    }
    Ok(())
}

/// Takes a tier out of a volume.
pub fn remove(registry: &Registry, volume: &str, tier: &str) -> Result<()> {
    let name = mounted_volume(registry, volume)?;
    change(registry, &name, &Request::TierRemove { tier: tier.to_owned() })
}

/// Shows the tiers of a volume.
pub fn list(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let name = client::volume_name(registry, volume)?;
    let Some(report) = status::status_of(registry, &name)? else { return not_mounted(&name) };
    match format {
        OutputFormat::Json => output::json(&report.tiers),
        OutputFormat::Text => output::line(&render(&report.tiers)),
    }
}

/// The name of a volume that has to be mounted. Checked before any other argument.
fn mounted_volume(registry: &Registry, text: &str) -> Result<String> {
    let name = client::volume_name(registry, text)?;
    if status::status_of(registry, &name)?.is_none() {
        return not_mounted(&name);
    }
    Ok(name)
}

fn not_mounted<T>(name: &str) -> Result<T> {
    bail!("volume `{name}` is not mounted: mount it first")
}

fn change(registry: &Registry, name: &str, request: &Request) -> Result<()> {
    match client::ask(registry, name, request)? {
        Some(Answer::TierChanged(change)) => {
            change.warnings.iter().for_each(|warning| output::warn(warning));
            output::line(&change.done)
        }
        Some(_) => bail!("the daemon of volume `{name}` answered something else"),
        None => not_mounted(name),
    }
}

fn render(tiers: &[TierReport]) -> String {
    let mut table = Table::new(&[
        "tier",
        "number",
        "state",
        "total",
        "used",
        "full",
        "drops to",
        "starts at",
        "reads",
        "writes",
        "measured",
        "path",
    ]);
    for tier in tiers {
        let share = |bytes: Option<u64>| match (bytes, tier.total) {
            (Some(bytes), Some(total)) if total > 0 => {
                format!("{} %", u128::from(bytes) * 100 / u128::from(total))
            }
            _ => "-".to_owned(),
        };
        let profile = tier.profile.as_ref();
        table.row(vec![
            tier.name.clone(),
            tier.id.to_string(),
            status::state_of(tier).to_owned(),
            output::size(tier.total),
            output::size(tier.used),
            share(tier.used),
            output::size(Some(tier.low_mark)),
            output::size(Some(tier.high_mark)),
            tier_measure::rate(profile.and_then(|profile| profile.sequential_read)),
            tier_measure::rate(profile.and_then(ProfileReport::write_bytes_per_second)),
            profile.and_then(ProfileReport::day).unwrap_or("-").to_owned(),
            tier.path.clone(),
        ]);
    }
    let reasons = tiers.iter().filter_map(|tier| Some(format!("{}: {}", tier.name, tier.reason.as_ref()?)));
    std::iter::once(table.render("")).chain(reasons).collect::<Vec<_>>().join("\n")
}
