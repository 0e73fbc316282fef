//! A volume over throttled devices, and files on the tiers where they are wanted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polymux_fs::{Caller, FileSystem, HandleId, JobId, JobState, MountOptions, OpenOptions, SyncKind, WriteOrigin};
use polymux_types::{ByteSize, Ino};

use crate::store;
use crate::throttled::{Device, Devices};
use crate::volume::{MountedVolume, Volume, VolumeTier};

/// How a file is opened that is written and read.
pub const OPEN: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    positions_appends: false,
    truncate: false,
    exclusive: false,
    synchronous: false,
    execute: false,
};

/// Directory of the tier on each device.
pub const TIER: &str = "tier";

/// Bytes of one write.
const REQUEST_BYTES: usize = 1 << 20;

/// Poll interval while waiting.
const LOOK: Duration = Duration::from_millis(5);

/// Longest time that anything here may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// A volume with a tier on each device, and its mount settings.
pub struct Tiered<'a> {
    /// The devices.
    pub devices: &'a Devices,
    volume: Volume,
    options: MountOptions,
    mounted: Option<MountedVolume>,
}

impl<'a> Tiered<'a> {
    /// Makes the volume on empty devices and mounts it. The devices have no limits afterwards.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn make(devices: &'a Devices, options: MountOptions) -> Result<Self> {
        Self::make_with_capacity(devices, options, None)
    }

    /// As [`Tiered::make`], with a first tier that holds no more than `capacity`.
    ///
    /// # Errors
    /// As [`Tiered::make`].
    pub fn make_with_capacity(devices: &'a Devices, options: MountOptions, capacity: Option<ByteSize>) -> Result<Self> {
        devices.format_again()?;
        let tier = |(index, device): (usize, Device)| VolumeTier {
            name: device.profile.name.to_owned(),
            path: device.mount_point.join(TIER),
            capacity: capacity.filter(|_| index == 0),
        };
        let tiers = devices.all().into_iter().enumerate().map(tier).collect();
        let volume = Volume::make_over(tiers, store::MEMORY_BYTES)?;
        let mounted = Some(volume.mount_with(options)?);
        Ok(Self { devices, volume, options, mounted })
    }

    /// The file system.
    ///
    /// # Panics
    /// Never: it is mounted between any two calls.
    #[must_use]
    pub fn file_system(&self) -> &Arc<FileSystem> {
        self.mounted.as_ref().expect("the volume is mounted").file_system()
    }

    /// Mounts everything anew with nothing in memory, and sets the limits.
    ///
    /// # Errors
    /// Where something cannot be unmounted or mounted.
    pub fn begin_measuring(&mut self) -> Result<()> {
        self.devices.unthrottle()?;
        self.mounted.take().expect("the volume is mounted").unmount()?;
        self.devices.forget_caches()?;
        self.mounted = Some(self.volume.mount_with(self.options)?);
        self.devices.throttle()
    }

    /// Unmounts the volume for good.
    ///
    /// # Errors
    /// Where something could not be made durable.
    pub fn end(mut self) -> Result<()> {
        self.devices.unthrottle()?;
        self.mounted.take().expect("the volume is mounted").unmount()
    }

    /// Writes a new file, durably.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn write_file(&self, name: &str, bytes: u64) -> Result<Ino> {
        let (ino, handle) = self.create(name)?;
        let data = block_of_noise();
        let mut offset = 0;
        while offset < bytes {
            let length = usize::try_from((bytes - offset).min(REQUEST_BYTES as u64))?;
            offset += write(self.file_system(), handle, offset, &data[..length])? as u64;
        }
        self.file_system().sync(&Caller::root(), handle, SyncKind::All)?;
        self.file_system().release(handle)?;
        Ok(ino)
    }

    /// Makes a file and opens it.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn create(&self, name: &str) -> Result<(Ino, HandleId)> {
        let file_system = self.file_system();
        let made = file_system.create(&Caller::root(), Ino::ROOT, name.as_bytes(), 0o644, OPEN)?;
        Ok((made.0.ino, made.1))
    }

    /// Asks for files to be moved.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub fn submit(&self, files: &[Ino], tier: &str) -> Result<Vec<JobId>> {
        let submitted = files.iter().map(|ino| Ok(self.file_system().migrate(*ino, tier, None)?)).collect();
        self.mounted.as_ref().expect("the volume is mounted").wake();
        submitted
    }

    /// Waits until jobs are done. Those that ended so long ago that they are forgotten are done.
    ///
    /// # Errors
    /// Where one fails or takes too long.
    pub fn wait_for(&self, jobs: &[JobId]) -> Result<()> {
        let begun = Instant::now();
        for job in jobs {
            loop {
                match self.file_system().job(*job).map(|report| report.state) {
                    None | Some(JobState::Done) => break,
                    Some(JobState::Failed(reason)) => bail!("a move failed: {reason}"),
                    Some(JobState::Cancelled) => bail!("a move was cancelled"),
                    Some(state) => {
                        ensure!(begun.elapsed() < PATIENCE, "a move is still {state:?} after {PATIENCE:?}");
                    }
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Waits until all changes are durable and freed space is free.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn wait_until_freed(&self) -> Result<()> {
        let begun = Instant::now();
        self.file_system().sync_volume()?;
        self.mounted.as_ref().expect("the volume is mounted").wake();
        while self.file_system().status()?.disowned_pending > 0 {
            ensure!(begun.elapsed() < PATIENCE, "freed bytes still wait after {PATIENCE:?}");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Moves files and waits for everything; returns the seconds until the jobs are done and until all is durable and
    /// freed.
    ///
    /// # Errors
    /// Whatever fails.
    pub fn move_files(&self, files: &[Ino], tier: &str) -> Result<(f64, f64)> {
        let begun = Instant::now();
        let jobs = self.submit(files, tier)?;
        self.wait_for(&jobs)?;
        let done = begun.elapsed();
        self.wait_until_freed()?;
        Ok((done.as_secs_f64(), begun.elapsed().as_secs_f64()))
    }

    /// Bytes of a file that are on a tier.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn bytes_on(&self, ino: Ino, tier: &str) -> Result<u64> {
        let location = self.file_system().locate(ino)?;
        Ok(location.shares.iter().filter(|share| share.name == tier).map(|share| share.bytes_mapped).sum())
    }

    /// A counter of the file system by its name; 0 where there is none.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let status = self.file_system().status()?;
        let found = status.counters.iter().find(|(counter, _)| *counter == name);
        found.map(|(_, value)| *value).with_context(|| format!("there is no counter `{name}`"))
    }
}

/// Writes all of `data`.
///
/// # Errors
/// Whatever the file system reports.
pub fn write(file_system: &FileSystem, handle: HandleId, offset: u64, data: &[u8]) -> Result<usize> {
    let written = file_system.write(&Caller::root(), handle, offset, data, WriteOrigin::Call)?;
    ensure!(written == data.len(), "a write of {} bytes wrote {written}", data.len());
    Ok(written)
}

/// Bytes that are not all the same.
#[must_use]
pub fn block_of_noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..REQUEST_BYTES / 8).flat_map(|_| next()).collect()
}
