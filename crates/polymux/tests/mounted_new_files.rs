//! New files on the only tier of a volume are written by the kernel from their creation on (docs/design/0026).

mod mounted;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use mounted::passed_through::{CHANGED_DIRECTLY, OneTier};
use mounted::{Random, TestVolume};

const MIB: usize = 1 << 20;
/// Long enough for a file that grows to be passed through on such a device; the image is sparse.
const DEVICE_MIB: u64 = 4096;

fn writes(volume: &TestVolume) -> u64 {
    volume.status()["messages"]["write"].as_u64().unwrap_or(0)
}

#[test]
fn a_new_log_costs_no_message_for_a_write_and_is_seen_by_all_at_once() {
    let Some(mut tested) = OneTier::start(DEVICE_MIB) else { return };
    let volume = &mut tested.volume;
    let content = Random::new(1).bytes(3 * MIB);
    let path = volume.path().join("log");
    let before = writes(volume);
    let mut file = File::create(&path).expect("made");
    for (count, piece) in content.chunks(100).enumerate() {
        file.write_all(piece).expect("written");
        if count % 5000 == 0 {
            let written = (count * 100 + piece.len()) as u64;
            assert_eq!(fs::metadata(&path).expect("there").len(), written, "by name");
            assert_eq!(file.metadata().expect("there").len(), written);
        }
    }
    assert_eq!(writes(volume), before, "the daemon is not asked to write");
    assert_eq!(volume.io_of(&path), CHANGED_DIRECTLY);
    assert!(fs::read(&path).expect("read") == content, "while it is open");
    file.sync_all().expect("synced");
    drop(file);
    volume.unmount();
    volume.mount();
    assert!(fs::read(&path).expect("read") == content, "after a mount");
}

#[test]
fn a_new_file_that_is_written_over_the_death_of_the_daemon_has_all_of_its_bytes() {
    let Some(mut tested) = OneTier::start(DEVICE_MIB) else { return };
    let volume = &mut tested.volume;
    let path = volume.path().join("new");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("made");
    let content = Random::new(2).bytes(2 * MIB);
    file.write_all_at(&content[..MIB], 0).expect("written");
    volume.kill_daemon();
    file.write_all_at(&content[MIB..], MIB as u64).expect("the kernel goes on without the daemon");
    volume.mount();
    assert!(fs::read(&path).expect("read") == content, "although it is not synced, and its creation was not either");
    assert!(volume.io_of(&path).starts_with("held by a program"), "{}", volume.io_of(&path));
    drop(file);
}

/// Writes a file of so many MiB, removes it, and does so again at once, more often than the tier has space for together.
fn write_and_remove(volume: &TestVolume, mebibytes: usize, expected_io: &str) {
    let path = volume.path().join("large");
    let piece = vec![7; MIB];
    for round in 0..4 {
        let mut file = File::create(&path).expect("made");
        if round == 0 {
            let io = volume.io_of(&path);
            assert!(io.starts_with(expected_io), "{io}");
        }
        for written in 0..mebibytes {
            file.write_all(&piece).unwrap_or_else(|error| panic!("round {round}, after {written} MiB: {error}"));
        }
        drop(file);
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_program_that_removes_and_writes_again_finds_the_space_of_what_it_removed() {
    let Some(tested) = OneTier::start(DEVICE_MIB / 4) else { return };
    write_and_remove(&tested.volume, 500, "through the daemon: its tier has too little");
}

#[test]
fn a_program_whose_files_the_kernel_writes_finds_the_space_of_what_it_removed() {
    let Some(tested) = OneTier::start(DEVICE_MIB * 3 / 4) else { return };
    write_and_remove(&tested.volume, 1500, "passed through");
}
