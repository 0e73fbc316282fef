//! The table of inodes in memory.
//!
//! What is true here:
//! * There is at most one `Inode` of a number in memory while anybody refers to it.
//! * One that is pinned, open, or has times that are not in its record stays.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use polymux_types::Ino;

use super::Inode;
use crate::error::Result;

/// Who refers to an inode, and whether it is being deleted.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// References by number (FUSE lookup counts).
    pub(crate) pins: u64,
    /// Open descriptions.
    pub(crate) handles: u64,
    /// Deleted for good: its record is gone or going in the present transaction.
    pub(crate) gone: bool,
}

impl Lifecycle {
    pub(crate) fn in_use(&self) -> bool {
        self.pins > 0 || self.handles > 0
    }
}

const SHARDS: usize = 64;

#[derive(Debug, Default)]
struct Shard {
    inodes: HashMap<Ino, Arc<Inode>>,
    /// Size at which the next sweep is due.
    sweep_at: usize,
}

/// All inodes in memory.
#[derive(Debug)]
pub(crate) struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
    idle_per_shard_max: usize,
}

impl InodeTable {
    /// A table that keeps about `idle_max` inodes that nobody refers to.
    pub(crate) fn new(idle_max: usize) -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), idle_per_shard_max: (idle_max / SHARDS).max(1) }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        // Neighbouring numbers are made together; spread them.
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize]
    }

    /// The inode of a number, loaded by `load` where it is not in memory.
    pub(crate) fn get_or_load(
        &self,
        ino: Ino,
        load: impl FnOnce() -> Result<Option<Inode>>,
    ) -> Result<Option<Arc<Inode>>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            return Ok(Some(inode.clone()));
        }
        // Loading happens under the lock: a second copy loaded meanwhile would be a second truth.
        let Some(inode) = load()? else { return Ok(None) };
        let inode = Arc::new(inode);
        self.insert_into(&mut shard, inode.clone());
        Ok(Some(inode))
    }

    /// The inode of a number where it is in memory.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino).cloned()
    }

    /// Adds an inode that was just made.
    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        let ino = inode.ino;
        assert!(!shard.inodes.contains_key(&ino), "inode numbers are never reused");
        self.insert_into(&mut shard, inode);
    }

    fn insert_into(&self, shard: &mut Shard, inode: Arc<Inode>) {
        shard.inodes.insert(inode.ino, inode);
        if shard.inodes.len() > shard.sweep_at.max(self.idle_per_shard_max) {
            shard.inodes.retain(|_, inode| Arc::strong_count(inode) > 1 || must_stay(inode));
            shard.sweep_at = shard.inodes.len() + self.idle_per_shard_max / 2 + 1;
        }
    }

    /// Drops an inode that was deleted for good.
    pub(crate) fn remove(&self, ino: Ino) {
        self.shard(ino).lock().inodes.remove(&ino);
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().inodes.len()).sum()
    }

    /// All inodes in memory, for flushing and reports.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|shard| shard.lock().inodes.values().cloned().collect::<Vec<_>>()).collect()
    }
}

fn must_stay(inode: &Inode) -> bool {
    // Unsynced bytes are the tier's to remember: it keeps the mark, and a failure, until a sync of the object is asked for.
    inode.times_dirty.load(Ordering::Acquire) || inode.lifecycle.lock().in_use()
}
