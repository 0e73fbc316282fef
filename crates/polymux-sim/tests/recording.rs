//! The recording file system as programs see it, and its records.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use polymux_sim::recording_file_system::{
    Change, CrashStates, Durability, Fate, Image, NameOrder, Node, Operation, RecordedDirectory, RecordingFileSystem,
};

/// The operations on a directory, one short text for each.
fn operations(directory: &RecordedDirectory) -> Vec<String> {
    let text = |operation: &Operation| {
        let path = operation.path.display();
        match &operation.change {
            Change::Create { kind, .. } => format!("create {kind:?} {path}"),
            Change::Remove { name, .. } => format!("remove {}", name.display()),
            Change::Rename { from, .. } => format!("rename {} to {path}", from.display()),
            Change::Write { offset, bytes, durability: Durability::Cached, .. } => {
                format!("write {path} {offset} {}", bytes.len())
            }
            Change::Write { offset, bytes, .. } => format!("durably write {path} {offset} {}", bytes.len()),
            Change::Resize { length, .. } => format!("resize {path} {length}"),
            Change::Sync { .. } => format!("sync {path}"),
        }
    };
    directory.record().operations.iter().map(text).collect()
}

#[test]
fn every_operation_is_recorded_once_and_in_order() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let directory = mounted.load(&Image::default());
    let path = directory.path();
    std::fs::create_dir(path.join("d")).unwrap();
    let mut file = File::create_new(path.join("d/a")).unwrap();
    file.write_all(b"one").unwrap();
    file.write_all(b"two").unwrap();
    file.sync_all().unwrap();
    let direct = i32::try_from((rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::DSYNC).bits()).unwrap();
    let durable = OpenOptions::new().write(true).custom_flags(direct).open(path.join("d/a")).unwrap();
    durable.write_all_at(b"three", 4096).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 8192).unwrap();
    file.sync_data().unwrap();
    std::fs::rename(path.join("d/a"), path.join("d/b")).unwrap();
    File::open(path.join("d")).unwrap().sync_all().unwrap();
    drop(File::create(path.join("d/b")).unwrap());
    std::fs::remove_file(path.join("d/b")).unwrap();
    file.write_all_at(b"four", 0).unwrap();
    std::fs::remove_dir(path.join("d")).unwrap();
    let expected = [
        "create Directory d",
        "create File d/a",
        "write d/a 0 3",
        "write d/a 3 3",
        "sync d/a",
        "durably write d/a 4096 5",
        "resize d/a 8192",
        "sync d/a",
        "rename a to d/b",
        "sync d",
        "resize d/b 0",
        "remove b",
        "write d/b 0 4",
        "remove d",
    ];
    assert_eq!(operations(&directory), expected);
}

#[test]
fn what_a_crash_left_is_loaded_and_reads_as_it_was() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let directory = mounted.load(&Image::default());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    std::fs::write(directory.path().join("kept"), &bytes).unwrap();
    File::open(directory.path().join("kept")).unwrap().sync_all().unwrap();
    File::open(directory.path()).unwrap().sync_all().unwrap();
    std::fs::write(directory.path().join("lost"), b"lost").unwrap();
    let record = directory.record();
    drop(directory);
    let mut states = CrashStates::new(&record);
    for operation in &record.operations {
        states.begin(operation);
        states.complete(operation);
    }
    let image = states.image(NameOrder::Ordered, |_| Fate::Lost);
    assert!(matches!(image.at("kept"), Some(Node::File(_))) && image.at("lost").is_none());
    let again = mounted.load(&image);
    assert_eq!(std::fs::read(again.path().join("kept")).unwrap(), bytes);
    let names: Vec<_> = std::fs::read_dir(again.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["kept"]);
    assert_eq!(again.position(), 0);
}

#[test]
fn a_stopped_directory_fails_everything_and_goes_on_as_it_was() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let directory = mounted.load(&Image::default());
    let file = File::create_new(directory.path().join("a")).unwrap();
    file.write_all_at(b"one", 0).unwrap();
    directory.stop_at(directory.position() + 1);
    file.write_all_at(b"two", 0).unwrap();
    assert!(file.write_all_at(b"three", 0).is_err() && file.sync_all().is_err());
    assert!(std::fs::read(directory.path().join("a")).is_err());
    directory.go_on();
    assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"two");
    assert_eq!(directory.position(), 3);
}
