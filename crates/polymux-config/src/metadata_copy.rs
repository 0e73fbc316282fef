//! The second copy of the metadata store: on which tier it is, and starting from it (DESIGN section 5).
//!
//! Invariants:
//! * Without a choice in the configuration the copy is on the tier that has one already, else on the first durable tier
//!   that is on another file system than the store.
//! * The store is made from its copy only where it is gone or damaged, and only on request. A damaged one is moved aside,
//!   never deleted.
//! * A copy is offered only after all of it was read: where it is damaged too, `polymux rebuild` is the remaining way.
//! * A store that was made from a copy and then refused, because the tiers are newer than it, goes again: the copy stays
//!   as it is.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use polymux_fs::{Access, FileSystem, MissingTiers, MountOptions, Parts, TierMember, TierPresence, VolumeError};
use polymux_meta::{
    CopyDescription, CopyPlace, CopyWorth, LogPlacement, LogStore, MetadataStore, OpenMode, StoreEnd, StoreState,
    StoreView, WayOut, describe_copy, restore_from_copy,
};
use polymux_tier::Guarantee;
use polymux_types::SystemClock;

use crate::config::{NO_COPY, TierConfig, VolumeConfig};
use crate::config_edit;
use crate::metadata;
use crate::refusal::{Cause, Refusal};
use crate::request::{MetadataSource, OpenRequest};
use crate::tiers::{self, AskedBy};

/// A metadata store that is open.
pub enum OpenedStore {
    /// For writing.
    Writable(Arc<LogStore>),
    /// Of a volume that is mounted read-only: nothing of it is changed, and it counts as no opening.
    ForReading(Arc<StoreView>),
}

/// The metadata store of a mounted volume.
pub struct Metadata {
    /// The store.
    pub opened: OpenedStore,
    /// Recovery actions of opening it.
    pub recovery: Vec<String>,
    /// Name of the tier that holds its second copy, or why there is none.
    copy: Result<String, String>,
    /// It was made from its second copy just now.
    restored: bool,
}

impl Metadata {
    /// Opens the store, from its second copy where that is asked for.
    pub fn open(config: &VolumeConfig, request: &OpenRequest, members: &[TierMember]) -> Result<Self> {
        let mut recovery = Vec::new();
        let restored = request.metadata_source == Some(MetadataSource::SecondCopy);
        if request.access == Some(Access::ReadOnly) {
            if restored {
                bail!("starting from the second copy makes a new metadata store: it cannot be read-only");
            }
            let view = for_reading(config).map_err(|error| with_hint(config, error))?;
            let copy = Err("the volume is mounted read-only".to_owned());
            return Ok(Self { opened: OpenedStore::ForReading(Arc::new(view)), recovery, copy, restored });
        }
        if restored {
            recovery.push(start_from_copy(config, request, members)?);
        }
        let copy = copy_tier(config, members);
        let opened = metadata::open(config, OpenMode::Existing, copy.as_ref().ok().copied());
        let store = opened.map_err(|error| with_hint(config, error))?;
        if restored {
            polymux_fs::describe_all_anew(&store)?;
        }
        let copy = copy.map(|tier| config.tiers[tier].name.clone());
        Ok(Self { opened: OpenedStore::Writable(Arc::new(store)), recovery, copy, restored })
    }

    /// The store, for a file system.
    pub fn store(&self) -> Arc<dyn MetadataStore> {
        match &self.opened {
            OpenedStore::Writable(store) => Arc::clone(store) as _,
            OpenedStore::ForReading(view) => Arc::clone(view) as _,
        }
    }

    /// The store where it is writable: closing it ships the rest to its second copy.
    pub fn writable(&self) -> Option<&Arc<LogStore>> {
        match &self.opened {
            OpenedStore::Writable(store) => Some(store),
            OpenedStore::ForReading(_) => None,
        }
    }

    /// Name of the tier that holds the second copy.
    pub fn copy_tier(&self) -> Option<&str> {
        self.copy.as_deref().ok()
    }

    /// Why there is no second copy.
    pub fn reason_of_no_copy(&self) -> Option<&str> {
        self.copy.as_ref().err().map(String::as_str)
    }

    /// The error of a mount that was refused. Files made for that mount are removed.
    pub fn error_of_mounting(&self, config: &VolumeConfig, error: VolumeError) -> anyhow::Error {
        let nothing_changed = !matches!(error, VolumeError::FileSystem(_));
        let mut text = format!("volume `{}`: {error}", config.name);
        if self.restored && nothing_changed {
            let store = config.metadata_directory();
            text.push_str("; nothing was started from the second copy");
            if let Err(left) = fs::remove_dir_all(&store) {
                text.push_str(&format!(" ({} stays behind: {left})", store.display()));
            }
        }
        Refusal::new(text, Cause::Volume(error)).into()
    }
}

