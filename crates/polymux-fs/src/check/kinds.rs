//! The kinds of findings: stable names, the meaning of each, and its remedy.

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The volume is not as it should be.
    Error,
    /// Nothing is wrong with the records; the finding is worth knowing.
    Note,
}

/// A kind of finding.
#[derive(Debug, PartialEq, Eq)]
pub struct FindingKind {
    /// Persistent name.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Its meaning.
    pub meaning: &'static str,
    /// The effect of a repair.
    pub repair: &'static str,
}

const fn error(name: &'static str, meaning: &'static str, repair: &'static str) -> FindingKind {
    FindingKind { name, severity: Severity::Error, meaning, repair }
}

const fn note(name: &'static str, meaning: &'static str, repair: &'static str) -> FindingKind {
    FindingKind { name, severity: Severity::Note, meaning, repair }
}
pub(super) static VOLUME_RECORD: FindingKind = error(
    "volume-record",
    "the record that says which volume this is, is missing or cannot be read",
    "it is written anew from the labels of the tiers",
);
pub(super) static EPOCH_RECORD: FindingKind = error(
    "epoch-record",
    "the epoch record is missing or cannot be read",
    "it is written anew from the labels of the tiers",
);
pub(super) static TIER_RECORD: FindingKind = error(
    "tier-record",
    "the record of a tier is missing or cannot be read",
    "it is written anew from the label of the tier",
);
pub(super) static TIER_NAME: FindingKind = error(
    "tier-name",
    "a tier is recorded under another name than the configuration gives it",
    "it is left: correct the configuration",
);
pub(super) static TIER_STALE: FindingKind = error(
    "tier-stale",
    "the label of a tier is older than recorded, or of another instance: it was restored or cloned",
    "it is left, and the tier is taken for missing",
);
pub(super) static TIER_NEWER: FindingKind = error(
    "tier-newer",
    "the label of a tier is newer than recorded: the metadata is old",
    "it is left, and nothing is repaired",
);
pub(super) static TIER_MISSING: FindingKind =
    note("tier-missing", "a tier is not there: what lies on it was not looked at", "nothing");
pub(super) static TIER_UNLISTED: FindingKind = error(
    "tier-unlisted",
    "the volume has a tier that the configuration does not list",
    "it is left: list the tier again",
);
pub(super) static TIER_STANDING: FindingKind =
    error("tier-standing", "a tier that is joining or leaving holds files", "it is in service, or drains");
pub(super) static TIER_NUMBER: FindingKind =
    error("tier-number", "the next number of a tier is in use", "it is raised");
pub(super) static RECORD_UNREADABLE: FindingKind = error(
    "record-unreadable",
    "a record cannot be read",
    "a record that others can replace, or that is a hint, is removed; one with the only copy of something is left",
);
pub(super) static KEY_UNKNOWN: FindingKind = error("key-unknown", "a record is of no known kind", "it is left");
pub(super) static VALUE_STRAY: FindingKind =
    error("value-stray", "a record that is only a key has a value", "the value is removed");
pub(super) static NUMBER_RANGE: FindingKind = error(
    "number-range",
    "the record of a number range is missing or cannot be read",
    "it is written anew, above every number in use",
);
pub(super) static INODE_NUMBER: FindingKind = error("inode-number", "the next inode number is in use", "it is raised");
pub(super) static OBJECT_NUMBER: FindingKind =
    error("object-number", "the next object number is in use", "it is raised");
pub(super) static OBJECT_MARK: FindingKind =
    error("object-mark", "the first object number of the last mount is beyond all numbers", "it is lowered");
pub(super) static ROOT_MISSING: FindingKind =
    error("root-missing", "the root directory is missing", "it is made anew; its names are kept");
pub(super) static DIRECTORY_MISSING: FindingKind = error(
    "directory-missing",
    "a name lies in a directory that is not there, or that is none",
    "the name is removed; a file without another one goes to lost+found",
);
pub(super) static NAME_INVALID: FindingKind = error("name-invalid", "a name cannot be a name", "the file is renamed");
pub(super) static NAME_DANGLING: FindingKind =
    error("name-dangling", "a name leads to an inode that is not there", "the name is removed");
pub(super) static NAME_TYPE: FindingKind =
    error("name-type", "a name says another type than its inode", "the name takes the type of the inode");
pub(super) static NAME_UNLISTED: FindingKind =
    error("name-unlisted", "a name is not in the list of names of its inode", "it is added to the list");
pub(super) static NAME_LOST: FindingKind =
    error("name-lost", "an inode lists a name that its directory does not have", "the directory gets the name back");
pub(super) static NAME_TAKEN: FindingKind =
    error("name-taken", "an inode lists a name that leads to another inode", "it is taken off the list");
pub(super) static NAME_OF_NOTHING: FindingKind =
    error("name-of-nothing", "a list of names belongs to no inode, or names no directory", "it is removed");
pub(super) static POSITION_MISSING: FindingKind = error(
    "position-missing",
    "a name has no position in its directory: listings do not show it",
    "the position is written",
);
pub(super) static POSITION_STALE: FindingKind =
    error("position-stale", "a position in a directory belongs to no name", "it is removed");
