//! Single wrong bits in everything that a volume keeps about its files, of volumes that a crash left and of those that were
//! unmounted in order.
//!
//! What is true here:
//! * The volume has the real store with a second copy and two directories as tiers. Everything in it was synced, and the copy
//!   has it. For each flip one bit is turned in an image of its own.
//! * Then one of these holds, or the flip is a violation: every file is there and right, and the copy comes to be whole; or
//!   opening, mounting, reading or a check of the store reports the damage, the copy is as it was, and the volume that
//!   starts from it has every file.
//!
//! `POLYMUX_BIT_FLIPS=N` (by `make test-bit-flips`) tries N flips.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polymux_fs::{
    Caller, FileSystem, MountOptions, NewVolume, OpenOptions, Parts, SyncKind, TierMember, TierPresence, WriteOrigin,
};
use polymux_meta::{
    CopyOptions, CopySync, LogPlacement, LogStore, LogStoreOptions, MetadataStore, OpenMode, StepProgress, StoreView,
    Workers, restore_from_copy, verify_copy,
};
use polymux_tier::{PosixTier, PosixTierOptions};
use polymux_types::{Ino, SystemClock, VolumeId};

/// Flips of the short form.
const FLIPS: u64 = 60;

const TIERS: [&str; 2] = ["fast", "slow"];

/// How the volume stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Crash,
    Unmount,
}

/// What became of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Unharmed,
    Reported,
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let limit = u64::try_from(limit).expect("a length");
        usize::try_from((self.0 >> 33) % limit).expect("below the limit")
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory is made")
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory is made");
    for entry in fs::read_dir(from).expect("a directory is read") {
        let source = entry.expect("a directory is read").path();
        let target = to.join(source.file_name().expect("an entry has a name"));
        if source.is_dir() {
            copy_tree(&source, &target);
        } else {
            fs::copy(&source, &target).expect("a file is copied");
        }
    }
}

fn options(mode: OpenMode, image: &Path) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 1 << 20,
        log_bytes: 1 << 20,
        window_bytes: 64 << 10,
        ballast_bytes: 0,
        boundaries: polymux_fs::store_boundaries(),
        seeds: [3, 0x5eed],
        workers: Workers::Manual,
        copy: Some(CopyOptions::new(image.join("copy"))),
        ..LogStoreOptions::new(mode)
    }
}

fn open_store(image: &Path, mode: OpenMode) -> Result<Arc<LogStore>, String> {
    let store = LogStore::open(&image.join("store"), &options(mode, image));
    store.map(Arc::new).map_err(|error| format!("the store: {error}"))
}

fn parts(image: &Path, store: &Arc<LogStore>, mode: OpenMode) -> Parts {
    let member = |name: &str| {
        let path = image.join(name);
        let options = PosixTierOptions::new(name);
        let tier = match mode {
            OpenMode::CreateNew => PosixTier::prepare(&path, options),
            OpenMode::Existing => PosixTier::open(&path, options),
        };
        let presence = match tier {
            Ok(tier) => TierPresence::Present(Arc::new(tier)),
            Err(error) => TierPresence::Missing(error.to_string()),
        };
        TierMember::new(name, presence)
    };
    Parts {
        name: "test".to_owned(),
        tiers: TIERS.iter().map(|name| member(name)).collect(),
        store: Arc::clone(store) as _,
        metadata_tier: None,
        clock: Arc::new(SystemClock::new()),
        seed: 7,
    }
}

fn content(number: usize) -> Vec<u8> {
    let length = if number.is_multiple_of(7) { 9000 } else { 40 + number * 13 };
    (0..length).map(|at| u8::try_from((at / 5 + number * 3) % 251).expect("below 251")).collect()
}

fn name(number: usize) -> String {
    format!("file-{number:03}")
}

fn write_synced(fs: &FileSystem, number: usize) {
    let root = Caller::root();
    let open = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (_, handle) = fs.create(&root, Ino::ROOT, name(number).as_bytes(), 0o644, open).expect("a file is made");
    let data = content(number);
    let mut done = 0;
    while done < data.len() {
        done += fs.write(&root, handle, done as u64, &data[done..], WriteOrigin::Call).expect("it is written");
    }
    fs.sync(&root, handle, SyncKind::All).expect("it is synced");
    fs.flush(&root, handle).expect("it is closed");
    fs.release(handle).expect("it is closed");
}

