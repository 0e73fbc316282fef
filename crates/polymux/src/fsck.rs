//! `polymux fsck`: checks a volume and repairs it, or looks at one that is mounted (DESIGN section 12).
//!
//! Invariants:
//! * Exit codes are the sum of the conventional bits of fsck(8); see [`bits`].
//! * Without `-y` nothing changes, unless a person at a terminal has seen the findings and said yes.
//! * For the length of a check every tier is locked, so no daemon can mount the volume meanwhile.

mod accept;
mod copy;
mod progress;
mod report;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::opening::parts_of;
use polymux_config::request::OpenRequest;
use polymux_config::tiers::{self, AskedBy};
use polymux_fs::{
    Access, CheckMode, CheckProgress, FileSystem, MissingTiers, TierMember, TierPresence, VolumeCheck, VolumeError,
};
use polymux_meta::{InUse, LogView, OpenMode, StoreView};
use polymux_types::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{FsckArguments, output_format};
use crate::client;
use crate::output;
use crate::progress::StepLine;
use crate::protocol::{Answer, Request};
use polymux_config::config::VolumeConfig;
use polymux_config::metadata;
use polymux_config::metadata_copy::{Metadata, with_hint};
use polymux_config::registry::{Registry, VolumeReference};

pub use self::report::{FsckReport, report_of};

/// Bits of the exit code, as fsck(8) gives them.
pub mod bits {
    /// Errors were corrected.
    pub const CORRECTED: u8 = 1;
    /// Errors are left.
    pub const LEFT: u8 = 4;
    /// The check itself failed.
    pub const FAILED: u8 = 8;
    /// Wrong usage.
    pub const USAGE: u8 = 16;
    /// The user ended it.
    pub const CANCELLED: u8 = 32;
}

/// How a check ended.
enum Ended {
    Done(Box<FsckReport>),
    Cancelled,
}

/// Checks a volume.
pub fn run(arguments: &FsckArguments) -> ExitCode {
    match Registry::from_environment().and_then(|registry| check(&registry, arguments)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::error(&error);
            ExitCode::from(bits::FAILED)
        }
    }
}

fn check(registry: &Registry, arguments: &FsckArguments) -> Result<u8> {
    let format = output_format(arguments.json);
    if !arguments.accept.is_empty() {
        accept::run(registry, &arguments.accept, format)?;
        return Ok(0);
    }
    let ended = if arguments.online {
        Ended::Done(Box::new(ask_daemon(registry, volume_of(arguments))?))
    } else {
        offline(registry, arguments)?
    };
    match ended {
        Ended::Done(report) => {
            report::print(&report, format)?;
            Ok(report.exit_code)
        }
        Ended::Cancelled => {
            output::warn("the check was ended before it was through");
            Ok(bits::CANCELLED)
        }
    }
}

fn volume_of(arguments: &FsckArguments) -> &str {
    arguments.volume.as_deref().expect("the command line has a volume where no file is accepted")
}

fn ask_daemon(registry: &Registry, volume: &str) -> Result<FsckReport> {
    let name = client::volume_name(registry, volume)?;
    let mut line = StepLine::start("fsck");
    let answer = client::ask_with_progress(registry, &name, &Request::Fsck, &mut |answer| {
        if let Answer::CheckProgress(progress) = answer {
            progress::show(&mut line, progress);
        }
    });
    line.finish();
    match answer? {
        Some(Answer::Fsck(report)) => Ok(*report),
        Some(_) => bail!("the daemon of volume `{name}` gave an answer to another question"),
        None => bail!("volume `{name}` is not mounted: check it without --online"),
    }
}

