//! Volumes over directories of the machine, for real threads and real holes.
//!
//! Invariants: the directories go away with the volume.

use std::sync::Arc;

use polymux_fs::{FileSystem, MountOptions, Parts, TierMember, TierPresence};
use polymux_sim::MemoryStore;
use polymux_tier::{PosixTier, PosixTierOptions, Tier, TierError};
use polymux_types::{ByteSize, SystemClock};
use tempfile::TempDir;

use super::{new_volume, tier_names};

/// Opens a tier as a mount does that comes right after the end of another one: a thread that synced for it may be about to let go of
/// the tier.
fn open_tier(path: &std::path::Path, options: PosixTierOptions) -> Result<PosixTier, TierError> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        match PosixTier::open(path, options.clone()) {
            Err(TierError::InUse(_)) if std::time::Instant::now() < deadline => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            opened => return opened,
        }
    }
}

/// Puts something in front of each tier.
type Wrap = fn(Arc<dyn Tier>) -> Arc<dyn Tier>;

/// A mounted volume over directories.
pub struct PosixVolume {
    fs: Option<Arc<FileSystem>>,
    store: Arc<MemoryStore>,
    clock: Arc<SystemClock>,
    capacities: Vec<Option<u64>>,
    wrap: Wrap,
    // Dropped after the file system, which still writes to it.
    directory: TempDir,
}

impl PosixVolume {
    /// Makes and mounts a volume; a tier with a capacity provides that many bytes, one without it the capacity of the machine.
    pub fn new(capacities: &[Option<u64>]) -> Self {
        Self::new_in(tempfile::tempdir().expect("a temporary directory is made"), capacities, |tier| tier)
    }

    /// As [`Self::new`], in memory where that can be: the thousands of directories of a tier are made at once there.
    pub fn new_in_memory(capacities: &[Option<u64>]) -> Self {
        Self::wrapping_in_memory(capacities, |tier| tier)
    }

    /// As [`Self::new`], with something in front of each tier.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn wrapping(capacities: &[Option<u64>], wrap: Wrap) -> Self {
        Self::new_in(tempfile::tempdir().expect("a temporary directory is made"), capacities, wrap)
    }

    /// As [`Self::new_in_memory`], with something in front of each tier.
    pub fn wrapping_in_memory(capacities: &[Option<u64>], wrap: Wrap) -> Self {
        let in_memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::new_in(in_memory.expect("a temporary directory is made"), capacities, wrap)
    }

    fn new_in(directory: TempDir, capacities: &[Option<u64>], wrap: Wrap) -> Self {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(SystemClock::new()));
        let mut volume = Self { fs: None, store, clock, capacities: capacities.to_vec(), wrap, directory };
        let prepare = |path: &std::path::Path, options| {
            std::fs::create_dir(path).expect("a directory is made");
            PosixTier::prepare(path, options)
        };
        let parts = volume.parts(prepare);
        FileSystem::format(&parts, &new_volume()).expect("a new volume is made");
        volume.mount(parts, MountOptions::default());
        volume
    }

    fn parts(
        &self,
        open: impl Fn(&std::path::Path, PosixTierOptions) -> Result<PosixTier, polymux_tier::TierError>,
    ) -> Parts {
        let names = tier_names(self.capacities.len());
        let member = |(name, capacity): (&&str, &Option<u64>)| {
            let options = PosixTierOptions { capacity: capacity.map(ByteSize), ..PosixTierOptions::new(*name) };
            let tier: Arc<dyn Tier> =
                Arc::new(open(&self.directory.path().join(name), options).expect("a tier is opened"));
            TierMember::new((*name).to_owned(), TierPresence::Present((self.wrap)(tier)))
        };
        Parts {
            name: "test".to_owned(),
            tiers: names.iter().zip(&self.capacities).map(member).collect(),
            store: Arc::clone(&self.store) as _,
            metadata_tier: None,
            clock: Arc::clone(&self.clock) as _,
            seed: 1,
        }
    }

    fn mount(&mut self, parts: Parts, options: MountOptions) {
        self.fs = Some(Arc::new(FileSystem::mount(parts, options).expect("the volume mounts")));
    }

    /// Where its tiers are.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// The mounted file system.
    pub fn fs(&self) -> &Arc<FileSystem> {
        self.fs.as_ref().expect("the volume is mounted")
    }

    /// Takes the file system down as the death of its process does, with the records that were not durable, and mounts again.
    pub fn die_and_mount(&mut self, options: MountOptions) {
        drop(self.fs.take());
        self.store.crash();
        let parts = self.parts(open_tier);
        self.mount(parts, options);
    }

    /// Unmounts, and mounts again.
    pub fn remount(&mut self, options: MountOptions) {
        self.fs().unmount().expect("the volume unmounts");
        self.mount_again(options);
    }

    /// Mounts the unmounted volume.
    pub fn mount_again(&mut self, options: MountOptions) {
        drop(self.fs.take());
        let parts = self.parts(open_tier);
        self.mount(parts, options);
    }
}
