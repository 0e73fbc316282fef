//! The log in front of a block medium: power failures at any step, spills, and regions that are not ours.

use std::sync::Arc;

use super::crash_region::{Images, Planted, World};
use super::tests::{Random, append, payload};
use super::*;

const DATA: u64 = 32 * 1024;
const RING: usize = 128 * 1024;

/// The images of both media for a new store.
fn new_images() -> Images {
    let medium = vec![0; RING + 8192];
    let region = vec![0; usize::try_from((REGION_HEADER_LENGTH + DATA) / 8).unwrap()];
    let world = World::of(medium, region, 1, Planted::Nothing);
    Log::format(&*world, 1, 77).unwrap();
    RegionLog::format(&*world, 1, 77).unwrap();
    world.images()
}

fn world(images: &Images, seed: u64, planted: Planted) -> Arc<World> {
    World::of(images.medium.clone(), images.region.clone(), seed, planted)
}

/// An entry that was found or appended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    end: u64,
    payload: Vec<u8>,
}

fn region_of(world: &Arc<World>) -> Result<(LogHeader, RegionLog), StoreError> {
    let header = Log::read_header(&**world)?;
    Ok((header, RegionLog::open(world.clone(), &header)?))
}

/// The header, the entries that replay finds, and their end.
fn replay(world: &Arc<World>) -> (LogHeader, Vec<Written>, u64) {
    let (header, region) = region_of(world).unwrap();
    let mut replay = Replay::with_region(&**world, Some(&region), header);
    let mut found = Vec::new();
    while let Some(entry) = replay.next().unwrap() {
        found.push(Written { end: entry.end, payload: entry.payload.to_vec() });
    }
    (header, found, replay.position())
}

fn open(world: &Arc<World>) -> Log {
    let (header, _, end) = replay(world);
    let (_, region) = region_of(world).unwrap();
    Log::resume_in_region(world.clone(), region, header, end).unwrap()
}

/// Lives of one log between power failures. An entry is acknowledged as soon as it is filled.
fn survive(seed: u64, planted: Planted) -> u64 {
    let mut random = Random(seed);
    let mut images = new_images();
    let mut appended: Vec<Written> = Vec::new();
    let mut checkpoint = FIRST_POSITION;
    let (mut number, mut spills) = (0, 0);
    for life in 0..6 {
        let seed_of_life = random.below(u64::MAX) | 1;
        let world = world(&images, seed_of_life, planted);
        let what = format!("seed {seed}, life {life}");
        let (header, found, end) = replay(&world);
        assert!(end >= images.acknowledged, "{what}: ends at {end}, {} was acknowledged", images.acknowledged);
        assert!(header.checkpoint >= checkpoint, "{what}: a checkpoint went back");
        appended.retain(|entry| entry.end > header.checkpoint && entry.end <= end);
        assert!(found == appended, "{what}: what is there is not what was appended");
        checkpoint = header.checkpoint;
        let log = open(&world);
        assert_eq!(log.durable(), end, "{what}");
        world.acknowledged.store(end, Ordering::SeqCst);
        world.fail_after(random.below(400));
        for _ in 0..random.below(120) {
            match random.below(12) {
                0..9 => {
                    number += 1;
                    let payload = payload(number, random.below(3000));
                    let Some(place) = log.reserve(payload.len()) else { continue };
                    appended.push(Written { end: place.end, payload: payload.clone() });
                    log.fill(place, &payload).unwrap();
                    world.acknowledged.store(place.end, Ordering::SeqCst);
                }
                9 => drop(log.write_out().unwrap()),
                10 => log.sync(log.tail()).unwrap(),
                _ => {
                    // Tables take some of the log.
                    log.sync(log.tail()).unwrap();
                    let before = log.checkpoint();
                    let taken = appended.iter().map(|entry| entry.end).filter(|end| *end > before);
                    let ends: Vec<u64> = taken.collect();
                    if let Some(end) = ends.get(ends.len() / 2) {
                        log.advance_checkpoint(*end).unwrap();
                    }
                }
            }
            if world.has_failed() {
                break;
            }
        }
        spills += log.low.0.load(Ordering::SeqCst) / (DATA / 2);
        images = world.images();
    }
    spills
}

#[test]
fn after_any_power_failure_what_was_filled_is_there_and_nothing_else() {
    let spills: u64 = (1..400).map(|seed| survive(seed, Planted::Nothing)).sum();
    assert!(spills > 100, "halves were given up between the failures: {spills}");
}