fn offline(registry: &Registry, arguments: &FsckArguments) -> Result<Ended> {
    let path = registry.config_path(&VolumeReference::parse(volume_of(arguments)))?;
    let config = VolumeConfig::read(&path)?;
    if client::ask(registry, &config.name, &Request::Status)?.is_some() {
        bail!("volume `{}` is mounted: unmount it, or look at it with --online", config.name);
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancelled)).context("cannot watch signals")?;
    }
    if arguments.yes {
        return pass(&config, CheckMode::Repair, &cancelled);
    }
    let first = pass(&config, CheckMode::Report, &cancelled)?;
    let Ended::Done(report) = &first else { return Ok(first) };
    let may_ask = !arguments.no && !arguments.json && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if report.correctable == 0 || !may_ask {
        return Ok(first);
    }
    report::print(report, output_format(false))?;
    if agrees(&format!("Repair {} of these?", report.correctable))? {
        return pass(&config, CheckMode::Repair, &cancelled);
    }
    Ok(first)
}

fn agrees(question: &str) -> Result<bool> {
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Checks once.
fn pass(config: &VolumeConfig, mode: CheckMode, cancelled: &AtomicBool) -> Result<Ended> {
    let start = Instant::now();
    let mut line = StepLine::start("fsck");
    let mut on_progress = |progress: &CheckProgress| {
        progress::show(&mut line, &progress.into());
        if cancelled.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let access = if mode == CheckMode::Repair { Access::ReadWrite } else { Access::ReadOnly };
    let members = tiers::open_all(config, access, AskedBy::Process)?;
    refuse_without_metadata(config, &members)?;
    let request = OpenRequest { access: Some(access), missing: Some(MissingTiers::Degraded), ..OpenRequest::default() };
    let view = verified_store(config)?;
    let checked = match mode {
        CheckMode::Report => {
            let parts = parts_of(config, members, Arc::new(view))?;
            FileSystem::check(parts, request.mount_options(config), mode, &mut on_progress)
        }
        CheckMode::Repair => {
            drop(view);
            let metadata = Metadata::open(config, &request, &members)?;
            let parts = parts_of(config, members, metadata.store())?;
            let checked = FileSystem::check(parts, request.mount_options(config), mode, &mut on_progress);
            metadata.writable().inspect(|store| store.finish_copy());
            checked
        }
    };
    line.finish();
    let check = match checked {
        Ok(check) => check,
        Err(error) if was_ended(&error) => return Ok(Ended::Cancelled),
        Err(error) => return Err(anyhow!("volume `{}`: {error}", config.name)),
    };
    Ok(Ended::Done(Box::new(finished(config, mode, &check, start)?)))
}

/// Opens the store for reading, and reads all of it: a repair on top of a damaged one would make the loss last.
fn verified_store(config: &VolumeConfig) -> Result<StoreView> {
    let store = config.metadata_directory();
    let placement = metadata::recorded_placement(config)?;
    let mut reading = metadata::options(config, OpenMode::Existing)?;
    reading.surviving = metadata::surviving_place();
    let opened = StoreView::open_for(&store, &placement, &reading);
    let verified = opened.and_then(|view| view.verify().map(|()| view));
    verified.map_err(|error| with_hint(config, anyhow!("{}: {error}", store.display())))
}

fn finished(config: &VolumeConfig, mode: CheckMode, check: &VolumeCheck, start: Instant) -> Result<FsckReport> {
    let name = if mode == CheckMode::Repair { "repair" } else { "report" };
    let mut report = report_of(&config.name, name, check, start.elapsed());
    let store = config.metadata_directory();
    let placement = metadata::recorded_placement(config)?;
    let log = LogView::open(&store, &placement, InUse::Read)?;
    copy::compare(config, &log, &mut report)?;
    report.finish();
    Ok(report)
}

fn was_ended(error: &VolumeError) -> bool {
    matches!(error, VolumeError::FileSystem(error) if error.errno() == Errno::EINTR)
}

fn refuse_without_metadata(config: &VolumeConfig, members: &[TierMember]) -> Result<()> {
    match &members[config.metadata].presence {
        TierPresence::Present(_) => Ok(()),
        TierPresence::Missing(reason) => {
            bail!("metadata tier `{}` is missing: {reason}", config.tiers[config.metadata].name)
        }
    }
}
