//! Leases: programs that use a file by a copy of its map, past the mount (docs/design/0046, docs/design/0048).
//!
//! Invariants:
//! * A lease for an unchanged file exists only while no description may change the file. Then the kernel has no bytes of it that the objects lack, whether or not it collects writes, and no
//!   mapping can make any. An open for changes recalls these leases before it is answered.
//! * A lease for a changing file exists only where the kernel does not collect writes. When it is given the kernel writes back and forgets all pages of the file, and whatever then uses bytes
//!   that it covers through the mount ends it first (`outside_changes`). It covers whole blocks, so that the file can grow beside it.
//! * A lease belongs to the description that it was asked for, and is recalled before that is gone. Both are decided under `DirectState::passed`.
//! * A user is on the list of those who are recalled before the map is copied for it. That of a changing file is copied while the barrier is shared, so that nothing has the file alone meanwhile.
//! * Objects are opened anew, with the access that the description has. A program that keeps one after its lease reads and writes bytes of a file that it could read and write when it got it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use polymux_records::attributes::{CAPABILITIES, HandleId, SET_ID};
use polymux_records::blockmap::{LeasedFor, OutsideUser};
use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::{Guarantee, Loan, LoanPurpose, OverwriteStyle, TierError};
use polymux_types::limits::{BLOCK_SIZE, RANGE_NODE_SIZE};
use polymux_types::{Block, Ino, LeaseApplicant, LeaseRefusal, LeaseTicket, LeaseWish, MapRun, OutsideUse};
use polymux_volume::heat::{AccessKind, Pattern};
use polymux_volume::inode::{FileState, Handle, Inode, check_open, reference_of};

use crate::data_path::DataPath;

/// Uses of one node that are noted at once, at most.
const USES_MAX: u64 = 64;

/// A file that is leased to a program. Dropped when the program has given back its descriptors.
#[derive(Debug)]
pub struct LeasedFile {
    inode: Arc<Inode>,
    user: Arc<dyn OutsideUser>,
    leased_for: LeasedFor,
    /// The copy of the map: from the first byte on, without gaps.
    pub runs: Vec<MapRun>,
    /// The objects that it names, with the access that the description has.
    pub objects: Vec<OwnedFd>,
    /// Of the objects that may be changed.
    loans: Vec<Box<dyn Loan>>,
    length: u64,
}

/// The map of a file as a program gets it, and the objects that it names.
type CopiedMap = (Vec<MapRun>, Vec<ObjectEntry>);

type OrRefusal<T> = std::result::Result<T, LeaseRefusal>;

impl LeasedFile {
    /// The file.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// Whether it may change meanwhile.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.leased_for == LeasedFor::ChangingFile
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
            file.nodes.outside_users.give_back(&self.user);
        }
    }
}

fn may_change(handle: &Handle) -> bool {
    handle.options.write || handle.options.append
}

impl DataPath {
    /// A ticket for a lease on the file of a description.
    ///
    /// # Errors
    /// Why there is none. Reasons that may be gone when the ticket is shown are looked for only then.
    pub fn issue_lease_ticket(&self, id: HandleId, applicant: LeaseApplicant) -> OrRefusal<LeaseTicket> {
        let port = self.kernel.lease_port.get().and_then(Weak::upgrade).ok_or(LeaseRefusal::Off)?;
        let handle = self.handles.get(id).map_err(|_| LeaseRefusal::NotForReading)?;
        let file = handle.inode.file().ok_or(LeaseRefusal::NotForReading)?;
        // Where it is held, the answer is found when the ticket is shown: this is a thread that serves the kernel.
        let is_open_for_changes =
            file.direct.passed.try_lock().is_some_and(|passed| passed.modes.is_open_for_changes());
        if applicant.wish == LeaseWish::Inquiry {
            return Err(self.answer_inquiry(&handle, file));
        }
        if applicant.wish == LeaseWish::AnyFile {
            self.note_applicant(&handle);
        }
        self.lease_for(&handle, file, applicant.wish, is_open_for_changes)?;
        if file.layout.read().objects.is_empty() {
            return Err(LeaseRefusal::NoObject);
        }
        port.issue(id, applicant)
    }

    fn note_applicant(&self, handle: &Handle) {
        handle.asked_for_lease_ms.store(self.volume.elapsed_ms() + 1, Ordering::Relaxed);
    }

