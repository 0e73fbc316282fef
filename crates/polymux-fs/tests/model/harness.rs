//! Runs operations on a volume and on the reference, and compares the results.
//!
//! Invariants:
//! * Every operation compares its result or its errno; every few operations, and at the end, the whole trees, the readable
//!   contents and the space accounting are compared.
//! * A difference is returned as text, never a panic, so that the test of the tester can ask for one.
//! * All callers are root: permissions have tests of their own.

use std::collections::BTreeMap;

use polymux_fs::{Caller, FileKind, HandleId, NodeKind, OpenOptions, RenameMode};
use polymux_types::{Errno, Ino};

use super::operation::{Index, OpenMode, Operation, name};
use super::reference::{Description, Node, ROOT, Reference, to_usize};
use crate::common::Volume;

/// Operations between two comparisons of everything.
const OPERATIONS_PER_COMPARISON: usize = 12;

/// Open descriptions at once.
pub(super) const DESCRIPTIONS_MAX: usize = 6;

/// Why a run failed.
pub type Mismatch = String;

pub(super) type Check = Result<(), Mismatch>;

/// The two file systems side by side.
pub struct Harness {
    pub(super) volume: Volume,
    pub(super) reference: Reference,
    pub(super) inos: BTreeMap<Node, Ino>,
    pub(super) handles: Vec<HandleId>,
}

/// Runs a sequence from an empty volume to the last comparison.
pub fn run(mut volume: Volume, operations: &[Operation]) -> Check {
    volume.survive_deaths();
    let mut harness =
        Harness { volume, reference: Reference::new(), inos: BTreeMap::from([(ROOT, Ino::ROOT)]), handles: Vec::new() };
    for (index, operation) in operations.iter().enumerate() {
        harness.apply(operation).map_err(|mismatch| format!("operation {index}, {operation:?}: {mismatch}"))?;
        if index % OPERATIONS_PER_COMPARISON == OPERATIONS_PER_COMPARISON - 1 {
            harness
                .compare_trees()
                .map_err(|mismatch| format!("after operation {index}, {operation:?}: {mismatch}"))?;
        }
    }
    harness.finish().map_err(|mismatch| format!("at the end: {mismatch}"))
}

fn pick<T: Copy>(from: &[T], index: Index) -> Option<T> {
    if from.is_empty() { None } else { Some(from[usize::from(index) % from.len()]) }
}

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, found: &T) -> Check {
    if expected == found { Ok(()) } else { Err(format!("{what} should be {expected:?}, is {found:?}")) }
}

/// Compares success and errno; gives the value where both succeeded.
pub(super) fn agree<T, U>(
    expected: Result<T, Errno>,
    found: polymux_fs::Result<U>,
) -> Result<Option<(T, U)>, Mismatch> {
    match (expected, found) {
        (Ok(expected), Ok(found)) => Ok(Some((expected, found))),
        (Err(expected), Err(found)) if expected == found.errno() => Ok(None),
        (Ok(_), Err(found)) => Err(format!("should succeed, failed with {:?} ({found})", found.errno())),
        (Err(expected), Ok(_)) => Err(format!("should fail with {expected:?}, succeeded")),
        (Err(expected), Err(found)) => {
            Err(format!("should fail with {expected:?}, failed with {:?} ({found})", found.errno()))
        }
    }
}

pub(super) fn must<T>(what: &str, result: polymux_fs::Result<T>) -> Result<T, Mismatch> {
    result.map_err(|error| format!("{what} failed: {error}"))
}

pub(super) fn filled(length: u64, fill: u8) -> Vec<u8> {
    // Not constant, so that a block that lands in the wrong place is noticed.
    let position = |index: usize| u8::try_from((index / 64 + index / 4096) % 251).expect("below 251");
    (0..to_usize(length)).map(|index| fill ^ position(index)).collect()
}

/// The options of an open mode.
pub(super) fn options_of(mode: OpenMode) -> OpenOptions {
    let none = OpenOptions::default();
    match mode {
        OpenMode::Read => OpenOptions { read: true, ..none },
        OpenMode::Write => OpenOptions { write: true, ..none },
        OpenMode::ReadWrite => OpenOptions { read: true, write: true, ..none },
        OpenMode::Append => OpenOptions { read: true, write: true, append: true, ..none },
        OpenMode::Truncate => OpenOptions { read: true, write: true, truncate: true, ..none },
    }
}

