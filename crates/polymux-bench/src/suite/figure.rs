//! The results of a workload: figures with a name, a unit and a direction.

use serde::{Deserialize, Serialize};

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Microseconds for one operation; less is better.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds for the whole work; less is better.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Processor time of the machine in seconds for each GiB; less is better.
    #[serde(rename = "s/GiB")]
    SecondsPerGib,
    /// Millions of bytes per second; more is better.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
}

impl Unit {
    /// As it stands beside a number.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::SecondsPerGib => "s/GiB",
            Self::MegabytesPerSecond => "MB/s",
        }
    }

    /// Which way is better, in words.
    #[must_use]
    pub const fn better(self) -> &'static str {
        match self {
            Self::Microseconds | Self::Milliseconds | Self::SecondsPerGib => "less is better",
            Self::MegabytesPerSecond => "more is better",
        }
    }
}

/// One figure of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name, unique in the workload.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
}

impl Figure {
    /// Microseconds for one operation.
    #[must_use]
    pub const fn us(name: &'static str) -> Self {
        Self { name, unit: Unit::Microseconds }
    }

    /// Milliseconds for the whole.
    #[must_use]
    pub const fn ms(name: &'static str) -> Self {
        Self { name, unit: Unit::Milliseconds }
    }

    /// Processor seconds for each GiB.
    #[must_use]
    pub const fn processor_time(name: &'static str) -> Self {
        Self { name, unit: Unit::SecondsPerGib }
    }

    /// Bytes over time.
    #[must_use]
    pub const fn throughput(name: &'static str) -> Self {
        Self { name, unit: Unit::MegabytesPerSecond }
    }
}
