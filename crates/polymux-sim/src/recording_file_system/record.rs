//! The operations of programs on a directory, in order, and images of directories.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content::Content;

/// A file or directory of a recording, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u64);

/// A file or a directory with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A file.
    File(Content),
    /// A directory.
    Directory(BTreeMap<OsString, Node>),
}

/// Content of a directory: the initial state of a recording, or the state after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Image {
    /// Entries of the directory, by name.
    pub entries: BTreeMap<OsString, Node>,
}

impl Image {
    /// The node at a path below the directory.
    #[must_use]
    pub fn at(&self, path: impl AsRef<Path>) -> Option<&Node> {
        let mut entries = &self.entries;
        let mut found = None;
        for name in path.as_ref() {
            found = entries.get(name);
            match found? {
                Node::Directory(below) => entries = below,
                Node::File(_) => {}
            }
        }
        found
    }

    /// Makes files and directories of it in an empty directory of any file system, where nothing is recorded.
    ///
    /// # Errors
    ///
    /// As for making and writing files.
    pub fn write_to(&self, directory: &Path) -> io::Result<()> {
        write_entries(&self.entries, directory)
    }
}

fn write_entries(entries: &BTreeMap<OsString, Node>, directory: &Path) -> io::Result<()> {
    for (name, node) in entries {
        let path = directory.join(name);
        match node {
            Node::File(content) => content.write_to(&File::create_new(path)?)?,
            Node::Directory(below) => {
                std::fs::create_dir(&path)?;
                write_entries(below, &path)?;
            }
        }
    }
    Ok(())
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// Durability of a write on completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is in a cache, until a sync.
    Cached,
    /// It is durable when it returns (`O_DSYNC`, `O_SYNC`).
    Durable,
}

/// A change that an operation made, or a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new node got a name.
    Create {
        /// Where.
        directory: NodeId,
        /// Its name.
        name: OsString,
        /// The new node.
        node: NodeId,
        /// Its kind.
        kind: NodeKind,
    },
    /// A name went away.
    Remove {
        /// Where.
        directory: NodeId,
        /// The name.
        name: OsString,
    },
    /// A file got another name, perhaps in another directory, and whatever had that name lost it.
    Rename {
        /// Where it was.
        directory: NodeId,
        /// Old name.
        from: OsString,
        /// Where it is.
        target: NodeId,
        /// New name.
        to: OsString,
        /// The renamed node.
        node: NodeId,
    },
    /// Bytes were written.
    Write {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
        /// Whether a sync is part of it.
        durability: Durability,
    },
    /// A file was cut or extended with zeros.
    Resize {
        /// The file.
        node: NodeId,
        /// New length in bytes.
        length: u64,
    },
    /// `fsync` or `fdatasync` of a file or a directory.
    Sync {
        /// The synced node.
        node: NodeId,
    },
}

/// One operation on a recorded directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The change it made.
    pub change: Change,
    /// Path of the node at that time, below the recorded directory; of a sync or a change of a file that has no name any
    /// more, its last path.
    pub path: PathBuf,
}

/// The initial state, and all operations on it since.
#[derive(Clone, Debug)]
pub struct Record {
    pub(super) root: NodeId,
    pub(super) files: BTreeMap<NodeId, Content>,
    pub(super) directories: BTreeMap<NodeId, BTreeMap<OsString, NodeId>>,
    /// Operations in the order in which they were carried out.
    pub operations: Vec<Operation>,
}

impl Operation {
    /// In one line, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let path = self.path.display();
        match &self.change {
            Change::Write { offset, bytes, durability, .. } => {
                format!("write {path} at {offset}, {} bytes, {durability:?}", bytes.len())
            }
            Change::Create { kind, .. } => format!("create {kind:?} {path}"),
            Change::Remove { name, .. } => format!("remove {} (was {path})", name.display()),
            Change::Rename { from, .. } => format!("rename {} to {path}", from.display()),
            Change::Resize { length, .. } => format!("resize {path} to {length}"),
            Change::Sync { .. } => format!("sync {path}"),
        }
    }
}

impl Record {
    /// This record with some syncs and durable writes that do nothing: a planted bug.
    #[must_use]
    pub fn without_syncs(&self, ignored: impl Fn(&Operation) -> bool) -> Self {
        let mut record = self.clone();
        let mut operations = Vec::new();
        for mut operation in record.operations {
            let ignore = ignored(&operation);
            match &mut operation.change {
                // It stays in its place, so that positions in the record mean the same.
                Change::Sync { node } if ignore => *node = NodeId(u64::MAX),
                Change::Write { durability, .. } if ignore => *durability = Durability::Cached,
                _ => {}
            }
            operations.push(operation);
        }
        record.operations = operations;
        record
    }
}
