//! Images of a volume with the real store, its second copy, and two directories as tiers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polymux_fs::{
    Caller, FileSystem, MountOptions, NewVolume, OpenOptions, Parts, SyncKind, TierMember, TierPresence, WriteOrigin,
};
use polymux_meta::{CopyOptions, CopySync, LogStore, LogStoreOptions, MetadataStore, OpenMode, StepProgress, Workers};
use polymux_tier::{PosixTier, PosixTierOptions};
use polymux_types::{Ino, SystemClock, VolumeId};

pub const TIERS: [&str; 2] = ["fast", "slow"];

/// Files of a volume.
pub const FILES: usize = 24;

/// How the volume stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Crash,
    Unmount,
}

/// Whether a store is opened with a second copy, wherever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondCopy {
    Configured,
    SwitchedOff,
}

/// A generator of its own, so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let limit = u64::try_from(limit).expect("a length");
        usize::try_from((self.0 >> 33) % limit).expect("below the limit")
    }
}

pub fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory is made")
}

pub fn copy_tree(from: &Path, to: &Path) {
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

pub fn options(mode: OpenMode, image: &Path, copy: SecondCopy) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 1 << 20,
        log_bytes: 1 << 20,
        window_bytes: 64 << 10,
        ballast_bytes: 0,
        boundaries: polymux_fs::store_boundaries(),
        seeds: [3, 0x5eed],
        workers: Workers::Manual,
        copy: (copy == SecondCopy::Configured).then(|| CopyOptions::new(image.join("copy"))),
        ..LogStoreOptions::new(mode)
    }
}

pub fn open_store(image: &Path, mode: OpenMode, copy: SecondCopy) -> Result<Arc<LogStore>, String> {
    let store = LogStore::open(&image.join("store"), &options(mode, image, copy));
    store.map(Arc::new).map_err(|error| format!("the store: {error}"))
}

pub fn parts(image: &Path, store: &Arc<LogStore>, mode: OpenMode) -> Parts {
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

pub fn content(number: usize) -> Vec<u8> {
    let length = if number.is_multiple_of(7) { 9000 } else { 40 + number * 13 };
    (0..length).map(|at| u8::try_from((at / 5 + number * 3) % 251).expect("below 251")).collect()
}

pub fn name(number: usize) -> String {
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

pub fn ship(store: &LogStore) -> Result<(), String> {
    while store.step().map_err(|error| error.to_string())? == StepProgress::Worked {}
    match store.sync_copy(store.durable()) {
        Ok(CopySync::Safe) => Ok(()),
        other => Err(format!("the copy does not come along: {other:?}")),
    }
}

/// A volume whose files are all synced and in the copy.
pub fn volume(stop: Stop) -> tempfile::TempDir {
    let directory = place();
    for tier in TIERS {
        fs::create_dir(directory.path().join(tier)).expect("a directory is made");
    }
    let store = open_store(directory.path(), OpenMode::CreateNew, SecondCopy::Configured).expect("a store is made");
    let volume = NewVolume { id: VolumeId::from_random([9; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
    FileSystem::format(&parts(directory.path(), &store, OpenMode::CreateNew), &volume).expect("a volume is made");
    let mounted = FileSystem::mount(parts(directory.path(), &store, OpenMode::Existing), MountOptions::default());
    let mounted = mounted.expect("the volume mounts");
    for number in 0..FILES {
        write_synced(&mounted, number);
        if number == FILES / 2 {
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
pub fn targets(image: &Path) -> Vec<PathBuf> {
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
pub fn flip(path: &Path, random: &mut Random) -> (usize, u32) {
    let mut bytes = fs::read(path).expect("a file is read");
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let at = if used.is_empty() { random.below(bytes.len()) } else { used[random.below(used.len())] };
    let bit = u32::try_from(random.below(8)).expect("a bit of a byte");
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).expect("a file is written");
    (at, bit)
}

pub fn read(fs: &FileSystem, number: usize) -> Result<Vec<u8>, String> {
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
