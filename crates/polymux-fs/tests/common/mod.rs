//! Volumes for the tests.
//!
//! Invariants:
//! * Simulated tiers, store and clock outlive the mounts, so that a volume can be unmounted, crashed and mounted again.
//! * Time moves only when a test moves it.

#![allow(dead_code, reason = "each test program uses its own part")]

mod broken;
mod delegate;
mod hooked_store;
mod posix;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

#[allow(unused_imports, reason = "each test program uses its own part")]
pub use broken::{Broken, Full, volume_with_broken_tier};
#[allow(unused_imports, reason = "each test program uses its own part")]
pub use delegate::{Hook, HookedTier, Verdict};
#[allow(unused_imports, reason = "each test program uses its own part")]
pub use hooked_store::{HookedStore, StoreHook};
use polymux_fs::{
    Attributes, Caller, CheckMode, FileKind, FileSystem, ForgottenTier, HandleId, JobId, JobState, MissingTiers,
    MountOptions, NewVolume, OpenOptions, Parts, PolicyKind, Progress, RebuildReport, RebuildSource, TierMember,
    TierPresence, VolumeError, WriteOrigin,
};
use polymux_meta::MetadataStore;
use polymux_sim::{MemoryStore, MemoryTier};
use polymux_tier::Tier;
use polymux_types::sync::Mutex;
use polymux_types::{Bucket, ByteSize, Errno, Ino, ManualClock, ObjectId, TierId, VolumeId};
#[allow(unused_imports, reason = "each test program uses its own part")]
pub use posix::PosixVolume;

/// Names of one to three tiers in speed order.
pub fn tier_names(count: usize) -> &'static [&'static str] {
    match count {
        1 => &["fast"],
        2 => &["fast", "slow"],
        3 => &["fast", "middle", "slow"],
        _ => panic!("the tests use one to three tiers"),
    }
}

/// Steps after which background work that still is not done counts as stuck.
const STEPS_MAX: usize = 2000;

/// A mounted volume over simulated tiers.
pub struct Volume {
    memory: Vec<Arc<MemoryTier>>,
    tiers: Vec<Arc<dyn Tier>>,
    names: Vec<String>,
    /// Indices of the tiers that the configuration lists, in speed order.
    configuration: Mutex<Vec<usize>>,
    store: Arc<MemoryStore>,
    pub clock: Arc<ManualClock>,
    pub options: MountOptions,
    missing: Vec<bool>,
    reserves: Vec<u64>,
    /// The tier whose file system also holds the store, as of the next mount.
    pub metadata_tier: Option<String>,
    /// The policy of each mount from the next one on; none: as it is by itself.
    pub policy: Option<PolicyKind>,
    /// Stands in front of the store, as of the next mount.
    store_in_front: Option<Arc<dyn MetadataStore>>,
    mounts: u64,
    mounted: Option<FileSystem>,
}

impl Volume {
    /// Makes and mounts a volume whose tiers have these capacities in bytes.
    pub fn new(capacities: &[u64]) -> Self {
        Self::wrapping(capacities, |_, tier| tier)
    }

