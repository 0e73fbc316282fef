//! What readers of a hot set are measured on: files on the devices of a [`Side`], or those of a [`Simulation`].

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use polymux_fs::PolicyKind;
use polymux_sim::DeviceSpeed;

use super::disturbed::{Disturbance, STREAM_PIECE_BYTES, STREAM_PIECES, scan, stream};
use super::hot_set::{FILE_BYTES, FILES, HOT_PERCENT, ROUND, read, write_files, write_paths};
use super::sides::{SSD_BYTES_TO_MARK, Side, SideKind, written_to_first_mb};
use super::{Reader, TieringArguments};
use crate::simulation::{Caches, DeviceOf, Readers, Simulation};
use crate::throttled::Profile;
use crate::throttled::traffic::Traffic;

/// Length of the slices in which the block I/O controller works.
const CONTROLLER_SLICE: Duration = Duration::from_millis(100);

/// Time of a small read of a loop device over memory.
const LOOP_DEVICE_LATENCY: Duration = Duration::from_micros(40);

/// See the module.
pub(super) enum Subject {
    Real { side: Side, files: Vec<PathBuf>, reader: Reader, begun: Instant },
    Simulated(Box<Simulation>),
}

/// A simulated device with the limits of a throttled one.
fn simulated((profile, bytes): &(Profile, u64)) -> DeviceOf {
    let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let limits = profile.limits;
    let speed = DeviceSpeed {
        reads_per_second: limit(limits.reads),
        writes_per_second: limit(limits.writes),
        read_bytes_per_second: limit(limits.read_bytes),
        written_bytes_per_second: limit(limits.written_bytes),
        burst: CONTROLLER_SLICE,
        latency: LOOP_DEVICE_LATENCY,
    };
    DeviceOf { name: profile.name, bytes: *bytes, speed }
}

impl Subject {
    /// All files of the hot set on the devices of a side, which are limited from now on.
    ///
    /// # Errors
    /// Where the devices or the file systems on them cannot be made.
    pub(super) fn make(kind: SideKind, arguments: &TieringArguments) -> Result<Self> {
        Self::over(kind.devices(), FILES, kind, arguments)
    }

    /// As [`Self::make`], for so many files on these devices, the fastest first.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub(super) fn over(
        devices: &[(Profile, u64)],
        files: usize,
        kind: SideKind,
        arguments: &TieringArguments,
    ) -> Result<Self> {
        if kind == SideKind::Simulated {
            ensure!(arguments.options.is_empty(), "a simulated volume has the options of a new one");
            let policy = match arguments.policy.as_str() {
                "" => PolicyKind::Adaptive,
                name => name.parse()?,
            };
            let devices: Vec<DeviceOf> = devices.iter().map(simulated).collect();
            let simulation = Simulation::make(&devices, policy, files, FILE_BYTES as u64)?;
            return Ok(Self::Simulated(Box::new(simulation)));
        }
        let side = Side::over(devices, kind, arguments)?;
        let files = write_files(&side, files)?;
        side.throttle()?;
        Ok(Self::Real { side, files, reader: arguments.reader, begun: Instant::now() })
    }

    /// Writes all files anew: the hot ones to the SSD, the others there up to the high mark, and the rest to the disk.
    ///
    /// # Errors
    /// Where a file cannot be written, or the side has no two devices of its own.
    pub(super) fn place_by_hand(&mut self, hot: &Range<usize>) -> Result<()> {
        let Self::Real { side, files, .. } = self else { bail!("a simulated volume places files itself") };
        let ssd = side.ssd_directory().context("the side has no directory on the SSD")?;
        let disk = side.path().join("data");
        side.unthrottle()?;
        for directory in [ssd, &disk] {
            if directory.exists() {
                fs::remove_dir_all(directory)?;
            }
            fs::create_dir(directory)?;
        }
        let fitting = usize::try_from(SSD_BYTES_TO_MARK)? / FILE_BYTES;
        let others = (0..files.len()).filter(|number| !hot.contains(number));
        let on_ssd: Vec<usize> = hot.clone().chain(others).take(fitting).collect();
        let path = |number: usize| {
            let directory = if on_ssd.contains(&number) { ssd } else { &disk };
            directory.join(format!("file-{number:02}"))
        };
        *files = write_paths((0..files.len()).map(path).collect())?;
        side.throttle()
    }

    /// One round of readers, most of whose reads go to the hot files; reads per second.
    ///
    /// # Errors
    /// Where a read fails.
    pub(super) fn read(&self, hot: &Range<usize>, readers: u16, seed: u64) -> Result<f64> {
        match self {
            Self::Real { files, reader, .. } => read(files, hot, (*reader, readers), seed),
            Self::Simulated(simulation) => simulation.read(&Readers {
                count: readers,
                hot: hot.clone(),
                hot_percent: HOT_PERCENT,
                think: Duration::ZERO,
                length: ROUND,
                caches: Caches::Dropped,
                seed,
            }),
        }
    }

    /// Disturbs the readers, and calls `beside` again and again until that is over.
    ///
    /// # Errors
    /// Where the disturbance fails, and those of `beside`.
    pub(super) fn disturb(&self, disturbance: Disturbance, mut beside: impl FnMut() -> Result<()>) -> Result<()> {
        match self {
            Self::Real { side, files, .. } => thread::scope(|scope| {
                let disturber = scope.spawn(|| match disturbance {
                    Disturbance::Scan => scan(files),
                    Disturbance::Stream => stream(side.path()),
                });
                while !disturber.is_finished() {
                    beside()?;
                }
                disturber.join().map_err(|_| anyhow!("what disturbs panicked"))?
            }),
            Self::Simulated(simulation) => match disturbance {
                Disturbance::Scan => simulation.scan_beside(beside),
                Disturbance::Stream => simulation.stream_beside(&[STREAM_PIECE_BYTES; STREAM_PIECES], beside),
            },
        }
    }

    /// The traffic of the devices so far, the fastest first.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub(super) fn traffic(&self) -> Result<Vec<Traffic>> {
        match self {
            Self::Real { side, .. } => side.traffic(),
            Self::Simulated(simulation) => Ok(simulation.traffic()),
        }
    }

    /// Megabytes that were written to the SSD since its traffic was `before`; nothing where there is only one device.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub(super) fn written_to_ssd_mb(&self, before: &[Traffic]) -> Result<Option<f64>> {
        Ok(written_to_first_mb(before, &self.traffic()?))
    }

    /// Time since the devices were limited, or before.
    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Real { begun, .. } => begun.elapsed(),
            Self::Simulated(simulation) => simulation.elapsed(),
        }
    }

    /// Where the bytes of some files are, for people; empty where they are on one device, or simulated.
    pub(super) fn places(&self, files: Range<usize>) -> String {
        match self {
            Self::Real { side, files: all, .. } => {
                all[files].iter().map(|file| side.place_of(file)).collect::<Vec<_>>().join(" ")
            }
            Self::Simulated(_) => String::new(),
        }
    }

    /// Takes it down.
    ///
    /// # Errors
    /// Where it is in use.
    pub(super) fn end(self) -> Result<()> {
        match self {
            Self::Real { side, .. } => side.end(),
            Self::Simulated(_) => Ok(()),
        }
    }
}
