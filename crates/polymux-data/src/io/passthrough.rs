//! Files whose object the kernel uses itself (DESIGN section 10, docs/design/0017).
//!
//! Invariants while a file is passed through:
//! * Its one object holds all of it: its map names no other tier, it has no pending frees, no damage and no migration, and none of
//!   that begins. A write that does not fit on the tier fails with `ENOSPC`.
//! * A program that may change the object makes it longer without a request to the daemon, while its tier has free space. So the object of
//!   a file that is new, or was made longer when it was last changed, is given for changes only where no other tier could take its growth,
//!   and on the tier of the metadata only where the file system keeps space that such a writer cannot take (docs/design/0026).
//! * If the object may be changed directly, size, times and bytes are those of the object, which is asked whenever they matter.
//! * It is decided under `DirectState::passed`, the outermost lock of a file, and becomes true or false while the barrier is
//!   held alone: who holds the barrier sees it stand still.

mod begin;
mod place;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use polymux_policy::PassthroughUse;
use polymux_records::attributes::SET_ID;
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::parts::{PageCache, Promotion};
use polymux_records::passthrough::{ClosingHeard, IoDecision, IoMode, Obstacle, PagesKept, PassthroughPort};
use polymux_records::report::{FileIo, PassthroughState};
use polymux_records::store::ObjectEntry;
use polymux_tier::{Guarantee, LoanPurpose, ObjectStat, OverwriteStyle, TierError};
use polymux_types::sync::MutexGuard;
use polymux_types::{Errno, Ino, TierId, Timestamp};
use polymux_volume::heat::AccessKind;
use polymux_volume::inode::{
    FileState, Grant, Handle, Inode, OpenPurpose, PagesSeen, PassedThrough, Standing, check_open, is_append_only,
    reference_of,
};
use polymux_volume::space::TierHandle;

use crate::data_path::DataPath;

/// Lower limit of the space that a file which may be changed directly is expected to take beyond its holes: its size, within limits.
const GROWTH_MIN: u64 = 1 << 20;
const GROWTH_MAX: u64 = 64 << 20;
/// Longest tick of a kernel (`CONFIG_HZ=100`): as much a time of an object may lie behind the clock (`current_time` in the kernel).
const KERNEL_TICK_MAX: Duration = Duration::from_millis(10);

fn purpose_of(handle: &Handle) -> OpenPurpose {
    if handle.options.write || handle.options.append { OpenPurpose::Change } else { OpenPurpose::Read }
}

impl DataPath {
    /// Says how a description that was just opened does its I/O. Called once, before the kernel is answered.
    pub fn decide_io_mode(&self, handle: &Handle) -> Result<IoDecision> {
        let (inode, purpose) = (&handle.inode, purpose_of(handle));
        let Some(file) = inode.file() else { return Ok(through_daemon(PagesKept::Yes)) };
        self.look_for_holder(inode, file)?;
        self.look_again(inode, file)?;
        let mut passed = file.direct.passed.lock();
        if purpose == OpenPurpose::Change {
            file.nodes.outside_users.recall_those_of_unchanged_file();
        }
        // Again, because from here on no flag is set that it would have to obey unheard.
        check_open(inode, &handle.options)?;
        let standing = self.register_held(file, &mut passed);
        let mut modes = passed.modes;
        let mut grant = || match self.grant(inode, file, &mut passed, handle) {
            Ok(None) => Grant::Given,
            Ok(Some(obstacle)) => {
                passed.refused = Some(obstacle);
                Grant::Refused
            }
            Err(error) => {
                log::warn!("inode {}: not passed through: {error}", inode.ino);
                Grant::Refused
            }
        };
        // The cached pages of a file that is changed without the daemon would be stale.
        let is_held = file.direct.users.now().held() == Some(OpenPurpose::Change);
        // Collected writes come as whole pages, without the flags of an open file description: appends look like overwrites.
        let is_unclear = self.collects_writes() && is_append_only(inode);
        // Pages would end the leases of programs that change the file, and those of a program that is about to get one most of all.
        let is_leased = self.is_leased_or_wanted(file);
        let is_kept = !is_held && !is_unclear && !is_leased && self.volume.options.page_cache == PageCache::On;
        let through_daemon = if is_kept { IoMode::Cached } else { IoMode::Direct };
        let mode = modes.open(purpose, &mut grant, through_daemon, standing);
        if mode == IoMode::PassthroughDirect && is_append_only(inode) && handle.options.read {
            return Err(Errno::EBUSY.into());
        }
        if mode == IoMode::PassthroughDirect {
            // Its mappings change the object.
            self.lend_for_changes(file, &mut passed).inspect_err(|_| self.unregister_unused(file, &mut passed))?;
        }
        passed.modes = modes;
        Counters::count(self.counter_of(mode));
        handle.io_mode.set(mode).expect("it is decided once");
        // The kernel keeps pages that it could not write back: those of a mapping that is not allowed.
        let may_be_wrong = file.direct.pages_stale.load(Ordering::Acquire) || is_append_only(inode);
        let pages = if may_be_wrong { PagesKept::No } else { PagesKept::Yes };
        let closing = if purpose == OpenPurpose::Change { ClosingHeard::Yes } else { ClosingHeard::No };
        Ok(IoDecision { mode, backing: passed.backing, pages, closing })
    }

