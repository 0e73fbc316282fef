//! Directories with very many entries.

mod mounted;

use std::collections::HashSet;
use std::fs::{self, File};
use std::time::Instant;

use mounted::volume::Ground;
use mounted::{Plan, TestVolume, is_heavy, one_at_a_time};

/// 100,000 entries; a million where `POLYMUX_HEAVY=1`.
#[test]
fn a_directory_of_very_many_entries_is_listed_exactly_and_emptied() {
    let _turn = one_at_a_time();
    let count: u32 = if is_heavy() { 1_000_000 } else { 100_000 };
    let mut plan = Plan::anywhere();
    if let (Ground::LoopDevices { fast, .. }, true) = (&mut plan.ground, is_heavy()) {
        // The records of a million entries, while they are compacted, take more than the usual device.
        *fast = 4096;
    }
    let Some(mut volume) = TestVolume::start(&plan) else { return };
    let directory = volume.path().join("many");
    fs::create_dir(&directory).unwrap();
    let start = Instant::now();
    let path = |number: u32| directory.join(format!("entry {number:07}"));
    for number in 0..count {
        File::create(path(number)).unwrap();
    }
    println!("{count} created in {:?}", start.elapsed());
    volume.unmount();
    volume.mount();

    let start = Instant::now();
    let names: HashSet<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    println!("listed in {:?}", start.elapsed());
    assert_eq!(names.len(), count as usize);
    for number in (0..count).step_by(997) {
        assert!(names.contains(path(number).file_name().unwrap()), "{number} is missing");
        assert!(path(number).metadata().unwrap().is_file());
    }
    for number in 0..count {
        fs::remove_file(path(number)).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    fs::remove_dir(&directory).unwrap();
    println!("made, listed and removed in {:?}", start.elapsed());
}
