//! Devices, and on them in turn native files or a volume.
//!
//! Method: XFS and ext4 take turns, as a user's devices would be; each device has space for all that is written to all of
//! them, so that none is full in any measurement. Memory is at hand whenever something is measured (`reservoir.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use super::SpreadArguments;
use super::reads::Piece;
use super::reservoir::Reservoir;
use super::series::Sample;
use super::stamped::{self, BLOCK_BYTES};
use super::streams::Stream;
use super::volume::{Settings, Volume};
use crate::suite::ground::Kind;
use crate::throttled::traffic::Traffic;
use crate::throttled::{Devices, Format, Profile};

/// Names of the devices and of the tiers on them, in speed order.
pub const NAMES: [&str; 3] = ["one", "two", "three"];

const FORMATS: [Format; 3] = [Format::Xfs, Format::Ext4, Format::Ext4];

/// Free space of each device beside the written data: file systems need some.
const SPARE_BYTES: u64 = 1 << 30;

/// Interval of polling whether files are still laid out anew.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that laying out files anew may take.
const SETTLING_MAX: Duration = Duration::from_secs(180);

/// Whether devices have limits of requests beside those of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Bytes alone.
    Unlimited,
    /// Reads per second: 20,000, 8,000 and 3,000.
    Limited,
}

/// The devices of a measurement, and the file systems on them.
pub struct Stand<'a> {
    /// Command-line arguments.
    pub arguments: &'a SpreadArguments,
    /// The devices, fastest first.
    pub profiles: Vec<Profile>,
    /// They themselves.
    pub devices: Devices,
    reservoir: Reservoir,
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

impl<'a> Stand<'a> {
    /// Makes devices with a capacity of `bytes` each.
    ///
    /// # Errors
    /// Where one cannot be made.
    pub fn make(arguments: &'a SpreadArguments, profiles: Vec<Profile>, bytes: u64) -> Result<Self> {
        // Before anything is made.
        arguments.program_with(&arguments.policy)?;
        let devices = Devices::make(&profiles, bytes + SPARE_BYTES)?;
        Ok(Self { arguments, profiles, devices, reservoir: Reservoir::make()? })
    }

    /// Throttles every device to its profile, with memory at hand, before a measurement.
    ///
    /// # Errors
    /// Where a limit cannot be set or memory cannot be held.
    pub fn throttle(&self) -> Result<()> {
        self.reservoir.refill()?;
        self.devices.throttle()
    }

    /// Writes the streams, with the limits of the devices, while `work` runs; `work` gets the traffic of the devices before the first write,
    /// and the time of that. Returns its result, and the bytes of each stream. The devices have no limits afterwards.
    ///
    /// # Errors
    /// Whatever `work`, a writer or the devices report.
    pub fn while_written<T>(
        &self,
        streams: &[Stream],
        work: impl FnOnce(&[Traffic], Instant) -> Result<T>,
    ) -> Result<(T, Vec<u64>)> {
        self.throttle()?;
        let is_over = AtomicBool::new(false);
        let before = self.devices.traffic()?;
        thread::scope(|scope| {
            let is_over = &is_over;
            let begun = Instant::now();
            let writers: Vec<_> = streams.iter().map(|stream| scope.spawn(move || stream.write(is_over))).collect();
            let found = work(&before, begun);
            is_over.store(true, Ordering::Relaxed);
            // A writer that waits for a device need not wait for long.
            self.devices.unthrottle()?;
            let written = writers
                .into_iter()
                .map(|writer| writer.join().map_err(|_| anyhow!("a writer panicked")).and_then(|written| written));
            Ok((found?, written.collect::<Result<_>>()?))
        })
    }

    /// Traffic of the devices since `begun`, when their counters were `before`.
    ///
    /// # Errors
    /// Where the kernel does not report it.
    pub fn sample(&self, before: &[Traffic], begun: Instant) -> Result<Sample> {
        let second = begun.elapsed().as_secs_f64();
        let traffic = self.devices.traffic()?;
        let bytes = traffic.iter().zip(before).map(|(now, before)| now.since(before).bytes_written).collect();
        Ok(Sample { second, bytes })
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

    /// As [`Self::volume`], with settings of its own.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn volume_with(&self, settings: &Settings) -> Result<Volume> {
        let own = [settings.options.to_owned()].into_iter().filter(|options| !options.is_empty());
        let options = own.chain(self.arguments.options.iter().cloned()).collect::<Vec<_>>().join("\n");
        let program = self.arguments.program_with(settings.policy)?;
        let mut volume = Volume::make(&self.devices, &program, &Settings { options: &options, ..*settings })?;
        if self.arguments.measured {
            volume.start(&self.devices)?;
            self.throttle()?;
            volume.measure_tiers()?;
            self.devices.unthrottle()?;
            volume.stop()?;
        }
        Ok(volume)
    }

    /// Waits, with the limits of the devices, until nothing is to be laid out anew for its readers any more. Returns how long that took.
    ///
    /// # Errors
    /// Where it takes too long.
    pub fn settle(&self, volume: &Volume) -> Result<Duration> {
        let begun = Instant::now();
        // Recent reads are evaluated after a second.
        thread::sleep(2 * LOOK_INTERVAL);
        while volume.is_laying_out()? {
            if begun.elapsed() > SETTLING_MAX {
                bail!("files are still laid out anew after {} s", SETTLING_MAX.as_secs());
            }
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(begun.elapsed())
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
