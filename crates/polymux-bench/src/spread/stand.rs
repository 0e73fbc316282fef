//! Devices and what is put on them in turn: native files, or a volume.
//!
//! What is true here: XFS and ext4 take turns, as a user's devices would be; each device has room for all that is written to all of
//! them, so that none is full in any measurement. Memory is touched before anything is measured: a virtual machine gets its memory from
//! the host page by page, at a few hundred MB/s, and a measurement that needed more than ever before would see that.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::fs::FallocateFlags;

use super::SpreadArguments;
use super::reads::Piece;
use super::stamped::{self, BLOCK_BYTES};
use super::volume::{Settings, Volume};
use crate::suite::ground::Kind;
use crate::throttled::{Devices, Format, Profile};

/// Names of the devices and of the tiers on them, in speed order.
pub const NAMES: [&str; 3] = ["one", "two", "three"];

const FORMATS: [Format; 3] = [Format::Xfs, Format::Ext4, Format::Ext4];

/// Room of each device beside what is written: file systems need some.
const SPARE_BYTES: u64 = 1 << 30;

/// Copies of what is written that are in memory at once: in the image, and in the page caches of the tier and of the mount.
const COPIES: u64 = 3;

/// Whether devices have limits of requests beside those of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Bytes alone.
    Unlimited,
    /// Reads per second: 20,000, 8,000 and 3,000.
    Limited,
}

/// The devices of a measurement, and what stands on them.
pub struct Stand<'a> {
    /// What was asked for.
    pub arguments: &'a SpreadArguments,
    /// The program to measure.
    pub program: PathBuf,
    /// The devices, fastest first.
    pub profiles: Vec<Profile>,
    /// They themselves.
    pub devices: Devices,
}

/// The devices to make.
#[must_use]
pub fn profiles(arguments: &SpreadArguments, requests: Requests) -> Vec<Profile> {
    let of = |(kind, (name, format)): (&Kind, (&'static str, Format))| {
        let mut limits = kind.limits();
        if requests == Requests::Limited || arguments.request_limits {
            limits.reads = reads_per_second(*kind);
        }
        Profile { name, format, limits }
    };
    arguments.kinds().iter().zip(NAMES.into_iter().zip(FORMATS)).map(of).collect()
}

const fn reads_per_second(kind: Kind) -> Option<u64> {
    match kind {
        Kind::Fast => Some(20_000),
        Kind::Middle => Some(8_000),
        Kind::Slow => Some(3_000),
        Kind::Memory | Kind::Iops200 => None,
    }
}

/// Takes memory and gives it back, so that it is there when it is needed; no more than half of what is free.
fn touch_memory(directory: &Path, bytes: u64) -> Result<()> {
    let table = fs::read_to_string("/proc/meminfo")?;
    let words = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available_kib: u64 = words.and_then(|words| words.split_whitespace().next()).unwrap_or("0").parse()?;
    let path = directory.join("touched");
    let file = File::create_new(&path)?;
    let touched = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.min(available_kib * 1024 / 2));
    fs::remove_file(&path)?;
    Ok(touched?)
}

impl<'a> Stand<'a> {
    /// Makes devices that have room for so many bytes each.
    ///
    /// # Errors
    /// Where one cannot be made.
    pub fn make(arguments: &'a SpreadArguments, profiles: Vec<Profile>, bytes: u64) -> Result<Self> {
        let devices = Devices::make(&profiles, bytes + SPARE_BYTES)?;
        touch_memory(&devices.directory(), COPIES * bytes)?;
        Ok(Self { arguments, program: arguments.program()?, profiles, devices })
    }

    /// How long a figure is measured.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.arguments.seconds)
    }

    /// Title of a table.
    #[must_use]
    pub fn title(&self, what: &str) -> String {
        format!("{what}: {} with policy {}", self.devices_in_words(), self.arguments.policy)
    }

    /// The devices by their kinds.
    #[must_use]
    pub fn devices_in_words(&self) -> String {
        self.arguments.kinds().iter().map(|kind| kind.name()).collect::<Vec<_>>().join(" + ")
    }

    /// Bytes on each tier in words.
    #[must_use]
    pub fn shares_in_words(&self, shares: &[u64]) -> String {
        let words = |(profile, bytes): (&Profile, &u64)| format!("{:.0} MB on {}", *bytes as f64 / 1e6, profile.name);
        self.profiles.iter().zip(shares).map(words).collect::<Vec<_>>().join(", ")
    }

    /// A new volume with the policy that was asked for, on empty devices without limits.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn volume(&self) -> Result<Volume> {
        self.volume_with(&Settings { policy: &self.arguments.policy, ..Settings::default() })
    }

    /// The same with settings of its own.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn volume_with(&self, settings: &Settings) -> Result<Volume> {
        Volume::make(&self.devices, &self.program, settings)
    }

    /// A native file on each device, as large as its share; devices with none have no file.
    ///
    /// # Errors
    /// Where a device is not there.
    pub fn pieces(&self, name: &str, shares: &[u64]) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for (profile, share) in self.profiles.iter().zip(shares) {
            let blocks = share / BLOCK_BYTES as u64;
            if blocks > 0 {
                pieces.push(Piece { path: self.devices.mount_point(profile.name)?.join(name), blocks });
            }
        }
        if pieces.is_empty() {
            bail!("the file has no bytes on any tier");
        }
        Ok(pieces)
    }

    /// Makes these files on empty devices, which have no limits then.
    ///
    /// # Errors
    /// Whatever the devices report.
    pub fn make_natively(&self, pieces: &[Piece]) -> Result<()> {
        self.devices.format_again()?;
        pieces.iter().try_for_each(|piece| stamped::write_file(&piece.path, piece.blocks))
    }
}
