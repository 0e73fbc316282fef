//! Streams of 1 MiB requests on devices without limits, with the processor time that they cost the machine: what is copied, and how often.

use std::time::Instant;

use anyhow::Result;

use super::access::{self, Cache};
use super::grounds;
use crate::machine::busy_seconds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Temperature, Workload};

/// Bytes of a request.
const REQUEST: usize = 1 << 20;

/// A file that is read and then overwritten.
pub struct Streams;

fn bytes(scale: Scale) -> u64 {
    scale.choose(256 << 20, 1 << 30)
}

impl Workload for Streams {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn about(&self) -> &'static str {
        "a file of 1 GiB (quick: 256 MiB) that is in no cache, read 1 MiB at a time, then overwritten, with the processor time of the machine"
    }

    fn ends_with(&self) -> &'static str {
        "fsync of the file"
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::throughput("read"),
                Figure::processor_time("processor time of reading"),
                Figure::throughput("overwrite"),
                Figure::processor_time("processor time of overwriting"),
            ]
        }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn temperature(&self) -> Temperature {
        Temperature::Cold
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        access::prepare_file(place, Tier::First, bytes(place.scale))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let path = place.directory(Tier::First)?.join("file");
        let bytes = bytes(place.scale);
        let mut buffer = access::noise(REQUEST);
        let reading = access::open_to_read(&path, Cache::Used)?;
        let read = stream(bytes, || access::read_through_with(&reading, &mut buffer, bytes))?;
        drop(reading);
        let file = access::open_to_write(&path, Cache::Used)?;
        let written = stream(bytes, || {
            access::write_through(&file, &mut buffer, bytes)?;
            Ok(file.sync_all()?)
        })?;
        Ok([read, written].concat())
    }
}

/// Throughput of some work on `bytes`, and its processor time in seconds for each GiB.
fn stream(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<[f64; 2]> {
    let (busy_before, begun) = (busy_seconds()?, Instant::now());
    work()?;
    let rate = access::megabytes_per_second(bytes, begun);
    // The kernel counts hundredths of a second, and a fast stream may take few of them.
    let busy = (busy_seconds()? - busy_before).max(0.01);
    Ok([rate, busy * (1_u64 << 30) as f64 / bytes as f64])
}
