//! From a record to an inode in memory and back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_meta::Sequence;
use polymux_records::blockmap::{BlockMap, Extent};
use polymux_records::error::{Error, Result};
use polymux_records::store::{EntryCount, ExtentRecord, FileRecord, InodeBody, InodeRecord};
use polymux_types::sync::{Mutex, RwLock};
use polymux_types::{Block, Ino};

use super::size_state::SizeKnown;
use super::{Body, Common, DirectoryState, FileState, Inode, Layout, Lifecycle, NamesEdition};

/// Whether a record without a size authority is complete about its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeTrust {
    /// The last stop was clean, or the inode is new.
    Settled,
    /// The last stop was unclean: objects must be looked at once.
    Doubtful,
}

impl Inode {
    /// Builds the inode of a record. `sequence` is one that certainly covers its last change.
    pub fn from_record(
        ino: Ino,
        record: InodeRecord,
        extents: &[(Block, ExtentRecord)],
        sequence: Sequence,
        trust: SizeTrust,
    ) -> Result<Self> {
        let kind = record.body.kind();
        let parent = match &record.body {
            InodeBody::Directory { parent, .. } => parent.0,
            _ => 0,
        };
        let body = match record.body {
            InodeBody::Regular(file) => Body::Regular(Box::new(file_state(ino, file, extents, trust)?)),
            InodeBody::Directory { next_cookie, entries, .. } => {
                let entries = match entries {
                    EntryCount::Exact(count) => Some(count),
                    EntryCount::Unknown | EntryCount::Open => None,
                };
                Body::Directory(RwLock::new(DirectoryState {
                    next_cookie,
                    cookies_end: next_cookie,
                    entries,
                    edition: NamesEdition::default(),
                }))
            }
            InodeBody::Symlink { target } => Body::Symlink(target),
            InodeBody::Special { device, .. } => Body::Special { device },
        };
        let common = Common {
            permissions: record.permissions,
            uid: record.uid,
            gid: record.gid,
            links: record.links,
            has_access_acl: record.has_access_acl,
            has_default_acl: record.has_default_acl,
            attribute_flags: record.attribute_flags,
            accessed: record.accessed,
            modified: record.modified,
            changed: record.changed,
        };
        Ok(Self {
            ino,
            kind,
            born: record.born,
            generation: record.generation,
            body,
            record_lock: Mutex::new(()),
            common: RwLock::new(common),
            lacks_xattrs: AtomicBool::new(record.lacks_xattrs),
            lacks_capabilities: AtomicBool::new(record.lacks_xattrs),
            is_record_open: AtomicBool::new(false),
            times_dirty: AtomicBool::new(false),
            last_sequence: AtomicU64::new(sequence.0),
            lifecycle: Mutex::new(Lifecycle::default()),
            parent: AtomicU64::new(parent),
        })
    }

    /// The record as of now. Called inside a transaction, with the record lock held. A directory's state is passed by
    /// its holder, who has it locked.
    pub(crate) fn to_record(&self, directory: Option<&DirectoryState>) -> InodeRecord {
        let body = match &self.body {
            Body::Regular(file) => InodeBody::Regular(file_record(file)),
            Body::Directory(_) => {
                let state = directory.expect("the state of a directory is given with it");
                let entries = state.entries.map_or(EntryCount::Unknown, EntryCount::Exact);
                InodeBody::Directory { parent: self.parent(), next_cookie: state.next_cookie, entries }
            }
            Body::Symlink(target) => InodeBody::Symlink { target: target.clone() },
            Body::Special { device } => InodeBody::Special { kind: self.kind, device: *device },
        };
        let common = self.common.read();
        InodeRecord {
            permissions: common.permissions,
            uid: common.uid,
            gid: common.gid,
            links: common.links,
            generation: self.generation,
            has_access_acl: common.has_access_acl,
            has_default_acl: common.has_default_acl,
            lacks_xattrs: self.lacks_xattrs.load(Ordering::Acquire),
            attribute_flags: common.attribute_flags,
            accessed: common.accessed,
            modified: common.modified,
            changed: common.changed,
            born: self.born,
            body,
        }
    }
}

fn file_state(ino: Ino, file: FileRecord, extents: &[(Block, ExtentRecord)], trust: SizeTrust) -> Result<FileState> {
    let extents: Vec<Extent> = extents
        .iter()
        .map(|(end, extent)| Extent { start: extent.start_block, end: *end, owner: extent.owner })
        .collect();
    let subject = || format!("block lookup table of inode {ino}");
    let map = BlockMap::from_extents(file.home, &extents).map_err(|detail| Error::corrupted(subject(), detail))?;
    let slots = file.objects.len();
    let names_an_object = |extent: &Extent| match extent.owner {
        polymux_records::blockmap::Owner::Slot(slot) => usize::from(slot) < slots,
        polymux_records::blockmap::Owner::Hole => true,
    };
    if !extents.iter().all(names_an_object) {
        return Err(Error::corrupted(subject(), "an extent names an object that the file does not have"));
    }
    // After an unclean stop an object may be longer than the record says, although no bit tells: the bit may not have
    // become durable.
    let size_known = file.extenders == 0 && (trust == SizeTrust::Settled || file.objects.is_empty());
    let mut layout = Layout {
        map,
        objects: file.objects,
        size_floor: file.size_floor,
        extenders: file.extenders,
        error_sequence: file.error_sequence,
        damaged: file.damaged,
    };
    layout.believe_lengths();
    let known = if size_known { SizeKnown::Yes } else { SizeKnown::NotYet };
    Ok(FileState::new(layout, known, trust))
}

fn file_record(file: &FileState) -> FileRecord {
    let layout = file.layout.read();
    FileRecord {
        size_floor: layout.size_floor,
        extenders: layout.extenders,
        home: layout.map.home(),
        objects: file.allocation.for_record(layout.objects_for_record()),
        error_sequence: layout.error_sequence,
        damaged: layout.damaged.clone(),
    }
}
