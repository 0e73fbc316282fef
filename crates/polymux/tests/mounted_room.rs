//! Room that programs take without a message to the daemon: it costs no other program a tier, and never the reserve of the
//! metadata.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mounted::command::run;
use mounted::environment::have_loop_devices;
use mounted::native::text;
use mounted::volume::Ground;
use mounted::{Plan, TestVolume, one_at_a_time, skip, skip_where_io_is_named, skip_where_policy_is_named};

const MIB: u64 = 1 << 20;
/// Files that are made while a tier is full.
const NEW_FILES: usize = 400;

fn available(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).unwrap();
    space.f_bavail * space.f_frsize
}

/// Two tiers, of which the fast one is full long before the slow one.
fn small_and_large() -> Option<TestVolume> {
    if !have_loop_devices() {
        skip("devices of known size need root and loop devices");
        return None;
    }
    let plan = Plan { ground: Ground::LoopDevices { fast: 128, slow: 320 }, fast_capacity: None };
    TestVolume::start(&plan)
}

fn closed_file(volume: &TestVolume, name: &str, length: u64) -> PathBuf {
    let path = volume.path().join(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![0xa5; usize::try_from(length).unwrap()]).and_then(|()| file.sync_all()).unwrap();
    path
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

/// A session of a program that overwrites a file and does not make it longer.
fn overwrite_in_place(path: &Path) {
    let file = open(path);
    file.write_all_at(&[0x5a; 4096], 0).and_then(|()| file.sync_all()).expect("overwritten");
}

/// What is left on each tier beyond its reserve is less than a few writes.
fn assert_every_tier_is_full(volume: &TestVolume, how: &str) {
    let told = volume.polymux(["status", "--json", &volume.name]);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).expect("it prints JSON");
    let volume_told = if told.is_array() { &told[0] } else { &told };
    for tier in volume_told["tiers"].as_array().expect("tiers") {
        let name = tier["name"].as_str().expect("a name");
        let reserve = tier["reserve"].as_u64().expect("bytes");
        let left = available(volume.tier(name)).saturating_sub(reserve);
        assert!(left < 8 * MIB, "{how}: ENOSPC while tier {name} has {left} bytes beside its reserve");
    }
}

fn dd(arguments: &[&str]) -> String {
    run(Command::new("dd").args(["if=/dev/zero", "bs=1M", "conv=notrunc"]).args(arguments)).text()
}

/// Writes 128 KiB at places all over a range that ends ever further behind the end of the file.
fn grow_at_random_places(path: &Path) {
    let file = open(path);
    let chunk = [0x77; 128 << 10];
    let mut state = 1_u64;
    let mut end = MIB;
    loop {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        end += 96 << 10;
        let place = if state >> 63 == 0 { end - (chunk.len() as u64) } else { (state >> 20) % end };
        if let Err(error) = file.write_all_at(&chunk, place) {
            assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
            return;
        }
        assert!(end < 4096 * MIB, "the volume is smaller than that");
    }
}

#[test]
fn appending_through_an_existing_file_fills_every_tier_before_it_fails() {
    let _turn = one_at_a_time();
    let Some(volume) = small_and_large() else { return };
    type Grow = fn(&Path);
    let ways: [(&str, Grow); 3] = [
        ("dd oflag=append", |path| {
            let said = dd(&["oflag=append", "count=1000", &format!("of={}", text(path))]);
            assert!(said.contains("No space left"), "{said}");
        }),
        ("dd seek=", |path| {
            let said = dd(&["seek=1", "count=1000", &format!("of={}", text(path))]);
            assert!(said.contains("No space left"), "{said}");
        }),
        ("random places", grow_at_random_places),
    ];
    for (how, grow) in ways {
        let path = closed_file(&volume, "existing", MIB);
        grow(&path);
        assert_every_tier_is_full(&volume, how);
        fs::remove_file(&path).unwrap();
        let began = std::time::Instant::now();
        while available(volume.path()) < 300 * MIB {
            assert!(began.elapsed().as_secs() < 180, "room does not come back");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

/// Takes all the room that a descriptor gets, and keeps it open.
fn take_all_room(path: &Path, limit: u64) -> (File, u64) {
    let file = open(path);
    let mut end = file.metadata().unwrap().len();
    let chunk = vec![0x33; 256 << 10];
    let mut length = chunk.len();
    while end < limit {
        match file.write_at(&chunk[..length], end) {
            Ok(count) => end += count as u64,
            Err(error) if is_full(&error) && length > 4096 => length = 4096,
            Err(error) if is_full(&error) => break,
            Err(error) => panic!("at {end}: {error}"),
        }
    }
    (file, end)
}

/// Makes small files, each of which must come about.
fn make_files(directory: &Path, when: &str) {
    for number in 0..NEW_FILES {
        let made = fs::write(directory.join(format!("new {number}")), b"a small file");
        assert!(made.is_ok(), "{when}: file {number} of {NEW_FILES}: {made:?}");
    }
}

/// Files are made while a program that overwrote a file in place before goes on to write behind its end.
fn creating_goes_on(volume: &TestVolume, limit: u64) {
    let path = closed_file(volume, "taker", MIB);
    for _ in 0..2 {
        overwrite_in_place(&path);
    }
    let (_open, length) = take_all_room(&path, limit);
    println!("{length} bytes were taken; {} are available on the fast tier", available(volume.tier("fast")));
    // The store looks at its room at most every moment.
    std::thread::sleep(std::time::Duration::from_millis(500));
    make_files(volume.path(), "beside an open file that takes all room");
}

#[test]
fn one_writer_does_not_keep_others_from_making_files_on_a_tier_that_keeps_nothing_back() {
    let _turn = one_at_a_time();
    if skip_where_policy_is_named() {
        return;
    }
    let Some(volume) = small_and_large() else { return };
    creating_goes_on(&volume, 1024 * MIB);
}

#[test]
fn one_writer_does_not_keep_others_from_making_files_where_blocks_are_kept_for_root() {
    let _turn = one_at_a_time();
    if !have_loop_devices() {
        return skip("devices of known size need root and loop devices");
    }
    if skip_where_policy_is_named() || skip_where_io_is_named() {
        return;
    }
    let plan = Plan { ground: Ground::LoopDevicesWithReserve { fast: 256, slow: 512 }, fast_capacity: None };
    let Some(mut volume) = TestVolume::start(&plan) else { return };
    let path = closed_file(&volume, "database", MIB);
    overwrite_in_place(&path);
    let file = open(&path);
    let told = volume.polymux(["where", "--json", text(&path)]);
    assert!(told.stdout.contains("also for changes"), "a database is overwritten at native speed: {}", told.text());
    drop(file);
    creating_goes_on(&volume, 1024 * MIB);
    volume.unmount();
}

#[test]
fn reserving_room_inside_a_sparse_file_leaves_the_reserve_of_the_metadata_alone() {
    let _turn = one_at_a_time();
    let Some(volume) = small_and_large() else { return };
    let reserve = 128 * MIB / 32;
    let path = closed_file(&volume, "sparse", MIB);
    let file = open(&path);
    file.set_len(4096 * MIB).unwrap();
    for (what, length) in [("more than there is", 4096 * MIB), ("more than the fast tier has", 200 * MIB)] {
        let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, length);
        let left = available(volume.tier("fast"));
        println!("{what}: {reserved:?}, {left} bytes are left");
        assert!(left + 2 * MIB >= reserve, "{what}: {left} bytes are left on the metadata tier");
        make_files(volume.path(), what);
    }
}
