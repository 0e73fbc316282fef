//! A volume on disk for the tests: a log store and two tiers in a temporary directory, and files of every shape in it.
//!
//! Invariants: nothing is open between two calls, so that each step sees the state on disk.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polymux_fs::{
    Caller, CheckMode, FileSystem, MountOptions, NewVolume, OpenOptions, Outcome, Parts, TierMember, TierPresence,
    VolumeCheck, WriteOrigin, XattrMode,
};
use polymux_meta::{Batch, LogStore, LogStoreOptions, MetadataStore, OpenMode};
use polymux_tier::{PosixTier, PosixTierOptions};
use polymux_types::{ByteSize, Ino, SystemClock, VolumeId};

use super::raw;

pub const FAST: u16 = 0;
pub const SLOW: u16 = 1;

/// Capacity of the fast tier: data that does not fit goes to the slow one.
const FAST_BYTES: u64 = 1 << 20;

/// Length of the file that lies on both tiers.
pub const SPLIT_BYTES: usize = 2 << 20;

pub struct World {
    directory: tempfile::TempDir,
}

/// An object as an inode record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub tier: u16,
    pub number: u64,
    pub bucket: u16,
}

impl World {
    /// A volume with files of every shape, unmounted in order.
    pub fn new() -> Self {
        // In memory where that can be: two times 4,096 directories are made for each volume.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let world = Self { directory: tempfile::tempdir_in(place).expect("a directory is made") };
        for name in ["fast", "slow"] {
            std::fs::create_dir(world.tier_path(name)).expect("a directory is made");
        }
        let volume =
            NewVolume { id: VolumeId::from_random([9; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
        FileSystem::format(&world.parts(OpenMode::CreateNew), &volume).expect("a volume is made");
        let fs = world.mount();
        populate(&fs);
        fs.unmount().expect("the volume unmounts");
        world
    }

    pub fn tier_path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store_options(mode: OpenMode) -> LogStoreOptions {
        LogStoreOptions {
            log_bytes: 1 << 20,
            ballast_bytes: 0,
            boundaries: polymux_fs::store_boundaries(),
            seeds: [3, 4],
            ..LogStoreOptions::new(mode)
        }
    }

    /// The store alone.
    pub fn store(&self) -> LogStore {
        LogStore::open(&self.directory.path().join("store"), &Self::store_options(OpenMode::Existing))
            .expect("the store opens")
    }

    fn parts(&self, mode: OpenMode) -> Parts {
        let store = LogStore::open(&self.directory.path().join("store"), &Self::store_options(mode));
        let member = |(name, capacity): (&str, Option<ByteSize>)| {
            let options = PosixTierOptions { capacity, ..PosixTierOptions::new(name) };
            let path = self.tier_path(name);
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
            tiers: [("fast", Some(ByteSize(FAST_BYTES))), ("slow", None)].into_iter().map(member).collect(),
            store: Arc::new(store.expect("the store opens")),
            metadata_tier: None,
            clock: Arc::new(SystemClock::new()),
            seed: 7,
        }
    }

    pub fn mount(&self) -> FileSystem {
        FileSystem::mount(self.parts(OpenMode::Existing), MountOptions::default()).expect("the volume mounts")
    }

    pub fn check(&self, mode: CheckMode) -> VolumeCheck {
        self.check_until(mode, &mut |_| ControlFlow::Continue(())).expect("the check comes to its end")
    }

    /// A check that may be ended.
    pub fn check_until(
        &self,
        mode: CheckMode,
        on_progress: polymux_fs::OnProgress<'_>,
    ) -> Result<VolumeCheck, polymux_fs::VolumeError> {
        FileSystem::check(self.parts(OpenMode::Existing), MountOptions::default(), mode, on_progress)
    }

    /// Writes records.
    pub fn plant(&self, fill: impl FnOnce(&dyn MetadataStore, &mut Batch)) {
        let store = self.store();
        let mut batch = Batch::new();
        fill(&store, &mut batch);
        let sequence = store.commit(batch).expect("the records are written");
        store.sync(sequence).expect("the records are durable");
    }

    /// Every record.
    pub fn records(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut records = BTreeMap::new();
        polymux_fs::for_each_record(&self.store(), |key, value| {
            records.insert(key.to_vec(), value.to_vec());
            Ok(())
        })
        .expect("the store can be read");
        records
    }

    pub fn object_path(&self, object: Object) -> PathBuf {
        let tier = if object.tier == FAST { "fast" } else { "slow" };
        object_path(&self.tier_path(tier), object)
    }

    /// Every path of the volume with the content of its file, as a mount shows it.
    pub fn contents(&self) -> BTreeMap<String, Result<Vec<u8>, String>> {
        let fs = self.mount();
        let mut found = BTreeMap::new();
        walk(&fs, Ino::ROOT, "", &mut found);
        fs.unmount().expect("the volume unmounts");
        found
    }
}

pub fn object_path(tier: &Path, object: Object) -> PathBuf {
    tier.join(".polymux/objects").join(format!("{:03x}", object.bucket)).join(format!("{:016x}", object.number))
}

/// The value of a record that is there.
pub fn get(store: &dyn MetadataStore, key: &[u8]) -> Vec<u8> {
    store.get(key).expect("the store answers").unwrap_or_else(|| panic!("there is a record {}", key.escape_ascii()))
}

/// The inode of a path.
pub fn ino(store: &dyn MetadataStore, path: &str) -> Ino {
    let mut at = Ino::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = Ino(raw::number(&get(store, &raw::dirent(at, name)), 1));
    }
    at
}

/// The position of a name.
pub fn cookie(store: &dyn MetadataStore, parent: Ino, name: &str) -> u64 {
    raw::number(&get(store, &raw::dirent(parent, name)), 13)
}

/// The objects of a file.
pub fn objects(store: &dyn MetadataStore, ino: Ino) -> Vec<Object> {
    let record = get(store, &raw::inode(ino));
    let object = |place: usize| {
        let at = raw::FILE_OBJECTS + 1 + place * raw::OBJECT_LENGTH;
        let short = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        Object { tier: short(at), number: raw::number(&record, at + 2), bucket: short(at + 15) }
    };
    (0..usize::from(record[raw::FILE_OBJECTS])).map(object).collect()
}

/// Changes bytes of an inode record.
pub fn edit_inode(store: &dyn MetadataStore, batch: &mut Batch, ino: Ino, at: usize, bytes: &[u8]) {
    let record = get(store, &raw::inode(ino));
    batch.put(raw::inode(ino), raw::edited(&record, at, bytes));
}

/// Findings that are errors, by name, with their outcomes.
pub fn errors(report: &VolumeCheck) -> Vec<(&'static str, Outcome, String)> {
    let told = |finding: &polymux_fs::Finding| {
        let path = finding.path.clone().unwrap_or_default();
        (finding.kind.name, finding.outcome, format!("{path}: {}", finding.detail))
    };
    report.findings.iter().filter(|finding| finding.outcome != Outcome::Noted).map(told).collect()
}

fn open() -> OpenOptions {
    OpenOptions { read: true, write: true, ..OpenOptions::default() }
}

/// Bytes of a file that differ from place to place.
pub fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at / 7 + seed + at / 4096 * 3) % 251).expect("below 251")).collect()
}

