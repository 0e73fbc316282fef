//! A volume in a directory of its own, made as `polymux create` makes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polymux_config::config::{TierConfig, VolumeConfig};
use polymux_config::config_format::OptionsEntry;
use polymux_config::random::random_bytes;
use polymux_config::steering_config::SteeringConfig;
use polymux_config::{metadata, tiers};
use polymux_embed::{Volume, VolumeOptions};
use polymux_fs::{Access, FileSystem, NewVolume, Parts};
use polymux_meta::OpenMode;
use polymux_tier::PosixTier;
use polymux_types::{SystemClock, VolumeId};
use tempfile::TempDir;

/// Name of the volume.
pub const NAME: &str = "media";

/// A volume that exists and is not open.
pub struct TestVolume {
    directory: TempDir,
    /// For memory that outlives programs; `None`: there is no tmpfs.
    memory: Option<TempDir>,
}

impl TestVolume {
    /// A new volume with so many tiers.
    pub fn make(tier_count: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tier = |number| {
            let path = directory.path().join(format!("tier-{number}"));
            fs::create_dir(&path).unwrap();
            TierConfig::new(format!("tier-{number}"), path)
        };
        let config = VolumeConfig {
            name: NAME.to_owned(),
            id: VolumeId::from_random(random_bytes().unwrap()),
            metadata: 0,
            tiers: (0..tier_count).map(tier).collect(),
            options: OptionsEntry::default(),
            steering: SteeringConfig::default(),
        };
        let member = |tier: &TierConfig| {
            let open = PosixTier::prepare(&tier.path, tiers::open_options(tier, Access::ReadWrite)).unwrap();
            tiers::member(tier, Arc::new(open)).unwrap()
        };
        let parts = Parts {
            name: NAME.to_owned(),
            tiers: config.tiers.iter().map(member).collect(),
            store: Arc::new(metadata::open(&config, OpenMode::CreateNew, None).unwrap()),
            metadata_tier: Some(config.tiers[0].name.clone()),
            clock: Arc::new(SystemClock::new()),
            seed: u64::from_le_bytes(random_bytes().unwrap()),
        };
        let volume = NewVolume {
            id: config.id,
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            root_permissions: 0o755,
        };
        FileSystem::format(&parts, &volume).unwrap();
        drop(parts);
        fs::create_dir(directory.path().join("config")).unwrap();
        config.write_new(&directory.path().join("config").join(format!("{NAME}.toml"))).unwrap();
        let memory = tempfile::Builder::new().prefix("polymux-embed-").tempdir_in("/dev/shm").ok();
        Self { directory, memory }
    }

    /// Where it lies.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where programs keep memory that outlives them.
    pub fn memory(&self) -> &Path {
        self.memory.as_ref().map_or(self.directory(), TempDir::path)
    }

    /// Directories of configurations and locks.
    pub fn directories(&self) -> [PathBuf; 2] {
        ["config", "run"].map(|name| self.directory.path().join(name))
    }

    /// How it is opened.
    pub fn options(&self) -> VolumeOptions {
        let [configurations, locks] = self.directories();
        VolumeOptions::new().directories(configurations, locks)
    }

    /// Opens it.
    pub fn open(&self) -> Volume {
        self.options().open(NAME).unwrap()
    }
}
