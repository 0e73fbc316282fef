//! A volume with a tier on each device, and a plain mount of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::suite::server::{Server, locked};
use crate::throttled::Devices;

const NAME: &str = "bench";

/// A volume that was made.
pub struct Volume {
    server: Option<Arc<Mutex<Server>>>,
    program: PathBuf,
    home: PathBuf,
    mount_point: PathBuf,
}

/// Bytes that tiers have written and read since the volume was mounted, in speed order.
pub struct BytesOnTiers {
    /// Written.
    pub written: Vec<u64>,
    /// Read.
    pub read: Vec<u64>,
}

impl Volume {
    /// Makes it anew, on empty devices, with a policy and otherwise as `polymux create` makes it.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn make(devices: &Devices, program: &Path, policy: &str) -> Result<Self> {
        devices.format_again()?;
        let home = devices.directory().join("home");
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        let mount_point = home.join("mount");
        for directory in [home.join("config"), home.join("run"), mount_point.clone()] {
            fs::create_dir_all(directory)?;
        }
        let volume = Self { server: None, program: program.to_owned(), home, mount_point };
        let mut create = volume.command();
        create.args(["create", NAME]);
        for device in devices.all() {
            create.arg("--tier").arg(format!("{}={}", device.profile.name, device.mount_point.display()));
        }
        let output = create.output().with_context(|| format!("cannot start {}", program.display()))?;
        ensure!(output.status.success(), "polymux create: {}", String::from_utf8_lossy(&output.stderr).trim());
        let path = volume.home.join("config").join(format!("{NAME}.toml"));
        let text = fs::read_to_string(&path)?;
        fs::write(path, format!("policy = \"{policy}\"\n{text}"))?;
        Ok(volume)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("POLYMUX_CONFIG_DIR", self.home.join("config")).env("POLYMUX_RUNTIME_DIR", self.home.join("run"));
        // The policy `spread` is not offered yet.
        command.env("POLYMUX_UNFINISHED", "1");
        command
    }

    /// Mounts it.
    ///
    /// # Errors
    /// Where that fails.
    pub fn start(&mut self, devices: &Devices) -> Result<()> {
        let mut mount = self.command();
        mount.args(["mount", "--foreground", NAME]).arg(&self.mount_point);
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
        locked(&server).stop_with(unmount)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// What the tiers did since it was mounted.
    ///
    /// # Errors
    /// Where the volume does not say.
    pub fn bytes_on_tiers(&self) -> Result<BytesOnTiers> {
        let output = self.command().args(["status", "--json", NAME]).output()?;
        ensure!(output.status.success(), "polymux status: {}", String::from_utf8_lossy(&output.stderr).trim());
        let told: Value = serde_json::from_slice(&output.stdout)?;
        if std::env::var_os("POLYMUX_BENCH_STATUS").is_some() {
            eprintln!("{told}");
        }
        let status = told.get(0).unwrap_or(&told);
        let tiers = status["tiers"].as_array().context("status names no tiers")?;
        let of = |name: &str| {
            let bytes = |tier: &Value| tier["counters"][name].as_u64().or_else(|| tier[name].as_u64()).unwrap_or(0);
            tiers.iter().map(bytes).collect()
        };
        Ok(BytesOnTiers { written: of("bytes_written"), read: of("bytes_read") })
    }
}