#[test]
#[should_panic(expected = "acknowledged")]
fn the_crash_test_notices_lines_that_stay_in_the_cache() {
    for seed in 1..400 {
        survive(seed, Planted::BodyStaysInTheCache);
    }
}

#[test]
#[should_panic(expected = "acknowledged")]
fn the_crash_test_notices_a_spill_that_is_not_flushed() {
    for seed in 1..400 {
        survive(seed, Planted::SpillIsNotFlushed);
    }
}

#[test]
fn a_power_failure_at_any_step_of_a_spill_loses_nothing() {
    let images = new_images();
    let mut moved = 0;
    for step in 0.. {
        let world = world(&images, step + 1, Planted::Nothing);
        let log = open(&world);
        let mut written = Vec::new();
        while log.tail() < DATA - 2048 {
            let payload = payload(written.len() as u64, 700);
            written.push(Written { end: append(&log, &payload), payload });
        }
        world.acknowledged.store(log.tail(), Ordering::SeqCst);
        world.fail_after(step);
        assert!(log.write_out().unwrap(), "the older half is given up");
        let ended = !world.has_failed();
        let left = world.images();
        let after = World::of(left.medium, left.region, 1, Planted::Nothing);
        assert_eq!(replay(&after).1, written, "step {step}");
        moved += u64::from(region_of(&after).unwrap().1.low() > 0);
        if ended {
            break;
        }
        assert!(step < 1000, "a spill has an end");
    }
    assert!(moved > 0, "some failures came after the region's header was written");
}

#[test]
fn a_sync_writes_nothing_and_flushes_nothing() {
    let world = world(&new_images(), 1, Planted::Nothing);
    let log = open(&world);
    let flushes = world.medium.flushes.load(Ordering::SeqCst);
    for number in 0..10 {
        let end = append(&log, &payload(number, 500));
        log.sync(end).unwrap();
        assert!(log.durable() >= end);
    }
    assert_eq!(world.medium.flushes.load(Ordering::SeqCst), flushes);
    let counters = log.counters();
    assert_eq!((counters.flushes, counters.device_bytes, counters.syncs), (0, 0, 10));
}

#[test]
fn a_half_that_the_tables_have_is_freed_without_writing_it() {
    let world = world(&new_images(), 1, Planted::Nothing);
    let log = open(&world);
    let mut end = 0;
    for number in 0..100 {
        end = append(&log, &payload(number, 700));
        if number % 5 == 4 {
            log.sync(end).unwrap();
            log.advance_checkpoint(end).unwrap();
            log.write_out().unwrap();
        }
    }
    assert!(end > DATA && log.low.0.load(Ordering::SeqCst) >= DATA / 2, "the region went round");
    assert_eq!(log.counters().device_bytes, 0);
}

#[test]
fn what_a_killed_process_stored_is_durable_once_the_next_one_shows_it() {
    let world = world(&new_images(), 1, Planted::BodyStaysInTheCache);
    let log = open(&world);
    append(&log, &payload(1, 2000));
    // The process is killed: its caches stay, and the next one reads them.
    drop(log);
    assert_eq!(replay(&world).1.len(), 1);
    let again = World::of(
        world.images().medium,
        world.words().iter().map(|word| word.load(Ordering::SeqCst)).collect(),
        1,
        Planted::Nothing,
    );
    let end = open(&again).durable();
    again.acknowledged.store(end, Ordering::SeqCst);
    for _ in 0..20 {
        let left = again.images();
        assert_eq!(replay(&World::of(left.medium, left.region, 1, Planted::Nothing)).1.len(), 1);
    }
}

