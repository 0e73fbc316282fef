//! Writes that a kernel collects and sends later (docs/design/0036): none is half lost in silence, and times stay those of the calls.

mod common;

use common::{Volume, create, errno, pattern, read_whole, read_write, write_all};
use polymux_fs::{Caller, OpenOptions, SyncKind, WriteOrigin};
use polymux_types::{Errno, Timestamp};

const KIB: u64 = 1 << 10;

#[test]
fn collected_pages_of_which_a_part_finds_no_room_fail_and_every_description_is_told() {
    let volume = Volume::new(&[64 * KIB, 256 * KIB]);
    let fs = volume.fs();
    fs.set_kernel_collects_writes();
    let root = Caller::root();
    let (ino, handle) = create(fs, "f");
    let other = fs.open(&root, ino, read_write()).expect("opened");
    let mut sent = 0;
    let refused = loop {
        match fs.write(&root, handle, sent, &pattern(1, 40_000), WriteOrigin::WriteBack) {
            Ok(count) => sent += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!((refused.errno(), sent % 40_000), (Errno::ENOSPC, 0), "a part is no success");
    for handle in [handle, other] {
        assert_eq!(errno(fs.flush(&root, handle)), Errno::EIO);
        fs.flush(&root, handle).expect("told once");
    }
}

#[test]
fn collected_pages_are_written_whole_wherever_there_is_room() {
    let volume = Volume::new(&[64 * KIB, 1024 * KIB]);
    let fs = volume.fs();
    fs.set_kernel_collects_writes();
    let (ino, handle) = create(fs, "f");
    let content = pattern(2, 300_000);
    let count = fs.write(&Caller::root(), handle, 0, &content, WriteOrigin::WriteBack).expect("written");
    assert_eq!(count, content.len());
    assert!(read_whole(fs, ino).expect("read") == content);
}

#[test]
fn pages_of_a_mapping_beyond_the_end_are_dropped_and_count_as_written() {
    let volume = Volume::new(&[1024 * KIB]);
    let fs = volume.fs();
    let (ino, handle) = create(fs, "f");
    write_all(fs, handle, 0, &[1; 5000]).expect("written");
    let page = [2; 4096];
    let count = fs.write(&Caller::root(), handle, 4096, &page, WriteOrigin::PageCache).expect("written");
    assert_eq!(count, page.len());
    assert_eq!(read_whole(fs, ino).expect("read")[4096..], [2; 904]);
}

#[test]
fn times_of_collected_writes_are_those_that_the_kernel_says_unless_a_direct_write_was_later() {
    let volume = Volume::new(&[1024 * KIB]);
    let fs = volume.fs();
    fs.set_kernel_collects_writes();
    let root = Caller::root();
    let (ino, handle) = create(fs, "f");
    let before = fs.attributes(&root, ino).expect("known");
    fs.write(&root, handle, 0, &[1; 5000], WriteOrigin::WriteBack).expect("written");
    let after = fs.attributes(&root, ino).expect("known");
    assert_eq!((after.size, after.modified, after.changed), (5000, before.modified, before.changed));
    let (modified, changed) = (Timestamp::new(5, 6), Timestamp::new(7, 8));
    fs.take_over_times(&Caller::root(), ino, modified, changed).expect("taken over");
    let told = fs.attributes(&root, ino).expect("known");
    assert_eq!((told.modified, told.changed), (modified, changed));
    write_all(fs, handle, 0, b"past the page cache").expect("written");
    let direct = fs.attributes(&root, ino).expect("known");
    assert!(direct.modified > modified);
    fs.take_over_times(&Caller::root(), ino, modified, changed).expect("taken over");
    assert_eq!(fs.attributes(&root, ino).expect("known").modified, direct.modified, "what the kernel has is older");
}

#[test]
fn a_kernel_that_collects_writes_reads_through_a_description_that_may_only_write() {
    let volume = Volume::new(&[1024 * KIB]);
    let fs = volume.fs();
    let root = Caller::root();
    let (ino, handle) = create(fs, "f");
    write_all(fs, handle, 0, b"bytes").expect("written");
    fs.sync(&root, handle, SyncKind::All).expect("synced");
    let writer = fs.open(&root, ino, OpenOptions { write: true, ..OpenOptions::default() }).expect("opened");
    let mut buffer = [0; 5];
    assert_eq!(errno(fs.read(&root, writer, 0, &mut buffer)), Errno::EBADF);
    fs.set_kernel_collects_writes();
    assert_eq!(fs.read(&root, writer, 0, &mut buffer).expect("read"), 5);
}