pub(super) static COOKIE_DUPLICATE: FindingKind =
    error("cookie-duplicate", "two names share a position in their directory", "one gets a new position");
pub(super) static COOKIE_HIGH: FindingKind =
    error("cookie-high", "a position is not below the next one that its directory will give", "the next one is raised");
pub(super) static ROOT_NAMED: FindingKind = error("root-named", "the root directory has a name", "the name is removed");
pub(super) static DIRECTORY_NAMED_TWICE: FindingKind =
    error("directory-named-twice", "a directory has several names", "one is kept");
pub(super) static PARENT_WRONG: FindingKind = error(
    "parent-wrong",
    "`..` of a directory leads elsewhere than to the directory that it lies in",
    "it is corrected",
);
pub(super) static DIRECTORY_LOOP: FindingKind = error(
    "directory-loop",
    "directories lie in one another and cannot be reached",
    "one of them goes to lost+found, with the others in it",
);
pub(super) static DIRECTORY_UNREFERENCED: FindingKind =
    error("directory-unreferenced", "a directory has no name", "it goes to lost+found");
pub(super) static INODE_UNREFERENCED: FindingKind =
    error("inode-unreferenced", "a file has no name, and no record that it was deleted", "it goes to lost+found");
pub(super) static ORPHAN_NAMED: FindingKind =
    error("orphan-named", "a file with a name is recorded as deleted", "that record is removed");
pub(super) static ORPHAN_MISSING: FindingKind =
    error("orphan-missing", "a deleted file is on record and not there", "that record is removed");
pub(super) static LINK_COUNT: FindingKind =
    error("link-count", "an inode does not have as many links as names", "the count is corrected");
pub(super) static ENTRY_COUNT: FindingKind =
    error("entry-count", "a directory has counted its names wrongly", "the count is corrected");
pub(super) static EXTENT_STRAY: FindingKind =
    error("extent-stray", "an extent belongs to no file with objects", "it is removed");
pub(super) static EXTENT_EMPTY: FindingKind = error("extent-empty", "an extent covers no block", "it is removed");
pub(super) static EXTENT_BOUNDS: FindingKind =
    error("extent-bounds", "an extent ends beyond the largest file", "it covers what the file may still grow to");
pub(super) static EXTENT_SLOT: FindingKind = error(
    "extent-slot",
    "an extent names an object that the file does not have",
    "its blocks are marked damaged: they read as an error until they are written",
);
pub(super) static EXTENT_OVERLAP: FindingKind = error(
    "extent-overlap",
    "two extents claim the same blocks",
    "the blocks are marked damaged: they read as an error until they are written",
);
pub(super) static EXTENT_REDUNDANT: FindingKind =
    error("extent-redundant", "an extent says what holds without it", "it is removed");
pub(super) static EXTENT_ALONE: FindingKind =
    error("extent-alone", "a file with one object, which is wholly on it, has extents", "they are removed");
pub(super) static HOME_MISSING: FindingKind = error(
    "home-missing",
    "a file has objects and no home tier",
    "its only object is its home; with several it is left",
);
pub(super) static INLINE_MISSING: FindingKind =
    error("inline-missing", "the content of a small file is missing", "it is left");
pub(super) static INLINE_SIZE: FindingKind = error(
    "inline-size",
    "the content of a small file has another length than recorded",
    "the length of the content is recorded",
);
pub(super) static INLINE_STRAY: FindingKind = error("inline-stray", "a content belongs to no file", "it is removed");
pub(super) static DAMAGED_BEYOND: FindingKind =
    error("damaged-beyond", "a damaged range lies beyond the end of its file", "it is cut off");
pub(super) static DATA_DAMAGED: FindingKind = note(
    "data-damaged",
    "bytes of a file were lost by a failed sync, with a forgotten tier or with the end of an object, and read as an error until they \
     are written",
    "nothing",
);
pub(super) static DISOWNED_EMPTY: FindingKind =
    error("disowned-empty", "a range that is to be freed is empty", "its record is removed");
pub(super) static DISOWNED_TIER: FindingKind =
    error("disowned-tier", "a range is to be freed on a tier that the volume does not have", "its record is removed");
pub(super) static DISOWNED_OBJECT_LIVE: FindingKind =
    error("disowned-object-live", "an object that a file uses is to be removed", "it is kept");
pub(super) static DISOWNED_LIVE: FindingKind =
    error("disowned-live", "bytes that a file uses are to be freed", "they are kept");
pub(super) static OBJECT_TIER: FindingKind =
    error("object-tier", "a file has an object on a tier that the volume does not have", "it is left");
pub(super) static XATTR_STRAY: FindingKind =
    error("xattr-stray", "an extended attribute belongs to no inode", "it is removed");
pub(super) static XATTR_FLAG: FindingKind =
    error("xattr-flag", "an inode says wrongly which extended attributes it has", "the inode is corrected");
