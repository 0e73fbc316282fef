//! Names inodes that have no name: `lost+found` in the root directory, created when it is first needed.
//!
//! Invariants: everything is committed at once, because the next name depends on the position that this one took.

use polymux_meta::Batch;
use polymux_records::attributes::FileKind;
use polymux_records::error::{Error, Result};
use polymux_records::store::describe::decode_number;
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::{Dirent, EntryCount, InodeBody, InodeRecord, PositionEntry, put_number_range_end};
use polymux_types::Ino;

use super::records::new_directory;
use super::{CheckMode, Examination, Found, NamedInode, put_inode};

const NAME: &str = "lost+found";

/// Effect of a new name on the counts of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// The directory has counted it already: it had the name, or one in its place.
    Counted,
    /// There is one more.
    OneMore,
}

/// Most names that are tried until one is free.
const NAMES_TRIED_MAX: u32 = 10_000;

impl Examination<'_> {
    /// Returns the directory for inodes without a name.
    fn lost_and_found(&mut self) -> Result<Ino> {
        for attempt in 0..NAMES_TRIED_MAX {
            let name = if attempt == 0 { NAME.to_owned() } else { format!("{NAME}.{attempt}") };
            let value = self.store.get(&keys::dirent(Ino::ROOT, name.as_bytes()))?;
            let Some(value) = value else {
                let ino = self.new_ino()?;
                let mut batch = Batch::new();
                put_inode(&mut batch, ino, &new_directory(self.now, Ino::ROOT, 0o700));
                self.change(&batch)?;
                let place = NamedInode { parent: Ino::ROOT, name: name.as_bytes(), ino };
                self.give_name(place, FileKind::Directory, Counting::OneMore)?;
                return Ok(ino);
            };
            if let Ok(Dirent { ino, kind: FileKind::Directory, .. }) = Dirent::decode(&value)
                && matches!(self.inode(ino)?, Found::Record(_))
            {
                return Ok(ino);
            }
        }
        Err(Error::corrupted("the root directory", "no name is left for lost+found"))
    }

    /// A number for a new inode.
    pub(super) fn new_ino(&mut self) -> Result<Ino> {
        self.flush()?;
        let value = self.store.get(&keys::number_range(NumberKind::Ino))?;
        let next = value.map(|value| decode_number(&value)).transpose()?;
        let next = next.ok_or_else(|| Error::corrupted("the range of inodes", "it is missing"))?;
        let mut batch = Batch::new();
        put_number_range_end(&mut batch, NumberKind::Ino, next + 1);
        self.change(&batch)?;
        Ok(Ino(next))
    }

    /// Gives an inode a name in lost+found. Does nothing where the check only reports.
    pub(super) fn attach(&mut self, ino: Ino, mut record: InodeRecord, name: &str) -> Result<()> {
        if self.mode == CheckMode::Report {
            return Ok(());
        }
        let directory = self.lost_and_found()?;
        let kind = record.body.kind();
        if let InodeBody::Directory { parent, .. } = &mut record.body {
            *parent = directory;
            record.links = record.links.max(2);
        } else {
            record.links = 1;
        }
        let mut batch = Batch::new();
        batch.delete(keys::orphan(ino));
        put_inode(&mut batch, ino, &record);
        self.change(&batch)?;
        self.give_free_name(directory, name, ino, kind, Counting::OneMore)
    }

    /// Gives an inode this name in a directory, or the next one that is free.
    pub(super) fn give_free_name(
        &mut self,
        parent: Ino,
        name: &str,
        ino: Ino,
        kind: FileKind,
        counting: Counting,
    ) -> Result<()> {
        self.flush()?;
        for attempt in 0..NAMES_TRIED_MAX {
            let name = if attempt == 0 { name.to_owned() } else { format!("{name}.{attempt}") };
            if self.store.get(&keys::dirent(parent, name.as_bytes()))?.is_none() {
                return self.give_name(NamedInode { parent, name: name.as_bytes(), ino }, kind, counting);
            }
        }
        Err(Error::corrupted("a directory", "no name is left in it"))
    }

    /// Writes a name, its position and its place in the list of names.
    pub(super) fn give_name(&mut self, place: NamedInode<'_>, kind: FileKind, counting: Counting) -> Result<()> {
        let NamedInode { parent, name, ino } = place;
        self.flush()?;
        let Found::Record(mut directory) = self.inode(parent)? else {
            return Err(Error::corrupted(format!("directory {parent}"), "it cannot be read"));
        };
        let InodeBody::Directory { next_cookie, entries, .. } = &mut directory.body else {
            return Err(Error::corrupted(format!("inode {parent}"), "it is no directory"));
        };
        let cookie = *next_cookie;
        *next_cookie += 1;
        let is_one_more = counting == Counting::OneMore;
        if let EntryCount::Exact(count) = entries
            && is_one_more
        {
            *count += 1;
        }
        if is_one_more && kind == FileKind::Directory {
            directory.links += 1;
        }
        let mut batch = Batch::new();
        put_inode(&mut batch, parent, &directory);
        put_dirent(&mut batch, parent, name, Dirent { ino, kind, cookie });
        put_position(&mut batch, parent, cookie, &PositionEntry { ino, kind, name: name.to_vec() });
        batch.put(keys::parent_name(ino, parent, name), []);
        self.change(&batch)?;
        self.flush()
    }
}

pub(super) fn put_dirent(batch: &mut Batch, parent: Ino, name: &[u8], dirent: Dirent) {
    let key = keys::dirent(parent, name);
    batch.put_with(|bytes| bytes.extend_from_slice(&key), |bytes| dirent.encode(bytes));
}

pub(super) fn put_position(batch: &mut Batch, parent: Ino, cookie: u64, entry: &PositionEntry) {
    let key = keys::position(parent, cookie);
    batch.put_with(|bytes| bytes.extend_from_slice(&key), |bytes| entry.encode(bytes));
}

/// Takes a name away wherever it is written.
pub(super) fn remove_name(batch: &mut Batch, place: NamedInode<'_>, cookie: Option<u64>) {
    let NamedInode { parent, name, ino } = place;
    batch.delete(keys::dirent(parent, name));
    batch.delete(keys::parent_name(ino, parent, name));
    if let Some(cookie) = cookie {
        batch.delete(keys::position(parent, cookie));
    }
}
