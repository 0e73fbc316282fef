//! The effects of a workload on a volume, and its promises over time.
//!
//! Invariants:
//! * A step is one operation of a workload; step 0 is the content of the volume before the first one. A step that changes a file
//!   gives it a new version, one that changes names gives a new set of names.
//! * A promise counts from the position of the journal at which the operation that made it returned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polymux_types::{Ino, Timestamp};

/// Paths of files and directories below the root.
pub type Names = BTreeMap<String, Ino>;

/// Content of a file after a step.
#[derive(Clone, Debug)]
pub struct Version {
    pub step: usize,
    pub content: Arc<Vec<u8>>,
    /// The step cut the file here.
    pub cut: Option<usize>,
    /// The step wrote up to here.
    pub written_to: Option<usize>,
    /// From this position of the journal on it is not possible any more, although nothing newer need be durable: a state in
    /// the middle of replacing a content by another one.
    pub gone_from: usize,
}

/// Known attributes of a file after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub permissions: u32,
    /// The modification time, where it was set by hand and nothing was written since.
    pub modified: Option<Timestamp>,
    /// Value of [`XATTR`].
    pub xattr: Option<Vec<u8>>,
}

/// The extended attribute that workloads set.
pub const XATTR: &[u8] = b"user.workload";

/// Where a step stands in the journal: its entries are `start..end`.
#[derive(Clone, Debug)]
pub struct Mark {
    pub start: usize,
    pub end: usize,
    pub text: String,
}

/// The promise of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// The file is at least of this version (index).
    Data { ino: Ino, version: usize },
    /// The attributes of a file are at least those of this index.
    Facts { ino: Ino, index: usize },
    /// The names are at least those of this index.
    Names { index: usize },
    /// Where the names are at least those of this index, the file is at least of this version.
    DataBehindNames { index: usize, ino: Ino, version: usize },
}

/// Growth of files over several tiers.
#[derive(Clone, Copy, Debug)]
pub struct Spreading {
    /// Bytes that one tier gets at a time.
    pub range: usize,
    /// Size of a file up to which it stays on one tier.
    pub from: usize,
}

/// Everything that happened.
#[derive(Clone, Default)]
pub struct History {
    pub marks: Vec<Mark>,
    pub names: Vec<(usize, Names)>,
    pub files: BTreeMap<Ino, Vec<Version>>,
    /// Known attributes, by step.
    facts: BTreeMap<Ino, Vec<(usize, Facts)>>,
    /// Syncs failed: reading lost data returns an error.
    pub has_failed_syncs: bool,
    /// Where files grow over several tiers, if they do.
    pub spreading: Option<Spreading>,
    promises: Vec<(usize, Promise)>,
    /// Positions at which the second copy held everything that was durable, ascending.
    shipped: Vec<usize>,
    /// Index of the last set of names that concerns a file.
    named: BTreeMap<Ino, usize>,
}

impl History {
    /// Of a volume where files grow over several tiers, or do not.
    pub fn of_volume(spreading: Option<Spreading>) -> Self {
        Self { spreading, ..Self::default() }
    }

    /// Whether a step may have had effects at a crash point.
    fn has_begun(&self, step: usize, point: usize) -> bool {
        let mark = &self.marks[step];
        point >= mark.end || point > mark.start
    }

    pub fn names_now(&self) -> &Names {
        &self.names.last().expect("step 0 has names").1
    }

    pub fn content_now(&self, ino: Ino) -> Arc<Vec<u8>> {
        self.files[&ino].last().map_or_else(Arc::default, |version| Arc::clone(&version.content))
    }

    pub fn set_content(&mut self, step: usize, ino: Ino, content: Vec<u8>, cut: Option<usize>) {
        self.files.entry(ino).or_default().push(Version {
            step,
            content: Arc::new(content),
            cut,
            written_to: None,
            gone_from: usize::MAX,
        });
        let facts = Facts { modified: None, ..self.facts_now(ino) };
        self.set_facts(step, ino, facts);
    }

    /// Known attributes of a file now.
    pub fn facts_now(&self, ino: Ino) -> Facts {
        let made = Facts { permissions: 0o644, modified: None, xattr: None };
        self.facts.get(&ino).and_then(|facts| facts.last()).map_or(made, |(_, facts)| facts.clone())
    }

    pub fn set_facts(&mut self, step: usize, ino: Ino, facts: Facts) {
        self.facts.entry(ino).or_default().push((step, facts));
    }

    /// Attributes that a file may have at a crash point.
    pub fn facts_possible(&self, point: usize, ino: Ino) -> Vec<&Facts> {
        let facts = &self.facts[&ino];
        let promised =
            self.promises.iter().filter(|(from, _)| *from <= point).filter_map(|(_, promise)| match promise {
                Promise::Facts { ino: of, index } if *of == ino => Some(*index),
                _ => None,
            });
        let least = promised.max().unwrap_or(0);
        let is_possible =
            |(index, (step, _)): &(usize, &(usize, Facts))| *index <= least || self.has_begun(*step, point);
        facts.iter().enumerate().skip(least).filter(is_possible).map(|(_, (_, facts))| facts).collect()
    }

