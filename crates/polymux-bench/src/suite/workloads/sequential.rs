//! Writing and reading a large file from its beginning to its end, 4 MiB at a time.

use std::time::Instant;

use anyhow::Result;

use super::access::{self, Cache, REQUEST};
use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Temperature, Workload};
use crate::throttled::Format;

/// Bytes that a device without limits gets.
const BYTES_UNLIMITED: u64 = 256 << 20;

/// Most bytes: each side has a file in memory.
const BYTES_MAX: u64 = 3 << 29;

/// Writes of 4 MiB.
pub struct SequentialWrite {
    name: &'static str,
    about: &'static str,
    target: WriteTarget,
}

/// The file to write to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteTarget {
    /// A file that is there and keeps its length.
    Existing,
    /// One that is made.
    New,
}

impl SequentialWrite {
    /// Over a file that is there, which may be passed through.
    pub const OVER: Self = Self {
        name: "write-4m",
        about: "a file that is there, overwritten 4 MiB at a time",
        target: WriteTarget::Existing,
    };

    /// Of a new file, which may spill over to another tier and goes through the daemon.
    pub const NEW: Self =
        Self { name: "write-4m-new", about: "a new file, written 4 MiB at a time", target: WriteTarget::New };

    fn bytes(place: &Place) -> u64 {
        bytes(place.ground.first.limits().written_bytes, place.scale)
    }
}

/// Reads of 4 MiB.
pub struct SequentialRead {
    name: &'static str,
    about: &'static str,
    tier: Tier,
}

impl SequentialRead {
    /// Of a file on one tier.
    pub const ONE_TIER: Self =
        Self { name: "read-4m", about: "a file that is in no cache, read 4 MiB at a time", tier: Tier::First };

    /// Of a file on two tiers.
    pub const SPLIT: Self = Self {
        name: "read-4m-split",
        about: "the same of a file whose second half is on the second tier (native: all on the first device)",
        tier: Tier::Split,
    };
}

/// Bytes that keep a device busy for long enough, in whole requests.
fn bytes(rate: Option<u64>, scale: Scale) -> u64 {
    let tenths = scale.choose(6, 40);
    rate.map_or(BYTES_UNLIMITED, |rate| (rate / 10 * tenths).next_multiple_of(REQUEST as u64).min(BYTES_MAX))
}

impl Workload for SequentialWrite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn ends_with(&self) -> &'static str {
        "fsync of the file"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::throughput("write")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::throttled(scale)
    }

    fn routes(&self) -> Routes {
        Routes::Modes
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        if self.target == WriteTarget::New {
            return Ok(());
        }
        access::prepare_file(place, Tier::First, Self::bytes(place))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let path = place.directory(Tier::First)?.join("file");
        let mut buffer = access::noise(REQUEST);
        let begun = Instant::now();
        let file = match self.target {
            WriteTarget::Existing => access::open_to_write(&path, Cache::Used)?,
            WriteTarget::New => access::create(&path)?,
        };
        access::write_through(&file, &mut buffer, Self::bytes(place))?;
        file.sync_all()?;
        let figure = access::megabytes_per_second(Self::bytes(place), begun);
        drop(file);
        if self.target == WriteTarget::New {
            std::fs::remove_file(&path)?;
            place.end_durably()?;
        }
        Ok(vec![figure])
    }
}

impl Workload for SequentialRead {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn ends_with(&self) -> &'static str {
        "nothing is written"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::throughput("read")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        match (self.tier, scale) {
            (Tier::Split, Scale::Quick) => Vec::new(),
            (Tier::Split, Scale::Full) => vec![Ground::two(Kind::Middle, Kind::Slow, Format::Ext4)],
            _ => grounds::throttled(scale),
        }
    }

    fn routes(&self) -> Routes {
        if self.tier == Tier::Split { Routes::Cached } else { Routes::Modes }
    }

    fn temperature(&self) -> Temperature {
        Temperature::Cold
    }

    fn tier(&self) -> Tier {
        self.tier
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        access::prepare_file(place, self.tier, bytes(place.ground.first.limits().read_bytes, place.scale))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let bytes = bytes(place.ground.first.limits().read_bytes, place.scale);
        let path = place.directory(self.tier)?.join("file");
        let file = access::open_to_read(&path, Cache::Used)?;
        let begun = Instant::now();
        access::read_through(&file, bytes)?;
        Ok(vec![access::megabytes_per_second(bytes, begun)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_kept_busy_for_seconds() {
        let limit = 120_000_000;
        assert!(bytes(Some(limit), Scale::Quick) >= limit / 2 && bytes(Some(limit), Scale::Full) >= limit * 2);
        assert_eq!(bytes(Some(limit), Scale::Full) % (4 << 20), 0);
    }
}
