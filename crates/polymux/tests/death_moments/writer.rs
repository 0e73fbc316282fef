//! Changes files of one directory, remembers the answers, and compares after the daemon died.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::model::{ATTRIBUTE, Judged, Model, Operation};
use super::mounted::Random;

const FILES_MAX: u64 = 12;
const OPEN_MAX: usize = 6;
/// Bytes of a file that is written as a stream; others stay smaller.
const STREAM_MAX: usize = 9 << 20;
const OTHERS_MAX: usize = 200_000;

pub struct Writer {
    number: u64,
    random: Random,
    model: Model,
    /// Descriptors that stay open, so that nothing is logged because of a close.
    open: BTreeMap<u64, File>,
    under_way: Option<Operation>,
    answered: u64,
}

impl Writer {
    pub fn directory_of(number: u64) -> String {
        format!("writer-{number}")
    }

    pub fn new(root: &Path, number: u64, seed: u64) -> Self {
        fs::create_dir(root.join(Self::directory_of(number))).expect("a directory can be made");
        Self {
            number,
            random: Random::new(seed * 100 + number),
            model: Model::default(),
            open: BTreeMap::new(),
            under_way: None,
            answered: 0,
        }
    }

    /// Carries out operations until one fails, because the daemon is gone.
    pub fn work(&mut self, root: &Path, stop: &AtomicBool) {
        let directory = root.join(Self::directory_of(self.number));
        while !stop.load(Ordering::Relaxed) {
            let Some(operation) = self.choose() else { continue };
            self.under_way = Some(operation.clone());
            let Ok(done) = self.carry_out(&directory, operation) else { return };
            self.model.apply(&done);
            self.open.retain(|file, _| self.model.files.contains_key(file));
            self.answered += 1;
            self.under_way = self.under_way.take().and_then(|asked| asked.rest_after(&done));
            if self.under_way.is_some() {
                // The kernel made several requests of it, and the daemon died over a later one.
                return;
            }
        }
    }

    fn name(&mut self) -> String {
        format!("file-{}", self.random.below(FILES_MAX))
    }

    fn choose(&mut self) -> Option<Operation> {
        let name = self.name();
        let Some(file) = self.model.names.get(&name).copied() else {
            return Some(Operation::Create { name });
        };
        let present = self.model.files[&file].content.len();
        Some(match self.random.below(20) {
            0 => Operation::Unlink { name },
            1 | 2 => Operation::Rename { from: name, to: self.name() },
            3 => {
                let to = self.name();
                return (!self.model.names.contains_key(&to)).then_some(Operation::Link { from: name, to });
            }
            4 => Operation::SetMode { file, mode: self.random.pick(&[0o600, 0o644, 0o755]) },
            5 => {
                let length = usize::try_from(self.random.below(100)).expect("small");
                Operation::SetAttribute { file, value: self.random.bytes(length) }
            }
            6 => Operation::Resize { file, size: self.place_up_to(present + present / 2 + 100) },
            7 => Operation::Resize { file, size: 0 },
            8..=11 => {
                let (offset, length) = (self.place_up_to(present + 3000), self.length(file));
                Operation::Write { file, offset, bytes: self.random.bytes(length) }
            }
            _ => {
                let length = self.length(file);
                Operation::Write { file, offset: present, bytes: self.random.bytes(length) }
            }
        })
    }