    /// Registers the object of an externally open file: a program that opens the file goes to the same object, so that all see the same
    /// bytes. Called with the `passed` lock held.
    fn register_held(&self, file: &FileState, passed: &mut PassedThrough) -> Standing {
        if passed.backing.is_some() || file.direct.users.now().held().is_none() || !passed.modes.is_closed() {
            return Standing::Free;
        }
        let Some(port) = self.kernel.passthrough_port.get().filter(|port| !port.refuses()) else {
            return Standing::Free;
        };
        let entry = file.layout.read().object(0);
        let lent = self
            .volume
            .tiers
            .by_id(entry.tier)
            .and_then(|tier| tier.run(|tier| tier.lend(reference_of(&entry), LoanPurpose::Read)));
        let Ok(loan) = lent else { return Standing::Free };
        let Some(backing) = port.register(loan.descriptor()) else { return Standing::Free };
        (passed.backing, passed.loan) = (Some(backing), Some(loan));
        file.direct.users.open();
        Standing::Registered
    }

    /// Releases the registration made for an open that failed.
    fn unregister_unused(&self, file: &FileState, passed: &mut PassedThrough) {
        if passed.modes.is_passed_through() {
            return;
        }
        file.direct.users.close();
        passed.loan = None;
        if let (Some(backing), Some(port)) = (passed.backing.take(), self.kernel.passthrough_port.get()) {
            port.forget(backing);
        }
    }

    fn counter_of(&self, mode: IoMode) -> &AtomicU64 {
        match mode {
            IoMode::Passthrough => &self.volume.counters.opens_passed_through,
            IoMode::PassthroughDirect => &self.volume.counters.opens_beside_passthrough,
            IoMode::Cached => &self.volume.counters.opens_cached,
            IoMode::Direct => &self.volume.counters.opens_direct,
        }
    }

    /// Whether files can be passed through.
    pub fn passthrough_state(&self) -> PassthroughState {
        match self.kernel.passthrough_port.get() {
            _ if self.volume.is_read_only() => PassthroughState::ReadOnly,
            None if self.collects_writes() => PassthroughState::CollectsWrites,
            None => PassthroughState::NotOffered,
            Some(port) if port.refuses() => PassthroughState::Refused,
            Some(_) if self.is_off_everywhere() => PassthroughState::Off,
            Some(_) => PassthroughState::Possible(self.handles.passed_through()),
        }
    }

    /// Whether the kernel collects writes before it sends them.
    pub fn collects_writes(&self) -> bool {
        self.kernel.collects_writes.load(Ordering::Acquire)
    }

    /// Why nothing is passed through on this mount.
    fn obstacle_without_port(&self) -> Obstacle {
        if self.collects_writes() { Obstacle::CollectsWrites } else { Obstacle::Kernel }
    }

