//! Checks of a whole volume, and repairs: the implementation of `polymux fsck` (DESIGN sections 5, 6, 12).
//!
//! Invariants:
//! * A check reads records in the order of their keys and tiers bucket by bucket. Kinds of records are compared by walking
//!   them side by side; records in another order are compared by sums first, and looked up only where the sums differ. In
//!   memory are two sums for each of 65,536 groups of inodes and 4,096 buckets of a tier, a bit for each object number, and
//!   17 bytes for each directory.
//! * A repair is a batch of records, committed through the store. **A check never touches a byte on a tier**: bytes to free
//!   become a pending free, which recovery carries out, so that bytes are freed in one way only.
//! * No repair takes bytes away that a file may own. Inodes without a name go to `lost+found`; bytes that may be
//!   wrong are marked damaged and read as an error; anything undecidable is left and reported.
//! * Each kind of finding has a name that never changes its meaning ([`FINDING_KINDS`]).
//!
//! ```text
//!  recover::PASSES ─► Examination ─► volume → records → names → tree → counts → files → attributes → objects
//!                         │             each: found(kind, subject, detail, repair)
//!                         ▼
//!                      VolumeCheck
//! ```

mod attributes;
mod counts;
mod cursor;
mod files;
mod given_up;
mod kinds;
mod lost_found;
mod name_compare;
mod names;
mod number_set;
mod object_compare;
mod objects;
mod paths;
mod positions;
mod records;
mod short;
mod sums;
mod tree;
mod volume;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use polymux_meta::{Batch, MetadataStore};
use polymux_tier::Tier;
use polymux_types::{Errno, Ino, TierId};

pub use kinds::{FINDING_KINDS, FindingKind, Severity};
pub(crate) use {
    attributes::check as check_attributes, counts::check as check_counts, files::check as check_files,
    names::check as check_names, objects::check as check_objects, records::check as check_records,
    tree::check as check_tree, volume::check as check_volume_records,
};

use polymux_records::error::Result;
use polymux_records::parts::{TierMember, TierPresence};
use polymux_records::store::{InodeRecord, TierRecord, keys};

/// Changes that are committed together at the most, so that memory stays bounded whatever is broken.
const BATCH_CHANGES_MAX: usize = 4096;

/// Findings that are kept; the others are counted, and repaired like them.
const FINDINGS_MAX: usize = 1000;

/// The treatment of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMode {
    /// Nothing: no byte changes.
    Report,
    /// Repair all repairable findings.
    Repair,
}

/// The outcome of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was repaired.
    Corrected,
    /// It would be repaired if the check were allowed to.
    Correctable,
    /// It cannot be repaired, and is left as it is.
    Left,
    /// It is no error, but worth knowing.
    Noted,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind: name, meaning and remedy.
    pub kind: &'static FindingKind,
    /// Id of the pass that found it.
    pub pass: u32,
    /// The file, as a path within the volume; `None` where it is not about a file.
    pub path: Option<String>,
    /// Number of the inode; `None` where it is not about one.
    pub ino: Option<Ino>,
    /// This case, in words.
    pub detail: String,
    /// Its outcome.
    pub outcome: Outcome,
}

/// How one pass ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// Persistent id.
    pub id: u32,
    /// Its task.
    pub name: &'static str,
    /// Its findings, or its repairs where it is a pass of recovery.
    pub found: u64,
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeCheck {
    /// The passes that ran, in order.
    pub passes: Vec<PassReport>,
    /// The first thousand findings.
    pub findings: Vec<Finding>,
    /// Findings of each kind, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Findings that were repaired.
    pub corrected: u64,
    /// Findings that would be repaired if the check were allowed to.
    pub correctable: u64,
    /// Findings that cannot be repaired.
    pub left: u64,
    /// Records of the store.
    pub records: u64,
    /// Inodes.
    pub inodes: u64,
    /// Objects that were looked at on the tiers.
    pub objects: u64,
    /// The volume was not unmounted in order: the next mount recovers it (or this check did).
    pub unclean: bool,
    /// Actions of recovery after the repairs.
    pub recovery: Vec<String>,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// Persistent id of the pass.
    pub pass: u32,
    /// Its task.
    pub name: &'static str,
    /// Records and objects read by it so far.
    pub done: u64,
}

/// Called periodically with the progress of a check; `Break` ends it.
pub type OnProgress<'a> = &'a mut dyn FnMut(&CheckProgress) -> ControlFlow<()>;

