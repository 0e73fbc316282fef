//! State shared by all modules: the tiers, the metadata, the tables of inodes and descriptions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_meta::{Batch, Sequence};
use polymux_types::sync::{Mutex, RwLock};
use polymux_types::{Bucket, Clock, Errno, Ino, Timestamp, VolumeId, limits};
use smallvec::SmallVec;

use crate::blockmap::{Extent, MapChange};
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::heat::{GrownFiles, HeatOptions, HeatTable, LogicalClock, ReadUses, StreamTable};
use crate::inode::{
    ActiveStreams, DirectoryState, HandleTable, InlineChange, Inode, InodeTable, LateStamps, Layout, RewrittenFiles,
    SizeTrust, StampWalks,
};
use crate::migrate::{CacheLooks, Drains, LayoutQueue, MoveQueue, Planner};
use crate::placement::{Steering, ThreadMaps};
use crate::sched::{Gate, Windows, WriteBudget};
use crate::space::{DisownedQueue, SyncPool, TierSet, WriteBehind};
use crate::store::{DisownedKind, DisownedRecord, EntryCount, ExtentRecord, InodeBody, InodeRecord, Metadata, keys};
use crate::volume::{Access, MountOptions};

/// Unreferenced inodes that stay in memory.
const IDLE_INODES_MAX: usize = 65_536;

/// Memory that tells streams from single accesses.
const STREAM_MEMORY_BYTES: usize = 256 * 1024;

fn heat_options(options: &MountOptions) -> HeatOptions {
    HeatOptions {
        memory_bytes: usize::try_from(options.heat_memory_bytes).unwrap_or(usize::MAX),
        half_life_seconds: options.heat_half_life_seconds.max(1),
    }
}

/// When background work is done next, in milliseconds since mounting.
#[derive(Debug, Default)]
pub(crate) struct DueTimes {
    /// The sizes of spread files are put on record.
    pub(crate) settle_ms: AtomicU64,
    /// The space taken by files is refreshed.
    pub(crate) allocations_ms: AtomicU64,
    /// The measured speeds of tiers are examined.
    pub(crate) profiles_ms: AtomicU64,
}

/// The file system below its public face.
pub(crate) struct Core {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    pub(crate) options: MountOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metadata: Metadata,
    pub(crate) tiers: TierSet,
    pub(crate) inodes: InodeTable,
    pub(crate) handles: HandleTable,
    pub(crate) disowned: DisownedQueue,
    /// Files that were emptied, rewritten and closed, and are not durable yet.
    pub(crate) rewritten: RewrittenFiles,
    pub(crate) counters: Counters,
    pub(crate) moves: MoveQueue,
    pub(crate) drains: Drains,
    pub(crate) planner: Planner,
    /// Looks at the page caches of tiers.
    pub(crate) cache_looks: CacheLooks,
    /// Policy and rules.
    pub(crate) steering: RwLock<Arc<Steering>>,
    pub(crate) heat: HeatTable,
    pub(crate) streams: StreamTable,
    /// Streams that are read ahead at present.
    pub(crate) active_streams: ActiveStreams,
    /// How files on several tiers are read at present.
    pub(crate) read_uses: ReadUses,
    /// Files that grew over several tiers.
    pub(crate) grown_files: GrownFiles,
    /// Files to be laid out anew for their readers.
    pub(crate) layout_queue: LayoutQueue,
    /// Seconds in which the volume was mounted.
    pub(crate) logical_clock: LogicalClock,
    /// Bytes that may still be promoted today.
    pub(crate) write_budget: WriteBudget,
    /// Whether movers may run now.
    pub(crate) gate: Gate,
    /// Local time less universal time.
    pub(crate) utc_offset_seconds: std::sync::atomic::AtomicI32,
    /// When free space that others freed is looked for again.
    pub(crate) room_look_due_ms: AtomicU64,
    pub(crate) sync_pool: SyncPool,
    /// Whether policy or a rule lets any file be spread.
    pub(crate) may_spread: AtomicBool,
    /// Whether any did since the mount.
    pub(crate) has_spread: AtomicBool,
    /// Write-behind of spread files.
    pub(crate) write_behind: WriteBehind,
    /// Which threads write to which tier, for the policies that map them.
    pub(crate) thread_maps: ThreadMaps,
    /// Number of volume syncs requested, to tell which data was promised to be durable by then.
    pub(crate) volume_syncs: AtomicU64,
    /// Files whose backing object is in use without an open file description of this mount.
    pub(crate) holders: crate::inode::Holders,
    /// Operations that the kernel of this mount does by itself.
    pub(crate) kernel: KernelShare,
    /// Held for the length of a rename between two directories, so that the tree stands still meanwhile.
    pub(crate) rename_lock: Mutex<()>,
    /// The last stop was unclean: objects may be longer than their files say (DESIGN section 6).
    pub(crate) after_unclean_stop: AtomicBool,
    /// Of a file that was asked for its size since `sizes_asked` was 0 it could not be found out.
    pub(crate) sizes_failed: AtomicBool,
    /// After an unclean stop: the last file whose size was asked of its objects. `None` as soon as all of them were; only
    /// then may a stop be clean again.
    pub(crate) sizes_asked: Mutex<Option<Ino>>,
    /// A caller got a size that is a guess, because the tier that knows it is missing or does not answer.
    pub(crate) sizes_guessed: AtomicBool,
    /// Numbers of objects that may have been made before this mount, and that are not known to be accounted for.
    pub(crate) made_before_mount: std::ops::Range<u64>,
    pub(crate) epoch: AtomicU64,
    /// Held to raise the epoch, or to change the record of a tier.
    pub(crate) raising: Mutex<()>,
    /// Held while a tier joins or leaves, or its draining begins or ends. Taken before `raising`.
    pub(crate) tier_event: Mutex<()>,
    /// Seed of random choices.
    pub(crate) seed: u64,
    /// When this mount began.
    pub(crate) mounted_at: Timestamp,
    pub(crate) unmounted: AtomicBool,
    pub(crate) flush_due_ms: AtomicU64,
    pub(crate) due: DueTimes,
    /// Held while a tier is measured.
    pub(crate) measuring: Mutex<()>,
    pub(crate) inline_pass: InlinePass,
    /// Objects whose description does not follow yet.
    pub(crate) late_stamps: LateStamps,
    /// Held to write back-references; taken before every other lock.
    pub(crate) stamp_walks: Mutex<StampWalks>,
    /// The last unmount left no description to be written.
    pub(crate) stamps_were_complete: AtomicBool,
    /// Files with damaged ranges.
    pub(crate) damaged_files: Mutex<KnownDamage>,
    /// The actions of recovery, for `status`.
    pub(crate) recovery_notes: Mutex<VecDeque<String>>,
}

