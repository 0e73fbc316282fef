//! The reference file system: POSIX semantics, in memory, slow and plain.
//!
//! Invariants:
//! * It never consults the real one. Its only knowledge is the order of the operations and their arguments.
//! * Checks come in the order of Linux, so that an operation with several faults has one right errno.
//! * A node lives as long as it has a name or an open description.

use std::collections::{BTreeMap, BTreeSet};

use polymux_fs::{AllocateKind, FileKind, RenameMode, XattrMode};
use polymux_types::{Errno, Timestamp};

/// A file of the reference; the root is 0.
pub type Node = usize;

/// The root directory.
pub const ROOT: Node = 0;

/// The content of a node.
#[derive(Clone, Debug)]
pub struct File {
    pub kind: FileKind,
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// Data of a regular file, target of a link.
    pub content: Vec<u8>,
    /// Entries of a directory.
    pub entries: BTreeMap<Vec<u8>, Node>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Modification time, where it was set and nothing changed the data since.
    pub modified: Option<Timestamp>,
    /// Directory that a directory lies in.
    pub parent: Node,
    /// It was made without a name and got none so far.
    pub never_named: bool,
}

/// An open description.
#[derive(Clone, Debug)]
pub struct Description {
    pub node: Node,
    pub read: bool,
    pub write: bool,
    pub append: bool,
}

/// All files.
#[derive(Clone, Debug)]
pub struct Reference {
    pub files: BTreeMap<Node, File>,
    pub descriptions: Vec<Description>,
    next: Node,
}

type Outcome<T> = Result<T, Errno>;

impl Reference {
    pub fn new() -> Self {
        let mut new = Self { files: BTreeMap::new(), descriptions: Vec::new(), next: ROOT };
        let root = new.insert(FileKind::Directory, 0o755, ROOT);
        assert_eq!(root, ROOT);
        new
    }

