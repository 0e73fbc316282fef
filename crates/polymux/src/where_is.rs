//! `polymux where`: which tiers hold the bytes of a file.
//!
//! Invariant: the file is named to the daemon by its inode number, so that the daemon never opens anything under its
//! own mount.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use polymux_types::ByteSize;
use serde::Serialize;

use crate::cli::{ExtentDetail, OutputFormat};
use crate::client;
use crate::file_map::{self, FileMap};
use crate::mount_table::{MountTable, is_polymux};
use crate::output::{self, Table};
use crate::protocol::{Answer, Request, TierFilesReport, WhereReport};
use polymux_config::registry::Registry;

/// The output of `where --json`: the report, and with `--map` the picture.
#[derive(Debug, Serialize)]
struct WhereAndMap {
    #[serde(flatten)]
    report: WhereReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<FileMap>,
}

/// Shows where a file is.
pub fn run(registry: &Registry, file: &Path, detail: ExtentDetail, format: OutputFormat) -> Result<()> {
    let report = locate(registry, file)?;
    let map = (detail == ExtentDetail::Map).then(|| FileMap::of(file, &report, file_map::width()));
    match format {
        OutputFormat::Json => output::json(&WhereAndMap { report, map }),
        OutputFormat::Text => {
            output::line(&render(file, &report, detail))?;
            map.map_or(Ok(()), |map| output::line(&map.render(file_map::colours())))
        }
    }
}

/// Shows which files have bytes on a tier of a volume.
pub fn tier(registry: &Registry, volume: &Path, tier: &str, limit: usize, format: OutputFormat) -> Result<()> {
    let volume = volume.to_str().ok_or_else(|| anyhow!("{} is not the name of a volume", volume.display()))?;
    let name = client::volume_name(registry, volume)?;
    let request = Request::WhereTier { tier: tier.to_owned(), listed_max: limit };
    let report = match client::ask_mounted(registry, &name, &request)? {
        Answer::WhereTier(report) => report,
        _ => return Err(client::answered_something_else(&name)),
    };
    match format {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => output::line(&render_tier(&report)),
    }
}

fn render_tier(report: &TierFilesReport) -> String {
    let reason = report.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let mut lines = vec![
        format!("tier {} is {}{reason}", report.tier, report.state),
        format!("{} have bytes there, {} of them nowhere else", output::files(report.files), report.only),
    ];
    for file in &report.listed {
        let path = file
            .path
            .as_ref()
            .map_or_else(|| format!("inode {} (no name)", file.ino), |path| format!("/{}", output::name(path)));
        lines.push(if file.only { format!("  {path}") } else { format!("  {path} (in part)") });
    }
    let left = report.files.saturating_sub(report.listed.len() as u64);
    if left > 0 {
        lines.push(format!("  and {left} more (--limit shows them)"));
    }
    lines.join("\n")
}

/// Asks the daemon of the volume that a file lies on.
pub fn locate(registry: &Registry, file: &Path) -> Result<WhereReport> {
    let metadata = file.symlink_metadata().with_context(|| format!("cannot look at {}", file.display()))?;
    // A link is a file of its own: the query is about the link, not its target.
    let path = if metadata.is_symlink() { client::path_without_following(file)? } else { file.canonicalize()? };
    let mount = MountTable::read()?
        .containing(&path)
        .filter(|mount| is_polymux(mount))
        .cloned()
        .ok_or_else(|| anyhow!("{} does not lie on a Polymux volume", file.display()))?;
    match client::ask(registry, &mount.source, &Request::Where { ino: metadata.ino() })? {
        Some(Answer::Where(report)) => Ok(report),
        Some(_) => bail!("the daemon of volume `{}` answered something else", mount.source),
        None => bail!("the daemon of volume `{}` on {} is not there", mount.source, mount.mount_point.display()),
    }
}

/// The report for people.
pub fn render(file: &Path, report: &WhereReport, detail: ExtentDetail) -> String {
    let place = match &report.home {
        Some(tier) => format!("home tier {tier}"),
        None if report.bytes_inline > 0 => "in the metadata store".to_owned(),
        None => "home tier none yet".to_owned(),
    };
    let mut lines = vec![format!(
        "{}: {}, inode {}, {place}, {} extent records",
        output::path(file),
        ByteSize(report.size),
        report.ino,
        report.extent_records
    )];
    if !report.io.is_empty() {
        lines.push(format!("  I/O: {}", report.io));
    }
    if !report.tiers.is_empty() {
        let mut table = Table::new(&["tier", "bytes", "allocated", "object"]);
        for share in &report.tiers {
            table.row(vec![
                share.tier.clone(),
                output::size(Some(share.bytes_mapped)),
                output::size(share.bytes_allocated),
                share.object.clone(),
            ]);
        }
        lines.push(table.render("  "));
    }
    if detail == ExtentDetail::Shown {
        let mut table = Table::new(&["offset", "length", "tier"]);
        for extent in &report.extents {
            let tier = extent.tier.clone().unwrap_or_else(|| "nowhere yet".to_owned());
            table.row(vec![extent.offset.to_string(), extent.length.to_string(), tier]);
        }
        lines.push(table.render("  "));
    }
    let damaged = report.damaged.iter();
    lines.extend(damaged.map(|(offset, length)| {
        format!(
            "  damaged: {length} bytes at {offset} were lost by a failed sync or with a tier, and not written since: \
                 `polymux fsck --accept FILE` makes them zeros"
        )
    }));
    lines.join("\n")
}
