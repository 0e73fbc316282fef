//! Rules that programs know from ext4 and that no single request of the kernel states: each is tried on the mount and, where
//! its outcome is not obvious, on ext4 beside it.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use mounted::native::flushes_of;
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
    flushes_of(volume.tier("fast")) + flushes_of(volume.tier("slow"))
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
        let plan = Plan::anywhere().with_reserve();
        let Some(volume) = TestVolume::start_with_options(&plan, options) else { return };
        let path = closed_file(volume.path(), "file", &Random::new(3).bytes(MIB));
        let open = || (File::open(&path).expect("opened"), read_write(&path));
        let (_reader, writer) = match options {
            "" => volume.opened_for_direct_changes(&path, open),
            _ => open(),
        };
        assert_single_writes_are_synced(&volume, &writer, how);
    }
}

fn opened_with(path: &Path, flags: OFlags) -> File {
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path);
    file.expect("opened")
}

/// The content of a file after appends, positioned writes, and both with `O_APPEND` set and cleared meanwhile.
fn append_and_write(path: &Path, file: &File) -> Vec<u8> {
    let set = |flags| rustix::fs::fcntl_setfl(file, flags).expect("the flags of a description can be changed");
    let write = |bytes: &[u8], offset, flags| {
        let written = rustix::io::pwritev2(file, &[IoSlice::new(bytes)], offset, flags);
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
        let plan = Plan::anywhere().with_reserve();
        let Some(volume) = TestVolume::start_with_options(&plan, options) else { return };
        for (opened, name) in [(OFlags::APPEND, "appending"), (OFlags::empty(), "plain")] {
            for reader in ["with a reader", "alone"] {
                let natively = closed_file(native.path(), "file", &content);
                let expected = append_and_write(&natively, &opened_with(&natively, opened));
                let path = closed_file(volume.path(), name, &content);
                let open = || {
                    let reader = (reader != "alone").then(|| File::open(&path).expect("opened"));
                    (reader, opened_with(&path, opened))
                };
                let (_reader, writer) = match options {
                    // The kernel changes the object itself when the description gains `O_APPEND`.
                    "" if opened.is_empty() => volume.opened_for_direct_changes(&path, open),
                    _ => open(),
                };
                let found = append_and_write(&path, &writer);
                assert_eq!(found.len(), expected.len(), "{options:?}, opened {name}, {reader}: another size");
                assert!(found == expected, "{options:?}, opened {name}, {reader}: other bytes");
            }
        }
    }
}

/// Makes that many empty files in a new directory.
fn filled(volume: &TestVolume, name: &str, count: usize) -> std::path::PathBuf {
    let path = volume.path().join(name);
    fs::create_dir(&path).expect("made");
    (0..count).for_each(|index| drop(File::create(path.join(format!("entry {index:05}"))).expect("made")));
    path
}

/// Lists a directory, does something with each name, and gives up after three times as many as there were.
fn names_seen(directory: &Path, count: usize, mut with: impl FnMut(usize, &Path)) -> Vec<String> {
    let listed = fs::read_dir(directory).expect("listed").take(3 * count).enumerate();
    let seen = listed.map(|(index, entry)| {
        let entry = entry.expect("listed");
        with(index, &entry.path());
        entry.file_name().into_string().expect("plain")
    });
    seen.collect()
}

#[test]
fn a_listing_ends_although_every_name_that_it_shows_is_renamed_or_makes_another() {
    // More than one answer of the kernel holds.
    const COUNT: usize = 3000;
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = filled(&volume, "renamed", COUNT);
    let seen = names_seen(&directory, COUNT, |index, path| {
        fs::rename(path, directory.join(format!("again {index}"))).expect("renamed");
    });
    assert_eq!(seen.len(), COUNT, "each file is shown once");
    assert!(seen.iter().all(|name| name.starts_with("entry")));
    assert_eq!(names_seen(&directory, COUNT, |_, _| ()).len(), COUNT);

    let directory = filled(&volume, "multiplied", COUNT);
    let seen = names_seen(&directory, COUNT, |index, _| {
        drop(File::create(directory.join(format!("more {index}"))).expect("made"));
    });
    assert_eq!(seen.len(), COUNT, "what is made meanwhile waits for the next listing");
    assert_eq!(names_seen(&directory, 2 * COUNT, |_, _| ()).len(), 2 * COUNT);
}

#[test]
fn a_listing_shows_every_name_whose_file_is_replaced_meanwhile() {
    const COUNT: usize = 3000;
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = filled(&volume, "replaced", COUNT);
    let others = filled(&volume, "others", COUNT);
    let mut seen = names_seen(&directory, COUNT, |index, _| {
        let range = if index == 0 { 0..COUNT } else { 0..0 };
        for name in range.map(|index| format!("entry {index:05}")) {
            fs::rename(others.join(&name), directory.join(&name)).expect("replaced");
        }
    });
    seen.sort();
    assert_eq!(seen.len(), COUNT, "each name is shown once");
    assert!(seen.iter().enumerate().all(|(index, name)| *name == format!("entry {index:05}")));
}

#[test]
fn a_change_of_owner_that_names_nobody_moves_the_change_time_and_takes_set_id_bits_away() {
    if !is_root() || !have_program("mkfs.ext4") {
        return skip("the outcome is compared with ext4 on a loop device");
    }
    let base = tempfile::tempdir().expect("a directory can be made");
    let native = NativeMount::new(base.path(), "native", FileSystemKind::Ext4, 64);
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    for mode in [0o644, 0o4755, 0o6755, 0o2755, 0o1777] {
        let [expected, found] = [native.path(), volume.path()].map(|root| {
            let path = closed_file(root, "file", b"small");
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its mode can be set");
            let change_time = || fs::metadata(&path).map(|of| (of.ctime(), of.ctime_nsec())).expect("there");
            let before = change_time();
            // The clock of a file system may tick every ten milliseconds only.
            std::thread::sleep(std::time::Duration::from_millis(30));
            std::os::unix::fs::chown(&path, None, None).expect("nothing is asked for");
            (change_time() > before, fs::metadata(&path).expect("there").mode())
        });
        assert_eq!(found, expected, "mode {mode:o}: whether the change time moved, and the mode");
    }
}
