//! A player, which uses files in every way at once.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::history::{History, runs};
use super::mapping::{Access, Mapping};
use super::volume::{self, Random};

/// Longest file.
const LENGTH_MAX: usize = 96 * 1024;
/// Inline files are shorter than this.
const OBJECT_LENGTH: usize = 5000;
/// Actions in a sequence.
const ACTIONS_MAX: u64 = 12;
/// Descriptions and mappings that stay open from sequence to sequence.
const OPEN_MAX: usize = 6;

/// A file whose content is known.
struct Known {
    path: PathBuf,
    content: Vec<u8>,
    open: Vec<(File, Access)>,
    mapped: Vec<(Mapping, Access)>,
    /// Something was stored through a mapping and may be dirty.
    is_stored_to: bool,
    history: History,
}

impl Known {
    /// Compares the beginning of the file, or all of it, with its expected content.
    fn expect(&self, found: &[u8], how: &str) {
        let expected = &self.content[..found.len().min(self.content.len())];
        let place = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert!(
            found.len() <= self.content.len() && place.is_none(),
            "{} {how}: wrong at {place:?}\nexpected {}\nfound {}\n  {}",
            self.path.display(),
            runs(&self.content),
            runs(found),
            self.history.text()
        );
    }
}

pub struct Player<'a> {
    place: &'a Path,
    random: Random,
    files: Vec<Known>,
    /// Files of others, open only to be open.
    of_others: Vec<(File, Option<Mapping>)>,
    next_byte: u8,
}

impl<'a> Player<'a> {
    pub const FILES: u64 = 3;

    pub fn new(place: &'a Path, number: u64) -> Self {
        let known = |file| {
            let path = volume::file(place, number, file);
            let content = vec![1; OBJECT_LENGTH * 3];
            fs::write(&path, &content).expect("written");
            Known {
                path,
                content,
                open: Vec::new(),
                mapped: Vec::new(),
                is_stored_to: false,
                history: History::default(),
            }
        };
        let files = (0..Self::FILES).map(known).collect();
        Self { place, random: Random::new(number + 1), files, of_others: Vec::new(), next_byte: 2 }
    }

    /// One sequence.
    pub fn play(&mut self) {
        let file = self.random.index(self.files.len());
        for _ in 0..=self.random.below(ACTIONS_MAX) {
            match self.random.below(16) {
                0..=2 => self.open(file),
                3 => self.map(file),
                4 | 5 => self.write(file),
                6 | 7 => self.read(file),
                8 => self.store(file),
                9 => self.load(file),
                10 => self.resize(file),
                11 => self.replace(file),
                12 => self.look_at_others(),
                13 => self.sync(file),
                _ => self.close_some(file),
            }
        }
        if self.random.below(3) == 0 {
            self.close_all(file);
        }
    }

    fn bytes(&mut self, length_max: usize) -> Vec<u8> {
        self.next_byte = self.next_byte.wrapping_add(1).max(2);
        let length = 1 + self.random.index(length_max);
        vec![self.next_byte; length]
    }

    fn open(&mut self, file: usize) {
        let known = &mut self.files[file];
        if known.open.len() >= OPEN_MAX {
            known.open.remove(0);
        }
        let access = [Access::Read, Access::ReadWrite][self.random.index(2)];
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        if access == Access::Read && self.random.below(4) == 0 {
            options.custom_flags(libc::O_DIRECT);
        }
        if access == Access::ReadWrite && self.random.below(12) == 0 && known.mapped.is_empty() {
            options.truncate(true);
            known.content.clear();
        }
        known.history.note(format!("open {access:?} of {} bytes: {options:?}", known.content.len()));
        let opened = options.open(&known.path);
        let opened = opened.unwrap_or_else(|error| panic!("opening {}: {error}", known.path.display()));
        known.open.push((opened, access));
    }

    fn map(&mut self, file: usize) {
        let known = &mut self.files[file];
        if known.mapped.len() >= OPEN_MAX {
            known.mapped.remove(0);
        }
        let Some((of, access)) = known.open.last() else { return };
        if known.content.is_empty() {
            return;
        }
        known.history.note(format!("map {access:?}"));
        match Mapping::new(of, known.content.len(), *access) {
            Ok(mapping) => known.mapped.push((mapping, *access)),
            Err(error) => panic!("mapping {}: {error}", known.path.display()),
        }
    }

    fn write(&mut self, file: usize) {
        let bytes = self.bytes(20_000);
        let offset = self.random.index(LENGTH_MAX - bytes.len());
        let known = &mut self.files[file];
        let Some((of, _)) = known.open.iter().find(|(_, access)| *access == Access::ReadWrite) else { return };
        if offset + bytes.len() > known.content.len() && known.is_stored_to {
            // A defect of the kernel that no daemon can mend (SEMANTICS.md): an extending write loses bytes beside the write-back of
            // the page that it begins in.
            known.history.note("sync before the end changes".to_owned());
            of.sync_data().unwrap_or_else(|error| panic!("syncing {}: {error}", known.path.display()));
            known.is_stored_to = false;
        }
        known.history.note(format!("write {offset}+{}: {}", bytes.len(), bytes[0]));
        of.write_all_at(&bytes, offset as u64)
            .unwrap_or_else(|error| panic!("writing {}: {error}", known.path.display()));
        let end = offset + bytes.len();
        if known.content.len() < end {
            known.content.resize(end, 0);
        }
        known.content[offset..end].copy_from_slice(&bytes);
    }

