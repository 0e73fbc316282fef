//! How a volume is opened.

use std::fs;
use std::path::PathBuf;

use polymux_config::config::VolumeConfig;
use polymux_config::registry::{Registry, VolumeReference};
use polymux_config::request::OpenRequest;
use polymux_fs::{Access, Caller, MissingTiers};

use crate::open_error::OpenError;
use crate::opened::Opened;
use crate::volume::Volume;

/// How a volume is opened. By default as its configuration says, for the user of this process.
///
/// ```no_run
/// # fn main() -> Result<(), polymux_embed::OpenError> {
/// let volume = polymux_embed::VolumeOptions::new().read_only().open("media")?;
/// # drop(volume);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct VolumeOptions {
    request: OpenRequest,
    identity: Option<Caller>,
    movers: Option<u16>,
    /// Directories of configurations and of locks.
    directories: Option<(PathBuf, PathBuf)>,
}

impl VolumeOptions {
    /// As the configuration says.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing of the volume is changed, not even its records.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.request.access = Some(Access::ReadOnly);
        self
    }

    /// Also where a tier is missing: reads of its bytes fail with `EIO`.
    #[must_use]
    pub fn degraded(mut self) -> Self {
        self.request.missing = Some(MissingTiers::Degraded);
        self
    }

    /// Threads that move blocks between tiers, in place of the number that the configuration gives; 0: nothing is moved.
    #[must_use]
    pub fn movers(mut self, count: u16) -> Self {
        self.movers = Some(count);
        self
    }

    /// The user whose permissions are checked, and the owner of new files. By default the effective user, groups and umask of this
    /// process when the volume is opened.
    #[must_use]
    pub fn identity(mut self, caller: Caller) -> Self {
        self.identity = Some(caller);
        self
    }

    /// Directories of the configurations of volumes and of their locks, in place of those that the environment gives (`POLYMUX_CONFIG_DIR`,
    /// `POLYMUX_RUNTIME_DIR`). A daemon is known by its lock only where it has the same directory of locks; the tiers refuse a second
    /// user in any case.
    #[must_use]
    pub fn directories(mut self, configurations: impl Into<PathBuf>, locks: impl Into<PathBuf>) -> Self {
        self.directories = Some((configurations.into(), locks.into()));
        self
    }

    /// Opens a volume by its name, or by the path of its configuration (a text with a slash, or one that ends in `.toml`).
    ///
    /// # Errors
    /// See [`OpenError::errno`].
    pub fn open(&self, volume: &str) -> Result<Volume, OpenError> {
        self.open_named(volume).map_err(OpenError::from)
    }

    fn open_named(&self, volume: &str) -> anyhow::Result<Volume> {
        let registry = match &self.directories {
            Some((configurations, locks)) => Registry::in_directories(configurations, locks)?,
            None => Registry::from_environment()?,
        };
        let config = VolumeConfig::read(&registry.config_path(&VolumeReference::parse(volume))?)?;
        let identity = self.identity.clone().unwrap_or_else(identity_of_process);
        let opened = Opened::open(&registry, config, &self.request, self.movers, identity)?;
        Ok(Volume::new(opened))
    }
}

/// The effective user and groups of this process, and its umask.
fn identity_of_process() -> Caller {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Caller {
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        umask: umask_of_process().unwrap_or(0o022),
        ..Caller::user(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }
}

/// Read from a file, because umask(2) returns the mask only by setting another one, which other threads would see.
fn umask_of_process() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_that_of_the_process() {
        let identity = identity_of_process();
        assert_eq!(identity.uid, rustix::process::geteuid().as_raw());
        assert!(umask_of_process().is_some_and(|mask| mask <= 0o777), "{:?}", umask_of_process());
    }
}
