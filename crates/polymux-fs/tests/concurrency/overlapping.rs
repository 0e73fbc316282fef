//! Overlapping and disjoint writes with readers beside them (DESIGN section 7): writes up to 1 MiB are atomic among
//! writes, readers see old or new bytes and never go back, and no write is lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

use polymux_fs::{Caller, FileSystem, HandleId, WriteOrigin};
use polymux_types::limits::ATOMIC_WRITE_SIZE_MAX;

use super::*;
use crate::common::{PosixVolume, create};

const FILE_SIZE: u64 = 8 * MIB;
const WRITERS: usize = THREADS / 2;

/// One write: its range and when it began and ended, in ticks of a clock that all threads share.
#[derive(Clone, Copy, Debug)]
struct Record {
    start: u64,
    end: u64,
    began: u64,
    ended: u64,
}

/// Not ended yet.
const RUNNING: u64 = u64::MAX;

/// Every write that was begun. Its number, from 1, fills its cells; 0 is the empty file.
#[derive(Default)]
struct History {
    clock: AtomicU64,
    records: RwLock<Vec<Record>>,
}

impl History {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn begin(&self, start: u64, end: u64) -> u64 {
        let mut records = self.records.write().expect("nobody panicked");
        records.push(Record { start, end, began: self.tick(), ended: RUNNING });
        records.len() as u64
    }

    fn end(&self, stamp: u64) {
        let mut records = self.records.write().expect("nobody panicked");
        records[usize_of(stamp - 1)].ended = self.tick();
    }

    /// The write behind a stamp that was read at an offset.
    fn check(&self, stamp: u64, offset: u64) -> Option<Record> {
        if stamp == 0 {
            return None;
        }
        let records = self.records.read().expect("nobody panicked");
        let record = records.get(usize_of(stamp - 1)).copied();
        let record = record.unwrap_or_else(|| panic!("foreign bytes at {offset}: {stamp:#x}"));
        assert!((record.start..record.end).contains(&offset), "bytes of write {stamp} at {offset}: {record:?}");
        Some(record)
    }
}

fn write_once(fs: &FileSystem, handle: HandleId, history: &History, random: &mut Random) {
    let cells = match random.below(4) {
        0 => 1 + random.below(64),
        1 => 512 * (1 + random.below(32)),
        2 => 1 + random.below(16_384),
        _ => 1 + random.below(ATOMIC_WRITE_SIZE_MAX as u64 / 8),
    };
    let offset = 8 * random.below(FILE_SIZE / 8 - cells);
    let stamp = history.begin(offset, offset + cells * 8);
    let data = stamp.to_le_bytes().repeat(usize_of(cells));
    let written = fs.write(&Caller::root(), handle, offset, &data, WriteOrigin::Call).expect("written");
    assert_eq!(written, data.len(), "there is room");
    history.end(stamp);
}

fn cells(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|cell| u64::from_le_bytes(cell.try_into().expect("eight bytes")))
}

/// Reads at random; `seen` holds the last value that this reader saw in each cell.
fn read_once(fs: &FileSystem, handle: HandleId, history: &History, random: &mut Random, seen: &mut [u64]) {
    let length = 8 * (1 + random.below(16_384));
    let offset = 8 * random.below((FILE_SIZE - length) / 8);
    let mut buffer = vec![0; usize_of(length)];
    let count = fs.read(&Caller::root(), handle, offset, &mut buffer).expect("read");
    assert_eq!(count, buffer.len(), "the file has its full size from the start");
    let (mut previous, mut record) = (0, None);
    let mut known_order: HashMap<(u64, u64), ()> = HashMap::new();
    for (index, stamp) in cells(&buffer).enumerate() {
        let position = offset + index as u64 * 8;
        if stamp != previous || record.is_some_and(|record: Record| position >= record.end) {
            (previous, record) = (stamp, history.check(stamp, position));
        }
        let last = &mut seen[usize_of(position / 8)];
        if *last != stamp && known_order.insert((*last, stamp), ()).is_none() {
            let older = history.check(*last, position);
            if let Some(older) = older {
                let newer = record.unwrap_or_else(|| panic!("zeros came back at {position} after write {last}"));
                assert!(
                    newer.ended > older.began,
                    "at {position} write {stamp} came back after the later write {last}"
                );
            }
        }
        *last = stamp;
    }
}

/// The final content must be that of some serial order of the writes which respects the order in time.
fn check_final(content: &[u8], history: &History) {
    let records = history.records.read().expect("nobody panicked").clone();
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for (index, stamp) in cells(content).enumerate() {
        let position = index as u64 * 8;
        match runs.last_mut() {
            Some((_, end, last)) if *last == stamp => *end = position + 8,
            _ => runs.push((position, position + 8, stamp)),
        }
        history.check(stamp, position);
    }
    // The winner of a cell comes after every other write of that cell.
    let visible: BTreeSet<u64> = runs.iter().map(|(_, _, stamp)| *stamp).filter(|stamp| *stamp > 0).collect();
    let mut after: BTreeMap<u64, BTreeSet<u64>> = visible.iter().map(|stamp| (*stamp, BTreeSet::new())).collect();
    for (start, end, winner) in &runs {
        for (other, record) in (1_u64..).zip(&records) {
            if other == *winner || record.start >= *end || record.end <= *start {
                continue;
            }
            assert_ne!(*winner, 0, "write {other} was lost at {start}");
            let won = records[usize_of(*winner - 1)];
            assert!(record.began < won.ended, "write {other} was lost at {start}: {record:?}, there is {won:?}");
            if visible.contains(&other) {
                after.entry(other).or_default().insert(*winner);
            }
        }
    }
    assert_acyclic(after);
}

