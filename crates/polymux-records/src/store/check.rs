//! The named invariants over all records of a volume, checked on whatever store holds them.
//!
//! Invariants:
//! * Each invariant has a name that never changes its meaning: it appears in reports.
//! * Nothing is changed, and no tier is accessed: these are rules among the records alone. They hold between
//!   any two transactions, so also after a crash, before recovery.
//! * One walk over all records in the order of their keys; related records are looked up. In memory are
//!   one number for each object and a few for each directory.
//!
//! ```text
//!  E L V ─ b ─ c ─ d ─ e ─ g ─ h ─ i ─ n ─ o ─ p ─ t ─ x        order of the walk, by letter
//!              ╰─ pairs ╯   ╰─ objects ╯
//! ```

mod files;
mod names;

use std::collections::{BTreeMap, HashMap};

use polymux_meta::{Entry, MetadataStore};
use polymux_types::{Ino, ObjectId, TierId};

use super::describe::{decode_number, describe_record};
use super::inode_format::InodeRecord;
use super::keys::{self, NumberKind};
use super::record_kinds::{KnownRecord, kind_of};
use super::volume_format::{EpochRecord, FORMAT_VERSION, VolumeRecord};
use crate::error::Result;

/// Records read at once.
const WALK_STEP: usize = 1024;

/// Violations that are kept; the others are counted.
const VIOLATIONS_MAX: usize = 1000;

/// The invariants: name and statement.
pub const INVARIANTS: [(&str, &str); 17] = [
    ("readable", "every record verifies, and every key is of a known kind"),
    ("volume", "there are a volume record of a known version, an epoch, a tier table and a root directory"),
    ("name-inode", "every directory entry names an inode that is there, of the type it says"),
    ("name-position", "directory entries and positions exist in pairs that say the same"),
    ("name-parent", "directory entries and the names of inodes exist in pairs"),
    ("directory", "names lie in directories that have a name themselves"),
    ("links", "an inode has as many links as names; a directory two and one for each subdirectory"),
    ("entry-count", "a directory that counts its names has counted right"),
    ("cookie", "every position of a directory is below the next one that it will give"),
    ("tree", "the parents of every directory that has a name lead to the root"),
    ("orphan", "an inode without a name, and no other, has an orphan record"),
    ("numbers", "every inode and object has a number below the end of its range"),
    ("object", "no two files share an object, and none uses one that is given up as a whole"),
    ("tier", "every object lies on a tier of the tier table"),
    ("extent", "extents belong to regular files, do not overlap, and their slots and homes exist"),
    ("inline", "an inode has inline data where its record says so, of that length"),
    ("xattr", "extended attributes belong to inodes that say that they may have some"),
];

/// A rule that records break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the invariant, one of [`INVARIANTS`].
    pub invariant: &'static str,
    /// Which records, and how.
    pub detail: String,
}

/// The result of [`check_records`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of records of each kind, by letter.
    pub records: BTreeMap<char, u64>,
    /// Violations found, at most a thousand.
    pub violations: Vec<Violation>,
    /// How much is wrong.
    pub violation_count: u64,
}

/// The state of the walk.
pub(super) struct Check<'a> {
    store: &'a dyn MetadataStore,
    report: CheckReport,
    /// Entries and subdirectories of each directory that has any.
    directories: HashMap<Ino, DirectoryCount>,
    /// Parents of the directories that have a name.
    parents: HashMap<Ino, Ino>,
    /// Owner of each object; `None` where it is given up as a whole.
    objects: HashMap<(TierId, ObjectId), Option<Ino>>,
    /// Ends of the number ranges; `None` where the record is missing.
    ino_end: Option<u64>,
    object_end: Option<u64>,
    extents: files::Extents,
}

#[derive(Clone, Copy, Debug, Default)]
struct DirectoryCount {
    entries: u64,
    subdirectories: u64,
}

