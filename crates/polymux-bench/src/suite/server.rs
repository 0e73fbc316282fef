//! A file system served by a program: mounted while its value lives.
//!
//! Invariants:
//! * The program is a child of this one, in a process group of its own: Ctrl-C at the terminal reaches this program alone,
//!   which then takes everything down in order.
//! * Only mounts and programs started here are ever unmounted or killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use polymux_transport::MountTable;

use crate::throttled::{self, Devices, OnTop};

const START_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// A mounted file system and the program that serves it.
pub struct Server {
    process: Child,
    mount_point: PathBuf,
    log: PathBuf,
    is_stopped: bool,
}

/// What happens to a program that is unmounted, and so has nothing left to write, and has not ended by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// The run ends: a fault of a program that is measured.
    Fail,
    /// It is killed and the run goes on: a peer must not end the measurement of the others.
    Kill,
}

/// A server that may be taken away at any moment.
pub fn locked(server: &Mutex<Server>) -> MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a file system is mounted at this very path.
fn is_mounted(mount_point: &Path) -> bool {
    MountTable::read().is_ok_and(|table| table.at(mount_point).is_some())
}

impl Server {
    /// Starts a program that serves a file system in the foreground, and waits until it is mounted and answers. The devices
    /// know of it from its first moment on.
    ///
    /// # Errors
    /// Where it ends instead, with its output, or takes too long.
    pub fn start(mut command: Command, mount_point: &Path, log: &Path, devices: &Devices) -> Result<Arc<Mutex<Self>>> {
        throttled::stop_if_interrupted();
        let program = command.get_program().display().to_string();
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let process = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let server = Self { process, mount_point: mount_point.to_owned(), log: log.to_owned(), is_stopped: false };
        let server = Arc::new(Mutex::new(server));
        let on_top: Arc<Mutex<dyn OnTop>> = Arc::clone(&server) as _;
        devices.put_on_top(&on_top);
        let begun = Instant::now();
        while !is_mounted(mount_point) || rustix::fs::statvfs(mount_point).is_err() {
            {
                let mut server = locked(&server);
                if server.process.try_wait()?.is_some() {
                    server.is_stopped = true;
                    bail!("{program} does not mount: {}", server.said());
                }
            }
            if begun.elapsed() > START_DEADLINE {
                bail!("{program} does not mount within {START_DEADLINE:?}");
            }
            std::thread::sleep(LOOK);
        }
        Ok(server)
    }

    /// Output of the program.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Unmounts with a command and waits until the program has ended.
    ///
    /// # Errors
    /// Where it is in use, or the program does not end although it should.
    pub fn stop_with(&mut self, unmount: Command, at_deadline: AtDeadline) -> Result<()> {
        self.stop_within(STOP_DEADLINE, unmount, at_deadline)
    }

    fn stop_within(&mut self, deadline: Duration, mut unmount: Command, at_deadline: AtDeadline) -> Result<()> {
        let output = unmount.output().with_context(|| format!("cannot start {}", unmount.get_program().display()))?;
        if !output.status.success() {
            bail!("cannot unmount {}: {}", self.mount_point.display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        if !self.ends_within(deadline)? {
            let message =
                format!("the program that served {} does not end: {}", self.mount_point.display(), self.said());
            match at_deadline {
                AtDeadline::Fail => bail!(message),
                AtDeadline::Kill => eprintln!("warning: killed after {deadline:?}: {message}"),
            }
            self.process.kill()?;
            self.process.wait()?;
        }
        self.is_stopped = true;
        Ok(())
    }

    fn ends_within(&mut self, deadline: Duration) -> Result<bool> {
        let begun = Instant::now();
        while self.process.try_wait()?.is_none() {
            if begun.elapsed() > deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }
}

impl OnTop for Server {
    fn remove(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        let mount_point = self.mount_point.clone();
        let unmount = |options: &[&str]| Command::new("umount").args(options).arg(&mount_point).output();
        let is_unmounted = is_mounted(&mount_point) && unmount(&[])?.status.success();
        // A server in use would wait for its users. Its data is discarded.
        if !is_unmounted || !self.ends_within(STOP_DEADLINE / 4)? {
            self.process.kill()?;
            self.process.wait()?;
        }
        if is_mounted(&mount_point) {
            unmount(&["--lazy"])?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("warning: {}: {error:#}", self.mount_point.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Server {
        let process = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        Server { process, mount_point: "/nonexistent".into(), log: "/nonexistent".into(), is_stopped: false }
    }

    #[test]
    fn a_peer_that_is_unmounted_and_does_not_end_is_killed_and_any_other_program_fails_the_run() {
        let mut measured = sleeper();
        let error = measured.stop_within(Duration::ZERO, Command::new("true"), AtDeadline::Fail).unwrap_err();
        assert!(error.to_string().contains("does not end"), "{error}");
        assert!(measured.process.try_wait().unwrap().is_none());

        let mut peer = sleeper();
        peer.stop_within(Duration::ZERO, Command::new("true"), AtDeadline::Kill).unwrap();
        assert!(peer.process.try_wait().unwrap().is_some());

        let mut busy = sleeper();
        busy.stop_within(Duration::ZERO, Command::new("false"), AtDeadline::Kill).unwrap_err();
        assert!(busy.process.try_wait().unwrap().is_none(), "still mounted, it may have something to write");
    }
}
