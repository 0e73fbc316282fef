//! The devices that workloads run on.
//!
//! A device is one of a few kinds, each with limits that stand for a class of devices; a ground is one
//! device, or two for a volume of two tiers, of which the first is the faster one.

use std::fmt;

use crate::throttled::{Format, Limits, Profile};

/// Name of the first device, and of the tier on it.
pub const FIRST: &str = "first";

/// Name of the second one.
pub const SECOND: &str = "second";

/// A class of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No limits: a loop device over memory. File system overhead is most visible here.
    Memory,
    /// Writes 230 MB/s, reads 660 MB/s.
    Fast,
    /// 120 MB/s each way.
    Middle,
    /// Writes 56 MB/s, reads 53 MB/s.
    Slow,
    /// 200 requests per second each way.
    Iops200,
}

impl Kind {
    /// Those whose bandwidth is limited.
    pub const THROTTLED: [Self; 3] = [Self::Fast, Self::Middle, Self::Slow];

    /// Name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Fast => "230/660",
            Self::Middle => "120/120",
            Self::Slow => "56/53",
            Self::Iops200 => "200-iops",
        }
    }

    /// Limits of its devices.
    #[must_use]
    pub const fn limits(self) -> Limits {
        let none = Limits { read_bytes: None, written_bytes: None, reads: None, writes: None };
        match self {
            Self::Memory => none,
            Self::Fast => Limits { read_bytes: Some(660_000_000), written_bytes: Some(230_000_000), ..none },
            Self::Middle => Limits { read_bytes: Some(120_000_000), written_bytes: Some(120_000_000), ..none },
            Self::Slow => Limits { read_bytes: Some(53_000_000), written_bytes: Some(56_000_000), ..none },
            Self::Iops200 => Limits { reads: Some(200), writes: Some(200), ..none },
        }
    }
}

/// The devices a workload runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The device of the native file system and of the first tier.
    pub first: Kind,
    /// Its file system.
    pub format: Format,
    /// The device of a second tier, with the same file system.
    pub second: Option<Kind>,
}

impl Ground {
    /// One device.
    #[must_use]
    pub const fn one(first: Kind, format: Format) -> Self {
        Self { first, format, second: None }
    }

    /// Two devices.
    #[must_use]
    pub const fn two(first: Kind, second: Kind, format: Format) -> Self {
        Self { first, format, second: Some(second) }
    }

    /// The devices to make.
    #[must_use]
    pub fn profiles(&self) -> Vec<Profile> {
        let profile = |name, kind: Kind| Profile { name, format: self.format, limits: kind.limits() };
        let second = self.second.map(|kind| profile(SECOND, kind));
        std::iter::once(profile(FIRST, self.first)).chain(second).collect()
    }

    /// The devices by name.
    #[must_use]
    pub fn device(&self) -> String {
        self.second
            .map_or_else(|| self.first.name().to_owned(), |second| format!("{} + {}", self.first.name(), second.name()))
    }

    /// The file system by name.
    #[must_use]
    pub const fn file_system(&self) -> &'static str {
        match self.format {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
        }
    }
}

impl fmt::Display for Ground {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.file_system(), self.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ground_of_two_devices_names_and_makes_both() {
        let ground = Ground::two(Kind::Memory, Kind::Iops200, Format::Xfs);
        assert_eq!(ground.to_string(), "xfs memory + 200-iops");
        let profiles = ground.profiles();
        assert_eq!(profiles.iter().map(|profile| profile.name).collect::<Vec<_>>(), [FIRST, SECOND]);
        assert_eq!(profiles[1].limits.reads, Some(200));
        assert_eq!(Ground::one(Kind::Slow, Format::Ext4).profiles().len(), 1);
    }
}
