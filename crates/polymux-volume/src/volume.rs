//! What every part of a mounted volume stands on: its metadata, its tiers and its inodes, and the transactions over them.
//!
//! Invariants:
//! * An inode record changes only inside [`Volume::transact`], which holds the record locks of all inodes concerned.
//! * Nothing here knows of data, placement or movers: those own a [`Volume`] by reference and are called by nothing in it.

mod damage;
mod epochs;
mod metadata_space;
mod paths;
mod pending_frees;
mod second_copy;
mod size_recovery;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polymux_meta::Sequence;
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::parts::{Access, MountOptions};
use polymux_records::store::{EntryCount, InodeBody, Metadata};
use polymux_types::sync::Mutex;
use polymux_types::{Bucket, Clock, Errno, Ino, Timestamp, VolumeId, limits};
use smallvec::SmallVec;

use crate::inode::{Inode, InodeTable, SizeTrust};
use crate::space::{DisownedQueue, TierSet};
use crate::transaction::Transaction;

pub(crate) use damage::KnownDamage;
pub(crate) use epochs::Epochs;
pub(crate) use size_recovery::SizeRecovery;

/// Unreferenced inodes that stay in memory.
const IDLE_INODES_MAX: usize = 65_536;

/// One mounted volume below its data path.
pub struct Volume {
    /// Identity of the volume.
    pub id: VolumeId,
    /// Its name, for messages.
    pub name: String,
    /// How it was mounted.
    pub options: MountOptions,
    /// Time of day, and time since mounting.
    pub clock: Arc<dyn Clock>,
    /// When this mount began.
    pub(crate) mounted_at: Timestamp,
    /// The records.
    pub metadata: Metadata,
    /// The tiers in their order of speed.
    pub tiers: TierSet,
    /// Inodes in memory.
    pub inodes: InodeTable,
    /// Pending frees.
    pub disowned: DisownedQueue,
    /// Counters of all operations.
    pub counters: Counters,
    /// The epoch, and locks for changes of the set of tiers.
    pub epochs: Epochs,
    /// Which sizes are known after an unclean stop.
    pub size_recovery: SizeRecovery,
    /// Files with damaged ranges.
    pub damaged_files: Mutex<KnownDamage>,
    /// The actions of recovery, for `status`.
    pub recovery_notes: Mutex<VecDeque<String>>,
    /// It was unmounted: nothing works in the background any more.
    pub unmounted: AtomicBool,
}

impl Volume {
    /// A volume whose records and tiers were checked.
    pub fn new(
        id: VolumeId,
        name: String,
        options: MountOptions,
        clock: Arc<dyn Clock>,
        metadata: Metadata,
        tiers: TierSet,
    ) -> Self {
        tiers.all().iter().for_each(|tier| tier.set_deferral_max(options.deferral_ms_max));
        Self {
            id,
            name,
            options,
            mounted_at: clock.now(),
            clock,
            metadata,
            tiers,
            inodes: InodeTable::new(IDLE_INODES_MAX),
            disowned: DisownedQueue::default(),
            counters: Counters::default(),
            epochs: Epochs::default(),
            size_recovery: SizeRecovery::default(),
            damaged_files: Mutex::default(),
            recovery_notes: Mutex::default(),
            unmounted: AtomicBool::new(false),
        }
    }

