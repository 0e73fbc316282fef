//! The live nodes of a recording file system: the view of programs, and the record of their operations.
//!
//! Invariants:
//! * Every node belongs to one recorded directory, whose record gets each change in the order in which it was made visible.
//! * Nodes without a name stay until their recorded directory goes: programs may have them open.
//! * Where a recorded directory was stopped, every operation on it fails with `EIO` and changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use polymux_types::Errno;

use super::content::Content;
use super::record::{Change, Durability, Image, Node, NodeId, NodeKind, Operation, Record};

/// The directory that holds all recorded ones; its number is that of the root of a mount.
pub(super) const TOP: NodeId = NodeId(1);

struct LiveNode {
    body: Body,
    /// Root of the recorded directory that it belongs to.
    recording: NodeId,
    /// Where it is, or was last.
    path: PathBuf,
}

enum Body {
    File(Content),
    Directory(BTreeMap<OsString, NodeId>),
}

/// Called with each operation at the moment when it is made visible.
pub(super) type Observer = dyn Fn(&Operation) + Send + Sync;

struct Recording {
    record: Record,
    observer: Option<Arc<Observer>>,
    /// Operations from this position on fail.
    stop: usize,
}

pub(super) struct Tree {
    nodes: HashMap<NodeId, LiveNode>,
    recordings: HashMap<NodeId, Recording>,
    next: u64,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { nodes: HashMap::new(), recordings: HashMap::new(), next: TOP.0 + 1 }
    }

    /// A new recorded directory that begins with an image; its name is its number.
    pub(super) fn load(&mut self, image: &Image) -> NodeId {
        let root = NodeId(self.next);
        let record = Record { root, files: BTreeMap::new(), directories: BTreeMap::new(), operations: Vec::new() };
        self.recordings.insert(root, Recording { record, observer: None, stop: usize::MAX });
        self.load_directory(root, &image.entries, PathBuf::new());
        root
    }

    fn load_directory(&mut self, recording: NodeId, entries: &BTreeMap<OsString, Node>, path: PathBuf) -> NodeId {
        let id = self.take_id();
        let mut names = BTreeMap::new();
        for (name, node) in entries {
            let below = path.join(name);
            let child = match node {
                Node::Directory(entries) => self.load_directory(recording, entries, below),
                Node::File(content) => {
                    let child = self.take_id();
                    self.recording(recording).record.files.insert(child, content.clone());
                    self.nodes.insert(child, LiveNode { body: Body::File(content.clone()), recording, path: below });
                    child
                }
            };
            names.insert(name.clone(), child);
        }
        self.recording(recording).record.directories.insert(id, names.clone());
        self.nodes.insert(id, LiveNode { body: Body::Directory(names), recording, path });
        id
    }

    /// Forgets a recorded directory and all that was in it.
    pub(super) fn unload(&mut self, root: NodeId) {
        self.recordings.remove(&root);
        self.nodes.retain(|_, node| node.recording != root);
    }

    pub(super) fn record(&self, root: NodeId) -> &Record {
        &self.recordings[&root].record
    }

    /// Lets operations from a position of the record on fail.
    pub(super) fn stop_at(&mut self, root: NodeId, position: usize) {
        self.recording(root).stop = position;
    }

    /// Calls this observer with each operation from now on.
    pub(super) fn observe(&mut self, root: NodeId, observer: Arc<Observer>) {
        self.recording(root).observer = Some(observer);
    }

    fn take_id(&mut self) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        id
    }

    fn recording(&mut self, root: NodeId) -> &mut Recording {
        self.recordings.get_mut(&root).expect("a recorded directory is not used after it was unloaded")
    }

    fn check(&self, id: NodeId) -> Result<&LiveNode, Errno> {
        let node = self.nodes.get(&id).ok_or(Errno::ENOENT)?;
        let recording = &self.recordings[&node.recording];
        if recording.record.operations.len() >= recording.stop { Err(Errno::EIO) } else { Ok(node) }
    }

    /// Kind and length of a node.
    pub(super) fn attributes(&self, id: NodeId) -> Result<(NodeKind, u64), Errno> {
        if id == TOP {
            return Ok((NodeKind::Directory, 0));
        }
        Ok(match &self.check(id)?.body {
            Body::File(content) => (NodeKind::File, content.length()),
            Body::Directory(_) => (NodeKind::Directory, 0),
        })
    }

    fn names(&self, id: NodeId) -> Result<&BTreeMap<OsString, NodeId>, Errno> {
        match &self.check(id)?.body {
            Body::Directory(names) => Ok(names),
            Body::File(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Names of a directory, with kinds.
    pub(super) fn list(&self, id: NodeId) -> Result<Vec<(OsString, NodeId, NodeKind)>, Errno> {
        if id == TOP {
            // Each recorded directory is used by its own path; no program has to list the others.
            return Ok(Vec::new());
        }
        let kind = |id: &NodeId| match self.nodes[id].body {
            Body::File(_) => NodeKind::File,
            Body::Directory(_) => NodeKind::Directory,
        };
        Ok(self.names(id)?.iter().map(|(name, id)| (name.clone(), *id, kind(id))).collect())
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<NodeId, Errno> {
        if parent == TOP {
            let id = name.to_str().and_then(|name| name.parse().ok()).map(NodeId).ok_or(Errno::ENOENT)?;
            return if self.recordings.contains_key(&id) { Ok(id) } else { Err(Errno::ENOENT) };
        }
        self.names(parent)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    pub(super) fn read(&self, id: NodeId, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        match &self.check(id)?.body {
            Body::File(content) => Ok(content.read(offset, length)),
            Body::Directory(_) => Err(Errno::EISDIR),
        }
    }

    pub(super) fn create(&mut self, parent: NodeId, name: &OsStr, kind: NodeKind) -> Result<NodeId, Errno> {
        if parent == TOP {
            return Err(Errno::EPERM);
        }
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.take_id();
        let (recording, path) = (self.nodes[&parent].recording, self.nodes[&parent].path.join(name));
        let body = match kind {
            NodeKind::File => Body::File(Content::default()),
            NodeKind::Directory => Body::Directory(BTreeMap::new()),
        };
        self.nodes.insert(node, LiveNode { body, recording, path });
        self.names_mut(parent).insert(name.to_owned(), node);
        self.note(node, Change::Create { directory: parent, name: name.to_owned(), node, kind });
        Ok(node)
    }

    pub(super) fn remove(&mut self, parent: NodeId, name: &OsStr, kind: NodeKind) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        match (&self.check(node)?.body, kind) {
            (Body::File(_), NodeKind::Directory) => return Err(Errno::ENOTDIR),
            (Body::Directory(_), NodeKind::File) => return Err(Errno::EISDIR),
            (Body::Directory(names), NodeKind::Directory) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.names_mut(parent).remove(name);
        self.note(node, Change::Remove { directory: parent, name: name.to_owned() });
        Ok(())
    }

    /// Renames a file, within one recorded directory.
    pub(super) fn rename(&mut self, parent: NodeId, from: &OsStr, target: NodeId, to: &OsStr) -> Result<(), Errno> {
        let node = self.lookup(parent, from)?;
        if matches!(self.check(node)?.body, Body::Directory(_)) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.check(target)?;
        if self.nodes[&target].recording != self.nodes[&parent].recording {
            return Err(Errno::EXDEV);
        }
        match self.names(target)?.get(to) {
            Some(other) if matches!(self.nodes[other].body, Body::Directory(_)) => return Err(Errno::EISDIR),
            _ => {}
        }
        let path = self.nodes[&target].path.join(to);
        self.names_mut(parent).remove(from);
        self.names_mut(target).insert(to.to_owned(), node);
        self.nodes.get_mut(&node).expect("it was looked up").path = path;
        self.note(node, Change::Rename { directory: parent, from: from.to_owned(), target, to: to.to_owned(), node });
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        node: NodeId,
        offset: u64,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<(), Errno> {
        self.content_mut(node)?.write(offset, bytes);
        self.note(node, Change::Write { node, offset, bytes: Arc::from(bytes), durability });
        Ok(())
    }

    pub(super) fn resize(&mut self, node: NodeId, length: u64) -> Result<(), Errno> {
        let content = self.content_mut(node)?;
        if content.length() != length {
            content.resize(length);
            self.note(node, Change::Resize { node, length });
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, node: NodeId) -> Result<(), Errno> {
        if node != TOP {
            self.check(node)?;
            self.note(node, Change::Sync { node });
        }
        Ok(())
    }

    fn content_mut(&mut self, id: NodeId) -> Result<&mut Content, Errno> {
        self.check(id)?;
        match &mut self.nodes.get_mut(&id).ok_or(Errno::ENOENT)?.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno::EISDIR),
        }
    }

    fn names_mut(&mut self, id: NodeId) -> &mut BTreeMap<OsString, NodeId> {
        match &mut self.nodes.get_mut(&id).expect("its names were read a moment ago").body {
            Body::Directory(names) => names,
            Body::File(_) => unreachable!("a file has no names"),
        }
    }

    fn note(&mut self, id: NodeId, change: Change) {
        let node = &self.nodes[&id];
        let (recording, path) = (node.recording, node.path.clone());
        let recording = self.recording(recording);
        let operation = Operation { change, path };
        if let Some(observer) = &recording.observer {
            observer(&operation);
        }
        recording.record.operations.push(operation);
    }
}
