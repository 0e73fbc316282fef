//! Log, group flush and memtable switch under the model checker: thousands of schedules of a few threads each, and no
//! failure may be found. Run by `make test-schedules`.
//!
//! Checked in every schedule: a sync that returned means durable, even if a crash happens at that moment; no
//! entry is lost or torn; the complete prefix never has a hole; a change is always found, in whichever memtable it is;
//! no thread waits for ever (the checker reports a deadlock).

use std::sync::Arc;

use shuttle::thread;

use crate::batch::Batch;
use crate::log::crash_medium::CrashMedium;
use crate::log::{Log, Replay, WindowMemory};
use crate::memtable::Memtable;
use polymux_types::sync::{AtomicU64, Ordering, RwLock};

const SCHEDULES: usize = 4000;

fn check(body: impl Fn() + Send + Sync + 'static) {
    // Priorities changed at few points find ordering mistakes sooner; plain random schedules find the rest.
    shuttle::check_pct(body, SCHEDULES, 3);
}

fn new_log(window: u64) -> (Arc<CrashMedium>, Arc<Log>) {
    let medium = Arc::new(CrashMedium::new(8192 + 16 * 1024));
    Log::format(&*medium, 1, 77).unwrap();
    let header = Log::read_header(&*medium).unwrap();
    let log = Log::resume(medium.clone(), header, header.checkpoint, WindowMemory::Plain { length: window }).unwrap();
    (medium, Arc::new(log))
}

fn append(log: &Log, number: u64, length: usize) -> u64 {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(length, 7);
    let place = log.reserve(payload.len()).expect("there is room");
    log.fill(place, &payload).unwrap();
    place.end
}

/// Entries that survive a crash that keeps no unflushed write.
fn survivors(medium: &CrashMedium) -> Vec<u64> {
    let image = CrashMedium::of(medium.crash(|| false));
    let header = Log::read_header(&image).unwrap();
    let mut replay = Replay::new(&image, header);
    let mut found = Vec::new();
    while let Some(entry) = replay.next().unwrap() {
        found.push(u64::from_le_bytes(entry.payload[..8].try_into().unwrap()));
    }
    found
}

#[test]
fn a_sync_that_returned_means_durable_in_every_schedule() {
    check(|| {
        let (medium, log) = new_log(16 * 1024);
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                let (medium, log) = (medium.clone(), log.clone());
                thread::spawn(move || {
                    for number in 0..2 {
                        let name = worker << 8 | number;
                        let end = append(&log, name, 100);
                        log.sync(end).unwrap();
                        assert!(log.durable() >= end);
                        assert!(survivors(&medium).contains(&name), "a synced entry is lost");
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        let counters = log.counters();
        assert!(counters.flushes <= counters.syncs, "{counters:?}");
        assert_eq!(survivors(&medium).len(), 6);
    });
}

#[test]
fn threads_that_wait_for_room_in_the_window_and_threads_that_sync_never_wait_for_each_other() {
    check(|| {
        // Three entries of 3 KiB fill a window of 8 KiB.
        let (medium, log) = new_log(8 * 1024);
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                let log = log.clone();
                thread::spawn(move || {
                    let end = append(&log, worker, 3000);
                    if worker == 0 {
                        log.sync(end).unwrap();
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        log.sync(log.tail()).unwrap();
        let mut found = survivors(&medium);
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2]);
    });
}

#[test]
fn a_failed_flush_ends_every_wait_with_an_error() {
    check(|| {
        let (medium, log) = new_log(16 * 1024);
        medium.fail_after(1);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..3_u64)
            .map(|worker| {
                let (log, acknowledged) = (log.clone(), acknowledged.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let end = append(&log, worker, 100);
                        if log.sync(end).is_ok() {
                            acknowledged.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        let survived = survivors(&medium).len() as u64;
        assert!(survived >= acknowledged.load(Ordering::SeqCst), "more was acknowledged than is there");
        assert!(log.check().is_err(), "six entries were synced with one write that works");
    });
}

/// The switch of memtables as the store does it: commits hold the pair shared, the switch takes it exclusively.
#[test]
fn each_memtable_covers_exactly_its_stretch_of_the_log() {
    struct Pair {
        active: Arc<Memtable>,
        sealed: Option<(Arc<Memtable>, u64)>,
    }
    check(|| {
        let (_, log) = new_log(16 * 1024);
        let start = log.tail();
        let pair = Arc::new(RwLock::new(Pair { active: Arc::new(Memtable::new(start)), sealed: None }));
        let workers: Vec<_> = (0..2_u8)
            .map(|worker| {
                let (log, pair) = (log.clone(), pair.clone());
                thread::spawn(move || {
                    for number in 0..3_u8 {
                        let mut batch = Batch::new();
                        batch.put([worker, number], b"x");
                        let held = pair.read();
                        let place = log.reserve(batch.as_bytes().len()).expect("there is room");
                        log.fill(place, batch.as_bytes()).unwrap();
                        held.active.apply(&batch, place.end);
                        drop(held);
                        let held = pair.read();
                        let sealed = held.sealed.as_ref().and_then(|(sealed, _)| sealed.get(&[worker, number]));
                        let found = held.active.get(&[worker, number]).or(sealed);
                        assert!(found.is_some(), "a change is seen by its own thread");
                    }
                })
            })
            .collect();
        let end = {
            let mut held = pair.write();
            let end = log.tail();
            let sealed = std::mem::replace(&mut held.active, Arc::new(Memtable::new(end)));
            held.sealed = Some((sealed, end));
            end
        };
        for worker in workers {
            worker.join().unwrap();
        }
        let held = pair.read();
        let sealed = held.sealed.as_ref().expect("it was sealed").0.clone();
        sealed.sorted(|entries| assert!(entries.iter().all(|(_, slot)| slot.sequence <= end)));
        held.active.sorted(|entries| assert!(entries.iter().all(|(_, slot)| slot.sequence > end)));
    });
}

/// The checker finds a mistake that was planted: a flush that does not wait for the entry before it.
#[test]
#[should_panic(expected = "lost")]
fn the_checker_notices_a_sync_that_does_not_flush() {
    check(|| {
        let (medium, log) = new_log(16 * 1024);
        let worker = {
            let log = log.clone();
            thread::spawn(move || {
                let end = append(&log, 1, 100);
                log.sync(end).unwrap();
            })
        };
        append(&log, 2, 100);
        // Not synced by this thread: in some schedule the other's flush does not cover it.
        worker.join().unwrap();
        assert!(survivors(&medium).contains(&2), "an entry is lost");
    });
}
