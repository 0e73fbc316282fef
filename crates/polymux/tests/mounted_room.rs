//! Space that programs take without a message to the daemon: it costs no other program a tier, and never the reserve of the
//! metadata.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mounted::command::run;
use mounted::environment::{have_loop_devices, wanted_io};
use mounted::native::{available, text};
use mounted::passed_through::overwrite_in_place;
use mounted::users::as_user;
use mounted::volume::Ground;
use mounted::{Plan, TestVolume, one_at_a_time, skip, skip_where_io_is_named, skip_where_policy_is_named};

const MIB: u64 = 1 << 20;
/// Files that are made while a tier is full.
const NEW_FILES: usize = 400;
/// Files that are made out of the reserve of the metadata, which holds them all.
const FILES_IN_RESERVE: usize = 15_000;
/// Not root.
const ORDINARY_USER: u32 = 65_534;

/// Two tiers, of which the fast one is full long before the slow one.
fn start(ground: Ground) -> Option<TestVolume> {
    if !have_loop_devices() {
        skip("devices of known size need root and loop devices");
        return None;
    }
    TestVolume::start(&Plan { ground, fast_capacity: None })
}

/// The file system of the metadata keeps nothing for root.
const WITHOUT_RESERVE: Ground = Ground::LoopDevices { fast: 128, slow: 320 };
/// It keeps blocks for root, as `mkfs.ext4` has it.
const WITH_RESERVE: Ground = Ground::LoopDevicesWithReserve { fast: 256, slow: 512 };

