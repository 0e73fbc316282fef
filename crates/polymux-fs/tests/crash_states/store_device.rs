//! The device of a scene's metadata store: a model in memory, or the real store with files of its own.
//!
//! Invariants:
//! * The real store has no threads: it works when it is called, so that one workload does the same in every run.
//! * While a scene is recorded the files are in a recording file system. After a crash the surviving state is put into memory, where nothing
//!   is lost any more, unless its recovery is recorded too.
//! * Everything is small, so that a table or two are written within a workload.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polymux_fs::store_boundaries;
use polymux_meta::{
    CopyOptions, CopyState, LogStore, LogStoreOptions, MetadataStore, OpenMode, StepProgress, Workers,
    restore_from_copy,
};
use polymux_sim::MemoryStore;
use polymux_sim::crash_states::{COPY_DIRECTORY, STORE_DIRECTORY, State};
use polymux_sim::recording::{Journal, RecordingStore};
use polymux_sim::recording_file_system::{Image, Record, RecordedDirectory, RecordingFileSystem};
use polymux_types::sync::Mutex;
use tempfile::TempDir;

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// The kind of store of a campaign.
#[derive(Clone, Copy)]
pub enum Backing<'a> {
    /// A model that keeps the promise of its trait.
    Model,
    /// The real one, whose files are recorded here.
    Files(&'a RecordingFileSystem),
    /// As `Files`, with a second copy on a device of its own.
    FilesWithCopy(&'a RecordingFileSystem),
}

impl Backing<'_> {
    /// For the names of states.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Files(_) => "files",
            Self::FilesWithCopy(_) => "copy",
        }
    }

    fn has_copy(self) -> bool {
        matches!(self, Self::FilesWithCopy(_))
    }
}

enum Place {
    Recorded(RecordedDirectory),
    Memory(TempDir),
}

/// The real store and where it is.
pub struct StoreFiles {
    // Before the directory, which has to be there until it is closed.
    open: Mutex<Option<Arc<LogStore>>>,
    place: Place,
    has_copy: bool,
    /// The state before recording began.
    beginning: Option<Record>,
}

/// The device of a scene's store.
pub enum StoreDevice {
    Model(Arc<MemoryStore>),
    Files(Box<StoreFiles>),
}

fn options(mode: OpenMode, copy: Option<PathBuf>) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 256 << 10,
        log_bytes: 1 << 20,
        window_bytes: 64 << 10,
        ballast_bytes: 64 << 10,
        table_bytes_max: 64 << 10,
        boundaries: store_boundaries(),
        seeds: [1, 0x5eed],
        workers: Workers::Manual,
        copy: copy.map(|path| CopyOptions { wait_max: Duration::from_secs(30), ..CopyOptions::new(path) }),
        ..LogStoreOptions::new(mode)
    }
}

impl StoreFiles {
    fn recorded(directory: RecordedDirectory, has_copy: bool, journal: &Arc<Journal>) -> Self {
        let beginning = Some(directory.record());
        journal.observe(&directory);
        Self { open: Mutex::new(None), place: Place::Recorded(directory), has_copy, beginning }
    }

    /// Files in memory that are durable as they are.
    fn in_memory(image: &Image, has_copy: bool) -> Result<Self, String> {
        let place = tempfile::tempdir_in(MEMORY).map_err(|error| format!("{MEMORY}: {error}"))?;
        image.write_to(place.path()).map_err(|error| format!("writing the state to {MEMORY}: {error}"))?;
        Ok(Self { open: Mutex::new(None), place: Place::Memory(place), has_copy, beginning: None })
    }

    fn path(&self, name: &str) -> PathBuf {
        match &self.place {
            Place::Recorded(directory) => directory.path().join(name),
            Place::Memory(directory) => directory.path().join(name),
        }
    }

    fn open(&self, mode: OpenMode) -> Result<Arc<LogStore>, String> {
        let mut open = self.open.lock();
        if let Some(store) = &*open {
            return Ok(Arc::clone(store));
        }
        let options = options(mode, self.has_copy.then(|| self.path(COPY_DIRECTORY)));
        let store = LogStore::open(&self.path(STORE_DIRECTORY), &options)
            .map_err(|error| format!("the store does not open: {error}"))?;
        let store = Arc::new(store);
        *open = Some(Arc::clone(&store));
        Ok(store)
    }