impl Harness {
    fn apply(&mut self, operation: &Operation) -> Check {
        match operation {
            Operation::Open { .. }
            | Operation::Close { .. }
            | Operation::Write { .. }
            | Operation::Read { .. }
            | Operation::Truncate { .. }
            | Operation::TruncateHandle { .. }
            | Operation::Allocate { .. }
            | Operation::Seek { .. }
            | Operation::CopyRange { .. }
            | Operation::Sync { .. } => self.apply_to_data(operation),
            Operation::ChangeMode { .. }
            | Operation::ChangeOwner { .. }
            | Operation::ChangeTimes { .. }
            | Operation::SetXattr { .. }
            | Operation::GetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::ListXattrs { .. } => self.apply_to_attributes(operation),
            Operation::SyncVolume
            | Operation::SyncDirectory { .. }
            | Operation::Step
            | Operation::Remount
            | Operation::SyncAndCrash
            | Operation::ProcessDeath => self.apply_to_volume(operation),
            Operation::Migrate { .. }
            | Operation::MoveStep
            | Operation::MoveAll
            | Operation::Drain { .. }
            | Operation::CancelDrain { .. }
            | Operation::PauseMovers => self.apply_to_movers(operation),
            _ => self.apply_to_names(operation),
        }
    }

    pub(super) fn directory(&self, index: Index) -> (Node, Ino) {
        let directories = self.reference.named(|file| file.kind == FileKind::Directory);
        let node = pick(&directories, index).expect("the root is always there");
        (node, self.inos[&node])
    }

    pub(super) fn node_where(&self, index: Index, accept: impl Fn(FileKind) -> bool) -> Option<(Node, Ino)> {
        let nodes = self.reference.named(|file| accept(file.kind));
        pick(&nodes, index).map(|node| (node, self.inos[&node]))
    }

    pub(super) fn handle(&self, index: Index) -> Option<(usize, HandleId)> {
        let indices: Vec<usize> = (0..self.handles.len()).collect();
        pick(&indices, index).map(|index| (index, self.handles[index]))
    }

    fn made(&mut self, agreed: Option<(Node, polymux_fs::Attributes)>, kind: FileKind) -> Check {
        let Some((node, attributes)) = agreed else { return Ok(()) };
        same("kind", &kind, &attributes.kind)?;
        if self.inos.values().any(|ino| *ino == attributes.ino) {
            return Err(format!("inode number {} was given twice", attributes.ino));
        }
        self.inos.insert(node, attributes.ino);
        Ok(())
    }

    fn apply_to_names(&mut self, operation: &Operation) -> Check {
        let root = Caller::root();
        match operation {
            Operation::Lookup { directory, name: entry } => {
                let (node, ino) = self.directory(*directory);
                let found = self.volume.fs().lookup(&root, ino, &name(*entry));
                match agree(self.reference.lookup(node, &name(*entry)), found)? {
                    Some((node, attributes)) => self.compare_attributes(node, &attributes),
                    None => Ok(()),
                }
            }
            Operation::LookupInFile { file, name: entry } => {
                let Some((node, ino)) = self.node_where(*file, |kind| kind != FileKind::Directory) else {
                    return Ok(());
                };
                let found = self.volume.fs().lookup(&root, ino, &name(*entry));
                agree(self.reference.lookup(node, &name(*entry)), found).map(|_| ())
            }
            Operation::Create { directory, name: entry, mode, exclusive, permissions } => {
                self.create((*directory, *entry), *mode, *exclusive, *permissions)
            }
            Operation::CreateUnnamed { directory } => self.create_unnamed(*directory),
            Operation::LinkUnnamed { directory, name: entry } => self.link_unnamed(*directory, *entry),
            Operation::Rename { from, to, mode } => self.rename(*from, *to, *mode),
            Operation::ReadDirectory { directory, chunk } => {
                let (node, _) = self.directory(*directory);
                self.compare_directory(node, usize::from(*chunk))
            }
            Operation::Link { file, directory, name: entry } => {
                let Some((node, ino)) = self.node_where(*file, |_| true) else { return Ok(()) };
                let (parent, parent_ino) = self.directory(*directory);
                let found = self.volume.fs().link(&root, ino, parent_ino, &name(*entry));
                agree(self.reference.link(node, parent, &name(*entry)), found).map(|_| ())
            }
            Operation::Unlink { directory, name: entry } => {
                let (node, ino) = self.directory(*directory);
                let found = self.volume.fs().unlink(&root, ino, &name(*entry));
                agree(self.reference.unlink(node, &name(*entry)), found).map(|_| ())
            }
            Operation::RemoveDirectory { directory, name: entry } => {
                let (node, ino) = self.directory(*directory);
                let found = self.volume.fs().remove_directory(&root, ino, &name(*entry));
                agree(self.reference.remove_directory(node, &name(*entry)), found).map(|_| ())
            }
            make => self.make(make),
        }
    }