    /// A sync of all attributes of a file returned.
    pub fn promise_facts(&mut self, position: usize, ino: Ino) {
        let index = self.facts[&ino].len() - 1;
        self.promise(position, Promise::Facts { ino, index });
    }

    /// The last step wrote up to `end`.
    pub fn set_written_to(&mut self, ino: Ino, end: usize) {
        if let Some(version) = self.files.get_mut(&ino).and_then(|versions| versions.last_mut()) {
            version.written_to = Some(end);
        }
    }

    /// A content that was replaced is gone from here on.
    pub fn set_gone(&mut self, ino: Ino, version: usize, position: usize) {
        if let Some(version) = self.files.get_mut(&ino).and_then(|versions| versions.get_mut(version)) {
            version.gone_from = position;
        }
    }

    pub fn set_names(&mut self, step: usize, names: Names, concerned: &[Ino]) {
        self.names.push((step, names));
        let index = self.names.len() - 1;
        self.named.extend(concerned.iter().map(|ino| (*ino, index)));
    }

    pub fn promise(&mut self, position: usize, promise: Promise) {
        self.promises.push((position, promise));
    }

    /// A sync of a file returned.
    pub fn promise_file(&mut self, position: usize, ino: Ino) {
        let version = self.files[&ino].len() - 1;
        self.promise(position, Promise::Data { ino, version });
        if let Some(index) = self.named.get(&ino).copied() {
            self.promise(position, Promise::Names { index });
        }
    }

    /// A sync of a directory returned.
    pub fn promise_directory(&mut self, position: usize, ino: Ino) {
        if let Some(index) = self.named.get(&ino).copied() {
            self.promise(position, Promise::Names { index });
        }
    }

    /// A sync of everything returned; of these files it says nothing.
    pub fn promise_all(&mut self, position: usize, but: &BTreeSet<Ino>) {
        let all: Vec<Ino> = self.files.keys().copied().filter(|ino| !but.contains(ino)).collect();
        for ino in all {
            self.promise_file(position, ino);
            self.promise_facts(position, ino);
        }
        self.promise(position, Promise::Names { index: self.names.len() - 1 });
    }

    /// A file took the place of another one, whose bytes had to be durable before.
    pub fn promise_replaced(&mut self, position: usize, ino: Ino) {
        let (index, version) = (self.names.len() - 1, self.files[&ino].len() - 1);
        self.promise(position, Promise::DataBehindNames { index, ino, version });
    }

    /// The second copy holds everything that is durable.
    pub fn note_shipped(&mut self, position: usize) {
        self.shipped.push(position);
    }

    /// This history with nothing promised that the second copy may not have at a crash point.
    pub fn of_copy(&self, point: usize) -> Self {
        let shipped = self.shipped.iter().rev().find(|position| **position <= point).copied().unwrap_or(0);
        let mut history = self.clone();
        history.promises.retain(|(from, _)| *from <= shipped);
        for version in history.files.values_mut().flatten() {
            if version.gone_from > shipped {
                version.gone_from = usize::MAX;
            }
        }
        history
    }

    /// Sets of names that may be there at a crash point, by index.
    pub fn names_possible(&self, point: usize) -> Vec<usize> {
        let promised =
            self.promises.iter().filter(|(from, _)| *from <= point).filter_map(|(_, promise)| match promise {
                Promise::Names { index } => Some(*index),
                _ => None,
            });
        let least = promised.max().unwrap_or(0);
        (least..self.names.len()).filter(|index| self.has_begun(self.names[*index].0, point)).collect()
    }

    /// Versions of a file that may be there at a crash point, where the names are those of an index.
    pub fn versions_possible(&self, point: usize, names: usize, ino: Ino) -> Vec<&Version> {
        let versions = &self.files[&ino];
        let promised = self.promises.iter().filter_map(|(from, promise)| match promise {
            Promise::Data { ino: of, version } if *of == ino && *from <= point => Some(*version),
            // The contents behind the names count as soon as the names are there.
            Promise::DataBehindNames { index, ino: of, version } if *of == ino && names >= *index => Some(*version),
            _ => None,
        });
        let least = promised.max().unwrap_or(0);
        let most = (least..versions.len()).rev().find(|index| self.has_begun(versions[*index].step, point));
        versions[least..=most.unwrap_or(least)].iter().filter(|version| point < version.gone_from).collect()
    }

    /// The steps with a mark at the one that a crash point lies in, for people.
    pub fn describe(&self, point: usize) -> String {
        let line = |(step, mark): (usize, &Mark)| {
            let here = if mark.start < point && point < mark.end { "  <== in the middle of this" } else { "" };
            format!("  step {step}: {} (journal {}..{}){here}\n", mark.text, mark.start, mark.end)
        };
        self.marks.iter().enumerate().map(line).collect()
    }
}
