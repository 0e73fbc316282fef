//! Where configurations, sockets, locks and logs of volumes are.
//!
//! Invariants:
//! * A volume named N has its configuration in `CONFIG_DIRECTORY/N.toml` and, while it is mounted, its socket in
//!   `RUNTIME_DIRECTORY/N.socket` and its lock, held by the daemon, in `RUNTIME_DIRECTORY/N.lock`.
//! * The runtime directory belongs to the user and only the user may enter it: no other user can put a socket there.

use std::env;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::names;

/// Overrides the directory of configurations.
pub const CONFIG_DIRECTORY_VARIABLE: &str = "POLYMUX_CONFIG_DIR";
/// Overrides the directory of sockets, locks and logs.
pub const RUNTIME_DIRECTORY_VARIABLE: &str = "POLYMUX_RUNTIME_DIR";

/// Runtime directory of volumes that root mounted.
const RUNTIME_DIRECTORY_OF_ROOT: &str = "/run/polymux";

/// The directories of the user who runs this.
#[derive(Clone, Debug)]
pub struct Registry {
    config: PathBuf,
    runtime: PathBuf,
}

/// How a volume is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeReference {
    /// Its name.
    Name(String),
    /// The path of its configuration.
    File(PathBuf),
}

impl VolumeReference {
    /// A text with a slash, or one that ends in `.toml`, is a path.
    pub fn parse(text: &str) -> Self {
        if text.contains('/') || text.ends_with(".toml") {
            Self::File(PathBuf::from(text))
        } else {
            Self::Name(text.to_owned())
        }
    }
}

impl Registry {
    /// The directories that the environment gives.
    ///
    /// A program with other rights than the user who started it (set-id bits) does not look at the environment, which is that user's.
    pub fn from_environment() -> Result<Self> {
        let is_trusted = is_environment_trusted();
        let variable =
            |name: &str| env::var_os(name).filter(|value| is_trusted && !value.is_empty()).map(PathBuf::from);
        let uid = rustix::process::geteuid().as_raw();
        let config = match variable(CONFIG_DIRECTORY_VARIABLE) {
            Some(directory) => directory,
            None if uid == 0 => PathBuf::from("/etc/polymux"),
            None => match (variable("XDG_CONFIG_HOME"), variable("HOME")) {
                (Some(directory), _) => directory.join("polymux"),
                (None, Some(home)) => home.join(".config/polymux"),
                (None, None) => bail!("neither HOME nor {CONFIG_DIRECTORY_VARIABLE} is set"),
            },
        };
        let runtime = match variable(RUNTIME_DIRECTORY_VARIABLE) {
            Some(directory) => directory,
            None if uid == 0 => PathBuf::from(RUNTIME_DIRECTORY_OF_ROOT),
            None => match variable("XDG_RUNTIME_DIR") {
                Some(directory) => directory.join("polymux"),
                None => env::temp_dir().join(format!("polymux-{uid}")),
            },
        };
        Ok(Self { config: std::path::absolute(config)?, runtime: std::path::absolute(runtime)? })
    }

    /// Directories of its own, for `try`, which touches nothing of the user's.
    pub fn private(directory: &Path) -> Self {
        Self { config: directory.join("config"), runtime: directory.join("run") }
    }

    /// These directories, in place of those that the environment gives.
    pub fn in_directories(config: &Path, runtime: &Path) -> Result<Self> {
        Ok(Self { config: std::path::absolute(config)?, runtime: std::path::absolute(runtime)? })
    }

