//! Leases: programs that read a file by a copy of its map, past the mount (docs/design/0046).
//!
//! Invariants:
//! * A lease exists only while no description may change the file. Then the kernel has no bytes of it that the objects lack, whether or not it collects writes, and no
//!   mapping can make any. An open for changes recalls all leases before it is answered.
//! * A lease belongs to the description that it was asked for, and is recalled before that is gone. Both are decided under `DirectState::passed`.
//! * A reader is on the list of those who are recalled before the map is copied for it.
//! * Objects are opened anew, to be read. A program that keeps one after its lease reads bytes of a file that it could read when it got it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use polymux_records::attributes::HandleId;
use polymux_records::blockmap::OutsideReader;
use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::{Guarantee, TierError};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Block, Ino, LeaseRefusal, LeaseTicket, MapRun, OutsideReads};
use polymux_volume::heat::{AccessKind, Pattern};
use polymux_volume::inode::{FileState, Handle, Inode, reference_of};

use crate::data_path::DataPath;

/// Uses of one node that are noted at once, at most.
const USES_MAX: u64 = 64;

/// A file that is leased to a program. Dropped when the program has given back its descriptors.
#[derive(Debug)]
pub struct LeasedFile {
    inode: Arc<Inode>,
    reader: Arc<dyn OutsideReader>,
    /// The copy of the map: from the first byte on, without gaps.
    pub runs: Vec<MapRun>,
    /// The objects that it names, opened to be read.
    pub objects: Vec<OwnedFd>,
    length: u64,
}

impl LeasedFile {
    /// The file.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// Bytes that the map covers.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Drop for LeasedFile {
    fn drop(&mut self) {
        if let Some(file) = self.inode.file() {
            file.nodes.outside_readers.give_back(&self.reader);
        }
    }
}

/// Whether a description can read and no more.
fn is_for_reading(handle: &Handle) -> bool {
    handle.options.read && !handle.options.write && !handle.options.append
}

impl DataPath {
    /// A ticket for a lease on the file of a description, for a process of a user.
    ///
    /// # Errors
    /// Why there is none. Reasons that may be gone when the ticket is shown are looked for only then.
    pub fn issue_lease_ticket(&self, id: HandleId, uid: u32) -> std::result::Result<LeaseTicket, LeaseRefusal> {
        let port = self.kernel.lease_port.get().and_then(Weak::upgrade).ok_or(LeaseRefusal::Off)?;
        let handle = self.handles.get(id).map_err(|_| LeaseRefusal::NotForReading)?;
        let file = handle.inode.file().ok_or(LeaseRefusal::NotForReading)?;
        if !is_for_reading(&handle) {
            return Err(LeaseRefusal::NotForReading);
        }
        if file.is_passed_through() {
            return Err(LeaseRefusal::PassedThrough);
        }
        if file.layout.read().objects.is_empty() {
            return Err(LeaseRefusal::NoObject);
        }
        // Where it is held, the answer is found when the ticket is shown: this is a thread that serves the kernel.
        if file.direct.passed.try_lock().is_some_and(|passed| passed.modes.is_open_for_changes()) {
            return Err(LeaseRefusal::OpenForChanges);
        }
        port.issue(id, uid)
    }