    /// As [`Self::new`], with each tier wrapped; the index is its place in the speed order.
    pub fn wrapping(capacities: &[u64], wrap: impl Fn(usize, Arc<dyn Tier>) -> Arc<dyn Tier>) -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
        let tier = |(capacity, name): (&u64, &&str)| {
            Arc::new(MemoryTier::with_clock(*name, *capacity, Arc::clone(&clock) as _))
        };
        let memory: Vec<Arc<MemoryTier>> = capacities.iter().zip(tier_names(capacities.len())).map(tier).collect();
        let tiers: Vec<Arc<dyn Tier>> =
            memory.iter().enumerate().map(|(index, tier)| wrap(index, Arc::clone(tier) as Arc<dyn Tier>)).collect();
        let mut volume = Self {
            missing: vec![false; tiers.len()],
            reserves: vec![0; tiers.len()],
            names: tier_names(tiers.len()).iter().map(|name| (*name).to_owned()).collect(),
            configuration: Mutex::new((0..tiers.len()).collect()),
            memory,
            tiers,
            store: Arc::new(MemoryStore::new()),
            clock,
            // A mover that naps moves the clock on by itself, by minutes within a second where it has threads beside it: a call
            // under way on another thread would look as if it hung.
            options: MountOptions { hang_after_ms: 0, ..MountOptions::default() },
            metadata_tier: None,
            policy: None,
            store_in_front: None,
            mounts: 0,
            mounted: None,
        };
        FileSystem::format(&volume.parts(), &new_volume()).expect("a new volume is made");
        volume.mount().expect("a new volume mounts");
        volume
    }

    fn member(&self, index: usize) -> TierMember {
        let presence = if self.missing[index] {
            TierPresence::Missing("the test took it away".to_owned())
        } else {
            TierPresence::Present(Arc::clone(&self.tiers[index]))
        };
        let name = self.names[index].clone();
        TierMember { reserve: ByteSize(self.reserves[index]), ..TierMember::new(name, presence) }
    }

    /// Makes a tier that belongs to no volume yet. Returns its index.
    pub fn make_tier(&mut self, name: &str, capacity: u64, wrap: impl Fn(Arc<dyn Tier>) -> Arc<dyn Tier>) -> usize {
        let memory = Arc::new(MemoryTier::with_clock(name, capacity, Arc::clone(&self.clock) as _));
        self.tiers.push(wrap(Arc::clone(&memory) as _));
        self.memory.push(memory);
        self.names.push(name.to_owned());
        self.missing.push(false);
        self.reserves.push(0);
        self.tiers.len() - 1
    }

    /// Takes a tier into the volume and into the configuration.
    pub fn add_tier(&self, index: usize, position: usize) -> Result<TierId, VolumeError> {
        self.fs().add_tier(self.member(index), position, || {
            self.configuration.lock().insert(position, index);
            Ok(())
        })
    }

    /// Takes a tier out of the volume and out of the configuration.
    pub fn remove_tier(&self, index: usize) -> Result<(), VolumeError> {
        self.fs().remove_tier(&self.names[index], || {
            self.configuration.lock().retain(|listed| *listed != index);
            Ok(())
        })
    }

    /// Forgets a tier and takes it out of the configuration.
    pub fn forget_tier(&self, index: usize) -> Result<ForgottenTier, VolumeError> {
        self.fs().forget_tier(&self.names[index], || {
            self.configuration.lock().retain(|listed| *listed != index);
            Ok(())
        })
    }

    /// Unmounts, takes a tier away and mounts without it.
    pub fn lose_tier(&mut self, index: usize) {
        self.unmount().expect("the volume unmounts");
        self.set_missing(index, true);
        self.options.missing = MissingTiers::Degraded;
        self.mount().expect("the volume mounts degraded");
        self.options.missing = MissingTiers::Refuse;
    }

    /// A tier with its wrappers.
    pub fn tier(&self, index: usize) -> Arc<dyn Tier> {
        Arc::clone(&self.tiers[index])
    }

    /// Whether a tier has no label.
    pub fn is_unlabelled(&self, index: usize) -> bool {
        self.memory[index].read_label().is_err()
    }

    /// Changes the list of tiers in the configuration.
    pub fn edit_configuration(&self, edit: impl FnOnce(&mut Vec<usize>)) {
        edit(&mut self.configuration.lock());
    }

    /// Names of the tiers that the configuration lists.
    pub fn listed(&self) -> Vec<String> {
        self.configuration.lock().iter().map(|index| self.names[*index].clone()).collect()
    }

    fn parts(&self) -> Parts {
        Parts {
            name: "test".to_owned(),
            tiers: self.configuration.lock().iter().map(|index| self.member(*index)).collect(),
            store: self.store_in_front.clone().unwrap_or_else(|| Arc::clone(&self.store) as _),
            metadata_tier: self.metadata_tier.clone(),
            clock: Arc::clone(&self.clock) as _,
            seed: self.mounts + 1,
        }
    }

    /// The mounted file system.
    pub fn fs(&self) -> &FileSystem {
        self.mounted.as_ref().expect("the volume is mounted")
    }

    /// Mounts with the present options, all tiers that are not taken away, and a new seed.
    pub fn mount(&mut self) -> Result<(), VolumeError> {
        assert!(self.mounted.is_none(), "one mount at a time");
        self.mounts += 1;
        let mounted = FileSystem::mount(self.parts(), self.options)?;
        if let Some(policy) = self.policy {
            mounted.set_steering(policy, &[]).expect("a policy is taken");
        }
        self.mounted = Some(mounted);
        Ok(())
    }

    /// Unmounts, whatever the outcome: state that is not durable after it is lost.
    pub fn unmount(&mut self) -> polymux_fs::Result<()> {
        let mounted = self.mounted.take().expect("the volume is mounted");
        mounted.unmount()
    }

    /// Unmounts cleanly and mounts again.
    pub fn remount(&mut self) {
        self.unmount().expect("the volume unmounts");
        self.mount().expect("the volume mounts again");
    }

    /// Stops without warning: tiers and store lose all data that is not durable.
    pub fn stop_uncleanly(&mut self) {
        drop(self.mounted.take().expect("the volume is mounted"));
        for tier in &self.memory {
            tier.crash();
        }
        self.store.crash();
    }

    /// Memory outlives the daemon from the next mount on: mounts again.
    pub fn survive_deaths(&mut self) {
        self.store.survive_deaths();
        self.remount();
    }

    /// The daemon dies, and nothing else. Tiers and store keep their data; other state in the daemon's memory is lost.
    pub fn kill_daemon(&mut self) {
        self.let_daemon_die();
        self.mount().expect("the volume mounts after the daemon died");
    }

    /// The daemon dies, and the volume is not mounted again.
    pub fn let_daemon_die(&mut self) {
        drop(self.mounted.take());
        self.store.process_dies();
    }

    /// As `crash`, but some unsynced transactions survive.
    pub fn crash_keeping_transactions(&mut self, extra: usize) {
        drop(self.mounted.take().expect("the volume is mounted"));
        for tier in &self.memory {
            tier.crash();
        }
        self.store.crash_keeping(extra);
        self.mount().expect("the volume mounts after a crash");
    }

    /// Mounts again with a hook in front of the metadata store, which stays.
    pub fn hook_store(&mut self, hook: Arc<dyn StoreHook>) {
        self.unmount().expect("the volume unmounts");
        self.store_in_front = Some(Arc::new(HookedStore::new(Arc::clone(&self.store), hook)));
        self.mount().expect("the volume mounts again");
    }

    /// Makes a new store from the contents of the tiers. The volume is not mounted.
    pub fn rebuild(&mut self) -> Result<RebuildReport, VolumeError> {
        assert!(self.mounted.is_none(), "a volume in use is not rebuilt");
        let store = Arc::new(MemoryStore::new());
        let report = FileSystem::rebuild(&self.rebuild_source(), Some(&*store), &mut |_| ControlFlow::Continue(()))?;
        self.store = store;
        Ok(report)
    }

    /// The report of a rebuild without a new store.
    pub fn try_rebuild(&self) -> Result<RebuildReport, VolumeError> {
        FileSystem::rebuild(&self.rebuild_source(), None, &mut |_| ControlFlow::Continue(()))
    }

    pub fn rebuild_source(&self) -> RebuildSource {
        let parts = self.parts();
        RebuildSource { name: parts.name, volume: new_volume(), tiers: parts.tiers, clock: parts.clock }
    }

    /// Everything that a check of the unmounted volume finds, notes included.
    pub fn findings(&self) -> Vec<String> {
        let options = MountOptions::default();
        let check = FileSystem::check(self.parts(), options, CheckMode::Report, &mut |_| ControlFlow::Continue(()));
        let told =
            |finding: polymux_fs::Finding| format!("{}: {:?}: {}", finding.kind.name, finding.path, finding.detail);
        check.expect("a volume can be checked").findings.into_iter().map(told).collect()
    }

    /// The metadata store below its wrappers.
    pub fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.store)
    }

    /// Files that have a record of inline data.
    pub fn inline_records(&self) -> usize {
        let key = |letter: u8| [0, 0, 0, 0, letter];
        self.store.range(&key(b'b'), &key(b'b' + 1), usize::MAX).expect("a simulated store answers").len()
    }

    /// A counter of the file system.
    pub fn counter(&self, name: &str) -> u64 {
        let status = self.fs().status().expect("status answers");
        let found = status.counters.iter().find(|(of, _)| *of == name);
        found.unwrap_or_else(|| panic!("there is no counter `{name}`")).1
    }

    /// Makes the metadata log durable, as any other user's sync may do at any time.
    pub fn flush_log(&self) {
        self.store.sync(self.store.committed()).expect("a simulated store syncs");
    }

    /// Stops without warning and mounts again.
    pub fn crash(&mut self) {
        self.stop_uncleanly();
        self.mount().expect("the volume mounts after a crash");
    }

    /// Takes a tier away (or gives it back) as of the next mount.
    pub fn set_missing(&mut self, index: usize, missing: bool) {
        self.missing[index] = missing;
    }

    /// Space that stays free on a tier, as of the next mount.
    pub fn set_reserve(&mut self, index: usize, bytes: u64) {
        self.reserves[index] = bytes;
    }

    /// A tier below its wrappers.
    pub fn memory(&self, index: usize) -> &MemoryTier {
        &self.memory[index]
    }

    /// One piece of background work, after which time passes.
    pub fn step(&self) -> Progress {
        let progress = self.fs().step();
        self.clock.advance(Duration::from_secs(1));
        progress
    }

    /// Background work until there is none.
    pub fn drain(&self) {
        for _ in 0..STEPS_MAX {
            if self.step() == Progress::Idle {
                return;
            }
        }
        panic!("background work was not done after {STEPS_MAX} steps");
    }

    /// The tiers in speed order with the bytes that objects take there.
    pub fn tiers_with_use(&self) -> Vec<(TierId, u64)> {
        let status = self.fs().status().expect("status answers");
        let numbered = status.tiers.iter().zip(&self.memory);
        numbered.map(|(status, tier)| (status.id, tier.space().expect("a simulated tier has space").used)).collect()
    }

    /// Objects in a bucket of a tier.
    pub fn list(&self, index: usize, bucket: Bucket) -> Vec<ObjectId> {
        self.memory[index].list(bucket).expect("a simulated tier lists")
    }

    /// Bytes that objects take on a tier.
    pub fn used(&self, index: usize) -> u64 {
        self.memory[index].space().expect("a simulated tier has space").used
    }
}

