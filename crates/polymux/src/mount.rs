//! `polymux mount`: in the foreground the daemon itself, otherwise the start of one in the background.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};
use polymux_config::request::MetadataSource;
use polymux_fs::{Access, MissingTiers};

use crate::cli::MountArguments;
use crate::client;
use crate::daemon::{self, ReadinessReport};
use crate::daemonize::{self, DaemonArguments};
use crate::logging;
use crate::mount_options::{RequestedOptions, Supervisor};
use crate::output;
use crate::supervision::{self, DaemonCommand};
use polymux_config::config::VolumeConfig;
use polymux_config::registry::{Registry, VolumeReference};

/// Mounts a volume.
pub fn run(registry: &Registry, arguments: &MountArguments) -> Result<()> {
    let mut options = RequestedOptions::parse(arguments.options.iter().map(String::as_str))?;
    if arguments.read_only {
        options.volume.access = Some(Access::ReadOnly);
    }
    if arguments.degraded {
        options.volume.missing = Some(MissingTiers::Degraded);
    }
    if arguments.from_copy {
        options.volume.metadata_source = Some(MetadataSource::SecondCopy);
    }
    let config = registry.config_path(&VolumeReference::parse(&arguments.volume))?;
    if arguments.foreground {
        let report = match (arguments.report_readiness, arguments.supervised) {
            (_, true) => ReadinessReport::Supervisor,
            (true, false) => ReadinessReport::Parent,
            (false, false) => ReadinessReport::ServiceManager,
        };
        let has_supervisor = report == ReadinessReport::Supervisor;
        if !has_supervisor && options.supervisor(&VolumeConfig::read(&config)?) == Supervisor::Auto {
            return supervise(registry, &config, &arguments.mount_point, &options, report);
        }
        return daemon::run(registry, &config, &arguments.mount_point, options, report);
    }
    // Read here only for the name of the log, so that a mistake in the file is reported before anything is started.
    let name = VolumeConfig::read(&config)?.name;
    let arguments = DaemonArguments {
        config,
        mount_point: client::mount_point_path(&arguments.mount_point)?,
        options,
        log: registry.log_path(&name),
    };
    let daemon = daemonize::start(registry, &arguments)?;
    daemon.warnings.iter().for_each(|warning| output::warn(warning));
    Ok(())
}

/// Becomes the supervisor of a mount: starts its daemon, and another one whenever that dies, until the mount ends.
fn supervise(
    registry: &Registry,
    config: &Path,
    mount_point: &Path,
    options: &RequestedOptions,
    report: ReadinessReport,
) -> Result<()> {
    logging::start();
    daemon::prepare_process();
    let mount_point = client::mount_point_path(mount_point)?;
    if report == ReadinessReport::Parent {
        daemonize::detach()?;
    }
    let mut arguments: Vec<OsString> =
        ["mount", "--foreground", "--report-readiness", "--supervised", "-o"].map(OsString::from).into();
    arguments.extend([OsString::from(options.to_list()), "--".into(), config.into(), mount_point.clone().into()]);
    let environment = registry.environment().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    // The same program for each daemon, also after another version was installed: it understands the state that is kept for it.
    let program = "/proc/self/exe".into();
    let command = DaemonCommand { program, arguments, environment, mount_point: mount_point.clone() };
    let mut refusal = None;
    let relay = |line: &str| match report {
        ReadinessReport::ServiceManager => {
            refusal = daemon::relay_to_service_manager(line)?;
            Ok(())
        }
        ReadinessReport::Parent | ReadinessReport::Supervisor => daemonize::relay(line),
    };
    let status = supervision::run(&command, relay)?;
    if let Some(reason) = refusal {
        bail!(reason);
    }
    if !status.success() {
        bail!("the daemon of {} ended ({status})", mount_point.display());
    }
    Ok(())
}
