//! From the tiers of a configuration to open ones.
//!
//! Invariant: opening tiers and checking their labels changes nothing on them, so that a volume can be refused before the metadata
//! store is opened.

mod answering;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use polymux_fs::{Access, MissingTiers, MountOptions, TierMember, TierPresence, TierSource, VolumeError};
use polymux_tier::posix::OpenAccess;
use polymux_tier::{BytesUsed, PosixTier, PosixTierOptions, Tier, TierError};
use polymux_types::ByteSize;

use crate::config::{TierConfig, VolumeConfig};
use crate::refusal::{Cause, Refusal};

use self::answering::Answering;
pub use self::answering::{AskedBy, touch};

/// How often missing tiers are looked for while a mount waits.
const WAIT_INTERVAL: Duration = Duration::from_millis(500);

/// A tier that is opened has as long to answer as this many times `hang_after`: a disk that sleeps has to spin up first.
const PATIENCE_TO_OPEN: u32 = 6;

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
pub fn open_all(config: &VolumeConfig, access: Access, asked_by: AskedBy) -> Result<Vec<TierMember>> {
    open_each(&directories_of(config, access, asked_by))
}

/// As [`open_all`], but waits up to `patience` for missing tiers.
///
/// # Errors
/// As [`open_all`].
pub fn open_all_within(
    config: &VolumeConfig,
    access: Access,
    asked_by: AskedBy,
    patience: Duration,
) -> Result<Vec<TierMember>> {
    let began = Instant::now();
    let directories = directories_of(config, access, asked_by);
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
fn directories_of(config: &VolumeConfig, access: Access, asked_by: AskedBy) -> Vec<Arc<DirectoryOfTier>> {
    let hang_after = config.options.hang_after.map_or_else(
        || Duration::from_millis(u64::from(MountOptions::default().hang_after_ms)),
        |seconds| Duration::from_secs(u64::from(seconds)),
    );
    let patience = (!hang_after.is_zero()).then(|| hang_after.saturating_mul(PATIENCE_TO_OPEN));
    let answering = || Answering::new(asked_by, patience);
    let directory = |tier: &TierConfig| DirectoryOfTier { tier: tier.clone(), access, answering: answering() };
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
        Ok(Err(error)) => {
            let message = format!("tier `{}`: {}: {error}", tier.name, tier.path.display());
            return Err(Refusal::new(message, Cause::Tier(error)).into());
        }
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
                let message = format!("metadata tier `{name}` is missing: {reason}");
                bail!(Refusal::new(message, Cause::Volume(VolumeError::TierMissing { name, reason: reason.clone() })));
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
