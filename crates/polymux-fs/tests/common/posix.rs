//! Volumes over directories of the machine, for real threads and real holes.
//!
//! What is true here: the directories go away with the volume.

use std::sync::Arc;

use polymux_fs::{FileSystem, MountOptions, Parts, TierMember, TierPresence};
use polymux_sim::MemoryStore;
use polymux_tier::{PosixTier, PosixTierOptions, Tier};
use polymux_types::{ByteSize, SystemClock};
use tempfile::TempDir;

use super::{new_volume, tier_names};

/// A mounted volume over directories.
pub struct PosixVolume {
    fs: Arc<FileSystem>,
    // Dropped after the file system, which still writes to it.
    _directory: TempDir,
}

impl PosixVolume {
    /// Makes and mounts a volume; a tier with a capacity gives that many bytes, one without what the machine has.
    pub fn new(capacities: &[Option<u64>]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(SystemClock::new());
        let names = tier_names(capacities.len());
        let member = |(index, capacity): (usize, &Option<u64>)| {
            let path = directory.path().join(names[index]);
            std::fs::create_dir(&path).expect("a directory is made");
            let options = PosixTierOptions { capacity: capacity.map(ByteSize), ..PosixTierOptions::new(names[index]) };
            let tier: Arc<dyn Tier> = Arc::new(PosixTier::prepare(&path, options).expect("a tier is made"));
            (names[index].to_owned(), tier)
        };
        let tiers: Vec<(String, Arc<dyn Tier>)> = capacities.iter().enumerate().map(member).collect();
        let parts = || Parts {
            name: "test".to_owned(),
            tiers: tiers
                .iter()
                .map(|(name, tier)| TierMember::new(name.clone(), TierPresence::Present(Arc::clone(tier))))
                .collect(),
            store: Arc::clone(&store) as _,
            metadata_tier: None,
            clock: Arc::clone(&clock) as _,
            seed: 1,
        };
        FileSystem::format(&parts(), &new_volume()).expect("a new volume is made");
        let fs = FileSystem::mount(parts(), MountOptions::default()).expect("a new volume mounts");
        Self { fs: Arc::new(fs), _directory: directory }
    }

    /// The mounted file system.
    pub fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }
}