    fn insert(&mut self, kind: FileKind, permissions: u32, parent: Node) -> Node {
        let node = self.next;
        self.next += 1;
        let file = File {
            kind,
            permissions,
            uid: 0,
            gid: 0,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            content: Vec::new(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            modified: None,
            parent,
            never_named: false,
        };
        self.files.insert(node, file);
        node
    }

    pub fn file(&self, node: Node) -> &File {
        &self.files[&node]
    }

    pub fn file_mut(&mut self, node: Node) -> &mut File {
        self.files.get_mut(&node).expect("the node exists")
    }

    /// Nodes with a name that the filter accepts, the root included.
    pub fn named(&self, accept: impl Fn(&File) -> bool) -> Vec<Node> {
        self.files.iter().filter(|(_, file)| file.links > 0 && accept(file)).map(|(node, _)| *node).collect()
    }

    fn directory(&self, node: Node) -> Outcome<&File> {
        let file = self.file(node);
        if file.kind == FileKind::Directory { Ok(file) } else { Err(Errno::ENOTDIR) }
    }

    pub fn lookup(&self, parent: Node, name: &[u8]) -> Outcome<Node> {
        let directory = self.directory(parent)?;
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        directory.entries.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn check_free(&self, parent: Node, name: &[u8]) -> Outcome<()> {
        match self.lookup(parent, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn touch_directory(&mut self, node: Node) {
        self.file_mut(node).modified = None;
    }

    pub fn make(&mut self, parent: Node, name: &[u8], kind: FileKind, permissions: u32) -> Outcome<Node> {
        self.check_free(parent, name)?;
        let node = self.insert(kind, permissions, parent);
        self.file_mut(parent).entries.insert(name.to_vec(), node);
        self.touch_directory(parent);
        if kind == FileKind::Directory {
            self.file_mut(parent).links += 1;
        }
        Ok(node)
    }

    /// A regular file without a name.
    pub fn make_unnamed(&mut self, permissions: u32) -> Node {
        let node = self.insert(FileKind::Regular, permissions, ROOT);
        self.file_mut(node).links = 0;
        self.file_mut(node).never_named = true;
        node
    }

    pub fn link(&mut self, node: Node, parent: Node, name: &[u8]) -> Outcome<()> {
        self.check_free(parent, name)?;
        if self.file(node).kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        self.file_mut(parent).entries.insert(name.to_vec(), node);
        self.touch_directory(parent);
        self.file_mut(node).links += 1;
        self.file_mut(node).never_named = false;
        Ok(())
    }

    pub fn unlink(&mut self, parent: Node, name: &[u8]) -> Outcome<()> {
        let node = self.lookup(parent, name)?;
        if self.file(node).kind == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        self.file_mut(parent).entries.remove(name);
        self.touch_directory(parent);
        self.drop_name(node);
        Ok(())
    }

    fn drop_name(&mut self, node: Node) {
        self.file_mut(node).links -= 1;
        self.collect();
    }

    /// Forgets the files that have neither name nor description.
    fn collect(&mut self) {
        let open: BTreeSet<Node> = self.descriptions.iter().map(|description| description.node).collect();
        self.files.retain(|node, file| file.links > 0 || open.contains(node));
    }

    pub fn remove_directory(&mut self, parent: Node, name: &[u8]) -> Outcome<()> {
        let node = self.lookup(parent, name)?;
        if !self.directory(node)?.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.file_mut(parent).entries.remove(name);
        self.touch_directory(parent);
        self.file_mut(parent).links -= 1;
        self.files.remove(&node);
        Ok(())
    }

    /// Whether `directory` is `ancestor` or lies below it.
    fn is_within(&self, mut directory: Node, ancestor: Node) -> bool {
        loop {
            if directory == ancestor {
                return true;
            }
            if directory == ROOT {
                return false;
            }
            directory = self.file(directory).parent;
        }
    }

    fn is_directory(&self, node: Node) -> bool {
        self.file(node).kind == FileKind::Directory
    }

    pub fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8]), mode: RenameMode) -> Outcome<()> {
        let source = self.lookup(from.0, from.1)?;
        let target = match self.lookup(to.0, to.1) {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.is_directory(source) && self.is_within(to.0, source) {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|target| self.is_directory(target) && self.is_within(from.0, target)) {
            return Err(if mode == RenameMode::Exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        match target {
            Some(target) if target == source => Ok(()),
            Some(target) if mode == RenameMode::Exchange => {
                self.exchange((from, source), (to, target));
                Ok(())
            }
            target => self.replace((from, source), to, target),
        }
    }

    fn exchange(&mut self, first: ((Node, &[u8]), Node), second: ((Node, &[u8]), Node)) {
        for ((place, old), new) in [(first, second.1), (second, first.1)] {
            self.file_mut(place.0).entries.insert(place.1.to_vec(), new);
            self.touch_directory(place.0);
            if self.is_directory(old) {
                self.file_mut(place.0).links -= 1;
            }
            if self.is_directory(new) {
                self.file_mut(place.0).links += 1;
                self.file_mut(new).parent = place.0;
            }
        }
    }

    fn replace(&mut self, from: ((Node, &[u8]), Node), to: (Node, &[u8]), target: Option<Node>) -> Outcome<()> {
        let (from, source) = from;
        if let Some(target) = target {
            match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.file(target).entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        self.file_mut(from.0).entries.remove(from.1);
        self.file_mut(to.0).entries.insert(to.1.to_vec(), source);
        self.touch_directory(from.0);
        self.touch_directory(to.0);
        if self.is_directory(source) {
            self.file_mut(from.0).links -= 1;
            self.file_mut(to.0).links += 1;
            self.file_mut(source).parent = to.0;
        }
        match target {
            Some(target) if self.is_directory(target) => {
                self.file_mut(to.0).links -= 1;
                self.files.remove(&target);
            }
            Some(target) => self.drop_name(target),
            None => {}
        }
        Ok(())
    }

    pub fn open(&mut self, description: Description) {
        self.descriptions.push(description);
    }

    pub fn close(&mut self, index: usize) {
        self.descriptions.remove(index);
        self.collect();
    }

    pub fn close_all(&mut self) {
        self.descriptions.clear();
        self.collect();
    }

    /// Writes; returns where.
    pub fn write(&mut self, index: usize, offset: u64, data: &[u8]) -> Outcome<()> {
        let description = self.descriptions[index].clone();
        if !description.write {
            return Err(Errno::EBADF);
        }
        if data.is_empty() {
            return Ok(());
        }
        let content = &mut self.file_mut(description.node).content;
        let start = if description.append { content.len() } else { to_usize(offset) };
        grow(content, start + data.len());
        content[start..start + data.len()].copy_from_slice(data);
        self.file_mut(description.node).modified = None;
        Ok(())
    }

    pub fn read(&self, index: usize, offset: u64, length: u64) -> Outcome<&[u8]> {
        let description = &self.descriptions[index];
        if !description.read {
            return Err(Errno::EBADF);
        }
        let content = &self.file(description.node).content;
        let start = to_usize(offset).min(content.len());
        let end = to_usize(offset + length).min(content.len());
        Ok(&content[start..end])
    }

    pub fn truncate(&mut self, node: Node, size: u64) -> Outcome<()> {
        let file = self.file_mut(node);
        match file.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        file.content.resize(to_usize(size), 0);
        file.modified = None;
        Ok(())
    }

    pub fn allocate(&mut self, index: usize, offset: u64, length: u64, kind: AllocateKind) -> Outcome<()> {
        let description = self.descriptions[index].clone();
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        if !description.write {
            return Err(Errno::EBADF);
        }
        let file = self.file_mut(description.node);
        file.modified = None;
        let content = &mut file.content;
        let (start, end) = (to_usize(offset), to_usize(offset + length));
        let zeroes =
            matches!(kind, AllocateKind::PunchHole | AllocateKind::ZeroRange | AllocateKind::ZeroRangeKeepSize);
        if zeroes {
            let (from, to) = (start.min(content.len()), end.min(content.len()));
            content[from..to].fill(0);
        }
        if matches!(kind, AllocateKind::Extend | AllocateKind::ZeroRange) {
            grow(content, end);
        }
        Ok(())
    }

    /// The maximum length of a copy, or the reason why it is refused.
    pub fn copy_limit(&self, source: (usize, u64), target: (usize, u64), length: u64) -> Outcome<u64> {
        let (from, to) = (&self.descriptions[source.0], &self.descriptions[target.0]);
        if !from.read || !to.write {
            return Err(Errno::EBADF);
        }
        let size = self.file(from.node).content.len() as u64;
        // The kernel compares the ranges after it has cut the length at the end of the source.
        let limit = length.min(size.saturating_sub(source.1));
        if from.node == to.node && source.1 < target.1 + limit && target.1 < source.1 + limit {
            return Err(Errno::EINVAL);
        }
        Ok(limit)
    }

    pub fn copy(&mut self, source: (usize, u64), target: (usize, u64), count: u64) {
        if count == 0 {
            return;
        }
        let start = to_usize(source.1);
        let data = self.file(self.descriptions[source.0].node).content[start..start + to_usize(count)].to_vec();
        self.write(target.0, target.1, &data).expect("the target was checked");
    }

    pub fn set_xattr(&mut self, node: Node, name: &[u8], value: &[u8], mode: XattrMode) -> Outcome<()> {
        let xattrs = &mut self.file_mut(node).xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    pub fn remove_xattr(&mut self, node: Node, name: &[u8]) -> Outcome<()> {
        self.file_mut(node).xattrs.remove(name).map(|_| ()).ok_or(Errno::ENODATA)
    }
}

fn grow(content: &mut Vec<u8>, length: usize) {
    if content.len() < length {
        content.resize(length, 0);
    }
}

/// Positions of the model test are small.
pub fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("positions fit")
}