    /// Whether programs have or want leases on a file that changes: a page that the kernel gets of it would end these, or be in their way.
    pub(super) fn is_leased_or_wanted(&self, file: &FileState) -> bool {
        file.nodes.outside_users.may_change() || file.direct.outside.are_leases_wanted(self.volume.elapsed_ms())
    }

    /// The answer to a program that has begun to use a file, and knows how to use leases.
    fn answer_inquiry(&self, handle: &Handle, file: &FileState) -> LeaseRefusal {
        if self.collects_writes() {
            return LeaseRefusal::CollectsWrites;
        }
        if self.kernel.pages_port.get().is_none() {
            return LeaseRefusal::OldKernel;
        }
        if !self.is_leased_or_wanted(file) {
            return LeaseRefusal::NotWanted;
        }
        self.note_applicant(handle);
        LeaseRefusal::Wanted
    }

    /// The kind of lease that a description may have, as far as that follows from how files are open.
    fn lease_for(
        &self,
        handle: &Handle,
        file: &FileState,
        wish: LeaseWish,
        is_open_for_changes: bool,
    ) -> OrRefusal<LeasedFor> {
        // The descriptor of an object that can be written can be read as well.
        if handle.io_mode.get().is_none() || !handle.options.read {
            return Err(LeaseRefusal::NotForReading);
        }
        if file.is_passed_through() {
            return Err(LeaseRefusal::PassedThrough);
        }
        if !may_change(handle) && !is_open_for_changes {
            return Ok(LeasedFor::UnchangedFile);
        }
        if wish == LeaseWish::UnchangedFile {
            return Err(if may_change(handle) { LeaseRefusal::NotForReading } else { LeaseRefusal::OpenForChanges });
        }
        if self.collects_writes() {
            return Err(LeaseRefusal::CollectsWrites);
        }
        if self.kernel.pages_port.get().is_none() {
            return Err(LeaseRefusal::OldKernel);
        }
        if handle.options.append || handle.options.positions_appends || handle.options.synchronous {
            return Err(LeaseRefusal::WritesElsewhere);
        }
        // A program that only reads has the kernel forget nothing: it gets a lease beside those of writers.
        if !may_change(handle) && file.nodes.outside_users.settled_bytes() == 0 {
            return Err(LeaseRefusal::OpenForChanges);
        }
        let now_ms = self.volume.elapsed_ms();
        // During a long pause the file is used through the mount, and has its pages.
        if file.direct.outside.is_lease_worthwhile_soon(now_ms) {
            file.direct.outside.note_wanted(now_ms);
        }
        if !file.direct.outside.is_lease_worthwhile(now_ms) {
            return Err(LeaseRefusal::UsedThroughMount);
        }
        Ok(LeasedFor::ChangingFile)
    }