/// Counts the records read, reports the progress of the check, and ends it on request.
pub(crate) struct Meter<'a> {
    on_progress: RefCell<OnProgress<'a>>,
    progress: Cell<CheckProgress>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(on_progress: OnProgress<'a>) -> Self {
        let progress = CheckProgress { pass: 0, name: "", done: 0 };
        Self { on_progress: RefCell::new(on_progress), progress: Cell::new(progress) }
    }

    /// Begins a pass.
    pub(crate) fn begin(&self, pass: u32, name: &'static str) {
        self.progress.set(CheckProgress { pass, name, done: 0 });
    }

    /// Notes that so much more was read. EINTR where the check is to end.
    fn add(&self, count: usize) -> Result<()> {
        let mut progress = self.progress.get();
        progress.done += count as u64;
        self.progress.set(progress);
        match (self.on_progress.borrow_mut())(&progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Errno::EINTR.into()),
        }
    }
}

/// A tier as a check sees it.
pub(crate) struct ExaminedTier<'a> {
    /// Number, where label or tier table give one.
    pub(crate) id: Option<TierId>,
    pub(crate) name: &'a str,
    pub(crate) tier: Option<&'a dyn Tier>,
}

/// One inode, as far as its record can be read.
pub(crate) enum Found {
    Missing,
    Unreadable,
    Record(Box<InodeRecord>),
}

/// A name in a directory, and the inode that it leads to, or is said to lead to.
#[derive(Clone, Copy, Debug)]
struct NamedInode<'a> {
    parent: Ino,
    name: &'a [u8],
    ino: Ino,
}

/// A check that is under way.
pub(crate) struct Examination<'a> {
    store: &'a dyn MetadataStore,
    volume_name: &'a str,
    tiers: Vec<ExaminedTier<'a>>,
    meter: &'a Meter<'a>,
    mode: CheckMode,
    /// Volume is in use meanwhile: objects that no record names yet are no news.
    is_live: bool,
    batch: Batch,
    report: VolumeCheck,
    pass: u32,
    /// Inodes whose record cannot be read: unreferenced objects may be theirs.
    unreadable_inodes: u64,
    /// Time of the repair, for new records.
    now: polymux_types::Timestamp,
}

impl<'a> Examination<'a> {
    pub(crate) fn new(
        store: &'a dyn MetadataStore,
        volume_name: &'a str,
        members: &'a [TierMember],
        meter: &'a Meter<'a>,
        now: polymux_types::Timestamp,
    ) -> Self {
        let tiers = members.iter().map(|member| ExaminedTier {
            id: None,
            name: &member.name,
            tier: match &member.presence {
                TierPresence::Present(tier) => Some(tier.as_ref()),
                TierPresence::Missing(_) => None,
            },
        });
        Self {
            store,
            volume_name,
            tiers: tiers.collect(),
            meter,
            mode: CheckMode::Report,
            is_live: false,
            batch: Batch::new(),
            report: VolumeCheck::default(),
            pass: 0,
            unreadable_inodes: 0,
            now,
        }
    }

    /// Lets the check repair.
    pub(crate) fn allow_repairs(&mut self) {
        self.mode = CheckMode::Repair;
    }

    /// The volume is mounted and in use.
    pub(crate) fn set_live(&mut self, tiers: Vec<ExaminedTier<'a>>) {
        self.is_live = true;
        self.tiers = tiers;
    }

    pub(crate) fn mode(&self) -> CheckMode {
        self.mode
    }

    /// Everything that was found so far.
    fn found_count(&self) -> u64 {
        self.report.counts.values().sum()
    }

