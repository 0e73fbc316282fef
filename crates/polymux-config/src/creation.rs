//! Making a volume: its tiers, its metadata store, its root directory, and last its configuration, which makes it exist.
//!
//! Invariant: a failure midway is undone. [`Undo`] removes exactly what this run made, and nothing that existed before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use polymux_fs::{Access, FileSystem, NewVolume};
use polymux_meta::OpenMode;
use polymux_tier::PosixTier;

use crate::config::{self, VolumeConfig};
use crate::{metadata, opening, tiers};

/// Makes a volume and writes its configuration, which was checked, to a path where nothing is. `warn` receives a sentence for each file that an
/// undone attempt leaves behind.
///
/// # Errors
/// A tier cannot be prepared, the store or the volume cannot be made, or the configuration exists by now.
pub fn make(config: &VolumeConfig, config_path: &Path, warn: &dyn Fn(&str)) -> Result<()> {
    let mut undo = Undo { made: Vec::new(), warn };
    let mut members = Vec::new();
    for tier in &config.tiers {
        undo.made.push(config::private_directory(&tier.path));
        let open = PosixTier::prepare(&tier.path, tiers::open_options(tier, Access::ReadWrite))
            .map_err(|error| anyhow!("tier `{}`: {}: {error}", tier.name, tier.path.display()))?;
        members.push(tiers::member(tier, Arc::new(open))?);
    }
    undo.made.extend(config.options.metadata_region.clone());
    let store = metadata::open(config, OpenMode::CreateNew, None)?;
    let parts = opening::parts_of(config, members, Arc::new(store))?;
    let volume = NewVolume {
        id: config.id,
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        root_permissions: 0o755,
    };
    FileSystem::format(&parts, &volume).map_err(|error| anyhow!("volume `{}`: {error}", config.name))?;
    drop(parts);
    config.write_new(config_path)?;
    undo.keep();
    Ok(())
}

/// Removes the files made by this run, newest first, unless `keep` is called.
struct Undo<'a> {
    made: Vec<PathBuf>,
    warn: &'a dyn Fn(&str),
}

impl Undo<'_> {
    fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        for path in self.made.drain(..).rev() {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            if let Err(error) = removed
                && error.kind() != std::io::ErrorKind::NotFound
            {
                (self.warn)(&format!("{} stays behind: {error}", path.display()));
            }
        }
    }
}
