//! The work of a device so far, and changing the limit of one device while it works.
//!
//! Traffic is counted by the kernel for the block device, when a request is done. A limit that is set here holds
//! until [`Devices::throttle`] or [`Devices::unthrottle`] sets all of them.

use std::fs;

use anyhow::{Context, Result};

use super::{Device, Devices, Limits, locked};

/// Bytes of a sector in the kernel's tables, whatever the device has.
const SECTOR_BYTES: u64 = 512;

/// The work of a device since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that read.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

impl Traffic {
    /// From a line of `/sys/dev/block/*/stat`.
    fn parse(line: &str) -> Option<Self> {
        let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let sectors = |at: usize| numbers.get(at).map(|sectors| sectors * SECTOR_BYTES);
        Some(Self { reads: *numbers.first()?, bytes_read: sectors(2)?, bytes_written: sectors(6)? })
    }

    /// The traffic since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            bytes_read: self.bytes_read.saturating_sub(before.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(before.bytes_written),
        }
    }
}

impl Device {
    /// The work of this device so far.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn traffic(&self) -> Result<Traffic> {
        let path = format!("/sys/dev/block/{}/stat", self.numbers()?);
        let line = fs::read_to_string(&path).with_context(|| path.clone())?;
        Traffic::parse(&line).with_context(|| format!("{path} has too few numbers"))
    }
}

impl Devices {
    /// The work of each device so far, in the order of the profiles.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn traffic(&self) -> Result<Vec<Traffic>> {
        self.all().iter().map(Device::traffic).collect()
    }

    /// Gives one device other limits than its profile says.
    ///
    /// # Errors
    /// Where there is no such device, or a limit cannot be set.
    pub fn limit(&self, name: &str, limits: &Limits) -> Result<()> {
        let state = locked(&self.state);
        let device = state.devices.iter().find(|device| device.profile.name == name);
        state.limit(device.with_context(|| format!("there is no device `{name}`"))?, limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_what_the_kernel_counts_in_sectors() {
        let line =
            "     100        1      800        5       30        2      240        7        0        4       12\n";
        let found = Traffic::parse(line).unwrap();
        assert_eq!(found, Traffic { reads: 100, bytes_read: 409_600, bytes_written: 122_880 });
        let before = Traffic { reads: 40, bytes_read: 9_600, bytes_written: 122_880 };
        assert_eq!(found.since(&before), Traffic { reads: 60, bytes_read: 400_000, bytes_written: 0 });
        assert_eq!(Traffic::parse("1 2 3"), None);
    }
}
