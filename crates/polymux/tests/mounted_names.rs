//! Names through the mount: directories, links, special files, rename, times, long names, positions in directories.

mod mounted;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use mounted::command::shell;
use mounted::{Plan, TestVolume, is_root, skip};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, makedev, mknodat, utimensat};

#[test]
fn hard_links_are_one_file_and_counted() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let (one, two) = (volume.path().join("one"), volume.path().join("two"));
    fs::write(&one, "text").unwrap();
    fs::hard_link(&one, &two).unwrap();
    assert_eq!((one.metadata().unwrap().nlink(), two.metadata().unwrap().nlink()), (2, 2));
    assert_eq!(one.metadata().unwrap().ino(), two.metadata().unwrap().ino());
    fs::write(&two, "longer text").unwrap();
    assert_eq!(fs::read_to_string(&one).unwrap(), "longer text");
    fs::remove_file(&one).unwrap();
    assert_eq!(two.metadata().unwrap().nlink(), 1);
    let directory = volume.path().join("directory");
    fs::create_dir(&directory).unwrap();
    assert_eq!(fs::hard_link(&directory, volume.path().join("x")).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn link_counts_of_directories_follow_their_subdirectories() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let links = |name: &str| volume.path().join(name).metadata().unwrap().nlink();
    fs::create_dir_all(volume.path().join("a/b")).unwrap();
    fs::create_dir(volume.path().join("a/c")).unwrap();
    fs::create_dir(volume.path().join("d")).unwrap();
    assert_eq!((links("a"), links("a/b"), links("d")), (4, 2, 2));
    fs::rename(volume.path().join("a/b"), volume.path().join("d/b")).unwrap();
    assert_eq!((links("a"), links("d")), (3, 3));
    fs::remove_dir(volume.path().join("d/b")).unwrap();
    assert_eq!(links("d"), 2);
    let inside = fs::rename(volume.path().join("a"), volume.path().join("a/c/a")).unwrap_err();
    assert_eq!(inside.raw_os_error(), Some(libc::EINVAL));
    let full = fs::remove_dir(volume.path().join("a")).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOTEMPTY));
}

#[test]
fn symbolic_links_hold_any_text_and_are_followed() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let target = "x".repeat(4_095);
    symlink(&target, volume.path().join("long")).unwrap();
    assert_eq!(fs::read_link(volume.path().join("long")).unwrap().as_os_str().len(), 4_095);
    assert_eq!(volume.path().join("long").symlink_metadata().unwrap().len(), 4_095);
    fs::create_dir(volume.path().join("directory")).unwrap();
    fs::write(volume.path().join("directory/file"), "found").unwrap();
    symlink("directory", volume.path().join("short")).unwrap();
    assert_eq!(fs::read_to_string(volume.path().join("short/file")).unwrap(), "found");
    symlink("loop", volume.path().join("loop")).unwrap();
    assert_eq!(fs::read(volume.path().join("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn special_files_keep_their_type_and_number() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let root = volume.path().to_path_buf();
    let make = |name: &str, kind, device| mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), device);
    make("fifo", FileType::Fifo, 0).unwrap();
    make("socket", FileType::Socket, 0).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(root.join("listening")).unwrap();
    let devices = [("small", makedev(1, 3)), ("large", makedev(300, 70_000))];
    if is_root() {
        for (name, device) in devices {
            make(name, FileType::CharacterDevice, device).unwrap();
        }
        make("block", FileType::BlockDevice, makedev(259, 1_000)).unwrap();
        assert_eq!(fs::read(root.join("small")).unwrap(), b"", "the null device works through the mount");
    } else {
        skip("device nodes need root");
    }
    shell(&root, "(echo through > fifo) & read line < fifo; wait; test \"$line\" = through");
    drop(listener);
    volume.unmount();
    volume.mount();
    assert!(root.join("fifo").symlink_metadata().unwrap().file_type().is_fifo());
    assert!(root.join("socket").symlink_metadata().unwrap().file_type().is_socket());
    if is_root() {
        for (name, device) in devices {
            let metadata = root.join(name).metadata().unwrap();
            assert!(metadata.file_type().is_char_device());
            assert_eq!(metadata.rdev(), device, "{name}");
        }
        assert!(root.join("block").metadata().unwrap().file_type().is_block_device());
    }
}

#[test]
fn rename_replaces_refuses_or_exchanges_as_asked() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let (one, two) = (volume.path().join("one"), volume.path().join("two"));
    fs::write(&one, "1").unwrap();
    fs::write(&two, "2").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE).unwrap_err(), rustix::io::Errno::EXIST);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read_to_string(&one).unwrap(), fs::read_to_string(&two).unwrap()), ("2".into(), "1".into()));
    assert_eq!(rename(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE).unwrap_err(), rustix::io::Errno::INVAL);
    fs::remove_file(&two).unwrap();
    assert_eq!(rename(RenameFlags::EXCHANGE).unwrap_err(), rustix::io::Errno::NOENT);
    rename(RenameFlags::NOREPLACE).unwrap();
    assert!(!one.exists() && two.exists());
    fs::create_dir(&one).unwrap();
    assert_eq!(rename(RenameFlags::empty()).unwrap_err(), rustix::io::Errno::NOTDIR);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert!(two.is_dir() && one.is_file());
}

#[test]
fn times_keep_their_nanoseconds_also_before_1970() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, "text").unwrap();
    let moments = [(1_234_567_890, 123_456_789), (-1, 999_999_999), (-86_400, 1), (4_102_444_800, 5)];
    for (seconds, nanoseconds) in moments {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        volume.unmount();
        volume.mount();
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, nanoseconds));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (seconds, nanoseconds));
    }
}

