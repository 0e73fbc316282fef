//! The expected content of a directory, from the operations that were answered.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::AddAssign;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub const ATTRIBUTE: &str = "user.note";

/// One file, by whatever names it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileState {
    pub content: Vec<u8>,
    pub mode: u32,
    pub attribute: Vec<u8>,
}

/// One operation.
#[derive(Clone, Debug)]
pub enum Operation {
    Create { name: String },
    Write { file: u64, offset: usize, bytes: Vec<u8> },
    Resize { file: u64, size: usize },
    Rename { from: String, to: String },
    Link { from: String, to: String },
    Unlink { name: String },
    SetMode { file: u64, mode: u32 },
    SetAttribute { file: u64, value: Vec<u8> },
}

impl Operation {
    /// The rest of a write that was carried out in part.
    pub fn rest_after(self, done: &Self) -> Option<Self> {
        let (Self::Write { file, offset, bytes }, Self::Write { bytes: done, .. }) = (self, done) else { return None };
        let rest = bytes[done.len()..].to_vec();
        (!rest.is_empty()).then_some(Self::Write { file, offset: offset + done.len(), bytes: rest })
    }

    /// For people, with names of files and without their bytes.
    pub fn said<'a>(&self, name_of: impl Fn(u64) -> Option<&'a str>) -> String {
        match self {
            Self::Write { file, offset, bytes } => {
                format!("write of {} bytes at {offset} to {}", bytes.len(), name_of(*file).unwrap_or("nothing"))
            }
            Self::Resize { file, size } => format!("resize to {size} of {}", name_of(*file).unwrap_or("nothing")),
            other => format!("{other:?}"),
        }
    }
}

/// Names and files.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub names: BTreeMap<String, u64>,
    pub files: BTreeMap<u64, FileState>,
    next: u64,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    pub operations: u64,
    pub files: u64,
    pub bytes: u64,
}

impl AddAssign for Judged {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, files, bytes } = self;
        write!(formatter, "{operations} operations answered, {files} files with {bytes} bytes compared")
    }
}

impl Model {
    /// Carries an operation out.
    pub fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { name } => {
                self.next += 1;
                self.names.insert(name.clone(), self.next);
                self.files.insert(self.next, FileState { mode: 0o644, ..FileState::default() });
            }
            Operation::Write { file, offset, bytes } => {
                let content = &mut self.file(*file).content;
                let end = offset + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(bytes);
            }
            Operation::Resize { file, size } => self.file(*file).content.resize(*size, 0),
            Operation::Rename { from, to } => {
                if self.names.get(from) != self.names.get(to) {
                    let moved = self.names.remove(from).expect("it is there");
                    self.names.insert(to.clone(), moved);
                }
            }
            Operation::Link { from, to } => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Operation::Unlink { name } => {
                self.names.remove(name);
            }
            Operation::SetMode { file, mode } => self.file(*file).mode = *mode,
            Operation::SetAttribute { file, value } => self.file(*file).attribute.clone_from(value),
        }
        let named: Vec<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }

    fn file(&mut self, file: u64) -> &mut FileState {
        self.files.get_mut(&file).expect("it is there")
    }

    /// Reads the content of a directory. Files are numbered as they are there.
    pub fn read(directory: &Path) -> std::io::Result<Self> {
        let mut model = Self::default();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let name = entry.file_name().into_string().expect("names of the test are text");
            model.names.insert(name, metadata.ino());
            if let std::collections::btree_map::Entry::Vacant(vacant) = model.files.entry(metadata.ino()) {
                let mut value = [0; 256];
                let length = rustix::fs::lgetxattr(entry.path(), ATTRIBUTE, &mut value).unwrap_or(0);
                let (content, attribute) = (fs::read(entry.path())?, value[..length].to_vec());
                assert_eq!(content.len() as u64, metadata.len(), "the size is that of what can be read");
                vacant.insert(FileState { content, mode: metadata.mode() & 0o7777, attribute });
            }
        }
        model.next = model.files.keys().max().copied().unwrap_or(0);
        Ok(model)
    }

    /// Where another directory differs from this one; `None` where it does not.
    pub fn difference(&self, found: &Self) -> Option<String> {
        let names = |model: &Self| model.names.keys().cloned().collect::<Vec<_>>();
        if names(self) != names(found) {
            return Some(format!("names {:?}, found {:?}", names(self), names(found)));
        }
        self.names.iter().find_map(|(name, file)| {
            let (expected, there) = (&self.files[file], &found.files[&found.names[name]]);
            let same_names = |model: &Self, of: u64| {
                model.names.iter().filter(|(_, file)| **file == of).map(|(name, _)| name.clone()).collect::<Vec<_>>()
            };
            if same_names(self, *file) != same_names(found, found.names[name]) {
                return Some(format!("{name}: it has other names"));
            }
            expected.difference(there).map(|what| format!("{name}: {what}"))
        })
    }
}

impl FileState {
    fn difference(&self, found: &Self) -> Option<String> {
        if (self.mode, &self.attribute) != (found.mode, &found.attribute) {
            return Some(format!("mode {:o}, found {:o}, or another attribute", self.mode, found.mode));
        }
        if self.content.len() != found.content.len() {
            return Some(format!("{} bytes, found {}", self.content.len(), found.content.len()));
        }
        let first = self.content.iter().zip(&found.content).position(|(one, other)| one != other)?;
        Some(format!("byte {first} of {} is another one", self.content.len()))
    }

    /// Whether this is the result of a partial write to a file that was like `before`.
    pub fn is_part_of_write(&self, before: &Self, offset: usize, bytes: &[u8]) -> bool {
        let (old, new) = (before.content.len(), before.content.len().max(offset + bytes.len()));
        let may_be = |(at, found): (usize, &u8)| {
            let was = before.content.get(at).copied().unwrap_or(0);
            let written = at.checked_sub(offset).and_then(|at| bytes.get(at));
            *found == was || written == Some(found)
        };
        (old..=new).contains(&self.content.len())
            && (self.mode, &self.attribute) == (before.mode, &before.attribute)
            && self.content.iter().enumerate().all(may_be)
    }
}
