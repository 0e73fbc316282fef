//! The tier of the metadata is filled by another program, at any moment of a load: operations that free space or change bytes in
//! place, syncing and draining go on; everything else fails with ENOSPC, and no accepted data is lost.

mod mounted;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mounted::environment::have_loop_devices;
use mounted::native::text;
use mounted::volume::Ground;
use mounted::{Plan, Random, TestVolume, one_at_a_time, skip};

const LARGE_FILES: u64 = 12;
const LARGE_BYTES: usize = 256 << 10;
/// Held in the metadata store.
const SMALL_BYTES: usize = 3 << 10;
/// More small files than the tier of the metadata has space for.
const SMALL_FILES_MAX: u64 = 200_000;
const DEADLINE: Duration = Duration::from_secs(120);

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

/// Sets its flag when it is dropped, so that nothing waits forever for a thread that ends by the flag.
struct Told<'a>(&'a AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes all free space of a file system, and every second the newly freed space, until `stop` is set.
fn take_all_room(directory: &Path, stop: &AtomicBool) {
    let mut file = File::create(directory.join("somebody elses")).expect("a file can be made before it is full");
    let chunk = vec![0x5a_u8; 1 << 20];
    let mut length = chunk.len();
    while !stop.load(Ordering::Relaxed) {
        match file.write(&chunk[..length]) {
            Ok(_) => length = chunk.len(),
            // The last blocks are taken one by one.
            Err(error) if is_full(&error) && length > 4096 => length = 4096,
            Err(error) if is_full(&error) => std::thread::sleep(Duration::from_secs(1)),
            Err(error) => panic!("the device cannot be filled: {error}"),
        }
    }
}

/// Small files that the volume accepted, with the number that their content is made from.
#[derive(Default)]
struct Accepted {
    files: BTreeMap<String, u64>,
    steps: u64,
}

fn small(number: u64) -> Vec<u8> {
    Random::new(number).bytes(SMALL_BYTES)
}

impl Accepted {
    /// One step of the load: a file is made, sometimes synced, renamed, or an older one removed.
    fn step(&mut self, directory: &Path) -> io::Result<()> {
        let number = self.steps;
        self.steps += 1;
        let name = format!("small {number}");
        let path = directory.join(&name);
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(&small(number))?;
            if number.is_multiple_of(50) { file.sync_all() } else { Ok(()) }
        });
        if let Err(error) = written {
            // Made, and no space for its content: it is removed again, which must be possible.
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(stays) => panic!("{name} cannot be removed: {stays}"),
            }
            return Err(error);
        }
        self.files.insert(name.clone(), number);
        if number.is_multiple_of(3) {
            let renamed = format!("renamed {number}");
            fs::rename(&path, directory.join(&renamed))?;
            self.files.remove(&name);
            self.files.insert(renamed, number);
        }
        if number.is_multiple_of(4)
            && let Some((oldest, _)) = self.files.pop_first()
        {
            fs::remove_file(directory.join(&oldest)).expect("a removal is never refused");
        }
        Ok(())
    }

    /// Goes on until the volume is out of space.
    fn go_on_until_full(&mut self, directory: &Path) {
        let start = Instant::now();
        loop {
            match self.step(directory) {
                Ok(()) => {}
                Err(error) if is_full(&error) => return,
                Err(error) => panic!("after {} steps: {error}", self.steps),
            }
            assert!(self.steps < SMALL_FILES_MAX && start.elapsed() < DEADLINE, "the metadata tier is never full");
        }
    }

    /// Removes nine of ten files: tables have to be written for that, from the reserve of the store.
    fn remove_most(&mut self, directory: &Path) {
        let most = self.files.len() * 9 / 10;
        for _ in 0..most {
            let (name, _) = self.files.pop_first().expect("as many are there");
            fs::remove_file(directory.join(name)).expect("a removal is never refused");
        }
        File::open(directory).unwrap().sync_all().expect("a directory can be synced");
    }

    fn check(&self, directory: &Path) {
        let is_of_the_load = |name: &String| name.starts_with("small") || name.starts_with("renamed");
        let mut found: Vec<String> = fs::read_dir(directory)
            .expect("it can be listed")
            .map(|entry| entry.expect("an entry can be read").file_name().into_string().expect("names are text"))
            .filter(is_of_the_load)
            .collect();
        found.sort();
        assert!(found.iter().eq(self.files.keys()), "the names are those that were accepted");
        for (name, number) in &self.files {
            assert!(fs::read(directory.join(name)).expect("it can be read") == small(*number), "{name}");
        }
    }
}

fn large(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("large {number}"))
}

fn make_large_files(directory: &Path) {
    for number in 0..LARGE_FILES {
        let file = File::create(large(directory, number)).unwrap();
        file.write_all_at(&Random::new(number).bytes(LARGE_BYTES), 0).unwrap();
        file.sync_all().unwrap();
    }
    fs::create_dir(directory.join("aside")).unwrap();
}

/// Operations that must work however full the tier of the metadata is.
fn assert_goes_on(directory: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(large(directory, 0)).expect("a file can be opened");
    file.write_all_at(&[7; 4096], 8192).expect("bytes that have their place can be written over");
    file.sync_all().expect("a file can be synced");
    file.set_len(100_000).expect("a file can be cut");
    file.sync_data().expect("a file that was cut can be synced");
    fs::remove_file(large(directory, 1)).expect("a file can be removed");
    File::open(directory).unwrap().sync_all().expect("a directory can be synced");
    assert!(fs::read(large(directory, 2)).unwrap() == Random::new(2).bytes(LARGE_BYTES), "files can be read");
    OpenOptions::new().write(true).truncate(true).open(large(directory, 3)).expect("a file can be emptied");
    fs::remove_dir(directory.join("aside")).expect("a directory can be removed");
}

