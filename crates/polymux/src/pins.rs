//! `polymux pin` and `polymux unpin`: files and directories that have to be on one tier.
//!
//! Invariant: files are named to the daemon by inode number, and everything that can be refused by looking at the paths is
//! refused before the first of them is pinned.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::cli::{OutputFormat, PinArguments, output_format};
use crate::client;
use crate::migrate::Places;
use crate::output::{self, Table};
use crate::protocol::{Answer, FILES_PER_REQUEST_MAX, PinsReport, Request};
use polymux_config::registry::Registry;

/// The output of `pin --json` and `unpin --json`.
#[derive(Debug, Serialize)]
struct Summary {
    /// Name of the volume.
    volume: String,
    /// Tier that was named; `None` for `unpin`.
    tier: Option<String>,
    /// Files that were pinned or unpinned.
    done: Vec<String>,
    /// Files without a pin of their own.
    without_pin: Vec<String>,
    /// Files that were refused, and the reasons.
    refused: Vec<(String, String)>,
}

/// Pins paths, or lists pins.
pub fn pin(registry: &Registry, arguments: &PinArguments) -> Result<()> {
    let format = output_format(arguments.json);
    match (&arguments.list, &arguments.tier) {
        (Some(volume), _) => list(registry, volume, format),
        (None, Some(tier)) => change(registry, &arguments.paths, Some(tier), format),
        (None, None) => bail!("--tier is missing: name the tier to pin to"),
    }
}

/// Takes pins away.
pub fn unpin(registry: &Registry, paths: &[PathBuf], format: OutputFormat) -> Result<()> {
    change(registry, paths, None, format)
}

fn change(registry: &Registry, paths: &[PathBuf], tier: Option<&str>, format: OutputFormat) -> Result<()> {
    let places = Places::of(paths)?;
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut inodes = Vec::new();
    for path in &places.paths {
        let ino = inode_of(path)?;
        if names.insert(ino, path.display().to_string()).is_none() {
            inodes.push(ino);
        }
    }
    let name_of = |ino: u64| names.get(&ino).cloned().unwrap_or_else(|| format!("inode {ino}"));
    let mut summary = Summary {
        volume: places.volume,
        tier: tier.map(str::to_owned),
        done: Vec::new(),
        without_pin: Vec::new(),
        refused: Vec::new(),
    };
    for page in inodes.chunks(FILES_PER_REQUEST_MAX) {
        let request = Request::Pin { files: page.to_vec(), tier: tier.map(str::to_owned) };
        match client::ask(registry, &summary.volume, &request)? {
            Some(Answer::Pinned(report)) => {
                summary.done.extend(report.done.into_iter().map(name_of));
                summary.without_pin.extend(report.without_pin.into_iter().map(name_of));
                summary.refused.extend(report.refused.into_iter().map(|file| (name_of(file.ino), file.why)));
            }
            Some(_) => bail!("the daemon of volume `{}` answered something else", summary.volume),
            None => bail!("the daemon of volume `{}` is not there", summary.volume),
        }
    }
    tell(&summary, format)
}

fn inode_of(path: &Path) -> Result<u64> {
    Ok(path.symlink_metadata().with_context(|| format!("cannot look at {}", path.display()))?.ino())
}

fn tell(summary: &Summary, format: OutputFormat) -> Result<()> {
    match format {
        OutputFormat::Json => output::json(summary)?,
        OutputFormat::Text => {
            for path in &summary.done {
                let place = Path::new(path);
                let path = output::name(path);
                let what = if place.is_dir() { format!("everything below {path}") } else { path.clone() };
                output::line(&match &summary.tier {
                    Some(tier) => format!("{what} is pinned to tier `{tier}`"),
                    None => format!("{path} is not pinned any more"),
                })?;
            }
            for path in &summary.without_pin {
                output::warn(&format!("{path} has no pin of its own; `polymux explain` tells whether one above holds"));
            }
        }
    }
    match summary.refused.first() {
        Some((path, why)) => bail!("{path}: {why}{}", and_others(summary.refused.len())),
        None => Ok(()),
    }
}

fn and_others(refused: usize) -> String {
    if refused > 1 { format!(" (and {} others)", refused - 1) } else { String::new() }
}

fn list(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let name = client::volume_name(registry, volume)?;
    let report = match client::ask_mounted(registry, &name, &Request::Pins)? {
        Answer::Pins(report) => report,
        _ => return Err(client::answered_something_else(&name)),
    };
    match format {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => output::line(&render(&report, &name)),
    }
}

fn render(report: &PinsReport, name: &str) -> String {
    if report.pins.is_empty() {
        return format!("nothing on volume `{name}` is pinned");
    }
    let mut table = Table::new(&["tier", "path"]);
    for pin in &report.pins {
        let path = pin
            .path
            .as_ref()
            .map_or_else(|| format!("inode {} (has no name)", pin.ino), |path| format!("/{}", output::name(path)));
        let below = if pin.is_directory && !path.ends_with('/') { "/" } else { "" };
        let tier = if pin.has_tier { pin.tier.clone() } else { format!("{} (no such tier: no effect)", pin.tier) };
        table.row(vec![tier, format!("{path}{below}")]);
    }
    table.render("")
}
