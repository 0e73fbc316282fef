//! The devices of one ground with all sides on them.
//!
//! Invariants: sides go before the devices they stand on, also when something fails while they are made. Limits hold
//! only between [`Stand::throttle`] and [`Stand::unthrottle`].

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use polymux_tier::measure::AlignedBuffer;
use rustix::fs::OFlags;

use super::ground::{FIRST, Ground};
use super::sides::{Builds, Side, SideKind};
use super::workload::Scale;
use super::workloads;
use crate::throttled::Devices;

/// Bytes of a device; the image is sparse.
const fn device_bytes(scale: Scale) -> u64 {
    scale.choose(5 << 29, 16 << 29)
}

/// Devices and sides.
pub struct Stand {
    // Dropped in this order.
    sides: Vec<Side>,
    devices: Devices,
    ground: Ground,
    archive: Option<PathBuf>,
    /// Sides that do not start, and why.
    failed: Vec<(SideKind, String)>,
}

impl Stand {
    /// Makes devices, with file systems, and all sides on them, mounted; those that do not start are in [`Stand::failed`].
    ///
    /// # Errors
    /// Where devices cannot be made; then nothing is left of them.
    pub fn make(ground: Ground, kinds: &[SideKind], scale: Scale, builds: &Builds) -> Result<Self> {
        let devices = Devices::make(&ground.profiles(), device_bytes(scale))?;
        let mut stand = Self { sides: Vec::new(), devices, ground, archive: None, failed: Vec::new() };
        for (number, kind) in kinds.iter().enumerate() {
            let made = Side::make(*kind, number, &stand.devices, builds).and_then(|mut side| {
                side.start(&stand.devices)?;
                Ok(side)
            });
            match made {
                Ok(side) => stand.sides.push(side),
                Err(error) => stand.failed.push((*kind, format!("{error:#}"))),
            }
        }
        Ok(stand)
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Sides that did not start, and why.
    #[must_use]
    pub fn failed(&self) -> &[(SideKind, String)] {
        &self.failed
    }

    /// The devices of the stand.
    #[must_use]
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Whether a side is there.
    #[must_use]
    pub fn has(&self, kind: SideKind) -> bool {
        self.sides.iter().any(|side| side.kind == kind)
    }

    /// A side by its kind.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn side(&self, kind: SideKind) -> &Side {
        self.sides.iter().find(|side| side.kind == kind).expect("the stand was made with all sides of its workloads")
    }

    /// The archive of a tree; packed at the first call.
    ///
    /// # Errors
    /// Where it cannot be packed.
    pub fn pack(&mut self, tree: &Path) -> Result<super::outcome::Tree> {
        let archive = self.devices.directory().join("tree.tar");
        let (files, bytes) = workloads::pack(tree, &archive)?;
        self.archive = Some(archive);
        Ok(super::outcome::Tree { files, bytes })
    }

    /// The archive, where one was packed.
    #[must_use]
    pub fn archive(&self) -> Option<&Path> {
        self.archive.as_deref()
    }

    /// Unmounts and mounts everything anew, so that nothing of it is in memory. Leaves it without limits.
    ///
    /// # Errors
    /// Where something is in use.
    pub fn forget(&mut self) -> Result<()> {
        self.devices.unthrottle()?;
        self.sides.iter_mut().try_for_each(Side::stop)?;
        self.devices.forget_caches()?;
        self.sides.iter_mut().try_for_each(|side| side.start(&self.devices))
    }

    /// Unmounts every side cleanly.
    ///
    /// # Errors
    /// Where one is in use.
    pub fn end(mut self) -> Result<()> {
        self.devices.unthrottle()?;
        self.sides.iter_mut().try_for_each(Side::stop)
    }

    /// Sets the limits.
    ///
    /// # Errors
    /// Where one cannot be set.
    pub fn throttle(&self) -> Result<()> {
        self.devices.throttle()
    }

    /// Takes the limits away.
    ///
    /// # Errors
    /// Where one cannot be taken away.
    pub fn unthrottle(&self) -> Result<()> {
        self.devices.unthrottle()
    }

    /// Writes deferred data back before another side is measured.
    ///
    /// # Errors
    /// Whatever a device reports.
    pub fn settle(&self) -> Result<()> {
        self.devices.all().iter().try_for_each(|device| {
            rustix::fs::syncfs(std::fs::File::open(&device.mount_point)?)?;
            Ok(())
        })
    }

    /// Gives memory of freed blocks back.
    pub fn trim(&self) {
        for device in self.devices.all() {
            // Only the machine's memory depends on it.
            let _ = std::process::Command::new("fstrim").arg(&device.mount_point).output();
        }
    }

    /// Rate of direct writes on the first device, as a share of its limit; `None` where it has none.
    ///
    /// # Errors
    /// Whatever the device reports.
    pub fn check_limit(&self) -> Result<Option<f64>> {
        let limits = self.ground.first.limits();
        let (request, requests) = match (limits.written_bytes, limits.writes) {
            (Some(rate), _) => (1_usize << 20, rate >> 20),
            (None, Some(rate)) => (4096, rate),
            (None, None) => return Ok(None),
        };
        let path = self.devices.mount_point(FIRST)?.join("check");
        let mut options = OpenOptions::new();
        options.write(true).create(true).custom_flags(i32::try_from(OFlags::DIRECT.bits())?);
        let mut file = options.open(&path)?;
        let mut buffer = AlignedBuffer::filled(request, 7);
        self.throttle()?;
        let begun = Instant::now();
        for _ in 0..requests {
            file.write_all(buffer.as_mut_slice())?;
        }
        let elapsed = begun.elapsed().as_secs_f64();
        self.unthrottle()?;
        std::fs::remove_file(&path)?;
        let written = requests as f64 * limits.written_bytes.map_or(1.0, |_| request as f64);
        let limit = limits.written_bytes.or(limits.writes).unwrap_or(1) as f64;
        Ok(Some(written / elapsed / limit))
    }
}
