//! The death of the daemon: every operation that returned is there after the next mount, synced or not.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use mounted::{Plan, TestVolume, one_at_a_time, run, skip};

/// Nothing is flushed by itself while a test runs.
const NO_FLUSH: &str = "flush_interval = 60";

fn volume() -> Option<TestVolume> {
    let volume = TestVolume::start_with_options(&Plan::anywhere(), NO_FLUSH)?;
    if volume.has_surviving_memory() {
        return Some(volume);
    }
    skip("there is no tmpfs for memory that outlives the daemon");
    None
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| index.to_le_bytes()[0].wrapping_mul(31).wrapping_add(index.to_le_bytes()[1]) ^ seed)
        .collect()
}

fn die_and_mount(volume: &mut TestVolume) {
    volume.kill_daemon();
    volume.mount();
}

#[test]
fn an_unmount_leaves_no_memory_behind() {
    let _turn = one_at_a_time();
    let Some(mut volume) = volume() else { return };
    let bytes = pattern(1, 700);
    fs::write(volume.path().join("small"), &bytes).unwrap();
    assert!(!volume.memory_left().is_empty(), "it is in use while the volume is mounted");
    volume.unmount();
    assert_eq!(volume.memory_left(), Vec::<String>::new());
    volume.mount();
    assert_eq!(fs::read(volume.path().join("small")).unwrap(), bytes);
}

#[test]
fn a_copy_is_whole_although_the_daemon_is_killed_at_once() {
    let _turn = one_at_a_time();
    let Some(mut volume) = volume() else { return };
    let source = volume.outside().join("source");
    for (round, length) in [0, 1, 4096, 4097, 300_000, 5_000_000].into_iter().enumerate() {
        let bytes = pattern(u8::try_from(round).unwrap(), length);
        fs::write(&source, &bytes).unwrap();
        let copy = volume.path().join(format!("copy-{round}"));
        let copied = run(Command::new("cp").args([&source, &copy]));
        assert!(copied.is_success(), "{}", copied.stderr);
        die_and_mount(&mut volume);
        assert!(fs::read(&copy).unwrap() == bytes, "{length} bytes were copied");
    }
}

/// Makes changes of every kind and returns how the tree looks then.
fn change_everything(root: &Path) -> Vec<String> {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/small"), pattern(1, 700)).unwrap();
    fs::write(root.join("a/large"), pattern(2, 900_000)).unwrap();
    fs::write(root.join("a/gone"), pattern(3, 9_000)).unwrap();
    fs::write(root.join("a/b/moved"), pattern(4, 20_000)).unwrap();
    fs::write(root.join("a/replaced"), pattern(5, 50)).unwrap();
    fs::remove_file(root.join("a/gone")).unwrap();
    fs::rename(root.join("a/b/moved"), root.join("a/b/c/there")).unwrap();
    fs::write(root.join("a/new"), pattern(6, 60)).unwrap();
    fs::rename(root.join("a/new"), root.join("a/replaced")).unwrap();
    fs::hard_link(root.join("a/large"), root.join("a/linked")).unwrap();
    symlink("a/large", root.join("symbolic")).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(root.join("a/large")).unwrap();
    file.write_all_at(&pattern(7, 5_000), 123_456).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&pattern(8, 70_001)).unwrap();
    drop(file);
    OpenOptions::new().write(true).open(root.join("a/b/c/there")).unwrap().set_len(10_001).unwrap();
    OpenOptions::new().append(true).open(root.join("a/small")).unwrap().write_all(&pattern(9, 300)).unwrap();
    fs::set_permissions(root.join("a/small"), fs::Permissions::from_mode(0o640)).unwrap();
    rustix::fs::setxattr(root.join("a/large"), "user.note", b"kept", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(root.join("a/b"), "user.note", b"kept, too", rustix::fs::XattrFlags::empty()).unwrap();
    let times =
        fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_891));
    File::open(root.join("a/linked")).unwrap().set_times(times).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::remove_dir(root.join("empty")).unwrap();
    look(root)
}

/// Everything that a program can see of a tree, but times.
fn look(root: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let (ino, mode, links, size) = (metadata.ino(), metadata.mode(), metadata.nlink(), metadata.len());
        let mut line = format!("{}: {ino} {mode:o} {links} {size}", path.display());
        if metadata.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        if metadata.is_file() {
            line += &format!(" {:x}", mounted::tree::checksum(&fs::read(&path).unwrap()));
        }
        let mut value = [0; 100];
        let found = rustix::fs::lgetxattr(&path, "user.note", &mut value).map_or(0, |length| length);
        line += &format!(" {}", String::from_utf8_lossy(&value[..found]));
        seen.push(line);
    }
    seen.sort();
    seen
}

#[test]
fn every_operation_that_returned_is_there_although_the_daemon_is_killed_at_once() {
    let _turn = one_at_a_time();
    let Some(mut volume) = volume() else { return };
    let expected = change_everything(volume.path());
    die_and_mount(&mut volume);
    assert_eq!(look(volume.path()), expected);
    let linked = fs::metadata(volume.path().join("a/linked")).unwrap();
    assert_eq!((linked.mtime(), linked.mtime_nsec()), (1, 234_567_891), "a time that was set");
    // Nothing of it depends on memory any more.
    volume.keep_no_memory();
    die_and_mount(&mut volume);
    assert_eq!(look(volume.path()), expected);
}

#[test]
fn without_surviving_memory_status_says_so_and_a_killed_daemon_takes_the_end_along() {
    let _turn = one_at_a_time();
    let Some(mut volume) = TestVolume::create_with_options(&Plan::anywhere(), NO_FLUSH) else { return };
    volume.keep_no_memory();
    volume.mount();
    assert!(!volume.has_surviving_memory());
    assert!(volume.polymux(["status", "tested"]).stdout.contains("not flushed yet: lost if the daemon dies ("));
    fs::write(volume.path().join("file"), pattern(1, 300_000)).unwrap();
    die_and_mount(&mut volume);
    let found = fs::read(volume.path().join("file")).unwrap_or_default();
    assert!(found.is_empty() || found == pattern(1, 300_000), "no operation is there in part");
}
