//! `polymux create`: makes a volume.
//!
//! Invariant: everything is checked before anything is made, which is [`polymux_config::creation`].

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::creation;
use polymux_config::random::random_bytes;
use polymux_fs::PolicyKind;
use polymux_tier::measure::TIME_DEFAULT;
use polymux_tier::{Capabilities, Guarantee, Rotation, disks_of};
use polymux_types::VolumeId;

use crate::cli::{CreateArguments, Named};
use crate::output;
use crate::tier_candidates::{self, VolatileTiers};
use crate::tier_measure;
use polymux_config::config::{self, TierConfig, VolumeConfig};
use polymux_config::config_format::{OptionsEntry, PolicyName};
use polymux_config::metadata;
use polymux_config::names;
use polymux_config::registry::{Registry, VolumeReference};
use polymux_config::steering_config::SteeringConfig;

/// Makes a volume and says so.
pub fn run(registry: &Registry, arguments: &CreateArguments) -> Result<()> {
    names::check("volume", &arguments.name)?;
    let config_path = match &arguments.config {
        Some(path) => std::path::absolute(path)?,
        None => registry.config_path(&VolumeReference::Name(arguments.name.clone()))?,
    };
    if config_path.symlink_metadata().is_ok() {
        bail!("volume `{}` exists already: {}", arguments.name, config_path.display());
    }
    let volatile = if arguments.volatile_for_tests { VolatileTiers::Allowed } else { VolatileTiers::Refused };
    let (config, warnings) = plan(arguments, volatile)?;
    let policy = config.steering.policy();
    if arguments.config.is_none() {
        registry.make_config_directory()?;
    }
    warnings.iter().for_each(|warning| output::warn(warning));
    creation::make(&config, &config_path, &output::warn)?;
    output::line(&format!(
        "volume `{}` made of {} tiers; configuration in {}",
        config.name,
        config.tiers.len(),
        config_path.display()
    ))?;
    if policy == PolicyKind::Adaptive {
        output::line(&format!(
            "policy adaptive: large files grow over several tiers while one does not keep up, and a lost tier then costs a part of each; \
             `polymux policy set {} hot-cold` keeps the growth of a file on one",
            config.name
        ))?;
    }
    if arguments.measure {
        // The volume is made, whatever comes of this.
        match tier_measure::unmounted(&config, &[], TIME_DEFAULT) {
            Ok(found) => found.iter().try_for_each(|report| output::line(&tier_measure::render(report)))?,
            Err(error) => output::warn(&format!("{error:#}; `polymux tier measure {}` tries again", config.name)),
        }
    }
    Ok(())
}

/// Checks everything. Returns the new configuration, and warnings.
fn plan(arguments: &CreateArguments, volatile: VolatileTiers) -> Result<(VolumeConfig, Vec<String>)> {
    let mut tiers: Vec<TierConfig> = arguments.tiers.iter().map(candidate).collect::<Result<_>>()?;
    for Named { name, value } in &arguments.capacities {
        named(&mut tiers, name)?.capacity = Some(value.0);
    }
    for Named { name, value } in &arguments.reserves {
        named(&mut tiers, name)?.reserve = Some(value.0);
    }
    config::check_tiers(&tiers).map_err(|wrong| wrong.error)?;
    tier_candidates::check_nesting(&tiers)?;
    let capabilities: Vec<Capabilities> =
        tiers.iter().map(|tier| tier_candidates::check_candidate(tier, volatile)).collect::<Result<_>>()?;
    let metadata = metadata_tier(arguments, &tiers, &capabilities)?;
    let devices: Vec<(String, u64)> =
        tiers.iter().zip(&capabilities).map(|(tier, can)| (tier.name.clone(), can.device)).collect();
    let mut warnings = polymux_config::tiers::warnings_of_sharing(&devices);
    warnings
        .extend(tiers.iter().zip(&capabilities).flat_map(|(tier, can)| tier_candidates::warnings_of_one(tier, can)));
    let id = VolumeId::from_random(random_bytes()?);
    let metadata_region = arguments.metadata_region.as_ref().map(std::path::absolute).transpose()?;
    metadata_region.as_deref().map_or(Ok(()), metadata::check_region)?;
    let options = OptionsEntry { metadata_region, ..OptionsEntry::default() };
    Ok((
        VolumeConfig {
            name: arguments.name.clone(),
            id,
            metadata,
            tiers,
            options,
            steering: SteeringConfig { policy: default_policy(&capabilities, disks_of), ..SteeringConfig::default() },
        },
        warnings,
    ))
}