    fn is_off_everywhere(&self) -> bool {
        let allows = |rule: &polymux_policy::Rule| rule.passthrough.is_some_and(|named| named != PassthroughUse::Off);
        self.volume.options.passthrough == PassthroughUse::Off
            && !self.placement.steering.read().rules.rules().any(allows)
    }

    /// How the descriptions of a file do their I/O, for people.
    pub fn describe_io(&self, inode: &Inode, file: &FileState) -> FileIo {
        let passed = file.direct.passed.lock();
        if passed.modes.is_passed_through() {
            return if passed.modes.is_changed_directly() { FileIo::ChangedDirectly } else { FileIo::PassedThrough };
        }
        if file.direct.users.now().held().is_some() {
            return FileIo::Held;
        }
        if !passed.modes.is_closed() {
            return FileIo::ThroughDaemon(passed.refused.unwrap_or(Obstacle::Busy));
        }
        let Some(port) = self.kernel.passthrough_port.get() else {
            return FileIo::Closed(Err(self.obstacle_without_port()));
        };
        if port.refuses() {
            return FileIo::Closed(Err(Obstacle::Kernel));
        }
        let Some(_alone) = file.barrier.try_write() else { return FileIo::Closed(Err(Obstacle::Busy)) };
        // If the tier cannot be asked, the caller can do nothing about it.
        let obstacle = self.obstacle(inode, file, OpenPurpose::Read).unwrap_or(Some(Obstacle::Tier));
        FileIo::Closed(obstacle.map_or(Ok(()), Err))
    }

    /// The passthrough setting of a file by mount options and rules.
    fn passthrough_use(&self, inode: &Inode) -> PassthroughUse {
        let of_volume = self.volume.options.passthrough;
        if !self.placement.steering.read().rules.rules().any(|rule| rule.passthrough.is_some()) {
            return of_volume;
        }
        self.placement
            .ruled_passthrough(inode)
            .unwrap_or_else(|error| {
                log::warn!("inode {}: rules are passed over: {error}", inode.ino);
                None
            })
            .unwrap_or(of_volume)
    }

    /// Passes a file through for a purpose, or says why not. Called with its `passed` lock held.
    fn grant(
        &self,
        inode: &Arc<Inode>,
        file: &FileState,
        passed: &mut PassedThrough,
        handle: &Handle,
    ) -> Result<Option<Obstacle>> {
        let purpose = purpose_of(handle);
        // A mapping of a description that was opened to append would change the object anywhere.
        if is_append_only(inode) {
            return Ok(Some(Obstacle::AppendOnly));
        }
        let begins =
            handle.creation.filter(|_| purpose == OpenPurpose::Change && file.layout.read().objects.is_empty());
        if handle.options.truncate && begins.is_none() {
            let is_new = file.layout.read().objects.is_empty();
            return Ok(Some(if is_new { Obstacle::NoObject } else { Obstacle::Emptied }));
        }
        let Some(port) = self.kernel.passthrough_port.get() else { return Ok(Some(self.obstacle_without_port())) };
        if port.refuses() {
            return Ok(Some(Obstacle::Kernel));
        }
        if passed.backing.is_some() {
            if let Some(obstacle) = self.obstacle_to_changes(inode, file, handle)? {
                return Ok(Some(obstacle));
            }
            let _append = file.append.lock();
            self.record_extender(inode, file)?;
            self.lend_for_changes(file, passed)?;
            return Ok(None);
        }
        // Never waits for them: writers and movers go on, and this open file description goes through the daemon as theirs do.
        let Some(_alone) = file.barrier.try_write() else { return Ok(Some(Obstacle::Busy)) };
        if let Some(creation) = begins
            && let Some(obstacle) = self.begin_with_object(inode, file, handle, &creation)?
        {
            return Ok(Some(obstacle));
        }
        if let Some(obstacle) = self.obstacle(inode, file, purpose)? {
            return Ok(Some(obstacle));
        }
        if purpose == OpenPurpose::Change
            && let Some(obstacle) = self.obstacle_to_changes(inode, file, handle)?
        {
            return Ok(Some(obstacle));
        }
        self.give_object(inode, file, passed, purpose, port.as_ref())
    }

