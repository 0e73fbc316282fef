//! The window in memory that outlives the process: which entries are taken up after a death, and which are not.

use std::sync::Arc;

use polymux_types::sync::Ordering;

use super::crash_medium::CrashMedium;
use super::test_machine::Machine;
use super::tests::{Random, append, payload};
use super::*;

const WINDOW: u64 = 16 * 1024;
const RING: usize = 64 * 1024;

fn new_medium() -> Arc<CrashMedium> {
    let medium = Arc::new(CrashMedium::new(RING + 8192));
    Log::format(&*medium, 1, 77).unwrap();
    medium
}

/// Opens the log as a process does; returns it with the payloads that it found in the ring and in memory.
fn open(machine: &Machine, medium: &Arc<CrashMedium>) -> (Log, Vec<Vec<u8>>) {
    let header = Log::read_header(&**medium).unwrap();
    let mut replay = Replay::new(&**medium, header);
    let mut found = Vec::new();
    while let Some(entry) = replay.next().unwrap() {
        found.push(entry.payload.to_vec());
    }
    let mut end = replay.position();
    let window = SurvivingWindow::open(machine, &header, WINDOW).unwrap();
    if let Ok(survivors) = window.survivors(&header) {
        let taken = survivors.take_up(end, |entry| {
            found.push(entry.payload.to_vec());
            Ok(())
        });
        if let Ok(taken) = taken {
            taken.write(&**medium, &header).unwrap();
            end = taken.end();
        }
    }
    (Log::resume(medium.clone(), header, end, WindowMemory::Surviving(window)).unwrap(), found)
}

/// The entries that a process without surviving memory finds.
fn ring_of(medium: &Arc<CrashMedium>) -> Vec<Vec<u8>> {
    let header = Log::read_header(&**medium).unwrap();
    let mut replay = Replay::new(&**medium, header);
    let mut found = Vec::new();
    while let Some(entry) = replay.next().unwrap() {
        found.push(entry.payload.to_vec());
    }
    found
}

#[test]
fn every_entry_outlives_the_process_flushed_or_not() {
    for seed in 1..60 {
        let mut random = Random(seed << 32 | 1);
        let (machine, medium) = (Machine::default(), new_medium());
        let (mut number, mut appended) = (0, Vec::new());
        for life in 0..5 {
            let (log, found) = open(&machine, &medium);
            assert!(found == appended, "seed {seed}, life {life}: {} entries of {}", found.len(), appended.len());
            for _ in 0..random.below(40) {
                match random.below(8) {
                    0..6 => {
                        number += 1;
                        let payload = payload(number, random.below(700));
                        let Some(place) = log.reserve(payload.len()) else { continue };
                        log.fill(place, &payload).unwrap();
                        appended.push(payload);
                    }
                    6 => drop(log.write_out().unwrap()),
                    _ => log.sync(log.tail()).unwrap(),
                }
            }
        }
    }
}

#[test]
fn what_was_appended_behind_a_place_that_was_never_filled_is_not_lost() {
    let (machine, medium) = (Machine::default(), new_medium());
    let (log, _) = open(&machine, &medium);
    append(&log, b"before");
    let _killed_before_it_filled_this = log.reserve(300).unwrap();
    append(&log, b"behind");
    let _killed_here_too = log.reserve(20).unwrap();
    append(&log, b"last");
    drop(log);
    let (log, found) = open(&machine, &medium);
    assert_eq!(found, [b"before".to_vec(), b"behind".to_vec(), b"last".to_vec()]);
    append(&log, b"later");
    log.sync(log.tail()).unwrap();
    // The ring is whole without the memory; the gaps are entries without changes.
    let ring: Vec<_> = ring_of(&medium).into_iter().filter(|payload| !payload.is_empty()).collect();
    assert_eq!(ring, [b"before".to_vec(), b"behind".to_vec(), b"last".to_vec(), b"later".to_vec()]);
}

#[test]
fn taking_up_may_be_cut_short_at_any_write_and_repeated() {
    for writes in 0..6 {
        let (machine, medium) = (Machine::default(), new_medium());
        let (log, _) = open(&machine, &medium);
        let payloads: Vec<_> = (0..12).map(|number| payload(number, 500)).collect();
        for payload in &payloads {
            append(&log, payload);
        }
        drop(log);
        let header = Log::read_header(&*medium).unwrap();
        let window = SurvivingWindow::open(&machine, &header, WINDOW).unwrap();
        let taken = window.survivors(&header).unwrap().take_up(FIRST_POSITION, |_| Ok(())).unwrap();
        medium.fail_after(writes);
        let written = taken.write(&*medium, &header).is_ok();
        let resumed =
            written && Log::resume(medium.clone(), header, taken.end(), WindowMemory::Surviving(window)).is_ok();
        medium.fail_after(u64::MAX);
        let (_, found) = open(&machine, &medium);
        assert!(found == payloads, "cut short after {writes} writes (resumed: {resumed})");
    }
}

#[test]
fn the_window_of_another_boot_opening_or_store_is_not_taken() {
    let (mut machine, medium) = (Machine::default(), new_medium());
    let (log, _) = open(&machine, &medium);
    append(&log, b"unsynced");
    drop(log);
    machine.boot = 1;
    let header = Log::read_header(&*medium).unwrap();
    let refusal = |header: &LogHeader, machine: &Machine| {
        SurvivingWindow::open(machine, header, WINDOW).unwrap().survivors(header).err()
    };
    assert_eq!(refusal(&header, &machine), Some("it is of an earlier boot"));
    machine.boot = 0;
    assert_eq!(refusal(&header, &machine), None);
    let later = LogHeader { generation: header.generation + 1, ..header };
    assert_eq!(refusal(&later, &machine), Some("it is of another opening of the store"));
    let other = LogHeader { salt: 78, ..header };
    assert_eq!(refusal(&other, &machine), Some("it is damaged, or of another store"));
}

#[test]
fn a_damaged_entry_in_memory_is_left_out() {
    let (machine, medium) = (Machine::default(), new_medium());
    let (log, _) = open(&machine, &medium);
    append(&log, b"whole");
    let damaged = append(&log, b"damaged");
    append(&log, b"whole, too");
    drop(log);
    let header = Log::read_header(&*medium).unwrap();
    let window = SurvivingWindow::open(&machine, &header, WINDOW).unwrap();
    let index = usize::try_from((damaged - 64 + 24) / 8).unwrap();
    window.words()[index].fetch_xor(1, Ordering::SeqCst);
    assert_eq!(open(&machine, &medium).1, [b"whole".to_vec(), b"whole, too".to_vec()]);
}

#[test]
fn a_ring_that_lost_what_it_had_gets_nothing_from_memory() {
    let (machine, medium) = (Machine::default(), new_medium());
    let (log, _) = open(&machine, &medium);
    let image = medium.crash(|| false);
    for number in 0..20 {
        append(&log, &payload(number, 400));
    }
    log.sync(log.tail()).unwrap();
    append(&log, b"unsynced");
    drop(log);
    // The device came back without acknowledged writes, in the same boot.
    let medium = Arc::new(CrashMedium::of(image));
    assert_eq!(open(&machine, &medium).1, Vec::<Vec<u8>>::new());
}
