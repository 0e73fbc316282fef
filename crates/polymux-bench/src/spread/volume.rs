//! A volume with a tier on each device, and a plain mount of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::suite::server::{AtDeadline, Server, locked};
use crate::throttled::Devices;

const NAME: &str = "bench";

/// A volume that was made.
pub struct Volume {
    server: Option<Arc<Mutex<Server>>>,
    program: PathBuf,
    home: PathBuf,
    mount_point: PathBuf,
    io: Io,
}

/// Differences from the defaults of `polymux create`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// Its policy; empty: the one that `create` chooses.
    pub policy: &'a str,
    /// Most bytes that it uses on a tier.
    pub capacity: Option<(&'a str, u64)>,
    /// Lines of `[options]`.
    pub options: &'a str,
    /// How programs reach its files.
    pub io: Io,
}

/// How programs reach files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Each write goes to its tier at once, as papers have it; files are passed through where that is possible and not turned off.
    #[default]
    Passthrough,
    /// As the volume chooses: the kernel collects writes where the mount outlives its daemon.
    AsChosen,
}

/// Bytes that tiers have written and read since the volume was mounted, in speed order.
pub struct BytesOnTiers {
    /// Written.
    pub written: Vec<u64>,
    /// Read.
    pub read: Vec<u64>,
}

/// How long something made way on a tier since the volume was mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// The tier.
    pub tier: String,
    /// `moves` or `written behind`.
    pub class: &'static str,
    /// How often something went.
    pub requests: u64,
    /// Of these: had waited for as long as any may.
    pub at_bound: u64,
    /// The longest wait.
    pub longest_us: u64,
}

/// Prints the answer of a volume if `POLYMUX_BENCH_STATUS` is set.
fn show(told: &Value) {
    if std::env::var_os("POLYMUX_BENCH_STATUS").is_some() {
        eprintln!("{told}");
    }
}

