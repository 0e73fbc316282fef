//! Writers that change files and names on a mounted volume and note their operations, while blocks move between the tiers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::FallocateFlags;

use super::history::{Change, FileHistory, FileId, Ledger, Position, SECTOR, stamped};
use crate::mounted::native::text;
use crate::mounted::{Random, TestVolume};

/// Writers side by side.
pub const WRITERS: u32 = 4;

/// Sectors of a large file (two range nodes and a part of a third) and of all others, at the most.
const LARGE: u64 = 10_000;
const SMALL: u64 = 1_024;

/// Sizes in sectors of the files that are there from the beginning.
const PREPARED: [u64; 7] = [LARGE / 2, SMALL / 2, 8, 3, LARGE / 2, SMALL / 3, 11];

/// Whether a writer really requests the syncs that it notes as promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncing {
    Real,
    /// For a control: promises are noted, and nothing is synced.
    Claimed,
}

/// One writer with its directory.
pub struct Writer<'a> {
    root: PathBuf,
    clock: &'a (dyn Fn() -> Position + Sync),
    syncing: Syncing,
    random: Random,
    ledger: Ledger,
    open: BTreeMap<FileId, File>,
    /// Description of the present step, for the message when it fails.
    doing: String,
}

impl<'a> Writer<'a> {
    /// Goes on with a ledger whose directory is there.
    pub fn new(
        volume: &Path,
        clock: &'a (dyn Fn() -> Position + Sync),
        ledger: Ledger,
        syncing: Syncing,
        seed: u64,
    ) -> Self {
        let root = volume.join(&ledger.directory);
        Self { root, clock, syncing, random: Random::new(seed), ledger, open: BTreeMap::new(), doing: String::new() }
    }

    /// Makes the directory and the files that are durable in it from the beginning.
    pub fn prepare(volume: &Path, writer: u32, seed: u64) -> io::Result<Ledger> {
        let mut new = Self::new(volume, &|| Position(0), Ledger::new(writer), Syncing::Real, seed);
        fs::create_dir(&new.root)?;
        for sectors in PREPARED {
            let name = new.new_name();
            let file = new.create(&name)?;
            new.write(file, 0..sectors)?;
            new.sync(file)?;
        }
        new.sync_directory()?;
        Ok(new.ledger)
    }

