//! Two clients on two tiers: how a client that hammers the slow tier affects a reader of the fast one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::access::{self, BLOCK, Cache};
use crate::statistics::percentile;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};
use crate::throttled::Format;

/// Bytes of each file.
const BYTES: u64 = 64 << 20;

/// Threads that hammer the slow tier: more than a daemon has for requests.
const HAMMERS: usize = 16;

/// Time between two reads of the other client. One that never rests would measure the processors.
const REST: Duration = Duration::from_micros(200);

/// Least latencies that a percentile is made of.
const LATENCIES_MIN: usize = 20;

/// One slow and one fast tier.
pub struct MixedLoad;

impl Workload for MixedLoad {
    fn name(&self) -> &'static str {
        "mixed-load"
    }

    fn about(&self) -> &'static str {
        "latency of direct reads of 4 KiB on a fast tier, alone, and beside 16 threads that read directly on a tier of 200 IOPS"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is written"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("alone, p50"), Figure::us("alone, p99"), Figure::us("beside, p50"), Figure::us("beside, p99")] }
    }

    fn grounds(&self, _: Scale) -> Vec<Ground> {
        vec![Ground::two(Kind::Memory, Kind::Iops200, Format::Ext4)]
    }

    fn routes(&self) -> Routes {
        Routes::TransportsOfDaemon
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        [Tier::First, Tier::Second]
            .into_iter()
            .try_for_each(|tier| access::write_file(&place.directory(tier)?.join("file"), BYTES))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let open = |tier| access::open_to_read(&place.directory(tier)?.join("file"), Cache::Bypassed);
        let (fast, slow) = (open(Tier::First)?, open(Tier::Second)?);
        let reads = place.scale.choose(1_000, 6_000);
        let time = Duration::from_secs(place.scale.choose(1, 6));
        let alone = latencies_us(&fast, reads, time, place.repetition)?;
        let is_over = AtomicBool::new(false);
        let beside = thread::scope(|scope| {
            let hammers: Vec<_> = (0..HAMMERS)
                .map(|number| {
                    let (slow, is_over) = (&slow, &is_over);
                    scope.spawn(move || hammer(slow, is_over, place.repetition * HAMMERS + number))
                })
                .collect();
            // Until requests wait for the slow device.
            thread::sleep(Duration::from_millis(300));
            let beside = latencies_us(&fast, reads, time, place.repetition + 1000);
            is_over.store(true, Ordering::Relaxed);
            let mut requests = 0;
            for hammer in hammers {
                requests += hammer.join().expect("reading does not panic")?;
            }
            ensure!(requests >= HAMMERS, "the slow tier served {requests} requests: nobody hammered it");
            beside
        })?;
        let figures = [&alone, &beside].map(|sample| [percentile(sample, 50), percentile(sample, 99)]);
        Ok(figures.concat())
    }

    fn clean(&self, place: &Place) -> Result<()> {
        [Tier::First, Tier::Second]
            .into_iter()
            .try_for_each(|tier| Ok(std::fs::remove_dir_all(place.directory(tier)?)?))
    }
}

/// Latencies of so many reads, or of those that the time is enough for: each may wait for the slow device.
fn latencies_us(file: &File, reads: usize, time: Duration, seed: usize) -> Result<Vec<f64>> {
    let mut buffer = access::noise(usize::try_from(BLOCK)?);
    let mut latencies = Vec::with_capacity(reads);
    let end = Instant::now() + time;
    for offset in access::offsets(seed, reads, BLOCK, BYTES) {
        if Instant::now() > end && latencies.len() >= LATENCIES_MIN {
            break;
        }
        let begun = Instant::now();
        let read = file.read_at(buffer.as_mut_slice(), offset)?;
        latencies.push(access::us_each(begun, 1));
        ensure!(read as u64 == BLOCK, "{read} bytes were read");
        thread::sleep(REST);
    }
    Ok(latencies)
}

fn hammer(file: &File, is_over: &AtomicBool, seed: usize) -> Result<usize> {
    let mut buffer = access::noise(usize::try_from(BLOCK)?);
    let mut requests = 0;
    for offset in access::offsets(seed, 100_000, BLOCK, BYTES) {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        file.read_at(buffer.as_mut_slice(), offset)?;
        requests += 1;
    }
    Ok(requests)
}