fn write_file(fs: &FileSystem, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let root = Caller::root();
    let (attributes, handle) = fs.create(&root, parent, name.as_bytes(), 0o644, open()).expect("a file is made");
    let mut done = 0;
    while done < data.len() {
        let piece = &data[done..data.len().min(done + 65_536)];
        done += fs.write(&root, handle, done as u64, piece, WriteOrigin::Call).expect("it is written");
    }
    fs.flush(&root, handle).expect("it is closed");
    fs.release(handle).expect("it is closed");
    attributes.ino
}

/// An access control list that names a user.
pub fn acl() -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(0x01_u16, 6_u16, u32::MAX), (0x02, 4, 1000), (0x04, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 4, u32::MAX)]
    {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

fn populate(fs: &FileSystem) {
    let root = Caller::root();
    let directory =
        |parent, name: &str| fs.make_directory(&root, parent, name.as_bytes(), 0o755).expect("a directory is made").ino;
    write_file(fs, Ino::ROOT, "small", b"a few bytes in the store");
    write_file(fs, Ino::ROOT, "large", &content(1, 65_536));
    write_file(fs, Ino::ROOT, "empty", b"");
    let outer = directory(Ino::ROOT, "outer");
    let inner = directory(outer, "inner");
    let linked = write_file(fs, outer, "linked", &content(2, 20_000));
    fs.link(&root, linked, inner, b"linked-too").expect("a link is made");
    for number in 0..5 {
        write_file(fs, inner, &format!("file-{number}"), &content(number, 100 * number + 50));
    }
    fs.make_symlink(&root, inner, b"link", b"../linked").expect("a link is made");
    let guarded = write_file(fs, Ino::ROOT, "guarded", &content(3, 9000));
    let set = |ino, name: &[u8], value: &[u8]| fs.set_xattr(&root, ino, name, value, XattrMode::Create);
    set(guarded, b"system.posix_acl_access", &acl()).expect("a list is set");
    set(guarded, b"user.colour", b"blue").expect("an attribute is set");
    write_file(fs, Ino::ROOT, "split", &content(4, SPLIT_BYTES));
}

fn walk(fs: &FileSystem, directory: Ino, path: &str, found: &mut BTreeMap<String, Result<Vec<u8>, String>>) {
    let root = Caller::root();
    let entries = fs.read_directory(&root, directory, 0, 1000).expect("a directory can be read");
    for entry in entries {
        let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
        match entry.kind {
            polymux_fs::FileKind::Directory => {
                found.insert(path.clone(), Ok(Vec::new()));
                walk(fs, entry.ino, &path, found);
            }
            polymux_fs::FileKind::Regular => {
                found.insert(path, read(fs, entry.ino));
            }
            _ => {
                found.insert(path, Ok(Vec::new()));
            }
        }
    }
}

fn read(fs: &FileSystem, ino: Ino) -> Result<Vec<u8>, String> {
    let root = Caller::root();
    let read = || -> polymux_fs::Result<Vec<u8>> {
        let size = usize::try_from(fs.attributes(&root, ino)?.size).expect("files of the tests are small");
        let handle = fs.open(&root, ino, OpenOptions { read: true, ..OpenOptions::default() })?;
        let mut content = vec![0xa5; size];
        let count = fs.read(&root, handle, 0, &mut content);
        fs.release(handle)?;
        content.truncate(count?);
        Ok(content)
    };
    read().map_err(|error| error.to_string())
}