    /// Works until `stop` is set or an operation fails.
    pub fn run(mut self, stop: &AtomicBool) -> (Ledger, io::Result<()>) {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.step() {
                eprintln!("writer {}: {}: {error}", self.ledger.writer, self.doing);
                return (self.ledger, Err(error));
            }
        }
        (self.ledger, Ok(()))
    }

    fn step(&mut self) -> io::Result<()> {
        let Some(file) = self.any_file() else { return self.make_file() };
        if self.is_left_alone(file) {
            return Ok(());
        }
        let step = self.random.below(100);
        self.doing = format!("step {step} of 100, file {file:?} of {} bytes", self.size(file) * SECTOR as u64);
        match step {
            0..28 => self.overwrite(file),
            28..42 => self.append(file),
            42..46 => self.resize(file),
            46..49 => self.punch(file),
            49..70 => self.sync(file),
            70..77 => self.make_file(),
            77..86 => self.replace(),
            86..89 => self.unlink(),
            89..92 => self.link(),
            92..95 => self.rename(),
            _ => self.sync_directory(),
        }
    }

    fn now(&self) -> Position {
        (self.clock)()
    }

    fn new_name(&mut self) -> String {
        self.ledger.given += 1;
        format!("file-{}", self.ledger.given)
    }

    fn any_name(&mut self) -> Option<(String, FileId)> {
        let count = self.ledger.names().len() as u64;
        let chosen = usize::try_from(self.random.below(count.max(1))).expect("an index fits");
        self.ledger.names().iter().nth(chosen).map(|(name, file)| (name.clone(), *file))
    }

    fn any_file(&mut self) -> Option<FileId> {
        self.any_name().map(|(_, file)| file)
    }

    fn size(&self, file: FileId) -> u64 {
        self.ledger.files[file.0].size()
    }

    fn size_max(file: FileId) -> u64 {
        if file.0 < PREPARED.len() && PREPARED[file.0] > SMALL { LARGE } else { SMALL }
    }

    /// The first files mostly are, so that nothing but moves changes where their promised bytes are.
    fn is_left_alone(&mut self, file: FileId) -> bool {
        file.0 < PREPARED.len() && self.random.below(12) > 0
    }

    /// An open description of the file, kept for its life: so files are moved while they are open.
    fn handle(&mut self, file: FileId) -> io::Result<&File> {
        if !self.open.contains_key(&file) {
            self.open.insert(file, OpenOptions::new().read(true).write(true).open(self.path(file))?);
        }
        Ok(&self.open[&file])
    }

    fn create(&mut self, name: &str) -> io::Result<FileId> {
        let file = FileId(self.ledger.files.len());
        let begin = self.now();
        self.ledger.note_names(begin, |names| _ = names.insert(name.to_owned(), file));
        // Recorded before it exists: a crash may leave a file whose inode was never reported.
        self.ledger.files.push(FileHistory::new(self.ledger.states.len() - 1));
        let handle = OpenOptions::new().read(true).write(true).create_new(true).open(self.root.join(name))?;
        self.ledger.files[file.0].inode = Some(handle.metadata()?.ino());
        self.open.insert(file, handle);
        Ok(file)
    }

    fn write(&mut self, file: FileId, sectors: Range<u64>) -> io::Result<()> {
        let number = self.ledger.note_change(file, self.now(), Change::Write(sectors.clone()));
        let bytes = stamped(self.ledger.writer, file, sectors.clone(), number);
        let offset = sectors.start * SECTOR as u64;
        let are_whole_blocks = sectors.start.is_multiple_of(8) && sectors.end.is_multiple_of(8);
        if are_whole_blocks && self.random.below(4) == 0 {
            return write_direct(&self.path(file), &bytes, offset);
        }
        self.handle(file)?.write_all_at(&bytes, offset)
    }

    /// A path of the file, which has a name.
    fn path(&self, file: FileId) -> PathBuf {
        let name = self.ledger.names().iter().find(|(_, named)| **named == file).map(|(name, _)| name);
        self.root.join(name.expect("it has a name"))
    }

    /// Sectors of one write: mostly few, sometimes up to half a megabyte.
    fn count(&mut self) -> u64 {
        match self.random.below(10) {
            0..5 => 1 + self.random.below(12),
            5..9 => 8 * (1 + self.random.below(8)),
            _ => 8 * (1 + self.random.below(128)),
        }
    }

    fn overwrite(&mut self, file: FileId) -> io::Result<()> {
        // Now and then behind the end, which leaves a hole.
        let limit = (self.size(file) + 1 + self.random.below(2) * self.random.below(40)).min(Self::size_max(file));
        let start = self.random.below(limit.max(1));
        let start = if self.random.below(2) == 0 { start / 8 * 8 } else { start };
        let end = (start + self.count()).min(Self::size_max(file));
        self.write(file, start..end)
    }

    fn append(&mut self, file: FileId) -> io::Result<()> {
        let start = self.size(file);
        let end = (start + self.count()).min(Self::size_max(file));
        if start < end { self.write(file, start..end) } else { self.resize(file) }
    }

    fn resize(&mut self, file: FileId) -> io::Result<()> {
        let size = self.random.below((self.size(file) + 64).min(Self::size_max(file)));
        self.ledger.note_change(file, self.now(), Change::Resize(size));
        self.handle(file)?.set_len(size * SECTOR as u64)
    }

    fn punch(&mut self, file: FileId) -> io::Result<()> {
        let size = self.size(file);
        if size == 0 {
            return Ok(());
        }
        let start = self.random.below(size);
        let end = (start + self.count()).min(size);
        self.ledger.note_change(file, self.now(), Change::Punch(start..end));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, length) = (start * SECTOR as u64, (end - start) * SECTOR as u64);
        Ok(rustix::fs::fallocate(self.handle(file)?, flags, offset, length)?)
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        let is_full = self.random.below(2) == 0;
        if self.syncing == Syncing::Real {
            let handle = self.handle(file)?;
            if is_full {
                handle.sync_all()?
            } else {
                handle.sync_data()?
            };
        }
        let end = self.now();
        self.ledger.note_file_synced(file, end);
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        if self.syncing == Syncing::Real {
            File::open(&self.root)?.sync_all()?;
        }
        let end = self.now();
        self.ledger.note_names_synced(end);
        Ok(())
    }

    fn make_file(&mut self) -> io::Result<()> {
        if self.ledger.names().len() >= 14 {
            return self.unlink();
        }
        let name = self.new_name();
        let file = self.create(&name)?;
        let end = self.count().min(SMALL);
        self.write(file, 0..end)
    }

    /// Saves as editors do; without the sync, the file system must see to it that the old or the new content is there.
    fn replace(&mut self) -> io::Result<()> {
        let Some((target, replaced)) = self.any_name() else { return Ok(()) };
        if self.is_left_alone(replaced) {
            return Ok(());
        }
        let temporary = self.new_name();
        let file = self.create(&temporary)?;
        let end = self.count().min(SMALL);
        self.write(file, 0..end)?;
        if self.random.below(2) == 0 {
            self.sync(file)?;
        }
        let begin = self.now();
        self.ledger.note_names(begin, |names| {
            names.remove(&temporary);
            names.insert(target.clone(), file);
        });
        self.ledger.note_named(file);
        let count = self.ledger.files[file.0].events.len();
        let state = self.ledger.states.len() - 1;
        self.ledger.files[file.0].with_names.push((state, count));
        fs::rename(self.root.join(temporary), self.root.join(target))?;
        self.close_nameless();
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let Some((name, file)) = self.any_name() else { return Ok(()) };
        if self.is_left_alone(file) {
            return Ok(());
        }
        let begin = self.now();
        self.ledger.note_names(begin, |names| _ = names.remove(&name));
        fs::remove_file(self.root.join(name))?;
        self.close_nameless();
        Ok(())
    }

    fn link(&mut self) -> io::Result<()> {
        let Some((from, file)) = self.any_name() else { return Ok(()) };
        let to = self.new_name();
        let begin = self.now();
        self.ledger.note_names(begin, |names| _ = names.insert(to.clone(), file));
        self.ledger.note_named(file);
        fs::hard_link(self.root.join(from), self.root.join(to))
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some((from, file)) = self.any_name() else { return Ok(()) };
        let to = self.new_name();
        let begin = self.now();
        self.ledger.note_names(begin, |names| {
            names.remove(&from);
            names.insert(to.clone(), file);
        });
        self.ledger.note_named(file);
        fs::rename(self.root.join(from), self.root.join(to))
    }

    /// Every other file without a name stays open, and so there are orphans.
    fn close_nameless(&mut self) {
        let names = self.ledger.names();
        self.open.retain(|file, _| file.0 % 2 == 0 || names.values().any(|named| named == file));
    }
}