#[test]
fn modification_times_follow_writes_and_changes_of_names() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let file = volume.path().join("file");
    let modified = |path: &std::path::Path| {
        let metadata = path.metadata().unwrap();
        (metadata.mtime(), metadata.mtime_nsec())
    };
    let pause = || std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&file, "1").unwrap();
    let (file_before, directory_before) = (modified(&file), modified(volume.path()));
    pause();
    fs::write(&file, "2").unwrap();
    assert!(modified(&file) > file_before, "a write changes the modification time");
    pause();
    fs::hard_link(&file, volume.path().join("link")).unwrap();
    assert!(modified(volume.path()) > directory_before, "a new name changes its directory");
    let changed = |path: &std::path::Path| {
        let metadata = path.metadata().unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let changed_before = changed(&file);
    pause();
    fs::remove_file(volume.path().join("link")).unwrap();
    assert!(changed(&file) > changed_before, "losing a name changes the attributes of the file");
}

#[test]
fn names_of_255_bytes_work_and_longer_ones_do_not() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let longest = volume.path().join("n".repeat(255));
    fs::write(&longest, "text").unwrap();
    assert_eq!(fs::read_to_string(&longest).unwrap(), "text");
    let umlauts = volume.path().join("ä".repeat(127));
    fs::create_dir(&umlauts).unwrap();
    fs::rename(&longest, umlauts.join("m".repeat(255))).unwrap();
    assert_eq!(fs::read_dir(&umlauts).unwrap().count(), 1);
    let too_long = volume.path().join("n".repeat(256));
    for error in [File::create(&too_long).map(drop), fs::create_dir(&too_long), fs::metadata(&too_long).map(drop)] {
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    }
}

#[test]
fn trees_may_be_deep() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    shell(
        volume.path(),
        "i=0; while [ $i -lt 1000 ]; do mkdir d; cd d; i=$((i + 1)); done; echo deep > file; cat file",
    );
    shell(volume.path(), "test $(find . -type d | wc -l) = 1001; rm -r d");
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 0);
}

#[test]
fn a_listing_in_progress_misses_and_repeats_nothing_that_stays() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = volume.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..3_000 {
        File::create(directory.join(format!("stays {number}"))).unwrap();
        File::create(directory.join(format!("goes {number}"))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for (count, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if count < 3_000 {
            fs::remove_file(directory.join(format!("goes {count}"))).unwrap();
            File::create(directory.join(format!("comes {count}"))).unwrap();
        }
        assert!(seen.insert(name.clone()), "{name} is listed twice");
    }
    for number in 0..3_000 {
        assert!(seen.contains(&format!("stays {number}")), "stays {number} is missed");
    }
}

#[test]
fn a_position_in_a_directory_stays_valid_while_names_come_and_go() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    if !mounted::have_program("python3") {
        return skip("python3 is not installed");
    }
    let script = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.readdir64.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
for f in (libc.readdir64, libc.telldir): f.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
def name(entry): return ctypes.string_at(entry + 19)
os.mkdir("positions")
for i in range(1000): open(f"positions/{i:04}", "w").close()
d = libc.opendir(b"positions")
order, where = [], []
while True:
    where.append(libc.telldir(d))
    e = libc.readdir64(d)
    if not e: break
    order.append(name(e))
assert len(order) == 1002, len(order)
assert len(set(where)) == len(where), "positions repeat"
for i in range(0, 1000, 7): os.unlink(f"positions/{i:04}")
for i in range(500): open(f"positions/new {i}", "w").close()
gone = {f"{i:04}".encode() for i in range(0, 1000, 7)}
for k in range(0, 1002, 13):
    libc.seekdir(d, where[k])
    expected = next((n for n in order[k:] if n not in gone), None)
    e = libc.readdir64(d)
    assert expected is None or (e and name(e) == expected), (k, expected, e and name(e))
"#;
    fs::write(volume.outside().join("script.py"), script).unwrap();
    shell(volume.path(), &format!("python3 {}", volume.outside().join("script.py").display()));
}

#[test]
fn statfs_tells_room_names_and_files() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let space = rustix::fs::statvfs(volume.path()).unwrap();
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_bavail <= space.f_bfree && space.f_bfree <= space.f_blocks && space.f_bavail > 0);
    assert!(space.f_ffree > 1_000 && space.f_files >= space.f_ffree);
}

#[test]
fn commands_print_names_without_anything_that_a_terminal_acts_on() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("a\u{1b}]0;title\u{7}\nsecond \u{202e}line");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let (path, directory) = (path.to_str().unwrap(), volume.path().to_str().unwrap());
    for arguments in [
        &["where", path][..],
        &["where", "--map", path],
        &["where", "tested", "--tier", "fast"],
        &["explain", path],
        &["pin", path, "--tier", "fast"],
        &["pin", "--list", "tested"],
        &["plan", "tested"],
        &["migrate", path, "--to", "slow"],
        &["unpin", path],
        &["top", "tested", "--once"],
        &["where", &format!("{directory}/missing\u{1b}[2J")],
    ] {
        let said = volume.polymux(arguments.iter().copied()).text();
        let acted_on = ["\u{1b}]", "\u{1b}[2J", "\u{7}", "\u{202e}", "title\nsecond", "\nsecond"];
        for deceit in acted_on {
            assert!(!said.contains(deceit), "{arguments:?} prints {deceit:?}: {said:?}");
        }
    }
}
