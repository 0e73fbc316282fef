//! Pass over names: compares directory records (`d`, `c`) with inode records (`i`, `p`).
//!
//! Invariants:
//! * Directories are walked with their names and positions side by side; both are of one directory at a time.
//! * Names are in the order of their directories, and lists of names in the order of their inodes. The two are compared by
//!   sums over groups of inodes; only groups whose sums differ are compared name by name (`name_compare`).

use polymux_meta::Batch;
use polymux_records::attributes::FileKind;
use polymux_records::error::Result;
use polymux_records::store::{Dirent, InodeBody, InodeRecord, PositionEntry, keys};
use polymux_types::{Ino, limits};

use super::cursor::{Cursor, first_of};
use super::lost_found::{Counting, remove_name};
use super::positions::Positions;
use super::sums::{Side, Sums};
use super::{CheckMode, Examination, Found, NamedInode, kinds, name_compare};

/// Groups of inodes whose names are compared by one sum.
const GROUPS: u64 = 65_536;

/// Stands for the type of an inode that cannot be read, and of one that is not there.
const NO_TYPE: u32 = 0;

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let mut sums = Sums::new(usize::try_from(GROUPS).expect("65,536 is a size"));
    directories(exam, &mut sums)?;
    lists_of_names(exam, &mut sums)?;
    if sums.any_differs() {
        name_compare::compare(exam, &sums)?;
    }
    Ok(())
}

/// The group of an inode.
pub(super) fn group_of(ino: Ino) -> usize {
    usize::try_from(ino.0 % GROUPS).expect("a group is below 65,536")
}

/// Adds a name to the sum of its inode.
fn add(sums: &mut Sums, side: Side, ino: Ino, kind: u32, parent: Ino, name: &[u8]) {
    sums.add(side, group_of(ino), &(ino.0, kind, parent.0, name));
}

/// The kind of an inode that contains names.
enum Directory {
    /// Its next position.
    Whole(u64),
    Unreadable,
    /// It is not there, or no directory.
    None,
}

fn directories(exam: &mut Examination<'_>, sums: &mut Sums) -> Result<()> {
    let mut names = exam.cursor(keys::of_kind(b'd'));
    let mut positions = exam.cursor(keys::of_kind(b'c'));
    let mut inodes = exam.cursor(keys::inodes());
    while let Some(parent) = first_of([names.ino()?, positions.ino()?]) {
        let directory = directory_at(&mut inodes, parent)?;
        let mut compared = Positions::new(parent);
        while let Some((key, value)) = names.next_of(parent)? {
            // One that cannot be read was found by the pass over all records.
            let Ok(dirent) = Dirent::decode(&value) else {
                compared.note_unreadable();
                continue;
            };
            let name = keys::name_of_dirent_key(&key);
            if matches!(directory, Directory::None) {
                nowhere(exam, parent, name, &dirent)?;
                continue;
            }
            if !is_name(name) {
                invalid(exam, parent, name, &dirent)?;
            }
            add(sums, Side::Left, dirent.ino, dirent.kind.type_bits(), parent, name);
            compared.add_name(name, &dirent);
        }
        while let Some((key, value)) = positions.next_of(parent)? {
            let cookie = keys::cookie_of_position_key(&key);
            match (PositionEntry::decode(&value), cookie) {
                (Ok(entry), Some(cookie)) => compared.add_position(cookie, &entry),
                _ => compared.note_unreadable(),
            }
        }
        match directory {
            Directory::Whole(next_cookie) => compared.finish(exam, next_cookie, |lost, name| {
                add(sums, Side::Left, lost.ino, lost.kind.type_bits(), parent, name);
            })?,
            Directory::Unreadable => {}
            Directory::None => compared.remove_all(exam)?,
        }
    }
    Ok(())
}

fn directory_at(inodes: &mut Cursor<'_>, ino: Ino) -> Result<Directory> {
    inodes.skip_to(ino)?;
    let Some((_, value)) = inodes.next_of(ino)? else { return Ok(Directory::None) };
    Ok(match InodeRecord::decode(ino, &value).map(|record| record.body) {
        Ok(InodeBody::Directory { next_cookie, .. }) => Directory::Whole(next_cookie),
        Ok(_) => Directory::None,
        Err(_) => Directory::Unreadable,
    })
}

fn nowhere(exam: &mut Examination<'_>, parent: Ino, name: &[u8], dirent: &Dirent) -> Result<()> {
    let place = NamedInode { parent, name, ino: dirent.ino };
    let mut repair = Batch::new();
    remove_name(&mut repair, place, Some(dirent.cookie));
    let detail = format!("its directory would be inode {parent}");
    exam.found_name(&kinds::DIRECTORY_MISSING, place, detail, Some(repair)).map(|_| ())
}

/// Whether bytes can be a name.
pub(super) fn is_name(name: &[u8]) -> bool {
    let length = name.len();
    (1..=limits::NAME_LENGTH_MAX).contains(&length)
        && !name.contains(&b'/')
        && !name.contains(&0)
        && !matches!(name, b"." | b"..")
}

fn invalid(exam: &mut Examination<'_>, parent: Ino, name: &[u8], dirent: &Dirent) -> Result<()> {
    let place = NamedInode { parent, name, ino: dirent.ino };
    let mut repair = Batch::new();
    remove_name(&mut repair, place, Some(dirent.cookie));
    let detail = format!("`{}` is no name", name.escape_ascii());
    if exam.found_name(&kinds::NAME_INVALID, place, detail, Some(repair))?
        && let Found::Record(_) = exam.inode(dirent.ino)?
    {
        exam.give_free_name(parent, &format!("#{}", dirent.ino), dirent.ino, dirent.kind, Counting::Counted)?;
    }
    Ok(())
}

fn lists_of_names(exam: &mut Examination<'_>, sums: &mut Sums) -> Result<()> {
    let mut lists = exam.cursor(keys::of_kind(b'p'));
    let mut inodes = exam.cursor(keys::inodes());
    while let Some(ino) = lists.ino()? {
        inodes.skip_to(ino)?;
        let kind = match inodes.next_of(ino)? {
            Some((_, value)) => type_of_record(&value),
            None => NO_TYPE,
        };
        while let Some((key, _)) = lists.next_of(ino)? {
            if let Some((parent, name)) = keys::parent_and_name_of_key(&key) {
                add(sums, Side::Right, ino, kind, parent, &name);
            }
        }
    }
    Ok(())
}

/// The type bits of an inode record, which are its first field.
fn type_of_record(value: &[u8]) -> u32 {
    match InodeRecord::decode(Ino(0), value) {
        Ok(record) => record.body.kind().type_bits(),
        Err(_) => NO_TYPE,
    }
}

/// Whether a directory may be given a name.
pub(super) fn takes_names(exam: &Examination<'_>, ino: Ino) -> Result<bool> {
    Ok(match exam.inode(ino)? {
        Found::Record(record) => record.body.kind() == FileKind::Directory && record.links > 0,
        Found::Missing | Found::Unreadable => false,
    })
}

/// Whether repairs are made.
pub(super) fn repairs(exam: &Examination<'_>) -> bool {
    exam.mode() == CheckMode::Repair
}