    /// Leases a file to a program that has it open, with at most `runs_max` runs from its beginning on; says why where it cannot be leased. `user` is recalled once. Waits for the kernel, where
    /// the file is open for changes, so that a thread that serves it must not call this.
    pub fn lease_file(
        &self,
        handle: &Handle,
        runs_max: usize,
        wish: LeaseWish,
        user: Arc<dyn OutsideUser>,
    ) -> Result<OrRefusal<LeasedFile>> {
        let inode = &handle.inode;
        let Some(file) = inode.file() else { return Ok(Err(LeaseRefusal::NotForReading)) };
        self.look_for_holder(inode, file)?;
        self.look_again(inode, file)?;
        self.ensure_size(inode, file)?;
        let mut leased = match self.admit(handle, file, wish, user) {
            Ok(admitted) => admitted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if leased.may_change()
            && let Err(refusal) = self.prepare_for_changes(handle, file, &leased, runs_max)?
        {
            if matches!(refusal, LeaseRefusal::Tier | LeaseRefusal::Privileged | LeaseRefusal::Protected) {
                // It may last, and the file has its pages meanwhile.
                file.direct.outside.note_unwanted();
            }
            return Ok(Err(refusal));
        }
        let (runs, entries) = match self.copy_map(file, &leased, runs_max) {
            Ok(copied) => copied,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let length = runs.last().map_or(0, |run| run.end);
        assert!(length <= leased.length, "a lease covers no more than others know of");
        leased.length = length;
        leased.runs = runs;
        if may_change(handle) {
            self.note_given_out()?;
            self.begin_outside_changes(inode, file)?;
        }
        // A tier may hang, so no lock is held. Objects that the file gives up meanwhile are of no use to the program, because it is recalled before.
        for (place, entry) in entries.iter().enumerate() {
            match self.open_leased(&mut leased, place, entry, may_change(handle)) {
                Ok(true) => {}
                Ok(false) => return Ok(Err(LeaseRefusal::Tier)),
                // It was moved and freed before it was opened.
                Err(_) if !file.nodes.outside_users.list(&leased.user) => return Ok(Err(LeaseRefusal::Busy)),
                Err(error) => return Err(error),
            }
        }
        // A change that holds leases off looks whether objects are open elsewhere after it has recalled all users.
        if !file.nodes.outside_users.list(&leased.user) {
            return Ok(Err(LeaseRefusal::Busy));
        }
        self.note_accessed(inode);
        Counters::count(&self.volume.counters.leases_given);
        Ok(Ok(leased))
    }

    /// Puts a user on the list, if its description may have a lease.
    fn admit(
        &self,
        handle: &Handle,
        file: &FileState,
        wish: LeaseWish,
        user: Arc<dyn OutsideUser>,
    ) -> OrRefusal<LeasedFile> {
        let passed = file.direct.passed.lock();
        let leased_for = self.lease_for(handle, file, wish, passed.modes.is_open_for_changes())?;
        if leased_for == LeasedFor::ChangingFile {
            user.admit_to_changes()?;
        }
        if handle.has_ended.load(Ordering::Acquire) {
            return Err(LeaseRefusal::UnknownTicket);
        }
        handle.has_leases.store(true, Ordering::Release);
        let length = match leased_for {
            LeasedFor::UnchangedFile => file.size(),
            LeasedFor::ChangingFile if may_change(handle) => file.size() / BLOCK_SIZE * BLOCK_SIZE,
            LeasedFor::ChangingFile => file.nodes.outside_users.settled_bytes(),
        };
        let is_admitted = file.nodes.outside_users.add(handle.number(), Arc::clone(&user), leased_for, length);
        if leased_for == LeasedFor::ChangingFile {
            // After it is on the list, and before the kernel forgets attributes.
            file.direct.outside.begin(self.volume.elapsed_ms());
        }
        // From here on it leaves the list when it is dropped.
        let inode = Arc::clone(&handle.inode);
        let (runs, objects, loans) = (Vec::new(), Vec::new(), Vec::new());
        let leased = LeasedFile { inode, user, leased_for, runs, objects, loans, length };
        if is_admitted { Ok(leased) } else { Err(LeaseRefusal::Busy) }
    }

    /// Has the kernel forget the pages of a file, after a look at all that would be in the way of a lease.
    fn prepare_for_changes(
        &self,
        handle: &Handle,
        file: &FileState,
        leased: &LeasedFile,
        runs_max: usize,
    ) -> Result<OrRefusal<()>> {
        let inode = &handle.inode;
        if may_change(handle) {
            // A change that adds privileges or forbids writes ends leases afterwards, so one of the two is seen.
            let grants_privileges = inode.common.read().permissions & SET_ID != 0
                || self.volume.metadata.xattr(inode.ino, CAPABILITIES)?.is_some();
            if grants_privileges {
                return Ok(Err(LeaseRefusal::Privileged));
            }
            if check_open(inode, &handle.options).is_err() {
                return Ok(Err(LeaseRefusal::Protected));
            }
        }
        let entries = match self.copy_map(file, leased, runs_max) {
            Ok((_, entries)) => entries,
            Err(refusal) => return Ok(Err(refusal)),
        };
        for entry in &entries {
            if !self.is_fit_for_programs(entry)? {
                return Ok(Err(LeaseRefusal::Tier));
            }
        }
        // Of bytes that another user covers the kernel has no pages already.
        if file.nodes.outside_users.settled_bytes() < leased.length {
            if !may_change(handle) {
                return Ok(Err(LeaseRefusal::OpenForChanges));
            }
            let Some(port) = self.kernel.pages_port.get() else { return Ok(Err(LeaseRefusal::OldKernel)) };
            Counters::count(&self.volume.counters.leases_with_pages_forgotten);
            if !port.write_back_and_forget(inode.ino) {
                return Ok(Err(LeaseRefusal::Failed));
            }
        }
        if file.nodes.outside_users.settle(&leased.user) {
            return Ok(Ok(()));
        }
        let is_worthwhile = file.direct.outside.is_lease_worthwhile(self.volume.elapsed_ms());
        Ok(Err(if is_worthwhile { LeaseRefusal::Contended } else { LeaseRefusal::UsedThroughMount }))
    }

    /// Whether the tier of an object is in a state in which programs may use its objects.
    fn is_fit_for_programs(&self, entry: &ObjectEntry) -> Result<bool> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let Some(tier) = handle.present() else { return Ok(false) };
        let is_local = tier.capabilities().guarantee != Guarantee::Remote;
        Ok(is_local && !handle.is_failing() && !handle.is_silent())
    }

    /// The map of a file that is about to be leased, and the objects that it names.
    fn copy_map(&self, file: &FileState, leased: &LeasedFile, runs_max: usize) -> OrRefusal<CopiedMap> {
        let _shared = match leased.leased_for {
            LeasedFor::UnchangedFile => None,
            LeasedFor::ChangingFile => Some(file.barrier.try_read().ok_or(LeaseRefusal::Busy)?),
        };
        let layout = file.layout.read();
        let size = match leased.leased_for {
            LeasedFor::UnchangedFile => file.size(),
            LeasedFor::ChangingFile => file.size() / BLOCK_SIZE * BLOCK_SIZE,
        };
        // The file may have grown since others were notified how far the lease goes.
        let size = size.min(leased.length);
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
            runs.push(MapRun { start: position, end, object, is_writable: false });
            position = end;
        }
        let is_freed = |entry: &ObjectEntry| !self.volume.disowned.holds(entry.tier, entry.object);
        // They may be older than the permissions of the file.
        if objects.iter().all(is_freed) { Ok((runs, objects)) } else { Err(LeaseRefusal::Unfreed) }
    }

