//! From the tiers of a configuration to open ones, and the requirements on a directory that becomes one.
//!
//! Invariant: the checks here change nothing on disk, so that everything can be refused before anything is made.

mod answering;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use polymux_fs::{Access, MissingTiers, MountOptions, TierMember, TierPresence, TierSource, VolumeError};
use polymux_tier::posix::{OWN_DIRECTORY, OpenAccess, probe_directory, read_label_at};
use polymux_tier::{BytesUsed, Capabilities, Guarantee, Label, PosixTier, PosixTierOptions, Tier, TierError};
use polymux_types::ByteSize;
use rustix::fs::StatVfsMountFlags;

use crate::config::{TierConfig, VolumeConfig};
use crate::mount_table::{MountTable, is_intended_polymux, is_polymux, is_within};

use self::answering::Answering;
pub use self::answering::touch;

/// How often missing tiers are looked for while a mount waits.
const WAIT_INTERVAL: Duration = Duration::from_millis(500);

/// A tier that is opened has as long to answer as this many times `hang_after`: a disk that sleeps has to spin up first.
const PATIENCE_TO_OPEN: u32 = 6;

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

/// One warning for each group of tiers that share a file system; each group is counted once.
pub fn warnings_of_sharing(devices: &[(String, u64)]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, (_, device)) in devices.iter().enumerate() {
        if devices[..index].iter().any(|(_, earlier)| earlier == device) {
            continue;
        }
        let group: Vec<String> =
            devices.iter().filter(|(_, other)| other == device).map(|(name, _)| format!("`{name}`")).collect();
        if group.len() > 1 {
            warnings.push(format!(
                "tiers {} share one file system: its room is counted once, and none is faster than the others",
                group.join(" and ")
            ));
        }
    }
    warnings
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

/// Options for opening a tier of a volume.
pub fn open_options(tier: &TierConfig, access: Access) -> PosixTierOptions {
    let mut options = PosixTierOptions::new(tier.name.clone());
    options.capacity = tier.capacity.map(|capacity| capacity.0);
    options.access = match access {
        Access::ReadWrite => OpenAccess::ReadWrite,
        Access::ReadOnly => OpenAccess::ReadOnly,
    };
    options
}

/// Opens the tiers of a volume. One that is not there, or does not answer, becomes a missing member with the reason.
///
/// # Errors
/// A tier that another process holds, or one that cannot be read.
pub fn open_all(config: &VolumeConfig, access: Access) -> Result<Vec<TierMember>> {
    open_each(&directories_of(config, access))
}

/// As [`open_all`], but waits up to `patience` for missing tiers.
///
/// # Errors
/// As [`open_all`].
pub fn open_all_within(config: &VolumeConfig, access: Access, patience: Duration) -> Result<Vec<TierMember>> {
    let began = Instant::now();
    let directories = directories_of(config, access);
    loop {
        let members = open_each(&directories)?;
        let is_missing = |member: &&TierMember| matches!(member.presence, TierPresence::Missing(_));
        let missing: Vec<&str> = members.iter().filter(is_missing).map(|member| member.name.as_str()).collect();
        if missing.is_empty() || began.elapsed() >= patience {
            return Ok(members);
        }
        log::info!("waiting for missing tiers: {}", missing.join(", "));
        thread::sleep(WAIT_INTERVAL);
    }
}

/// Where the tiers of a volume are. One for each volume that is opened: it remembers which of them was asked and hangs.
fn directories_of(config: &VolumeConfig, access: Access) -> Vec<Arc<DirectoryOfTier>> {
    let hang_after = config.options.hang_after.map_or_else(
        || Duration::from_millis(u64::from(MountOptions::default().hang_after_ms)),
        |seconds| Duration::from_secs(u64::from(seconds)),
    );
    let patience = (!hang_after.is_zero()).then(|| hang_after.saturating_mul(PATIENCE_TO_OPEN));
    let directory =
        |tier: &TierConfig| DirectoryOfTier { tier: tier.clone(), access, answering: Answering::new(patience) };
    config.tiers.iter().map(|tier| Arc::new(directory(tier))).collect()
}

