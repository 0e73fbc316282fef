//! The log in a region under the model checker: every confirmed sync was written back, in every schedule of a few
//! threads, and no thread waits for ever. Run by `make test-schedules`.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use shuttle::thread;

use super::crash_medium::CrashMedium;
use super::region::LogRegion;
use super::*;

/// Reading a region back is some thousand steps of the checker, so these are fewer than elsewhere.
const SCHEDULES: usize = 400;
const DATA: u64 = 32 * 1024;

/// A region of which only the bytes written back survive.
struct WrittenBack {
    words: Box<[AtomicU64]>,
    /// Not one of the checker's locks: nothing is scheduled while it is held.
    left: std::sync::Mutex<Vec<u64>>,
    caches: Caches,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Caches {
    /// They write back every range they are asked to.
    Work,
    /// The mistake that the check has to notice: the data never leaves them.
    KeepTheData,
}

impl WrittenBack {
    fn of(left: Vec<u64>, caches: Caches) -> Arc<Self> {
        let words = left.iter().map(|word| AtomicU64::new(*word)).collect();
        Arc::new(Self { words, left: std::sync::Mutex::new(left), caches })
    }

    fn after_power_failure(&self) -> Arc<Self> {
        Self::of(self.left.lock().unwrap().clone(), Caches::Work)
    }
}

impl LogRegion for WrittenBack {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn write_back(&self, bytes: Range<usize>) -> io::Result<()> {
        if self.caches == Caches::KeepTheData && bytes.start as u64 >= REGION_HEADER_LENGTH {
            return Ok(());
        }
        let lines = bytes.start / 64 * 8..bytes.end.div_ceil(64) * 8;
        let found: Vec<u64> = self.words[lines.clone()].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        self.left.lock().unwrap()[lines].copy_from_slice(&found);
        Ok(())
    }

    fn description(&self) -> String {
        "checked memory".to_owned()
    }
}

fn new_log(caches: Caches) -> (Arc<CrashMedium>, Arc<WrittenBack>, Arc<Log>) {
    let medium = Arc::new(CrashMedium::new(8192 + 64 * 1024));
    Log::format(&*medium, 1, 77).unwrap();
    let region = WrittenBack::of(vec![0; usize::try_from((REGION_HEADER_LENGTH + DATA) / 8).unwrap()], caches);
    RegionLog::format(&*region, 1, 77).unwrap();
    let header = Log::read_header(&*medium).unwrap();
    let held = RegionLog::open(region.clone(), &header).unwrap();
    let log = Log::resume_in_region(medium.clone(), held, header, header.checkpoint).unwrap();
    (medium, region, Arc::new(log))
}

fn append(log: &Log, number: u64, length: usize) -> u64 {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(length, 7);
    let place = log.reserve(payload.len()).expect("there is room");
    log.fill(place, &payload).unwrap();
    place.end
}

/// The numbers that replay finds after a power failure, and where the log ends.
fn survivors(medium: &CrashMedium, region: &WrittenBack) -> (Vec<u64>, u64) {
    let medium = CrashMedium::of(medium.crash(|| false));
    let header = Log::read_header(&medium).unwrap();
    let region = RegionLog::open(region.after_power_failure(), &header).unwrap();
    let mut replay = Replay::with_region(&medium, Some(&region), header);
    let mut found = Vec::new();
    while let Some(entry) = replay.next().unwrap() {
        found.push(u64::from_le_bytes(entry.payload[..8].try_into().unwrap()));
    }
    (found, replay.position())
}

fn check_syncs(caches: Caches) {
    let body = move || {
        let (medium, region, log) = new_log(caches);
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                let (medium, region, log) = (medium.clone(), region.clone(), log.clone());
                thread::spawn(move || {
                    let end = append(&log, worker, 100);
                    log.sync(end).unwrap();
                    let (found, survived) = survivors(&medium, &region);
                    assert!(found.contains(&worker) && survived >= end, "entry {worker} was confirmed: {found:?}");
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(survivors(&medium, &region).0.len(), 3);
    };
    shuttle::check_pct(body, SCHEDULES, 3);
}

#[test]
fn a_sync_in_a_region_that_returned_means_durable_in_every_schedule() {
    check_syncs(Caches::Work);
}

#[test]
#[should_panic(expected = "was confirmed")]
fn the_checker_notices_lines_that_are_never_written_back() {
    check_syncs(Caches::KeepTheData);
}

#[test]
fn spills_beside_fills_and_syncs_lose_nothing_in_any_schedule() {
    let body = || {
        let (medium, region, log) = new_log(Caches::Work);
        // Nearly full, so that the threads need the older half.
        for number in 100..103 {
            append(&log, number, 8000);
        }
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                let log = log.clone();
                thread::spawn(move || {
                    let end = append(&log, worker, 6000);
                    log.sync(end).unwrap();
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(survivors(&medium, &region).0.len(), 6);
        assert!(log.low.0.load(Ordering::Relaxed) >= DATA / 2, "a half was given up");
    };
    shuttle::check_pct(body, SCHEDULES / 4, 3);
}
