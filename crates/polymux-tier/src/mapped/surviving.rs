//! Surviving memory in files on tmpfs (docs/design/0023).
//!
//! Invariants:
//! * A file is made with `O_EXCL`, mode 0600, and full of zeros, so all of its pages exist before it is mapped: a store
//!   never needs free space. It is opened without following links, and taken only where it is a regular file of this user,
//!   with one name, that others may not touch. So another user can neither plant one nor read it.
//! * It is locked while it is mapped: a copy of a volume that is mounted beside the original gets none.
//! * The directories are asked in order; a file that is there is found in whichever of them has it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use polymux_types::surviving::{SurvivingMemory, SurvivingPlace};

use super::{MappedRegion, RegionError, RegionKind, WORD, is_memory, no_follow, write_zeros};

/// Who may use a directory that holds surviving memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directory {
    /// This user alone; it is made where it is missing.
    Own,
    /// All users, who cannot remove files of one another (sticky).
    Shared,
}

/// State of one directory under the name of a piece of memory.
enum Found {
    Nothing,
    Memory(MappedRegion),
    /// Another process has it: why, for people.
    InUse(String),
}

/// Files on tmpfs in which memory survives the process.
#[derive(Debug)]
pub struct SharedMemory {
    directories: Vec<(PathBuf, Directory)>,
    boot: [u8; 16],
    uid: u32,
}

