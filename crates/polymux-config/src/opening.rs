//! Opening the file system of a volume as its configuration describes it, without a mount point.
//!
//! Invariant: tiers are opened and checked before the metadata store, which tidies its files when it is opened, so that a volume that is
//! refused stays as it is.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use polymux_fs::{Access, FileSystem, KernelConnection, MountOptions, Parts, TierMember, TierPresence};
use polymux_meta::MetadataStore;
use polymux_types::SystemClock;

use crate::config::VolumeConfig;
use crate::metadata_copy::Metadata;
use crate::random::random_bytes;
use crate::request::OpenRequest;
use crate::tiers::{self, AskedBy};

/// A file system that is open, with its metadata store.
pub struct OpenedVolume {
    /// The file system.
    pub file_system: FileSystem,
    /// Its metadata store.
    pub metadata: Metadata,
    /// Sentences about anything that its user should know.
    pub warnings: Vec<String>,
}

/// Opens the file system of a volume.
///
/// # Errors
/// A tier is missing, in use or belongs to another volume; the metadata store cannot be opened; the volume is refused.
pub fn open(
    config: &VolumeConfig,
    request: &OpenRequest,
    connection: KernelConnection,
    asked_by: AskedBy,
) -> Result<OpenedVolume> {
    let mount_options = MountOptions { connection, ..request.mount_options(config) };
    let patience = Duration::from_secs(u64::from(config.options.tier_wait.unwrap_or(0)));
    let members = tiers::open_all_within(config, mount_options.access, asked_by, patience)?;
    tiers::check_members(config, &members, mount_options.missing)?;
    let mut warnings = Vec::new();
    let mut devices = Vec::new();
    for member in &members {
        match &member.presence {
            TierPresence::Present(tier) => {
                devices.push((member.name.clone(), tier.capabilities().device));
            }
            TierPresence::Missing(reason) => {
                warnings.push(format!("tier `{}` is missing: {reason}", member.name));
            }
        }
    }
    warnings.extend(tiers::warnings_of_sharing(&devices));
    let metadata = Metadata::open(config, request, &members)?;
    warnings.extend(metadata.recovery.iter().cloned());
    let parts = parts_of(config, members, metadata.store())?;
    let file_system =
        FileSystem::mount(parts, mount_options).map_err(|error| metadata.error_of_mounting(config, error))?;
    if mount_options.access == Access::ReadOnly {
        log::info!("volume `{}` is opened read-only", config.name);
    }
    Ok(OpenedVolume { file_system, metadata, warnings })
}

/// A volume of these tiers and this store, to be mounted or checked.
///
/// # Errors
/// There are no random bytes.
pub fn parts_of(config: &VolumeConfig, members: Vec<TierMember>, store: Arc<dyn MetadataStore>) -> Result<Parts> {
    Ok(Parts {
        name: config.name.clone(),
        tiers: members,
        store,
        metadata_tier: Some(config.tiers[config.metadata].name.clone()),
        clock: Arc::new(SystemClock::new()),
        seed: u64::from_le_bytes(random_bytes()?),
    })
}
