//! The tier of the metadata runs out of inodes, or turns read-only, while the volume is in use.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mounted::environment::{have_loop_devices, have_program};
use mounted::native::{FileSystemKind, NativeMount, text};
use mounted::{Random, TestVolume, one_at_a_time, skip};

const LARGE_BYTES: usize = 300 << 10;
const FILES: u64 = 100;
const DEADLINE: Duration = Duration::from_secs(120);

/// A volume whose fast tier, which holds the metadata, is on a file system of this kind. It goes before its file systems.
struct Stand {
    volume: TestVolume,
    fast: NativeMount,
    _slow: NativeMount,
    _directory: tempfile::TempDir,
}

impl Stand {
    fn mount(kind: FileSystemKind) -> Option<Self> {
        if !have_loop_devices() || !have_program("mkfs.ext4") {
            skip("file systems of a known size need root, loop devices and mkfs.ext4");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory can be made");
        let fast = NativeMount::new(directory.path(), "fast-device", kind, 256);
        let slow = NativeMount::new(directory.path(), "slow-device", FileSystemKind::Ext4, 256);
        let tiers = [("fast", &fast), ("slow", &slow)].map(|(name, device)| {
            let path = device.path().join(name);
            fs::create_dir(&path).expect("a directory can be made");
            (name.to_owned(), path)
        });
        let mut volume = TestVolume::on_tiers(tiers.to_vec());
        volume.format(None);
        // A move may be the first to find space.
        let config = fs::read_to_string(volume.config_path()).expect("the configuration can be read");
        fs::write(volume.config_path(), format!("{config}\n[options]\nmovers = 0\n")).expect("it can be written");
        volume.mount();
        Some(Self { volume, fast, _slow: slow, _directory: directory })
    }

    fn status(&self) -> String {
        let told = self.volume.polymux(["status", &self.volume.name]);
        assert!(told.is_success(), "{}", told.text());
        told.stdout
    }

    fn explain(&self, file: &Path) -> String {
        let told = self.volume.polymux(["explain", text(file)]);
        assert!(told.is_success(), "{}", told.text());
        told.stdout
    }
}

fn take_all_inodes(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut taken = Vec::new();
    loop {
        let path = directory.join(format!("{name} {}", taken.len()));
        match File::create_new(&path) {
            Ok(_) => taken.push(path),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return taken,
            Err(error) => panic!("no inode can be taken: {error}"),
        }
    }
}

fn bytes_of(number: u64) -> Vec<u8> {
    // Every second one is small enough for the metadata store.
    Random::new(number).bytes(if number.is_multiple_of(2) { 500 } else { LARGE_BYTES })
}

fn make_files(directory: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let made = File::create(directory.join(number.to_string())).and_then(|mut file| {
            file.write_all(&bytes_of(number))?;
            file.sync_all()
        });
        made.unwrap_or_else(|error| panic!("file {number} is refused: {error}"));
    }
    File::open(directory).expect("it can be opened").sync_all().expect("it can be synced");
}

fn check_files(directory: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = fs::read(directory.join(number.to_string()));
        assert!(found.expect("it can be read") == bytes_of(number), "file {number}");
    }
}

