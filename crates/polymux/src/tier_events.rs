//! The daemon's part in tiers that join and leave: the directory and the configuration (DESIGN section 13).
//!
//! Invariants:
//! * One event at a time: the lock of the configuration is held from the first check until the file states the outcome.
//! * Invalid requests are refused before anything is made, and files made for a tier that does not join are removed.
//! * The file system says when the configuration is written: after the tier has its label and before it takes data, and
//!   before a tier that leaves loses its label. So the volume mounts after a crash at any point.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use polymux_fs::{Access, VolumeError};
use polymux_tier::{BytesUsed, PosixTier, PosixTierOptions, Tier};
use polymux_types::sync::Mutex;

use crate::protocol::{TierChange, TierPlace};
use crate::report::DaemonView;
use crate::tier_candidates::{self, VolatileTiers};
use polymux_config::config::{self, TierConfig, VolumeConfig};
use polymux_config::config_edit;
use polymux_config::config_format::TierEntry;
use polymux_config::steering_config;

/// One event at a time; the configuration can be read meanwhile.
pub static EVENT: Mutex<()> = Mutex::new(());

/// Takes a tier into the volume and into its configuration.
pub fn add(view: &DaemonView, entry: &TierEntry, place: &TierPlace, volatile: VolatileTiers) -> Result<TierChange> {
    let _one_at_a_time = EVENT.lock();
    let config = view.config.read().clone();
    let tier = TierConfig::from(entry.clone());
    let position = position_of(&config, place)?;
    let mut warnings = check(view, &config, &tier, position)?;
    let (open, is_new) = open(view, &config, &tier, volatile, &mut warnings)?;
    let joined = polymux_config::tiers::member(&tier, Arc::clone(&open)).and_then(|member| {
        let write =
            || config_edit::insert_tier(&view.config_path, position, entry).map_err(|error| format!("{error:#}"));
        Ok(view.file_system.add_tier(member, position, write)?)
    });
    match joined {
        Ok(id) => {
            steering_config::apply_to_movers(std::slice::from_ref(&tier), &config.options, &view.file_system)?;
            *view.config.write() = VolumeConfig::read(&view.config_path)?;
            let done = format!("tier `{}` joined volume `{}` as number {}", tier.name, config.name, id.get());
            Ok(TierChange { done, warnings })
        }
        Err(error) => {
            // Only a label that was made here is removed: one that existed before has another owner.
            if is_new && let Err(error) = open.remove_label() {
                log::warn!("{} stays behind: {error}", config::private_directory(&tier.path).display());
            }
            Err(error)
        }
    }
}

/// Takes a tier out of the volume and out of its configuration.
pub fn remove(view: &DaemonView, name: &str) -> Result<TierChange> {
    let _one_at_a_time = EVENT.lock();
    let config = view.config.read().clone();
    if view.metadata.copy_tier() == Some(name) {
        bail!(
            "tier `{name}` holds the second copy of the metadata store: set `metadata_copy` in the configuration to \
             another tier or to `{}`, and mount again, first",
            config::NO_COPY
        );
    }
    // The others are refused by the file system, with better reasons.
    let may_go = |(index, tier): (usize, &TierConfig)| tier.name == name && index != config.metadata;
    if config.tiers.iter().enumerate().any(may_go) {
        config_edit::check_removal(&view.config_path, name)?;
    }
    remove_once_free(view, name)?;
    *view.config.write() = VolumeConfig::read(&view.config_path)?;
    let mut warnings = Vec::new();
    warnings.extend(warning_of_pins(view, name));
    if let Some(tier) = config.tiers.iter().find(|tier| tier.name == name) {
        let private = config::private_directory(&tier.path);
        // A second copy of long ago is of no use.
        let _ = fs::remove_dir_all(private.join("meta-copy"));
        let _ = fs::remove_dir(&private);
        if private.symlink_metadata().is_ok() {
            warnings.push(format!("{} stays behind", private.display()));
        }
    }
    Ok(TierChange { done: format!("tier `{name}` left volume `{}`", config.name), warnings })
}

/// Takes a tier that is lost out of the volume, and out of its configuration with all that names it.
pub fn forget(view: &DaemonView, name: &str) -> Result<TierChange> {
    let _one_at_a_time = EVENT.lock();
    let volume = view.config.read().name.clone();
    let unlist = || config_edit::forget_tier(&view.config_path, name).map_err(|error| format!("{error:#}"));
    let forgotten = view.file_system.forget_tier(name, unlist);
    let config = VolumeConfig::read(&view.config_path)?;
    if config.tiers.iter().all(|tier| tier.name != name) {
        steering_config::apply_rules(&config, &view.file_system)?;
        *view.config.write() = config;
    }
    let forgotten = forgotten?;
    let mut warnings = Vec::new();
    for pin in view.file_system.pins()?.into_iter().filter(|pin| pin.tier == name) {
        if let Err(error) = view.file_system.pin_to_tier(pin.ino, None) {
            warnings.push(format!("the pin of inode {} to tier `{name}` stays: {error}", pin.ino));
        }
    }
    let done = format!(
        "tier `{name}` is forgotten: {} had data there, {} of them nowhere else",
        crate::output::files(forgotten.files),
        forgotten.whole
    );
    log::warn!("volume {volume}: {done}");
    Ok(TierChange { done, warnings })
}