    /// Time of day.
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Milliseconds on the volume's clock.
    #[inline]
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether it was mounted for reading only.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.options.access == Access::ReadOnly
    }

    /// Fails on a read-only mount, and where the metadata store stopped: a change would never be recorded.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(Errno::EROFS.into());
        }
        self.metadata.stopped().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The inode of a number; ENOENT where there is none (a stale reference).
    pub fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let found = self.inodes.get_or_load(ino, || self.load_inode(ino))?;
        match found {
            Some(inode) if !inode.lifecycle.lock().gone => Ok(inode),
            _ => Err(Errno::ENOENT.into()),
        }
    }

    fn load_inode(&self, ino: Ino) -> Result<Option<Inode>> {
        // Read before the record, so that the sequence certainly covers the record's last change.
        let Some(mut record) = self.metadata.inode(ino)? else { return Ok(None) };
        let was_open = matches!(record.body, InodeBody::Directory { entries: EntryCount::Open, .. });
        if was_open {
            // A crash lost the times of the last changes. They were before this mount, so that with its time a comparison of times
            // does not take the directory for unchanged.
            record.modified = record.modified.max(self.mounted_at);
            record.changed = record.changed.max(self.mounted_at);
        }
        let extents = match &record.body {
            InodeBody::Regular(file) if file.objects.len() > 1 => self.metadata.extents(ino)?,
            _ => Vec::new(),
        };
        let sequence = self.metadata.committed();
        let trust = match self.size_recovery.after_unclean_stop.load(Ordering::Acquire) {
            true => SizeTrust::Doubtful,
            false => SizeTrust::Settled,
        };
        let inode = Inode::from_record(ino, record, &extents, sequence, trust)?;
        inode.times_dirty.store(was_open && !self.is_read_only(), Ordering::Release);
        Ok(Some(inode))
    }

    /// Runs `body` with the record locks of all `inodes` held and commits its changes as one transaction.
    ///
    /// `body` checks first and changes memory last: where it fails, nothing may have been changed.
    pub fn transact<T>(&self, inodes: &[&Inode], body: impl FnOnce(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_or_undo(inodes, body, || {})
    }

    /// Like [`Self::transact`]; where the store refuses the transaction, `undo` reverts in memory the changes of `body`, before another
    /// thread may change the records of these inodes.
    pub fn transact_or_undo<T>(
        &self,
        inodes: &[&Inode],
        body: impl FnOnce(&mut Transaction) -> Result<T>,
        undo: impl FnOnce(),
    ) -> Result<T> {
        // No operation concerns more than five inodes. A rename has two directories, the moved inode, the replaced one, and a whiteout.
        let mut ordered: SmallVec<[&Inode; 5]> = inodes.iter().copied().collect();
        ordered.sort_unstable_by_key(|inode| inode.ino);
        ordered.dedup_by_key(|inode| inode.ino);
        let _locks: SmallVec<[_; 5]> = ordered.iter().map(|inode| inode.record_lock.lock()).collect();
        let mut transaction = Transaction::default();
        let result = body(&mut transaction)?;
        let committed = self.metadata.commit(transaction.batch);
        let sequence = committed.inspect_err(|_| {
            undo();
            for inode in &ordered {
                // An open record that was not committed opens nothing.
                inode.is_record_open.store(false, Ordering::Release);
                inode.note_uncommitted();
            }
        })?;
        for inode in ordered {
            inode.note_sequence(sequence);
            if let (Some(notes), Some(file)) = (self.metadata.notes(), inode.file()) {
                file.inline.forget_logged_note(notes);
            }
        }
        Ok(result)
    }

    /// Makes every transaction so far that concerns an inode durable.
    #[inline]
    pub fn flush_inode(&self, inode: &Inode) -> Result<()> {
        self.flush_through(inode.last_sequence())
    }

    /// Makes transactions up to one durable.
    #[inline]
    pub fn flush_through(&self, sequence: Sequence) -> Result<()> {
        if self.metadata.durable() >= sequence {
            return Ok(());
        }
        Counters::count(&self.counters.log_flushes);
        self.metadata.sync(sequence)
    }

    /// The bucket of objects whose first name lies in a directory, so that its files stay close on disk.
    pub fn bucket_for_parent(parent: Ino) -> Bucket {
        let spread = parent.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let bucket = spread % u64::from(limits::BUCKETS);
        Bucket(u16::try_from(bucket).expect("a remainder below the number of buckets fits"))
    }

    /// The error for a caller that must not block; counts it.
    pub fn would_block(&self) -> Error {
        Counters::count(&self.counters.would_block);
        ErrorKind::WouldBlock.into()
    }

    /// Keeps a sentence for `status` and logs it.
    pub fn note_recovery(&self, note: String) {
        const NOTES_MAX: usize = 100;
        log::warn!("volume {}: {note}", self.name);
        let mut notes = self.recovery_notes.lock();
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(note);
    }

    /// Counts a reference by number.
    pub fn pin(&self, ino: Ino) {
        if let Ok(inode) = self.inode(ino) {
            inode.lifecycle.lock().pins += 1;
        }
    }

    /// Counts one reference by number to each inode without a name; returns these inodes.
    pub fn pin_orphans(&self) -> Result<Vec<Ino>> {
        let orphans = self.metadata.orphans()?;
        orphans.iter().for_each(|ino| self.pin(*ino));
        Ok(orphans)
    }

    /// An error that says a record contradicts another one.
    pub fn contradiction(inode: &Inode, detail: &str) -> Error {
        Error::corrupted(format!("inode {}", inode.ino), detail)
    }

    /// Runs a transaction of one inode and adds its record, whatever its type.
    pub fn put_with_state(&self, inode: &Inode, body: impl FnOnce(&mut Transaction) -> Result<()>) -> Result<()> {
        let state = inode.directory().map(|directory| directory.read());
        self.transact(&[inode], |transaction| {
            body(transaction)?;
            if inode.lifecycle.lock().gone {
                // Its record was deleted meanwhile, and must not rise again.
                return Ok(());
            }
            match &state {
                Some(state) => transaction.put_directory(inode, state),
                None => transaction.put_inode(inode),
            }
            Ok(())
        })
    }
}