/// How far the pass over inline files is that moves idle ones to objects.
#[derive(Debug, Default)]
pub(crate) struct InlinePass {
    /// The file after which it goes on.
    pub(crate) cursor: AtomicU64,
    /// When it begins again, in milliseconds since mounting.
    pub(crate) due_ms: AtomicU64,
}

/// State known of files with damaged ranges.
#[derive(Debug, Default)]
pub(crate) struct KnownDamage {
    /// Files that had some when they were looked at; they may be whole again.
    pub(crate) files: std::collections::BTreeSet<Ino>,
    /// Those that still had some at the last look, which goes through `files` in turns and is at `checked_up_to`.
    pub(crate) confirmed: std::collections::BTreeSet<Ino>,
    pub(crate) checked_up_to: u64,
    /// Inodes whose records cannot be read.
    pub(crate) unreadable: std::collections::BTreeSet<Ino>,
    /// Number of the last inode that was looked at.
    pub(crate) looked_up_to: u64,
    /// All were.
    pub(crate) is_complete: bool,
}

/// Changes that become durable together.
pub(crate) struct Transaction {
    pub(crate) batch: Batch,
}

impl Transaction {
    /// Adds the record of an inode that is not a directory, as it is now.
    pub(crate) fn put_inode(&mut self, inode: &Inode) {
        self.put_record(inode, None);
    }

    /// Adds the record of a directory, as it is now.
    pub(crate) fn put_directory(&mut self, inode: &Inode, state: &DirectoryState) {
        self.put_record(inode, Some(state));
    }

    /// Adds the record of a directory that says of itself that names come and go after it: its cookies go on where those
    /// that it reserves end.
    pub(crate) fn put_open_directory(&mut self, inode: &Inode, state: &DirectoryState) {
        let mut record = inode.to_record(Some(state));
        if let InodeBody::Directory { next_cookie, entries, .. } = &mut record.body {
            *next_cookie = state.cookies_end;
            *entries = EntryCount::Open;
        }
        inode.is_record_open.store(true, Ordering::Release);
        self.put_record_with(keys::inode(inode.ino), |bytes| record.encode_into(bytes));
    }