    fn read(&mut self, file: usize) {
        let known = &mut self.files[file];
        if known.open.is_empty() {
            return;
        }
        let place = self.random.index(known.open.len());
        known.history.note(format!("read through {place} of {}", known.open.len()));
        let (of, _) = &known.open[place];
        // Aligned, for those who read without the page cache.
        let mut buffer = vec![0; LENGTH_MAX + 8192];
        let start = buffer.as_ptr().align_offset(4096);
        let window = &mut buffer[start..start + LENGTH_MAX.next_multiple_of(4096)];
        let mut length = 0;
        while length < window.len() {
            match of.read_at(&mut window[length..], length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                // The end of the file is not aligned.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && length >= known.content.len() => break,
                Err(error) => panic!("reading {}: {error}", known.path.display()),
            }
        }
        known.expect(&window[..length], "read");
        assert_eq!(length, known.content.len(), "{}: bytes read\n  {}", known.path.display(), known.history.text());
    }

    fn store(&mut self, file: usize) {
        let bytes = self.bytes(5000);
        let known = &mut self.files[file];
        let Some((mapping, _)) = known.mapped.iter().find(|(_, access)| *access == Access::ReadWrite) else { return };
        let room = mapping.length().min(known.content.len());
        if room <= bytes.len() {
            return;
        }
        let offset = self.random.index(room - bytes.len());
        known.history.note(format!("store {offset}+{}: {}", bytes.len(), bytes[0]));
        mapping.write(offset, &bytes);
        known.is_stored_to = true;
        known.content[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }

    fn load(&mut self, file: usize) {
        let known = &self.files[file];
        let Some((mapping, _)) = known.mapped.last() else { return };
        known.expect(&mapping.read(0, mapping.length().min(known.content.len())), "in memory");
    }

    fn resize(&mut self, file: usize) {
        let length = self.random.index(LENGTH_MAX);
        let known = &mut self.files[file];
        let Some((of, _)) = known.open.iter().find(|(_, access)| *access == Access::ReadWrite) else { return };
        known.history.note(format!("cut or extend to {length}"));
        of.set_len(length as u64).unwrap_or_else(|error| panic!("cutting {}: {error}", known.path.display()));
        known.content.resize(length, 0);
        let seen = fs::metadata(&known.path).expect("there").len();
        assert_eq!(seen, length as u64, "{}", known.path.display());
    }

    /// Another file takes the name; open file descriptions of the old one remain usable until they are closed.
    fn replace(&mut self, file: usize) {
        if self.random.below(4) > 0 {
            return;
        }
        let content = self.bytes(40_000);
        let known = &mut self.files[file];
        let beside = known.path.with_extension("new");
        fs::write(&beside, &content).expect("written");
        fs::rename(&beside, &known.path).expect("renamed");
        known.open.clear();
        known.mapped.clear();
        known.history.note(format!("replace by {}", runs(&content)));
        known.content = content;
    }

    fn look_at_others(&mut self) {
        if self.of_others.len() >= OPEN_MAX || self.random.below(3) == 0 {
            self.of_others.clear();
        }
        let player = self.random.below(super::super::PLAYERS);
        let path = volume::file(self.place, player, self.random.below(Self::FILES));
        let opened = match OpenOptions::new().read(true).open(&path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => panic!("opening {}: {error}", path.display()),
        };
        let mut bytes = [0; 64];
        opened.read_at(&mut bytes, 0).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        let mapping = Mapping::new(&opened, 4096, Access::Read);
        let mapping = mapping.unwrap_or_else(|error| panic!("mapping {}: {error}", path.display()));
        self.of_others.push((opened, Some(mapping)));
    }

    fn sync(&mut self, file: usize) {
        if self.random.below(8) > 0 {
            return;
        }
        let known = &self.files[file];
        if let Some((of, _)) = known.open.first() {
            of.sync_all().unwrap_or_else(|error| panic!("syncing {}: {error}", known.path.display()));
        }
    }

    fn close_some(&mut self, file: usize) {
        let known = &mut self.files[file];
        known.history.note(format!("close one of {} and {}", known.open.len(), known.mapped.len()));
        if !known.open.is_empty() {
            let place = self.random.index(known.open.len());
            known.open.remove(place);
        }
        if !known.mapped.is_empty() && self.random.below(2) == 0 {
            let place = self.random.index(known.mapped.len());
            known.mapped.remove(place);
        }
    }

    fn close_all(&mut self, file: usize) {
        let known = &mut self.files[file];
        known.history.note("close all".to_owned());
        known.open.clear();
        known.mapped.clear();
    }
}