    /// Gives the object of a file to the kernel; says why where that cannot be. Called with its `passed` lock and its barrier held alone.
    fn give_object(
        &self,
        inode: &Inode,
        file: &FileState,
        passed: &mut PassedThrough,
        purpose: OpenPurpose,
        port: &dyn PassthroughPort,
    ) -> Result<Option<Obstacle>> {
        let entry = file.layout.read().object(0);
        let lent_for = match purpose {
            OpenPurpose::Read => LoanPurpose::Read,
            OpenPurpose::Change => LoanPurpose::Change,
        };
        let tier = self.volume.tiers.by_id(entry.tier)?;
        let loan = match tier.get()?.lend(reference_of(&entry), lent_for) {
            Ok(loan) => loan,
            Err(TierError::Unsupported(_)) => {
                self.kernel.lending_refused_ms.store(self.volume.elapsed_ms(), Ordering::Relaxed);
                return Ok(Some(Obstacle::Tier));
            }
            Err(error) => return Err(tier.note_error(error)),
        };
        let Some(backing) = port.register(loan.descriptor()) else { return Ok(Some(Obstacle::Kernel)) };
        if purpose == OpenPurpose::Change {
            let prepared = self.record_extender(inode, file);
            prepared
                .and_then(|()| self.begin_direct_changes(file, &entry, passed))
                .inspect_err(|_| port.forget(backing))?;
        }
        (passed.backing, passed.loan) = (Some(backing), Some(loan));
        if self.volume.options.promotion == Promotion::Prompt {
            passed.pages_before = self.look_at_pages(file);
            self.placement.heat.demand.hold(inode.ino);
        }
        file.direct.users.open();
        Ok(None)
    }

    /// Why a file cannot be passed through. Called with the barrier held alone.
    fn obstacle(&self, inode: &Inode, file: &FileState, purpose: OpenPurpose) -> Result<Option<Obstacle>> {
        match (self.passthrough_use(inode), purpose) {
            (PassthroughUse::Off, _) => return Ok(Some(Obstacle::Off)),
            (PassthroughUse::Read, OpenPurpose::Change) => return Ok(Some(Obstacle::ReadingOnly)),
            (PassthroughUse::Read, OpenPurpose::Read) | (PassthroughUse::Auto, _) => {}
        }
        if file.is_moving() {
            return Ok(Some(Obstacle::Busy));
        }
        // Nothing would show afterwards whether it is closed everywhere.
        if file.nodes.outside_users.hold_objects() {
            return Ok(Some(Obstacle::Leased));
        }
        // After a crash the log would say that the object holds less, and the bytes beyond that would be freed.
        if self.volume.metadata.durable().0 < file.durability.layout_sequence.load(Ordering::Acquire) {
            return Ok(Some(Obstacle::Unlogged));
        }
        let entry = {
            let layout = file.layout.read();
            if layout.objects.is_empty() {
                return Ok(Some(Obstacle::NoObject));
            }
            if layout.objects.len() > 1 || layout.map.has_exceptions() || layout.map.home() != Some(0) {
                return Ok(Some(Obstacle::Split));
            }
            if !layout.damaged.is_empty() {
                return Ok(Some(Obstacle::Damaged));
            }
            layout.object(0)
        };
        if self.volume.disowned.holds(entry.tier, entry.object) {
            return Ok(Some(Obstacle::Unfreed));
        }
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let Some(tier) = handle.present() else { return Ok(Some(Obstacle::Tier)) };
        let is_local = tier.capabilities().guarantee != Guarantee::Remote;
        if !is_local || handle.is_failing() || handle.is_silent() || handle.is_draining() {
            return Ok(Some(Obstacle::Tier));
        }
        // Of a program that had a lease nothing but this says that it has closed the object.
        if self.may_have_given_objects_out()
            && file.direct.users.now().held().is_none()
            && handle.run(|tier| tier.may_be_open_elsewhere(reference_of(&entry)))?
        {
            return Ok(Some(Obstacle::Leased));
        }
        let stat = handle.run(|tier| tier.stat(reference_of(&entry)))?;
        if stat.size != file.size() && file.direct.users.now().held().is_none() {
            return Ok(Some(Obstacle::Unlogged));
        }
        Ok(self.obstacle_of_place(inode, file, &handle, stat.size, purpose))
    }

