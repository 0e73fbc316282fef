//! Overwriting random blocks of 4 KiB of a file.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Result;

use super::access::{self, BLOCK, Cache};
use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// Random overwrites, through the page cache or past it.
pub struct RandomWrite {
    name: &'static str,
    about: &'static str,
    cache: Cache,
    tier: Tier,
}

impl RandomWrite {
    /// Through the page cache.
    pub const BUFFERED: Self = Self {
        name: "write-4k",
        about: "random overwrites of 4 KiB of a file of 256 MiB (quick: 64 MiB), through the page cache",
        cache: Cache::Used,
        tier: Tier::First,
    };

    /// Through the page cache, half of the file on the second tier.
    pub const SPLIT: Self = Self {
        name: "write-4k-split",
        about: "the same of a file whose second half is on the second tier (native: all on the first device)",
        cache: Cache::Used,
        tier: Tier::Split,
    };

    /// Past it.
    pub const DIRECT: Self =
        Self { name: "write-4k-direct", about: "the same with O_DIRECT", cache: Cache::Bypassed, tier: Tier::First };
}

fn bytes(scale: Scale) -> u64 {
    scale.choose(64 << 20, 256 << 20)
}

/// Writes that keep the device busy for longer than the slices in which its limit works.
fn writes(ground: &Ground, scale: Scale) -> usize {
    let rate = ground.first.limits().written_bytes.unwrap_or(200_000_000);
    let tenths = scale.choose(5, 15);
    usize::try_from(rate / BLOCK / 10 * tenths).expect("a rate is a number of memory's size")
}

impl Workload for RandomWrite {
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
        match (self.tier, self.cache) {
            (Tier::Split, _) => grounds::in_memory(self.tier, scale),
            (_, Cache::Used) => [grounds::throttled(scale), grounds::in_memory(self.tier, scale)].concat(),
            (_, Cache::Bypassed) => grounds::throttled(scale),
        }
    }

    fn routes(&self) -> Routes {
        if self.tier == Tier::Split { Routes::Cached } else { Routes::Modes }
    }

    fn tier(&self) -> Tier {
        self.tier
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        access::prepare_file(place, self.tier, bytes(place.scale))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let file = access::open_to_write(&place.directory(self.tier)?.join("file"), self.cache)?;
        let count = writes(place.ground, place.scale);
        let offsets = access::offsets(place.repetition, count, BLOCK, bytes(place.scale));
        let mut buffer = access::noise(usize::try_from(BLOCK)?);
        let begun = Instant::now();
        for offset in &offsets {
            file.write_all_at(buffer.as_mut_slice(), *offset)?;
        }
        file.sync_all()?;
        Ok(vec![access::megabytes_per_second(BLOCK * count as u64, begun)])
    }
}