    fn put_record(&mut self, inode: &Inode, state: Option<&DirectoryState>) {
        // Cleared first: a time that changes while the record is being made marks the inode again.
        inode.times_dirty.store(false, Ordering::Release);
        inode.is_record_open.store(false, Ordering::Release);
        if let Some(file) = inode.file() {
            file.log_inline(|change| match change {
                InlineChange::Put(content) => self.put_record_with(keys::inline(inode.ino), |bytes| {
                    crate::store::inline_format::encode_into(bytes, content);
                }),
                InlineChange::Delete => self.batch.delete(keys::inline(inode.ino)),
            });
        }
        let record: InodeRecord = inode.to_record(state);
        if let InodeBody::Regular(file) = &record.body {
            let checked = crate::store::inode_format::check_file(file);
            assert_eq!(checked, Ok(()), "inode {} breaks an invariant before commit", inode.ino);
            if let Some(state) = inode.file() {
                state.allocation.note_recorded(&file.objects);
            }
        }
        self.put_record_with(keys::inode(inode.ino), |bytes| record.encode_into(bytes));
    }

    /// Adds a record that the closure appends to the batch itself.
    pub(crate) fn put_record_with(&mut self, key: keys::Key, encode: impl FnOnce(&mut Vec<u8>)) {
        self.batch.put_with(|bytes| bytes.extend_from_slice(&key), encode);
    }

    /// Adds the changes of the block lookup table of an inode, whose layout is the changed one. A file with one object has no
    /// extent records: loading it does not look for any.
    pub(crate) fn put_map_change(&mut self, ino: Ino, layout: &Layout, change: &MapChange) {
        for end in &change.removed {
            self.batch.delete(keys::extent(ino, *end));
        }
        for extent in &change.added {
            if layout.objects.len() > 1 {
                self.put_extent(ino, extent);
            } else {
                self.batch.delete(keys::extent(ino, extent.end));
            }
        }
    }

    /// Adds one extent.
    pub(crate) fn put_extent(&mut self, ino: Ino, Extent { start, end, owner }: &Extent) {
        let record = ExtentRecord { start_block: *start, owner: *owner };
        self.batch.put(keys::extent(ino, *end), record.encode());
    }

    /// Adds a pending free.
    pub(crate) fn put_disowned(&mut self, record: &DisownedRecord) {
        let is_empty = matches!(record.kind, DisownedKind::Range { end } if end <= record.start);
        assert!(!is_empty, "a disowned range has bytes: {record:?}");
        self.batch.put(record.key(), record.encode());
    }

    /// Adds the removal of a pending free whose work is done.
    pub(crate) fn delete_disowned(&mut self, record: &DisownedRecord) {
        self.batch.delete(record.key());
    }
}

/// Operations that the kernel of a mount does without asking: passing files through, or collecting writes, and never both.
#[derive(Default)]
pub(crate) struct KernelShare {
    /// Registers objects that the kernel uses itself; unset where it cannot use any.
    pub(crate) passthrough_port: std::sync::OnceLock<Arc<dyn crate::passthrough::PassthroughPort>>,
    /// It collects writes: it keeps size and times of files that it has, and may know of bytes that never came here yet.
    pub(crate) collects_writes: AtomicBool,
}

impl Core {
    pub(crate) fn new(
        (id, name): (VolumeId, String),
        options: MountOptions,
        clock: Arc<dyn Clock>,
        metadata: Metadata,
        tiers: TierSet,
    ) -> Result<Self> {
        let mounted_at = clock.now();
        let (logical_clock, promoted) = LogicalClock::resume(&metadata, clock.elapsed())?;
        let write_behind = WriteBehind::new(Arc::clone(&clock));
        tiers.all().iter().for_each(|tier| tier.set_deferral_max(options.deferral_ms_max));
        Ok(Self {
            id,
            name,
            options,
            clock,
            metadata,
            tiers,
            inodes: InodeTable::new(IDLE_INODES_MAX),
            handles: HandleTable::new(),
            disowned: DisownedQueue::default(),
            rewritten: RewrittenFiles::default(),
            counters: Counters::default(),
            moves: MoveQueue::default(),
            drains: Drains::default(),
            planner: Planner::default(),
            cache_looks: CacheLooks::default(),
            steering: RwLock::default(),
            heat: HeatTable::new(heat_options(&options)),
            streams: StreamTable::new(STREAM_MEMORY_BYTES),
            active_streams: ActiveStreams::default(),
            read_uses: ReadUses::default(),
            grown_files: GrownFiles::default(),
            layout_queue: LayoutQueue::default(),
            write_budget: WriteBudget::new(Vec::new(), promoted, logical_clock.now()),
            logical_clock,
            gate: Gate::new(Windows::default()),
            utc_offset_seconds: std::sync::atomic::AtomicI32::new(0),
            room_look_due_ms: AtomicU64::new(0),
            sync_pool: SyncPool::default(),
            may_spread: AtomicBool::new(false),
            has_spread: AtomicBool::new(false),
            write_behind,
            thread_maps: ThreadMaps::default(),
            volume_syncs: AtomicU64::new(0),
            holders: crate::inode::Holders::default(),
            kernel: KernelShare::default(),
            rename_lock: Mutex::new(()),
            after_unclean_stop: AtomicBool::new(false),
            sizes_failed: AtomicBool::new(false),
            sizes_asked: Mutex::new(None),
            sizes_guessed: AtomicBool::new(false),
            made_before_mount: 0..0,
            epoch: AtomicU64::new(0),
            raising: Mutex::new(()),
            tier_event: Mutex::new(()),
            seed: 0,
            mounted_at,
            unmounted: AtomicBool::new(false),
            flush_due_ms: AtomicU64::new(0),
            due: DueTimes::default(),
            measuring: Mutex::new(()),
            inline_pass: InlinePass::default(),
            late_stamps: LateStamps::default(),
            stamp_walks: Mutex::default(),
            stamps_were_complete: AtomicBool::new(false),
            damaged_files: Mutex::default(),
            recovery_notes: Mutex::default(),
        })
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.options.access == Access::ReadOnly
    }

