//! The compared sides: one device natively, mergerfs and Polymux over both.
//!
//! Invariant: each side has devices of its own, which go with it; their limits hold between [`Side::throttle`] and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::TieringArguments;
use crate::spread::volume::{Io, Settings, Volume};
use crate::suite::server::{AtDeadline, Server, locked};
use crate::suite::sides::mergerfs;
use crate::throttled::traffic::Traffic;
use crate::throttled::{Devices, Format, Limits, Profile};
use crate::tree;

/// An SSD that is a part of the data large.
pub(super) const SSD: Profile = Profile {
    name: "ssd",
    format: Format::Ext4,
    limits: Limits {
        read_bytes: Some(660_000_000),
        written_bytes: Some(230_000_000),
        reads: Some(20_000),
        writes: Some(20_000),
    },
};
/// A disk for all of it.
pub(super) const DISK: Profile = Profile {
    name: "disk",
    format: Format::Ext4,
    limits: Limits {
        read_bytes: Some(120_000_000),
        written_bytes: Some(120_000_000),
        reads: Some(3_000),
        writes: Some(3_000),
    },
};
/// Files from this size on are asked for their place.
const SIZE_TOLD_OF: u64 = 1 << 20;
/// Size of the SSD beside the disk.
pub(super) const SSD_BYTES: u64 = 1_200_000_000;
const DISK_BYTES: u64 = 5_000_000_000;
/// Bytes of the SSD that hold data, as a new volume sets the mark.
pub(super) const SSD_BYTES_TO_MARK: u64 = SSD_BYTES / 10 * 9;

/// File system and devices under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SideKind {
    /// Natively on the disk.
    Disk,
    /// Natively on an SSD that is large enough.
    Ssd,
    /// Natively on the disk, with logs of databases on an SSD that is large enough, as an administrator who knows the program sets it up.
    LogOnSsd,
    /// Natively on both, each file of `hot-set` where an administrator who knows the load puts it: the best static choice.
    ByHand,
    /// Polymux over an SSD alone that is large enough: the overhead where nothing is to be moved.
    PolymuxOnSsd,
    /// mergerfs over the SSD and the disk, each file on the first of them with space.
    Mergerfs,
    /// Polymux over both, as `polymux create` makes it and `mount` mounts it, with the options of the command line.
    Polymux,
    /// As `polymux`, with files passed through (`io = "passthrough"`).
    PolymuxPassthrough,
    /// As `polymux`, with every request through the daemon as it is made (`passthrough = "off"`).
    PolymuxHeard,
    /// As `polymux` with every request heard, in virtual time over simulated devices ([`crate::simulation`]).
    Simulated,
}

impl SideKind {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "all on the disk",
            Self::Ssd => "all on an SSD",
            Self::LogOnSsd => "log on an SSD, rest on the disk",
            Self::ByHand => "placed by hand",
            Self::PolymuxOnSsd => "polymux over an SSD alone",
            Self::Mergerfs => "mergerfs",
            Self::Polymux => "polymux",
            Self::PolymuxPassthrough => "polymux, passthrough",
            Self::PolymuxHeard => "polymux, passthrough off",
            Self::Simulated => "polymux, simulated",
        }
    }
}

impl SideKind {
    /// The devices of this side and their sizes, the fastest first.
    pub const fn devices(self) -> &'static [(Profile, u64)] {
        match self {
            Self::Disk => &[(DISK, DISK_BYTES)],
            Self::Ssd | Self::PolymuxOnSsd => &[(SSD, DISK_BYTES)],
            // PostgreSQL ends where a file system that has its log alone is full, and the log outgrows the SSD of the others while a
            // checkpoint takes long.
            Self::LogOnSsd => &[(SSD, DISK_BYTES), (DISK, DISK_BYTES)],
            Self::ByHand
            | Self::Mergerfs
            | Self::Polymux
            | Self::PolymuxPassthrough
            | Self::PolymuxHeard
            | Self::Simulated => &[(SSD, SSD_BYTES), (DISK, DISK_BYTES)],
        }
    }
}

/// Megabytes that were written to the first of several devices between two moments; nothing where there is only one.
pub(super) fn written_to_first_mb(before: &[Traffic], now: &[Traffic]) -> Option<f64> {
    (now.len() > 1).then(|| now[0].since(&before[0]).bytes_written as f64 / 1e6)
}

enum Top {
    Native,
    Mergerfs(Arc<Mutex<Server>>),
    Polymux(Volume),
}

/// A file system to work on.
pub struct Side {
    // Before the devices, which it stands on.
    top: Top,
    devices: Devices,
    mount_point: PathBuf,
    ssd_directory: Option<PathBuf>,
}

impl Side {
    /// Makes it on devices of its own, without limits.
    ///
    /// # Errors
    /// Where the devices or the file systems on them cannot be made.
    pub fn make(kind: SideKind, arguments: &TieringArguments) -> Result<Self> {
        Self::over(kind.devices(), kind, arguments)
    }