impl SharedMemory {
    /// The directories of this machine: one of the user's own first, then `/dev/shm`.
    #[must_use]
    pub fn of_machine(boot: [u8; 16]) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        // By number, not by `XDG_RUNTIME_DIR`: a mount out of a service has to find the memory left by one out of a session.
        let own = match uid {
            0 => PathBuf::from("/run/polymux"),
            _ => PathBuf::from(format!("/run/user/{uid}/polymux")),
        };
        let directories = vec![(own, Directory::Own), (PathBuf::from("/dev/shm"), Directory::Shared)];
        Self { directories, boot, uid }
    }

    /// One directory that others may write to.
    #[must_use]
    pub fn in_directory(directory: &Path, boot: [u8; 16]) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { directories: vec![(directory.to_owned(), Directory::Shared)], boot, uid }
    }

    fn path_of(&self, directory: &Path, name: &str) -> PathBuf {
        directory.join(format!("polymux-{}-{name}", self.uid))
    }

    /// Opens a file that is there, where it may be trusted. `None`: there is none.
    fn open_trusted(&self, path: &Path) -> Result<Option<File>, String> {
        let refuse = |reason: &str| Err(format!("{}: {reason}", path.display()));
        // A fifo or device of another user does not block the open.
        let flags = no_follow() | libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return refuse(&error.to_string()),
        };
        let metadata = file.metadata().map_err(|error| format!("{}: {error}", path.display()))?;
        if !metadata.is_file() || metadata.nlink() != 1 {
            return refuse("not a regular file with one name");
        }
        if metadata.uid() != self.uid || metadata.mode() & 0o077 != 0 {
            return refuse("it belongs to another user, or others may use it");
        }
        Ok(Some(file))
    }

    fn open_in(&self, path: &Path, bytes: u64) -> Result<Found, String> {
        let Some(file) = self.open_trusted(path)? else { return Ok(Found::Nothing) };
        match MappedRegion::take(file, path, bytes, RegionKind::TestDouble) {
            Ok(region) => Ok(Found::Memory(region)),
            Err(error @ RegionError::InUse(_)) => Ok(Found::InUse(error.to_string())),
            Err(RegionError::Length { .. }) => {
                // Of another version of Polymux, or cut short while it was being made: nothing in it can be used.
                std::fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(Found::Nothing)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Makes the file of a piece of memory, `bytes` bytes of zeros.
fn create(path: &Path, bytes: u64, directory: Directory) -> Result<MappedRegion, String> {
    if directory == Directory::Own
        && let Some(parent) = path.parent()
    {
        // Where that fails the making of the file says why.
        let _ = DirBuilder::new().mode(0o700).create(parent);
    }
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(no_follow());
    let file = options.open(path).map_err(told)?;
    let in_memory = is_memory(&file).map_err(told);
    let made = in_memory.and_then(|in_memory| match in_memory {
        true => write_zeros(&file, bytes).map_err(told),
        false => Err(format!("{}: not on tmpfs", path.display())),
    });
    let region = made.and_then(|()| {
        MappedRegion::take(file, path, bytes, RegionKind::TestDouble).map_err(|error| error.to_string())
    });
    if region.is_err() {
        // It was made a moment ago, by us.
        let _ = std::fs::remove_file(path);
    }
    region
}

impl SurvivingPlace for SharedMemory {
    fn boot(&self) -> [u8; 16] {
        self.boot
    }

    fn open(&self, name: &str, bytes: u64) -> Result<Arc<dyn SurvivingMemory>, String> {
        let paths = self.directories.iter().map(|(directory, kind)| (self.path_of(directory, name), *kind));
        let mut reasons = Vec::new();
        for (path, _) in paths.clone() {
            match self.open_in(&path, bytes) {
                Ok(Found::Memory(region)) => return Ok(Arc::new(SurvivingFile { region, path })),
                // That process serves the store that this one is a copy of. A second file with this name, in another
                // directory, would be taken for a leftover of that store.
                Ok(Found::InUse(reason)) => return Err(reason),
                Ok(Found::Nothing) => {}
                Err(reason) => reasons.push(reason),
            }
        }
        for (path, kind) in paths {
            match create(&path, bytes, kind) {
                Ok(region) => return Ok(Arc::new(SurvivingFile { region, path })),
                Err(reason) => reasons.push(reason),
            }
        }
        reasons.dedup();
        Err(reasons.join("; "))
    }

    fn read(&self, name: &str, bytes: u64) -> Option<Vec<u64>> {
        let files = self.directories.iter().map(|(directory, _)| self.open_trusted(&self.path_of(directory, name)));
        let file = files.filter_map(|file| file.ok().flatten()).next()?;
        let length = file.metadata().ok()?.len();
        let mut content = vec![0; usize::try_from(bytes).ok().filter(|_| length == bytes)?];
        file.read_exact_at(&mut content, 0).ok()?;
        // As the processor stored them.
        let word = if cfg!(target_endian = "little") { u64::from_le_bytes } else { u64::from_be_bytes };
        Some(content.as_chunks::<WORD>().0.iter().map(|bytes| word(*bytes)).collect())
    }
}

/// One piece of memory.
struct SurvivingFile {
    region: MappedRegion,
    path: PathBuf,
}

impl SurvivingMemory for SurvivingFile {
    fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    fn description(&self) -> String {
        self.path.display().to_string()
    }

    fn discard(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::debug!("{}: it could not be removed: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::Ordering;

    use super::*;

    const BOOT: [u8; 16] = [3; 16];
    const BYTES: u64 = 16 * 1024;

    /// A directory on tmpfs, or the reason why there is none.
    fn directory() -> Option<tempfile::TempDir> {
        let directory = tempfile::tempdir_in("/dev/shm").ok();
        let usable = directory.filter(|directory| File::open(directory.path()).is_ok_and(|it| is_memory(&it).unwrap()));
        if usable.is_none() {
            eprintln!("skipped: /dev/shm is not a tmpfs that can be written");
        }
        usable
    }

    fn only_file(directory: &Path) -> PathBuf {
        let mut files = std::fs::read_dir(directory).unwrap();
        let file = files.next().expect("there is a file").unwrap().path();
        assert!(files.next().is_none(), "there is one file");
        file
    }

    #[test]
    fn what_was_stored_is_there_when_it_is_opened_again_and_gone_when_it_is_discarded() {
        let Some(directory) = directory() else { return };
        let place = SharedMemory::in_directory(directory.path(), BOOT);
        let memory = place.open("window", BYTES).unwrap();
        memory.words()[2000].store(7, Ordering::Release);
        assert_eq!(std::fs::metadata(only_file(directory.path())).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(place.read("window", BYTES).unwrap()[2000], 7, "it is read beside whoever has it");
        assert!(place.open("window", BYTES).is_err(), "one process at a time has it");
        drop(memory);
        let memory = place.open("window", BYTES).unwrap();
        assert_eq!(memory.words()[2000].load(Ordering::Acquire), 7);
        memory.discard();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(memory.words()[2000].load(Ordering::Acquire), 7, "whoever has it may go on");
    }

    #[test]
    fn a_copy_of_a_store_that_is_in_use_gets_no_memory_in_another_directory_either() {
        let (Some(first), Some(second)) = (directory(), directory()) else { return };
        let both = [first.path(), second.path()].map(|path| (path.to_owned(), Directory::Shared)).to_vec();
        let uid = rustix::process::geteuid().as_raw();
        let place = SharedMemory { directories: both, boot: BOOT, uid };
        let _original = place.open("window", BYTES).unwrap();
        assert!(place.open("window", BYTES).err().unwrap().contains("in use"));
        assert_eq!(std::fs::read_dir(second.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_of_another_length_is_made_anew() {
        let Some(directory) = directory() else { return };
        let place = SharedMemory::in_directory(directory.path(), BOOT);
        place.open("window", BYTES).unwrap().words()[0].store(9, Ordering::Release);
        assert_eq!(place.open("window", 2 * BYTES).unwrap().words()[0].load(Ordering::Acquire), 0);
        assert_eq!(place.read("window", BYTES), None);
    }

    #[test]
    fn a_link_a_readable_file_or_one_with_two_names_is_not_taken() {
        let Some(directory) = directory() else { return };
        let place = SharedMemory::in_directory(directory.path(), BOOT);
        drop(place.open("window", BYTES).unwrap());
        let path = only_file(directory.path());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(place.open("window", BYTES).err().unwrap().contains("others may use it"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let second = directory.path().join("second");
        std::fs::hard_link(&path, &second).unwrap();
        assert!(place.open("window", BYTES).err().unwrap().contains("one name"));
        std::fs::remove_file(&path).unwrap();
        symlink(&second, &path).unwrap();
        assert!(place.open("window", BYTES).is_err() && place.read("window", BYTES).is_none());
        assert_eq!(std::fs::read(&second).unwrap(), vec![0; usize::try_from(BYTES).unwrap()], "it is as it was");
    }

    #[test]
    fn a_disk_is_no_place_for_it() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        if File::open(directory.path()).is_ok_and(|it| is_memory(&it).unwrap()) {
            eprintln!("skipped: /var/tmp is in memory");
            return;
        }
        let place = SharedMemory::in_directory(directory.path(), BOOT);
        assert!(place.open("window", BYTES).err().unwrap().contains("not on tmpfs"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
