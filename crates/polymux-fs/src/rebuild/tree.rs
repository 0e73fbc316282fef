//! Directories, reconstructed from the stamps of files. Pure.
//!
//! Invariants:
//! * Every directory but the root lies in another one, and the way up from each ends at the root.
//! * The newest word on where a directory lies counts. Two that were described with one path are one directory; one of which
//!   the parent is unknown, or which would lie below itself, is in `lost+found`.

use std::collections::{BTreeMap, HashMap};

use polymux_records::attributes::FileKind;
use polymux_tier::StampOrder;
use polymux_types::Ino;

use super::findings::{self, Findings};
use super::scan::Evidence;
use super::{Numbers, findings::RebuildFindingKind};

const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Permission bits of directories whose own are unknown.
const PERMISSIONS_DEFAULT: u32 = 0o755;
const PERMISSIONS_LOST_AND_FOUND: u32 = 0o700;

/// Owner, group and permission bits of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Ownership {
    fn of(known: &Evidence) -> Self {
        Self { permissions: known.permissions, uid: known.uid, gid: known.gid }
    }
}

/// One directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) parent: Ino,
    pub(super) name: Box<[u8]>,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Names in it.
    pub(super) entries: BTreeMap<Box<[u8]>, (Ino, FileKind)>,
}

/// All directories.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) directories: BTreeMap<Ino, Directory>,
    /// Directories that are one with another one.
    merged: BTreeMap<Ino, Ino>,
    /// Directories whose parent is unknown.
    unplaced: Vec<Ino>,
    lost_and_found: Option<Ino>,
}

/// Directories by the one that the newest word says they lie in.
type Children<'a> = HashMap<Ino, Vec<(StampOrder, Ino, &'a [u8])>>;

impl Tree {
    /// The directories of which stamps tell. `root` is the ownership of the root where none tells of it.
    pub(super) fn grow(evidence: &BTreeMap<Ino, Evidence>, root: Ownership) -> Self {
        let mut tree =
            Self { directories: BTreeMap::new(), merged: BTreeMap::new(), unplaced: Vec::new(), lost_and_found: None };
        let root = evidence.get(&Ino::ROOT).map_or(root, Ownership::of);
        tree.insert(Ino::ROOT, Ino::ROOT, b"", root);
        let mut children: Children<'_> = HashMap::new();
        for (ino, known) in evidence.iter().filter(|(ino, _)| **ino != Ino::ROOT) {
            if let Some((order, parent, name)) = &known.name {
                children.entry(*parent).or_default().push((*order, *ino, name));
            }
        }
        tree.grow_from(Ino::ROOT, &mut children, evidence);
        // Tops first: everything below one of them is placed with it.
        let nameless = evidence.iter().filter(|(_, known)| known.name.is_none()).map(|(ino, _)| *ino);
        let loops = evidence.keys().copied();
        for ino in nameless.chain(loops).collect::<Vec<_>>() {
            if !tree.contains(ino) {
                tree.unplaced.push(ino);
                // Where lost+found is gets its name later, with those of other files in it.
                tree.insert(ino, ino, b"", Ownership::of(&evidence[&ino]));
                tree.grow_from(ino, &mut children, evidence);
            }
        }
        tree
    }

    fn insert(&mut self, ino: Ino, parent: Ino, name: &[u8], ownership: Ownership) {
        let Ownership { permissions, uid, gid } = ownership;
        let entries = BTreeMap::new();
        self.directories.insert(ino, Directory { parent, name: Box::from(name), permissions, uid, gid, entries });
    }

    /// Places everything below a directory that has its place.
    fn grow_from(&mut self, top: Ino, children: &mut Children<'_>, evidence: &BTreeMap<Ino, Evidence>) {
        let mut pending = vec![top];
        while let Some(told_parent) = pending.pop() {
            let parent = self.canonical(told_parent);
            let mut found = children.remove(&told_parent).unwrap_or_default();
            found.sort_by_key(|(order, ino, _)| std::cmp::Reverse((*order, *ino)));
            for (_, ino, name) in found {
                if self.contains(ino) {
                    continue;
                }
                let taken = self.directories[&parent].entries.get(name).copied();
                match taken {
                    Some((other, _)) => {
                        self.merged.insert(ino, other);
                    }
                    None => {
                        self.insert(ino, parent, name, Ownership::of(&evidence[&ino]));
                        self.enter(parent, name, ino, FileKind::Directory);
                    }
                }
                pending.push(ino);
            }
        }
    }

    fn enter(&mut self, parent: Ino, name: &[u8], ino: Ino, kind: FileKind) {
        let directory = self.directories.get_mut(&parent).expect("a name lies in a directory of the tree");
        let before = directory.entries.insert(Box::from(name), (ino, kind));
        assert!(before.is_none(), "a name is given once");
    }