    /// Makes it on devices of these kinds and sizes, the fastest first.
    ///
    /// # Errors
    /// As [`Side::make`].
    pub fn over(devices: &[(Profile, u64)], kind: SideKind, arguments: &TieringArguments) -> Result<Self> {
        ensure!(kind != SideKind::Simulated, "this measurement is made on devices alone");
        let devices = Devices::make_sized(devices)?;
        let (top, mount_point) = match kind {
            SideKind::Disk | SideKind::LogOnSsd | SideKind::ByHand => (Top::Native, devices.mount_point(DISK.name)?),
            SideKind::Ssd => (Top::Native, devices.mount_point(SSD.name)?),
            SideKind::Simulated => unreachable!("it was refused above"),
            SideKind::Mergerfs => {
                let mount_point = devices.directory().join("union");
                fs::create_dir(&mount_point)?;
                let branches: Vec<PathBuf> = devices.all().into_iter().map(|device| device.mount_point).collect();
                let command = mergerfs::command(mergerfs::Settings::FirstFound, &branches, &mount_point);
                let log = devices.directory().join("mergerfs.log");
                (Top::Mergerfs(Server::start(command, &mount_point, &log, &devices)?), mount_point)
            }
            SideKind::Polymux | SideKind::PolymuxOnSsd | SideKind::PolymuxPassthrough | SideKind::PolymuxHeard => {
                let heard = (kind == SideKind::PolymuxHeard).then(|| "passthrough = \"off\"".to_owned());
                let options: Vec<String> = heard.into_iter().chain(arguments.options.iter().cloned()).collect();
                let options = options.join("\n");
                let is_as_chosen = matches!(kind, SideKind::Polymux | SideKind::PolymuxOnSsd);
                let io = if is_as_chosen { Io::AsChosen } else { Io::Passthrough };
                let settings = Settings { policy: &arguments.policy, capacity: None, options: &options, io };
                let mut volume = Volume::make(&devices, &arguments.program()?, &settings)?;
                volume.start(&devices)?;
                let mount_point = volume.mount_point().to_owned();
                (Top::Polymux(volume), mount_point)
            }
        };
        let ssd_directory = if matches!(kind, SideKind::LogOnSsd | SideKind::ByHand) {
            Some(devices.mount_point(SSD.name)?.join("by-hand"))
        } else {
            None
        };
        Ok(Self { top, devices, mount_point, ssd_directory })
    }

    /// Where its files are.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Directory for files that are put on the SSD by hand, natively. It does not exist yet.
    pub fn ssd_directory(&self) -> Option<&Path> {
        self.ssd_directory.as_deref()
    }

    /// Its devices.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// A directory in memory that goes with it.
    pub fn scratch(&self) -> PathBuf {
        self.devices.directory()
    }

    /// Takes the limits of the devices away.
    ///
    /// # Errors
    /// Where one cannot be taken away.
    pub fn unthrottle(&self) -> Result<()> {
        self.devices.unthrottle()
    }

    /// Sets the limits of the devices.
    ///
    /// # Errors
    /// Where one cannot be set.
    pub fn throttle(&self) -> Result<()> {
        self.devices.throttle()
    }

    /// The traffic of the devices so far, the SSD first where there are both.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn traffic(&self) -> Result<Vec<Traffic>> {
        self.devices.traffic()
    }

    /// Megabytes that were written to the SSD since its traffic was `before`; nothing where there is only one device.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn written_to_ssd_mb(&self, before: &[Traffic]) -> Result<Option<f64>> {
        Ok(written_to_first_mb(before, &self.traffic()?))
    }

    /// Where the bytes of a file are, for people; empty where it is on one device.
    pub fn place_of(&self, file: &Path) -> String {
        self.places(&[file.to_owned()]).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Where the bytes of the files below a directory are, for people; empty where they are on one device.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn place_below(&self, directory: &Path) -> Result<String> {
        if !matches!(self.top, Top::Polymux(_)) {
            return Ok(String::new());
        }
        let (mut files, mut told_of) = (Vec::new(), Vec::new());
        tree::walk(directory, &mut files)?;
        for file in files {
            if fs::metadata(&file)?.len() >= SIZE_TOLD_OF {
                told_of.push(file);
            }
        }
        self.places(&told_of)
    }

    /// MiB of files on each tier, for people; empty where there is one device, or no file.
    fn places(&self, files: &[PathBuf]) -> Result<String> {
        match &self.top {
            Top::Polymux(volume) if !files.is_empty() => {
                let bytes = volume.bytes_of_files(files)?;
                Ok(bytes.iter().map(|bytes| format!("{}", bytes >> 20)).collect::<Vec<_>>().join("/"))
            }
            Top::Polymux(_) | Top::Native | Top::Mergerfs(_) => Ok(String::new()),
        }
    }

    /// Takes it down.
    ///
    /// # Errors
    /// Where it is in use.
    pub fn end(mut self) -> Result<()> {
        self.devices.unthrottle()?;
        match &mut self.top {
            Top::Native => Ok(()),
            Top::Mergerfs(server) => {
                let mut unmount = std::process::Command::new("umount");
                unmount.arg(&self.mount_point);
                locked(server).stop_with(unmount, AtDeadline::Kill).context("mergerfs")
            }
            Top::Polymux(volume) => volume.stop(),
        }
    }
}