fn ship(store: &LogStore) -> Result<(), String> {
    while store.step().map_err(|error| error.to_string())? == StepProgress::Worked {}
    match store.sync_copy(store.durable()) {
        Ok(CopySync::Safe) => Ok(()),
        other => Err(format!("the copy does not come along: {other:?}")),
    }
}

/// A volume with this many files, all synced and in the copy.
fn volume(stop: Stop, files: usize) -> tempfile::TempDir {
    let directory = place();
    for tier in TIERS {
        fs::create_dir(directory.path().join(tier)).expect("a directory is made");
    }
    let store = open_store(directory.path(), OpenMode::CreateNew).expect("a store is made");
    let volume = NewVolume { id: VolumeId::from_random([9; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
    FileSystem::format(&parts(directory.path(), &store, OpenMode::CreateNew), &volume).expect("a volume is made");
    let mounted = FileSystem::mount(parts(directory.path(), &store, OpenMode::Existing), MountOptions::default());
    let mounted = mounted.expect("the volume mounts");
    for number in 0..files {
        write_synced(&mounted, number);
        if number == files / 2 {
            store.checkpoint().expect("tables are written");
            ship(&store).expect("they are shipped");
        }
    }
    if stop == Stop::Unmount {
        mounted.unmount().expect("the volume unmounts");
        store.checkpoint().expect("tables are written");
        ship(&store).expect("everything is shipped");
        store.finish_copy();
        drop((mounted, store));
        return directory;
    }
    ship(&store).expect("everything is shipped");
    let image = place();
    copy_tree(directory.path(), image.path());
    image
}

/// Files whose bits are turned: everything of the store and of its copy, and the labels.
fn targets(image: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![image.join("store"), image.join("copy")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory is read") {
            let path = entry.expect("a directory is read").path();
            if path.is_dir() {
                directories.push(path);
            } else if fs::metadata(&path).expect("a file is there").len() > 0 {
                found.push(path);
            }
        }
    }
    for tier in TIERS {
        found.extend(["label", "label.copy"].map(|label| image.join(tier).join(".polymux").join(label)));
    }
    found.retain(|path| path.is_file());
    found.sort();
    found.into_iter().map(|path| path.strip_prefix(image).expect("below the image").to_owned()).collect()
}

/// Turns one bit of a byte that is not zero. Returns where.
fn flip(path: &Path, random: &mut Random) -> (usize, u32) {
    let mut bytes = fs::read(path).expect("a file is read");
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let at = if used.is_empty() { random.below(bytes.len()) } else { used[random.below(used.len())] };
    let bit = u32::try_from(random.below(8)).expect("a bit of a byte");
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).expect("a file is written");
    (at, bit)
}

fn read(fs: &FileSystem, number: usize) -> Result<Vec<u8>, String> {
    let root = Caller::root();
    let read = || -> polymux_fs::Result<Vec<u8>> {
        let found = fs.lookup(&root, Ino::ROOT, name(number).as_bytes())?;
        let handle = fs.open(&root, found.ino, OpenOptions { read: true, ..OpenOptions::default() })?;
        let mut bytes = vec![0; 20_000];
        let count = fs.read(&root, handle, 0, &mut bytes);
        fs.release(handle)?;
        bytes.truncate(count?);
        Ok(bytes)
    };
    read().map_err(|error| format!("{}: {error}", name(number)))
}

/// A volume that opened.
enum Found {
    Whole,
    /// What reported the damage.
    Reported(String),
    /// What is lost without a word.
    Silent(String),
}

/// Mounts an image and reads all of it.
fn look(image: &Path, files: usize) -> Found {
    let store = match open_store(image, OpenMode::Existing) {
        Ok(store) => store,
        Err(error) => return Found::Reported(error),
    };
    let mounted = match FileSystem::mount(parts(image, &store, OpenMode::Existing), MountOptions::default()) {
        Ok(mounted) => mounted,
        Err(error) => return Found::Reported(format!("the mount: {error}")),
    };
    for number in 0..files {
        match read(&mounted, number) {
            Ok(bytes) if bytes == content(number) => {}
            Ok(bytes) => return Found::Silent(format!("{} has other {} bytes", name(number), bytes.len())),
            Err(error) if error.contains("ENOENT") || error.contains("No such file") => return Found::Silent(error),
            Err(error) => return Found::Reported(error),
        }
    }
    let shipped = ship(&store);
    drop((mounted, store));
    match shipped {
        Ok(()) => Found::Whole,
        Err(error) => Found::Reported(error),
    }
}

/// Judges an image with one bit turned in `target`.
fn judge(image: &Path, target: &Path, files: usize) -> Result<Outcome, String> {
    let checked = StoreView::open(&image.join("store"), &LogPlacement::Block, &polymux_fs::store_boundaries())
        .and_then(|view| view.verify())
        .map_err(|error| error.to_string());
    let reported = match look(image, files) {
        Found::Whole => None,
        Found::Reported(what) => Some(what),
        Found::Silent(what) => return Err(format!("lost without a word: {what}; the check of the store: {checked:?}")),
    };
    let boundaries = polymux_fs::store_boundaries();
    let Some(reported) = reported else {
        if target.starts_with("store") {
            // What nothing has read is found by a check, and the copy has what was written.
            return Ok(if checked.is_err() { Outcome::Reported } else { Outcome::Unharmed });
        }
        return Ok(Outcome::Unharmed);
    };
    if target.starts_with("copy") {
        return Err(format!("a damaged copy stops a healthy store: {reported}"));
    }
    verify_copy(&image.join("copy"), &boundaries).map_err(|error| format!("{reported}; the good copy: {error}"))?;
    fs::rename(image.join("store"), image.join("aside")).map_err(|error| error.to_string())?;
    restore_from_copy(&image.join("copy"), &image.join("store"), &options(OpenMode::Existing, image))
        .map_err(|error| format!("{reported}; from the copy: {error}"))?;
    match look(image, files) {
        Found::Whole => Ok(Outcome::Reported),
        Found::Reported(what) | Found::Silent(what) => Err(format!("{reported}; after starting from the copy: {what}")),
    }
}

fn flips() -> u64 {
    let wanted = std::env::var("POLYMUX_BIT_FLIPS").ok();
    wanted.map_or(FLIPS, |wanted| wanted.parse().expect("POLYMUX_BIT_FLIPS is a number"))
}

fn campaign(stop: Stop, seed: u64) {
    let files = 24;
    let original = volume(stop, files);
    let targets = targets(original.path());
    let mut random = Random(seed);
    let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
    let mut violations = Vec::new();
    for number in 0..flips() / 2 {
        // Each kind of file as often, however many tables there are; the log of the store most often.
        let wanted = ["store/log", "store/part", "copy/", "fast/", "store/log", "slow/", "store/part"];
        let kind = wanted[usize::try_from(number).expect("a count") % wanted.len()];
        let of_kind: Vec<&PathBuf> =
            targets.iter().filter(|path| path.to_str().is_some_and(|path| path.starts_with(kind))).collect();
        let target = of_kind[random.below(of_kind.len())];
        let image = place();
        copy_tree(original.path(), image.path());
        let (at, bit) = flip(&image.path().join(target), &mut random);
        match judge(image.path(), target, files) {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(violation) => violations.push(format!("{} byte {at} bit {bit}: {violation}", target.display())),
        }
    }
    println!("{stop:?}: {outcomes:?} of {} files", targets.len());
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

#[test]
fn a_wrong_bit_of_a_volume_that_a_crash_left_loses_nothing_without_a_word() {
    campaign(Stop::Crash, 1);
}

#[test]
fn a_wrong_bit_of_a_volume_that_was_unmounted_loses_nothing_without_a_word() {
    campaign(Stop::Unmount, 2);
}

#[test]
fn the_campaign_notices_a_loss_without_a_word() {
    let files = 24;
    let image = volume(Stop::Crash, files);
    // As a log that takes damage for its end, and a copy that is made anew from what is left, would have it.
    fs::remove_dir_all(image.path().join("copy")).expect("the copy goes");
    let path = image.path().join("store/log");
    let mut log = fs::read(&path).expect("the log is read");
    let used = log.iter().rposition(|byte| *byte != 0).expect("the log holds something");
    log[used.saturating_sub(3000).next_multiple_of(64)..].fill(0);
    fs::write(&path, log).expect("the log is written");
    let violation = judge(image.path(), Path::new("store/log"), files).expect_err("files are lost");
    assert!(violation.contains("lost without a word"), "{violation}");
}
