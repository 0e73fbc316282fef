//! Making, opening and recovering a store (A9).
//!
//! Invariants:
//! * A store is a directory: `log` (or `log-backing` and `region`, see `placement`), `part0` .. (trees of tables) and
//!   `ballast`. It is there once its log has a header, which is written last; a creation that was cut short leaves a
//!   directory that can be created again after it was emptied, and is never opened.
//! * Recovery reads the log from its checkpoint and puts every entry of the complete prefix into the active memtable. It
//!   writes only the entries that outlived the last process (`log/surviving.rs`) and the header of the new generation, and may be
//!   repeated at will. Where the log itself, the second copy, or the memory that outlived the last process
//!   proves that durable entries are lost, it refuses and writes nothing. Its time depends on the log alone.
//! * The log's file is locked while it is open, so that two processes never write one store.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::background::{Background, Signals};
use super::placement::LogPlacement;
use super::survived::Survived;
use super::{Inner, Levels, LogStore, WindowPlace, WindowReport, sequence_of};
use crate::ballast::Ballast;
use crate::batch::Batch;
use crate::copy::{CopyOptions, CopyThread, SecondCopy, refuse_copy_ahead};
use crate::error::StoreError;
use crate::log::{BlockFile, HEADER_LENGTH, Log, LogHeader, LogMedium, LogRegion, RegionLog, Replay, Replayed};
use crate::log::{SurvivingWindow, WindowMemory};
use crate::memtable::Memtable;
use crate::tables::{Tables, TablesOptions};
use polymux_types::surviving::SurvivingPlace;
use polymux_types::sync::{Mutex, RwLock};

/// Name of the reserved space of a store; a second copy has none.
pub(crate) const BALLAST_FILE: &str = "ballast";

const MEBIBYTE: u64 = 1024 * 1024;

/// Whether a store is made or expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Make a new one; refuse where there is one, or anything else.
    CreateNew,
    /// Open one; refuse where there is none.
    Existing,
}

/// Who does the background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Three threads of the store.
    Threads,
    /// The owner, by [`LogStore::step`]; a commit that cannot wait does it too.
    Manual,
}

/// Choices for [`LogStore::open`]. Those that concern the format apply when a store is made; an existing one keeps its own.
#[derive(Clone, Debug)]
pub struct LogStoreOptions {
    /// Whether the store is made or expected.
    pub mode: OpenMode,
    /// Memory for memtables and for blocks that were read, in bytes.
    pub memory_bytes: u64,
    /// Length of a new log in bytes; rounded down to a power of two, at least 1 MiB.
    pub log_bytes: u64,
    /// Part of the log that is kept in memory before it is written, in bytes, a power of two.
    pub window_bytes: u64,
    /// Space that is reserved on the file system of the store.
    pub ballast_bytes: u64,
    /// Size of a table in bytes.
    pub table_bytes_max: u64,
    /// Keys at which the tables are cut into partitions, ascending. Part of the format.
    pub boundaries: Vec<Vec<u8>>,
    /// Random numbers for a new store: its id, and the salt of its checksums.
    pub seeds: [u64; 2],
    /// Who does the background work.
    pub workers: Workers,
    /// Where the log is. An existing store has to be opened with the placement that it was made with.
    pub log_placement: LogPlacement,
    /// A second copy on another file system, where there is to be one.
    pub copy: Option<CopyOptions>,
    /// Where the window is kept so that it outlives the process; a log in a region needs none.
    pub surviving: Option<Arc<dyn SurvivingPlace>>,
}

impl LogStoreOptions {
    /// Ordinary sizes: 192 MiB of memory, a log of 64 MiB, 64 MiB of ballast.
    #[must_use]
    pub fn new(mode: OpenMode) -> Self {
        Self {
            mode,
            memory_bytes: 192 * MEBIBYTE,
            log_bytes: 64 * MEBIBYTE,
            window_bytes: 4 * MEBIBYTE,
            ballast_bytes: 64 * MEBIBYTE,
            table_bytes_max: 32 * MEBIBYTE,
            boundaries: Vec::new(),
            seeds: [0, 0],
            workers: Workers::Threads,
            log_placement: LogPlacement::Block,
            copy: None,
            surviving: None,
        }
    }

    /// Memory of one memtable: a ninth. While a sealed one is written, the active one may grow by half beyond it; the
    /// cache, which holds filters and indexes too, has a fifth, and the writing and merging of tables has the rest.
    fn memtable_bytes_max(&self) -> u64 {
        (self.memory_bytes / 9).max(64 * 1024)
    }