/// Checks every invariant over all records of a store.
///
/// # Errors
///
/// The store cannot be read. Invalid records are never an error, but a violation.
pub fn check_records(store: &dyn MetadataStore) -> Result<CheckReport> {
    let end_of = |kind| -> Result<Option<u64>> {
        Ok(store.get(&keys::number_range(kind))?.and_then(|value| decode_number(&value).ok()))
    };
    let mut check = Check {
        store,
        report: CheckReport::default(),
        directories: HashMap::new(),
        parents: HashMap::new(),
        objects: HashMap::new(),
        ino_end: end_of(NumberKind::Ino)?,
        object_end: end_of(NumberKind::Object)?,
        extents: files::Extents::default(),
    };
    for_each_record(store, |key, value| check.record(key, value))?;
    check.finish()?;
    Ok(check.report)
}

/// Visits all records of a store in the order of their keys.
///
/// # Errors
///
/// The store cannot be read, or `visit` failed.
pub fn for_each_record(store: &dyn MetadataStore, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let mut from = Vec::new();
    loop {
        let entries: Vec<Entry> = store.range(&from, &[0xff; 4], WALK_STEP)?;
        for (key, value) in &entries {
            visit(key, value)?;
        }
        match entries.into_iter().last() {
            Some((last, _)) => {
                from = last;
                from.push(0);
            }
            None => return Ok(()),
        }
    }
}

impl Check<'_> {
    fn violated(&mut self, invariant: &'static str, detail: String) {
        debug_assert!(INVARIANTS.iter().any(|(name, _)| *name == invariant), "an invariant has a name");
        self.report.violation_count += 1;
        if self.report.violations.len() < VIOLATIONS_MAX {
            self.report.violations.push(Violation { invariant, detail });
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let description = describe_record(key, value);
        if let Some(letter) = description.letter {
            *self.report.records.entry(letter).or_default() += 1;
        }
        if let Some(problem) = description.problem {
            let key = key.escape_ascii();
            self.violated("readable", format!("{} `{key}`: {problem}", description.kind));
            return Ok(());
        }
        let kind = description.letter.and_then(kind_of).expect("a record without a problem is of a known kind");
        let record = KnownRecord { ino: description.ino.unwrap_or(Ino(0)), key, value };
        kind.check.map_or(Ok(()), |check| check(self, &record))
    }

    /// The record of an inode; `None` where there is none, or where it does not verify, which is a violation of its own.
    fn inode_record(&self, ino: Ino) -> Result<Option<InodeRecord>> {
        Ok(self.store.get(&keys::inode(ino))?.and_then(|value| InodeRecord::decode(ino, &value).ok()))
    }

    pub(super) fn inode(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino, value, .. } = record;
        let record = InodeRecord::decode(ino, value)?;
        match self.ino_end {
            Some(end) if ino.0 < end => {}
            _ => self.violated("numbers", format!("inode {ino} is beyond the end of the range")),
        }
        self.names_of_inode(ino, &record)?;
        self.content_of_inode(ino, &record)
    }

    fn finish(&mut self) -> Result<()> {
        self.finish_extents()?;
        self.finish_tree();
        let volume = self.store.get(&keys::volume())?.map(|value| VolumeRecord::decode(&value));
        match volume {
            Some(Ok(record)) if record.format_version <= FORMAT_VERSION => {}
            Some(Ok(record)) => {
                self.violated("volume", format!("its format version {} is not known here", record.format_version));
            }
            Some(Err(error)) => self.violated("volume", error.to_string()),
            None => self.violated("volume", "the volume record is missing".to_owned()),
        }
        if !matches!(self.store.get(&keys::epoch())?.map(|value| EpochRecord::decode(&value)), Some(Ok(_))) {
            self.violated("volume", "the epoch record is missing".to_owned());
        }
        if !self.report.records.contains_key(&'t') {
            self.violated("volume", "the tier table is empty".to_owned());
        }
        if self.inode_record(Ino::ROOT)?.is_none() {
            self.violated("volume", "the root directory is missing".to_owned());
        }
        for (name, end) in [("inode", self.ino_end), ("object", self.object_end)] {
            if end.is_none() {
                self.violated("volume", format!("the range of {name} numbers is missing"));
            }
        }
        Ok(())
    }
}
