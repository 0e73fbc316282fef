//! The temporary directories, volume and daemon of a trial.
//!
//! Invariant: dropping a [`Stage`] leaves nothing behind, whatever happened before: no mount, no daemon, no file. Only
//! [`Stage::keep`] changes that. Directories are never removed while the volume is still mounted.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::random::random_bytes;
use polymux_tier::Guarantee;
use polymux_tier::posix::probe_directory;
use rustix::process::{Pid, Signal, kill_process};

use crate::daemonize::{self, DaemonArguments};
use crate::mount_options::RequestedOptions;
use crate::mount_table::MountTable;
use crate::output;
use crate::protocol::StatusReport;
use crate::umount::{self, UnmountMode};
use polymux_config::registry::{Registry, VolumeReference};

/// Name of the volume of a trial.
pub const VOLUME_NAME: &str = "try";

/// Its tiers, the fastest first.
pub const TIERS: [&str; 3] = ["fast", "slow", "archive"];

/// How long it may take until another daemon serves the volume.
const NEXT_DAEMON_PATIENCE: Duration = Duration::from_secs(60);

/// Consequence of the death of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// A pause: another daemon takes the mount over.
    OfDaemon,
    /// The mount.
    OfMount,
}

/// Everything that a trial makes.
pub struct Stage {
    directory: PathBuf,
    registry: Registry,
    daemon: Option<Child>,
    volatile: bool,
    kept: bool,
}

impl Stage {
    /// Makes the directories, where possible on a file system that is not in memory.
    pub fn set() -> Result<Self> {
        let (base, volatile) = choose_base()?;
        let directory = base.join(format!("polymux-try-{:016x}", u64::from_le_bytes(random_bytes()?)));
        let make = |path: &Path| {
            let made = fs::DirBuilder::new().mode(0o700).create(path);
            made.with_context(|| format!("cannot make {}", path.display()))
        };
        make(&directory)?;
        let registry = Registry::private(&directory);
        let stage = Self { directory, registry, daemon: None, volatile, kept: false };
        for tier in TIERS {
            make(&stage.tier(tier))?;
        }
        make(&stage.mount_point())?;
        Ok(stage)
    }

