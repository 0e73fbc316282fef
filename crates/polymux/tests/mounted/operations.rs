//! Random operations on a small tree, and their results as a program sees them: for running the same on two file systems.
//!
//! Names come from a tiny alphabet, so that operations meet. The compared results never depend on the file system below:
//! sizes of directories, times that were not set, space used and the order of names are left out.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};

use super::random::Random;
use super::tree::checksum;

#[derive(Clone, Debug)]
pub enum Operation {
    CreateNew { path: PathBuf, mode: u32 },
    OpenTruncate { path: PathBuf },
    Write { path: PathBuf, offset: u64, length: usize, seed: u64 },
    Append { path: PathBuf, length: usize, seed: u64 },
    Read { path: PathBuf, offset: u64, length: usize },
    Truncate { path: PathBuf, size: u64 },
    Allocate { path: PathBuf, offset: u64, length: u64, flags: FallocateFlags },
    Copy { from: PathBuf, from_offset: u64, to: PathBuf, to_offset: u64, length: usize },
    MakeDirectory { path: PathBuf, mode: u32 },
    RemoveDirectory { path: PathBuf },
    Unlink { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, flags: RenameFlags },
    Link { from: PathBuf, to: PathBuf },
    Symlink { target: PathBuf, path: PathBuf },
    ReadLink { path: PathBuf },
    MakeFifo { path: PathBuf, mode: u32 },
    ChangeMode { path: PathBuf, mode: u32 },
    ChangeOwner { path: PathBuf, uid: u32, gid: u32 },
    SetTimes { path: PathBuf, seconds: i64, nanoseconds: i64 },
    SetXattr { path: PathBuf, name: &'static str, length: usize, flags: XattrFlags },
    GetXattr { path: PathBuf, name: &'static str },
    RemoveXattr { path: PathBuf, name: &'static str },
    List { path: PathBuf },
    Stat { path: PathBuf },
    Synchronise { path: PathBuf },
    OpenSlot { path: PathBuf, slot: usize },
    WriteSlot { slot: usize, offset: u64, length: usize, seed: u64 },
    ReadSlot { slot: usize, offset: u64, length: usize },
    TruncateSlot { slot: usize, size: u64 },
    StatSlot { slot: usize },
    CloseSlot { slot: usize },
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.three"];
pub const SLOTS: usize = 4;
/// Times before this were set by a test, later ones by the clock.
const SET_TIMES_BELOW: i64 = 1_000_000_000;
/// Files reach about this size.
const SIZES: u64 = 300_000;

fn path(random: &mut Random) -> PathBuf {
    let depth = random.pick(&[1, 1, 1, 2, 2, 3]);
    (0..depth).map(|_| random.pick(&NAMES)).collect()
}

fn offset(random: &mut Random) -> u64 {
    let raw = random.below(SIZES);
    if random.below(3) == 0 { raw & !4095 } else { raw }
}

fn length(random: &mut Random) -> usize {
    let limit = random.pick(&[10, 5_000, 5_000, 100_000]);
    usize::try_from(random.below(limit)).expect("a length fits")
}

impl Operation {
    /// The next operation of a sequence.
    pub fn random(random: &mut Random) -> Self {
        match random.below(3) {
            0 => Self::random_on_names(random),
            1 => Self::random_on_data(random),
            _ => Self::random_on_attributes(random),
        }
    }

    fn random_on_names(random: &mut Random) -> Self {
        let flags = [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
        match random.below(12) {
            0 | 1 => Self::CreateNew { path: path(random), mode: 0o600 | random_mode(random) },
            2 | 3 => Self::MakeDirectory { path: path(random), mode: 0o700 | random_mode(random) },
            4 => Self::RemoveDirectory { path: path(random) },
            5 => Self::Unlink { path: path(random) },
            6 | 7 => Self::Rename { from: path(random), to: path(random), flags: random.pick(&flags) },
            8 => Self::Link { from: path(random), to: path(random) },
            9 => Self::Symlink { target: path(random), path: path(random) },
            10 => Self::List { path: path(random) },
            _ => Self::MakeFifo { path: path(random), mode: 0o600 },
        }
    }

    fn random_on_data(random: &mut Random) -> Self {
        let slot = usize::try_from(random.below(SLOTS as u64)).expect("a slot fits");
        match random.below(16) {
            0..=2 => {
                Self::Write { path: path(random), offset: offset(random), length: length(random), seed: random.next() }
            }
            3 => Self::Append { path: path(random), length: length(random), seed: random.next() },
            4 | 5 => Self::Read { path: path(random), offset: offset(random), length: length(random) },
            6 => Self::Truncate { path: path(random), size: offset(random) },
            7 => Self::random_allocation(random),
            8 => Self::Copy {
                from: path(random),
                from_offset: offset(random),
                to: path(random),
                to_offset: offset(random),
                length: length(random),
            },
            9 => Self::OpenTruncate { path: path(random) },
            10 => Self::OpenSlot { path: path(random), slot },
            11 => Self::WriteSlot { slot, offset: offset(random), length: length(random), seed: random.next() },
            12 => Self::ReadSlot { slot, offset: offset(random), length: length(random) },
            13 => Self::TruncateSlot { slot, size: offset(random) },
            14 => Self::StatSlot { slot },
            _ => Self::CloseSlot { slot },
        }
    }

    fn random_allocation(random: &mut Random) -> Self {
        let flags = [
            FallocateFlags::empty(),
            FallocateFlags::KEEP_SIZE,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        ];
        let length = random.below(50_000);
        Self::Allocate { path: path(random), offset: offset(random), length, flags: random.pick(&flags) }
    }

    fn random_on_attributes(random: &mut Random) -> Self {
        let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
        match random.below(11) {
            0 => Self::ChangeMode { path: path(random), mode: 0o600 | random_mode(random) },
            1 => Self::ChangeOwner {
                path: path(random),
                uid: random.pick(&[0, 1, 65_534]),
                gid: random.pick(&[0, 1, 65_534]),
            },
            2 => Self::SetTimes {
                path: path(random),
                seconds: i64::try_from(random.below(500_000_000)).expect("it fits"),
                nanoseconds: i64::try_from(random.below(1_000_000_000)).expect("it fits"),
            },
            3 => Self::SetXattr {
                path: path(random),
                name: random.pick(&XATTRS),
                length: usize::try_from(random.below(60)).expect("it fits"),
                flags: random.pick(&flags),
            },
            4 => Self::GetXattr { path: path(random), name: random.pick(&XATTRS) },
            5 => Self::RemoveXattr { path: path(random), name: random.pick(&XATTRS) },
            6 => Self::ReadLink { path: path(random) },
            7 => Self::Synchronise { path: path(random) },
            _ => Self::Stat { path: path(random) },
        }
    }
}

fn random_mode(random: &mut Random) -> u32 {
    u32::try_from(random.below(0o10000)).expect("it fits")
}

/// One of the two file systems.
pub struct Side {
    root: PathBuf,
    slots: [Option<File>; SLOTS],
}

/// Result of an operation as a program sees it: a value in words, or an errno.
pub type Seen = Result<String, i32>;

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

impl Side {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), slots: Default::default() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Carries out an operation.
    pub fn apply(&mut self, operation: &Operation) -> Seen {
        self.apply_to_data(operation)
            .or_else(|| self.apply_to_slots(operation))
            .or_else(|| self.apply_to_names(operation))
            .or_else(|| self.apply_to_attributes(operation))
            .expect("every operation belongs to a family")
            .map_err(|error| errno(&error))
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// Opens for writing without creating; fifos must not block.
    fn open(&self, path: &Path) -> std::io::Result<File> {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(self.at(path))
    }

    fn apply_to_data(&self, operation: &Operation) -> Option<std::io::Result<String>> {
        let done = |_| "done".to_owned();
        Some(match operation {
            Operation::OpenTruncate { path } => OpenOptions::new()
                .write(true)
                .truncate(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(self.at(path))
                .map(|_| "opened".into()),
            Operation::Write { path, offset, length, seed } => self
                .open(path)
                .and_then(|file| file.write_all_at(&Random::new(*seed).bytes(*length), *offset).map(done)),
            Operation::Append { path, length, seed } => {
                OpenOptions::new().append(true).custom_flags(libc::O_NONBLOCK).open(self.at(path)).and_then(
                    |mut file| std::io::Write::write_all(&mut file, &Random::new(*seed).bytes(*length)).map(done),
                )
            }
            Operation::Read { path, offset, length } => self.open(path).and_then(|file| read(&file, *offset, *length)),
            Operation::Truncate { path, size } => self.open(path).and_then(|file| file.set_len(*size).map(done)),
            Operation::Allocate { path, offset, length, flags } => self
                .open(path)
                .and_then(|file| rustix::fs::fallocate(&file, *flags, *offset, *length).map(done).map_err(Into::into)),
            Operation::Copy { from, from_offset, to, to_offset, length } => {
                self.open(from).and_then(|source| copy(&source, *from_offset, &self.open(to)?, *to_offset, *length))
            }
            Operation::Synchronise { path } => self.open(path).and_then(|file| file.sync_all().map(done)),
            _ => return None,
        })
    }

    fn apply_to_slots(&mut self, operation: &Operation) -> Option<std::io::Result<String>> {
        let done = |_| "done".to_owned();
        if let Operation::OpenSlot { path, slot } = operation {
            let opened = self.open(path);
            return Some(opened.map(|file| {
                self.slots[*slot] = Some(file);
                "opened".to_owned()
            }));
        }
        if let Operation::CloseSlot { slot } = operation {
            return Some(Ok(format!("closed: {}", self.slots[*slot].take().is_some())));
        }
        let (Operation::WriteSlot { slot, .. }
        | Operation::ReadSlot { slot, .. }
        | Operation::TruncateSlot { slot, .. }
        | Operation::StatSlot { slot }) = operation
        else {
            return None;
        };
        let Some(file) = &self.slots[*slot] else { return Some(Ok("not open".to_owned())) };
        Some(match operation {
            Operation::WriteSlot { offset, length, seed, .. } => {
                file.write_all_at(&Random::new(*seed).bytes(*length), *offset).map(done)
            }
            Operation::ReadSlot { offset, length, .. } => read(file, *offset, *length),
            Operation::TruncateSlot { size, .. } => file.set_len(*size).map(done),
            _ => file.metadata().map(|metadata| describe(&metadata)),
        })
    }

    fn apply_to_names(&self, operation: &Operation) -> Option<std::io::Result<String>> {
        let done = |()| "done".to_owned();
        Some(match operation {
            Operation::CreateNew { path, mode } => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(*mode)
                .open(self.at(path))
                .map(|_| "created".into()),
            Operation::MakeDirectory { path, mode } => {
                rustix::fs::mkdir(self.at(path), Mode::from_raw_mode(*mode)).map(done).map_err(Into::into)
            }
            Operation::RemoveDirectory { path } => fs::remove_dir(self.at(path)).map(done),
            Operation::Unlink { path } => rustix::fs::unlink(self.at(path)).map(done).map_err(Into::into),
            Operation::Rename { from, to, flags } => {
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), *flags).map(done).map_err(Into::into)
            }
            Operation::Link { from, to } => fs::hard_link(self.at(from), self.at(to)).map(done),
            Operation::Symlink { target, path } => std::os::unix::fs::symlink(target, self.at(path)).map(done),
            Operation::ReadLink { path } => fs::read_link(self.at(path)).map(|target| format!("{target:?}")),
            Operation::MakeFifo { path, mode } => {
                rustix::fs::mknodat(CWD, self.at(path), FileType::Fifo, Mode::from_raw_mode(*mode), 0)
                    .map(done)
                    .map_err(Into::into)
            }
            Operation::List { path } => list(&self.at(path)),
            _ => return None,
        })
    }

    fn apply_to_attributes(&self, operation: &Operation) -> Option<std::io::Result<String>> {
        let done = |()| "done".to_owned();
        Some(match operation {
            Operation::ChangeMode { path, mode } => {
                fs::set_permissions(self.at(path), PermissionsExt::from_mode(*mode)).map(done)
            }
            Operation::ChangeOwner { path, uid, gid } => {
                std::os::unix::fs::lchown(self.at(path), Some(*uid), Some(*gid)).map(done)
            }
            Operation::SetTimes { path, seconds, nanoseconds } => {
                let time = Timespec { tv_sec: *seconds, tv_nsec: *nanoseconds };
                let times = Timestamps { last_access: time, last_modification: time };
                let set = rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW);
                set.map(done).map_err(Into::into)
            }
            Operation::SetXattr { path, name, length, flags } => {
                rustix::fs::lsetxattr(self.at(path), *name, &vec![b'x'; *length], *flags).map(done).map_err(Into::into)
            }
            Operation::GetXattr { path, name } => {
                let mut value = [0_u8; 100];
                rustix::fs::lgetxattr(self.at(path), *name, &mut value[..])
                    .map(|length| format!("{length} bytes"))
                    .map_err(Into::into)
            }
            Operation::RemoveXattr { path, name } => {
                rustix::fs::lremovexattr(self.at(path), *name).map(done).map_err(Into::into)
            }
            Operation::Stat { path } => fs::symlink_metadata(self.at(path)).map(|metadata| describe(&metadata)),
            _ => return None,
        })
    }

    /// Times that were set, by path: the part of the final tree that a snapshot leaves out.
    pub fn set_times(&self, paths: impl Iterator<Item = PathBuf>) -> BTreeMap<PathBuf, (i64, i64)> {
        let times = paths.filter_map(|path| {
            let metadata = fs::symlink_metadata(self.at(&path)).ok()?;
            was_set(&metadata).then(|| (path, (metadata.mtime(), metadata.mtime_nsec())))
        });
        times.collect()
    }
}

fn read(file: &File, offset: u64, length: usize) -> std::io::Result<String> {
    let mut buffer = vec![0_u8; length];
    let mut count = 0;
    while count < length {
        match file.read_at(&mut buffer[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(format!("{count} bytes, {:x}", checksum(&buffer[..count])))
}

fn copy(
    source: &File,
    source_offset: u64,
    target: &File,
    target_offset: u64,
    length: usize,
) -> std::io::Result<String> {
    let (mut from, mut to, mut total) = (source_offset, target_offset, 0);
    while total < length {
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length - total)? {
            0 => break,
            count => total += count,
        }
    }
    Ok(format!("{total} copied"))
}

fn list(path: &Path) -> std::io::Result<String> {
    let names: std::io::Result<Vec<_>> =
        fs::read_dir(path)?.map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?)))).collect();
    let mut names: Vec<String> = names?.into_iter().map(|(name, kind)| format!("{name:?} {kind:?}")).collect();
    names.sort();
    Ok(names.join(", "))
}

/// Whether the modification time is one that a test has set. That of a fifo is not looked at: under FUSE the kernel
/// moves the bytes by itself and leaves the times alone.
fn was_set(metadata: &fs::Metadata) -> bool {
    !metadata.file_type().is_fifo() && metadata.mtime() < SET_TIMES_BELOW
}

fn describe(metadata: &fs::Metadata) -> String {
    let size = if metadata.is_dir() { 0 } else { metadata.size() };
    let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    let time = if was_set(metadata) { format!("{seconds}.{nanoseconds:09}") } else { "recent".to_owned() };
    let (mode, links, uid, gid) = (metadata.mode(), metadata.nlink(), metadata.uid(), metadata.gid());
    format!("{mode:o} {links} {uid}:{gid} {size} {time}")
}