/// Opens the store without a change. One that ends before its copy is refused, as an opening for writing refuses it.
fn for_reading(config: &VolumeConfig) -> Result<StoreView> {
    let mut options = metadata::options(config, OpenMode::Existing)?;
    options.surviving = metadata::surviving_place();
    let placement = metadata::recorded_placement(config)?;
    let view = StoreView::open_for(&config.metadata_directory(), &placement, &options)?;
    let end = view.end();
    for place in copy_places(config) {
        match describe_copy(&place.path) {
            Ok(Some(copy)) if is_ahead(&copy, &end) => bail!(
                "the log ends at transaction {}, and its second copy on {} goes on to {}: durable transactions are lost",
                end.committed.get(),
                place.name,
                copy.arrived.get()
            ),
            _ => {}
        }
    }
    Ok(view)
}

fn is_ahead(copy: &CopyDescription, end: &StoreEnd) -> bool {
    copy.store == end.store && copy.worth != CopyWorth::Incomplete && copy.arrived > end.committed
}

/// Where second copies may be: on any tier.
fn copy_places(config: &VolumeConfig) -> Vec<CopyPlace> {
    let place = |(index, tier): (usize, &TierConfig)| CopyPlace {
        name: format!("tier `{}`", tier.name),
        path: config.copy_directory(index),
    };
    config.tiers.iter().enumerate().map(place).collect()
}

/// The tier that holds the second copy, or why there is none.
fn copy_tier(config: &VolumeConfig, members: &[TierMember]) -> Result<usize, String> {
    match config.options.metadata_copy.as_deref() {
        Some(NO_COPY) => return Err("switched off in the configuration".to_owned()),
        Some(name) => {
            let tier = config.tiers.iter().position(|tier| tier.name == name);
            return tier.ok_or_else(|| format!("there is no tier `{name}`"));
        }
        None => {}
    }
    let device = |index: usize| match &members[index].presence {
        TierPresence::Present(tier) => Some((tier.capabilities().device, tier.capabilities().guarantee)),
        TierPresence::Missing(_) => None,
    };
    let own = device(config.metadata).map(|(device, _)| device);
    let fits = |index: &usize| {
        device(*index).is_some_and(|(device, guarantee)| Some(device) != own && guarantee == Guarantee::Durable)
    };
    let candidates: Vec<usize> = (0..members.len()).filter(|index| *index != config.metadata).filter(fits).collect();
    let used = candidates.iter().find(|index| config.copy_directory(**index).exists());
    used.or(candidates.first())
        .copied()
        .ok_or_else(|| "no other durable tier is on a file system of its own".to_owned())
}

/// Where the volume is to start from its second copy and its metadata tier is missing: makes the tier that has the copy
/// the metadata tier, in the configuration first. Returns messages about that, and the new configuration.
///
/// # Errors
/// There is no copy to start from, or the configuration cannot be written.
pub fn take_over(
    config: &VolumeConfig,
    path: &Path,
    request: &OpenRequest,
    asked_by: AskedBy,
) -> Result<Option<(String, VolumeConfig)>> {
    let is_asked = request.metadata_source == Some(MetadataSource::SecondCopy)
        && request.missing == Some(MissingTiers::Degraded)
        && request.access != Some(Access::ReadOnly);
    if !is_asked {
        return Ok(None);
    }
    let members = tiers::open_all(config, Access::ReadWrite, asked_by)?;
    let lost = &members[config.metadata];
    if matches!(lost.presence, TierPresence::Present(_)) {
        return Ok(None);
    }
    let (tier, _) = newest_copy(config)?;
    let name = &config.tiers[tier].name;
    config_edit::set_metadata_tier(path, name)?;
    let note = format!("metadata tier `{}` is missing: tier `{name}` is the metadata tier from now on", lost.name);
    Ok(Some((note, VolumeConfig::read(path)?)))
}

/// Makes the store from its second copy. Returns messages about that. Nothing is moved before the copy was read.
fn start_from_copy(config: &VolumeConfig, request: &OpenRequest, members: &[TierMember]) -> Result<String> {
    let store = config.metadata_directory();
    let lost = match state_of(config)? {
        StoreState::Healthy => bail!(
            "the metadata store in {} is whole, and its second copy may lack what was written last: mount without \
             --from-copy. To start from the copy all the same, move that directory away first",
            store.display()
        ),
        StoreState::Gone => "the metadata store is gone".to_owned(),
        StoreState::Damaged(reason) => format!("the metadata store is damaged ({reason})"),
        StoreState::Behind(reason) => format!("the metadata store is behind its second copy ({reason})"),
    };
    let (tier, described) = newest_copy(config).map_err(|error| {
        anyhow!("{lost}, and {error}. `polymux rebuild {}` makes a new one out of the objects", config.name)
    })?;
    refuse_older_than_tiers(config, tier, request, members)?;
    let aside = move_aside(&store)?;
    let mut restoring = metadata::options(config, OpenMode::Existing)?;
    restoring.surviving = metadata::surviving_place();
    restore_from_copy(&config.copy_directory(tier), &store, &restoring)
        .with_context(|| format!("starting from the second copy on tier `{}`", config.tiers[tier].name))?;
    Ok(format!(
        "{lost}{aside}; started from its second copy on tier `{}`, {}",
        config.tiers[tier].name,
        lag_of(&described)
    ))
}

