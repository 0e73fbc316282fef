//! The metadata store of a volume, as its configuration wants it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polymux_fs::BootId;
use polymux_meta::{CopyOptions, LogPlacement, LogStore, LogStoreOptions, OpenMode};
use polymux_tier::mapped::{self, Addressing, RegionKind, SharedMemory};
use polymux_types::FileSystemSpace;
use polymux_types::surviving::SurvivingPlace;
use rustix::fs::statvfs;

use crate::config::VolumeConfig;
use crate::random::random_bytes;
use crate::registry::is_environment_trusted;
use crate::request::present_boot;

const MEBIBYTE: u64 = 1024 * 1024;

/// Overrides where memory is kept that outlives the daemon. Where it names no directory on tmpfs, none does.
pub const MEMORY_DIRECTORY_VARIABLE: &str = "POLYMUX_MEMORY_DIR";

/// Opens the store of a volume, or makes it; with its second copy on the tier `copy`, where one is given.
///
/// # Errors
///
/// As [`LogStore::open`].
pub fn open(config: &VolumeConfig, mode: OpenMode, copy: Option<usize>) -> Result<LogStore> {
    let mut options = options(config, mode)?;
    options.log_placement = match mode {
        OpenMode::CreateNew => placement(config, options.log_bytes)?,
        OpenMode::Existing => recorded_placement(config)?,
    };
    if mode == OpenMode::Existing {
        options.surviving = surviving_place();
    }
    if let Some(tier) = copy {
        let mut copying = CopyOptions::new(config.copy_directory(tier));
        if let Some(seconds) = config.options.metadata_copy_interval {
            copying.interval = Duration::from_secs(u64::from(seconds));
        }
        if let Some(seconds) = config.options.hang_after.filter(|seconds| *seconds > 0) {
            copying.wait_max = copying.wait_max.min(Duration::from_secs(u64::from(seconds)));
        }
        options.copy = Some(copying);
    }
    Ok(LogStore::open(&config.metadata_directory(), &options)?)
}

/// Where the end of the log outlives the daemon; nowhere where the boot of this machine has no number.
pub fn surviving_place() -> Option<Arc<dyn SurvivingPlace>> {
    let BootId(boot) = Some(present_boot()).filter(|boot| *boot != BootId::UNKNOWN)?;
    let chosen = std::env::var_os(MEMORY_DIRECTORY_VARIABLE).filter(|_| is_environment_trusted());
    Some(Arc::new(match chosen {
        Some(directory) => SharedMemory::in_directory(Path::new(&directory), boot),
        None => SharedMemory::of_machine(boot),
    }))
}

/// Makes a store for a volume in a directory beside its place, to be renamed there. Its log is in a file.
///
/// # Errors
///
/// As [`LogStore::open`].
pub fn create_beside(config: &VolumeConfig, directory: &Path) -> Result<LogStore> {
    let mut options = options(config, OpenMode::CreateNew)?;
    options.log_placement = LogPlacement::Block;
    Ok(LogStore::open(directory, &options)?)
}

/// How the store of a volume is opened, or made.
pub fn options(config: &VolumeConfig, mode: OpenMode) -> Result<LogStoreOptions> {
    let mut options = LogStoreOptions::new(mode);
    options.boundaries = polymux_fs::store_boundaries();
    if let Some(memory) = config.options.metadata_memory {
        options.memory_bytes = memory.0.0;
    }
    let tier = &config.tiers[config.metadata].path;
    let space = statvfs(tier).with_context(|| format!("{}", tier.display()))?;
    let (log_bytes, ballast_bytes) = shares_of(FileSystemSpace::from(&space).total);
    options.log_bytes = log_bytes;
    options.ballast_bytes = config.options.metadata_ballast.map_or(ballast_bytes, |ballast| ballast.0.0);
    if mode == OpenMode::CreateNew {
        options.seeds = [u64::from_le_bytes(random_bytes()?), u64::from_le_bytes(random_bytes()?)];
    }
    Ok(options)
}

