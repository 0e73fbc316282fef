//! An open file system with its background threads and its lock.
//!
//! Invariants:
//! * The lock of the volume is held for as long as the file system is open, and released after everything else has ended.
//! * A process that did not open the file system (the child of a fork) neither uses nor ends it: it has none of the threads, and its
//!   parent goes on writing to the tiers.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use polymux_config::config::VolumeConfig;
use polymux_config::lock::{UseOfVolume, VolumeLock};
use polymux_config::metadata_copy::Metadata;
use polymux_config::opening;
use polymux_config::registry::Registry;
use polymux_config::request::OpenRequest;
use polymux_config::steering_config;
use polymux_config::tiers::AskedBy;
use polymux_fs::{BackgroundThreads, Caller, FileSystem, KernelConnection, Result};
use polymux_tier::forks;
use polymux_types::{Errno, StreamId, thread_token};

/// Streams of the metadata log over which the threads of the program are distributed.
const STREAMS: u64 = 16;

/// How long the end of a volume waits for threads that have a reference to its file system for a moment.
const PATIENCE_WITH_THREADS: Duration = Duration::from_secs(5);

/// An open file system.
pub struct Opened {
    /// `None` once it has ended.
    parts: Option<Parts>,
    /// The user of the program once for each stream.
    callers: Vec<Caller>,
    /// Forks before it was opened.
    forks: u64,
    pub(crate) name: String,
    pub(crate) warnings: Vec<String>,
}

/// Dropped in this order; the lock goes last.
struct Parts {
    background: BackgroundThreads,
    file_system: Arc<FileSystem>,
    metadata: Metadata,
    lock: VolumeLock,
}

impl Opened {
    /// Takes the lock of a volume, opens its file system and starts its threads.
    pub fn open(
        registry: &Registry,
        config: VolumeConfig,
        request: &OpenRequest,
        movers: Option<u16>,
        identity: Caller,
    ) -> anyhow::Result<Self> {
        forks::count_forks().context("forks of this program cannot be noticed")?;
        registry.make_runtime_directory()?;
        let lock = VolumeLock::take(&registry.lock_path(&config.name), &config.name, UseOfVolume::InProgram)?;
        let opened = Self::open_locked(&config, request, movers).inspect_err(|_| lock.note_end());
        let (background, file_system, metadata, warnings) = opened?;
        file_system.allow_rest();
        let caller = |stream| Caller { stream: StreamId(stream), ..identity.clone() };
        Ok(Self {
            parts: Some(Parts { background, file_system, metadata, lock }),
            callers: (0..STREAMS).map(caller).collect(),
            forks: forks::forks(),
            name: config.name,
            warnings,
        })
    }

    /// Opens the file system of a volume whose lock is held, and starts its threads.
    fn open_locked(
        config: &VolumeConfig,
        request: &OpenRequest,
        movers: Option<u16>,
    ) -> anyhow::Result<(BackgroundThreads, Arc<FileSystem>, Metadata, Vec<String>)> {
        let opened = opening::open(config, request, KernelConnection::New, AskedBy::Thread)?;
        let mut warnings = opened.warnings;
        warnings.extend(config.steering.warnings());
        let file_system = Arc::new(opened.file_system);
        let movers = movers.unwrap_or_else(|| config.movers());
        let background = steering_config::apply(config, &file_system)
            .and_then(|()| Ok(BackgroundThreads::start(&file_system, movers)?))
            .inspect_err(|_| {
                if let Err(error) = file_system.unmount() {
                    log::error!("volume `{}`: {error}", config.name);
                }
            })?;
        Ok((background, file_system, opened.metadata, warnings))
    }

    /// The file system, for a call: a volume that rests wakes. Asked before any lock is taken, because locks that another thread had at a fork
    /// are never released in the child.
    ///
    /// # Errors
    /// `ENOTCONN` in a child of the process that opened it.
    pub fn file_system(&self) -> Result<&FileSystem> {
        let parts = self.parts.as_ref().filter(|_| self.is_of_this_process()).ok_or(Errno::ENOTCONN)?;
        parts.file_system.note_use();
        Ok(&parts.file_system)
    }

    fn is_of_this_process(&self) -> bool {
        forks::forks() == self.forks
    }

    /// The user of the program, with the stream of the calling thread.
    pub fn caller(&self) -> &Caller {
        // A multiplicative hash: addresses that name threads differ in their middle bits.
        let mixed = (thread_token() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.callers[usize::try_from(mixed % STREAMS).expect("it is below the number of streams")]
    }

    /// Writes everything back and releases the volume. A second call does nothing.
    ///
    /// # Errors
    /// Something could not be written; it is as after a crash, and the volume is released all the same.
    pub fn end(&mut self) -> Result<()> {
        let Some(parts) = self.parts.take() else { return Ok(()) };
        if !self.is_of_this_process() {
            // Not even dropped: that would wait for threads which this process does not have.
            std::mem::forget(parts);
            return Ok(());
        }
        // Before the end of the file system: the running batches of the movers are completed.
        if let Err(error) = parts.background.stop() {
            log::error!("volume `{}`: {error}", self.name);
        }
        let ended = parts.file_system.unmount();
        if let Some(store) = parts.metadata.writable() {
            store.finish_copy();
            if ended.is_ok() {
                store.discard_surviving();
            }
        }
        match &ended {
            Ok(()) => parts.lock.note_end(),
            Err(error) => parts.lock.note_unclean(&error.to_string()),
        }
        let Parts { background, file_system, metadata, lock } = parts;
        drop(background);
        drop_alone(file_system);
        drop(metadata);
        // By hand: a child of this process may have the file open.
        lock.release();
        ended
    }
}

/// Drops a file system once no thread of it has a reference any more, so that its tiers are free when this returns.
fn drop_alone(mut file_system: Arc<FileSystem>) {
    let began = Instant::now();
    // The thread that watches the tiers looks now and then, for a moment.
    while let Err(shared) = Arc::try_unwrap(file_system) {
        if began.elapsed() > PATIENCE_WITH_THREADS {
            log::warn!("a thread of the volume is stuck in a tier, which is in use until it comes back");
            return;
        }
        file_system = shared;
        thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::error!("volume `{}` did not end cleanly: {error}", self.name);
        }
    }
}