    /// Opens an object for a program; `false` where its tier is in no state for that.
    fn open_leased(
        &self,
        leased: &mut LeasedFile,
        place: usize,
        entry: &ObjectEntry,
        may_change: bool,
    ) -> Result<bool> {
        if !self.is_fit_for_programs(entry)? {
            return Ok(false);
        }
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let Some(tier) = handle.present() else { return Ok(false) };
        let capabilities = tier.capabilities();
        // A write must not take space: another tier might have to take it.
        let is_in_place = capabilities.overwrite == OverwriteStyle::InPlace && !capabilities.is_limited;
        let object = reference_of(entry);
        let opened = if may_change && is_in_place {
            for run in leased.runs.iter_mut().filter(|run| run.object == Some(place)) {
                run.is_writable = !self.has_hole(entry, run.start, run.end)?;
            }
            handle.run(|tier| tier.lend(object, LoanPurpose::Change)).and_then(|loan| {
                leased.loans.push(loan);
                handle.run(|tier| tier.open_for_program(object, LoanPurpose::Change))
            })
        } else {
            handle.run(|tier| tier.open_for_program(object, LoanPurpose::Read))
        };
        match opened {
            Ok(object) => leased.objects.push(object),
            Err(error) if matches!(error.kind(), ErrorKind::Tier { source: TierError::Unsupported(_), .. }) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// A description is gone, and with it the leases that it was asked for. Called with `DirectState::passed` held.
    pub(super) fn end_leases_of(&self, handle: &Handle, file: &FileState) {
        handle.has_ended.store(true, Ordering::Release);
        if handle.has_leases.load(Ordering::Acquire) {
            file.nodes.outside_users.recall_those_of(handle.number());
            file.nodes.outside_users.await_writes();
        }
    }

    /// Counts use of a file by a lease: writes, and reads that devices served.
    pub fn note_outside_use(&self, leased: &LeasedFile, node: u64, uses: OutsideUse) {
        let ino = leased.inode.ino;
        // Of a file that is gone nothing is to be kept.
        if node.saturating_mul(RANGE_NODE_SIZE) >= leased.length() || leased.inode.lifecycle.lock().gone {
            return;
        }
        let now = self.placement.logical_clock.now();
        let OutsideUse { random, stream_bytes, writes } = uses;
        let touch = |kind, pattern, bytes| self.placement.heat.touch(ino, node, kind, bytes, pattern, now);
        for _ in 0..random.min(USES_MAX) {
            touch(AccessKind::Read, Pattern::Random, BLOCK_SIZE);
        }
        for _ in 0..stream_bytes.div_ceil(RANGE_NODE_SIZE).min(USES_MAX) {
            touch(AccessKind::Read, Pattern::Sequential, RANGE_NODE_SIZE);
        }
        for _ in 0..writes.min(USES_MAX) {
            touch(AccessKind::Write, Pattern::Random, BLOCK_SIZE);
        }
        if random == 0 && stream_bytes == 0 {
            return;
        }
        self.note_accessed(&leased.inode);
        if self.counts_demand() {
            self.placement.heat.demand.note_reads(ino, node, random, stream_bytes);
        }
    }
}
