//! The volume: two tiers in two directories of the device, and a mount of the program itself.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Io, Layout};
use crate::scratch::Scratch;

const NAME: &str = "leases";

/// Alternating ranges of a split file: whole pieces that Polymux moves.
const RANGE: u64 = 8 << 20;

/// Files of tiers that are shorter are none of those that are measured.
const OBJECT_MIN: u64 = 1 << 20;

/// A mounted volume, which goes with its value.
pub(crate) struct MountedVolume {
    program: PathBuf,
    config: PathBuf,
    run: PathBuf,
    tiers: [PathBuf; 2],
    mount_point: PathBuf,
    options: String,
    is_mounted: bool,
}

impl MountedVolume {
    /// Makes a volume and mounts it.
    pub(crate) fn mount(program: &Path, scratch: &Scratch, io: Io) -> Result<Self> {
        let io = match io {
            Io::Passthrough => "passthrough",
            Io::WriteBack => "write-back",
        };
        let mut volume = Self {
            program: program.to_owned(),
            config: scratch.directory("config")?,
            run: scratch.directory("run")?,
            tiers: [scratch.directory("first")?, scratch.directory("second")?],
            mount_point: scratch.directory("mount")?,
            options: format!("leases=on,io={io}"),
            is_mounted: false,
        };
        let tier = |name: &str, path: &Path| format!("{name}={}", path.display());
        let [first, second] = [tier("first", &volume.tiers[0]), tier("second", &volume.tiers[1])];
        volume.polymux(["create", NAME, "--tier", &first, "--tier", &second].map(OsStr::new))?;
        let (options, mount_point) = (OsStr::new(&volume.options), volume.mount_point.as_os_str());
        volume.polymux([OsStr::new("mount"), OsStr::new("-o"), options, OsStr::new(NAME), mount_point])?;
        volume.is_mounted = true;
        volume.polymux(["pause", NAME].map(OsStr::new))?;
        Ok(volume)
    }

    /// Runs the program; returns its output.
    fn polymux<'a>(&self, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.program);
        command.env("POLYMUX_CONFIG_DIR", &self.config).env("POLYMUX_RUNTIME_DIR", &self.run).args(arguments);
        let output = command.output().with_context(|| format!("cannot start {}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {}", said.trim());
        Ok(output.stdout)
    }

    /// Where it is mounted.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// How it is mounted.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// Has each second range of a file on the second tier.
    pub(crate) fn split(&self, path: &Path, bytes: u64) -> Result<()> {
        self.polymux(["resume", NAME].map(OsStr::new))?;
        for start in (0..bytes).step_by(usize::try_from(RANGE)?).skip(1).step_by(2) {
            let range = format!("{start}-{}", (start + RANGE).min(bytes));
            let arguments = ["migrate", "--wait", "--to", "second", "--range", &range].map(OsStr::new);
            self.polymux(arguments.into_iter().chain([path.as_os_str()]))?;
        }
        self.polymux(["pause", NAME].map(OsStr::new))?;
        Ok(())
    }

    /// Fails where the bytes of a file are elsewhere.
    pub(super) fn check_shares(&self, path: &Path, bytes: u64, layout: Layout) -> Result<()> {
        let told = self.polymux([OsStr::new("where"), OsStr::new("--json"), path.as_os_str()])?;
        let told: Value = serde_json::from_slice(&told)?;
        let tiers = told["tiers"].as_array().context("`where` names no tiers")?;
        let shares = tiers.iter().filter_map(|tier| tier["bytes_mapped"].as_u64());
        let shares: Vec<u64> = shares.filter(|share| *share > 0).collect();
        let is_as_expected = match layout {
            Layout::Whole => shares == [bytes],
            Layout::Split => shares == [bytes / 2; 2],
        };
        ensure!(is_as_expected, "the file lies otherwise: {told}");
        Ok(())
    }

    /// Objects of files in the directories of the tiers.
    pub(crate) fn objects(&self) -> Result<Vec<PathBuf>> {
        let mut objects = Vec::new();
        let mut directories = self.tiers.to_vec();
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                if metadata.is_dir() {
                    directories.push(entry.path());
                } else if metadata.is_file() && metadata.len() >= OBJECT_MIN {
                    objects.push(entry.path());
                }
            }
        }
        Ok(objects)
    }

    /// Unmounts it.
    pub(crate) fn unmount(mut self) -> Result<()> {
        self.is_mounted = false;
        self.polymux([OsStr::new("umount"), self.mount_point.as_os_str()])?;
        Ok(())
    }
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.polymux([OsStr::new("umount"), self.mount_point.as_os_str()])
        {
            eprintln!("warning: {error}");
        }
    }
}