/// Asserts that a change fails for lack of space. It may find space freed by a merge of tables a moment ago, until the other
/// program takes that, too.
fn assert_refused(
    what: &str,
    new: &Path,
    change: impl Fn(&Path) -> io::Result<()>,
    remove: fn(&Path) -> io::Result<()>,
) {
    let start = Instant::now();
    loop {
        match change(new) {
            Ok(()) => remove(new).expect("a removal is never refused"),
            Err(error) => return assert!(is_full(&error), "{what}: {error}"),
        }
        assert!(start.elapsed() < DEADLINE, "{what} is not refused");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Operations that need new metadata are refused.
fn assert_growth_is_refused(directory: &Path) {
    let new = &directory.join("new");
    let remove_file: fn(&Path) -> io::Result<()> = |path| fs::remove_file(path);
    assert_refused("mkdir", new, |path| fs::create_dir(path), |path| fs::remove_dir(path));
    assert_refused("create", new, |path| File::create_new(path).map(drop), remove_file);
    assert_refused("symlink", new, |path| std::os::unix::fs::symlink("anywhere", path), remove_file);
    assert_refused("link", new, |path| fs::hard_link(large(directory, 2), path), remove_file);
    assert!(!new.exists());
}

fn drain(volume: &TestVolume) {
    let drained = volume.polymux(["tier", "drain", volume.name.as_str(), "slow", "--wait"]);
    assert!(drained.is_success(), "{}\n{}", drained.text(), volume.log());
    let bytes = volume.bytes_per_tier(&large(volume.path(), 2));
    assert_eq!(bytes.get("slow").copied().unwrap_or(0), 0, "nothing is left on the drained tier: {bytes:?}");
}

fn check_large_files(directory: &Path) {
    let mut first = Random::new(0).bytes(LARGE_BYTES);
    first[8192..12288].fill(7);
    first.truncate(100_000);
    assert!(fs::read(large(directory, 0)).unwrap() == first);
    assert!(!large(directory, 1).exists());
    assert_eq!(fs::read(large(directory, 3)).unwrap(), b"");
    for number in (2..LARGE_FILES).filter(|number| *number != 3) {
        assert!(fs::read(large(directory, number)).unwrap() == Random::new(number).bytes(LARGE_BYTES), "{number}");
    }
}

fn wait_for_room(directory: &Path) {
    let start = Instant::now();
    while let Err(error) = fs::create_dir(directory.join("new")) {
        assert!(is_full(&error) && start.elapsed() < DEADLINE, "room is not found again: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `steps` of the load are done before the tier begins to be filled.
fn fill_at(steps: u64) {
    let plan = Plan { ground: Ground::LoopDevices { fast: 320, slow: 384 }, fast_capacity: Some("1 MiB") };
    // The ballast is that of a device of 2 GiB; on this small one it would be less.
    let options = "metadata_memory = \"32 MiB\"\nmetadata_ballast = \"64 MiB\"";
    let Some(mut volume) = TestVolume::start_with_options(&plan, options) else { return };
    let spare = volume.outside().join("spare");
    fs::create_dir(&spare).unwrap();
    let added = volume.polymux(["tier", "add", volume.name.as_str(), &format!("spare={}", text(&spare))]);
    assert!(added.is_success(), "{}", added.text());
    make_large_files(volume.path());
    assert!(volume.bytes_per_tier(&large(volume.path(), LARGE_FILES - 1))["slow"] > 0);
    let device = volume.tier("fast").parent().expect("the tier is a directory of the device").to_path_buf();
    let mut accepted = Accepted::default();
    for _ in 0..steps {
        accepted.step(volume.path()).expect("there is room");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let told = Told(&stop);
        let filler = scope.spawn(|| take_all_room(&device, &stop));
        accepted.go_on_until_full(volume.path());
        println!("{steps} steps before, {} when it was full", accepted.steps);
        assert_goes_on(volume.path());
        assert_growth_is_refused(volume.path());
        drain(&volume);
        assert_growth_is_refused(volume.path());
        accepted.remove_most(volume.path());
        drop(told);
        filler.join().expect("the device can be filled");
    });
    accepted.check(volume.path());
    check_large_files(volume.path());
    // Full still.
    volume.unmount();
    volume.mount();
    accepted.check(volume.path());
    check_large_files(volume.path());
    fs::remove_file(device.join("somebody elses")).unwrap();
    wait_for_room(volume.path());
    for _ in 0..100 {
        accepted.step(volume.path()).expect("there is room again");
    }
    accepted.check(volume.path());
    volume.unmount();
    let checked = volume.polymux(["fsck", "-n", volume.name.as_str()]);
    assert!(checked.is_success(), "{}", checked.text());
}

#[test]
fn a_metadata_tier_that_others_fill_leaves_removal_truncation_sync_and_drain() {
    let _turn = one_at_a_time();
    if !have_loop_devices() {
        return skip("devices of known size need root and loop devices");
    }
    for steps in [0, 700, 20_000] {
        fill_at(steps);
    }
}
