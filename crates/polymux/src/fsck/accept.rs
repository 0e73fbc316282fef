//! `polymux fsck --accept`: lost bytes of files become zeros.
//!
//! Invariant: a file is named to the daemon by its inode number and its volume by the mount that it lies on.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;

use crate::cli::OutputFormat;
use crate::client;
use crate::mount_table::{MountTable, is_polymux};
use crate::output;
use crate::protocol::{Answer, Request};
use polymux_config::registry::Registry;

/// The `--json` output for each file.
#[derive(Debug, Serialize)]
struct Accepted {
    path: String,
    /// Byte ranges that are zeros now: start and end.
    ranges: Vec<(u64, u64)>,
}

/// Accepts the losses of files, one after the other.
pub fn run(registry: &Registry, files: &[PathBuf], format: OutputFormat) -> Result<()> {
    let mut all = Vec::new();
    for file in files {
        let accepted = accept(registry, file)?;
        match format {
            OutputFormat::Json => all.push(accepted),
            OutputFormat::Text if accepted.ranges.is_empty() => {
                output::line(&format!("{}: no byte of it is lost", output::name(&accepted.path)))?;
            }
            OutputFormat::Text => {
                let ranges = accepted.ranges.iter().map(|(start, end)| format!("{start}..{end}"));
                let ranges = ranges.collect::<Vec<_>>().join(", ");
                output::line(&format!("{}: bytes {ranges} are zeros now", output::name(&accepted.path)))?;
            }
        }
    }
    match format {
        OutputFormat::Json => output::json(&all),
        OutputFormat::Text => Ok(()),
    }
}

fn accept(registry: &Registry, file: &Path) -> Result<Accepted> {
    let path = file.canonicalize().with_context(|| format!("cannot find {}", file.display()))?;
    let ino = path.metadata().with_context(|| format!("cannot look at {}", file.display()))?.ino();
    let mount = MountTable::read()?
        .containing(&path)
        .filter(|mount| is_polymux(mount))
        .cloned()
        .ok_or_else(|| anyhow!("{} does not lie on a mounted Polymux volume", file.display()))?;
    match client::ask(registry, &mount.source, &Request::AcceptLoss { ino })? {
        Some(Answer::LossAccepted(ranges)) => Ok(Accepted { path: file.display().to_string(), ranges }),
        Some(_) => bail!("the daemon of volume `{}` answered something else", mount.source),
        None => bail!("the daemon of volume `{}` is not there", mount.source),
    }
}
