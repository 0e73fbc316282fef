//! The states that a power failure may leave of a recorded directory.
//!
//! The rules:
//! * A sync of a file makes its length and every earlier write and resize of it durable. A durable write makes only its own
//!   bytes durable, and the length as far as they reach. Neither makes a name durable.
//! * A sync of a directory makes every earlier change of its names durable, and nothing else: neither the files behind
//!   the names nor the name of the directory itself.
//! * Each operation that is not durable is kept, lost or torn, whatever happens to others: of a torn write, any of its
//!   sectors of 512 bytes are there, and the file may be as long as if all of them were (the rest is zero then).
//! * Changes of names are never torn; a rename is one change in each of its directories, independent of one another.
//!   With [`NameOrder::Ordered`] those of one directory get lost from any one of them on, so that a prefix is kept;
//!   with [`NameOrder::Any`] each may be lost, which is more than usual file systems permit themselves.
//!   Directories are independent of one another in both.
//! * The operation in whose middle the crash happens is one of those that are not durable, also where it is a durable write.
//! * A file without a name is gone. Owners, modes and times are not looked at.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use super::content::Content;
use super::record::{Change, Durability, Image, Node, NodeId, NodeKind, Operation, Record};

/// Bytes that a device writes whole or not at all.
const SECTOR: usize = 512;

/// The fate of an operation that is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    Kept,
    /// It is not.
    Lost,
    /// Sectors chosen by this random number are there. A change of names or of a length is kept or lost.
    Torn(u64),
}

/// Which changes of names may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOrder {
    /// Those of one directory from any one on.
    Ordered,
    /// Each.
    Any,
}

/// A change of a file that is not durable, or comes after one that is not.
#[derive(Clone)]
struct FileChange {
    position: usize,
    change: Change,
    durable: bool,
}

#[derive(Clone, Default)]
struct File {
    durable: Content,
    pending: Vec<FileChange>,
}

#[derive(Clone, Default)]
struct Directory {
    durable: BTreeMap<OsString, NodeId>,
    pending: Vec<(usize, Change)>,
}

/// The durable state at one moment of a record, and the changes that are not durable.
#[derive(Clone)]
pub struct CrashStates {
    root: NodeId,
    files: HashMap<NodeId, File>,
    directories: HashMap<NodeId, Directory>,
    /// Operations that were begun.
    position: usize,
}

impl CrashStates {
    /// Before the first operation of a record.
    #[must_use]
    pub fn new(record: &Record) -> Self {
        let file = |content: &Content| File { durable: content.clone(), pending: Vec::new() };
        let directory = |names: &BTreeMap<_, _>| Directory { durable: names.clone(), pending: Vec::new() };
        Self {
            root: record.root,
            files: record.files.iter().map(|(node, content)| (*node, file(content))).collect(),
            directories: record.directories.iter().map(|(node, names)| (*node, directory(names))).collect(),
            position: 0,
        }
    }

    /// The next operation begins; nothing of it is durable yet.
    pub fn begin(&mut self, operation: &Operation) {
        let position = self.position;
        self.position += 1;
        let change = operation.change.clone();
        match &change {
            Change::Create { directory, node, kind, .. } => {
                match kind {
                    NodeKind::File => drop(self.files.insert(*node, File::default())),
                    NodeKind::Directory => drop(self.directories.insert(*node, Directory::default())),
                }
                self.directory(*directory).pending.push((position, change));
            }
            Change::Remove { directory, .. } => self.directory(*directory).pending.push((position, change)),
            Change::Rename { directory, target, .. } => {
                if target != directory {
                    self.directory(*target).pending.push((position, change.clone()));
                }
                self.directory(*directory).pending.push((position, change));
            }
            Change::Write { node, .. } | Change::Resize { node, .. } => {
                let pending = FileChange { position, change: change.clone(), durable: false };
                self.file(*node).pending.push(pending);
            }
            Change::Sync { .. } => {}
        }
    }

    /// The operation that was begun last returns.
    pub fn complete(&mut self, operation: &Operation) {
        match &operation.change {
            Change::Write { node, durability: Durability::Durable, .. } => {
                let file = self.file(*node);
                file.pending.last_mut().expect("the write was begun").durable = true;
                let first = file.pending.iter().position(|change| !change.durable).unwrap_or(file.pending.len());
                for change in file.pending.drain(..first) {
                    apply(&mut file.durable, &change.change, Fate::Kept);
                }
            }
            Change::Sync { node } => {
                if let Some(file) = self.files.get_mut(node) {
                    for change in file.pending.drain(..) {
                        apply(&mut file.durable, &change.change, Fate::Kept);
                    }
                } else if let Some(directory) = self.directories.get_mut(node) {
                    for (_, change) in directory.pending.drain(..) {
                        apply_to_names(&mut directory.durable, *node, &change);
                    }
                }
            }
            _ => {}
        }
    }

