//! Rules that programs know from ext4 and that no single request of the kernel states: each is tried on the mount and, where
//! its outcome is not obvious, on ext4 beside it.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use mounted::{
    FileSystemKind, NativeMount, Plan, Random, TestVolume, have_program, is_root, skip, skip_where_io_is_named,
};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

const MIB: usize = 1 << 20;
/// `RWF_NOAPPEND`, Linux 6.9.
const NO_APPEND: u32 = 0x20;

/// A closed file of that content, synced, so that it has an object of its own.
fn closed_file(directory: &Path, name: &str, content: &[u8]) -> std::path::PathBuf {
    let path = directory.join(name);
    fs::write(&path, content).expect("written");
    File::open(&path).and_then(|file| file.sync_all()).expect("synced");
    path
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

/// Flushes that the devices of both tiers have carried out.
fn flushes(volume: &TestVolume) -> u64 {
    let of_tier = |name: &str| -> u64 {
        let device = fs::metadata(volume.tier(name)).expect("there").dev();
        let path = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
        let stat = fs::read_to_string(path).expect("the tier lies on a block device");
        stat.split_whitespace().nth(15).expect("flushes are the sixteenth number").parse().expect("a number")
    };
    of_tier("fast") + of_tier("slow")
}

/// Asserts that each of some single writes with `RWF_DSYNC` or `RWF_SYNC` makes a device flush before it returns.
fn assert_single_writes_are_synced(volume: &TestVolume, writer: &File, how: &str) {
    for flags in [ReadWriteFlags::DSYNC, ReadWriteFlags::SYNC] {
        let before = flushes(volume);
        for index in 0..20_u64 {
            let bytes = Random::new(index).bytes(4096);
            let written = rustix::io::pwritev2(writer, &[IoSlice::new(&bytes)], index * 8192, flags);
            assert_eq!(written.expect("written"), 4096);
        }
        let done = flushes(volume) - before;
        assert!(done >= 20, "{how}, {flags:?}: 20 writes that are to be durable made {done} flushes");
    }
}

#[test]
fn a_single_write_that_asks_to_be_durable_is_synced_before_it_returns() {
    if skip_where_io_is_named() || !is_root() || !have_program("mkfs.xfs") {
        return skip("flushes are counted on loop devices, with every mode of open files");
    }
    for (options, how) in [
        ("passthrough = \"read\"", "beside a reader who is passed through"),
        ("passthrough = \"off\"\npage_cache = \"off\"", "without pages in the kernel"),
        ("passthrough = \"off\"", "with pages in the kernel"),
        ("", "passed through"),
    ] {
        let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), options) else { return };
        let path = closed_file(volume.path(), "file", &Random::new(3).bytes(MIB));
        let _reader = File::open(&path).expect("opened");
        assert_single_writes_are_synced(&volume, &read_write(&path), how);
    }
}

/// What a file holds after appends, positioned writes, and both with `O_APPEND` set and cleared meanwhile.
fn append_and_write(path: &Path, opened: OFlags) -> Vec<u8> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(opened.bits().cast_signed()).open(path);
    let file = file.expect("opened");
    let set = |flags| rustix::fs::fcntl_setfl(&file, flags).expect("the flags of a description can be changed");
    let write = |bytes: &[u8], offset, flags| {
        let written = rustix::io::pwritev2(&file, &[IoSlice::new(bytes)], offset, flags);
        assert_eq!(written.expect("written"), bytes.len());
    };
    set(OFlags::APPEND);
    write(b"appended", 0, ReadWriteFlags::empty());
    set(OFlags::empty());
    write(b"at the beginning", 0, ReadWriteFlags::empty());
    set(OFlags::APPEND);
    write(b"appended again", 5, ReadWriteFlags::empty());
    write(b"in the middle", 100, ReadWriteFlags::from_bits_retain(NO_APPEND));
    set(OFlags::empty());
    write(b"once more", 7, ReadWriteFlags::APPEND);
    fs::read(path).expect("read")
}

#[test]
fn each_write_appends_or_not_as_the_flags_of_that_moment_say() {
    if !is_root() || !have_program("mkfs.ext4") {
        return skip("the outcome is compared with ext4 on a loop device");
    }
    let base = tempfile::tempdir().expect("a directory can be made");
    let native = NativeMount::new(base.path(), "native", FileSystemKind::Ext4, 64);
    let content = Random::new(4).bytes(MIB);
    for options in
        ["", "passthrough = \"read\"", "passthrough = \"off\"", "passthrough = \"off\"\npage_cache = \"off\""]
    {
        let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), options) else { return };
        for (opened, name) in [(OFlags::APPEND, "appending"), (OFlags::empty(), "plain")] {
            for reader in ["with a reader", "alone"] {
                let expected = append_and_write(&closed_file(native.path(), "file", &content), opened);
                let path = closed_file(volume.path(), name, &content);
                let _reader = (reader != "alone").then(|| File::open(&path).expect("opened"));
                let found = append_and_write(&path, opened);
                assert_eq!(found.len(), expected.len(), "{options:?}, opened {name}, {reader}: another size");
                assert!(found == expected, "{options:?}, opened {name}, {reader}: other bytes");
            }
        }
    }
}
