//! A server of PostgreSQL as Debian's packages install it.
//!
//! Invariants: the cluster is as `initdb` makes it; only where it listens is set, and nothing is made faster by giving up durability. The server
//! is a child of this program, known to the devices, so that it is ended before they go.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::suite::programs;
use crate::throttled::{Devices, OnTop};

/// User created by the Debian package, who runs the server: it does not run as root.
pub(crate) const USER: &str = "postgres";
/// Where Debian's packages are, by version.
pub const PACKAGES: &str = "/usr/lib/postgresql";
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(60);

/// The programs of the newest package that is installed.
#[must_use]
pub fn newest_package() -> Option<PathBuf> {
    let versions = fs::read_dir(PACKAGES).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    versions.filter(|programs| programs.join("pgbench").is_file() && programs.join("initdb").is_file()).max()
}

/// Directories of a cluster, none of which is there before.
pub struct Directories {
    /// The cluster.
    pub data: PathBuf,
    /// Its log, where that lies elsewhere.
    pub log: Option<PathBuf>,
    /// Sockets, and the output of the server.
    pub sockets: PathBuf,
}

/// A cluster.
pub struct Cluster {
    programs: PathBuf,
    directories: Directories,
}

impl Cluster {
    /// Makes one.
    ///
    /// # Errors
    /// Where a directory cannot be made, or `initdb` fails.
    pub fn make(devices: &Devices, programs: &Path, directories: Directories) -> Result<Self> {
        let identity = programs::run(devices, Command::new("id").args(["--user", USER]))?;
        let user: u32 = identity.parse().with_context(|| format!("the user {USER}"))?;
        let Directories { data, log, sockets } = &directories;
        for directory in [data, sockets].into_iter().chain(log) {
            fs::create_dir(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
            chown(directory, Some(user), None)?;
        }
        let mut initdb = as_user(&programs.join("initdb"));
        initdb.arg("--pgdata").arg(data).args(["--auth", "trust"]);
        if let Some(log) = log {
            initdb.arg("--waldir").arg(log);
        }
        programs::run(devices, &mut initdb)?;
        Ok(Self { programs: programs.to_owned(), directories })
    }

    /// Starts its server, and waits until it answers.
    ///
    /// # Errors
    /// Where it cannot be started, or does not answer.
    pub fn start<'a>(&'a self, devices: &'a Devices) -> Result<Server<'a>> {
        let Directories { data, sockets, .. } = &self.directories;
        let output = fs::File::create(sockets.join("postgres.log"))?;
        let mut postgres = as_user(&self.programs.join("postgres"));
        postgres.arg("-D").arg(data).arg("-k").arg(sockets).args(["-c", "listen_addresses="]);
        postgres.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = postgres.spawn().context("cannot start PostgreSQL")?;
        let process = Arc::new(Mutex::new(Running(Some(child))));
        let on_top: Arc<Mutex<dyn OnTop>> = Arc::clone(&process) as _;
        devices.put_on_top(&on_top);
        let server = Server { cluster: self, devices, process };
        let begun = Instant::now();
        while server.run("pg_isready", &[]).is_err() {
            ensure!(begun.elapsed() < START_DEADLINE, "PostgreSQL does not start within {START_DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

/// A server that runs. It is killed when this is dropped.
pub struct Server<'a> {
    cluster: &'a Cluster,
    devices: &'a Devices,
    process: Arc<Mutex<Running>>,
}

struct Running(Option<Child>);

impl OnTop for Running {
    fn remove(&mut self) -> Result<()> {
        let Some(mut process) = self.0.take() else { return Ok(()) };
        // Ends all connections, and leaves unwritten data to recovery at the next start.
        kill_process(Pid::from_child(&process), Signal::QUIT)?;
        process.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("warning: the server of PostgreSQL: {error:#}");
        }
    }
}

impl Server<'_> {
    /// Runs one of its programs; returns its output and its error output.
    ///
    /// # Errors
    /// Where the program fails.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let Cluster { programs, directories } = self.cluster;
        // The progress of pgbench goes to standard error.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 2>&1", "sh", "setpriv", "--reuid", USER, "--regid", USER, "--init-groups"]);
        shell.arg(programs.join(program)).arg("--host").arg(&directories.sockets).args(arguments);
        programs::run(self.devices, shell.current_dir("/"))
    }

    /// Shuts it down.
    ///
    /// # Errors
    /// Where it ends with an error.
    pub fn stop(self) -> Result<()> {
        let child = self.process.lock().unwrap_or_else(PoisonError::into_inner).0.take();
        let Some(mut child) = child else { return Ok(()) };
        kill_process(Pid::from_child(&child), Signal::INT)?;
        let status = child.wait()?;
        ensure!(status.success(), "PostgreSQL ended with {status}");
        Ok(())
    }
}

/// A program that this user runs.
pub(crate) fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--init-groups"]).arg(program).current_dir("/");
    command
}
