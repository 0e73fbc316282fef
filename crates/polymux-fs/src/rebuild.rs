//! A new metadata store from the contents of the tiers, for a volume that lost its store and every copy of it
//! (docs/design/0013, DESIGN section 12).
//!
//! Invariants:
//! * No byte of an object and no object is changed or removed, and no label. Where two tiers hold different bytes for one
//!   range of a file, and the older ones are part of an object that the file needs, they are copied to a new object.
//! * Stamps are valid as of their last refresh; of two that contradict one another the later one counts
//!   ([`polymux_tier::StampOrder`], no clock). Objects that no stamp names go to `lost+found`.
//! * Everything that is missing or uncertain is a finding with a persistent name, and everything else is as it was.
//! * The records are written in any order to a store that is not in use yet; its creator puts it into place as a whole.
//! * In memory are about two hundred bytes for each object.
//!
//! ```text
//!  scan ─► objects, evidence ─► tree ─► directories     pure
//!             └────► files ─► owners (ranges, I/O) ─► placed files ─► records
//! ```

mod findings;
mod owners;
mod place;
mod ranges;
mod records;
mod scan;
mod tree;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use polymux_meta::MetadataStore;
use polymux_tier::{Label, Tier, TierError};
use polymux_types::{Clock, Errno, Ino, VolumeId};

pub use findings::{REBUILD_FINDING_KINDS, RebuildFinding, RebuildFindingKind, RebuildReport};

use findings::Findings;
use polymux_records::error::{Error, Result};
use polymux_records::parts::{NewVolume, TierMember, TierPresence, VolumeError};
use records::Rebuilt;

/// Inode numbers below this one are never handed out; the root directory is 1.
const FIRST_INO: u64 = 16;
/// The lost store may have handed out numbers beyond those that are seen: for small files, and ahead of use.
const NUMBERS_SKIPPED: u64 = 1 << 20;

/// The inputs of a rebuild.
pub struct RebuildSource {
    /// Name of the volume.
    pub name: String,
    /// Identity, and the root directory as it becomes where no object tells.
    pub volume: NewVolume,
    /// Its tiers in speed order; all are there.
    pub tiers: Vec<TierMember>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Name of the phase.
    pub phase: &'static str,
    /// Objects, files or records done in this phase.
    pub done: u64,
    /// Objects, files or records of this phase; 0 where unknown.
    pub total: u64,
}

/// Called periodically with the progress of a rebuild; `Break` ends it.
pub type OnRebuildProgress<'a> = &'a mut dyn FnMut(&RebuildProgress) -> ControlFlow<()>;

/// A tier that objects are read from.
struct SourceTier<'a> {
    name: &'a str,
    label: Label,
    tier: &'a dyn Tier,
}

/// Tells how far it is.
struct Meter<'a> {
    on_progress: OnRebuildProgress<'a>,
    progress: RebuildProgress,
}

impl Meter<'_> {
    fn begin(&mut self, phase: &'static str, total: u64) {
        self.progress = RebuildProgress { phase, done: 0, total };
    }

    /// EINTR where the rebuild is to end.
    fn add(&mut self, count: u64) -> Result<()> {
        self.progress.done += count;
        match (self.on_progress)(&self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Errno::EINTR.into()),
        }
    }
}

/// Numbers that were never used.
struct Numbers {
    ino: u64,
    object: u64,
}

impl Numbers {
    fn new_ino(&mut self) -> Ino {
        self.ino += 1;
        Ino(self.ino - 1)
    }
}

/// Reads all objects and writes the records of a volume with them to an empty store; without one it only reports.
pub(crate) fn rebuild(
    source: &RebuildSource,
    store: Option<&dyn MetadataStore>,
    on_progress: OnRebuildProgress<'_>,
) -> std::result::Result<RebuildReport, VolumeError> {
    let tiers = open_tiers(source)?;
    let mut meter = Meter { on_progress, progress: RebuildProgress { phase: "", done: 0, total: 0 } };
    let mut findings = Findings::default();
    let scanned = scan::scan(&tiers, source.volume.id, &mut findings, &mut meter)?;
    let mut numbers = Numbers {
        ino: scanned.ino_max.max(FIRST_INO - 1) + 1 + NUMBERS_SKIPPED,
        object: scanned.object_max + 1 + NUMBERS_SKIPPED,
    };
    let root = source.volume;
    let ownership = tree::Ownership { permissions: root.root_permissions, uid: root.root_uid, gid: root.root_gid };
    let mut tree = tree::Tree::grow(&scanned.directories, ownership);
    tree.report(&mut findings);
    let groups = scan::group(&scanned.objects, &tree);
    meter.begin("comparing", groups.files.len() as u64);
    let mut files = Vec::with_capacity(groups.files.len() + groups.lost.len());
    let mut versions = Vec::new();
    for group in &groups.files {
        let owned = owners::decide(&tiers, &scanned.objects, group, &mut findings)?;
        files.push(owned.file);
        versions.extend(owned.versions);
        meter.add(1)?;
    }
    let lost = groups.lost.iter().map(|lost| owners::lost_file(&tiers, &scanned.objects, lost));
    let lost: Vec<_> = lost.collect();
    let mut placed = place::place(files, lost, versions, &mut tree, &mut numbers, &tiers, &mut findings);
    if let Some(store) = store {
        refuse_full_store(store)?;
        records::copy_versions(&tiers, source.volume.id, &mut placed, &mut numbers, source.clock.now())?;
        let rebuilt = Rebuilt { scan: &scanned, tree: &tree, files: &placed, numbers: &numbers };
        records::write(store, source, &tiers, &rebuilt, &mut meter)?;
    }
    Ok(findings.into_report(&placed, &tree, scanned.objects.len() as u64))
}

fn refuse_full_store(store: &dyn MetadataStore) -> std::result::Result<(), VolumeError> {
    let record = store.get(&polymux_records::store::keys::volume()).map_err(Error::from)?;
    match record {
        Some(_) => Err(VolumeError::Store("the metadata store holds a volume already".to_owned())),
        None => Ok(()),
    }
}

/// The tiers with their labels. All must be present and belong to the volume: the contents of an absent one would be missing
/// without a report.
fn open_tiers(source: &RebuildSource) -> std::result::Result<Vec<SourceTier<'_>>, VolumeError> {
    let mut tiers: Vec<SourceTier<'_>> = Vec::new();
    let mut names = BTreeMap::new();
    for member in &source.tiers {
        let name = member.name.clone();
        let tier = match &member.presence {
            TierPresence::Present(tier) => tier,
            TierPresence::Missing(reason) => return Err(VolumeError::TierMissing { name, reason: reason.clone() }),
        };
        let label = match tier.read_label() {
            Ok(label) => label,
            Err(TierError::Label(reason)) => return Err(VolumeError::TierMissing { name, reason }),
            Err(error) => return Err(VolumeError::Store(format!("tier `{name}`: {error}"))),
        };
        if label.volume != source.volume.id {
            return Err(VolumeError::OtherVolume { name, found: label.volume_name, expected: source.name.clone() });
        }
        let is_swapped = label.tier_name != name && source.tiers.iter().any(|other| other.name == label.tier_name);
        if is_swapped || names.insert(label.tier, name.clone()).is_some() {
            return Err(VolumeError::OtherTier { name, found: label.tier_name });
        }
        tiers.push(SourceTier { name: &member.name, label, tier: tier.as_ref() });
    }
    Ok(tiers)
}

/// Whether a stamp is of this volume.
fn is_of(volume: VolumeId, stamp: &polymux_tier::ObjectStamp) -> bool {
    stamp.volume == volume
}