/// Removes writes that no other one has to follow until none is left.
fn assert_acyclic(mut after: BTreeMap<u64, BTreeSet<u64>>) {
    while !after.is_empty() {
        let last: Vec<u64> = after.iter().filter(|(_, later)| later.is_empty()).map(|(stamp, _)| *stamp).collect();
        assert!(!last.is_empty(), "writes are interleaved, each is before and after another: {:?}", after.keys());
        for stamp in &last {
            after.remove(stamp);
        }
        for later in after.values_mut() {
            later.retain(|stamp| !last.contains(stamp));
        }
    }
}

fn round(fs: &FileSystem, handle: HandleId, history: &History, seed: u64, seen: &[Mutex<Vec<u64>>], length: Duration) {
    let until = Until::after(length);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS as u64 {
            let until = &until;
            scope.spawn(move || {
                let mut random = Random::new(seed * 1000 + writer);
                while until.goes_on() {
                    write_once(fs, handle, history, &mut random);
                }
            });
        }
        for (reader, seen) in (0_u64..).zip(seen) {
            let until = &until;
            scope.spawn(move || {
                let mut random = Random::new(seed * 1000 + 500 + reader);
                let mut seen = seen.lock().expect("one reader each");
                while until.goes_on() {
                    read_once(fs, handle, history, &mut random, &mut seen);
                }
            });
        }
    });
}

#[test]
fn overlapping_writes_are_atomic_and_readers_never_go_back() {
    with_watchdog(|| {
        let volume = PosixVolume::new(&[Some(2 * MIB), None]);
        let (ino, handle) = create(volume.fs(), "f");
        crate::common::write_all(volume.fs(), handle, 0, &vec![0; usize_of(FILE_SIZE)]).expect("written");
        assert_eq!(volume.fs().locate(ino).expect("located").shares.len(), 2, "the file is split");
        let seen: Vec<Mutex<Vec<u64>>> =
            (WRITERS..THREADS).map(|_| Mutex::new(vec![0; usize_of(FILE_SIZE / 8)])).collect();
        let history = History::default();
        let rounds = test_length().as_secs().max(1);
        for seed in 0..rounds {
            round(volume.fs(), handle, &history, seed, &seen, Duration::from_secs(1));
            check_final(&crate::common::read_whole(volume.fs(), ino).expect("read"), &history);
        }
        assert!(history.records.read().expect("nobody panicked").len() > 100, "hardly anything was written");
    });
}

/// Each writer counts up in cells of its own: a reader never sees a cell go back, nor one older than the last write confirmed
/// before the read began.
#[test]
fn disjoint_writers_lose_nothing_and_readers_see_counters_rise() {
    const CELLS: u64 = 4096;
    with_watchdog(|| {
        let volume = PosixVolume::new(&[Some(256 << 10), None]);
        let (ino, handle) = create(volume.fs(), "f");
        let size = WRITERS as u64 * CELLS * 8;
        crate::common::write_all(volume.fs(), handle, 0, &vec![0; usize_of(size)]).expect("written");
        let confirmed: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let until = Until::after(test_length() / 3);
        let fs = volume.fs();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS as u64 {
                let (until, confirmed) = (&until, &confirmed);
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while until.goes_on() {
                        count += 1;
                        let data = count.to_le_bytes().repeat(usize_of(CELLS));
                        crate::common::write_all(fs, handle, writer * CELLS * 8, &data).expect("written");
                        confirmed[usize_of(writer)].store(count, Ordering::SeqCst);
                    }
                });
            }
            for reader in WRITERS as u64..THREADS as u64 {
                let (until, confirmed) = (&until, &confirmed);
                scope.spawn(move || {
                    let mut random = Random::new(reader);
                    let mut seen = vec![0_u64; usize_of(size / 8)];
                    let mut buffer = vec![0; usize_of(CELLS * 8)];
                    while until.goes_on() {
                        let writer = random.below(WRITERS as u64);
                        let least = confirmed[usize_of(writer)].load(Ordering::SeqCst);
                        let offset = writer * CELLS * 8;
                        fs.read(&Caller::root(), handle, offset, &mut buffer).expect("read");
                        for (index, count) in cells(&buffer).enumerate() {
                            let last = &mut seen[usize_of(offset / 8) + index];
                            assert!(count >= *last, "cell {index} of writer {writer} went back from {last} to {count}");
                            assert!(
                                count >= least,
                                "cell {index} of writer {writer} is {count}, {least} was confirmed"
                            );
                            *last = count;
                        }
                    }
                });
            }
        });
        let content = crate::common::read_whole(fs, ino).expect("read");
        for (index, count) in cells(&content).enumerate() {
            assert_eq!(count, confirmed[index / usize_of(CELLS)].load(Ordering::SeqCst), "cell {index}");
        }
    });
}

#[test]
fn the_check_for_interleaved_writes_finds_them() {
    let history = History::default();
    let (first, second) = (history.begin(0, 32), history.begin(0, 32));
    history.end(first);
    history.end(second);
    let content: Vec<u8> = [first, second, first, first].iter().flat_map(|stamp| stamp.to_le_bytes()).collect();
    assert!(std::panic::catch_unwind(|| check_final(&content, &history)).is_err(), "the check is blind");
    let whole = second.to_le_bytes().repeat(4);
    check_final(&whole, &history);
}
