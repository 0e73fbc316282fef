//! Names: directory entries, positions, names of inodes, links, the tree.

use std::collections::HashSet;

use polymux_types::Ino;

use super::{Check, DirectoryCount};
use crate::attributes::FileKind;
use crate::error::Result;
use crate::store::directory_format::{Dirent, EntryCount, PositionEntry};
use crate::store::inode_format::{InodeBody, InodeRecord};
use crate::store::keys;
use crate::store::record_kinds::KnownRecord;

/// Names of one inode counted at once; an inode with more is counted in steps.
const NAMES_STEP: usize = 4096;

fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Check<'_> {
    pub(in crate::store) fn dirent(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino: parent, key, value } = record;
        let dirent = Dirent::decode(value)?;
        let name = &key[13..];
        let subject = format!("name `{}` in directory {parent}", shown(name));
        let count = self.directories.entry(parent).or_default();
        count.entries += 1;
        count.subdirectories += u64::from(dirent.kind == FileKind::Directory);
        if count.entries == 1 {
            self.directory(parent)?;
        }
        match self.inode_record(dirent.ino)?.map(|record| record.body.kind()) {
            Some(kind) if kind == dirent.kind => {}
            Some(kind) => self
                .violated("name-inode", format!("{subject} says {:?}, inode {} is {kind:?}", dirent.kind, dirent.ino)),
            None => self.violated("name-inode", format!("{subject} names inode {}, which is not there", dirent.ino)),
        }
        let position = self.store.get(&keys::position(parent, dirent.cookie))?;
        let position = position.and_then(|value| PositionEntry::decode(&value).ok());
        let same = |position: &PositionEntry| {
            position.ino == dirent.ino && position.kind == dirent.kind && position.name == name
        };
        if !position.as_ref().is_some_and(same) {
            self.violated("name-position", format!("{subject} has no position {} of its own", dirent.cookie));
        }
        if self.store.get(&keys::parent_name(dirent.ino, parent, name))?.is_none() {
            self.violated("name-parent", format!("{subject} is not among the names of inode {}", dirent.ino));
        }
        Ok(())
    }

    /// A directory that has entries.
    fn directory(&mut self, ino: Ino) -> Result<()> {
        match self.inode_record(ino)? {
            Some(InodeRecord { links: 2.., body: InodeBody::Directory { .. }, .. }) => {}
            Some(_) => {
                self.violated("directory", format!("inode {ino} has names in it and is no directory with a name"))
            }
            None => self.violated("directory", format!("inode {ino} has names in it and is not there")),
        }
        Ok(())
    }

    pub(in crate::store) fn position(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino: parent, key, value } = record;
        let entry = PositionEntry::decode(value)?;
        let cookie = keys::cookie_of_position_key(key).unwrap_or(u64::MAX);
        let subject = format!("position {cookie} of directory {parent}");
        let dirent = self.store.get(&keys::dirent(parent, &entry.name))?;
        let dirent = dirent.and_then(|value| Dirent::decode(&value).ok());
        if dirent.is_none_or(|dirent| dirent != Dirent { ino: entry.ino, kind: entry.kind, cookie }) {
            self.violated("name-position", format!("{subject} has no name `{}` of its own", shown(&entry.name)));
        }
        match self.inode_record(parent)?.map(|record| record.body) {
            Some(InodeBody::Directory { next_cookie, .. }) if cookie < next_cookie => {}
            Some(InodeBody::Directory { next_cookie, .. }) => {
                self.violated("cookie", format!("{subject} is not below {next_cookie}, the next one"));
            }
            _ => self.violated("directory", format!("{subject}: there is no such directory")),
        }
        Ok(())
    }

    pub(in crate::store) fn parent_name(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino, key, .. } = record;
        let Some((parent, name)) = keys::parent_and_name_of_key(key) else { return Ok(()) };
        let dirent = self.store.get(&keys::dirent(parent, &name))?.and_then(|value| Dirent::decode(&value).ok());
        if dirent.is_none_or(|dirent| dirent.ino != ino) {
            let detail = format!("inode {ino} has the name `{}` in directory {parent}, which has not", shown(&name));
            self.violated("name-parent", detail);
        }
        Ok(())
    }

    pub(in crate::store) fn orphan(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino, .. } = record;
        match self.inode_record(ino)? {
            Some(record) if record.links == 0 => {}
            Some(_) => self.violated("orphan", format!("inode {ino} has a name and an orphan record")),
            None => self.violated("orphan", format!("the orphan record of inode {ino} has no inode")),
        }
        Ok(())
    }

    /// Checks the names in the record of an inode.
    pub(super) fn names_of_inode(&mut self, ino: Ino, record: &InodeRecord) -> Result<()> {
        let names = self.count_names(ino)?;
        if let InodeBody::Directory { parent, entries, .. } = record.body {
            return self.names_of_directory(ino, record, (parent, entries), names);
        }
        if u64::from(record.links) != names {
            self.violated("links", format!("inode {ino} has {} links and {names} names", record.links));
        }
        if names == 0 {
            self.expect_orphan(ino)?;
        }
        Ok(())
    }

    fn names_of_directory(
        &mut self,
        ino: Ino,
        record: &InodeRecord,
        (parent, entries): (Ino, EntryCount),
        names: u64,
    ) -> Result<()> {
        let count: DirectoryCount = self.directories.remove(&ino).unwrap_or_default();
        if let EntryCount::Exact(entries) = entries
            && entries != count.entries
        {
            self.violated("entry-count", format!("directory {ino} counts {entries} names and has {}", count.entries));
        }
        if names == 0 && ino != Ino::ROOT {
            if record.links != 0 {
                self.violated("links", format!("directory {ino} has {} links and no name", record.links));
            }
            return self.expect_orphan(ino);
        }
        if names > 1 || names == 1 && ino == Ino::ROOT {
            self.violated("links", format!("directory {ino} has {names} names"));
        }
        if u64::from(record.links) != 2 + count.subdirectories {
            let detail =
                format!("directory {ino} has {} links and {} subdirectories", record.links, count.subdirectories);
            self.violated("links", detail);
        }
        let (from, to) = keys::parent_names(ino);
        let named_in = self.store.range(&from, &to, 1)?;
        let named_in =
            named_in.first().and_then(|(key, _)| keys::parent_and_name_of_key(key)).map(|(parent, _)| parent);
        if named_in.unwrap_or(Ino::ROOT) != parent {
            self.violated("tree", format!("directory {ino} says that it lies in {parent}, and its name is elsewhere"));
        }
        self.parents.insert(ino, parent);
        Ok(())
    }

    fn expect_orphan(&mut self, ino: Ino) -> Result<()> {
        if self.store.get(&keys::orphan(ino))?.is_none() {
            self.violated("orphan", format!("inode {ino} has neither a name nor an orphan record"));
        }
        Ok(())
    }

    fn count_names(&self, ino: Ino) -> Result<u64> {
        let (mut from, to) = keys::parent_names(ino);
        let mut names = 0;
        loop {
            let found = self.store.range(&from, &to, NAMES_STEP)?;
            names += found.len() as u64;
            let Some((last, _)) = found.last().filter(|_| found.len() == NAMES_STEP) else { return Ok(names) };
            from = keys::Key::from_slice(last);
            from.push(0);
        }
    }

    /// Follows the parents of every directory.
    pub(super) fn finish_tree(&mut self) {
        let mut good: HashSet<Ino> = HashSet::from([Ino::ROOT]);
        let mut lost = Vec::new();
        for start in self.parents.keys() {
            let mut path = Vec::new();
            let mut at = *start;
            let mut on_path = HashSet::new();
            while !good.contains(&at) && on_path.insert(at) {
                path.push(at);
                match self.parents.get(&at) {
                    Some(parent) => at = *parent,
                    None => break,
                }
            }
            if good.contains(&at) {
                good.extend(path);
            } else {
                lost.push(*start);
            }
        }
        lost.sort_unstable();
        for ino in lost {
            self.violated("tree", format!("the parents of directory {ino} do not lead to the root"));
        }
    }
}