/// Identity of the volumes of the tests.
pub fn new_volume() -> NewVolume {
    NewVolume { id: VolumeId::from_random([7; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 }
}

/// Options for reading and writing.
pub fn read_write() -> OpenOptions {
    OpenOptions { read: true, write: true, ..OpenOptions::default() }
}

/// Options for reading.
pub fn read_only() -> OpenOptions {
    OpenOptions { read: true, ..OpenOptions::default() }
}

/// A new file in the root directory, open for reading and writing.
pub fn create(fs: &FileSystem, name: &str) -> (Ino, HandleId) {
    create_in(fs, Ino::ROOT, name)
}

/// A new file, open for reading and writing.
pub fn create_in(fs: &FileSystem, parent: Ino, name: &str) -> (Ino, HandleId) {
    let (attributes, handle) =
        fs.create(&Caller::root(), parent, name.as_bytes(), 0o644, read_write()).expect("a file is made");
    (attributes.ino, handle)
}

/// A new directory in the root directory.
pub fn make_directory(fs: &FileSystem, name: &str) -> Ino {
    fs.make_directory(&Caller::root(), Ino::ROOT, name.as_bytes(), 0o755).expect("a directory is made").ino
}

/// The file of a name in the root directory.
pub fn find(fs: &FileSystem, name: &str) -> Attributes {
    fs.lookup(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("the name exists")
}

/// Writes everything, a few blocks at a time: one write goes to one tier where one has space for it, so that only a
/// sequence of writes fills the fast tier first.
pub fn write_all(fs: &FileSystem, handle: HandleId, offset: u64, data: &[u8]) -> polymux_fs::Result<()> {
    const CALL: usize = 16 * 1024;
    let mut done = 0;
    while done < data.len() {
        let piece = &data[done..data.len().min(done + CALL)];
        let count = fs.write(&Caller::root(), handle, offset + done as u64, piece, WriteOrigin::Call)?;
        assert!(count > 0, "a write that writes nothing is an error");
        done += count;
    }
    Ok(())
}

/// Reads up to `length` bytes.
pub fn read_at(fs: &FileSystem, handle: HandleId, offset: u64, length: usize) -> polymux_fs::Result<Vec<u8>> {
    let mut buffer = vec![0xa5; length];
    let count = fs.read(&Caller::root(), handle, offset, &mut buffer)?;
    buffer.truncate(count);
    Ok(buffer)
}

/// Reads a whole file.
pub fn read_whole(fs: &FileSystem, ino: Ino) -> polymux_fs::Result<Vec<u8>> {
    let size = usize::try_from(fs.attributes(&Caller::root(), ino)?.size).expect("files of the tests are small");
    let handle = fs.open(&Caller::root(), ino, read_only())?;
    // One byte more, so that a file that is longer than it says is noticed.
    let content = read_at(fs, handle, 0, size + 1);
    fs.release(handle)?;
    content
}

/// Bytes of a file that a tier owns.
pub fn bytes_on(fs: &FileSystem, ino: Ino, tier: &str) -> u64 {
    let location = fs.locate(ino).expect("located");
    location.shares.iter().filter(|share| share.name == tier).map(|share| share.bytes_mapped).sum()
}

/// Carries out moves until one of them is done.
pub fn finish_job(fs: &FileSystem, job: JobId) {
    while fs.job(job).expect("known").state != JobState::Done {
        fs.move_step();
    }
}

/// Closes a description the way a program does.
pub fn close(fs: &FileSystem, handle: HandleId) -> polymux_fs::Result<()> {
    let told = fs.flush(&Caller::root(), handle);
    fs.release(handle)?;
    told
}

/// All paths below the root, and the root itself as the empty path.
pub fn walk(fs: &FileSystem) -> polymux_fs::Result<BTreeMap<Vec<u8>, Ino>> {
    let mut found = BTreeMap::from([(Vec::new(), Ino::ROOT)]);
    let mut directories = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, directory)) = directories.pop() {
        let mut after = 0;
        loop {
            let entries = fs.read_directory(&Caller::root(), directory, after, 64)?;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            for entry in &entries {
                let path = [path.as_slice(), b"/", entry.name.as_slice()].concat();
                if entry.kind == FileKind::Directory {
                    directories.push((path.clone(), entry.ino));
                }
                let before = found.insert(path, entry.ino);
                assert_eq!(before, None, "a name is listed once");
            }
        }
    }
    Ok(found)
}

/// The error number of a failure.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: polymux_fs::Result<T>) -> Errno {
    result.expect_err("the operation fails").errno()
}

/// Bytes that differ from block to block and from seed to seed.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let value = |index: usize| u8::try_from((index / 4096 + index % 239 + usize::from(seed) * 7) % 251 + 1);
    (0..length).map(|index| value(index).expect("at most 251")).collect()
}

/// Moves and background work until nothing is left to do.
pub fn settle(volume: &Volume) {
    for _ in 0..5000 {
        let moved = volume.fs().move_step();
        if (moved, volume.step()) == (Progress::Idle, Progress::Idle) {
            return;
        }
    }
    panic!("the mover did not come to an end: {:?}", volume.fs().moves());
}