    /// Positions in the record of the operations that are not durable.
    #[must_use]
    pub fn unsynced(&self) -> Vec<usize> {
        let changes = self.files.values().flat_map(|file| &file.pending);
        let writes = changes.filter(|change| !change.durable).map(|change| change.position);
        let names = self.directories.values().flat_map(|directory| &directory.pending).map(|(position, _)| *position);
        let mut positions: Vec<usize> = writes.chain(names).collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// The image that is left if the operations that are not durable have these fates, by their positions in the record.
    #[must_use]
    pub fn image(&self, order: NameOrder, fate: impl Fn(usize) -> Fate) -> Image {
        Image { entries: self.entries(self.root, order, &fate) }
    }

    fn entries(&self, node: NodeId, order: NameOrder, fate: &impl Fn(usize) -> Fate) -> BTreeMap<OsString, Node> {
        let directory = &self.directories[&node];
        let mut names = directory.durable.clone();
        for (position, change) in &directory.pending {
            let kept = match fate(*position) {
                Fate::Kept => true,
                Fate::Lost => false,
                Fate::Torn(random) => random & 1 == 0,
            };
            match (kept, order) {
                (true, _) => apply_to_names(&mut names, node, change),
                (false, NameOrder::Any) => {}
                (false, NameOrder::Ordered) => break,
            }
        }
        let left = names.into_iter().map(|(name, node)| match self.files.get(&node) {
            Some(file) => (name, Node::File(file.left(fate))),
            None => (name, Node::Directory(self.entries(node, order, fate))),
        });
        left.collect()
    }

    fn file(&mut self, node: NodeId) -> &mut File {
        self.files.get_mut(&node).expect("a file that is written was made or there before")
    }

    fn directory(&mut self, node: NodeId) -> &mut Directory {
        self.directories.get_mut(&node).expect("a directory that is changed was made or there before")
    }
}

impl File {
    fn left(&self, fate: &impl Fn(usize) -> Fate) -> Content {
        let mut content = self.durable.clone();
        for change in &self.pending {
            apply(&mut content, &change.change, if change.durable { Fate::Kept } else { fate(change.position) });
        }
        content
    }
}

fn apply(content: &mut Content, change: &Change, fate: Fate) {
    match (change, fate) {
        (_, Fate::Lost) => {}
        (Change::Write { offset, bytes, .. }, Fate::Kept) => content.write(*offset, bytes),
        (Change::Write { offset, bytes, .. }, Fate::Torn(random)) => tear(content, *offset, bytes, random),
        (Change::Resize { length, .. }, Fate::Kept) => content.resize(*length),
        (Change::Resize { length, .. }, Fate::Torn(random)) if random & 1 == 0 => content.resize(*length),
        _ => {}
    }
}

/// Writes those sectors that the random number wants, and perhaps the length of all.
fn tear(content: &mut Content, offset: u64, bytes: &[u8], mut random: u64) {
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let end = offset + bytes.len() as u64;
    if next() & 1 == 0 && content.length() < end {
        content.resize(end);
    }
    // All shares are tried: from nearly nothing to nearly everything.
    let share = next() % 9;
    let mut start = 0;
    while start < bytes.len() {
        let into = usize::try_from((offset + start as u64) % SECTOR as u64).expect("less than a sector");
        let stop = bytes.len().min(start + SECTOR - into);
        if next() % 8 < share {
            content.write(offset + start as u64, &bytes[start..stop]);
        }
        start = stop;
    }
}

/// A change to the names of one directory. A rename from one into another concerns both.
fn apply_to_names(names: &mut BTreeMap<OsString, NodeId>, of: NodeId, change: &Change) {
    match change {
        Change::Create { name, node, .. } => drop(names.insert(name.clone(), *node)),
        Change::Remove { name, .. } => drop(names.remove(name)),
        Change::Rename { directory, from, target, to, node } => {
            if of == *directory {
                names.remove(from);
            }
            if of == *target {
                names.insert(to.clone(), *node);
            }
        }
        Change::Write { .. } | Change::Resize { .. } | Change::Sync { .. } => {}
    }
}

#[cfg(test)]
mod tests;
