//! The compared sides: the native file system, mergerfs and Polymux, all on the same devices at the same time.
//!
//! Invariants:
//! * Every side has a directory of its own on each device, and works in nothing else.
//! * The servers of a side are known to the devices, so that they go before them after an error and on a signal too.
//! * Sides are plain mounts: figures are those that a user gets who mounts, with the path that the name of the side says.

pub mod mergerfs;
mod offer;
pub mod polymux;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};

pub use self::mergerfs::Settings;
pub use self::polymux::{ExtendedAttributes, Mode, Route, Transport};
use super::ground::{FIRST, SECOND};
use super::server::{self, AtDeadline, Server};
use crate::throttled::{self, Devices};

/// Where files of a workload are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// On the first device.
    First,
    /// On the second device.
    Second,
    /// Written to the first, to be split over both.
    Split,
}

impl Tier {
    const fn directory(self) -> &'static str {
        match self {
            Self::First => FIRST,
            Self::Second => SECOND,
            Self::Split => "split",
        }
    }
}

/// Which file system is measured, and how it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideKind {
    /// The file system of the device itself.
    Native,
    /// mergerfs over it.
    Mergerfs(Settings),
    /// Polymux over it.
    Polymux(Route),
    /// Another build of Polymux over it.
    OtherBuild(Route),
}

/// Name of the sides of the other build, behind that of the same side of the measured one.
pub const OTHER_BUILD: &str = ", other build";

/// The programs of Polymux that are measured.
#[derive(Clone, Debug)]
pub struct Builds {
    /// The one that figures and targets are about.
    pub measured: PathBuf,
    /// One to compare it with, pair by pair.
    pub other: Option<PathBuf>,
}

impl Builds {
    /// The program of a side; for sides that are not Polymux it is not run.
    fn of(&self, kind: SideKind) -> &Path {
        match (kind, &self.other) {
            (SideKind::OtherBuild(_), Some(other)) => other,
            _ => &self.measured,
        }
    }
}

impl SideKind {
    /// Name in reports, unique in a run.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Native => "native".to_owned(),
            Self::Mergerfs(settings) => settings.name().to_owned(),
            Self::Polymux(route) => route.name(),
            Self::OtherBuild(route) => route.name() + OTHER_BUILD,
        }
    }

    /// The path through Polymux, where it is Polymux.
    #[must_use]
    pub const fn route(self) -> Option<Route> {
        match self {
            Self::Polymux(route) | Self::OtherBuild(route) => Some(route),
            Self::Native | Self::Mergerfs(_) => None,
        }
    }
}

/// One side, mounted or not.
pub struct Side {
    /// Kind of the side.
    pub kind: SideKind,
    /// Its directory on each device, in the order of the devices.
    branches: Vec<PathBuf>,
    /// Mount point, configuration and log.
    home: PathBuf,
    program: PathBuf,
    server: Option<Arc<Mutex<Server>>>,
}

impl Side {
    /// Makes its directories on the devices. `number` distinguishes sides.
    ///
    /// # Errors
    /// Where something cannot be made.
    pub fn make(kind: SideKind, number: usize, devices: &Devices, builds: &Builds) -> Result<Self> {
        let name = format!("side-{number}");
        let home = devices.directory().join(&name);
        for directory in ["mount", "config", "run"] {
            fs::create_dir_all(home.join(directory))?;
        }
        let mut branches = Vec::new();
        for device in devices.all() {
            let branch = device.mount_point.join(&name);
            fs::create_dir(&branch)?;
            branches.push(branch);
        }
        let side = Self { kind, branches, home, program: builds.of(kind).to_owned(), server: None };
        match kind.route() {
            Some(route) => polymux::create(&side.program, &side.home, &side.branches, route)?,
            // Files made below such a directory stay on the device of the directory.
            None => {
                for (branch, name) in side.branches.iter().zip([FIRST, SECOND]) {
                    fs::create_dir(branch.join(name))?;
                }
            }
        }
        Ok(side)
    }

    fn mount_point(&self) -> PathBuf {
        self.home.join("mount")
    }

    /// Mounts it.
    ///
    /// # Errors
    /// Where it does not mount.
    pub fn start(&mut self, devices: &Devices) -> Result<()> {
        let command = match self.kind {
            SideKind::Native => return Ok(()),
            SideKind::Mergerfs(settings) => mergerfs::command(settings, &self.branches, &self.mount_point()),
            SideKind::Polymux(_) | SideKind::OtherBuild(_) => {
                polymux::mount(&self.program, &self.home, &self.mount_point())
            }
        };
        let start = || Server::start(command, &self.mount_point(), &self.home.join("log"), devices);
        let server = match self.kind.route() {
            Some(Route { transport: Transport::IoUring, .. }) => offer::with_rings(devices, start),
            _ => start(),
        };
        let server = server.with_context(|| self.kind.name())?;
        self.server = Some(server);
        match self.kind.route() {
            Some(route) => polymux::check(devices, &self.program, &self.home, route),
            None => Ok(()),
        }
    }

    /// Unmounts it cleanly. A peer that does not end after that is killed.
    ///
    /// # Errors
    /// Where it is in use, or Polymux does not end.
    pub fn stop(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        let (command, at_deadline) = match self.kind.route() {
            Some(_) => (polymux::unmount(&self.program, &self.home, &self.mount_point()), AtDeadline::Fail),
            None => {
                let mut command = Command::new("umount");
                command.arg(self.mount_point());
                (command, AtDeadline::Kill)
            }
        };
        server::locked(&server).stop_with(command, at_deadline).with_context(|| self.kind.name())
    }

    /// A directory of this side for one workload; made where it is not there.
    ///
    /// # Errors
    /// Where it cannot be made, or the side has no such tier.
    pub fn directory(&self, tier: Tier, workload: &str) -> Result<PathBuf> {
        throttled::stop_if_interrupted();
        let parent = match (self.kind, tier) {
            (SideKind::Native, Tier::First | Tier::Split) => self.branches[0].join(FIRST),
            (SideKind::Native, Tier::Second) => self.branches.get(1).context("there is one device only")?.join(SECOND),
            (SideKind::Mergerfs(_), Tier::Split) => self.mount_point().join(FIRST),
            _ => self.mount_point().join(tier.directory()),
        };
        let directory = parent.join(workload);
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(directory)
    }

    /// Makes sure that the bytes of a closed file go the way that the name of this side says.
    ///
    /// # Errors
    /// Where they do not.
    pub fn check_way(&self, devices: &Devices, file: &Path) -> Result<()> {
        match self.kind.route() {
            Some(route) => polymux::check_way(devices, &self.program, &self.home, file, route),
            None => Ok(()),
        }
    }

    /// Puts the second half of a file on the second tier. Elsewhere than in Polymux a file is on one device, always.
    ///
    /// # Errors
    /// Where it is not split afterwards.
    pub fn split(&self, devices: &Devices, file: &Path, bytes: u64) -> Result<()> {
        match self.kind.route() {
            Some(_) => polymux::split(devices, &self.program, &self.home, file, bytes),
            _ if self.branches.len() == 2 => Ok(()),
            _ => bail!("there is one device only"),
        }
    }
}
