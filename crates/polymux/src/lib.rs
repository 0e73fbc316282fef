//! The `polymux` command: command line and daemon. Called as `mount.polymux` it is the helper of mount(8).
//!
//! It is a library so that `polymux-lab` is the same command with more policies. The daemons and other processes that it starts are the
//! program that is running, whichever that is.
//!
//! Exit codes: 0 done, 1 refused or failed (one line on standard error says why), 2 wrong usage, 32 mount failed (only
//! as `mount.polymux`). `fsck` has those of fsck(8).

#![forbid(unsafe_code)]

mod advise;
mod bench;
mod cli;
mod client;
mod clients;
mod control;
mod create;
mod daemon;
mod daemonize;
mod drain;
mod explain;
mod file_map;
mod fsck;
mod inspect;
mod logging;
mod metadata_report;
mod migrate;
mod mount;
mod mount_helper;
mod mount_options;
mod mount_table;
mod moves_view;
mod output;
mod pause;
mod pins;
mod plan;
mod policies;
mod policy_edit;
mod progress;
mod protocol;
mod rate;
mod rebuild;
mod remount;
mod report;
mod run_program;
mod status;
mod steering_view;
mod supervised;
mod supervision;
mod tier_admin;
mod tier_candidates;
mod tier_events;
mod tier_forget;
mod tier_measure;
mod top;
mod try_out;
mod umount;
mod where_is;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use polymux_fs::Access;

use crate::cli::{CommandLine, ExtentDetail, InspectSubject, PolicyAction, TierAction, Verb, output_format};
use crate::top::TopForm;
use crate::umount::UnmountMode;
use polymux_config::registry::Registry;

/// The allocator asks for huge pages, of which each thread would fill one with next to nothing: 50 MB for an idle daemon.
fn small_pages() {
    // A kernel that has no huge pages has none to forbid.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Runs the command that the arguments of this process name. Policies that the program brings along are registered before.
#[must_use]
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // A program that is run keeps that setting.
    if arguments.get(1).is_none_or(|verb| verb != "run") {
        small_pages();
    }
    let called_as = arguments.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // By the second name for a volume that is mounted: the mount table shows that name as its type.
    if called_as.ends_with("mount.polymux") || called_as.ends_with("mount.fuse.polymux") {
        return mount_helper::run(&arguments[1..]);
    }
    let verb = match CommandLine::try_parse_from(&arguments) {
        Ok(CommandLine { verb: Verb::Fsck(arguments) }) => return fsck::run(&arguments),
        Ok(line) => line.verb,
        // fsck(8) has a code of its own for that.
        Err(error) if error.use_stderr() && arguments.get(1).is_some_and(|verb| verb == "fsck") => {
            eprint!("{}", error.render());
            return ExitCode::from(fsck::bits::USAGE);
        }
        Err(error) => error.exit(),
    };
    match run_verb(verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run_verb(verb: Verb) -> Result<()> {
    // Made only by the verbs that have to do with the user's own volumes.
    let registry = Registry::from_environment;
    match verb {
        Verb::Create(arguments) => create::run(&registry()?, &arguments),
        Verb::Mount(arguments) => mount::run(&registry()?, &arguments),
        Verb::Umount { volume, lazy } => {
            umount::run(&registry()?, &volume, if lazy { UnmountMode::Lazy } else { UnmountMode::WhenIdle })
        }
        Verb::Status { volume: Some(volume), clients: true, json } => {
            clients::run(&registry()?, &volume, output_format(json))
        }
        Verb::Status { volume, json, .. } => status::run(&registry()?, volume.as_deref(), output_format(json)),
        Verb::AskTier { tier, changes } => {
            polymux_config::tiers::touch(&tier, if changes { Access::ReadWrite } else { Access::ReadOnly });
            Ok(())
        }
        Verb::Where { file, tier: Some(tier), limit, json, .. } => {
            where_is::tier(&registry()?, &file, &tier, limit, output_format(json))
        }
        Verb::Where { file, extents, map, json, .. } => {
            let detail = match (extents, map) {
                (_, true) => ExtentDetail::Map,
                (true, false) => ExtentDetail::Shown,
                (false, false) => ExtentDetail::Hidden,
            };
            where_is::run(&registry()?, &file, detail, output_format(json))
        }
        Verb::Tier { action: TierAction::Add(arguments) } => tier_admin::add(&registry()?, &arguments),
        Verb::Tier { action: TierAction::Remove { volume, tier } } => tier_admin::remove(&registry()?, &volume, &tier),
        Verb::Tier { action: TierAction::Forget(arguments) } => tier_forget::run(&registry()?, &arguments),
        Verb::Tier { action: TierAction::List { volume, json } } => {
            tier_admin::list(&registry()?, &volume, output_format(json))
        }
        Verb::Tier { action: TierAction::Measure(arguments) } => tier_measure::run(&registry()?, &arguments),
        Verb::Tier { action: TierAction::Drain(arguments) } => drain::run(&registry()?, &arguments),
        Verb::Migrate(arguments) => migrate::run(&registry()?, &arguments),
        Verb::Top { volume, json, once } => {
            let form = if json {
                TopForm::Json
            } else if once {
                TopForm::Text
            } else {
                TopForm::Live
            };
            top::run(&registry()?, volume.as_deref(), form)
        }
        Verb::Policy { action: PolicyAction::List { volume, json } } => {
            policies::list(&registry()?, &volume, output_format(json))
        }
        Verb::Policy { action: PolicyAction::Advise { volume, json } } => {
            advise::run(&registry()?, &volume, output_format(json))
        }
        Verb::Policy { action: PolicyAction::Set(arguments) } => policies::set(&registry()?, &arguments),
        Verb::Pin(arguments) => pins::pin(&registry()?, &arguments),
        Verb::Unpin { paths, json } => pins::unpin(&registry()?, &paths, output_format(json)),
        Verb::Explain { file, json } => explain::run(&registry()?, &file, output_format(json)),
        Verb::Plan { volume, policy, json } => plan::run(&registry()?, &volume, policy.as_deref(), output_format(json)),
        Verb::Pause { volume, json } => pause::pause(&registry()?, &volume, output_format(json)),
        Verb::Resume { volume, json } => pause::resume(&registry()?, &volume, output_format(json)),
        Verb::Inspect { subject: InspectSubject::Label { tier, json } } => inspect::label(&tier, output_format(json)),
        Verb::Inspect { subject: InspectSubject::Store { part } } => inspect::store::run(&registry()?, &part),
        Verb::Rebuild(arguments) => rebuild::run(&registry()?, &arguments),
        Verb::Fsck(_) => unreachable!("it has exit codes of its own, and was run already"),
        Verb::Bench(arguments) => bench::run(&registry()?, &arguments),
        Verb::Run(arguments) => run_program::run(&arguments),
        Verb::Try(arguments) => try_out::run(&arguments),
    }
}
