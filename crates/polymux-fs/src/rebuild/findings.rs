//! Missing and uncertain data after a rebuild.

use std::collections::BTreeMap;

use polymux_types::{Ino, ObjectId};

use super::place::PlacedFile;
use super::tree::Tree;

/// A kind of finding. Names never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildFindingKind {
    /// Persistent name.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
}

macro_rules! kinds {
    ($($constant:ident $name:literal $meaning:literal,)*) => {
        $(pub(super) const $constant: RebuildFindingKind = RebuildFindingKind { name: $name, meaning: $meaning };)*

        /// Every kind of finding.
        pub const REBUILD_FINDING_KINDS: &[RebuildFindingKind] = &[$($constant),*];
    };
}

kinds!(
    WITHOUT_STAMP "without-stamp" "an object does not say what it belongs to: its bytes are in lost+found",
    STAMP_INVALID "stamp-invalid" "what an object says of itself cannot be: its bytes are in lost+found",
    OLDER_OBJECT "older-object" "a file has a newer object on the same tier: the bytes of the older one are in lost+found",
    PATH_TAKEN "path-taken" "another file was described later with the same path: this one is in lost+found",
    TWO_VERSIONS "two-versions" "two tiers hold different bytes for one range: the file has the newer ones, the older ones are in lost+found",
    BYTES_UNREADABLE "bytes-unreadable" "bytes that two tiers hold could not be compared: the file has those of the newer object",
    DIRECTORY_UNPLACED "directory-unplaced" "no object says where a directory lies: it is in lost+found",
    DIRECTORIES_MERGED "directories-merged" "two directories were described with one path: they are one now",
    NAMES_MISSING "names-missing" "the file had more names than the one that is known",
    XATTRS_LOST "xattrs-lost" "the file had extended attributes, or may have had some",
    SIZE_UNCERTAIN "size-uncertain" "the file was written after it was described and ends with a hole, or was cut since",
    GROWTH_UNCERTAIN "growth-uncertain" "a file on several tiers was written after it was described and has a hole that ends where a tier's range begins: if it was growing when the machine stopped, the hole was bytes, and nothing from there on had been promised",
    OBJECT_UNREADABLE "object-unreadable" "an object cannot be read: it is left where it is, and is in no file",
    OBJECT_FOREIGN "object-foreign" "an object says that it belongs to another volume: it is left where it is",
);

/// Something that is missing or uncertain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildFinding {
    /// Its kind.
    pub kind: RebuildFindingKind,
    /// Inode number of the file or directory; `None` for an object that is in no file.
    pub ino: Option<Ino>,
    /// Path in the rebuilt volume, without a leading slash; `None` for an object that is in no file.
    pub path: Option<Vec<u8>>,
    /// Name of the tier, where it is about one.
    pub tier: Option<String>,
    /// The object, where it is about one.
    pub object: Option<ObjectId>,
    /// Size in bytes, where bytes are concerned.
    pub size: Option<u64>,
    /// This case, in words.
    pub detail: String,
}

/// The result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Regular files, those in lost+found included.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Objects that were found on the tiers.
    pub objects: u64,
    /// Sizes of all files together.
    pub bytes: u64,
    /// Files in lost+found.
    pub files_lost_and_found: u64,
    /// Everything that is missing or uncertain.
    pub findings: Vec<RebuildFinding>,
    /// Findings of each kind.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Findings while paths are not known yet.
#[derive(Debug, Default)]
pub(super) struct Findings {
    all: Vec<RebuildFinding>,
}

impl Findings {
    /// Something about an object that will be in no file.
    pub(super) fn add_object(&mut self, kind: RebuildFindingKind, tier: &str, object: ObjectId, detail: String) {
        self.all.push(RebuildFinding {
            kind,
            ino: None,
            path: None,
            tier: Some(tier.to_owned()),
            object: Some(object),
            size: None,
            detail,
        });
    }

    /// Something about a file or directory.
    pub(super) fn add(&mut self, kind: RebuildFindingKind, ino: Ino, detail: String) {
        self.all.push(RebuildFinding {
            kind,
            ino: Some(ino),
            path: None,
            tier: None,
            object: None,
            size: None,
            detail,
        });
    }

    /// Something about a file of which a part lies on a tier.
    pub(super) fn add_sized(
        &mut self,
        kind: RebuildFindingKind,
        ino: Ino,
        size: u64,
        tier: &str,
        object: ObjectId,
        detail: String,
    ) {
        self.all.push(RebuildFinding {
            kind,
            ino: Some(ino),
            path: None,
            tier: Some(tier.to_owned()),
            object: Some(object),
            size: Some(size),
            detail,
        });
    }

    /// The report, with the paths that everything got.
    pub(super) fn into_report(self, placed: &[PlacedFile], tree: &Tree, objects: u64) -> RebuildReport {
        let places: BTreeMap<Ino, &PlacedFile> = placed.iter().map(|file| (file.file.ino, file)).collect();
        let mut report = RebuildReport { objects, directories: tree.len() as u64, ..RebuildReport::default() };
        report.files = placed.len() as u64;
        report.bytes = placed.iter().map(|file| file.file.size).sum();
        report.files_lost_and_found = placed.iter().filter(|file| file.is_lost).count() as u64;
        for mut finding in self.all {
            finding.path = finding.ino.and_then(|ino| match places.get(&ino) {
                Some(file) => Some(tree.path(file.parent, &file.name)),
                None => tree.path_of(ino),
            });
            *report.counts.entry(finding.kind.name).or_default() += 1;
            report.findings.push(finding);
        }
        report
    }
}