#[test]
fn threads_fill_sync_and_spill_side_by_side_and_nothing_is_lost() {
    let world = world(&new_images(), 1, Planted::Nothing);
    let log = open(&world);
    let total = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|worker| {
                let log = &log;
                scope.spawn(move || {
                    let mut count = 0;
                    while let Some(place) = log.reserve(300) {
                        log.fill(place, &payload(worker << 32 | count, 300)).unwrap();
                        log.sync(place.end).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
    });
    assert!(log.counters().flushes >= 5, "halves were given up: {:?}", log.counters());
    let left = world.images();
    let (_, found, _) = replay(&World::of(left.medium, left.region, 1, Planted::Nothing));
    assert_eq!(found.len() as u64, total);
}

#[test]
fn a_power_failure_among_threads_leaves_what_was_synced_and_no_gap() {
    let images = new_images();
    for seed in 1..60 {
        let world = world(&images, seed, Planted::Nothing);
        let log = open(&world);
        world.fail_after(Random(seed).below(1500));
        let appended = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for worker in 0..3_u64 {
                let (log, world, appended) = (&log, &world, &appended);
                scope.spawn(move || {
                    for number in 0_u64.. {
                        if world.has_failed() {
                            break;
                        }
                        let payload = payload(worker << 32 | number, 200 + number * 7 % 900);
                        let Some(place) = log.reserve(payload.len()) else { break };
                        appended.lock().unwrap().push(Written { end: place.end, payload: payload.clone() });
                        log.fill(place, &payload).unwrap();
                        log.sync(place.end).unwrap();
                        world.acknowledged.fetch_max(place.end, Ordering::SeqCst);
                    }
                });
            }
        });
        let left = world.images();
        let (_, found, end) = replay(&World::of(left.medium, left.region, 1, Planted::Nothing));
        assert!(end >= left.acknowledged, "seed {seed}: ends at {end}, {} was acknowledged", left.acknowledged);
        let mut appended = appended.into_inner().unwrap();
        appended.sort_by_key(|entry| entry.end);
        appended.retain(|entry| entry.end <= end);
        assert!(found == appended, "seed {seed}");
    }
}

#[test]
fn a_medium_that_fails_during_a_spill_poisons_the_log() {
    let world = world(&new_images(), 1, Planted::Nothing);
    let log = open(&world);
    while log.tail() < DATA / 2 {
        append(&log, &payload(1, 700));
    }
    world.medium.fail_after(0);
    assert!(log.write_out().is_err());
    world.medium.fail_after(u64::MAX);
    let tail = log.tail();
    assert!(matches!(log.sync(tail), Err(StoreError::Poisoned(_))), "it stays so although the medium is well again");
}

fn refusal(images: &Images) -> String {
    let world = world(images, 1, Planted::Nothing);
    region_of(&world).err().expect("the region is refused").to_string()
}

#[test]
fn a_region_that_is_foreign_old_too_new_damaged_or_empty_is_refused() {
    let first = new_images();
    let foreign = World::of(vec![0; RING + 8192], first.region.clone(), 1, Planted::Nothing);
    Log::format(&*foreign, 1, 78).unwrap();
    assert!(region_of(&foreign).err().unwrap().to_string().contains("another store"), "another salt");
    let foreign = World::of(vec![0; RING + 8192], first.region.clone(), 1, Planted::Nothing);
    Log::format(&*foreign, 2, 77).unwrap();
    assert!(region_of(&foreign).err().unwrap().to_string().contains("another store"), "another id");

    let later = world(&first, 1, Planted::Nothing);
    append(&open(&later), b"an entry");
    append(&open(&later), b"another");
    let later = later.images();
    let old = Images { medium: later.medium.clone(), region: first.region.clone(), acknowledged: 0 };
    assert!(refusal(&old).contains("old copy"), "{}", refusal(&old));
    let new = Images { medium: first.medium.clone(), region: later.region.clone(), acknowledged: 0 };
    assert!(refusal(&new).contains("newer than the store"), "{}", refusal(&new));

    let mut damaged = later.region.clone();
    damaged[5] ^= 1 << 20;
    damaged[256 + 5] ^= 1 << 20;
    let damaged = Images { medium: later.medium.clone(), region: damaged, acknowledged: 0 };
    assert!(refusal(&damaged).contains("damaged"), "{}", refusal(&damaged));
    let empty = Images { medium: later.medium.clone(), region: vec![0; first.region.len()], acknowledged: 0 };
    assert!(refusal(&empty).contains("damaged"), "{}", refusal(&empty));
    let odd = Images { medium: later.medium, region: vec![0; first.region.len() - 1], acknowledged: 0 };
    assert!(refusal(&odd).contains("cannot be the region"), "{}", refusal(&odd));
}

#[test]
fn the_loss_of_one_slot_of_the_header_is_survived() {
    let first = new_images();
    let live = world(&first, 1, Planted::Nothing);
    let log = open(&live);
    let mut written = Vec::new();
    for number in 0..60 {
        written.push(append(&log, &payload(number, 700)));
        log.write_out().unwrap();
    }
    let left = live.images();
    let whole = replay(&world(&left, 1, Planted::Nothing));
    assert_eq!(whole.1.iter().map(|entry| entry.end).collect::<Vec<_>>(), written);
    for torn in 0..2 {
        let mut image = left.region.clone();
        image[torn * 256 + 7] ^= 1;
        let world = World::of(left.medium.clone(), image, 1, Planted::Nothing);
        assert!(region_of(&world).unwrap().1.low() > 0);
        assert!(replay(&world) == whole, "slot {torn}");
    }
}
