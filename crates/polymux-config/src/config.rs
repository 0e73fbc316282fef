//! The configuration of a volume, checked.
//!
//! Invariants of a [`VolumeConfig`]: names are plain and no two tiers share a name or a path; every path is absolute;
//! the metadata tier is one of the tiers; there are 1 to [`TIERS_MAX`] tiers.

use std::fs;
use std::io::Write;
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use polymux_fs::{MOVERS_DEFAULT, MoverLimits, TierMember};
use polymux_types::limits::TIERS_MAX;
use polymux_types::{Percent, VolumeId, Watermark};

use crate::config_format::{self, Movers, OptionsEntry, Reserve, Section, Share, Size, TierEntry, VolumeFile};
use crate::names;
use crate::steering_config::{self, SteeringConfig};

/// A volume's configuration.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Name of the volume.
    pub name: String,
    /// Identity.
    pub id: VolumeId,
    /// Index in `tiers` of the tier that holds the metadata store.
    pub metadata: usize,
    /// Tiers in speed order.
    pub tiers: Vec<TierConfig>,
    /// Mount options.
    pub options: OptionsEntry,
    /// Policy and rules.
    pub steering: SteeringConfig,
}

/// One tier of a [`VolumeConfig`].
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// Name of the tier.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Most bytes that the volume uses there.
    pub capacity: Option<Size>,
    /// Space left free of new data.
    pub reserve: Option<Reserve>,
    /// Share above which files leave the tier; see [`TierConfig::marks`].
    pub high_mark: Option<Share>,
    /// Share at which that ends.
    pub low_mark: Option<Share>,
    /// Bytes per second that movers read or write there at most.
    pub mover_rate: Option<Size>,
    /// Requests per second of movers there at most.
    pub mover_iops: Option<NonZeroU32>,
    /// Bytes per day that are written there only because they are used much.
    pub write_budget: Option<Size>,
}

impl TierConfig {
    /// A tier without limits.
    pub fn new(name: impl Into<String>, path: PathBuf) -> Self {
        Self {
            name: name.into(),
            path,
            capacity: None,
            reserve: None,
            high_mark: None,
            low_mark: None,
            mover_rate: None,
            mover_iops: None,
            write_budget: None,
        }
    }

    /// Limits of the movers there.
    pub fn mover_limits(&self) -> MoverLimits {
        MoverLimits {
            bytes_per_second: self.mover_rate.map(|Size(bytes)| bytes.0),
            operations_per_second: self.mover_iops.map(|number| u64::from(number.get())),
            promoted_bytes_per_day: self.write_budget.map(|Size(bytes)| bytes.0),
        }
    }

    /// High and low mark, the defaults included.
    pub fn marks(&self) -> (Watermark, Watermark) {
        let defaults = (TierMember::HIGH_MARK_DEFAULT, TierMember::LOW_MARK_DEFAULT);
        if self.high_mark.is_none() && self.low_mark.is_none() {
            return defaults;
        }
        // Where one is configured, the other one is a share of the tier as well, however large that is.
        let high = self.high_mark.map_or(defaults.0.percent(), |Share(percent)| percent);
        let low_default = || if defaults.1.percent() < high { defaults.1.percent() } else { low_below(high) };
        let low = self.low_mark.map_or_else(low_default, |Share(percent)| percent);
        (Watermark::share(high), Watermark::share(low))
    }

    /// The tier as the configuration lists it.
    pub fn to_entry(&self) -> TierEntry {
        TierEntry {
            name: self.name.clone(),
            path: self.path.clone(),
            capacity: self.capacity,
            reserve: self.reserve,
            high_mark: self.high_mark,
            low_mark: self.low_mark,
            mover_rate: self.mover_rate,
            mover_iops: self.mover_iops,
            write_budget: self.write_budget,
        }
    }
}

/// Value of `metadata_copy` that stands for no second copy.
pub const NO_COPY: &str = "none";

/// Directory of Polymux's own on a tier.
pub fn private_directory(tier: &Path) -> PathBuf {
    tier.join(".polymux")
}

impl VolumeConfig {
    /// Directory of the metadata store.
    pub fn metadata_directory(&self) -> PathBuf {
        private_directory(&self.tiers[self.metadata].path).join("meta")
    }

    /// Directory of the second copy of the metadata store, where a tier holds it.
    pub fn copy_directory(&self, tier: usize) -> PathBuf {
        private_directory(&self.tiers[tier].path).join("meta-copy")
    }

    /// Threads that move blocks.
    pub fn movers(&self) -> u16 {
        self.options.movers.map_or(MOVERS_DEFAULT, |Movers(movers)| movers)
    }

