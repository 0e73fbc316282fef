//! Random reads of one byte and of 4 KiB from a large file.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::access::{self, BLOCK, Cache};
use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::{Settings, SideKind, Tier};
use crate::suite::workload::{Place, Routes, Scale, Temperature, Workload};

/// Random reads, warm or cold, of a file on one tier or two.
pub struct RandomRead {
    name: &'static str,
    about: &'static str,
    temperature: Temperature,
    tier: Tier,
}

impl RandomRead {
    /// All of the file in the page cache.
    pub const WARM: Self = Self {
        name: "read-warm",
        about: "random reads of a file of 1 GiB (quick: 128 MiB) that is in the page cache",
        temperature: Temperature::Warm,
        tier: Tier::First,
    };

    /// All of the file in the page cache, half of it on the second tier.
    pub const WARM_SPLIT: Self = Self {
        name: "read-warm-split",
        about: "the same of a file whose second half is on the second tier (native: all on the first device)",
        temperature: Temperature::Warm,
        tier: Tier::Split,
    };

    /// Nothing of the file in any memory.
    pub const COLD: Self = Self {
        name: "read-cold",
        about: "random reads of a file of 1 GiB (quick: 128 MiB) that is in no cache",
        temperature: Temperature::Cold,
        tier: Tier::First,
    };

    fn reads(&self, scale: Scale) -> usize {
        match self.temperature {
            Temperature::Warm => scale.choose(20_000, 200_000),
            // Enough that the slices of 100 ms in which the device is limited do not decide.
            Temperature::Cold => scale.choose(60, 1000),
        }
    }
}

fn bytes(scale: Scale) -> u64 {
    scale.choose(128 << 20, 1 << 30)
}

impl Workload for RandomRead {
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
        const { &[Figure::us("1 byte"), Figure::us("4 KiB")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        match self.temperature {
            Temperature::Cold => grounds::of_each_format(|format| Ground::one(Kind::Iops200, format), scale),
            Temperature::Warm => grounds::in_memory(self.tier, scale),
        }
    }

    fn routes(&self) -> Routes {
        if self.tier == Tier::Split { Routes::Cached } else { Routes::Modes }
    }

    fn temperature(&self) -> Temperature {
        self.temperature
    }

    fn tier(&self) -> Tier {
        self.tier
    }

    /// A file of this size for each side, and its pages: every side more costs gigabytes of memory.
    fn leaves_out(&self, side: SideKind) -> bool {
        side == SideKind::Mergerfs(Settings::Default)
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        access::prepare_file(place, self.tier, bytes(place.scale))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let bytes = bytes(place.scale);
        let file = access::open_to_read(&place.directory(self.tier)?.join("file"), Cache::Used)?;
        if self.temperature == Temperature::Warm {
            access::read_through(&file, bytes)?;
        }
        let mut figures = Vec::new();
        // Each size has a half of the file, so that the second one finds nothing that the first one brought. A file that is
        // split is in two halves itself: there both sizes read all of it.
        for (half, length) in [(0, 1), (1, 4096_usize)] {
            let (first, span) = if self.tier == Tier::Split { (0, bytes) } else { (half * (bytes / 2), bytes / 2) };
            let seed = place.repetition * 2 + usize::from(half == 1);
            let offsets = access::offsets(seed, self.reads(place.scale), BLOCK, span);
            let mut buffer = vec![0; length];
            let mut read = 0;
            let begun = Instant::now();
            for offset in &offsets {
                read += file.read_at(&mut buffer, first + offset)?;
            }
            figures.push(access::us_each(begun, offsets.len()));
            ensure!(read == length * offsets.len(), "{read} bytes were read");
        }
        Ok(figures)
    }
}