    pub(crate) fn tables(&self) -> TablesOptions {
        TablesOptions {
            boundaries: self.boundaries.clone(),
            cache_bytes: self.memory_bytes / 5,
            table_bytes_max: self.table_bytes_max,
        }
    }
}

impl LogStore {
    /// Opens or makes the store in the directory `path`. One process at a time can have it open.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where the mode does not fit the content of `path`, or where another process has it open; nothing was
    /// changed then. [`StoreError::Io`] or [`StoreError::Corrupted`] where it cannot be read.
    pub fn open(path: &Path, options: &LogStoreOptions) -> Result<Self, StoreError> {
        let log_path = path.join(options.log_placement.log_file());
        if options.mode == OpenMode::CreateNew {
            options.log_placement.check()?;
            make_directory(path)?;
            create(path, options)?;
        } else {
            options.log_placement.check_existing(path)?;
        }
        let medium = BlockFile::open(&log_path).map_err(|error| failed(&log_path, &error))?;
        medium.lock().map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                StoreError::Open(format!("the metadata store in {} is in use by another process", path.display()))
            }
            _ => failed(&log_path, &error),
        })?;
        let region = options.log_placement.open()?;
        Self::open_on(path, options, Arc::new(medium), region)
    }

    /// As [`LogStore::open`] of an existing store, with its log on `medium`.
    ///
    /// # Errors
    ///
    /// As [`LogStore::open`].
    pub fn open_with(path: &Path, options: &LogStoreOptions, medium: Arc<dyn LogMedium>) -> Result<Self, StoreError> {
        Self::open_on(path, options, medium, None)
    }

    fn open_on(
        path: &Path,
        options: &LogStoreOptions,
        medium: Arc<dyn LogMedium>,
        region: Option<Arc<dyn LogRegion>>,
    ) -> Result<Self, StoreError> {
        let header = Log::read_header(&*medium)?;
        let region = region.map(|region| RegionLog::open(region, &header)).transpose()?;
        let tables = Tables::open(path, &options.tables())?;
        // A creator that was killed may have named the log or a tree without syncing that name.
        sync_directory(path)?;
        let memtable = Memtable::new(header.checkpoint);
        let (end, replayed_entries) = replay(&*medium, region.as_ref(), header, &memtable)?;
        if let Some(copy) = &options.copy {
            refuse_copy_ahead(&copy.path, header.store, end)?;
        }
        let mut counted = WindowReport { survived_entries: 0, place: WindowPlace::Plain("not asked for".to_owned()) };
        let (log, survivors) = match region {
            Some(region) => {
                counted.place = WindowPlace::Region;
                let survivors = Survived::beside_region(path, options, &header);
                (Log::resume_in_region(medium, region, header, end)?, survivors)
            }
            None => {
                let (window, end) = take_up(path, options, &*medium, header, end, &memtable, &mut counted)?;
                let survivors = Survived::beside_window(path, options, &header, &window);
                (Log::resume(medium, header, end, window.memory)?, survivors)
            }
        };
        if let (Some(reason), WindowPlace::Surviving(place)) = (survivors.refusal(), &mut counted.place) {
            place.push_str("; but not what is written to small open files: ");
            place.push_str(reason);
        }
        let copy = options.copy.clone().map(|copy| SecondCopy::attach(copy, &log, &tables));
        let inner = Arc::new(Inner {
            path: path.to_owned(),
            levels: RwLock::new(Levels { active: Arc::new(memtable), sealed: None }),
            tables,
            ballast: Ballast::open(&path.join(BALLAST_FILE), options.ballast_bytes)?,
            maintenance: Mutex::new(()),
            memtable_bytes_max: options.memtable_bytes_max(),
            // The ring has space for two memtables and the changes that come while one is written.
            log_span_max: log.ring_length() / 3,
            signals: Signals::default(),
            replayed_entries: replayed_entries + counted.survived_entries,
            window: counted,
            stalled_commits: AtomicU64::new(0),
            copy,
            log,
            survived: survivors,
        });
        let background = match options.workers {
            Workers::Threads => Some(Background::start(&inner)?),
            Workers::Manual => None,
        };
        let copying = match options.workers {
            Workers::Threads if inner.second_copy().is_some() => Some(CopyThread::start(&inner)?),
            _ => None,
        };
        Ok(Self { inner, background, copying })
    }
}

