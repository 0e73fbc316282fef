//! Pass over the tree: every inode has a name or is on record as deleted, every directory has one name, `..` leads to where
//! that is, and all directories can be reached from the root.
//!
//! Invariants: names and lists of names agree, because the pass over names came first. In memory are the number and
//! the parent of each directory.

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::store::{InodeBody, InodeRecord, keys};
use polymux_types::Ino;

use super::cursor::{Cursor, first_of};
use super::lost_found::remove_name;
use super::positions::dirent_at;
use super::{Examination, Found, NamedInode, kinds, put_inode};

/// Directories and where they lie, by ascending number.
type Parents = Vec<(Ino, Ino)>;

/// The names of one inode: how many, and the first ones.
struct Names {
    count: u64,
    first: Vec<(Ino, Vec<u8>)>,
}

/// Names kept of one directory; it should have one.
const NAMES_KEPT: usize = 64;

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let parents = inodes(exam)?;
    exam.flush()?;
    loops(exam, &parents)
}

fn inodes(exam: &mut Examination<'_>) -> Result<Parents> {
    let mut parents = Vec::new();
    let mut inodes = exam.cursor(keys::inodes());
    let mut lists = exam.cursor(keys::of_kind(b'p'));
    let mut orphans = exam.cursor(keys::orphans());
    while let Some(ino) = first_of([inodes.ino()?, orphans.ino()?]) {
        let orphan = orphans.next_of(ino)?.is_some();
        lists.skip_to(ino)?;
        let names = names_of(&mut lists, ino)?;
        match inodes.next_of(ino)?.map(|(_, value)| InodeRecord::decode(ino, &value)) {
            None => {
                let mut repair = Batch::new();
                repair.delete(keys::orphan(ino));
                let detail = format!("there is no inode {ino}");
                exam.found(&kinds::ORPHAN_MISSING, Some(ino), detail, Some(repair))?;
            }
            Some(Ok(record)) => {
                if orphan && names.count > 0 {
                    let mut repair = Batch::new();
                    repair.delete(keys::orphan(ino));
                    let detail = format!("it has {} names", names.count);
                    exam.found(&kinds::ORPHAN_NAMED, Some(ino), detail, Some(repair))?;
                }
                if names.count == 0 && ino != Ino::ROOT && !(orphan && record.links == 0) {
                    nameless(exam, ino, record)?;
                } else if let InodeBody::Directory { parent, .. } = record.body
                    && !(orphan && names.count == 0)
                {
                    parents.push((ino, directory(exam, ino, record, parent, names)?));
                }
            }
            // Its names lead to it, and nothing is known of it.
            Some(Err(_)) => {}
        }
    }
    Ok(parents)
}

fn names_of(lists: &mut Cursor<'_>, ino: Ino) -> Result<Names> {
    let mut names = Names { count: 0, first: Vec::new() };
    while let Some((key, _)) = lists.next_of(ino)? {
        names.count += 1;
        if names.first.len() < NAMES_KEPT {
            names.first.extend(keys::parent_and_name_of_key(&key));
        }
    }
    Ok(names)
}

fn nameless(exam: &mut Examination<'_>, ino: Ino, record: InodeRecord) -> Result<()> {
    let kind = match record.body {
        InodeBody::Directory { .. } => &kinds::DIRECTORY_UNREFERENCED,
        _ => &kinds::INODE_UNREFERENCED,
    };
    let detail = format!("inode {ino}, {} links on record", record.links);
    exam.found(kind, Some(ino), detail, Some(Batch::new()))?;
    exam.attach(ino, record, &format!("#{ino}"))
}

/// Checks the name of a directory that has one. Returns where it lies.
fn directory(
    exam: &mut Examination<'_>,
    ino: Ino,
    mut record: InodeRecord,
    recorded: Ino,
    mut names: Names,
) -> Result<Ino> {
    let is_root = ino == Ino::ROOT;
    let kept = names.first.iter().position(|(parent, _)| *parent == recorded).unwrap_or(0);
    let kept = if is_root { None } else { Some(names.first.swap_remove(kept).0) };
    let kind = if is_root { &kinds::ROOT_NAMED } else { &kinds::DIRECTORY_NAMED_TWICE };
    for (parent, name) in names.first {
        let place = NamedInode { parent, name: &name, ino };
        let mut repair = Batch::new();
        let cookie = dirent_at(exam, parent, &name)?.filter(|dirent| dirent.ino == ino).map(|dirent| dirent.cookie);
        match cookie {
            Some(_) => remove_name(&mut repair, place, cookie),
            None => repair.delete(keys::parent_name(ino, parent, &name)),
        }
        let detail = format!("directory {ino} has another name");
        exam.found_name(kind, place, detail, Some(repair))?;
    }
    let lies_in = kept.unwrap_or(Ino::ROOT);
    if let InodeBody::Directory { parent, .. } = &mut record.body
        && *parent != lies_in
    {
        let detail = format!("`..` leads to directory {parent}, and it lies in {lies_in}");
        *parent = lies_in;
        let mut repair = Batch::new();
        put_inode(&mut repair, ino, &record);
        exam.found(&kinds::PARENT_WRONG, Some(ino), detail, Some(repair))?;
    }
    Ok(lies_in)
}

/// State of a directory while parents are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    OnThisPath,
    /// To the root, or to where another pass has found the end.
    Ends,
}

/// Follows the parents of every directory, and cuts loops.
fn loops(exam: &mut Examination<'_>, parents: &Parents) -> Result<()> {
    let place_of = |ino: Ino| parents.binary_search_by_key(&ino, |(ino, _)| *ino).ok();
    let mut reach = vec![Reach::Unknown; parents.len()];
    for start in 0..parents.len() {
        let mut path = Vec::new();
        let mut at = Some(start);
        while let Some(place) = at.filter(|place| reach[*place] == Reach::Unknown) {
            reach[place] = Reach::OnThisPath;
            path.push(place);
            let (ino, parent) = parents[place];
            at = if ino == Ino::ROOT { None } else { place_of(parent) };
        }
        if let Some(place) = at.filter(|place| reach[*place] == Reach::OnThisPath) {
            let from = path.iter().position(|on| *on == place).expect("it is on this path");
            let ino = path[from..].iter().map(|place| parents[*place].0).min().expect("a loop has a member");
            cut_loop(exam, ino)?;
        }
        for place in path {
            reach[place] = Reach::Ends;
        }
    }
    Ok(())
}

/// Takes a directory out of its loop.
fn cut_loop(exam: &mut Examination<'_>, ino: Ino) -> Result<()> {
    let (from, to) = keys::parent_names(ino);
    let first = exam.store.range(&from, &to, 1)?;
    let Some((parent, name)) = first.first().and_then(|(key, _)| keys::parent_and_name_of_key(key)) else {
        return Ok(());
    };
    let cookie = dirent_at(exam, parent, &name)?.map(|dirent| dirent.cookie);
    let mut repair = Batch::new();
    remove_name(&mut repair, NamedInode { parent, name: &name, ino }, cookie);
    let detail = format!("directory {ino} lies in itself");
    exam.found(&kinds::DIRECTORY_LOOP, Some(ino), detail, Some(repair))?;
    exam.flush()?;
    match exam.inode(ino)? {
        Found::Record(record) => exam.attach(ino, *record, &format!("#{ino}")),
        Found::Missing | Found::Unreadable => Ok(()),
    }
}
