//! Going to the background without `fork`: the command starts itself again as a daemon and waits for one line.
//!
//! Invariants:
//! * The daemon writes exactly one line of JSON to its standard output, a [`Readiness`], and nothing else ever.
//! * The parent ends only after that line, or after the daemon ended without one; so a mount that was reported as done
//!   is done, and one that failed leaves no process behind.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::mount_options::RequestedOptions;
use polymux_config::registry::Registry;

/// A message of a daemon to the process that started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// The volume is mounted.
    Ready {
        /// Warnings of the mount.
        warnings: Vec<String>,
    },
    /// It is not; the text says why.
    Failed(String),
}

/// Parameters of the daemon to start. Paths are absolute.
#[derive(Clone, Debug)]
pub struct DaemonArguments {
    /// Configuration of the volume.
    pub config: PathBuf,
    /// Directory to mount on.
    pub mount_point: PathBuf,
    /// Options of the mount.
    pub options: RequestedOptions,
    /// Where the daemon logs to.
    pub log: PathBuf,
}

/// A daemon that has mounted its volume.
pub struct RunningDaemon {
    /// The process; dropping it leaves the daemon running.
    pub process: Child,
    /// Warnings of the mount.
    pub warnings: Vec<String>,
}

/// Starts a daemon and waits until the volume is mounted.
///
/// # Errors
/// With the daemon's own reason where it could not mount; the process has ended then.
pub fn start(registry: &Registry, arguments: &DaemonArguments) -> Result<RunningDaemon> {
    registry.make_runtime_directory()?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&arguments.log)
        .with_context(|| format!("cannot write {}", arguments.log.display()))?;
    let mut process = Command::new(std::env::current_exe().context("cannot find this program")?)
        .args(["mount", "--foreground", "--report-readiness"])
        .args(["-o", &arguments.options.to_list(), "--"])
        .arg(&arguments.config)
        .arg(&arguments.mount_point)
        .envs(registry.environment())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the daemon")?;
    let stdout = process.stdout.take().ok_or_else(|| anyhow!("the daemon has no standard output"))?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Readiness::Ready { warnings }) => Ok(RunningDaemon { process, warnings }),
        Ok(Readiness::Failed(reason)) => {
            process.wait()?;
            Err(anyhow!(reason))
        }
        Err(_) => {
            let status = process.wait()?;
            Err(anyhow!("the daemon ended ({status}) before it had mounted; see {}", arguments.log.display()))
        }
    }
}

/// Tells the parent; called once, by the daemon.
pub fn report(readiness: &Readiness) -> Result<()> {
    let mut text = serde_json::to_string(readiness)?;
    text.push('\n');
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Passes on a message of a daemon of this process, as if this were the daemon.
pub fn relay(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", line.trim_end())?;
    Ok(output.flush()?)
}

/// Leaves the session and the terminal of the process that started the daemon.
pub fn detach() -> Result<()> {
    // It fails only for the leader of a process group, which a process that was just spawned is not.
    rustix::process::setsid().context("cannot leave the terminal's session")?;
    std::env::set_current_dir(Path::new("/"))?;
    Ok(())
}
