//! The positions of one directory against its names.
//!
//! Invariants: the two are compared by one sum first. Where they differ, names and positions of this directory are
//! walked again and looked up one by one.

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::store::{Dirent, InodeBody, PositionEntry, keys};
use polymux_types::Ino;

use super::lost_found::{Counting, put_dirent, put_position};
use super::sums::hash_of;
use super::{Examination, Found, NamedInode, kinds, put_inode};

/// Sums over one directory.
pub(super) struct Positions {
    directory: Ino,
    names: u64,
    positions: u64,
    cookie_last: Option<u64>,
    has_unreadable: bool,
}

impl Positions {
    pub(super) fn new(directory: Ino) -> Self {
        Self { directory, names: 0, positions: 0, cookie_last: None, has_unreadable: false }
    }

    pub(super) fn note_unreadable(&mut self) {
        self.has_unreadable = true;
    }

    pub(super) fn add_name(&mut self, name: &[u8], dirent: &Dirent) {
        let hash = hash_of(&(dirent.cookie, dirent.ino.0, dirent.kind.type_bits(), name));
        self.names = self.names.wrapping_add(hash);
        self.cookie_last = self.cookie_last.max(Some(dirent.cookie));
    }

    pub(super) fn add_position(&mut self, cookie: u64, entry: &PositionEntry) {
        let hash = hash_of(&(cookie, entry.ino.0, entry.kind.type_bits(), entry.name.as_slice()));
        self.positions = self.positions.wrapping_add(hash);
        self.cookie_last = self.cookie_last.max(Some(cookie));
    }

    /// Compares. `restored` is called for each name that its position gives back.
    pub(super) fn finish(
        self,
        exam: &mut Examination<'_>,
        next_cookie: u64,
        mut restored: impl FnMut(&Dirent, &[u8]),
    ) -> Result<()> {
        if let Some(last) = self.cookie_last.filter(|last| *last >= next_cookie) {
            let directory = self.directory;
            if let Found::Record(mut record) = exam.inode(directory)?
                && let InodeBody::Directory { next_cookie, .. } = &mut record.body
            {
                *next_cookie = last.saturating_add(1);
                let mut repair = Batch::new();
                put_inode(&mut repair, directory, &record);
                let detail = format!("position {last} is there, and the next one would be below it");
                exam.found(&kinds::COOKIE_HIGH, Some(directory), detail, Some(repair))?;
                exam.flush()?;
            }
        }
        if self.names == self.positions && !self.has_unreadable {
            return Ok(());
        }
        self.check_names(exam)?;
        self.check_positions(exam, &mut restored)
    }

    /// Every name has its position.
    fn check_names(&self, exam: &mut Examination<'_>) -> Result<()> {
        let directory = self.directory;
        let mut names = exam.cursor(keys::dirents(directory));
        while let Some((key, value)) = names.next()? {
            let Ok(dirent) = Dirent::decode(&value) else { continue };
            let name = keys::name_of_dirent_key(&key);
            let wanted = PositionEntry { ino: dirent.ino, kind: dirent.kind, name: name.to_vec() };
            let position = position_at(exam, directory, dirent.cookie)?;
            if position.as_ref() == Some(&wanted) {
                continue;
            }
            let place = NamedInode { parent: directory, name, ino: dirent.ino };
            let detail = format!("position {} of directory {directory}", dirent.cookie);
            if let Some(other) = position
                && other.name != name
                && dirent_at(exam, directory, &other.name)?.is_some_and(|of| of.cookie == dirent.cookie)
            {
                if exam.found_name(&kinds::COOKIE_DUPLICATE, place, detail, Some(Batch::new()))? {
                    // A new name of the same file is one with a new position.
                    let mut batch = Batch::new();
                    batch.delete(keys::dirent(directory, name));
                    exam.change(&batch)?;
                    exam.give_name(place, dirent.kind, Counting::Counted)?;
                }
                continue;
            }
            let mut repair = Batch::new();
            put_position(&mut repair, directory, dirent.cookie, &wanted);
            exam.found_name(&kinds::POSITION_MISSING, place, detail, Some(repair))?;
        }
        Ok(())
    }

    /// Every position has its name.
    fn check_positions(&self, exam: &mut Examination<'_>, restored: &mut impl FnMut(&Dirent, &[u8])) -> Result<()> {
        let directory = self.directory;
        let mut positions = exam.cursor(keys::positions_after(directory, 0));
        while let Some((key, value)) = positions.next()? {
            let Some(cookie) = keys::cookie_of_position_key(&key) else { continue };
            let Ok(entry) = PositionEntry::decode(&value) else { continue };
            let place = NamedInode { parent: directory, name: &entry.name, ino: entry.ino };
            let detail = format!("position {cookie} of directory {directory}");
            let raw = exam.store.get(&keys::dirent(directory, &entry.name))?;
            let mut repair = Batch::new();
            match raw.map(|value| Dirent::decode(&value)) {
                // The name was compared with this position already.
                Some(Ok(dirent)) if dirent.cookie == cookie => {}
                // The pass over all records has found it.
                Some(Err(_)) => {}
                Some(Ok(_)) => {
                    repair.delete(&key);
                    exam.found_name(&kinds::POSITION_STALE, place, detail, Some(repair))?;
                }
                None if is_listed(exam, directory, &entry)? => {
                    let dirent = Dirent { ino: entry.ino, kind: entry.kind, cookie };
                    put_dirent(&mut repair, directory, &entry.name, dirent);
                    exam.found_name(&kinds::NAME_LOST, place, detail, Some(repair))?;
                    restored(&dirent, &entry.name);
                }
                None => {
                    repair.delete(&key);
                    exam.found_name(&kinds::POSITION_STALE, place, detail, Some(repair))?;
                }
            }
        }
        Ok(())
    }

    /// Positions of a directory that is not there: its names are removed with them, so only those without a name are left.
    pub(super) fn remove_all(self, exam: &mut Examination<'_>) -> Result<()> {
        exam.flush()?;
        let directory = self.directory;
        let mut positions = exam.cursor(keys::positions_after(directory, 0));
        while let Some((key, value)) = positions.next()? {
            let Ok(entry) = PositionEntry::decode(&value) else { continue };
            if dirent_at(exam, directory, &entry.name)?.is_some() {
                continue;
            }
            let mut repair = Batch::new();
            repair.delete(&key);
            let place = NamedInode { parent: directory, name: &entry.name, ino: entry.ino };
            exam.found_name(&kinds::POSITION_STALE, place, format!("there is no directory {directory}"), Some(repair))?;
        }
        Ok(())
    }
}

fn position_at(exam: &Examination<'_>, directory: Ino, cookie: u64) -> Result<Option<PositionEntry>> {
    Ok(exam.store.get(&keys::position(directory, cookie))?.and_then(|value| PositionEntry::decode(&value).ok()))
}

pub(super) fn dirent_at(exam: &Examination<'_>, directory: Ino, name: &[u8]) -> Result<Option<Dirent>> {
    Ok(exam.store.get(&keys::dirent(directory, name))?.and_then(|value| Dirent::decode(&value).ok()))
}

/// Whether the inode of a position lists that name, and is of that type.
fn is_listed(exam: &Examination<'_>, directory: Ino, entry: &PositionEntry) -> Result<bool> {
    let listed = exam.store.get(&keys::parent_name(entry.ino, directory, &entry.name))?.is_some();
    Ok(listed && matches!(exam.inode(entry.ino)?, Found::Record(record) if record.body.kind() == entry.kind))
}