pub(super) static ACL_INVALID: FindingKind = error(
    "acl-invalid",
    "an access control list cannot be read",
    "it is removed, and with the one for access the rights of the group",
);
pub(super) static PIN_TIER: FindingKind = note(
    "pin-tier",
    "a pin names a tier that the volume does not have, and does nothing",
    "nothing: `polymux unpin` takes it away",
);
pub(super) static OBJECT_SHARED: FindingKind = error("object-shared", "two files use one object", "it is left");
pub(super) static OBJECT_BUCKET: FindingKind =
    error("object-bucket", "an object lies in another bucket than recorded", "the bucket is recorded");
pub(super) static OBJECT_MISSING: FindingKind = error(
    "object-missing",
    "an object with bytes of a file is missing from its tier",
    "it is left: those bytes read as an error",
);
pub(super) static OBJECT_EMPTY_MISSING: FindingKind = error(
    "object-empty-missing",
    "an object of an empty file is missing from its tier",
    "the file gets a new one when it is written",
);
pub(super) static OBJECT_UNNAMED: FindingKind =
    error("object-unnamed", "an object with bytes belongs to no file", "it becomes a file in lost+found");
pub(super) static OBJECT_LEAKED: FindingKind =
    error("object-leaked", "an object without bytes belongs to no file", "it is removed");
pub(super) static OBJECT_LONG: FindingKind =
    error("object-long", "an object is longer than its file", "what is beyond the end of the file is cut off");
pub(super) static OBJECT_SHORT: FindingKind = error(
    "object-short",
    "an object is shorter than it was when its length was recorded: bytes of its file are lost",
    "they are marked damaged: they read as an error until they are written",
);
/// Found by the code that opens the second copy.
pub(super) static COPY_AHEAD: FindingKind = error(
    "copy-ahead",
    "the second copy of the metadata store holds more than the store: the store lost what was durable, or was restored \
     from an older state",
    "it is left: the volume is not mounted; `polymux mount --from-copy` starts from the copy",
);
/// Found by the code that opens the second copy.
pub(super) static COPY_UNREADABLE: FindingKind = error(
    "copy-unreadable",
    "the second copy of the metadata store cannot be read",
    "it is left: the next mount makes it anew",
);
/// Found by the code that opens the second copy.
pub(super) static COPY_INCOMPLETE: FindingKind = note(
    "copy-incomplete",
    "the second copy of the metadata store was still being made: nothing can be started from it",
    "nothing: the next mount makes it anew",
);

/// Every kind of finding.
pub static FINDING_KINDS: [&FindingKind; 73] = [
    &COPY_AHEAD,
    &COPY_UNREADABLE,
    &COPY_INCOMPLETE,
    &VOLUME_RECORD,
    &EPOCH_RECORD,
    &TIER_RECORD,
    &TIER_NAME,
    &TIER_STALE,
    &TIER_NEWER,
    &TIER_MISSING,
    &TIER_UNLISTED,
    &TIER_STANDING,
    &TIER_NUMBER,
    &RECORD_UNREADABLE,
    &KEY_UNKNOWN,
    &VALUE_STRAY,
    &NUMBER_RANGE,
    &INODE_NUMBER,
    &OBJECT_NUMBER,
    &OBJECT_MARK,
    &ROOT_MISSING,
    &DIRECTORY_MISSING,
    &NAME_INVALID,
    &NAME_DANGLING,
    &NAME_TYPE,
    &NAME_UNLISTED,
    &NAME_LOST,
    &NAME_TAKEN,
    &NAME_OF_NOTHING,
    &POSITION_MISSING,
    &POSITION_STALE,
    &COOKIE_DUPLICATE,
    &COOKIE_HIGH,
    &ROOT_NAMED,
    &DIRECTORY_NAMED_TWICE,
    &PARENT_WRONG,
    &DIRECTORY_LOOP,
    &DIRECTORY_UNREFERENCED,
    &INODE_UNREFERENCED,
    &ORPHAN_NAMED,
    &ORPHAN_MISSING,
    &LINK_COUNT,
    &ENTRY_COUNT,
    &EXTENT_STRAY,
    &EXTENT_EMPTY,
    &EXTENT_BOUNDS,
    &EXTENT_SLOT,
    &EXTENT_OVERLAP,
    &EXTENT_REDUNDANT,
    &EXTENT_ALONE,
    &HOME_MISSING,
    &INLINE_MISSING,
    &INLINE_SIZE,
    &INLINE_STRAY,
    &DAMAGED_BEYOND,
    &DATA_DAMAGED,
    &DISOWNED_EMPTY,
    &DISOWNED_TIER,
    &DISOWNED_OBJECT_LIVE,
    &DISOWNED_LIVE,
    &OBJECT_TIER,
    &XATTR_STRAY,
    &XATTR_FLAG,
    &ACL_INVALID,
    &PIN_TIER,
    &OBJECT_SHARED,
    &OBJECT_BUCKET,
    &OBJECT_MISSING,
    &OBJECT_EMPTY_MISSING,
    &OBJECT_UNNAMED,
    &OBJECT_LEAKED,
    &OBJECT_LONG,
    &OBJECT_SHORT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let mut names: Vec<&str> = FINDING_KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FINDING_KINDS.len());
    }
}
