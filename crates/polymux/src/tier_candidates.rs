//! The requirements on a directory that becomes a tier.
//!
//! Invariant: the checks here change nothing on disk, so that everything can be refused before anything is made.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::config::TierConfig;
use polymux_tier::posix::{OWN_DIRECTORY, probe_directory, read_label_at};
use polymux_tier::{Capabilities, Guarantee, Label, TierError};
use rustix::fs::StatVfsMountFlags;

use crate::mount_table::{MountTable, is_intended_polymux, is_polymux, is_within};

/// Whether tiers in memory are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolatileTiers {
    /// They are refused: nothing on them survives a crash.
    Refused,
    /// For `try` and tests.
    Allowed,
}

/// Reads the label of a tier.
pub fn read_label(path: &Path) -> Result<Label> {
    Ok(read_label_at(path)?)
}

/// Checks a directory that is to become a tier. Returns the capabilities of its file system.
pub fn check_candidate(tier: &TierConfig, volatile: VolatileTiers) -> Result<Capabilities> {
    let path = tier.path.display();
    let metadata = tier.path.metadata().with_context(|| format!("tier `{}`: {path}", tier.name))?;
    if !metadata.is_dir() {
        bail!("tier `{}`: {path} is not a directory", tier.name);
    }
    check_surroundings(tier, &MountTable::read()?)?;
    check_intentions(tier, &MountTable::intended())?;
    if let Ok(label) = read_label_at(&tier.path) {
        bail!(
            "tier `{}`: {path} belongs to volume `{}` already (as tier `{}`)",
            tier.name,
            label.volume_name,
            label.tier_name
        );
    }
    let own = tier.path.join(OWN_DIRECTORY);
    if own.symlink_metadata().is_ok() {
        bail!("tier `{}`: {} is there already, without a valid label; move it away", tier.name, own.display());
    }
    let file_system = rustix::fs::statvfs(&tier.path).with_context(|| format!("tier `{}`: {path}", tier.name))?;
    if file_system.f_flag.contains(StatVfsMountFlags::RDONLY) {
        bail!("tier `{}`: {path} is mounted read-only", tier.name);
    }
    let capabilities = probe_directory(&tier.path).map_err(|error| match error {
        TierError::ReadOnly => anyhow!("tier `{}`: {path} is read-only", tier.name),
        error => anyhow!("tier `{}`: {path}: {error}", tier.name),
    })?;
    let kind = &capabilities.file_system;
    if !capabilities.sparse {
        bail!("tier `{}`: {path} is on {kind}, which has no sparse files", tier.name);
    }
    if capabilities.guarantee == Guarantee::Volatile && volatile == VolatileTiers::Refused {
        bail!("tier `{}`: {path} is on {kind}, in memory: everything there is lost at the next restart", tier.name);
    }
    Ok(capabilities)
}

/// Refuses a directory that is on a Polymux volume, or among the files that a volume keeps for itself on a tier.
fn check_surroundings(tier: &TierConfig, mounts: &MountTable) -> Result<()> {
    let (name, path) = (&tier.name, tier.path.display());
    if let Some(mount) = mounts.containing(&tier.path).filter(|mount| is_polymux(mount)) {
        bail!(
            "tier `{name}`: {path} is on volume `{}` (mounted on {}); a tier is a directory of another file system",
            mount.source,
            mount.mount_point.display()
        );
    }
    let within = tier.path.ancestors().find(|ancestor| ancestor.file_name().is_some_and(|name| name == OWN_DIRECTORY));
    match within.and_then(Path::parent).map(read_label_at) {
        Some(Ok(label)) => bail!(
            "tier `{name}`: {path} is among the files of volume `{}` (tier `{}`); name a directory outside of them",
            label.volume_name,
            label.tier_name
        ),
        Some(Err(error)) => bail!(
            "tier `{name}`: {path} is within a directory `{OWN_DIRECTORY}`, in which volumes keep their files on a tier, and its label \
             cannot be read ({error}); name a directory outside of it"
        ),
        None => Ok(()),
    }
}