fn open_each(directories: &[Arc<DirectoryOfTier>]) -> Result<Vec<TierMember>> {
    // Side by side: several that do not answer take no longer than one.
    let answers: Vec<std::result::Result<(), String>> = thread::scope(|scope| {
        let asked: Vec<_> = directories.iter().map(|directory| scope.spawn(|| directory.ask())).collect();
        asked.into_iter().map(|thread| thread.join().expect("asking a tier does not panic")).collect()
    });
    directories.iter().zip(answers).map(|(directory, answer)| open_one(directory, answer)).collect()
}

fn open_one(directory: &Arc<DirectoryOfTier>, answer: std::result::Result<(), String>) -> Result<TierMember> {
    let tier = &directory.tier;
    let opened = match answer.map(|()| PosixTier::open(&tier.path, open_options(tier, directory.access))) {
        Ok(Ok(open)) => member(tier, Arc::new(open))?,
        Ok(Err(TierError::Label(reason))) | Err(reason) => directory.member_without(reason),
        Ok(Err(error)) => bail!("tier `{}`: {}: {error}", tier.name, tier.path.display()),
    };
    Ok(TierMember { source: Some(Arc::clone(directory) as _), ..opened })
}

/// The directory in which a tier appears again.
struct DirectoryOfTier {
    tier: TierConfig,
    access: Access,
    answering: Answering,
}

impl DirectoryOfTier {
    fn ask(&self) -> std::result::Result<(), String> {
        self.answering.ask(&self.tier.path, self.access)
    }

    fn member_without(&self, reason: String) -> TierMember {
        TierMember::new(self.tier.name.clone(), TierPresence::Missing(reason))
    }
}

impl TierSource for DirectoryOfTier {
    fn open(&self) -> std::result::Result<TierMember, String> {
        self.ask()?;
        let options = PosixTierOptions { bytes_used: BytesUsed::Scan, ..open_options(&self.tier, self.access) };
        let open = PosixTier::open(&self.tier.path, options).map_err(|error| match error {
            TierError::Label(reason) => reason,
            error => format!("{}: {error}", self.tier.path.display()),
        })?;
        member(&self.tier, Arc::new(open)).map_err(|error| format!("{error:#}"))
    }
}

/// Refuses tiers whose labels alone are inconsistent, before the metadata store is opened: the store tidies its files when
/// it is opened, and a mount that is refused should change nothing.
pub fn check_members(config: &VolumeConfig, members: &[TierMember], missing: MissingTiers) -> Result<()> {
    for (index, member) in members.iter().enumerate() {
        let name = member.name.clone();
        let tier = match &member.presence {
            TierPresence::Present(tier) => tier,
            TierPresence::Missing(reason) if index == config.metadata => {
                bail!("metadata tier `{name}` is missing: {reason}");
            }
            TierPresence::Missing(reason) if missing == MissingTiers::Refuse => {
                bail!(VolumeError::TierMissing { name, reason: reason.clone() });
            }
            TierPresence::Missing(_) => continue,
        };
        let label = tier.read_label().map_err(|error| anyhow!("tier `{name}`: {error}"))?;
        if label.volume != config.id {
            let (found, expected) = (label.volume_name, config.name.clone());
            bail!(VolumeError::OtherVolume { name, found, expected });
        }
        if label.tier_name != name && config.tiers.iter().any(|tier| tier.name == label.tier_name) {
            bail!(VolumeError::OtherTier { name, found: label.tier_name });
        }
    }
    Ok(())
}

/// An open tier as a member of its volume, with its reserve in bytes. The space that the metadata store needs in addition is kept
/// free by the file system.
pub fn member(tier: &TierConfig, open: Arc<PosixTier>) -> Result<TierMember> {
    let total = open.space().map_err(|error| anyhow!("tier `{}`: {error}", tier.name))?.total;
    let reserve = tier.reserve.map_or(ByteSize(0), |reserve| reserve.bytes_of(total));
    let (high_mark, low_mark) = tier.marks();
    Ok(TierMember { reserve, high_mark, low_mark, ..TierMember::new(tier.name.clone(), TierPresence::Present(open)) })
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

    #[test]
    fn a_shared_file_system_is_warned_of_once() {
        let devices = |numbers: &[u64]| -> Vec<(String, u64)> {
            numbers.iter().enumerate().map(|(index, device)| (format!("t{index}"), *device)).collect()
        };
        assert!(warnings_of_sharing(&devices(&[1, 2, 3])).is_empty());
        let warnings = warnings_of_sharing(&devices(&[1, 2, 1, 1]));
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("`t0` and `t2` and `t3`"), "{}", warnings[0]);
    }
}
