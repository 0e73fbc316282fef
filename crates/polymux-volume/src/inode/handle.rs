//! Open descriptions. A handle is never reused within one mount.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use polymux_records::attributes::HandleId;
use polymux_records::attributes::OpenOptions;
use polymux_records::error::Result;
use polymux_records::passthrough::IoMode;
use polymux_types::sync::RwLock;
use polymux_types::{Errno, Ino};

use super::Inode;
use super::memory_reads::MemoryReadState;
use super::new_file_sizes::Creation;
use super::number_hash::NumberMap;

/// One open description of a regular file.
#[derive(Debug)]
pub struct Handle {
    /// The file.
    pub inode: Arc<Inode>,
    /// How it was opened.
    pub options: OpenOptions,
    /// The error sequence that this description has reported (DESIGN section 6).
    pub error_seen: AtomicU32,
    /// How it does its I/O, once that was decided for the kernel.
    pub io_mode: OnceLock<IoMode>,
    /// The kernel was never notified of it, nor of the state of the pages that it has.
    pub is_untold: AtomicBool,
    /// Of the description that made the file: its kind and creator, by which its size is guessed.
    pub creation: Option<Creation>,
    /// Its reads that memory answers; a description of a kernel has none.
    pub memory_reads: OnceLock<Box<MemoryReadState>>,
    /// A program reads the file by a lease that it got for this description.
    pub has_leases: AtomicBool,
    /// When its program last asked for a lease that it can use while the file changes, in milliseconds since mounting, and 1; 0 where it never did.
    pub asked_for_lease_ms: AtomicU64,
    /// Leases that calls of it ended, before its program asked for one.
    pub leases_ended: AtomicU32,
    /// It is gone, as the lock of the open descriptions of its file has it.
    pub has_ended: AtomicBool,
}

impl Handle {
    /// A number that stands for the description while it exists.
    pub fn number(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }
}

const SHARDS: usize = 64;

/// Locks of neighbouring shards are not on the same cache lines: descriptions made one after the other lie in them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<NumberMap<u64, Arc<Handle>>>);

/// All open descriptions.
#[derive(Debug)]
pub struct HandleTable {
    next: AtomicU64,
    shards: Box<[Shard]>,
}

impl Default for HandleTable {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl HandleTable {
    #[inline]
    fn shard(&self, id: u64) -> &RwLock<NumberMap<u64, Arc<Handle>>> {
        let place = usize::try_from(id % SHARDS as u64).expect("a remainder below the number of shards fits");
        &self.shards[place].0
    }

    /// Numbers from here on are given to descriptions; no lower one was.
    pub fn begin_at(&self, first: u64) {
        self.next.fetch_max(first, Ordering::Relaxed);
    }

    /// Adds a description; returns its number.
    pub fn insert(&self, handle: Handle) -> HandleId {
        let id = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.insert_as(id, handle);
        id
    }

    /// Puts a description under a number that this table did not give to it.
    pub fn insert_as(&self, id: HandleId, handle: Handle) {
        let before = self.shard(id.0).write().insert(id.0, Arc::new(handle));
        assert!(before.is_none(), "a number stands for one description");
    }

    /// A description; EBADF where there is none of this number.
    #[inline]
    pub fn get(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.shard(id.0).read().get(&id.0).cloned().ok_or_else(|| Errno::EBADF.into())
    }

    /// Takes a description out; EBADF where there is none of this number.
    pub fn remove(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.shard(id.0).write().remove(&id.0).ok_or_else(|| Errno::EBADF.into())
    }

    /// Number of open descriptions.
    pub fn open_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().len()).sum()
    }

    /// Number of descriptions that are passed through.
    pub fn passed_through(&self) -> usize {
        let is_passed = |handle: &&Arc<Handle>| handle.io_mode.get().is_some_and(|mode| mode.is_passed_through());
        self.shards.iter().map(|shard| shard.0.read().values().filter(is_passed).count()).sum()
    }

    /// The inodes that some description may change.
    pub fn files_open_for_changes(&self) -> Vec<Ino> {
        let inos = |shard: &Shard| {
            let shard = shard.0.read();
            shard.values().filter(|handle| handle.options.write).map(|handle| handle.inode.ino).collect::<Vec<_>>()
        };
        let mut all: Vec<Ino> = self.shards.iter().flat_map(inos).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether the kernel keeps pages for a description that may change a file.
    pub fn has_cached_writer(&self, ino: Ino) -> bool {
        let is_one = |handle: &Arc<Handle>| {
            handle.inode.ino == ino && handle.options.write && handle.io_mode.get() == Some(&IoMode::Cached)
        };
        self.shards.iter().any(|shard| shard.0.read().values().any(is_one))
    }

    /// The numbers of all open descriptions.
    pub fn ids(&self) -> Vec<HandleId> {
        self.shards.iter().flat_map(|shard| shard.0.read().keys().map(|id| HandleId(*id)).collect::<Vec<_>>()).collect()
    }
}