/// The policy that a new volume has on record; `None`: that of volumes without one. Growth over several tiers is for volumes whose tiers
/// have disks of their own that are known not to rotate: two partitions of one disk have no more bandwidth than one.
fn default_policy(capabilities: &[Capabilities], disks_of: impl Fn(u64) -> BTreeSet<String>) -> Option<PolicyName> {
    let is_fit = |can: &Capabilities| {
        can.rotation == Rotation::NonRotational && can.guarantee == Guarantee::Durable && can.holds_partial_files()
    };
    let disks: Vec<BTreeSet<String>> = capabilities.iter().map(|can| disks_of(can.device)).collect();
    let all: BTreeSet<&String> = disks.iter().flatten().collect();
    let share_none = disks.iter().map(BTreeSet::len).sum::<usize>() == all.len();
    let are_fit = capabilities.len() > 1 && share_none && capabilities.iter().all(is_fit);
    are_fit.then_some(PolicyName::of(PolicyKind::Adaptive))
}

/// A tier as the command line gives it, with the true path of its directory.
pub fn candidate(argument: &Named<PathBuf>) -> Result<TierConfig> {
    names::check("tier", &argument.name)?;
    let path = argument
        .value
        .canonicalize()
        .with_context(|| format!("tier `{}`: {}", argument.name, argument.value.display()))?;
    Ok(TierConfig::new(argument.name.clone(), path))
}

fn named<'a>(tiers: &'a mut [TierConfig], name: &str) -> Result<&'a mut TierConfig> {
    tiers.iter_mut().find(|tier| tier.name == name).ok_or_else(|| anyhow!("there is no tier `{name}` to limit"))
}

/// The tier for metadata: as asked for, else the first durable one, else (all in memory) the first.
fn metadata_tier(arguments: &CreateArguments, tiers: &[TierConfig], capabilities: &[Capabilities]) -> Result<usize> {
    match &arguments.metadata {
        Some(name) => tiers
            .iter()
            .position(|tier| tier.name == *name)
            .ok_or_else(|| anyhow!("metadata tier `{name}` is not one of the tiers")),
        None => Ok(capabilities.iter().position(|can| can.guarantee == Guarantee::Durable).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use polymux_tier::{PosixTier, PosixTierOptions};

    use super::*;

    #[test]
    fn a_new_volume_is_adaptive_where_each_tier_has_a_device_that_is_known_not_to_rotate() {
        let directory = tempfile::tempdir().unwrap();
        let tier = PosixTier::prepare(directory.path(), PosixTierOptions::new("tier")).unwrap();
        let tier_on = |device, rotation, guarantee| Capabilities {
            device,
            is_assumed: false,
            rotation,
            guarantee,
            sparse: true,
            punch_hole: true,
            ..polymux_tier::Tier::capabilities(&tier).clone()
        };
        let solid = |device| tier_on(device, Rotation::NonRotational, Guarantee::Durable);
        let adaptive = Some(PolicyName::of(PolicyKind::Adaptive));
        // Partitions 10 and 11 of a disk; the rest are disks.
        let disks = |device: u64| BTreeSet::from([if device >= 10 { "nvme0n1".into() } else { device.to_string() }]);
        let default_policy = |capabilities: &[Capabilities]| super::default_policy(capabilities, disks);
        assert_eq!(default_policy(&[solid(1), solid(2)]), adaptive);
        assert_eq!(default_policy(&[solid(1), solid(2), solid(3)]), adaptive);
        let others = [
            tier_on(2, Rotation::Rotational, Guarantee::Durable),
            tier_on(2, Rotation::Unknown, Guarantee::Durable),
            tier_on(2, Rotation::NonRotational, Guarantee::Remote),
            tier_on(2, Rotation::NonRotational, Guarantee::Volatile),
            solid(1),
        ];
        for other in others {
            assert_eq!(default_policy(&[solid(1), other.clone()]), None, "{other:?}");
        }
        assert_eq!(default_policy(&[solid(1)]), None, "one tier has nothing to spread over");
        assert_eq!(default_policy(&[solid(10), solid(11)]), None, "two partitions of one disk");
    }
}