fn closed_file(volume: &TestVolume, name: &str, length: u64) -> PathBuf {
    let path = volume.path().join(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![0xa5; usize::try_from(length).unwrap()]).and_then(|()| file.sync_all()).unwrap();
    path
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

/// A file that was only overwritten in one session, and made longer in the next one: only its possible growth keeps the kernel
/// from changing its object.
fn file_that_grew(volume: &TestVolume, name: &str, length: u64) -> PathBuf {
    let path = closed_file(volume, name, length);
    drop(volume.opened_for_direct_changes(&path, || open(&path)));
    let began = std::time::Instant::now();
    loop {
        let file = open(&path);
        let end = file.metadata().unwrap().len();
        file.write_all_at(&[0x5a; 4096], end).and_then(|()| file.sync_all()).expect("made longer");
        drop(file);
        let _reopened = open(&path);
        let found = volume.io_of(&path);
        if found.contains("it may grow beyond its tier") || !wanted_io().is_empty() {
            return path;
        }
        assert!(began.elapsed().as_secs() < 20, "a file that grew is {found}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The free space of each tier beyond its reserve is less than a few writes.
fn assert_every_tier_is_full(volume: &TestVolume, how: &str) {
    let volume_told = volume.status();
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
    let Some(volume) = start(WITHOUT_RESERVE) else { return };
    fill_by_appending(&volume, closed_file);
    drop(volume);
    let Some(volume) = start(WITH_RESERVE) else { return };
    fill_by_appending(&volume, file_that_grew);
}

/// Makes files that exist longer in several ways, until that fails.
fn fill_by_appending(volume: &TestVolume, make: impl Fn(&TestVolume, &str, u64) -> PathBuf) {
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
        let empty = available(volume.path());
        let path = make(volume, "existing", MIB);
        grow(&path);
        assert_every_tier_is_full(volume, how);
        fs::remove_file(&path).unwrap();
        let began = std::time::Instant::now();
        while available(volume.path()) + 32 * MIB < empty {
            assert!(began.elapsed().as_secs() < 180, "room does not come back");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

/// Takes all the space that a descriptor gets, and keeps it open.
fn take_all_room(file: File, limit: u64) -> (File, u64) {
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
fn make_files(directory: &Path, count: usize, when: &str) {
    for number in 0..count {
        let made = fs::write(directory.join(format!("new {number}")), b"a small file");
        assert!(made.is_ok(), "{when}: file {number} of {count}: {made:?}");
    }
}

#[test]
fn one_writer_does_not_keep_others_from_making_files_on_a_tier_that_keeps_nothing_back() {
    let _turn = one_at_a_time();
    if skip_where_policy_is_named() {
        return;
    }
    let Some(volume) = start(WITHOUT_RESERVE) else { return };
    let path = closed_file(&volume, "taker", MIB);
    overwrite_in_place(&path);
    let (_open, length) = take_all_room(open(&path), 1024 * MIB);
    println!("{length} bytes were taken; {} are available on the fast tier", available(volume.tier("fast")));
    // The store checks its free space at most every moment.
    std::thread::sleep(std::time::Duration::from_millis(500));
    make_files(volume.path(), NEW_FILES, "beside an open file that takes all room");
}

/// Files are made while a program of that user, which the kernel lets change the object itself, goes on to write behind the end of
/// its file until it gets no more. They come out of the reserve of the metadata, which is there to the last block.
fn making_files_goes_on_beside(user: u32) {
    let Some(volume) = start(WITH_RESERVE) else { return };
    let path = closed_file(&volume, "taker", MIB);
    std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
    let file = volume.opened_for_direct_changes(&path, || as_user(user, || open(&path)));
    let (_open, length) = as_user(user, || take_all_room(file, 1024 * MIB));
    assert!(length > 100 * MIB, "{length} bytes are not all room");
    let fast = rustix::fs::statvfs(volume.tier("fast")).unwrap();
    let [left, kept] = [fast.f_bavail, fast.f_bfree].map(|blocks| blocks * fast.f_frsize);
    println!("user {user} took {length} bytes; {left} are available on the fast tier, and {kept} free");
    assert!(left < MIB, "the fast tier has {left} bytes that a program could take");
    let reserve = 256 * MIB / 32;
    assert!(kept >= reserve, "of the reserve of the metadata {kept} bytes are left");
    std::thread::sleep(std::time::Duration::from_millis(500));
    make_files(volume.path(), FILES_IN_RESERVE, &format!("beside an open file of user {user} that takes all room"));
}

#[test]
fn one_writer_does_not_keep_others_from_making_files_where_blocks_are_kept_for_root() {
    let _turn = one_at_a_time();
    if skip_where_policy_is_named() || skip_where_io_is_named() {
        return;
    }
    for user in [0, ORDINARY_USER] {
        making_files_goes_on_beside(user);
    }
}

#[test]
fn reserving_room_inside_a_sparse_file_leaves_the_reserve_of_the_metadata_alone() {
    let _turn = one_at_a_time();
    let Some(volume) = start(WITHOUT_RESERVE) else { return };
    let reserve = 128 * MIB / 32;
    let path = closed_file(&volume, "sparse", MIB);
    let file = open(&path);
    file.set_len(4096 * MIB).unwrap();
    for (what, length) in [("more than there is", 4096 * MIB), ("more than the fast tier has", 200 * MIB)] {
        let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, length);
        let left = available(volume.tier("fast"));
        println!("{what}: {reserved:?}, {left} bytes are left");
        assert!(left + 2 * MIB >= reserve, "{what}: {left} bytes are left on the metadata tier");
        make_files(volume.path(), NEW_FILES, what);
    }
}

#[test]
fn a_write_into_reserved_room_finds_it_when_every_tier_is_full() {
    let _turn = one_at_a_time();
    let Some(volume) = start(WITHOUT_RESERVE) else { return };
    let reserved = File::create_new(volume.path().join("reserved")).unwrap();
    let length = 40 * MIB;
    rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, length).unwrap();
    let mut filler = File::create(volume.path().join("filler")).unwrap();
    let chunk = vec![0x11; usize::try_from(MIB / 4).unwrap()];
    let refused = (0..).find_map(|_| filler.write_all(&chunk).err()).unwrap();
    assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
    let content: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for (at, part) in (0..).step_by(128 << 10).zip(content.chunks(128 << 10)) {
        reserved.write_all_at(part, at).unwrap_or_else(|error| panic!("at {at}: {error}"));
    }
    reserved.sync_all().unwrap();
    assert!(fs::read(volume.path().join("reserved")).unwrap() == content);
}