    /// Lends a file to a program that has it open, with at most `runs_max` runs from its beginning on; says why where it cannot be leased. `reader` is recalled once.
    pub fn lease_file(
        &self,
        handle: &Handle,
        runs_max: usize,
        reader: Arc<dyn OutsideReader>,
    ) -> Result<std::result::Result<LeasedFile, LeaseRefusal>> {
        let inode = &handle.inode;
        let Some(file) = inode.file() else { return Ok(Err(LeaseRefusal::NotForReading)) };
        if !is_for_reading(handle) || handle.io_mode.get().is_none() {
            return Ok(Err(LeaseRefusal::NotForReading));
        }
        self.look_for_holder(inode, file)?;
        self.look_again(inode, file)?;
        self.ensure_size(inode, file)?;
        let (mut leased, entries) = match self.lease_map(handle, file, runs_max, reader) {
            Ok(leased) => leased,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // A tier may hang, so no lock is held. Objects that the file gives up meanwhile are of no use to the program, because it is recalled before.
        for entry in &entries {
            match self.open_leased(entry) {
                Ok(Some(object)) => leased.objects.push(object),
                Ok(None) => return Ok(Err(LeaseRefusal::Tier)),
                // It was moved and freed before it was opened.
                Err(_) if !file.nodes.outside_readers.list(&leased.reader) => return Ok(Err(LeaseRefusal::Busy)),
                Err(error) => return Err(error),
            }
        }
        self.note_accessed(inode);
        Counters::count(&self.volume.counters.leases_given);
        Ok(Ok(leased))
    }

    /// Copies the map for a reader, which is on the list from here on. Returns the objects that are still to be opened, too.
    fn lease_map(
        &self,
        handle: &Handle,
        file: &FileState,
        runs_max: usize,
        reader: Arc<dyn OutsideReader>,
    ) -> std::result::Result<(LeasedFile, Vec<ObjectEntry>), LeaseRefusal> {
        let passed = file.direct.passed.lock();
        if passed.modes.is_open_for_changes() {
            return Err(LeaseRefusal::OpenForChanges);
        }
        if file.is_passed_through() {
            return Err(LeaseRefusal::PassedThrough);
        }
        if handle.has_ended.load(Ordering::Acquire) {
            return Err(LeaseRefusal::UnknownTicket);
        }
        handle.has_leases.store(true, Ordering::Release);
        file.nodes.outside_readers.add(handle.number(), Arc::clone(&reader));
        // From here on it leaves the list when it is dropped.
        let inode = Arc::clone(&handle.inode);
        let mut leased = LeasedFile { inode, reader, runs: Vec::new(), objects: Vec::new(), length: 0 };
        let (runs, entries) = self.copy_map(file, runs_max)?;
        leased.length = runs.last().map_or(0, |run| run.end);
        leased.runs = runs;
        Ok((leased, entries))
    }

    /// The map of a file, and the objects that it names.
    fn copy_map(
        &self,
        file: &FileState,
        runs_max: usize,
    ) -> std::result::Result<(Vec<MapRun>, Vec<ObjectEntry>), LeaseRefusal> {
        let layout = file.layout.read();
        let size = file.size();
        if layout.objects.is_empty() || size == 0 {
            return Err(LeaseRefusal::NoObject);
        }
        if !layout.damaged.is_empty() {
            return Err(LeaseRefusal::Damaged);
        }
        if file.is_moving() {
            return Err(LeaseRefusal::Busy);
        }
        let (mut runs, mut objects) = (Vec::new(), Vec::<ObjectEntry>::new());
        let mut position = 0;
        while position < size && runs.len() < runs_max {
            let run = layout.map.run_at(Block::holding(position));
            let end = run.end.first_byte().min(size);
            let object = layout.owner_of(&run).map(|(_, entry)| {
                let known = objects.iter().position(|known| known.object == entry.object);
                known.unwrap_or_else(|| {
                    objects.push(entry);
                    objects.len() - 1
                })
            });
            runs.push(MapRun { start: position, end, object });
            position = end;
        }
        let is_freed = |entry: &ObjectEntry| !self.volume.disowned.holds(entry.tier, entry.object);
        // They may be older than the permissions of the file.
        if objects.iter().all(is_freed) { Ok((runs, objects)) } else { Err(LeaseRefusal::Unfreed) }
    }

    /// Opens an object for a program; `None` where its tier is in no state for that.
    fn open_leased(&self, entry: &ObjectEntry) -> Result<Option<OwnedFd>> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let Some(tier) = handle.present() else { return Ok(None) };
        let is_local = tier.capabilities().guarantee != Guarantee::Remote;
        if !is_local || handle.is_failing() || handle.is_silent() {
            return Ok(None);
        }
        match handle.run(|tier| tier.open_for_program(reference_of(entry))) {
            Ok(object) => Ok(Some(object)),
            Err(error) if matches!(error.kind(), ErrorKind::Tier { source: TierError::Unsupported(_), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A description is gone, and with it the leases that it was asked for. Called with `DirectState::passed` held.
    pub(super) fn end_leases_of(&self, handle: &Handle, file: &FileState) {
        handle.has_ended.store(true, Ordering::Release);
        if handle.has_leases.load(Ordering::Acquire) {
            file.nodes.outside_readers.recall_those_of(handle.number());
        }
    }

    /// Counts reads that a program made by its lease, and that devices served, as use.
    pub fn note_outside_reads(&self, leased: &LeasedFile, node: u64, reads: OutsideReads) {
        let ino = leased.inode.ino;
        // Of a file that is gone nothing is to be kept.
        if node.saturating_mul(RANGE_NODE_SIZE) >= leased.length() || leased.inode.lifecycle.lock().gone {
            return;
        }
        self.note_accessed(&leased.inode);
        let now = self.placement.logical_clock.now();
        let OutsideReads { random, stream_bytes } = reads;
        let touch = |pattern, bytes| self.placement.heat.touch(ino, node, AccessKind::Read, bytes, pattern, now);
        for _ in 0..random.min(USES_MAX) {
            touch(Pattern::Random, polymux_types::limits::BLOCK_SIZE);
        }
        for _ in 0..stream_bytes.div_ceil(RANGE_NODE_SIZE).min(USES_MAX) {
            touch(Pattern::Sequential, RANGE_NODE_SIZE);
        }
        if self.counts_demand() {
            self.placement.heat.demand.note_reads(ino, node, random, stream_bytes);
        }
    }
}