impl Volume {
    /// Makes it anew, on empty devices, and otherwise as `polymux create` makes it.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn make(devices: &Devices, program: &Path, settings: &Settings) -> Result<Self> {
        devices.format_again()?;
        let home = devices.directory().join("home");
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        let mount_point = home.join("mount");
        for directory in [home.join("config"), home.join("run"), mount_point.clone()] {
            fs::create_dir_all(directory)?;
        }
        let volume = Self { server: None, program: program.to_owned(), home, mount_point, io: settings.io };
        let mut create = volume.command();
        create.args(["create", NAME]);
        for device in devices.all() {
            create.arg("--tier").arg(format!("{}={}", device.profile.name, device.mount_point.display()));
        }
        if let Some((tier, bytes)) = settings.capacity {
            create.arg("--capacity").arg(format!("{tier}={bytes}"));
        }
        let output = create.output().with_context(|| format!("cannot start {}", program.display()))?;
        ensure!(output.status.success(), "polymux create: {}", String::from_utf8_lossy(&output.stderr).trim());
        volume.set_options(settings.options)?;
        if !settings.policy.is_empty() {
            volume.set_policy(settings.policy)?;
        }
        Ok(volume)
    }

    fn configuration(&self) -> PathBuf {
        self.home.join("config").join(format!("{NAME}.toml"))
    }

    /// Gives it another policy, from its next mount on.
    ///
    /// # Errors
    /// Where its configuration cannot be written.
    pub fn set_policy(&self, policy: &str) -> Result<()> {
        let text = fs::read_to_string(self.configuration())?;
        let others = text.lines().filter(|line| !line.starts_with("policy = "));
        let lines: Vec<&str> = others.collect();
        Ok(fs::write(self.configuration(), format!("policy = \"{policy}\"\n{}\n", lines.join("\n")))?)
    }

    /// Gives it other options, from its next mount on.
    ///
    /// # Errors
    /// Where its configuration cannot be written.
    pub fn set_options(&self, options: &str) -> Result<()> {
        const TABLE: &str = "\n[options]\n";
        let text = fs::read_to_string(self.configuration())?;
        // `create` writes no such table: ours is the last one.
        let before = text.split_once(TABLE).map_or(text.as_str(), |(before, _)| before).trim_end();
        let table = if options.is_empty() { String::new() } else { format!("{TABLE}{options}\n") };
        Ok(fs::write(self.configuration(), format!("{before}\n{table}"))?)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("POLYMUX_CONFIG_DIR", self.home.join("config")).env("POLYMUX_RUNTIME_DIR", self.home.join("run"));
        command
    }

    /// Mounts it.
    ///
    /// # Errors
    /// Where that fails.
    pub fn start(&mut self, devices: &Devices) -> Result<()> {
        let mut mount = self.command();
        mount.args(["mount", "--foreground"]);
        if self.io == Io::Passthrough {
            mount.args(["-o", "io=passthrough"]);
        }
        mount.arg(NAME).arg(&self.mount_point);
        let log = self.home.join("log");
        self.server = Some(Server::start(mount, &self.mount_point, &log, devices)?);
        Ok(())
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// Where it is in use.
    pub fn stop(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        let mut unmount = self.command();
        unmount.arg("umount").arg(&self.mount_point);
        locked(&server).stop_with(unmount, AtDeadline::Fail)
    }

    /// Unmounts it and its devices and mounts all of them again: nothing of its files is in memory.
    ///
    /// # Errors
    /// Where it is in use.
    pub fn start_cold(&mut self, devices: &Devices) -> Result<()> {
        self.stop()?;
        devices.forget_caches()?;
        self.start(devices)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    fn ask(&self, arguments: &[&std::ffi::OsStr]) -> Result<Value> {
        let output = self.command().args(arguments).output()?;
        ensure!(
            output.status.success(),
            "polymux {}: {}",
            arguments.first().map(|verb| verb.display().to_string()).unwrap_or_default(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Output of `polymux status --json`.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn status(&self) -> Result<Value> {
        let told = self.ask(&["status", "--json", NAME].map(std::ffi::OsStr::new))?;
        show(&told);
        Ok(told.get(0).cloned().unwrap_or(told))
    }

    /// The process that serves it.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn process(&self) -> Result<u64> {
        self.status()?["pid"].as_u64().context("status names no process")
    }

    /// Bytes read from and written to the tiers since the mount.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn bytes_on_tiers(&self) -> Result<BytesOnTiers> {
        let status = self.status()?;
        let tiers = status["tiers"].as_array().context("status names no tiers")?;
        let of = |name: &str| {
            let bytes = |tier: &Value| tier["counters"][name].as_u64().or_else(|| tier[name].as_u64()).unwrap_or(0);
            tiers.iter().map(bytes).collect()
        };
        Ok(BytesOnTiers { written: of("bytes_written"), read: of("bytes_read") })
    }

    /// Bytes of a file on each tier, in speed order.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn bytes_of_file(&self, path: &Path) -> Result<Vec<u64>> {
        self.bytes_of_files(&[path])
    }

    /// Bytes of several files together on each tier, in speed order.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn bytes_of_files(&self, paths: &[impl AsRef<Path>]) -> Result<Vec<u64>> {
        let status = self.status()?;
        let tiers = status["tiers"].as_array().context("status names no tiers")?;
        let mut sums = vec![0; tiers.len()];
        for path in paths {
            let told = self.ask(&["where".as_ref(), "--json".as_ref(), path.as_ref().as_os_str()])?;
            let shares = told["tiers"].as_array().context("`where` names no tiers")?;
            for (sum, tier) in sums.iter_mut().zip(tiers) {
                let of_tier = shares.iter().filter(|share| share["tier"] == tier["name"]);
                *sum += of_tier.filter_map(|share| share["bytes_mapped"].as_u64()).sum::<u64>();
            }
        }
        Ok(sums)
    }

    /// Moves a file to a tier, and waits until it is there.
    ///
    /// # Errors
    /// Where the volume refuses.
    pub fn migrate(&self, path: &Path, tier: &str) -> Result<()> {
        let output = self.command().args(["migrate", "--wait", "--to", tier]).arg(path).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "polymux migrate: {}", said.trim());
        Ok(())
    }

    /// Measures its tiers.
    ///
    /// # Errors
    /// Where the volume refuses.
    pub fn measure_tiers(&self) -> Result<()> {
        show(&self.ask(&["tier", "measure", "--json", NAME].map(std::ffi::OsStr::new))?);
        Ok(())
    }

    /// Whether files are moved, or are to be, for the sake of their readers.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn is_laying_out(&self) -> Result<bool> {
        let plan = self.ask(&["plan", "--json", NAME].map(std::ffi::OsStr::new))?;
        let moves = plan["moves"].as_array().context("`plan` names no moves")?;
        let is_planned = moves.iter().any(|moves| moves["reason"] == "rebalance");
        Ok(is_planned || plan["jobs_open"].as_u64().context("`plan` counts no jobs")? > 0)
    }

    /// How long background requests yielded on each tier.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn deferrals(&self) -> Result<Vec<Deferral>> {
        let status = self.status()?;
        let tiers = status["tiers"].as_array().context("status names no tiers")?;
        let classes = [("moves", "moves_waited"), ("written behind", "behind_waited")];
        let of = |tier: &Value| {
            let name = tier["name"].as_str().unwrap_or_default().to_owned();
            classes.map(|(class, key)| {
                let number = |field: &str| tier[key][field].as_u64().unwrap_or(0);
                let (requests, at_bound, longest_us) = (number("requests"), number("at_bound"), number("longest_us"));
                Deferral { tier: name.clone(), class, requests, at_bound, longest_us }
            })
        };
        Ok(tiers.iter().flat_map(of).collect())
    }
}