/// Puts the complete prefix of the log into a memtable. Returns its end and the number of its entries.
fn replay(
    medium: &dyn LogMedium,
    region: Option<&RegionLog>,
    header: LogHeader,
    memtable: &Memtable,
) -> Result<(u64, u64), StoreError> {
    let mut replay = Replay::with_region(medium, region, header);
    let mut entries = 0;
    while let Some(entry) = replay.next()? {
        apply(memtable, &entry)?;
        entries += 1;
    }
    replay.refuse_damage()?;
    Ok((replay.position(), entries))
}

fn apply(memtable: &Memtable, entry: &Replayed<'_>) -> Result<(), StoreError> {
    let batch = Batch::from_bytes(entry.payload.to_vec()).ok_or_else(|| {
        StoreError::Corrupted(format!("the log entry at {} has a valid checksum and is no batch", entry.position))
    })?;
    memtable.apply(&batch, sequence_of(entry.end).get());
    Ok(())
}

/// Memory for the window of an opening.
pub(super) struct FoundWindow {
    pub(super) memory: WindowMemory,
    /// Whether the entries that the last process left in it are in the log.
    pub(super) was_taken_up: bool,
}

/// Finds memory for the window, and puts the entries that the last process left in it into the memtable and behind the end of the ring.
/// Returns the memory and the new end.
fn take_up(
    path: &Path,
    options: &LogStoreOptions,
    medium: &dyn LogMedium,
    header: LogHeader,
    end: u64,
    memtable: &Memtable,
    report: &mut WindowReport,
) -> Result<(FoundWindow, u64), StoreError> {
    let length = options.window_bytes.min(header.ring_length);
    let plain = FoundWindow { memory: WindowMemory::Plain { length }, was_taken_up: false };
    let surviving = |window, was_taken_up| FoundWindow { memory: WindowMemory::Surviving(window), was_taken_up };
    let Some(place) = &options.surviving else { return Ok((plain, end)) };
    let window = match SurvivingWindow::open(&**place, &header, length) {
        Ok(window) => window,
        Err(reason) => {
            log::warn!("{}: what is not flushed is lost when the daemon dies: {reason}", path.display());
            report.place = WindowPlace::Plain(reason);
            return Ok((plain, end));
        }
    };
    report.place = WindowPlace::Surviving(window.description());
    let survivors = match window.survivors(&header) {
        Ok(survivors) => survivors,
        Err(reason) => {
            log::debug!("{}: nothing is taken from {}: {reason}", path.display(), window.description());
            return Ok((surviving(window, false), end));
        }
    };
    if let Some(damage) = survivors.lost_writes(end) {
        return Err(StoreError::Corrupted(format!(
            "{damage}. Where the tier of the second copy is away, bring it back and start from the copy with `polymux mount \
             --from-copy`. To go on with what is left: remove {} and mount again",
            window.description()
        )));
    }
    let taken = survivors.take_up(end, |entry| apply(memtable, &entry))?;
    taken.write(medium, &header)?;
    report.survived_entries = taken.entries();
    if taken.entries() > 0 {
        log::info!("{}: {} transactions outlived the last process in memory", path.display(), taken.entries());
    }
    Ok((surviving(window, true), taken.end()))
}

fn create(path: &Path, options: &LogStoreOptions) -> Result<(), StoreError> {
    drop(Tables::open(path, &options.tables())?);
    drop(Ballast::open(&path.join(BALLAST_FILE), options.ballast_bytes)?);
    let log_path = path.join(options.log_placement.log_file());
    let made = log_path.with_extension("new");
    let ring_length = options.log_bytes.max(MEBIBYTE).max(options.log_placement.ring_length_min());
    let ring_length = if ring_length.is_power_of_two() { ring_length } else { ring_length.next_power_of_two() / 2 };
    let medium = BlockFile::create(&made, HEADER_LENGTH + ring_length).map_err(|error| failed(&made, &error))?;
    Log::format(&medium, options.seeds[0], options.seeds[1])?;
    drop(medium);
    options.log_placement.create(path, options.seeds)?;
    fs::rename(&made, &log_path).map_err(|error| failed(&log_path, &error))?;
    sync_directory(path)
}

fn make_directory(path: &Path) -> Result<(), StoreError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            if fs::read_dir(path).map_err(|error| failed(path, &error))?.next().is_some() {
                return Err(StoreError::Open(format!("{} holds a metadata store already", path.display())));
            }
        }
        Err(error) => return Err(failed(path, &error)),
    }
    // Also where the directory existed: the process that made it may have been killed before its name was durable.
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_directory)
}

pub(super) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    fs::File::open(path).and_then(|directory| directory.sync_all()).map_err(|error| failed(path, &error))
}

pub(super) fn failed(path: &Path, error: &std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::of_write(&path.display().to_string(), error),
    }
}