    /// Variables that make another process use the same directories.
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [(CONFIG_DIRECTORY_VARIABLE, &self.config), (RUNTIME_DIRECTORY_VARIABLE, &self.runtime)]
    }

    /// The configuration of a volume.
    pub fn config_path(&self, reference: &VolumeReference) -> Result<PathBuf> {
        match reference {
            VolumeReference::File(path) => Ok(std::path::absolute(path)?),
            VolumeReference::Name(name) => {
                names::check("volume", name)?;
                Ok(self.config.join(format!("{name}.toml")))
            }
        }
    }

    /// Socket of a mounted volume.
    pub fn socket_path(&self, name: &str) -> PathBuf {
        self.runtime.join(format!("{name}.socket"))
    }

    /// Sockets that a volume of this name may have: the user's own and, for reading the volumes mounted by root, root's.
    pub fn socket_paths(&self, name: &str) -> Vec<PathBuf> {
        let root = Path::new(RUNTIME_DIRECTORY_OF_ROOT);
        let mut paths = vec![self.socket_path(name)];
        if self.runtime != root && env::var_os(RUNTIME_DIRECTORY_VARIABLE).is_none() {
            paths.push(root.join(format!("{name}.socket")));
        }
        paths
    }

    /// Lock that the daemon of a volume holds.
    pub fn lock_path(&self, name: &str) -> PathBuf {
        self.runtime.join(format!("{name}.lock"))
    }

    /// Log of a daemon in the background.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.runtime.join(format!("{name}.log"))
    }

    /// Names of the volumes that have a configuration here, in order.
    pub fn configured(&self) -> Vec<String> {
        stems_in(&self.config, "toml")
    }

    /// Names of the volumes that have a socket here, in order. One may be left over from a crash.
    pub fn with_socket(&self) -> Vec<String> {
        stems_in(&self.runtime, "socket")
    }

    /// Makes the directory of configurations where it is missing.
    pub fn make_config_directory(&self) -> Result<()> {
        fs::create_dir_all(&self.config).with_context(|| format!("cannot make {}", self.config.display()))
    }

    /// Makes the runtime directory where it is missing, and refuses one that others could have prepared.
    pub fn make_runtime_directory(&self) -> Result<()> {
        if let Some(parent) = self.runtime.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        match fs::DirBuilder::new().mode(0o700).create(&self.runtime) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.with_context(|| format!("cannot make {}", self.runtime.display())),
        }
        let metadata = fs::symlink_metadata(&self.runtime)?;
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
            bail!("{} is not a directory of this user; move it away", self.runtime.display());
        }
        if metadata.mode() & 0o1000 != 0 {
            bail!(
                "{} is shared by the users of this machine: name a directory for locks alone",
                self.runtime.display()
            );
        }
        if metadata.mode() & 0o022 != 0 {
            fs::set_permissions(&self.runtime, fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }
}

/// Whether the environment comes from a user with the rights of this process.
pub(crate) fn is_environment_trusted() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() == geteuid() && getgid() == getegid()
}

fn stems_in(directory: &Path, extension: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
        .filter(|name| names::check("volume", name).is_ok())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_a_slash_or_the_suffix_is_a_file() {
        assert_eq!(VolumeReference::parse("media"), VolumeReference::Name("media".to_owned()));
        for text in ["./media", "/x/media", "media.toml"] {
            assert_eq!(VolumeReference::parse(text), VolumeReference::File(PathBuf::from(text)));
        }
    }

    #[test]
    fn the_runtime_directory_is_closed_to_others_even_where_it_was_open() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::private(directory.path());
        registry.make_runtime_directory().unwrap();
        assert_eq!(fs::metadata(&registry.runtime).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&registry.runtime, fs::Permissions::from_mode(0o777)).unwrap();
        registry.make_runtime_directory().unwrap();
        assert_eq!(fs::metadata(&registry.runtime).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_that_users_share_is_no_runtime_directory_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("run")).unwrap();
        fs::set_permissions(directory.path().join("run"), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(Registry::private(directory.path()).make_runtime_directory().is_err());
        assert_eq!(fs::metadata(directory.path().join("run")).unwrap().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn a_runtime_directory_that_is_a_link_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::private(directory.path());
        std::os::unix::fs::symlink("/tmp", &registry.runtime).unwrap();
        assert!(registry.make_runtime_directory().is_err());
    }

    #[test]
    fn volumes_are_listed_by_plain_name_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::private(directory.path());
        registry.make_config_directory().unwrap();
        for name in ["b.toml", "a.toml", ".a.1.new", "not plain.toml", "c.txt"] {
            fs::write(registry.config.join(name), "").unwrap();
        }
        assert_eq!(registry.configured(), ["a", "b"]);
        assert!(registry.config_path(&VolumeReference::Name("../x".to_owned())).is_err());
    }
}
