//! A volume in a directory of its own, made as `polymux create` makes it.

use std::fs;
use std::path::{Path, PathBuf};

use polymux_config::config::{TierConfig, VolumeConfig};
use polymux_config::config_format::OptionsEntry;
use polymux_config::creation;
use polymux_config::random::random_bytes;
use polymux_config::steering_config::SteeringConfig;
use polymux_embed::{Volume, VolumeOptions};
use polymux_types::VolumeId;
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
        fs::create_dir(directory.path().join("config")).unwrap();
        let config_path = directory.path().join("config").join(format!("{NAME}.toml"));
        creation::make(&config, &config_path, &|warning| panic!("{warning}")).unwrap();
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

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}