    /// Why a file that may be passed through must not be changed directly.
    fn obstacle_to_changes(&self, inode: &Inode, file: &FileState, handle: &Handle) -> Result<Option<Obstacle>> {
        if let Some(obstacle) = self.obstacle_of_description(inode, handle) {
            return Ok(Some(obstacle));
        }
        let is_append = handle.options.append;
        let entry = file.layout.read().object(0);
        let handle = self.volume.tiers.by_id(entry.tier)?;
        if let Some(obstacle) = self.obstacle_of_tier_to_changes(&handle) {
            return Ok(Some(obstacle));
        }
        self.see_direct_changes(inode, file)?;
        let may_grow = is_append || !file.direct.growth.is_steady();
        if may_grow && self.may_go_on_elsewhere(entry.tier) {
            return Ok(Some(Obstacle::Grows));
        }
        let stat = handle.run(|tier| tier.stat(reference_of(&entry)))?;
        let has_room = has_space_for(&handle, &stat) && (!may_grow || self.may_grow_on(&handle));
        Ok((!has_room).then_some(Obstacle::Room))
    }

    /// Why a description must not change an object directly, whichever that is.
    fn obstacle_of_description(&self, inode: &Inode, handle: &Handle) -> Option<Obstacle> {
        if handle.options.synchronous {
            Some(Obstacle::Synchronous)
        } else if handle.options.positions_appends {
            Some(Obstacle::Appends)
        } else if inode.common.read().permissions & SET_ID != 0 {
            Some(Obstacle::SetId)
        } else if self.passthrough_use(inode) != PassthroughUse::Auto {
            Some(Obstacle::ReadingOnly)
        } else {
            None
        }
    }

    /// Why objects of a tier must not be changed directly.
    fn obstacle_of_tier_to_changes(&self, handle: &TierHandle) -> Option<Obstacle> {
        let Some(tier) = handle.present() else { return Some(Obstacle::Tier) };
        if tier.capabilities().overwrite != OverwriteStyle::InPlace || tier.capabilities().is_limited {
            return Some(Obstacle::Room);
        }
        (!self.volume.tiers.keep_metadata_reserve(handle)).then_some(Obstacle::MetadataRoom)
    }

    /// Whether another tier could take data that does not fit on this one.
    fn may_go_on_elsewhere(&self, tier: TierId) -> bool {
        self.volume
            .tiers
            .all()
            .iter()
            .any(|other| other.id != tier && other.present().is_some() && !other.is_draining())
    }

    /// From now on the object may say how long the file is. Durable, because writes that are durable when they return, and
    /// mappings that are synced, are not heard of.
    fn record_extender(&self, inode: &Inode, file: &FileState) -> Result<()> {
        // The daemon does not see which bytes the kernel makes durable.
        file.spreading.unpromised.store(0, Ordering::SeqCst);
        self.ensure_extender(inode, file, 0)?;
        self.volume.flush_inode(inode)
    }