/// Refuses a directory that would be on a Polymux volume if all that is to be mounted were.
fn check_intentions(tier: &TierConfig, intended: &MountTable) -> Result<()> {
    // The deepest one counts: a file system of its own may be mounted on a directory of a volume.
    let Some(mount) = intended.containing(&tier.path).filter(|mount| is_intended_polymux(mount)) else { return Ok(()) };
    bail!(
        "tier `{}`: {} is where volume `{}` is to be mounted ({}, by /etc/fstab); its files would be hidden then",
        tier.name,
        tier.path.display(),
        mount.source,
        mount.mount_point.display()
    )
}

/// Refuses tiers that lie in one another. Paths are canonical.
pub fn check_nesting(tiers: &[TierConfig]) -> Result<()> {
    for (index, inner) in tiers.iter().enumerate() {
        for outer in tiers.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, outer)| outer) {
            if is_within(&inner.path, &outer.path) {
                bail!(
                    "tier `{}` ({}) lies within tier `{}` ({})",
                    inner.name,
                    inner.path.display(),
                    outer.name,
                    outer.path.display()
                );
            }
        }
    }
    Ok(())
}

/// Refuses a mount point that lies in a tier or holds one. Paths are canonical where they exist.
pub fn check_mount_point(tiers: &[TierConfig], mount_point: &Path) -> Result<()> {
    for tier in tiers {
        let path: PathBuf = tier.path.canonicalize().unwrap_or_else(|_| tier.path.clone());
        if is_within(mount_point, &path) {
            bail!("mount point {} lies within tier `{}` ({})", mount_point.display(), tier.name, path.display());
        }
        if is_within(&path, mount_point) {
            bail!("tier `{}` ({}) lies within the mount point {}", tier.name, path.display(), mount_point.display());
        }
    }
    Ok(())
}

/// Limitations of a new tier, and other users that may change it.
pub fn warnings_of_one(tier: &TierConfig, capabilities: &Capabilities) -> Vec<String> {
    warning_of_limits(tier, capabilities).into_iter().chain(warning_of_owner(tier)).collect()
}

fn warning_of_limits(tier: &TierConfig, capabilities: &Capabilities) -> Option<String> {
    let kind = &capabilities.file_system;
    match capabilities.guarantee {
        Guarantee::Volatile => {
            Some(format!("tier `{}` is in memory ({kind}): nothing there survives a restart", tier.name))
        }
        _ if !capabilities.punch_hole => {
            Some(format!("tier `{}` ({kind}) cannot punch holes: it takes whole files only", tier.name))
        }
        _ => None,
    }
}

/// A user who may rename entries of a tier's directory can put other metadata in the place of the volume's.
fn warning_of_owner(tier: &TierConfig) -> Option<String> {
    let directory = tier.path.metadata().ok()?;
    let (owner, mode) = (directory.uid(), directory.mode());
    let is_of_another = owner != 0 && owner != rustix::process::geteuid().as_raw();
    let may_be_written = mode & 0o022 != 0 && mode & 0o1000 == 0;
    (is_of_another || may_be_written).then(|| {
        format!(
            "tier `{}`: other users may exchange what the volume keeps in {}, set-id programs among it: \
             give the directory to the user of the daemon, and take write permission from group and others",
            tier.name,
            tier.path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(name: &str, path: &str) -> TierConfig {
        TierConfig::new(name, PathBuf::from(path))
    }

    #[test]
    fn nested_tiers_are_refused_in_either_order() {
        check_nesting(&[tier("a", "/x/a"), tier("b", "/x/ab")]).unwrap();
        for paths in [["/x", "/x/y"], ["/x/y", "/x"]] {
            let error = check_nesting(&[tier("a", paths[0]), tier("b", paths[1])]).unwrap_err().to_string();
            assert!(error.contains("lies within"), "{error}");
        }
    }

    #[test]
    fn a_mount_point_may_neither_lie_in_a_tier_nor_hold_one() {
        let tiers = [tier("a", "/nowhere/x")];
        check_mount_point(&tiers, Path::new("/nowhere/xy")).unwrap();
        assert!(check_mount_point(&tiers, Path::new("/nowhere/x/y")).is_err());
        assert!(check_mount_point(&tiers, Path::new("/nowhere")).is_err());
    }
}
