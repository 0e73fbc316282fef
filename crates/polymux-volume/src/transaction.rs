//! Changes of records that become durable together.

mod names;

use std::sync::atomic::Ordering;

use polymux_meta::Batch;
use polymux_records::blockmap::{Extent, MapChange};
use polymux_records::store::{DisownedKind, DisownedRecord, EntryCount, ExtentRecord, InodeBody, InodeRecord, keys};
use polymux_types::Ino;

use crate::inode::{DirectoryState, InlineChange, Inode, Layout};

/// Changes that become durable together.
#[derive(Default)]
pub struct Transaction {
    /// The changes of records.
    pub batch: Batch,
}

impl Transaction {
    /// Adds the record of an inode that is not a directory, as it is now.
    pub fn put_inode(&mut self, inode: &Inode) {
        self.put_record(inode, None);
    }

    /// Adds the record of a directory, as it is now.
    pub fn put_directory(&mut self, inode: &Inode, state: &DirectoryState) {
        self.put_record(inode, Some(state));
    }

    /// Adds the record of a directory that says of itself that names come and go after it: its cookies go on where those
    /// that it reserves end.
    pub fn put_open_directory(&mut self, inode: &Inode, state: &DirectoryState) {
        let mut record = inode.to_record(Some(state));
        if let InodeBody::Directory { next_cookie, entries, .. } = &mut record.body {
            *next_cookie = state.cookies_end;
            *entries = EntryCount::Open;
        }
        inode.is_record_open.store(true, Ordering::Release);
        self.put_record_with(keys::inode(inode.ino), |bytes| record.encode_into(bytes));
    }

    fn put_record(&mut self, inode: &Inode, state: Option<&DirectoryState>) {
        // Cleared first: a time that changes while the record is being made marks the inode again.
        inode.times_dirty.store(false, Ordering::Release);
        inode.is_record_open.store(false, Ordering::Release);
        if let Some(file) = inode.file() {
            file.log_inline(|change| match change {
                InlineChange::Put(content) => {
                    self.batch.reserve(content.len());
                    self.put_record_with(keys::inline(inode.ino), |bytes| {
                        polymux_records::store::inline_format::encode_into(bytes, content);
                    });
                }
                InlineChange::Delete => self.batch.delete(keys::inline(inode.ino)),
            });
        }
        let record: InodeRecord = inode.to_record(state);
        if let InodeBody::Regular(file) = &record.body {
            let checked = polymux_records::store::inode_format::check_file(file);
            assert_eq!(checked, Ok(()), "inode {} breaks an invariant before commit", inode.ino);
            if let Some(state) = inode.file() {
                state.allocation.note_recorded(&file.objects);
            }
        }
        self.put_record_with(keys::inode(inode.ino), |bytes| record.encode_into(bytes));
    }

    /// Adds a record that the closure appends to the batch itself.
    pub(crate) fn put_record_with(&mut self, key: keys::Key, encode: impl FnOnce(&mut Vec<u8>)) {
        self.batch.put_with(|bytes| bytes.extend_from_slice(&key), encode);
    }

    /// Adds the changes of the block lookup table of an inode, whose layout is the changed one. A file with one object has no
    /// extent records: loading it does not look for any.
    pub fn put_map_change(&mut self, ino: Ino, layout: &Layout, change: &MapChange) {
        for end in &change.removed {
            self.batch.delete(keys::extent(ino, *end));
        }
        for extent in &change.added {
            if layout.objects.len() > 1 {
                self.put_extent(ino, extent);
            } else {
                self.batch.delete(keys::extent(ino, extent.end));
            }
        }
    }

    /// Adds one extent.
    pub fn put_extent(&mut self, ino: Ino, Extent { start, end, owner }: &Extent) {
        let record = ExtentRecord { start_block: *start, owner: *owner };
        self.batch.put(keys::extent(ino, *end), record.encode());
    }

    /// Adds a pending free.
    pub fn put_disowned(&mut self, record: &DisownedRecord) {
        let is_empty = matches!(record.kind, DisownedKind::Range { end } if end <= record.start);
        assert!(!is_empty, "a disowned range has bytes: {record:?}");
        self.batch.put(record.key(), record.encode());
    }

    /// Adds the removal of a pending free whose work is done.
    pub fn delete_disowned(&mut self, record: &DisownedRecord) {
        self.batch.delete(record.key());
    }
}
