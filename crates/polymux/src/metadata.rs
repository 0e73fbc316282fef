//! The metadata store of a volume, as its configuration wants it.

use anyhow::{Context, Result};
use polymux_meta::{LogStore, LogStoreOptions, OpenMode};
use rustix::fs::statvfs;

use crate::config::VolumeConfig;
use crate::create::random_bytes;

const MEBIBYTE: u64 = 1024 * 1024;

/// Opens the store of a volume, or makes it.
///
/// # Errors
///
/// As [`LogStore::open`].
pub fn open(config: &VolumeConfig, mode: OpenMode) -> Result<LogStore> {
    let path = config.metadata_directory();
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
    Ok(LogStore::open(&path, &options)?)
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