/// Space of files removed from a tier a moment ago may not be free yet, because the kernel reports late that a file is closed.
const REMOVAL_WAIT_MAX: Duration = Duration::from_secs(5);
const REMOVAL_RETRY: Duration = Duration::from_millis(100);

/// Removes the tier as soon as nothing on it is in use any more, if that is soon.
fn remove_once_free(view: &DaemonView, name: &str) -> std::result::Result<(), VolumeError> {
    let started = Instant::now();
    loop {
        let write = || config_edit::remove_tier(&view.config_path, name).map_err(|error| format!("{error:#}"));
        match view.file_system.remove_tier(name, write) {
            Err(VolumeError::TierBusy(_)) if started.elapsed() < REMOVAL_WAIT_MAX => thread::sleep(REMOVAL_RETRY),
            other => return other,
        }
    }
}

/// Pins that have no effect any more. All attributes are walked for them, as all files were for the removal.
fn warning_of_pins(view: &DaemonView, tier: &str) -> Option<String> {
    let pins = view.file_system.pins().ok()?.iter().filter(|pin| pin.tier == tier).count();
    match pins {
        0 => None,
        1 => Some(format!("1 pin still names tier `{tier}` and has no effect: `polymux pin --list` shows it")),
        _ => Some(format!("{pins} pins still name tier `{tier}` and have no effect: `polymux pin --list` shows them")),
    }
}

fn position_of(config: &VolumeConfig, place: &TierPlace) -> Result<usize> {
    let count = config.tiers.len();
    match place {
        TierPlace::Last => Ok(count),
        TierPlace::Position(number) if (1..=count + 1).contains(number) => Ok(number - 1),
        TierPlace::Position(number) => bail!("there is no place {number}: the volume has {count} tiers"),
        TierPlace::Before(name) => config
            .tiers
            .iter()
            .position(|tier| tier.name == *name)
            .ok_or_else(|| anyhow!("there is no tier `{name}` to come before")),
    }
}

/// Refuses a tier that conflicts with the present ones. Returns warnings.
fn check(view: &DaemonView, config: &VolumeConfig, tier: &TierConfig, position: usize) -> Result<Vec<String>> {
    if config.tiers.iter().any(|other| other.name == tier.name) {
        bail!("the volume has a tier `{}` already", tier.name);
    }
    let mut all = config.tiers.clone();
    all.insert(position, tier.clone());
    config::check_tiers(&all).map_err(|wrong| wrong.error)?;
    tier_candidates::check_nesting(&all)?;
    tier_candidates::check_mount_point(std::slice::from_ref(tier), &view.mount_point)?;
    // The file may have been changed since the volume was mounted.
    let written = VolumeConfig::read(&view.config_path)?;
    let names = |config: &VolumeConfig| config.tiers.iter().map(|tier| tier.name.clone()).collect::<Vec<_>>();
    if names(&written) != names(config) {
        bail!("{} lists other tiers than the volume has: correct it first", view.config_path.display());
    }
    Ok(Vec::new())
}

/// Opens the directory as a tier. Returns whether it was made one just now.
fn open(
    view: &DaemonView,
    config: &VolumeConfig,
    tier: &TierConfig,
    volatile: VolatileTiers,
    warnings: &mut Vec<String>,
) -> Result<(Arc<PosixTier>, bool)> {
    let options = polymux_config::tiers::open_options(tier, Access::ReadWrite);
    let failed = |error| anyhow!("tier `{}`: {}: {error}", tier.name, tier.path.display());
    if is_left_behind(view, config, &tier.path)? {
        // The file system looks at it more closely, and takes it over only where nothing is on it.
        let options = PosixTierOptions { bytes_used: BytesUsed::Scan, ..options };
        return Ok((Arc::new(PosixTier::open(&tier.path, options).map_err(failed)?), false));
    }
    let capabilities = tier_candidates::check_candidate(tier, volatile)?;
    let present = view.file_system.status()?.tiers;
    let mut devices: Vec<(String, u64)> = present
        .iter()
        .filter_map(|other| Some((other.name.clone(), other.capabilities.as_ref()?.device)))
        .filter(|(_, device)| *device == capabilities.device)
        .collect();
    devices.push((tier.name.clone(), capabilities.device));
    warnings.extend(polymux_config::tiers::warnings_of_sharing(&devices));
    warnings.extend(tier_candidates::warnings_of_one(tier, &capabilities));
    Ok((Arc::new(PosixTier::prepare(&tier.path, options).map_err(failed)?), true))
}

/// Whether a directory has a label of this volume that no tier of it has: a crash left it while the directory joined or
/// left.
fn is_left_behind(view: &DaemonView, config: &VolumeConfig, path: &Path) -> Result<bool> {
    let Ok(label) = tier_candidates::read_label(path) else { return Ok(false) };
    let known = view.file_system.status()?.tiers.iter().any(|tier| tier.id == label.tier);
    Ok(label.volume == config.id && !known)
}
