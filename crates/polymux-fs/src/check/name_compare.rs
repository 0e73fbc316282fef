//! Names of the groups of inodes whose sums differ, one by one.

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::store::{Dirent, PositionEntry, keys};
use polymux_types::Ino;

use super::lost_found::{Counting, put_dirent, put_position, remove_name};
use super::names::{group_of, is_name, repairs, takes_names};
use super::positions::dirent_at;
use super::sums::Sums;
use super::{Examination, Found, NamedInode, kinds};

pub(super) fn compare(exam: &mut Examination<'_>, sums: &Sums) -> Result<()> {
    exam.flush()?;
    let mut names = exam.cursor(keys::of_kind(b'd'));
    while let Some(parent) = names.ino()? {
        let Some((key, value)) = names.next_of(parent)? else { continue };
        if let Ok(dirent) = Dirent::decode(&value)
            && sums.differs(group_of(dirent.ino))
        {
            name(exam, parent, keys::name_of_dirent_key(&key), dirent)?;
        }
    }
    exam.flush()?;
    let mut lists = exam.cursor(keys::of_kind(b'p'));
    while let Some(ino) = lists.ino()? {
        let Some((key, _)) = lists.next_of(ino)? else { continue };
        if sums.differs(group_of(ino))
            && let Some((parent, name)) = keys::parent_and_name_of_key(&key)
        {
            listed_name(exam, NamedInode { parent, name: &name, ino })?;
        }
    }
    Ok(())
}

/// A name in a directory, against the inode.
fn name(exam: &mut Examination<'_>, parent: Ino, name: &[u8], dirent: Dirent) -> Result<()> {
    let place = NamedInode { parent, name, ino: dirent.ino };
    let mut repair = Batch::new();
    let record = match exam.inode(dirent.ino)? {
        Found::Unreadable => return Ok(()),
        Found::Missing => {
            remove_name(&mut repair, place, Some(dirent.cookie));
            let detail = format!("there is no inode {}", dirent.ino);
            return exam.found_name(&kinds::NAME_DANGLING, place, detail, Some(repair)).map(|_| ());
        }
        Found::Record(record) => record,
    };
    let kind = record.body.kind();
    if kind != dirent.kind {
        put_dirent(&mut repair, parent, name, Dirent { kind, ..dirent });
        let entry = PositionEntry { ino: dirent.ino, kind, name: name.to_vec() };
        put_position(&mut repair, parent, dirent.cookie, &entry);
        let detail = format!("it says {:?}, inode {} is {kind:?}", dirent.kind, dirent.ino);
        exam.found_name(&kinds::NAME_TYPE, place, detail, Some(std::mem::take(&mut repair)))?;
    }
    let key = keys::parent_name(dirent.ino, parent, name);
    if exam.store.get(&key)?.is_none() {
        repair.put(key, []);
        let detail = format!("inode {} does not list it", dirent.ino);
        exam.found_name(&kinds::NAME_UNLISTED, place, detail, Some(repair))?;
    }
    Ok(())
}

/// A name that an inode lists, against the directory.
fn listed_name(exam: &mut Examination<'_>, place: NamedInode<'_>) -> Result<()> {
    let NamedInode { parent, name, ino } = place;
    let dirent = dirent_at(exam, parent, name)?;
    if dirent.as_ref().is_some_and(|dirent| dirent.ino == ino) {
        return Ok(());
    }
    let mut repair = Batch::new();
    repair.delete(keys::parent_name(ino, parent, name));
    let kind = match exam.inode(ino)? {
        Found::Unreadable => return Ok(()),
        Found::Missing => {
            let detail = format!("there is no inode {ino}");
            return exam.found_name(&kinds::NAME_OF_NOTHING, place, detail, Some(repair)).map(|_| ());
        }
        Found::Record(record) => record.body.kind(),
    };
    if let Some(other) = dirent {
        let detail = format!("inode {ino} lists it, and it leads to inode {}", other.ino);
        return exam.found_name(&kinds::NAME_TAKEN, place, detail, Some(repair)).map(|_| ());
    }
    if exam.store.get(&keys::dirent(parent, name))?.is_some() {
        // It cannot be read, which the pass over all records has found.
        return Ok(());
    }
    if !is_name(name) || !takes_names(exam, parent)? {
        let detail = format!("inode {ino} lists it, and {parent} is no directory that takes it");
        return exam.found_name(&kinds::NAME_OF_NOTHING, place, detail, Some(repair)).map(|_| ());
    }
    let detail = format!("inode {ino} lists it");
    exam.found_name(&kinds::NAME_LOST, place, detail, Some(Batch::new()))?;
    if repairs(exam) {
        exam.give_name(place, kind, Counting::Counted)?;
    }
    Ok(())
}