    fn place_up_to(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).expect("small")
    }

    /// Bytes of a write to a file: most are small, and some files become large.
    fn length(&mut self, file: u64) -> usize {
        let present = self.model.files[&file].content.len();
        let is_stream = file.is_multiple_of(4);
        let limit = match self.random.below(4) {
            0 | 1 => 60,
            2 => 2000,
            _ if is_stream && present < STREAM_MAX => 700_000,
            _ if present < OTHERS_MAX => 40_000,
            _ => 500,
        };
        1 + self.place_up_to(limit)
    }

    /// Returns the operation as carried out: of a write, the part that the daemon accepted.
    fn carry_out(&mut self, directory: &Path, operation: Operation) -> std::io::Result<Operation> {
        let path = |name: &str| directory.join(name);
        match &operation {
            Operation::Create { name } => {
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(path(name))?;
                file.set_permissions(PermissionsExt::from_mode(0o644))?;
                // It stays open only once the model knows it.
                drop(file);
            }
            Operation::Write { file, offset, bytes } => {
                let taken = self.descriptor(directory, *file)?.write_at(bytes, *offset as u64)?;
                let bytes = bytes[..taken].to_vec();
                return Ok(Operation::Write { file: *file, offset: *offset, bytes });
            }
            Operation::Resize { file, size: 0 } if self.random.below(2) == 0 => {
                let emptied = OpenOptions::new().write(true).truncate(true).open(self.path_of(directory, *file))?;
                self.keep(*file, emptied);
            }
            Operation::Resize { file, size } => self.descriptor(directory, *file)?.set_len(*size as u64)?,
            Operation::Rename { from, to } => fs::rename(path(from), path(to))?,
            Operation::Link { from, to } => fs::hard_link(path(from), path(to))?,
            Operation::Unlink { name } => fs::remove_file(path(name))?,
            Operation::SetMode { file, mode } => {
                fs::set_permissions(self.path_of(directory, *file), PermissionsExt::from_mode(*mode))?;
            }
            Operation::SetAttribute { file, value } => {
                let path = self.path_of(directory, *file);
                rustix::fs::setxattr(path, ATTRIBUTE, value, rustix::fs::XattrFlags::empty())?;
            }
        }
        Ok(operation)
    }

    fn path_of(&self, directory: &Path, file: u64) -> PathBuf {
        let found = self.model.names.iter().find(|(_, of)| **of == file);
        directory.join(found.expect("a file has a name").0)
    }

    fn keep(&mut self, file: u64, descriptor: File) {
        if self.open.len() >= OPEN_MAX {
            self.open.pop_first();
        }
        self.open.insert(file, descriptor);
    }

    /// A descriptor of a file, which mostly stays open.
    fn descriptor(&mut self, directory: &Path, file: u64) -> std::io::Result<&File> {
        if self.random.below(10) == 0 {
            self.open.remove(&file);
        }
        if !self.open.contains_key(&file) {
            let opened = OpenOptions::new().read(true).write(true).open(self.path_of(directory, file))?;
            self.keep(file, opened);
        }
        Ok(&self.open[&file])
    }

    /// Compares with the content found after a mount, which is the truth from then on. The error names the difference.
    pub fn judge(&mut self, root: &Path) -> Result<Judged, String> {
        self.open.clear();
        let directory = root.join(Self::directory_of(self.number));
        let found = Model::read(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let under_way = self.under_way.take();
        if let Some(difference) = self.model.difference(&found)
            && !under_way.as_ref().is_some_and(|operation| self.may_have_become(operation, &found))
        {
            let name_of =
                |file: u64| self.model.names.iter().find(|(_, of)| **of == file).map(|(name, _)| name.as_str());
            let said = under_way.map_or_else(|| "nothing".to_owned(), |operation| operation.said(name_of));
            return Err(format!(
                "writer {} after {} answers, {said} under way: {difference}",
                self.number, self.answered
            ));
        }
        let bytes = found.files.values().map(|file| file.content.len() as u64).sum();
        let judged = Judged { operations: std::mem::take(&mut self.answered), files: found.files.len() as u64, bytes };
        self.model = found;
        Ok(judged)
    }

    /// Whether an operation that was under way explains the content found.
    fn may_have_become(&self, operation: &Operation, found: &Model) -> bool {
        let mut after = self.model.clone();
        after.apply(operation);
        if after.difference(found).is_none() {
            return true;
        }
        let mut partly = self.model.clone();
        match operation {
            Operation::Write { file, offset, bytes } => {
                let name = self.model.names.iter().find(|(_, of)| *of == file).expect("a file has a name").0;
                let Some(there) = found.names.get(name).map(|file| &found.files[file]) else { return false };
                let is_part = there.is_part_of_write(&self.model.files[file], *offset, bytes);
                partly.files.insert(*file, there.clone());
                is_part && partly.difference(found).is_none()
            }
            // Made, and its mode not set yet.
            Operation::Create { name } => found.names.get(name).is_some_and(|file| {
                let made = found.files[file].clone();
                after.files.insert(after.names[name], made.clone());
                made.content.is_empty() && after.difference(found).is_none()
            }),
            _ => false,
        }
    }
}
