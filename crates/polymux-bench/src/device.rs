//! Requests that the block device below a directory has served, as the kernel counts them.
//!
//! The counters belong to the whole device. They include other writes in the meantime, so a difference
//! is an upper bound of the measured traffic, and a tight one on a quiet machine only.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::machine;

/// Bytes of the unit that the kernel counts in, whatever the device's own sector is.
const SECTOR_BYTES: u64 = 512;

/// Places in the line of `/sys/block/DEVICE/stat`.
const FIELD_WRITES: usize = 4;
const FIELD_SECTORS_WRITTEN: usize = 6;
const FIELD_FLUSHES: usize = 15;

/// A block device.
#[derive(Clone, Debug)]
pub struct Device {
    directory: PathBuf,
}

/// Counters of a device at one moment, or their difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Flush requests that reached the device.
    pub flushes: u64,
}

impl DeviceCounters {
    /// The requests since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            writes: self.writes.saturating_sub(earlier.writes),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

impl Device {
    /// The device below a directory: of a partition the whole disk, because flushes are counted there; `None` where
    /// there is none (a network file system, memory).
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn of(directory: &Path) -> Result<Option<Self>> {
        let mut number = directory.metadata()?.dev();
        if !sys_directory(number).exists() {
            // File systems over several devices (btrfs) have a number of their own; the mount names one device.
            let source = machine::mount_of(directory)?.source;
            match fs::metadata(&source) {
                Ok(metadata) if metadata.file_type().is_block_device() => number = metadata.rdev(),
                _ => return Ok(None),
            }
        }
        let Ok(found) = sys_directory(number).canonicalize() else { return Ok(None) };
        let whole = if found.join("partition").exists() { found.parent().map(Path::to_owned) } else { Some(found) };
        Ok(whole.map(|directory| Self { directory }))
    }

    /// Name of the device, with its cache and queue settings as the kernel reports them.
    #[must_use]
    pub fn describe(&self) -> String {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let queue = |field: &str| {
            let text = fs::read_to_string(self.directory.join("queue").join(field)).unwrap_or_default();
            text.trim().to_owned()
        };
        format!("{name}, {}, FUA {}", queue("write_cache"), if queue("fua") == "1" { "yes" } else { "no" })
    }

    /// The counters now.
    ///
    /// # Errors
    /// Where the kernel does not give them.
    pub fn counters(&self) -> Result<DeviceCounters> {
        let path = self.directory.join("stat");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        parse(&text)
    }
}

fn sys_directory(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

fn parse(text: &str) -> Result<DeviceCounters> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    if fields.len() <= FIELD_FLUSHES {
        bail!("this kernel does not count the flushes of a device");
    }
    Ok(DeviceCounters {
        writes: fields[FIELD_WRITES],
        bytes_written: fields[FIELD_SECTORS_WRITTEN] * SECTOR_BYTES,
        flushes: fields[FIELD_FLUSHES],
    })
}

/// The counters of a device that may not be there.
///
/// # Errors
/// As [`Device::counters`].
pub fn counters_of(device: Option<&Device>) -> Result<Option<DeviceCounters>> {
    device.map(Device::counters).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_understood() {
        let line = "  10 1 80 5  20 2 160 9  0 12 14  3 0 24 1  7 30\n";
        assert_eq!(parse(line).unwrap(), DeviceCounters { writes: 20, bytes_written: 160 * 512, flushes: 7 });
        assert!(parse("1 2 3").is_err());
    }
}