/// Where the log of an existing store is: as the store records it, with the path of its region as the configuration gives it
/// now. The content identifies a region, so that it may be mounted elsewhere than when the store was made.
///
/// # Errors
///
/// As [`LogPlacement::recorded`].
pub fn recorded_placement(config: &VolumeConfig) -> Result<LogPlacement> {
    let recorded = LogPlacement::recorded(&config.metadata_directory())?;
    let Some(configured) = &config.options.metadata_region else { return Ok(recorded) };
    Ok(match recorded {
        LogPlacement::Region { length_bytes, kind, write_back_delay_ns, .. } => {
            LogPlacement::Region { path: configured.clone(), length_bytes, kind, write_back_delay_ns }
        }
        LogPlacement::Block => {
            // A store that was made anew, from its copy or from the objects, has its log in a file.
            log::warn!(
                "metadata_region = {} is not in use: this metadata store keeps its log in a file",
                configured.display()
            );
            LogPlacement::Block
        }
    })
}

/// Where the log of a new store goes: into the region that the configuration names; without one into byte-addressable memory
/// where the metadata tier has it (DAX), as its file system shows by mapping a file so; otherwise into a file.
fn placement(config: &VolumeConfig, log_bytes: u64) -> Result<LogPlacement> {
    let region = |path: PathBuf| LogPlacement::Region {
        path,
        length_bytes: log_bytes.next_power_of_two(),
        kind: RegionKind::Dax,
        write_back_delay_ns: 0,
    };
    if let Some(path) = &config.options.metadata_region {
        check_region(path)?;
        return Ok(region(path.clone()));
    }
    let tier = &config.tiers[config.metadata].path;
    Ok(match mapped::probe(tier) {
        Ok(Addressing::Dax) => region(config.metadata_directory().with_extension("region")),
        Ok(Addressing::Memory | Addressing::Blocks) => LogPlacement::Block,
        Err(error) => {
            log::warn!("tier {}: it could not be found out whether it is byte-addressable: {error}", tier.display());
            LogPlacement::Block
        }
    })
}

/// Checks that a new region of the log can be made at a path: there is no file yet, and the directory lies in
/// byte-addressable memory that survives a power failure.
///
/// # Errors
///
/// Says why it cannot, and names the path.
pub fn check_region(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        bail!("metadata_region: {} exists already; name a file that is to be made", path.display());
    }
    let directory = path.parent().filter(|_| path.is_absolute() && path.file_name().is_some());
    let Some(directory) = directory else {
        bail!("metadata_region: {} is not the absolute path of a file", path.display());
    };
    match mapped::probe(directory) {
        Ok(Addressing::Dax) => Ok(()),
        Ok(Addressing::Memory) => bail!(
            "metadata_region: {} is in ordinary memory, which does not survive a power failure",
            directory.display()
        ),
        Ok(Addressing::Blocks) => bail!(
            "metadata_region: {} is not in byte-addressable memory: its file system has to be mounted with DAX",
            directory.display()
        ),
        Err(error) => Err(error).with_context(|| format!("metadata_region: {}", directory.display())),
    }
}

/// Bytes that a store takes of a file system of this size in addition to its tables: log and ballast. A small disk gives up
/// little of itself, and a large one no more than is of use.
fn shares_of(total: u64) -> (u64, u64) {
    let log = (total / 64).clamp(4 * MEBIBYTE, 64 * MEBIBYTE);
    let ballast = (total / 32).clamp(8 * MEBIBYTE, 128 * MEBIBYTE);
    (log, ballast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_takes_little_of_a_small_file_system_and_no_more_than_it_needs_of_a_large_one() {
        assert_eq!(shares_of(256 * MEBIBYTE), (4 * MEBIBYTE, 8 * MEBIBYTE));
        assert_eq!(shares_of(1 << 44), (64 * MEBIBYTE, 128 * MEBIBYTE));
    }
}