/// Fails where the volume would not be mounted with the copy as its store: where files were changed without it, the labels
/// of the tiers are newer. Nothing is changed.
fn refuse_older_than_tiers(
    config: &VolumeConfig,
    tier: usize,
    request: &OpenRequest,
    members: &[TierMember],
) -> Result<()> {
    let copy = config.copy_directory(tier);
    let view = StoreView::open(&copy, &LogPlacement::Block, &polymux_fs::store_boundaries())?;
    let parts = Parts {
        name: config.name.clone(),
        tiers: members.to_vec(),
        store: Arc::new(view),
        metadata_tier: Some(config.tiers[config.metadata].name.clone()),
        clock: Arc::new(SystemClock::new()),
        seed: 0,
    };
    let mount_options = MountOptions { access: Access::ReadOnly, ..request.mount_options(config) };
    match FileSystem::mount(parts, mount_options) {
        // Its records are checked later.
        Ok(_) | Err(VolumeError::FileSystem(_)) => Ok(()),
        Err(error) => {
            let is_older = matches!(error, VolumeError::StaleMetadata { .. });
            let way_out = match state_of(config) {
                Ok(StoreState::Behind(_)) if is_older => {
                    format!(". To go on with what the store has, remove {}", copy.display())
                }
                Ok(StoreState::Gone | StoreState::Damaged(_)) if is_older => {
                    format!(". `polymux rebuild {}` makes a new store out of the objects", config.name)
                }
                _ => String::new(),
            };
            bail!(
                "volume `{}`: {error}; nothing was started from the second copy on tier `{}`{way_out}",
                config.name,
                config.tiers[tier].name
            )
        }
    }
}

/// Checks whether the store of a volume can be opened, and changes nothing. One that lost changes that its second copy has is damaged.
///
/// # Errors
/// The state cannot be determined.
pub fn state_of(config: &VolumeConfig) -> Result<StoreState> {
    let options = metadata::options(config, OpenMode::Existing)?;
    Ok(StoreState::of(&config.metadata_directory(), &copy_places(config), &options)?)
}

/// The copy that holds most, of all tiers. It was read as a whole, so a store can be made of it.
///
/// # Errors
/// There is none that can be used.
pub fn newest_copy(config: &VolumeConfig) -> Result<(usize, CopyDescription)> {
    polymux_meta::newest_copy(&copy_places(config), &polymux_fs::store_boundaries()).map_err(|none| anyhow!(none))
}

/// Moves the remains of a store out of the way, to a free name. Returns a message about that.
///
/// # Errors
/// It cannot be renamed.
pub fn move_aside(store: &Path) -> Result<String> {
    if store.symlink_metadata().is_err() {
        return Ok(String::new());
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let names =
        std::iter::once(format!("damaged-{seconds}")).chain((2..).map(|turn| format!("damaged-{seconds}-{turn}")));
    let aside = names
        .map(|name| store.with_extension(name))
        .find(|aside| aside.symlink_metadata().is_err())
        .context("every name for what is left of a metadata store is taken")?;
    fs::rename(store, &aside).with_context(|| format!("moving {} away", store.display()))?;
    Ok(format!(" (what is left of it: {})", aside.display()))
}

/// Describes the changes that a copy may lack.
pub fn lag_of(copy: &CopyDescription) -> String {
    let transaction = copy.arrived.get();
    if copy.worth == CopyWorth::Closed {
        return format!("which has everything up to the last unmount (transaction {transaction}): nothing is lost");
    }
    let age = SystemTime::now().duration_since(copy.time).unwrap_or_default();
    format!(
        "which has everything that was durable {:.1} s ago (transaction {transaction}); changes that became durable \
         after that are lost",
        age.as_secs_f64()
    )
}

/// Adds a hint to the error of a store that cannot be opened.
pub fn with_hint(config: &VolumeConfig, error: anyhow::Error) -> anyhow::Error {
    let places = copy_places(config);
    let Ok(options) = metadata::options(config, OpenMode::Existing) else { return error };
    let Some(way_out) = WayOut::of(&config.metadata_directory(), &places, &options) else { return error };
    let advice = way_out.advice(&places, &config.name);
    error.context(match &way_out {
        WayOut::FromCopy { described, .. } => {
            format!("the metadata store cannot be opened; {advice}, {}", lag_of(described))
        }
        WayOut::Rebuild(_) => format!("the metadata store cannot be opened, and {advice}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_aside_gets_a_free_name_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("meta");
        for turn in 0..5 {
            fs::create_dir(&store).unwrap();
            fs::write(store.join("log"), [turn]).unwrap();
            assert!(move_aside(&store).unwrap().contains("meta.damaged-"));
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5);
        assert_eq!(move_aside(&store).unwrap(), "");
    }
}