    /// Runs one pass. After a repair it runs again, because a repair may expose further findings; a finding that
    /// comes back in the last round is left.
    pub(crate) fn run(
        &mut self,
        id: u32,
        name: &'static str,
        check: fn(&mut Examination<'_>) -> Result<()>,
    ) -> Result<()> {
        const ROUNDS_MAX: u32 = 6;
        let mode = self.mode;
        let before = self.found_count();
        self.pass = id;
        for round in 1..=ROUNDS_MAX {
            let corrected = self.report.corrected;
            self.meter.begin(id, name);
            if round == ROUNDS_MAX {
                self.mode = CheckMode::Report;
            }
            // Counted anew by each round.
            self.unreadable_inodes = if id == RECORDS_PASS { 0 } else { self.unreadable_inodes };
            check(self)?;
            self.flush()?;
            if self.report.corrected == corrected {
                break;
            }
        }
        // A check that found the metadata to be older than the tiers has given up repairs for good.
        self.mode = if self.is_older_than_tiers() { CheckMode::Report } else { mode };
        let found = self.found_count() - before;
        self.report.passes.push(PassReport { id, name, found });
        Ok(())
    }

    fn is_older_than_tiers(&self) -> bool {
        self.report.counts.contains_key(kinds::TIER_NEWER.name)
    }

    pub(crate) fn into_report(self) -> VolumeCheck {
        self.report
    }

    /// Notes a finding about an inode. With a repair it is repaired, where that is allowed. Returns whether it was.
    fn found(
        &mut self,
        kind: &'static FindingKind,
        ino: Option<Ino>,
        detail: String,
        repair: Option<Batch>,
    ) -> Result<bool> {
        let path = match ino {
            Some(ino) if self.report.findings.len() < FINDINGS_MAX => Some(self.path_of(ino)?),
            _ => None,
        };
        self.found_at(kind, ino, path, detail, repair)
    }

    /// Notes a finding about a name in a directory.
    fn found_name(
        &mut self,
        kind: &'static FindingKind,
        place: NamedInode<'_>,
        detail: String,
        repair: Option<Batch>,
    ) -> Result<bool> {
        let path = if self.report.findings.len() < FINDINGS_MAX {
            Some(self.path_in(place.parent, place.name)?)
        } else {
            None
        };
        self.found_at(kind, Some(place.ino), path, detail, repair)
    }

    fn found_at(
        &mut self,
        kind: &'static FindingKind,
        ino: Option<Ino>,
        path: Option<String>,
        detail: String,
        repair: Option<Batch>,
    ) -> Result<bool> {
        debug_assert!(FINDING_KINDS.iter().any(|known| known.name == kind.name), "a kind of finding is in the table");
        let outcome = match (kind.severity, &repair, self.mode) {
            (Severity::Note, ..) => Outcome::Noted,
            (Severity::Error, None, _) => Outcome::Left,
            (Severity::Error, Some(_), CheckMode::Repair) => Outcome::Corrected,
            (Severity::Error, Some(_), CheckMode::Report) => Outcome::Correctable,
        };
        match outcome {
            Outcome::Corrected => self.report.corrected += 1,
            Outcome::Correctable => self.report.correctable += 1,
            Outcome::Left => self.report.left += 1,
            Outcome::Noted => {}
        }
        *self.report.counts.entry(kind.name).or_default() += 1;
        if self.report.findings.len() < FINDINGS_MAX {
            let finding = Finding { kind, pass: self.pass, path, ino, detail, outcome };
            self.report.findings.push(finding);
        }
        let repairs = self.mode == CheckMode::Repair;
        if let Some(repair) = repair.filter(|_| repairs) {
            self.change(&repair)?;
        }
        Ok(repairs && outcome == Outcome::Corrected)
    }

    /// Takes changes in, and commits them once there are many.
    fn change(&mut self, changes: &Batch) -> Result<()> {
        assert_eq!(self.mode, CheckMode::Repair, "a check that only reports changes nothing");
        self.batch.append(changes);
        if self.batch.len() >= BATCH_CHANGES_MAX { self.flush() } else { Ok(()) }
    }

    /// Commits the repairs, durably.
    fn flush(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let sequence = self.store.commit(std::mem::take(&mut self.batch))?;
        Ok(self.store.sync(sequence)?)
    }

    fn inode(&self, ino: Ino) -> Result<Found> {
        Ok(match self.store.get(&keys::inode(ino))? {
            None => Found::Missing,
            Some(value) => match InodeRecord::decode(ino, &value) {
                Ok(record) => Found::Record(Box::new(record)),
                Err(_) => Found::Unreadable,
            },
        })
    }

    /// The tiers of the tier table that can be read.
    fn tier_records(&self) -> Result<BTreeMap<TierId, TierRecord>> {
        let mut records = BTreeMap::new();
        let mut cursor = self.cursor(keys::tiers());
        while let Some((key, value)) = cursor.next()? {
            if let Some(id) = keys::tier_of_key(&key)
                && let Ok(record) = TierRecord::decode(id, &value)
            {
                records.insert(id, record);
            }
        }
        Ok(records)
    }

    /// Whether the volume has a tier of this number: one that is recorded, or whose label says so.
    fn knows_tier(&self, records: &BTreeMap<TierId, TierRecord>, id: TierId) -> bool {
        records.contains_key(&id) || self.tiers.iter().any(|tier| tier.id == Some(id))
    }

    fn cursor(&self, range: keys::KeyRange) -> cursor::Cursor<'a> {
        cursor::Cursor::new(self.store, self.meter, range)
    }
}

/// Id of the pass that reads every record; see the table of passes.
pub(crate) const RECORDS_PASS: u32 = 11;

/// The record of an inode as its repair writes it.
fn put_inode(batch: &mut Batch, ino: Ino, record: &InodeRecord) {
    let key = keys::inode(ino);
    batch.put_with(|bytes| bytes.extend_from_slice(&key), |bytes| record.encode_into(bytes));
}