    /// Lends the object for direct changes, which may come from now on. Called with the `passed` lock held.
    fn lend_for_changes(&self, file: &FileState, passed: &mut PassedThrough) -> Result<()> {
        if file.direct.users.now().is_open_for_changes() {
            return Ok(());
        }
        let entry = file.layout.read().object(0);
        let loan =
            self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.lend(reference_of(&entry), LoanPurpose::Change))?;
        self.begin_direct_changes(file, &entry, passed)?;
        passed.loan = Some(loan);
        Ok(())
    }

    fn begin_direct_changes(&self, file: &FileState, entry: &ObjectEntry, passed: &mut PassedThrough) -> Result<()> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let stat = handle.run(|tier| tier.stat(reference_of(entry)))?;
        *file.direct.object_modified.lock() = stat.modified;
        passed.granted_bytes = room_wanted(&stat);
        handle.grant_bytes(passed.granted_bytes);
        file.direct.has_direct_changes.store(2, Ordering::Release);
        file.direct.users.open_for_changes();
        Ok(())
    }

    /// Takes size and times from the object of a file that may be changed directly; does nothing for other files.
    pub fn see_direct_changes(&self, inode: &Inode, file: &FileState) -> Result<()> {
        self.see_outside_changes(inode, file);
        if !file.is_changed_directly() {
            return Ok(());
        }
        let mut seen = file.direct.object_modified.lock();
        self.take_over_changes(inode, file, &mut seen)
    }

    fn take_over_changes(&self, inode: &Inode, file: &FileState, seen: &mut Timestamp) -> Result<()> {
        if !file.is_changed_directly() {
            // It ended meanwhile, and the changes have been taken over.
            return Ok(());
        }
        let entry = file.layout.read().object(0);
        let stat = self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(&entry)))?;
        if stat.size > file.sizes.bytes.swap(stat.size, Ordering::AcqRel) {
            file.direct.growth.note_growth();
        }
        file.allocation.note_change();
        if *seen != stat.modified {
            *seen = stat.modified;
            adopt_object_time(inode, stat.modified);
        }
        Ok(())
    }

    /// Called before times or modes are set explicitly: takes over the object's times, and blocks further updates until the guard is dropped.
    pub fn hold_object_time<'a>(
        &self,
        inode: &Inode,
        file: &'a FileState,
    ) -> Result<Option<MutexGuard<'a, Timestamp>>> {
        if !file.is_changed_directly() {
            return Ok(None);
        }
        let mut seen = file.direct.object_modified.lock();
        self.take_over_changes(inode, file, &mut seen)?;
        Ok(Some(seen))
    }

    /// Times that were set by hand, or a size, hold until the object changes again.
    pub fn pass_over_object_time(&self, file: &FileState) -> Result<()> {
        if file.is_changed_directly() {
            let mut seen = file.direct.object_modified.lock();
            *seen = self.object_time(file)?;
        }
        Ok(())
    }

    /// The modification time of the one object of a file.
    pub fn object_time(&self, file: &FileState) -> Result<Timestamp> {
        let entry = file.layout.read().object(0);
        Ok(self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(&entry)))?.modified)
    }

    /// A description is gone.
    pub fn end_io_mode(&self, handle: &Handle) -> Result<()> {
        let ended = self.end_passthrough_of(handle);
        if purpose_of(handle) == OpenPurpose::Change
            && let Some(file) = handle.inode.file()
        {
            file.direct.growth.end_of_description();
            if let Some(creation) = &handle.creation {
                self.kernel.new_file_sizes.note_closed(creation, file.size());
            }
        }
        ended
    }

    fn end_passthrough_of(&self, handle: &Handle) -> Result<()> {
        let Some(mode) = handle.io_mode.get().copied() else { return Ok(()) };
        let (inode, Some(file)) = (&handle.inode, handle.inode.file()) else { return Ok(()) };
        let mut passed = file.direct.passed.lock();
        passed.modes.release(mode, purpose_of(handle));
        self.end_leases_of(handle, file);
        if mode == IoMode::Cached && !handle.is_untold.load(Ordering::Acquire) {
            // The kernel was notified to drop its pages, if there was any reason.
            file.direct.pages_stale.store(false, Ordering::Release);
        }
        if passed.modes.is_passed_through() || !mode.is_passed_through() {
            return Ok(());
        }
        let seen = self.end_passthrough(inode, file);
        let loan = passed.loan.take();
        if let (Some(backing), Some(port)) = (passed.backing.take(), self.kernel.passthrough_port.get()) {
            port.forget(backing);
        }
        if file.direct.users.now().held().is_some() {
            self.holders.note(inode.clone(), loan);
        }
        // A removed file is read no more, and its space is waited for.
        let pages_before = passed.pages_before.take().filter(|_| inode.common.read().links > 0);
        // Under the lock, so that the file is not passed through anew meanwhile.
        self.warm_after_passthrough(inode, file, purpose_of(handle), pages_before.as_ref());
        let granted = std::mem::take(&mut passed.granted_bytes);
        if granted > 0
            && let Some(entry) = file.layout.read().objects.first()
        {
            self.volume.tiers.by_id(entry.tier)?.return_bytes(granted);
        }
        seen
    }

    /// Called when no open file description is passed through any more. A mapping outlives its descriptor, and the kernel does not report
    /// it: a remaining mapping keeps the file externally open.
    fn end_passthrough(&self, inode: &Inode, file: &FileState) -> Result<()> {
        let _alone = file.barrier.write();
        let mut times = file.direct.object_modified.lock();
        let changed = file.is_changed_directly();
        let seen = self.take_over_changes(inode, file, &mut times);
        if seen.is_err() {
            // Asked again at the next use of the size.
            file.sizes.is_known.store(false, Ordering::Release);
        }
        let entry = file.layout.read().object(0);
        let handle = self.volume.tiers.by_id(entry.tier)?;
        // Who cannot be asked may say yes.
        let is_held = handle.run(|tier| tier.may_be_open_elsewhere(reference_of(&entry))).unwrap_or(true);
        if is_held {
            file.direct.users.hold(if changed { OpenPurpose::Change } else { OpenPurpose::Read });
        }
        file.direct.users.close();
        file.direct.pages_stale.fetch_or(changed, Ordering::AcqRel);
        seen
    }

    /// Whether the kernel uses the object of a file.
    pub fn is_passed_through(&self, ino: Ino) -> bool {
        self.volume.inodes.get(ino).is_some_and(|inode| inode.file().is_some_and(FileState::is_passed_through))
    }

    /// Whether its attributes may change without the daemon: the kernel, or a program with a lease, may be changing it.
    pub fn is_changed_directly(&self, ino: Ino) -> bool {
        let is_changed = |file: &FileState| file.is_changed_directly() || file.direct.outside.may_be_unseen();
        self.volume.inodes.get(ino).is_some_and(|inode| inode.file().is_some_and(is_changed))
    }

    /// Whether the kernel has a description that may change the file.
    pub fn is_open_for_changes(&self, ino: Ino) -> bool {
        let inode = self.volume.inodes.get(ino);
        inode
            .as_ref()
            .and_then(|inode| inode.file())
            .is_some_and(|file| file.direct.passed.lock().modes.is_open_for_changes())
    }

    /// Counts reads and writes that bypassed the daemon as use, as far as they are known.
    fn warm_after_passthrough(
        &self,
        inode: &Inode,
        file: &FileState,
        purpose: OpenPurpose,
        pages_before: Option<&PagesSeen>,
    ) {
        if purpose == OpenPurpose::Read {
            self.note_accessed(inode);
        }
        let kind = if purpose == OpenPurpose::Change { AccessKind::Write } else { AccessKind::Read };
        self.note_bypassing_use(inode, file, kind, pages_before);
    }
}

/// Takes over the modification time of an object that was changed without the daemon.
pub(super) fn adopt_object_time(inode: &Inode, modified: Timestamp) {
    let mut common = inode.common.write();
    // The kernel stamps objects with the time of its last tick, which lies behind the clock that stamps the daemon's changes.
    if !modified.is_shortly_before(common.modified, KERNEL_TICK_MAX) {
        common.modified = modified;
    }
    common.changed = common.changed.max(modified);
    inode.times_dirty.store(true, Ordering::Release);
}

/// Whether a tier has the space that a file may take which is changed directly.
fn has_space_for(tier: &TierHandle, stat: &ObjectStat) -> bool {
    tier.headroom() >= room_wanted(stat) && !tier.is_above_high_mark()
}

/// Space that a file takes if all of it is written, and some growth.
fn room_wanted(stat: &ObjectStat) -> u64 {
    stat.size.saturating_sub(stat.allocated).saturating_add(stat.size.clamp(GROWTH_MIN, GROWTH_MAX))
}

fn through_daemon(pages: PagesKept) -> IoDecision {
    IoDecision { mode: IoMode::Cached, backing: None, pages, closing: ClosingHeard::Yes }
}