    /// The directory that everything lies in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the tiers are in memory.
    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Directory of a tier.
    pub fn tier(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Directory that the volume is mounted on.
    pub fn mount_point(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    /// Makes the volume, by the same command that a user would type.
    pub fn create(&self, fast_capacity: u64) -> Result<()> {
        let mut arguments: Vec<OsString> = vec!["create".into(), VOLUME_NAME.into()];
        for tier in TIERS {
            let mut named = OsString::from(format!("{tier}="));
            named.push(self.tier(tier));
            arguments.extend(["--tier".into(), named]);
        }
        arguments.extend(["--capacity".into(), format!("fast={fast_capacity}").into()]);
        if self.volatile {
            arguments.push("--volatile-for-tests".into());
        }
        self.command(arguments).map(drop)
    }

    /// Runs this program with arguments that a user could give it; returns its output.
    ///
    /// # Errors
    /// With the program's own words where it fails.
    pub fn command<I: Into<OsString>>(&self, arguments: impl IntoIterator<Item = I>) -> Result<String> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let program = std::env::current_exe().context("cannot find this program")?;
        let output = Command::new(program)
            .args(&arguments)
            .envs(self.registry.environment())
            .stdin(Stdio::null())
            .output()
            .context("cannot run this program")?;
        if !output.status.success() {
            let verb = arguments.first().map(|verb| verb.to_string_lossy().into_owned()).unwrap_or_default();
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("polymux {verb}: {}", said.lines().last().unwrap_or("it failed without a word"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Mounts the volume; the daemon is a child of this process.
    pub fn mount(&mut self) -> Result<()> {
        let arguments = DaemonArguments {
            config: self.registry.config_path(&VolumeReference::Name(VOLUME_NAME.to_owned()))?,
            mount_point: self.mount_point(),
            options: RequestedOptions::default(),
            log: self.registry.log_path(VOLUME_NAME),
        };
        self.daemon = Some(daemonize::start(&self.registry, &arguments)?.process);
        Ok(())
    }

    /// Unmounts the volume and waits for the daemon, which must end well.
    pub fn unmount(&mut self) -> Result<()> {
        let mount_point = self.mount_point();
        let name = mount_point.to_str().ok_or_else(|| anyhow!("{} is not UTF-8", mount_point.display()))?;
        umount::run(&self.registry, name, UnmountMode::WhenIdle)?;
        let status = self.daemon.take().map(|mut daemon| daemon.wait()).transpose()?;
        match status {
            Some(status) if !status.success() => {
                bail!("the daemon ended with {status}: {}", self.last_error().unwrap_or_default())
            }
            _ => Ok(()),
        }
    }

    /// Kills the daemon as the kernel does when memory runs out: it gets to do nothing more. Returns the consequence.
    pub fn kill(&mut self) -> Result<Death> {
        let (daemon, outlives) = self.served_by()?;
        kill_process(daemon, Signal::KILL).context("cannot kill the daemon")?;
        if outlives == Death::OfDaemon {
            let began = Instant::now();
            while !self.served_by().is_ok_and(|(present, _)| present != daemon) {
                if began.elapsed() > NEXT_DAEMON_PATIENCE {
                    bail!("no other daemon took the mount over within {} s", NEXT_DAEMON_PATIENCE.as_secs());
                }
                thread::sleep(Duration::from_millis(10));
            }
            return Ok(Death::OfDaemon);
        }
        let mut daemon = self.daemon.take().ok_or_else(|| anyhow!("no daemon is running"))?;
        daemon.wait().context("cannot wait for the daemon")?;
        Ok(Death::OfMount)
    }

    /// The process that serves the volume, and the consequence of its death.
    fn served_by(&self) -> Result<(Pid, Death)> {
        let said = self.command(["status", VOLUME_NAME, "--json"])?;
        let report: StatusReport = serde_json::from_str(&said).context("`polymux status` said")?;
        let id =
            i32::try_from(report.pid).ok().and_then(Pid::from_raw).context("the number of the daemon's process")?;
        let death = if report.ends_with_daemon.is_none() { Death::OfDaemon } else { Death::OfMount };
        Ok((id, death))
    }

    /// Leaves everything as it is. Returns the commands that make it visible.
    pub fn keep(mut self) -> Vec<String> {
        self.kept = true;
        let mut lines: Vec<String> = self
            .registry
            .environment()
            .iter()
            .map(|(name, directory)| format!("export {name}={}", directory.display()))
            .collect();
        let mount_point = self.mount_point();
        lines.push(format!("polymux status {VOLUME_NAME}"));
        lines.push(format!("ls {}", mount_point.display()));
        lines.push(format!("polymux umount {VOLUME_NAME} && rm -rf {}", self.directory.display()));
        lines
    }

    /// Removes everything; the volume must be unmounted.
    pub fn clear(mut self) -> Result<()> {
        self.kept = true;
        if MountTable::read()?.at(&self.mount_point()).is_some() {
            bail!("{} is still mounted", self.mount_point().display());
        }
        fs::remove_dir_all(&self.directory).with_context(|| format!("cannot remove {}", self.directory.display()))
    }

    /// The last error that the daemons of this trial logged, if any.
    pub fn last_error(&self) -> Option<String> {
        let text = fs::read_to_string(self.registry.log_path(VOLUME_NAME)).ok()?;
        text.lines().rfind(|line| is_error(line)).map(str::to_owned)
    }

    /// Whether the volume, or the mount of a dead daemon, is in the tree.
    pub fn is_mounted(&self) -> bool {
        MountTable::read().map_or(true, |table| table.at(&self.mount_point()).is_some())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if self.is_mounted()
            && let Some(name) = self.mount_point().to_str()
        {
            let _ = umount::run(&self.registry, name, UnmountMode::Lazy);
        }
        if let Some(mut daemon) = self.daemon.take() {
            if let Some(words) = self.last_error() {
                output::warn(&format!("the daemon's last words: {words}"));
            }
            // The supervisor, if any, and then the daemon that it started.
            let served_by = self.served_by();
            let _ = daemon.kill();
            let _ = daemon.wait();
            if let Ok((process, Death::OfDaemon)) = served_by {
                let _ = kill_process(process, Signal::KILL);
            }
        }
        if self.is_mounted() {
            output::warn(&format!("{} stays behind, because it is still mounted", self.directory.display()));
        } else if let Err(error) = fs::remove_dir_all(&self.directory) {
            output::warn(&format!("{} stays behind: {error}", self.directory.display()));
        }
    }
}

/// Whether a line of the daemon's log is an error, with a time in front or as the journal reads it.
fn is_error(line: &str) -> bool {
    line.starts_with("<3>") || line.split_whitespace().nth(1) == Some("ERROR")
}

/// A place for the tiers, and whether it is in memory.
fn choose_base() -> Result<(PathBuf, bool)> {
    let given = std::env::var_os("TMPDIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let candidates = given.into_iter().chain([PathBuf::from("/var/tmp"), PathBuf::from("/tmp")]);
    let usable: Vec<(PathBuf, Guarantee)> = candidates
        .filter_map(|path| path.canonicalize().ok())
        .filter_map(|path| {
            let capabilities = probe_directory(&path).ok().filter(|can| can.sparse)?;
            Some((path, capabilities.guarantee))
        })
        .collect();
    let chosen = usable.iter().find(|(_, guarantee)| *guarantee != Guarantee::Volatile).or(usable.first());
    match chosen {
        Some((path, guarantee)) => Ok((path.clone(), *guarantee == Guarantee::Volatile)),
        None => bail!("neither TMPDIR nor /var/tmp nor /tmp can hold the tiers of a trial"),
    }
}

#[cfg(test)]
mod tests {
    use super::is_error;

    #[test]
    fn only_errors_are_last_words() {
        assert!(is_error("2026-01-31T23:59:59Z ERROR polymux::daemon: no"));
        assert!(is_error("<3>no"));
        for harmless in ["2026-01-31T23:59:59Z WARN  polymux::daemon: ERROR", "<4>no", "", "ERROR"] {
            assert!(!is_error(harmless), "{harmless}");
        }
    }
}
