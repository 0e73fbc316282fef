//! The metadata store that the measured volumes stand on: the one place that names it, and the command that measures it
//! without a file system above it.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use polymux_meta::{LogCounters, LogPlacement, LogStore, LogStoreOptions, MetadataStore, OpenMode};

use crate::report::Report;
use crate::scratch::Scratch;
use crate::store_workload::{self, Candidate, WorkloadOptions};
use crate::{device, machine};

/// Bytes of memory that a store is given, where a command does not say otherwise.
pub const MEMORY_BYTES: u64 = 192 * 1024 * 1024;

/// An open store, and the counters of its log where it has them.
#[derive(Clone)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn MetadataStore>,
    log: Option<Arc<LogStore>>,
}

impl OpenStore {
    /// A store that does not count the work of its log.
    #[must_use]
    pub fn without_counters(store: Arc<dyn MetadataStore>) -> Self {
        Self { store, log: None }
    }

    /// Counters of the log so far.
    #[must_use]
    pub fn log_counters(&self) -> Option<LogCounters> {
        self.log.as_ref().map(|store| store.report().log)
    }
}

/// Makes a new store in a directory that does not exist.
///
/// # Errors
/// Where it cannot be made.
pub fn make(path: &Path, memory_bytes: u64) -> Result<OpenStore> {
    open_in_mode(path, memory_bytes, &LogPlacement::Block, OpenMode::CreateNew)
}

/// As [`make`], with the log where `placement` says.
///
/// # Errors
/// As [`make`].
pub fn make_with_log(path: &Path, memory_bytes: u64, placement: &LogPlacement) -> Result<OpenStore> {
    open_in_mode(path, memory_bytes, placement, OpenMode::CreateNew)
}

/// Opens a store that exists.
///
/// # Errors
/// Where it cannot be opened.
pub fn open(path: &Path, memory_bytes: u64) -> Result<OpenStore> {
    open_in_mode(path, memory_bytes, &LogPlacement::Block, OpenMode::Existing)
}

/// As [`open`], with the log where `placement` says.
///
/// # Errors
/// As [`open`].
pub fn open_with_log(path: &Path, memory_bytes: u64, placement: &LogPlacement) -> Result<OpenStore> {
    open_in_mode(path, memory_bytes, placement, OpenMode::Existing)
}

fn open_in_mode(path: &Path, memory_bytes: u64, placement: &LogPlacement, mode: OpenMode) -> Result<OpenStore> {
    let mut options = LogStoreOptions::new(mode);
    options.log_placement = placement.clone();
    options.memory_bytes = memory_bytes;
    options.boundaries = polymux_fs::store_boundaries();
    options.seeds = [u64::from_le_bytes(random_bytes()?), u64::from_le_bytes(random_bytes()?)];
    let store = Arc::new(LogStore::open(path, &options)?);
    Ok(OpenStore { store: Arc::clone(&store) as Arc<dyn MetadataStore>, log: Some(store) })
}

/// Bytes from the kernel's random source.
///
/// # Errors
/// Where it cannot be read.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Choices of `polymux-bench store`.
#[derive(Args, Clone, Debug)]
pub struct StoreArguments {
    /// Where to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// How much to do.
    #[command(flatten)]
    pub workload: WorkloadOptions,
}

/// Measures the store alone.
///
/// # Errors
/// Whatever the store reports.
pub fn run(arguments: &StoreArguments) -> Result<()> {
    let scratch = Scratch::new(&arguments.place.directory)?;
    let mut report = Report::new("store", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let candidates = [Candidate { name: "store", make: &|path| make(path, MEMORY_BYTES) }];
    let device = device::Device::of(scratch.path())?;
    for section in store_workload::measure(&candidates, &scratch, device.as_ref(), &arguments.workload)? {
        report.add(section);
    }
    report.finish()
}
