//! `polymux mount`: in the foreground the daemon itself, otherwise the start of one in the background.

use anyhow::Result;
use polymux_fs::{Access, MissingTiers};

use crate::cli::MountArguments;
use crate::client;
use crate::config::VolumeConfig;
use crate::daemon::{self, ReadinessReport};
use crate::daemonize::{self, DaemonArguments};
use crate::mount_options::{MetadataSource, RequestedOptions};
use crate::output;
use crate::registry::{Registry, VolumeReference};

/// Mounts a volume.
pub fn run(registry: &Registry, arguments: &MountArguments) -> Result<()> {
    let mut options = RequestedOptions::parse(arguments.options.iter().map(String::as_str))?;
    if arguments.read_only {
        options.access = Some(Access::ReadOnly);
    }
    if arguments.degraded {
        options.missing = Some(MissingTiers::Degraded);
    }
    if arguments.from_copy {
        options.metadata_source = Some(MetadataSource::SecondCopy);
    }
    let config = registry.config_path(&VolumeReference::parse(&arguments.volume))?;
    if arguments.foreground {
        let report =
            if arguments.report_readiness { ReadinessReport::ToParent } else { ReadinessReport::ToServiceManager };
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
