//! The log on a medium in memory whose crashes keep any subset of the unflushed writes.

use std::sync::Arc;

use super::crash_medium::CrashMedium;
use super::*;

const WINDOW: u64 = 16 * 1024;
const RING: usize = 64 * 1024;

fn new_medium() -> Arc<CrashMedium> {
    let medium = Arc::new(CrashMedium::new(RING + 8192));
    Log::format(&*medium, 1, 77).unwrap();
    medium
}

/// Replays and opens; returns the payloads found.
fn open(medium: &Arc<CrashMedium>) -> (Log, Vec<Vec<u8>>) {
    let (header, found, end) = replay(medium);
    (Log::resume(medium.clone(), header, end, WindowMemory::Plain { length: WINDOW }).unwrap(), found)
}

fn replay(medium: &Arc<CrashMedium>) -> (LogHeader, Vec<Vec<u8>>, u64) {
    let header = Log::read_header(&**medium).unwrap();
    let mut replay = Replay::new(&**medium, header);
    let mut found = Vec::new();
    while let Some(entry) = replay.next().unwrap() {
        found.push(entry.payload.to_vec());
    }
    (header, found, replay.position())
}

pub(super) fn append(log: &Log, payload: &[u8]) -> u64 {
    let place = log.reserve(payload.len()).expect("there is room");
    log.fill(place, payload).unwrap();
    place.end
}

/// A generator of its own, so that a failure can be repeated (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

pub(super) fn payload(number: u64, length: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(usize::try_from(length.max(8)).unwrap(), number.to_le_bytes()[0]);
    bytes
}

#[test]
fn what_was_synced_is_replayed_in_order_and_a_second_replay_finds_the_same() {
    let medium = new_medium();
    let (log, found) = open(&medium);
    assert!(found.is_empty());
    let payloads: Vec<_> = (0..20).map(|number| payload(number, number * 50)).collect();
    let end = payloads.iter().map(|payload| append(&log, payload)).last().unwrap();
    log.sync(end).unwrap();
    assert_eq!(log.durable(), end);
    let image = Arc::new(CrashMedium::of(medium.crash(|| false)));
    for _ in 0..2 {
        assert_eq!(replay(&image).1, payloads);
    }
}

#[test]
fn one_flush_serves_everything_before_it_and_a_second_sync_costs_nothing() {
    let medium = new_medium();
    let (log, _) = open(&medium);
    let before = medium.flushes.load(std::sync::atomic::Ordering::SeqCst);
    let first = append(&log, b"one");
    let second = append(&log, b"two");
    log.sync(first).unwrap();
    log.sync(second).unwrap();
    log.sync(first).unwrap();
    assert_eq!(medium.flushes.load(std::sync::atomic::Ordering::SeqCst) - before, 1);
    assert_eq!((log.counters().flushes, log.counters().syncs), (1, 1));
}

#[test]
fn without_room_in_the_ring_nothing_is_reserved_until_the_checkpoint_moves() {
    let medium = new_medium();
    let (log, _) = open(&medium);
    let mut end = 0;
    let mut count = 0;
    while let Some(place) = log.reserve(1000) {
        log.fill(place, &payload(count, 1000)).unwrap();
        end = place.end;
        count += 1;
    }
    assert!(count >= 50, "nearly the whole ring is used: {count}");
    log.sync(end).unwrap();
    log.advance_checkpoint(end).unwrap();
    assert!(log.reserve(1000).is_some());
    let image = Arc::new(CrashMedium::of(medium.crash(|| false)));
    assert!(replay(&image).1.is_empty(), "what is in the tables is not replayed");
}

#[test]
fn a_failed_write_poisons_the_log_and_nothing_later_is_reported_durable() {
    for operations in 0..2 {
        let medium = new_medium();
        let (log, _) = open(&medium);
        let durable = append(&log, b"durable");
        log.sync(durable).unwrap();
        // Too much for one piece, so that the sync is several writes and a flush.
        for number in 0..12 {
            append(&log, &payload(number, 1000));
        }
        medium.fail_after(operations);
        log.write_out().ok();
        let end = log.tail();
        assert!(log.sync(end).is_err());
        assert_eq!(log.durable(), durable);
        medium.fail_after(u64::MAX);
        assert!(matches!(log.sync(end), Err(StoreError::Poisoned(_))), "it stays so although the medium is well again");
        assert!(matches!(log.advance_checkpoint(durable), Err(StoreError::Poisoned(_))));
    }
}

#[test]
fn what_a_killed_process_wrote_is_durable_once_the_next_one_shows_it() {
    let medium = new_medium();
    let (log, _) = open(&medium);
    append(&log, b"written and never flushed");
    log.write_out().unwrap();
    drop(log);
    let (log, found) = open(&medium);
    assert_eq!((found.len(), log.durable()), (1, log.tail()));
    let image = Arc::new(CrashMedium::of(medium.crash(|| false)));
    assert_eq!(replay(&image).1, found);
}