    /// Fails on a read-only mount, and where the metadata store stopped: a change would never be recorded.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(Errno::EROFS.into());
        }
        self.metadata.stopped().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The inode of a number; ENOENT where there is none (a stale reference).
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
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
        let trust = match self.after_unclean_stop.load(std::sync::atomic::Ordering::Acquire) {
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
    pub(crate) fn transact<T>(&self, inodes: &[&Inode], body: impl FnOnce(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_or_undo(inodes, body, || {})
    }

    /// Like [`Self::transact`]; where the store refuses the transaction, `undo` reverts in memory the changes of `body`, before another
    /// thread may change the records of these inodes.
    pub(crate) fn transact_or_undo<T>(
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
        let mut transaction = Transaction { batch: Batch::new() };
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
    pub(crate) fn flush_inode(&self, inode: &Inode) -> Result<()> {
        self.flush_through(inode.last_sequence())
    }

    pub(crate) fn flush_through(&self, sequence: Sequence) -> Result<()> {
        if self.metadata.durable() >= sequence {
            return Ok(());
        }
        Counters::count(&self.counters.log_flushes);
        self.metadata.sync(sequence)
    }

    /// The bucket of objects whose first name lies in a directory, so that its files stay close on disk.
    pub(crate) fn bucket_for_parent(parent: Ino) -> Bucket {
        let spread = parent.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let bucket = spread % u64::from(limits::BUCKETS);
        Bucket(u16::try_from(bucket).expect("a remainder below the number of buckets fits"))
    }

    /// The error for a caller that must not block; counts it.
    pub(crate) fn would_block(&self) -> Error {
        Counters::count(&self.counters.would_block);
        ErrorKind::WouldBlock.into()
    }

    /// Keeps a sentence for `status` and logs it.
    pub(crate) fn note_recovery(&self, note: String) {
        const NOTES_MAX: usize = 100;
        log::warn!("volume {}: {note}", self.name);
        let mut notes = self.recovery_notes.lock();
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(note);
    }

    /// Counts a reference by number.
    pub(crate) fn pin(&self, ino: Ino) {
        if let Ok(inode) = self.inode(ino) {
            inode.lifecycle.lock().pins += 1;
        }
    }

    /// Counts one reference by number to each inode without a name; returns these inodes.
    pub(crate) fn pin_orphans(&self) -> Result<Vec<Ino>> {
        let orphans = self.metadata.orphans()?;
        orphans.iter().for_each(|ino| self.pin(*ino));
        Ok(orphans)
    }

    /// Takes references by number back.
    pub(crate) fn unpin(&self, ino: Ino, count: u64) -> Result<()> {
        let Some(inode) = self.inodes.get(ino).or_else(|| self.inodes.unpin_absent(ino, count)) else { return Ok(()) };
        {
            let mut lifecycle = inode.lifecycle.lock();
            lifecycle.pins = lifecycle.pins.saturating_sub(count);
            if lifecycle.in_use() {
                return Ok(());
            }
        }
        self.delete_if_unused(&inode)
    }

    /// An error that says a record contradicts another one.
    pub(crate) fn contradiction(inode: &Inode, detail: &str) -> Error {
        Error::corrupted(format!("inode {}", inode.ino), detail)
    }
}
