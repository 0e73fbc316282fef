//! `polymux rebuild`: a new metadata store from the data on the tiers, where the store and every copy of it are lost
//! (docs/design/0013).
//!
//! Invariants:
//! * It is the last resort: a store that can be opened, and a second copy that can be used, are refused first.
//! * For its length every tier is locked, so that no daemon mounts the volume meanwhile.
//! * The store is made beside its place and renamed into it as a whole; one that was cut short is made anew by the next run.
//!   A store in its place is moved aside, never deleted.

mod progress;
mod report;

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::tiers::{self, AskedBy};
use polymux_fs::{
    Access, FileSystem, NewVolume, RebuildProgress, RebuildSource, TierMember, TierPresence, VolumeError,
};
use polymux_meta::{LogStore, MetadataStore, StoreState};
use polymux_types::{Errno, SystemClock};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{RebuildArguments, output_format};
use crate::client;
use crate::progress::StepLine;
use crate::protocol::Request;
use polymux_config::config::VolumeConfig;
use polymux_config::metadata;
use polymux_config::metadata_copy;
use polymux_config::registry::{Registry, VolumeReference};

use self::report::RebuildOutput;

/// Whether a store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only reports the result that a rebuild would have.
    Report,
    /// It is.
    Make,
}

/// Rebuilds a volume.
pub fn run(registry: &Registry, arguments: &RebuildArguments) -> Result<()> {
    let path = registry.config_path(&VolumeReference::parse(&arguments.volume))?;
    let config = VolumeConfig::read(&path)?;
    if client::ask(registry, &config.name, &Request::Status)?.is_some() {
        bail!("volume `{}` is mounted: its metadata store is in use", config.name);
    }
    let mode = if arguments.no { Mode::Report } else { Mode::Make };
    let access = if mode == Mode::Make { Access::ReadWrite } else { Access::ReadOnly };
    let members = tiers::open_all(&config, access, AskedBy::Process)?;
    refuse_missing(&config, &path, &members)?;
    refuse_what_is_better(&config, arguments)?;
    if mode == Mode::Make && !arguments.yes {
        confirm(&config)?;
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancelled)).context("cannot watch signals")?;
    }
    let start = Instant::now();
    let source = RebuildSource {
        name: config.name.clone(),
        volume: NewVolume {
            id: config.id,
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            root_permissions: 0o755,
        },
        tiers: members,
        clock: Arc::new(SystemClock::new()),
    };
    let (report, aside) = match mode {
        Mode::Report => (rebuild(&source, None, &cancelled)?, None),
        Mode::Make => make(&config, &source, &cancelled)?,
    };
    let output = RebuildOutput::new(&config.name, mode, &report, aside, start.elapsed());
    report::print(&output, output_format(arguments.json))
}

/// Without one of its tiers a volume would silently come back with less data than it has.
fn refuse_missing(config: &VolumeConfig, path: &Path, members: &[TierMember]) -> Result<()> {
    for (tier, member) in config.tiers.iter().zip(members) {
        if let TierPresence::Missing(reason) = &member.presence {
            bail!(
                "tier `{}` is missing: {reason}. Bring it back first. Where it is gone for good, take it out of {}: then the \
                 volume is rebuilt without it, and what lies only there is missing. Its objects stay as they are; where it \
                 comes back later, list it again, move the new metadata store away, and rebuild once more",
                tier.name,
                path.display()
            );
        }
    }
    Ok(())
}

/// The store itself, or a second copy of it, knows more than the objects do.
fn refuse_what_is_better(config: &VolumeConfig, arguments: &RebuildArguments) -> Result<()> {
    let store = config.metadata_directory();
    if let StoreState::Healthy | StoreState::Behind(_) = metadata_copy::state_of(config)? {
        bail!(
            "the metadata store in {} can be opened: `polymux fsck` repairs it, and loses less. To rebuild all the same, move \
             that directory away first",
            store.display()
        );
    }
    if arguments.ignore_copy {
        return Ok(());
    }
    match metadata_copy::newest_copy(config) {
        Ok((tier, copy)) => bail!(
            "there is a second copy of the metadata store on tier `{}`, {}: start from it with `polymux mount --from-copy`. \
             Where that is refused, or the copy is too old, `--ignore-copy` rebuilds all the same",
            config.tiers[tier].name,
            metadata_copy::lag_of(&copy)
        ),
        Err(_) => Ok(()),
    }
}

fn confirm(config: &VolumeConfig) -> Result<()> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!("`polymux rebuild -n` shows what would come back; --yes makes the new metadata store");
    }
    eprintln!(
        "A new metadata store for volume `{}` is made out of the objects on its tiers. {} `-n` shows what would come back.",
        config.name,
        report::BY_DESIGN[0]
    );
    eprint!("Go on? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { bail!("nothing was done") }
}

fn rebuild(
    source: &RebuildSource,
    store: Option<&dyn MetadataStore>,
    cancelled: &AtomicBool,
) -> Result<polymux_fs::RebuildReport> {
    let mut line = StepLine::start("rebuild");
    let mut on_progress = |progress: &RebuildProgress| {
        progress::show(&mut line, progress);
        if cancelled.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let rebuilt = FileSystem::rebuild(source, store, &mut on_progress);
    line.finish();
    rebuilt.map_err(|error| match &error {
        VolumeError::FileSystem(inner) if inner.errno() == Errno::EINTR => {
            anyhow!("the rebuild was ended before it was through; nothing was put into place")
        }
        _ => anyhow!("volume `{}`: {error}", source.name),
    })
}

/// Makes the store beside its place, and renames it into place. Returns a message about the store that it replaced.
fn make(
    config: &VolumeConfig,
    source: &RebuildSource,
    cancelled: &AtomicBool,
) -> Result<(polymux_fs::RebuildReport, Option<String>)> {
    let store = config.metadata_directory();
    let beside = store.with_extension("rebuilding");
    remove_unfinished(&beside)?;
    let made: LogStore = metadata::create_beside(config, &beside)?;
    let rebuilt = rebuild(source, Some(&made), cancelled).and_then(|report| {
        made.checkpoint().context("writing the new metadata store")?;
        Ok(report)
    });
    drop(made);
    let report = match rebuilt {
        Ok(report) => report,
        Err(error) => {
            remove_unfinished(&beside)?;
            return Err(error);
        }
    };
    let aside = metadata_copy::move_aside(&store)?;
    fs::rename(&beside, &store).with_context(|| format!("renaming {}", beside.display()))?;
    let directory = store.parent().ok_or_else(|| anyhow!("{} has no directory", store.display()))?;
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .with_context(|| format!("{}", directory.display()))?;
    Ok((report, Some(aside).filter(|aside| !aside.is_empty())))
}

/// Removes the unfinished store of an earlier run that did not come to its end; it was never used.
fn remove_unfinished(beside: &Path) -> Result<()> {
    match fs::remove_dir_all(beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", beside.display()))
        }
        _ => Ok(()),
    }
}