/// Writes whole blocks past the page cache, from memory that is aligned for it.
fn write_direct(path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
    const ALIGNMENT: usize = 4096;
    let mut memory = vec![0; bytes.len() + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    memory[start..start + bytes.len()].copy_from_slice(bytes);
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag of open(2)");
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    file.write_all_at(&memory[start..start + bytes.len()], offset)
}

/// Moves files and parts of them between the tiers until `stop` is set.
pub fn move_about(volume: &TestVolume, stop: &AtomicBool, seed: u64) {
    let mut random = Random::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let mut path = volume.path().join(format!("writer-{}", random.below(u64::from(WRITERS))));
        if random.below(2) == 0
            && let Ok(entries) = fs::read_dir(&path)
        {
            let names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            let chosen = usize::try_from(random.below(names.len().max(1) as u64)).expect("an index fits");
            path = names.get(chosen).cloned().unwrap_or(path);
        }
        let mut arguments = vec!["migrate", text(&path), "--to", random.pick(&["fast", "slow"])];
        if random.below(3) == 0 {
            arguments.extend(["--range", random.pick(&["0-2MiB", "2MiB-4MiB", "2MiB-"])]);
        }
        if random.below(2) == 0 {
            arguments.push("--wait");
        }
        // A file may be gone meanwhile; then there is nothing to move.
        volume.polymux(arguments);
        std::thread::sleep(Duration::from_millis(random.below(20)));
    }
}
