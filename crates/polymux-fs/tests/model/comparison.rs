//! Comparison of whole trees and of the space that tiers give with the space that files take.

use std::collections::{BTreeMap, BTreeSet};

use polymux_fs::{Attributes, Caller, FileKind};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Ino, ObjectId};

use super::harness::{Check, Harness, must, same};
use super::harness_data::same_bytes;
use super::reference::{Node, ROOT};
use crate::common::{read_whole, walk};

impl Harness {
    pub(super) fn compare_attributes(&self, node: Node, attributes: &Attributes) -> Check {
        let expected = self.reference.file(node);
        same("inode number", &self.inos[&node], &attributes.ino)?;
        same("kind", &expected.kind, &attributes.kind)?;
        same("permissions", &expected.permissions, &attributes.permissions)?;
        same("links", &expected.links, &attributes.links)?;
        same("owner", &(expected.uid, expected.gid), &(attributes.uid, attributes.gid))?;
        if expected.kind != FileKind::Directory {
            same("size", &(expected.content.len() as u64), &attributes.size)?;
        }
        if let Some(modified) = expected.modified {
            same("modification time", &modified, &attributes.modified)?;
        }
        Ok(())
    }

    /// Compares the attributes of one file, by its number.
    pub(super) fn compare_node(&self, node: Node) -> Check {
        let attributes = must("attributes", self.volume.fs().attributes(&Caller::root(), self.inos[&node]))?;
        self.compare_attributes(node, &attributes)
    }

    pub(super) fn compare_xattrs(&self, node: Node, ino: Ino) -> Check {
        let root = Caller::root();
        let expected = &self.reference.file(node).xattrs;
        let names = must("list_xattrs", self.volume.fs().list_xattrs(&root, ino))?;
        let unique: BTreeSet<&Vec<u8>> = names.iter().collect();
        same("number of names", &names.len(), &unique.len())?;
        same("names", &expected.keys().collect(), &unique)?;
        for (name, value) in expected {
            same("value", value, &must("xattr", self.volume.fs().xattr(&root, ino, name))?)?;
        }
        Ok(())
    }

    /// Compares the entries of a directory, read a few at a time.
    pub(super) fn compare_directory(&self, node: Node, chunk: usize) -> Check {
        let mut found = BTreeMap::new();
        let mut after = 0;
        loop {
            let directory = self.inos[&node];
            let entries = self.volume.fs().read_directory(&Caller::root(), directory, after, chunk);
            let entries = must("read_directory", entries)?;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            for entry in entries {
                if found.insert(entry.name.clone(), (entry.ino, entry.kind)).is_some() {
                    return Err(format!("{:?} was listed twice", String::from_utf8_lossy(&entry.name)));
                }
            }
        }
        let expected = &self.reference.file(node).entries;
        let expected: BTreeMap<Vec<u8>, (Ino, FileKind)> = expected
            .iter()
            .map(|(name, node)| (name.clone(), (self.inos[node], self.reference.file(*node).kind)))
            .collect();
        same("entries", &expected, &found)
    }

    fn compare_file(&self, node: Node) -> Check {
        let root = Caller::root();
        let (ino, expected) = (self.inos[&node], self.reference.file(node));
        self.compare_node(node)?;
        match expected.kind {
            FileKind::Directory => {
                self.compare_directory(node, 100)?;
                let parent = must("parent_of", self.volume.fs().parent_of(&root, ino))?;
                same("parent", &self.inos[&expected.parent], &parent.ino)?;
            }
            FileKind::Regular => {
                let content = must("reading", read_whole(self.volume.fs(), ino))?;
                same_bytes(0, &expected.content, &content)?;
            }
            FileKind::Symlink => {
                let target = must("read_symlink", self.volume.fs().read_symlink(&root, ino))?;
                same("target", &expected.content, &target)?;
            }
            _ => {}
        }
        self.compare_xattrs(node, ino)
    }

    /// Compares everything that has a name, and all open files.
    pub(super) fn compare_trees(&self) -> Check {
        let named = self.reference.named(|_| true);
        for node in &named {
            self.compare_file(*node).map_err(|mismatch| format!("{}: {mismatch}", self.path_of(*node)))?;
        }
        for description in &self.reference.descriptions {
            self.compare_node(description.node).map_err(|mismatch| format!("an open file: {mismatch}"))?;
        }
        let walked: BTreeSet<Ino> = must("walking", walk(self.volume.fs()))?.into_values().collect();
        same("files with a name", &named.iter().map(|node| self.inos[node]).collect(), &walked)
    }

    fn path_of(&self, node: Node) -> String {
        let mut queue = vec![(ROOT, String::new())];
        while let Some((directory, path)) = queue.pop() {
            if directory == node {
                return format!("/{path}");
            }
            for (name, child) in &self.reference.file(directory).entries {
                queue.push((*child, format!("{path}/{}", String::from_utf8_lossy(name))));
            }
        }
        "a file without a name".to_owned()
    }

    /// Closes everything, lets the background work finish, and compares the space of tiers with that of files.
    pub(super) fn finish(&mut self) -> Check {
        while !self.handles.is_empty() {
            self.close(0)?;
        }
        self.compare_trees()?;
        self.volume.drain();
        self.compare_space()?;
        self.volume.remount();
        self.compare_trees()?;
        self.compare_space()
    }

    fn compare_space(&self) -> Check {
        let mut bytes: BTreeMap<u16, u64> = BTreeMap::new();
        let mut objects: BTreeSet<(u16, ObjectId)> = BTreeSet::new();
        for node in self.reference.named(|file| file.kind == FileKind::Regular) {
            let location = must("locate", self.volume.fs().locate(self.inos[&node]))?;
            for share in location.shares {
                objects.insert((share.tier.0, share.object));
                *bytes.entry(share.tier.0).or_default() += share.bytes_allocated.ok_or("a tier is missing")?;
            }
        }
        let mut found = BTreeSet::new();
        for (index, (tier, used)) in self.volume.tiers_with_use().into_iter().enumerate() {
            let allocated = bytes.get(&tier.0).copied().unwrap_or(0);
            same(&format!("bytes used on tier {tier}"), &allocated, &used)?;
            for bucket in 0..BUCKETS {
                let listed = self.volume.list(index, Bucket(bucket));
                found.extend(listed.into_iter().map(|object| (tier.0, object)));
            }
        }
        same("objects on the tiers", &objects, &found)
    }
}