#[test]
fn files_go_to_other_tiers_and_the_volume_mounts_while_the_metadata_tier_has_no_inodes() {
    let _turn = one_at_a_time();
    let Some(mut stand) = Stand::mount(FileSystemKind::Ext4FewInodes) else { return };
    let path = stand.volume.path().to_path_buf();
    make_files(&path, 0..FILES);
    assert!(stand.volume.bytes_per_tier(&path.join("1"))["fast"] > 0);
    let taken = take_all_inodes(stand.fast.path(), "somebody else's");
    make_files(&path, FILES..2 * FILES);
    assert!(stand.volume.bytes_per_tier(&path.join("101"))["slow"] > 0);
    assert!(stand.status().contains("tier fast: its file system has no free inodes"), "{}", stand.status());
    assert!(stand.explain(&path.join("101")).contains("no free inodes"), "{}", stand.explain(&path.join("101")));

    stand.volume.unmount();
    let _more = take_all_inodes(stand.fast.path(), "more");
    stand.volume.mount();
    check_files(&path, 0..2 * FILES);
    make_files(&path, 2 * FILES..3 * FILES);
    fs::rename(path.join("200"), path.join("renamed")).expect("a file can be renamed");
    fs::remove_file(path.join("renamed")).expect("a file can be removed");
    assert!(stand.status().contains("tier fast: its file system has no free inodes"), "{}", stand.status());
    stand.volume.unmount();
    let _most = take_all_inodes(stand.fast.path(), "most");
    stand.volume.mount();
    check_files(&path, 201..3 * FILES);

    taken.iter().for_each(|file| fs::remove_file(file).expect("a file is removed"));
    // The inodes were taken three times, and the store has too few left to grow with: it takes them back when it looks.
    let start = Instant::now();
    while let Err(error) = fs::create_dir(path.join("directory")) {
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        assert!(is_full && start.elapsed() < DEADLINE, "room is not found again: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(stand.status().contains("was too full to be tried out"), "{}", stand.status());
    make_files(&path, 3 * FILES..4 * FILES);
    assert!(stand.volume.bytes_per_tier(&path.join("301"))["fast"] > 0, "{}", stand.status());
    assert!(!stand.status().contains("tier fast:"), "{}", stand.status());
    check_files(&path, 201..4 * FILES);
    stand.volume.unmount();
    let checked = stand.volume.polymux(["fsck", "-n", &stand.volume.name]);
    assert!(checked.is_success(), "{}", checked.text());
}

fn errno_of<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_metadata_tier_that_turns_read_only_is_read_and_says_so_until_the_volume_is_mounted_again() {
    let _turn = one_at_a_time();
    let Some(mut stand) = Stand::mount(FileSystemKind::Ext4) else { return };
    let path = stand.volume.path().to_path_buf();
    make_files(&path, 0..FILES);
    let open = OpenOptions::new().read(true).write(true).open(path.join("1")).expect("it can be opened");
    open.write_all_at(&bytes_of(1)[..4096], 0).expect("it can be written");
    open.sync_all().expect("it can be synced");
    stand.fast.turn_read_only();
    // Whatever notices first: nothing is promised before it is durable.
    let refused = fs::write(path.join("new"), b"bytes").and_then(|()| File::open(&path)?.sync_all());
    assert!(refused.is_err(), "a change of names is durable on a read-only file system");

    check_files(&path, 0..FILES);
    assert_eq!(errno_of(fs::create_dir(path.join("directory"))), Some(libc::EROFS));
    assert_eq!(errno_of(fs::remove_file(path.join("2"))), Some(libc::EROFS));
    assert_eq!(errno_of(fs::rename(path.join("2"), path.join("renamed"))), Some(libc::EROFS));
    assert_eq!(errno_of(OpenOptions::new().write(true).open(path.join("2"))), Some(libc::EROFS));
    let mut names = fs::read_dir(&path).expect("it can be listed");
    assert!(names.by_ref().filter(Result::is_ok).count() as u64 >= FILES);
    drop(names);
    let told = stand.status();
    assert!(told.contains("read-only") && told.contains("until the volume is mounted again"), "{told}");
    let told = stand.explain(&path.join("1"));
    assert!(told.contains("read-only"), "{told}");

    drop(open);
    let told = stand.volume.unmount_uncleanly();
    assert!(!told.text().contains("busy"), "{}", told.text());
    stand.volume.wait_for_unclean_end();
    stand.fast.unmount();
    stand.fast.mount();
    stand.volume.mount();
    check_files(&path, 0..FILES);
    make_files(&path, FILES..2 * FILES);
    assert!(!stand.status().contains("read-only"), "{}", stand.status());
    stand.volume.unmount();
}
