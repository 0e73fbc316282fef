//! Direct reads of 4 KiB by one thread: the cost of a message to the daemon and back.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::access::{self, BLOCK, Cache};
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};
use crate::throttled::Format;

/// `O_DIRECT` reads.
pub struct DirectRead;

fn bytes(scale: Scale) -> u64 {
    scale.choose(64 << 20, 256 << 20)
}

impl Workload for DirectRead {
    fn name(&self) -> &'static str {
        "read-4k-direct"
    }

    fn about(&self) -> &'static str {
        "random reads of 4 KiB with O_DIRECT by one thread, every one of them through the daemon"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is written"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("4 KiB")] }
    }

    fn grounds(&self, _: Scale) -> Vec<Ground> {
        vec![Ground::one(Kind::Memory, Format::Ext4)]
    }

    fn routes(&self) -> Routes {
        Routes::TransportsDirect
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        access::write_file(&place.directory(Tier::First)?.join("file"), bytes(place.scale))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let file = access::open_to_read(&place.directory(Tier::First)?.join("file"), Cache::Bypassed)?;
        let count = place.scale.choose(5_000, 20_000);
        let offsets = access::offsets(place.repetition, count, BLOCK, bytes(place.scale));
        let mut buffer = access::noise(usize::try_from(BLOCK)?);
        let mut read = 0;
        let begun = Instant::now();
        for offset in &offsets {
            read += file.read_at(buffer.as_mut_slice(), *offset)?;
        }
        let figure = access::us_each(begun, count);
        ensure!(read as u64 == BLOCK * count as u64, "{read} bytes were read");
        Ok(vec![figure])
    }
}