/// Crashes at random moments, keeping random sectors, over many lives of one log: synced entries are found, the entries
/// found are a prefix of those appended, and nothing of an earlier life comes back.
fn survive(seed: u64, lose: impl Fn(&mut Vec<Vec<u8>>)) {
    let mut random = Random(seed);
    let mut medium = new_medium();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut number = 0;
    for life in 0..6 {
        let (log, mut found) = open(&medium);
        lose(&mut found);
        assert_eq!(found, kept, "seed {seed}, life {life}");
        let mut appended = kept.clone();
        let mut ends: Vec<u64> = Vec::new();
        let mut synced = appended.len();
        for _ in 0..random.below(60) {
            match random.below(10) {
                0..7 => {
                    number += 1;
                    let payload = payload(number, random.below(3000));
                    let Some(place) = log.reserve(payload.len()) else { continue };
                    log.fill(place, &payload).unwrap();
                    appended.push(payload);
                    ends.push(place.end);
                }
                7 => drop(log.write_out().unwrap()),
                8 => {
                    log.sync(log.tail()).unwrap();
                    synced = appended.len();
                }
                _ => {
                    log.sync(log.tail()).unwrap();
                    log.advance_checkpoint(log.tail()).unwrap();
                    appended.clear();
                    synced = 0;
                }
            }
        }
        let share = random.below(101);
        let image = medium.crash(|| random.below(100) < share);
        medium = Arc::new(CrashMedium::of(image));
        let (_, found, _) = replay(&medium);
        assert!(found.len() >= synced, "seed {seed}, life {life}: {} of {synced} synced entries", found.len());
        assert!(found.len() <= appended.len() && found == appended[..found.len()], "seed {seed}, life {life}");
        kept = found;
    }
}

#[test]
fn after_any_crash_the_complete_prefix_is_there_and_nothing_else() {
    for seed in 1..400 {
        survive(seed, |_| {});
    }
}

#[test]
#[should_panic(expected = "seed")]
fn the_crash_test_notices_a_replay_that_loses_an_entry() {
    for seed in 1..400 {
        survive(seed, |found| drop(found.pop()));
    }
}

#[test]
fn what_an_earlier_life_left_behind_a_checkpoint_is_not_replayed() {
    let medium = new_medium();
    let (log, _) = open(&medium);
    // Three entries of a block each; of the last two, only the very last reaches the medium.
    let first = append(&log, &payload(1, 4000));
    log.sync(first).unwrap();
    append(&log, &payload(2, 4096 - 32));
    append(&log, &payload(3, 4096 - 32));
    log.write_out().unwrap();
    let mut image = medium.crash(|| true);
    let second_entry = usize::try_from(HEADER_LENGTH + first).unwrap();
    image[second_entry..second_entry + 64].fill(0);
    let medium = Arc::new(CrashMedium::of(image));
    let (log, found) = open(&medium);
    assert_eq!(found.len(), 1, "the complete prefix ends before the second");
    // The second life writes an entry just as long in its place, which leads up to the third of the first life.
    let second = append(&log, &payload(4, 4096 - 32));
    log.sync(second).unwrap();
    let image = medium.crash(|| false);
    assert_eq!(replay(&Arc::new(CrashMedium::of(image))).1.len(), 2, "an older generation does not follow a newer one");
    log.advance_checkpoint(second).unwrap();
    let image = medium.crash(|| false);
    assert!(replay(&Arc::new(CrashMedium::of(image))).1.is_empty(), "nor does it follow the checkpoint of one");
}

#[test]
fn threads_fill_and_sync_side_by_side_and_nothing_is_lost() {
    let medium = new_medium();
    let (log, _) = open(&medium);
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let log = &log;
            scope.spawn(move || {
                for number in 0..40 {
                    let end = append(log, &payload(worker << 32 | number, 200));
                    log.sync(end).unwrap();
                }
            });
        }
    });
    let counters = log.counters();
    assert!(counters.flushes <= counters.syncs, "{counters:?}");
    let image = Arc::new(CrashMedium::of(medium.crash(|| false)));
    let mut found = replay(&image).1;
    assert_eq!(found.len(), 160);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 160);
}

#[cfg(not(shuttle))]
/// A medium whose flush takes long enough for threads to gather.
struct SlowMedium(Arc<CrashMedium>);

#[cfg(not(shuttle))]
impl LogMedium for SlowMedium {
    fn length(&self) -> u64 {
        self.0.length()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, bytes)
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, blocks)
    }

    fn write_durable(&self, offset: u64, blocks: &[u8]) -> std::io::Result<()> {
        std::thread::sleep(std::time::Duration::from_micros(300));
        self.0.write_durable(offset, blocks)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }

    fn description(&self) -> String {
        self.0.description()
    }
}

#[cfg(not(shuttle))]
#[test]
fn threads_that_come_no_more_are_not_waited_for_and_nobody_sleeps_for_ever() {
    let medium = Arc::new(SlowMedium(new_medium()));
    let (header, _, end) = replay(&medium.0);
    let log = Arc::new(Log::resume(medium, header, end, WindowMemory::Plain { length: WINDOW }).unwrap());
    let (done, all_done) = std::sync::mpsc::channel();
    for worker in 0..8_u64 {
        let (log, done) = (log.clone(), done.clone());
        std::thread::spawn(move || {
            // Each stops at a time of its own; the log has space for all of them.
            for number in 0..10 * (worker + 1) {
                let end = append(&log, &payload(number, 8));
                log.sync(end).unwrap();
                assert!(log.durable() >= end);
            }
            done.send(worker).unwrap();
        });
    }
    let limit = std::time::Duration::from_secs(60);
    let mut finished: Vec<_> = (0..8).map(|_| all_done.recv_timeout(limit).expect("a sync never returned")).collect();
    finished.sort_unstable();
    assert_eq!(finished, (0..8).collect::<Vec<_>>());
    let counters = log.counters();
    assert!(counters.flushes < counters.syncs, "threads share flushes: {counters:?}");
}
