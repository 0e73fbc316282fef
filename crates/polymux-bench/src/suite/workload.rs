//! The interface of a workload, and its inputs.
//!
//! Invariants:
//! * A workload does the same calls on every side, with the same random offsets in the same repetition.
//! * It is prepared without limits; it is measured with the limits of the ground. Where it is cold, everything was unmounted
//!   and mounted again between the two.
//! * Whatever it writes in the clock is durable when the clock stops, as [`Workload::ends_with`] says.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::durable;
use super::figure::Figure;
use super::ground::Ground;
use super::sides::{Side, SideKind, Tier};
use crate::throttled::Devices;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// For a look: less than two minutes for all.
    Quick,
    /// For figures.
    Full,
}

impl Scale {
    /// One of two values.
    #[must_use]
    pub const fn choose<T: Copy>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// Which paths through Polymux a workload tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// Of bytes: modes.
    Modes,
    /// Of requests: transports.
    Transports,
    /// Of requests, with every byte through the daemon.
    TransportsOfDaemon,
    /// As `TransportsOfDaemon`; data that the kernel does not cache is in the memory of the tier, so that only the way to the daemon remains.
    TransportsDirect,
    /// Of bytes, as programs meet them: as Polymux chooses, and with writes that the kernel collects.
    Programs,
    /// Through the daemon with the page cache, as is possible for a file that is split over tiers.
    Cached,
}

/// Data in memory when the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temperature {
    /// The content cached by the workload itself.
    Warm,
    /// Nothing: file systems and servers were started anew.
    Cold,
}

/// The inputs of a workload on one side.
pub struct Place<'a> {
    /// How much to do.
    pub scale: Scale,
    /// Number of the repetition, from 0; the seed of everything random.
    pub repetition: usize,
    /// The ground.
    pub ground: &'a Ground,
    /// The devices.
    pub devices: &'a Devices,
    /// The side.
    pub side: &'a Side,
    /// Name of the workload, and of its directories.
    pub workload: &'static str,
    /// The tree to unpack, as an archive.
    pub archive: Option<&'a Path>,
}

impl Place<'_> {
    /// A directory of the workload on a tier.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn directory(&self, tier: Tier) -> Result<PathBuf> {
        self.side.directory(tier, self.workload)
    }

    /// Makes everything below the workload's directory durable.
    ///
    /// # Errors
    /// Whatever the file systems report.
    pub fn end_durably(&self) -> Result<()> {
        durable::end(&self.directory(Tier::First)?, &self.device_directories())
    }

    /// Milliseconds that some work takes until everything below the workload's directory is durable.
    ///
    /// # Errors
    /// Those of the work, and whatever the file systems report.
    pub fn ms_until_durable(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let begun = Instant::now();
        work()?;
        self.end_durably()?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        durable::forget_end(&self.directory(Tier::First)?)?;
        Ok(ms)
    }

    /// Where the devices are mounted.
    #[must_use]
    pub fn device_directories(&self) -> Vec<PathBuf> {
        self.devices.all().into_iter().map(|device| device.mount_point).collect()
    }

    /// The archive to unpack.
    ///
    /// # Errors
    /// Where none was made.
    pub fn archive(&self) -> Result<&Path> {
        self.archive.context("there is no archive")
    }
}

/// Something that programs do with a file system.
pub trait Workload: Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// A description in one line.
    fn about(&self) -> &'static str;

    /// The data that is durable when the clock stops, in words.
    fn ends_with(&self) -> &'static str;

    /// Its figures, in the order of the values of [`Workload::measure`].
    fn figures(&self) -> &'static [Figure];

    /// The grounds it runs on; none where a form leaves it out.
    fn grounds(&self, scale: Scale) -> Vec<Ground>;

    /// Which paths through Polymux it tells apart.
    fn routes(&self) -> Routes;

    /// Data in memory when it begins.
    fn temperature(&self) -> Temperature {
        Temperature::Warm
    }

    /// Where its files are.
    fn tier(&self) -> Tier {
        Tier::First
    }

    /// Whether it unpacks the tree.
    fn needs_archive(&self) -> bool {
        false
    }

    /// Whether a target compares it with mergerfs in its default configuration, so that the quick form measures that too.
    fn needs_default_mergerfs(&self) -> bool {
        false
    }

    /// Sides that would add nothing to it but time and memory.
    fn leaves_out(&self, _: SideKind) -> bool {
        false
    }

    /// Why it cannot run on this machine; `None`: it can.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// Makes its files, durably.
    ///
    /// # Errors
    /// Whatever the side reports.
    fn prepare(&self, _: &Place) -> Result<()> {
        Ok(())
    }

    /// Does it once and returns a value for each figure.
    ///
    /// # Errors
    /// Whatever the side reports.
    fn measure(&self, place: &Place) -> Result<Vec<f64>>;

    /// Removes everything it made.
    ///
    /// # Errors
    /// Whatever the side reports.
    fn clean(&self, place: &Place) -> Result<()> {
        let directory = place.directory(self.tier())?;
        fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())
    }
}
