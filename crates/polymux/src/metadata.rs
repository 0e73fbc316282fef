//! The metadata store of a volume, as its configuration wants it.

use std::time::Duration;

use anyhow::{Context, Result};
use polymux_meta::{CopyOptions, LogPlacement, LogStore, LogStoreOptions, OpenMode};
use polymux_tier::mapped::{self, Addressing, RegionKind};
use rustix::fs::statvfs;

use crate::config::VolumeConfig;
use crate::create::random_bytes;

const MEBIBYTE: u64 = 1024 * 1024;

/// Opens the store of a volume, or makes it; with its second copy on the tier `copy`, where one is given.
///
/// # Errors
///
/// As [`LogStore::open`].
pub fn open(config: &VolumeConfig, mode: OpenMode, copy: Option<usize>) -> Result<LogStore> {
    let mut options = options(config, mode)?;
    options.log_placement = match mode {
        OpenMode::CreateNew => placement(config, options.log_bytes),
        OpenMode::Existing => LogPlacement::recorded(&config.metadata_directory())?,
    };
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

/// Makes a store for a volume in a directory beside its place, to be renamed there. Its log is in a file.
///
/// # Errors
///
/// As [`LogStore::open`].
pub fn create_beside(config: &VolumeConfig, directory: &std::path::Path) -> Result<LogStore> {
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
    let (log_bytes, ballast_bytes) = shares_of(space.f_blocks * space.f_frsize);
    options.log_bytes = log_bytes;
    options.ballast_bytes = config.options.metadata_ballast.map_or(ballast_bytes, |ballast| ballast.0.0);
    if mode == OpenMode::CreateNew {
        options.seeds = [u64::from_le_bytes(random_bytes()?), u64::from_le_bytes(random_bytes()?)];
    }
    Ok(options)
}

/// Where the log of a new store goes: into byte-addressable memory where the metadata tier has it (DAX), as its file system
/// shows by mapping a file so; otherwise into a file.
fn placement(config: &VolumeConfig, log_bytes: u64) -> LogPlacement {
    let tier = &config.tiers[config.metadata].path;
    match mapped::probe(tier) {
        Ok(Addressing::Dax) => LogPlacement::Region {
            path: config.metadata_directory().with_extension("region"),
            length_bytes: log_bytes.next_power_of_two(),
            kind: RegionKind::Dax,
            write_back_delay_ns: 0,
        },
        Ok(Addressing::Memory | Addressing::Blocks) => LogPlacement::Block,
        Err(error) => {
            log::warn!("tier {}: it could not be found out whether it is byte-addressable: {error}", tier.display());
            LogPlacement::Block
        }
    }
}

/// What a store takes of a file system of so many bytes beside its tables: log and ballast. A small disk gives up little
/// of itself, and a large one is not asked for more than is of use.
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