    fn opened(&self) -> Arc<LogStore> {
        self.open.lock().clone().expect("the store of a scene is open")
    }
}

impl StoreDevice {
    /// A new store, every change of which goes into the journal.
    pub fn new(backing: Backing, journal: &Arc<Journal>) -> Self {
        match backing {
            Backing::Model => Self::Model(Arc::new(MemoryStore::new())),
            Backing::Files(mounted) | Backing::FilesWithCopy(mounted) => {
                let directory = mounted.load(&Image::default());
                let files = StoreFiles::recorded(directory, backing.has_copy(), journal);
                files.open(OpenMode::CreateNew).expect("the store is made");
                Self::Files(Box::new(files))
            }
        }
    }

    /// The state after a crash. Where it is recorded, its files are in the recording file system again.
    pub fn of_state(backing: Backing, state: &State, journal: Option<&Arc<Journal>>) -> Result<Self, String> {
        let Some(image) = state.files() else { return Ok(Self::Model(Arc::new(state.store()))) };
        let files = match (backing, journal) {
            (Backing::Files(mounted) | Backing::FilesWithCopy(mounted), Some(journal)) => {
                StoreFiles::recorded(mounted.load(image), backing.has_copy(), journal)
            }
            _ => StoreFiles::in_memory(image, backing.has_copy())?,
        };
        Ok(Self::Files(Box::new(files)))
    }

    /// A store made out of the second copy that a crash left, the store itself being lost.
    pub fn of_copy(state: &State) -> Result<Self, String> {
        let image = state.files().expect("a second copy has files");
        let files = StoreFiles::in_memory(image, true)?;
        let options = options(OpenMode::Existing, None);
        restore_from_copy(&files.path(COPY_DIRECTORY), &files.path(STORE_DIRECTORY), &options)
            .map_err(|error| format!("the second copy cannot be started from: {error}"))?;
        Ok(Self::Files(Box::new(files)))
    }

    /// The store for a file system; with a journal, the transactions of a model are recorded. Opens it where it is not open.
    pub fn front(&self, journal: Option<&Arc<Journal>>) -> Result<Arc<dyn MetadataStore>, String> {
        Ok(match (self, journal) {
            (Self::Model(store), Some(journal)) => {
                Arc::new(RecordingStore::new(Arc::clone(store), Arc::clone(journal)))
            }
            (Self::Model(store), None) => Arc::clone(store) as _,
            (Self::Files(files), Some(journal)) => {
                Arc::new(RecordingStore::over_files(files.open(OpenMode::Existing)?, Arc::clone(journal)))
            }
            (Self::Files(files), None) => files.open(OpenMode::Existing)?,
        })
    }

    /// The file system that used it has stopped without warning. Data that is not durable is lost; files in memory keep all, as
    /// a disk may.
    pub fn lose_unsynced(&self) {
        match self {
            Self::Model(store) => store.crash(),
            Self::Files(files) => drop(files.open.lock().take()),
        }
    }

    /// Writes tables, and ships to the second copy as far as everything is durable.
    pub fn checkpoint(&self) -> Result<(), String> {
        let Self::Files(files) = self else { return Ok(()) };
        let store = files.opened();
        let failed = |error| format!("the store: {error}");
        store.checkpoint().map_err(failed)?;
        self.ship()
    }

    /// Flushes the log of a real store.
    pub fn flush_log(&self) -> Result<(), String> {
        let Self::Files(files) = self else { return Ok(()) };
        let store = files.opened();
        store.sync(store.committed()).map_err(|error| format!("the store: {error}"))
    }

    /// Background work of the store until nothing is left, which ships durable transactions to the second copy.
    pub fn ship(&self) -> Result<(), String> {
        let Self::Files(files) = self else { return Ok(()) };
        let store = files.opened();
        while store.step().map_err(|error| format!("the store: {error}"))? == StepProgress::Worked {}
        match store.report().copy {
            Some(copy) if copy.state != CopyState::Current || copy.lag_bytes != Some(0) => {
                Err(format!("the second copy is not up to date: {copy:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The state before recording began, of a store whose files are recorded.
    pub fn beginning(&self) -> Option<&Record> {
        match self {
            Self::Model(_) => None,
            Self::Files(files) => files.beginning.as_ref(),
        }
    }
}
