//! A cluster of PostgreSQL that a side has.
//!
//! Invariant: its server runs while it is measured, and is shut down after that, also where something fails.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{output_of, preload};
use crate::suite::workloads::pgbench::us_each;
use crate::suite::workloads::postgres::{START_DEADLINE, USER, as_user};

/// 450 MB, of which memory has 64: reads go to the file system.
const SCALE: &str = "30";
const SETTINGS: [&str; 4] =
    ["shared_buffers=64MB", "checkpoint_timeout=30s", "max_wal_size=256MB", "listen_addresses="];
/// Files that are worth two tiers.
const LARGE: u64 = 20 << 20;

/// What `pgbench` does.
#[derive(Clone, Copy)]
pub(super) enum Transactions {
    Selects,
    ChangesWithoutSync,
    Changes,
}

pub(super) struct Cluster {
    pub(super) programs: PathBuf,
    /// Of the side.
    pub(super) directory: PathBuf,
    /// The library that its server runs under.
    pub(super) library: Option<PathBuf>,
}

/// Shut down when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let _ = self.0.wait();
    }
}

impl Cluster {
    fn data(&self) -> PathBuf {
        self.directory.join("cluster")
    }

    /// Makes and fills it.
    pub(super) fn make(&self) -> Result<()> {
        let user: u32 = output_of(Command::new("id").args(["--user", USER]))?.trim().parse()?;
        for above in self.directory.ancestors().take_while(|above| above.parent().is_some()) {
            let mode = fs::metadata(above)?.permissions().mode();
            ensure!(mode & 0o1 != 0, "{} must be open to the user {USER}", above.display());
        }
        fs::create_dir(self.data())?;
        fs::set_permissions(self.data(), fs::Permissions::from_mode(0o700))?;
        chown(self.data(), Some(user), None)?;
        output_of(as_user(&self.programs.join("initdb")).arg("--pgdata").arg(self.data()).args(["--auth", "trust"]))?;
        let _server = self.start()?;
        self.run("pgbench", &["--initialize", "--quiet", "--scale", SCALE, "postgres"])?;
        Ok(())
    }

    fn start(&self) -> Result<Server> {
        let mut postgres = as_user(&self.programs.join("postgres"));
        postgres.arg("-D").arg(self.data()).arg("-k").arg(self.data());
        postgres.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        if let Some(library) = &self.library {
            preload(&mut postgres, library);
        }
        postgres.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server(postgres.spawn().context("cannot start PostgreSQL")?);
        let begun = Instant::now();
        while self.run("pg_isready", &[]).is_err() {
            ensure!(begun.elapsed() < START_DEADLINE, "PostgreSQL does not start within {START_DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        output_of(as_user(&self.programs.join(program)).arg("--host").arg(self.data()).args(arguments))
    }

    /// Files of its tables and indexes.
    pub(super) fn large_files(&self) -> Result<Vec<PathBuf>> {
        let mut large = Vec::new();
        for database in fs::read_dir(self.data().join("base"))? {
            for file in fs::read_dir(database?.path())? {
                let file = file?;
                if file.metadata()?.len() >= LARGE {
                    large.push(file.path());
                }
            }
        }
        Ok(large)
    }

    /// Microseconds of a transaction of four clients.
    pub(super) fn measure(&self, transactions: Transactions, seconds: &str) -> Result<f64> {
        let _server = self.start()?;
        let kind = match transactions {
            Transactions::Selects => "--select-only",
            Transactions::ChangesWithoutSync | Transactions::Changes => "--skip-some-updates",
        };
        let mut command = as_user(&self.programs.join("pgbench"));
        if let Transactions::ChangesWithoutSync = transactions {
            command.env("PGOPTIONS", "-c synchronous_commit=off");
        }
        command.arg("--host").arg(self.data());
        command.args(["--client=4", "--jobs=2", "--no-vacuum", "--time", seconds, kind, "postgres"]);
        us_each(&output_of(&mut command)?)
    }
}
