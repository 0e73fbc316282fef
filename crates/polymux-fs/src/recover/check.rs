//! Running the table of passes as a check: offline with repairs (`polymux fsck`), or beside a mounted volume.
//!
//! Invariants:
//! * Records are repaired before the volume is mounted, because a mount trusts them; the mount that follows carries out the
//!   pending frees of the repairs and of the last stop, and leaves the volume clean.
//! * Nothing is repaired where metadata is older than a tier, and nothing at all while the volume is mounted.

use std::ops::ControlFlow;

use polymux_records::error::{Error, Result};
use polymux_records::parts::{Access, MissingTiers, MountOptions, Parts, TierPresence, VolumeError};
use polymux_records::store::volume_format::FORMAT_VERSION;
use polymux_records::store::{VolumeRecord, keys};
use polymux_tier::Tier;

use super::mount::mount;
use super::passes::{PASSES, Work};
use crate::check::{
    CheckMode, CheckProgress, Examination, ExaminedTier, Finding, Meter, OnProgress, Outcome, Severity, VolumeCheck,
};
use crate::mounted::Mounted;

/// Looks at a mounted volume; a problem that is not found each time was a change under way.
const LOOKS: usize = 3;

/// Checks a volume that is not mounted; see [`crate::FileSystem::check`].
pub(crate) fn check_unmounted(
    parts: Parts,
    options: MountOptions,
    mode: CheckMode,
    on_progress: OnProgress<'_>,
) -> std::result::Result<VolumeCheck, VolumeError> {
    refuse_others(&parts)?;
    let meter = Meter::new(on_progress);
    let store = parts.store.clone();
    let now = parts.clock.now();
    let mut exam = Examination::new(store.as_ref(), &parts.name, &parts.tiers, &meter, now);
    if mode == CheckMode::Repair {
        exam.allow_repairs();
    }
    run_checks(&mut exam)?;
    let may_write = exam.mode() == CheckMode::Repair;
    let mut report = exam.into_report();
    if report.corrected > 0 {
        // Names may have changed without a time that tells: everything is described anew.
        polymux_records::store::describe_all_anew(store.as_ref())?;
    }
    let is_due = report.unclean || report.corrected > 0;
    let tiers_fit = !["tier-name", "tier-unlisted", "tier-stale"].iter().any(|kind| report.counts.contains_key(kind));
    if may_write && is_due && tiers_fit {
        report.recovery = recover(parts, options)?;
    }
    Ok(report)
}

/// Refuses volumes that a check must not touch: those with tiers of other volumes, or with formats unknown to this program.
fn refuse_others(parts: &Parts) -> std::result::Result<(), VolumeError> {
    let value = parts.store.get(&keys::volume()).map_err(Error::from)?;
    let record = value.and_then(|value| VolumeRecord::decode(&value).ok());
    if let Some(record) = record.as_ref().filter(|record| record.format_version > FORMAT_VERSION) {
        let (name, found) = (record.name.clone(), record.format_version);
        return Err(VolumeError::NewerFormat { name, found, known: FORMAT_VERSION });
    }
    let mut volume = record.map(|record| record.id);
    for member in &parts.tiers {
        let TierPresence::Present(tier) = &member.presence else { continue };
        let Ok(label) = tier.read_label() else { continue };
        if *volume.get_or_insert(label.volume) != label.volume {
            let (found, expected) = (label.volume_name, parts.name.clone());
            return Err(VolumeError::OtherVolume { name: member.name.clone(), found, expected });
        }
    }
    Ok(())
}

fn run_checks(exam: &mut Examination<'_>) -> Result<()> {
    for pass in &PASSES {
        if let Work::Check(check) = pass.work {
            exam.run(pass.id, pass.name, check)?;
        }
    }
    Ok(())
}

/// Mounts the volume, which recovers it, and unmounts it in order. Returns the report of the recovery.
fn recover(parts: Parts, options: MountOptions) -> std::result::Result<Vec<String>, VolumeError> {
    let options = MountOptions { access: Access::ReadWrite, missing: MissingTiers::Degraded, ..options };
    let mounted = mount(parts, options)?;
    let notes = mounted.volume.recovery_notes.lock().iter().cloned().collect();
    mounted.unmount()?;
    Ok(notes)
}

/// Checks a volume that is in use; see [`crate::FileSystem::check_mounted`].
pub(crate) fn check_mounted(mounted: &Mounted, on_progress: OnProgress<'_>) -> Result<VolumeCheck> {
    let mut report = look(mounted, on_progress)?;
    for _ in 1..LOOKS {
        if report.findings.iter().all(|finding| finding.kind.severity == Severity::Note) {
            break;
        }
        let again = look(mounted, on_progress)?;
        report.findings.retain(|finding| again.findings.iter().any(|other| is_same(finding, other)));
    }
    // Only findings common to all runs count.
    (report.correctable, report.left) = (0, 0);
    report.counts.clear();
    for finding in &report.findings {
        match finding.outcome {
            Outcome::Correctable => report.correctable += 1,
            Outcome::Left => report.left += 1,
            Outcome::Corrected | Outcome::Noted => {}
        }
        *report.counts.entry(finding.kind.name).or_default() += 1;
    }
    for pass in &mut report.passes {
        pass.found = report.findings.iter().filter(|finding| finding.pass == pass.id).count() as u64;
    }
    Ok(report)
}

fn is_same(one: &Finding, other: &Finding) -> bool {
    one.kind.name == other.kind.name && one.ino == other.ino && one.path == other.path && one.detail == other.detail
}

fn look(mounted: &Mounted, on_progress: &mut dyn FnMut(&CheckProgress) -> ControlFlow<()>) -> Result<VolumeCheck> {
    let meter = Meter::new(on_progress);
    let handles = mounted.volume.tiers.all();
    let examined = handles.iter().map(|handle| ExaminedTier {
        id: Some(handle.id),
        name: &handle.name,
        tier: handle.present().map(|tier| tier as &dyn Tier),
    });
    let mut exam =
        Examination::new(mounted.volume.metadata.store(), &mounted.volume.name, &[], &meter, mounted.volume.now());
    exam.set_live(examined.collect());
    run_checks(&mut exam)?;
    Ok(exam.into_report())
}