    /// Reads and checks a configuration file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(path, &text)
    }

    /// Checks the text of a configuration file; `path` is only for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let file = config_format::parse(path, text)?;
        Self::check(file, text).map_err(|(section, key, error)| {
            anyhow!("{}:{}: {error:#}", path.display(), config_format::line_of_key(text, section, key))
        })
    }

    /// Checks the constraints that the format alone cannot express. An error comes with the place of the key it concerns.
    fn check(file: VolumeFile, text: &str) -> std::result::Result<Self, (Section, &'static str, anyhow::Error)> {
        names::check("volume", &file.name).map_err(|error| (Section::Top, "name", error))?;
        let id = VolumeId::parse(&file.volume).ok_or_else(|| {
            (Section::Top, "volume", anyhow!("`{}` is not a volume's identity (a UUID)", file.volume))
        })?;
        let tiers: Vec<TierConfig> = file.tier.into_iter().map(TierConfig::from).collect();
        check_tiers(&tiers).map_err(|wrong| (Section::Tier(wrong.index), wrong.key, wrong.error))?;
        let metadata = tiers.iter().position(|tier| tier.name == file.metadata).ok_or_else(|| {
            (Section::Top, "metadata", anyhow!("metadata tier `{}` is not one of the tiers", file.metadata))
        })?;
        check_copy_tier(&tiers, metadata, file.options.metadata_copy.as_deref())
            .map_err(|error| (Section::Options, "metadata_copy", error))?;
        check_region_path(file.options.metadata_region.as_deref())
            .map_err(|error| (Section::Options, "metadata_region", error))?;
        steering_config::check_options(&file.options).map_err(|(key, error)| (Section::Options, key, error))?;
        let steering = SteeringConfig::check(file.policy, file.rule, &tiers, text)?;
        Ok(Self { name: file.name, id, metadata, tiers, options: file.options, steering })
    }

    /// Writes the configuration where there is none yet, so that either all of it is there or nothing.
    pub fn write_new(&self, path: &Path) -> Result<()> {
        let text = config_format::format(&self.to_file())?;
        let directory = path.parent().ok_or_else(|| anyhow!("{} has no directory", path.display()))?;
        let temporary = directory.join(format!(".{}.{}.new", self.name, std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            // A link, not a rename: it fails where another process made the file meanwhile.
            .and_then(|()| fs::hard_link(&temporary, path));
        let _ = fs::remove_file(&temporary);
        written
            .and_then(|()| fs::File::open(directory)?.sync_all())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn to_file(&self) -> VolumeFile {
        VolumeFile {
            name: self.name.clone(),
            volume: self.id.to_string(),
            metadata: self.tiers[self.metadata].name.clone(),
            policy: self.steering.policy,
            tier: self.tiers.iter().map(TierConfig::to_entry).collect(),
            rule: self.steering.entries.clone(),
            options: self.options.clone(),
        }
    }
}

impl From<TierEntry> for TierConfig {
    fn from(entry: TierEntry) -> Self {
        Self {
            name: entry.name,
            path: entry.path,
            capacity: entry.capacity,
            reserve: entry.reserve,
            high_mark: entry.high_mark,
            low_mark: entry.low_mark,
            mover_rate: entry.mover_rate,
            mover_iops: entry.mover_iops,
            write_budget: entry.write_budget,
        }
    }
}

/// An error in a list of tiers, and where it is.
#[derive(Debug)]
pub struct WrongTier {
    /// Index of the tier.
    pub index: usize,
    /// Key of the configuration that is wrong.
    pub key: &'static str,
    /// The error.
    pub error: anyhow::Error,
}

/// Checks names and paths of tiers.
pub fn check_tiers(tiers: &[TierConfig]) -> std::result::Result<(), WrongTier> {
    if tiers.is_empty() || tiers.len() > usize::from(TIERS_MAX) {
        let error = anyhow!("a volume has 1 to {TIERS_MAX} tiers, not {}", tiers.len());
        return Err(WrongTier { index: usize::from(TIERS_MAX), key: "name", error });
    }
    for (index, tier) in tiers.iter().enumerate() {
        check_tier_name(&tiers[..index], tier).map_err(|error| WrongTier { index, key: "name", error })?;
        check_tier_path(&tiers[..index], tier).map_err(|error| WrongTier { index, key: "path", error })?;
        check_tier_marks(tier).map_err(|(key, error)| WrongTier { index, key, error })?;
        steering_config::check_limits(tier).map_err(|(key, error)| WrongTier { index, key, error })?;
    }
    Ok(())
}

/// Checks the tier that is to hold the second copy of the metadata store.
fn check_copy_tier(tiers: &[TierConfig], metadata: usize, copy: Option<&str>) -> Result<()> {
    match copy {
        None | Some(NO_COPY) => Ok(()),
        Some(name) if name == tiers[metadata].name => {
            bail!("tier `{name}` holds the metadata store itself: its second copy has to be on another one")
        }
        Some(name) if tiers.iter().all(|tier| tier.name != name) => bail!("tier `{name}` is not one of the tiers"),
        Some(_) => Ok(()),
    }
}

/// Checks the path of the region of the metadata log.
fn check_region_path(region: Option<&Path>) -> Result<()> {
    match region {
        Some(path) if !path.is_absolute() => bail!("metadata_region: {} is not an absolute path", path.display()),
        Some(_) | None => Ok(()),
    }
}

fn check_tier_name(before: &[TierConfig], tier: &TierConfig) -> Result<()> {
    names::check("tier", &tier.name)?;
    if before.iter().any(|other| other.name == tier.name) {
        bail!("tier `{}` is given twice", tier.name);
    }
    Ok(())
}

fn check_tier_path(before: &[TierConfig], tier: &TierConfig) -> Result<()> {
    if !tier.path.is_absolute() {
        bail!("tier `{}`: path {} is not absolute", tier.name, tier.path.display());
    }
    if let Some(other) = before.iter().find(|other| other.path == tier.path) {
        bail!("tiers `{}` and `{}` have the same path {}", other.name, tier.name, tier.path.display());
    }
    Ok(())
}

/// The low mark beside a high mark that does not leave the default below it: ten points less, or half of it where that is more.
fn low_below(high: Percent) -> Percent {
    let share = high.get();
    Percent::new(share - 10.min(share / 2))
}

fn check_tier_marks(tier: &TierConfig) -> std::result::Result<(), (&'static str, anyhow::Error)> {
    let (high, low) = tier.marks();
    let (high, low) = (high.percent(), low.percent());
    if low < high {
        return Ok(());
    }
    // The line of the one that is written, where only one is.
    let key = if tier.low_mark.is_some() { "low_mark" } else { "high_mark" };
    Err((key, anyhow!("tier `{}`: low_mark {low} is not below high_mark {high}", tier.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<VolumeConfig> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("media.toml");
        fs::write(&path, text).unwrap();
        VolumeConfig::read(&path)
    }

    const GOOD: &str = "name = \"media\"\nvolume = \"6b1f5c9e-0000-4000-8000-000000000001\"\nmetadata = \"a\"\n\
                        [[tier]]\nname = \"a\"\npath = \"/a\"\n[[tier]]\nname = \"b\"\npath = \"/b\"\n";

    #[test]
    fn a_configuration_survives_writing_and_reading_and_is_not_overwritten() {
        let config = read(GOOD).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy.toml");
        config.write_new(&path).unwrap();
        let again = VolumeConfig::read(&path).unwrap();
        assert_eq!(again.to_file(), config.to_file());
        assert!(config.write_new(&path).is_err(), "an existing file is not replaced");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_mark_that_is_configured_makes_both_shares_of_the_tier() {
        let share = |percent| Some(Share(Percent::new(percent)));
        let marks = |high_mark, low_mark| {
            TierConfig { high_mark, low_mark, ..TierConfig::new("a", PathBuf::from("/a")) }.marks()
        };
        let shares = |high, low| (Watermark::share(Percent::new(high)), Watermark::share(Percent::new(low)));
        assert_eq!(marks(None, None), (TierMember::HIGH_MARK_DEFAULT, TierMember::LOW_MARK_DEFAULT));
        assert_eq!(marks(share(95), None), shares(95, 80));
        assert_eq!(marks(share(80), None), shares(80, 70));
        assert_eq!(marks(share(4), None), shares(4, 2));
        assert_eq!(marks(None, share(75)), shares(90, 75));
        assert_eq!(marks(share(60), share(50)), shares(60, 50));
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_its_line() {
        for (from, to, line, needle) in [
            ("name = \"b\"", "name = \"a\"", ":8: ", "twice"),
            ("path = \"/b\"", "path = \"/a\"", ":9: ", "same path"),
            ("path = \"/b\"\n", "path = \"/b\"\nhigh_mark = \"50 %\"\nlow_mark = \"50 %\"\n", ":11: ", "not below"),
            ("path = \"/b\"\n", "path = \"/b\"\nhigh_mark = \"1 %\"\n", ":10: ", "not below"),
            ("path = \"/b\"\n", "path = \"/b\"\nlow_mark = \"95 %\"\n", ":10: ", "not below"),
            ("path = \"/b\"\n", "path = \"/b\"\nhigh_mark = \"50\"\n", ":10: ", "not a share"),
            ("path = \"/b\"", "path = \"b\"", ":9: ", "not absolute"),
            ("metadata = \"a\"", "metadata = \"c\"", ":3: ", "`c`"),
            ("name = \"b\"", "name = \"b/c\"", ":8: ", "not plain"),
            ("\"media\"", "\"../media\"", ":1: ", "not plain"),
            ("6b1f5c9e", "xxxxxxxx", ":2: ", "UUID"),
            ("path = \"/b\"\n", "path = \"/b\"\n[options]\nmetadata_copy = \"c\"\n", ":11: ", "`c`"),
            ("path = \"/b\"\n", "path = \"/b\"\n[options]\nmetadata_copy = \"a\"\n", ":11: ", "itself"),
            ("path = \"/b\"\n", "path = \"/b\"\n[options]\nmetadata_region = \"r\"\n", ":11: ", "not an absolute path"),
        ] {
            let error = read(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(needle), "{to}: {error}");
        }
    }
}