    /// Whether a number is that of a directory.
    pub(super) fn contains(&self, ino: Ino) -> bool {
        self.directories.contains_key(&ino) || self.merged.contains_key(&ino)
    }

    /// The directory that a number stands for.
    pub(super) fn canonical(&self, ino: Ino) -> Ino {
        let mut present = ino;
        while let Some(other) = self.merged.get(&present) {
            present = *other;
        }
        present
    }

    /// Directories, the root included.
    pub(super) fn len(&self) -> usize {
        self.directories.len()
    }

    /// Reports the findings about directories.
    pub(super) fn report(&self, findings: &mut Findings) {
        for (ino, other) in &self.merged {
            let target = self.canonical(*other);
            findings.add(findings::DIRECTORIES_MERGED, target, format!("directory {ino} and directory {target}"));
        }
        let unplaced: RebuildFindingKind = findings::DIRECTORY_UNPLACED;
        for ino in &self.unplaced {
            findings.add(unplaced, *ino, format!("directory {ino}"));
        }
    }

    /// Puts directories without a place into `lost+found`. Called before any file gets a name.
    pub(super) fn place_unplaced(&mut self, numbers: &mut Numbers) {
        for ino in self.unplaced.clone() {
            let parent = self.ensure_lost_and_found(numbers);
            let name = self.free_name(parent, &format!("directory-{ino}"));
            self.enter(parent, &name, ino, FileKind::Directory);
            let directory = self.directories.get_mut(&ino).expect("it is in the tree");
            (directory.parent, directory.name) = (parent, name);
        }
    }

    /// The directory for inodes without a name.
    pub(super) fn ensure_lost_and_found(&mut self, numbers: &mut Numbers) -> Ino {
        if let Some(known) = self.lost_and_found {
            return known;
        }
        let root = &self.directories[&Ino::ROOT];
        let found = match root.entries.get(LOST_AND_FOUND) {
            Some((ino, FileKind::Directory)) => *ino,
            _ => {
                let name = self.free_name(Ino::ROOT, "lost+found");
                let ownership = Ownership { permissions: PERMISSIONS_LOST_AND_FOUND, uid: root.uid, gid: root.gid };
                let ino = numbers.new_ino();
                self.insert(ino, Ino::ROOT, &name, ownership);
                self.enter(Ino::ROOT, &name, ino, FileKind::Directory);
                ino
            }
        };
        self.lost_and_found = Some(found);
        found
    }

    /// The directory at a path of version 1, made where there is none. `None` where a file is in the way.
    pub(super) fn ensure_path(&mut self, names: &[&[u8]], numbers: &mut Numbers) -> Option<Ino> {
        let mut present = Ino::ROOT;
        for name in names {
            let Directory { uid, gid, ref entries, .. } = self.directories[&present];
            present = match entries.get(*name).copied() {
                Some((ino, FileKind::Directory)) => ino,
                Some(_) => return None,
                None => {
                    let ino = numbers.new_ino();
                    self.insert(ino, present, name, Ownership { permissions: PERMISSIONS_DEFAULT, uid, gid });
                    self.enter(present, name, ino, FileKind::Directory);
                    ino
                }
            };
        }
        Some(present)
    }

    /// Gives a file a name, unless that is taken.
    pub(super) fn give(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<(), Taken> {
        match self.directories[&parent].entries.get(name) {
            Some((other, _)) => Err(Taken { by: *other }),
            None => {
                self.enter(parent, name, ino, FileKind::Regular);
                Ok(())
            }
        }
    }

    /// Gives a file a name in `lost+found`, this one or the next that is free; returns directory and name.
    pub(super) fn give_lost(&mut self, wanted: &str, ino: Ino, numbers: &mut Numbers) -> (Ino, Box<[u8]>) {
        let parent = self.ensure_lost_and_found(numbers);
        let name = self.free_name(parent, wanted);
        self.enter(parent, &name, ino, FileKind::Regular);
        (parent, name)
    }

    fn free_name(&self, parent: Ino, wanted: &str) -> Box<[u8]> {
        let entries = &self.directories[&parent].entries;
        let mut name = wanted.to_owned();
        for attempt in 1_u64.. {
            if !entries.contains_key(name.as_bytes()) {
                break;
            }
            name = format!("{wanted}.{attempt}");
        }
        name.into_bytes().into_boxed_slice()
    }

    /// Path of a name in a directory, without a leading slash.
    pub(super) fn path(&self, parent: Ino, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut present = parent;
        while present != Ino::ROOT {
            let directory = &self.directories[&present];
            names.push(&directory.name);
            present = directory.parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Path of a directory; `None` where there is no such directory.
    pub(super) fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        let directory = self.directories.get(&ino)?;
        Some(if ino == Ino::ROOT { Vec::new() } else { self.path(directory.parent, &directory.name) })
    }
}

/// A name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// By this file or directory.
    pub(super) by: Ino,
}