    fn make(&mut self, operation: &Operation) -> Check {
        let root = Caller::root();
        match operation {
            Operation::MakeDirectory { directory, name: entry, permissions } => {
                let (node, ino) = self.directory(*directory);
                let found = self.volume.fs().make_directory(&root, ino, &name(*entry), *permissions);
                let expected = self.reference.make(node, &name(*entry), FileKind::Directory, *permissions);
                self.made(agree(expected, found)?, FileKind::Directory)
            }
            Operation::MakeFifo { directory, name: entry } => {
                let (node, ino) = self.directory(*directory);
                let found = self.volume.fs().make_node(&root, ino, &name(*entry), NodeKind::Fifo, 0o640);
                let expected = self.reference.make(node, &name(*entry), FileKind::Fifo, 0o640);
                self.made(agree(expected, found)?, FileKind::Fifo)
            }
            Operation::MakeSymlink { directory, name: entry, length } => {
                let (node, ino) = self.directory(*directory);
                let target = vec![b'x'; usize::from(*length)];
                let found = self.volume.fs().make_symlink(&root, ino, &name(*entry), &target);
                let expected = self.reference.make(node, &name(*entry), FileKind::Symlink, 0o777);
                if let Ok(link) = expected {
                    self.reference.file_mut(link).content = target;
                }
                self.made(agree(expected, found)?, FileKind::Symlink)
            }
            Operation::MakeWithLongName { directory, length } => {
                let (node, ino) = self.directory(*directory);
                let long = vec![b'l'; usize::from(*length)];
                let found = self.volume.fs().make_node(&root, ino, &long, NodeKind::Regular, 0o600);
                let expected = self.reference.make(node, &long, FileKind::Regular, 0o600);
                self.made(agree(expected, found)?, FileKind::Regular)
            }
            other => unreachable!("{other:?} is applied elsewhere"),
        }
    }

    fn create(&mut self, place: (Index, Index), mode: OpenMode, exclusive: bool, permissions: u32) -> Check {
        let (parent, parent_ino) = self.directory(place.0);
        let entry = name(place.1);
        let existing = self.reference.lookup(parent, &entry).ok();
        let existing_kind = existing.map(|node| self.reference.file(node).kind);
        if existing_kind.is_some_and(|kind| !matches!(kind, FileKind::Regular | FileKind::Directory)) && !exclusive {
            // The front end implements opening a fifo and following a link.
            return Ok(());
        }
        if self.handles.len() == DESCRIPTIONS_MAX {
            self.close(0)?;
        }
        let options = OpenOptions { exclusive, ..options_of(mode) };
        let found = self.volume.fs().create(&Caller::root(), parent_ino, &entry, permissions, options);
        let expected = match existing {
            Some(_) if exclusive => Err(Errno::EEXIST),
            Some(_) if existing_kind == Some(FileKind::Directory) => Err(Errno::EISDIR),
            Some(node) => Ok(node),
            None => self.reference.make(parent, &entry, FileKind::Regular, permissions),
        };
        let Some((node, (attributes, handle))) = agree(expected, found)? else { return Ok(()) };
        if existing.is_none() {
            self.made(Some((node, attributes)), FileKind::Regular)?;
        }
        self.opened(node, mode, handle);
        self.compare_node(node)
    }

    pub(super) fn opened(&mut self, node: Node, mode: OpenMode, handle: HandleId) {
        let options = options_of(mode);
        if options.truncate {
            self.reference.truncate(node, 0).expect("it is a regular file");
        }
        self.reference.open(Description { node, read: options.read, write: options.write, append: options.append });
        self.handles.push(handle);
    }

    fn create_unnamed(&mut self, directory: Index) -> Check {
        let (_, parent_ino) = self.directory(directory);
        if self.handles.len() == DESCRIPTIONS_MAX {
            self.close(0)?;
        }
        let options = options_of(OpenMode::ReadWrite);
        let found = self.volume.fs().create_unnamed(&Caller::root(), parent_ino, 0o600, options);
        let (attributes, handle) = must("creating a file without a name", found)?;
        same("links", &0, &attributes.links)?;
        let node = self.reference.make_unnamed(0o600);
        self.made(Some((node, attributes)), FileKind::Regular)?;
        self.opened(node, OpenMode::ReadWrite, handle);
        Ok(())
    }

    /// Names a file that was made without a name. One that lost its name is left alone: Linux refuses to link it.
    fn link_unnamed(&mut self, directory: Index, entry: Index) -> Check {
        let unnamed = self.reference.files.iter().find(|(_, file)| file.links == 0 && file.never_named);
        let Some((&node, _)) = unnamed else { return Ok(()) };
        let (parent, parent_ino) = self.directory(directory);
        let found = self.volume.fs().link(&Caller::root(), self.inos[&node], parent_ino, &name(entry));
        agree(self.reference.link(node, parent, &name(entry)), found).map(|_| ())
    }

    fn rename(&mut self, from: (Index, Index), to: (Index, Index), mode: RenameMode) -> Check {
        let ((from_node, from_ino), (to_node, to_ino)) = (self.directory(from.0), self.directory(to.0));
        let (from_name, to_name) = (name(from.1), name(to.1));
        let found = self.volume.fs().rename(&Caller::root(), from_ino, &from_name, to_ino, &to_name, mode);
        let expected = self.reference.rename((from_node, &from_name), (to_node, &to_name), mode);
        agree(expected, found).map(|_| ())
    }
}
