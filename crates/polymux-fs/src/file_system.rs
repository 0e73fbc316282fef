//! The public face: one type, usable without FUSE. The functions for moves are in a file of their own.

mod background;
mod losses;
mod moves;
mod rest;
mod steering;

pub use steering::{NamedRule, SteeringError, check_rules};

pub use background::{BackgroundThreads, MOVERS_DEFAULT};

use std::sync::{Arc, Weak};

use polymux_data::io::LeasedFile;
use polymux_data::namespace::MovedDirectories;
use polymux_records::attributes::HandleId;
use polymux_records::attributes::{
    AllocateKind, AttributeFlags, Attributes, DirectoryEntry, DirectoryNames, NodeKind, OpenOptions, RenameMode,
    SetAttributes, SyncKind, VolumeSpace, WriteOrigin, XattrMode,
};
use polymux_records::blockmap::{OutsideUser, PageChange};
use polymux_records::caller::Caller;
use polymux_records::error::{Error, Result};
use polymux_records::lease::LeasePort;
use polymux_records::parts::{MountOptions, NewVolume, Parts, Progress, TierMember, VolumeError};
use polymux_records::passthrough::{IoDecision, PagesPort, PassthroughPort};
use polymux_records::report::{FileLocation, TierFiles, VolumeStatus};
use polymux_tier::SeekTarget;
use polymux_types::{Ino, LeaseApplicant, LeaseRefusal, LeaseTicket, LeaseWish, OutsideUse, TierId, Timestamp};

use self::rest::Rest;
use crate::check::{CheckMode, OnProgress, VolumeCheck};
use crate::mounted::Mounted;
use crate::rebuild::{OnRebuildProgress, RebuildReport, RebuildSource};

/// One mounted volume. Every method takes `&self` and may be called from any thread.
///
/// Errors carry an errno ([`Error::errno`]); where a method says nothing else, they are those of the system call of the
/// same purpose on Linux.
pub struct FileSystem {
    mounted: Mounted,
    rest: Arc<Rest>,
}

impl FileSystem {
    /// Makes a new volume: its records in the (empty) store, durably, then the labels of the tiers.
    ///
    /// # Errors
    /// Where a tier is missing or carries a label already, or the store holds a volume, nothing was changed.
    pub fn format(parts: &Parts, volume: &NewVolume) -> std::result::Result<(), VolumeError> {
        crate::recover::format(parts, volume)
    }

    /// Checks every record of a volume that is not mounted, and its tiers. [`CheckMode::Repair`] repairs all repairable
    /// findings and recovers the volume as a mount would. With [`CheckMode::Report`] nothing changes, and store and tiers
    /// may be open for reading only. `on_progress` is called now and then with the progress, and ends the check with `Break`.
    ///
    /// # Errors
    /// The store or a tier cannot be read, a tier belongs to another volume, the volume is of a newer format; EINTR where
    /// `on_progress` ended the check: repairs made until then stay. Inconsistent records are a finding, never an error.
    pub fn check(
        parts: Parts,
        options: MountOptions,
        mode: CheckMode,
        on_progress: OnProgress<'_>,
    ) -> std::result::Result<VolumeCheck, VolumeError> {
        crate::recover::check_unmounted(parts, options, mode, on_progress)
    }

    /// Makes the records of a volume from the contents of its tiers, in an empty store that is not in use; without a store it only
    /// reports the expected result. Nothing on a tier is changed or removed; docs/design/0013 lists the additions.
    ///
    /// # Errors
    /// A tier is missing, cannot be read or belongs to another volume; the store is not empty or cannot be written; EINTR
    /// where `on_progress` ended it.
    pub fn rebuild(
        source: &RebuildSource,
        store: Option<&dyn polymux_meta::MetadataStore>,
        on_progress: OnRebuildProgress<'_>,
    ) -> std::result::Result<RebuildReport, VolumeError> {
        crate::rebuild::rebuild(source, store, on_progress)
    }

    /// Checks the volume while it is in use, and changes nothing. Concurrent changes may look wrong for a moment, so only
    /// problems that were found several times are reported.
    ///
    /// # Errors
    /// As [`FileSystem::check`].
    pub fn check_mounted(&self, on_progress: OnProgress<'_>) -> Result<VolumeCheck> {
        self.logged("check", crate::recover::check_mounted(&self.mounted, on_progress))
    }

    /// Checks labels and epochs, raises the epoch, and recovers where the last stop was unclean.
    ///
    /// # Errors
    /// Where a check fails nothing was changed.
    pub fn mount(parts: Parts, options: MountOptions) -> std::result::Result<Self, VolumeError> {
        let rest = Arc::new(Rest::new(rest::rest_after(&options)));
        crate::recover::mount(parts, options).map(|mounted| Self { mounted, rest })
    }

    /// Drains everything, syncs the tiers, settles sizes and stamps the tiers clean. Open descriptions are closed.
    /// A second call does nothing.
    pub fn unmount(&self) -> Result<()> {
        self.mounted.mover.stop_movers();
        self.logged("unmount", self.mounted.unmount())
    }

    /// Takes a tier into the volume while it is in use; returns its number, which no other tier ever had.
    ///
    /// `position` is its place in the speed order, 0 the fastest. `list` puts it into the configuration, durably: it is
    /// called once the tier has its label and before it takes any data, so that after a crash at any point the volume
    /// mounts with the configuration as it is then. Where `list` fails, everything is taken back.
    ///
    /// # Errors
    /// Where the name is in use, the tier is missing or carries a label, or there are too many tiers, nothing was changed.
    pub fn add_tier(
        &self,
        member: TierMember,
        position: usize,
        list: impl FnOnce() -> std::result::Result<(), String>,
    ) -> std::result::Result<TierId, VolumeError> {
        self.mounted.add_tier(member, position, list)
    }

    /// Begins to empty a tier: that is put on record, durably, it gets no new data from now on, also after the next mount,
    /// and every file on it moves to others. Returns the number of the tier.
    ///
    /// # Errors
    /// The tier is unknown, drains already, holds the metadata store, or is the last one that takes files; or the others
    /// do not have enough space. Then nothing was changed.
    pub fn start_drain(&self, name: &str) -> std::result::Result<TierId, VolumeError> {
        self.mounted.drain(name)
    }

    /// Puts on record, durably, that a tier is used again as any other. Returns its number.
    ///
    /// # Errors
    /// The tier is unknown or does not drain.
    pub fn cancel_drain(&self, name: &str) -> std::result::Result<TierId, VolumeError> {
        self.mounted.cancel_drain(name)
    }

    /// Takes a tier that holds nothing out of the volume, and its label away, so that the directory can be used again.
    ///
    /// `unlist` takes it out of the configuration, durably: it is called before the label goes, so that after a crash at
    /// any point the volume mounts with the configuration as it is then. Where `unlist` fails, everything is taken back.
    ///
    /// # Errors
    /// The tier is unknown, holds anything at all or the metadata store, or is the last one that takes files.
    pub fn remove_tier(
        &self,
        name: &str,
        unlist: impl FnOnce() -> std::result::Result<(), String>,
    ) -> std::result::Result<(), VolumeError> {
        self.mounted.remove_tier(name, unlist)
    }

    /// Measures the capabilities of a tier's device, for about so long, and records them durably. Other users of the tier are
    /// slower meanwhile, and are measured with it. `on_progress` is called now and then with the progress, and ends it with
    /// `Break`: then nothing is recorded. Nothing stays on the tier in any case.
    ///
    /// # Errors
    /// The tier is unknown, missing, failing or nearly full, has no device, or is being measured already; EINTR where
    /// `on_progress` ended it.
    pub fn measure_tier(
        &self,
        name: &str,
        time: std::time::Duration,
        on_progress: polymux_tier::measure::OnMeasureProgress<'_>,
    ) -> std::result::Result<polymux_records::report::TierProfile, VolumeError> {
        self.mounted.measure_tier(name, time, on_progress)
    }

    /// Drops the pages of a file from memory, as far as the file systems of its tiers do that on request: the next reads come
    /// from the devices. Unsynced data stays. For measuring.
    pub fn forget_pages(&self, ino: Ino) -> Result<()> {
        self.logged("forget_pages", self.mounted.forget_pages(ino))
    }

    /// One round of all background work but the moving of blocks: the work of [`BackgroundThreads`] on several threads, one
    /// after the other.
    pub fn step(&self) -> Progress {
        self.mounted.watch_step();
        let tiers = self.mounted.volume.tiers.all();
        let steps = [self.mounted.volume_step(), self.mounted.upkeep_step()];
        let of_tier =
            |tier: TierId| [self.tier_step(tier), self.write_behind_step(tier), self.sync_rewritten_step(tier)];
        let of_tiers = tiers.iter().flat_map(|tier| of_tier(tier.id));
        let worked = steps.into_iter().chain(of_tiers.collect::<Vec<_>>()).chain([self.mounted.mover.plan_step()]);
        if worked.filter(|progress| *progress == Progress::Worked).count() > 0 {
            Progress::Worked
        } else {
            Progress::Idle
        }
    }

    /// Part of [`FileSystem::step`]: the periodic flush, and planning of the next moves. Nothing that one tier does keeps it
    /// from coming to its end.
    pub fn volume_step(&self) -> Progress {
        match (self.mounted.volume_step(), self.mounted.mover.plan_step()) {
            (Progress::Idle, Progress::Idle) => Progress::Idle,
            _ => Progress::Worked,
        }
    }

    /// Part of [`FileSystem::step`]: syncs files of a tier that were emptied, rewritten and closed, where no close was heard of.
    pub fn sync_rewritten_step(&self, tier: TierId) -> Progress {
        self.mounted.sync_rewritten_step(tier)
    }

    /// Part of [`FileSystem::step`]: starts the writeback of a tier's pending data, or waits for the oldest one started there.
    pub fn write_behind_step(&self, tier: TierId) -> Progress {
        if self.mounted.data.write_behind.step(tier) { Progress::Worked } else { Progress::Idle }
    }

    /// Part of [`FileSystem::step`]: work that proceeds file by file, such as finding sizes after an unclean stop.
    pub fn upkeep_step(&self) -> Progress {
        self.mounted.upkeep_step()
    }

    /// Part of [`FileSystem::step`] that concerns one tier: carrying out pending frees; a tier that failed is tried, and one
    /// that is missing is looked for. It may wait for that tier and for no other.
    pub fn tier_step(&self, tier: TierId) -> Progress {
        match self.mounted.look_for_tier(tier) {
            Progress::Idle => self.mounted.tier_step(tier),
            Progress::Worked => Progress::Worked,
        }
    }

    /// Part of [`FileSystem::step`]: looks at the calls that are under way on the tiers, and decides which tiers do not
    /// answer (docs/design/0014). Never waits for one. Unless it is called again and again, no tier counts as silent.
    pub fn watch_step(&self) {
        self.mounted.watch_step();
    }

    /// Whether attributes that were answered stay right until they are changed here: not while a size may be a guess, because
    /// the tier that knows it is missing or does not answer. Asked after the attributes.
    #[must_use]
    pub fn may_keep_attributes(&self) -> bool {
        !self.mounted.volume.size_recovery.has_guessed.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Names of the tiers that do not answer. No tier is asked.
    #[must_use]
    pub fn tiers_not_answering(&self) -> Vec<String> {
        self.mounted.tiers_not_answering()
    }

    /// Threads whose call to a tier that does not answer has not come back, as [`polymux_types::thread_token`] names them.
    #[must_use]
    pub fn stuck_threads(&self) -> Vec<usize> {
        self.mounted.stuck_threads()
    }

    /// Lets other movers go on in place of these, which are stuck.
    pub(crate) fn replace_movers(&self, stuck: &[usize]) {
        self.mounted.replace_movers(stuck);
    }

    /// Threads whose call to a tier takes too long, as [`polymux_types::thread_token`] names them, for which the reason may be that a program holds an object. None
    /// where programs have no objects.
    #[must_use]
    pub fn held_up_threads(&self) -> Vec<usize> {
        self.mounted.held_up_threads()
    }

    /// Carries out one batch of moves. Several threads may call it; each takes a batch of its own.
    pub fn move_step(&self) -> Progress {
        self.mounted.mover.move_step()
    }

    /// The front end reports each request from now on ([`FileSystem::note_use`]), so that the volume may rest while there is none
    /// (docs/design/0038).
    pub fn allow_rest(&self) {
        self.rest.allow();
    }

    /// The front end reports no more requests. A volume that rests wakes.
    pub fn forbid_rest(&self) {
        self.rest.forbid();
    }

    /// A request is about to be served. Returns whether the volume rested until now.
    pub fn note_use(&self) -> bool {
        self.rest.note_use()
    }

    /// Whether the volume rests.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.rest.is_resting()
    }

    /// Sleeps for `awake`; where the volume rests, until it does no more, or for some 20 s. Returns whether it rested. For threads of a front end that
    /// look now and then for something that only requests bring about.
    pub fn pause(&self, awake: std::time::Duration) -> bool {
        self.rest.pause(awake)
    }

    /// Looks whether the volume is in use, for a thread that watches a volume with so many movers.
    fn look_for_use(&self, movers: u16) {
        let has_moves = || movers > 0 && (self.mounted.mover.has_moves_to_make() || self.mounted.mover.is_planning());
        self.rest.look(self.mounted.volume.clock.elapsed(), || self.mounted.may_rest() && !has_moves());
    }

    /// Work in the background counts as use of the volume.
    fn note_progress(&self, progress: Progress) -> Progress {
        if progress == Progress::Worked {
            self.rest.note_use();
        }
        progress
    }

    fn logged<T>(&self, operation: &str, result: Result<T>) -> Result<T> {
        result.inspect_err(|error: &Error| {
            if let Some(level) = error.log_level() {
                log::log!(level, "volume {}: {operation}: {error}", self.mounted.volume.name);
            }
        })
    }

    /// Finds a name in a directory; `.` and `..` are understood.
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attributes> {
        self.logged("lookup", self.mounted.lookup(caller, parent, name))
    }

    /// The directory that a directory lies in; the root for itself.
    pub fn parent_of(&self, caller: &Caller, directory: Ino) -> Result<Attributes> {
        self.lookup(caller, directory, b"..")
    }

    /// Keeps an inode in service while it is referenced by number, although it may have no name (FUSE lookup
    /// counts). One that does not exist is ignored.
    pub fn pin(&self, ino: Ino) {
        self.mounted.volume.pin(ino);
    }

    /// Takes `count` pins back; with the last one an inode without a name goes.
    pub fn unpin(&self, ino: Ino, count: u64) {
        if let Err(error) = self.logged("forget", self.mounted.data.unpin(ino, count)) {
            log::debug!("inode {ino} is deleted at the next mount: {error}");
        }
    }

    /// Keeps all inodes without a name in service, once each, as [`FileSystem::pin`] does; returns them. For a mount that takes a connection
    /// over ([`crate::KernelConnection::TakenOver`]): inodes that the kernel does not hold are unpinned then.
    pub fn pin_orphans(&self) -> Result<Vec<Ino>> {
        self.logged("recovery of files without a name", self.mounted.volume.pin_orphans())
    }

    /// Numbers of descriptions begin here, above those that an earlier daemon gave to the kernel. Called before anything is opened.
    pub fn begin_handles_at(&self, first: HandleId) {
        self.mounted.data.handles.begin_at(first.0);
    }

    /// Opens a file for a description that the kernel has since before this mount, under the number that it has of it.
    ///
    /// # Errors
    /// There is no such file, or it cannot be used as it was opened.
    pub fn restore_handle(&self, handle: HandleId, ino: Ino, options: OpenOptions) -> Result<()> {
        self.logged("recovery of an open file", self.mounted.restore_handle(handle, ino, options))
    }

    /// Whether acknowledged changes survive a kill of the process of this file system: its memory outlives it.
    pub fn outlives_its_process(&self) -> bool {
        self.mounted.volume.metadata.notes().is_some()
    }

    /// The attributes of an inode.
    pub fn attributes(&self, caller: &Caller, ino: Ino) -> Result<Attributes> {
        self.logged("getattr", self.mounted.attributes(caller, ino))
    }

    /// Changes attributes, the size among them; returns them all.
    pub fn set_attributes(&self, caller: &Caller, ino: Ino, change: &SetAttributes) -> Result<Attributes> {
        self.logged("setattr", self.mounted.set_attributes(caller, ino, change))
    }

    /// Takes over the modification and change time that a kernel which collects writes has kept of a file so far; they are durable as
    /// those of plain writes are. The bytes of a small file are logged with them, because this may be all that is heard of a close.
    pub fn take_over_times(
        &self,
        caller: &Caller,
        ino: Ino,
        modified: Timestamp,
        changed: Timestamp,
    ) -> Result<Attributes> {
        self.logged("setattr", self.mounted.take_over_times(caller, ino, modified, changed))
    }

    /// Makes the file systems of the tiers give back space that they preallocated for writes (XFS), which does not count as available.
    pub fn give_back_room_ahead(&self) {
        self.mounted.volume.tiers.give_back_room_ahead();
    }

    /// Whether a file system that answers is still giving back preallocated space; a question for its free space waits for that.
    #[must_use]
    pub fn is_giving_back_room_ahead(&self) -> bool {
        self.mounted.volume.tiers.are_giving_back_room_ahead()
    }

    /// Whether more space is about to be available: removed bytes are still to be freed, a move holds space on two tiers, or a file system is
    /// still giving back preallocated space.
    #[must_use]
    pub fn is_freeing_space(&self) -> bool {
        self.mounted.mover.is_freeing_space()
    }

    /// Attributes of a regular file as far as they are known without asking a tier; its blocks are not, and its size may be a guess.
    pub fn known_attributes(&self, ino: Ino) -> Result<Attributes> {
        self.mounted.known_attributes(ino)
    }

    /// The file that a rename would put in the place of another one, if it is open for changes. Asks no tier.
    pub fn open_replacement(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Option<Ino> {
        self.mounted.open_replacement(from, to)
    }

    /// Whether the caller may do all of `mask`: 4 read, 2 write, 1 execute or search; 0 asks for existence.
    pub fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.logged("access", self.mounted.check_mask(caller, ino, mask))
    }

    /// Makes an empty regular file, a fifo, a socket or a device node.
    pub fn make_node(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: NodeKind,
        permissions: u32,
    ) -> Result<Attributes> {
        self.logged("mknod", self.mounted.make_node(caller, parent, name, kind, permissions))
    }

    /// Makes a directory.
    pub fn make_directory(&self, caller: &Caller, parent: Ino, name: &[u8], permissions: u32) -> Result<Attributes> {
        self.logged("mkdir", self.mounted.make_directory(caller, parent, name, permissions))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attributes> {
        self.logged("symlink", self.mounted.make_symlink(caller, parent, name, target))
    }

    /// The target of a symbolic link.
    pub fn read_symlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        let _ = caller;
        self.logged("readlink", self.mounted.read_symlink(ino))
    }

    /// Gives a file another name.
    pub fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        self.logged("link", self.mounted.link(caller, ino, parent, name))
    }

    /// Takes the name of a file away.
    pub fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.logged("unlink", self.mounted.unlink(caller, parent, name))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.logged("rmdir", self.mounted.remove_directory(caller, parent, name))
    }

    /// Renames a name, replacing or exchanging an existing one according to the flags.
    pub fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_reporting_moves(caller, (parent, name), (new_parent, new_name), mode).map(drop)
    }

    /// As [`FileSystem::rename`]; returns the directories that have another parent now, in whose listings `..` is another one.
    pub fn rename_reporting_moves(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<MovedDirectories> {
        self.logged("rename", self.mounted.rename(caller, from, to, mode))
    }

    /// Entries of a directory after a cookie (0: from the start), at most `limit`; `.` and `..` are not among them, and
    /// cookies below 16 are never given. Permission is not checked: that is the kernel's part of a mount, and [`FileSystem::check_listing`] without one.
    pub fn read_directory(
        &self,
        caller: &Caller,
        directory: Ino,
        after: u64,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        let _ = caller;
        self.logged("readdir", self.mounted.read_directory(directory, after, limit))
    }

    /// A change of the names in a directory failed, and may have been made all the same: they count as others from now on.
    pub fn end_edition(&self, directory: Ino) -> Result<()> {
        self.logged("readdir", self.mounted.end_edition(directory))
    }

    /// Checks that a directory may be listed.
    pub fn check_listing(&self, caller: &Caller, directory: Ino) -> Result<()> {
        self.logged("readdir", self.mounted.check_listing(caller, directory))
    }

    /// Which names are in a directory now.
    pub fn directory_names(&self, directory: Ino) -> Result<DirectoryNames> {
        self.logged("readdir", self.mounted.directory_names(directory))
    }

    /// Makes the names in a directory durable.
    pub fn sync_directory(&self, caller: &Caller, directory: Ino) -> Result<()> {
        self.logged("fsyncdir", self.mounted.sync_directory(caller, directory))
    }

    /// Makes a regular file, or opens the one that is there unless `exclusive` is set, and opens it.
    pub fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        permissions: u32,
        options: OpenOptions,
    ) -> Result<(Attributes, HandleId)> {
        self.logged("create", self.mounted.create(caller, parent, name, permissions, options))
    }

    /// A regular file without a name (`O_TMPFILE`); [`FileSystem::link`] can give it one.
    pub fn create_unnamed(
        &self,
        caller: &Caller,
        parent: Ino,
        permissions: u32,
        options: OpenOptions,
    ) -> Result<(Attributes, HandleId)> {
        self.logged("tmpfile", self.mounted.create_unnamed(caller, parent, permissions, options))
    }

    /// Opens a regular file.
    pub fn open(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<HandleId> {
        self.logged("open", self.mounted.open(caller, ino, options))
    }

    /// Sets the port that registers objects which the kernel uses itself. Once for each mount, before anything is opened. That
    /// a port is set is recorded; on a read-only volume nothing can be.
    ///
    /// # Errors
    /// It cannot be recorded: nothing is passed through.
    pub fn set_passthrough_port(&self, port: Arc<dyn PassthroughPort>) -> Result<()> {
        if self.mounted.volume.is_read_only() {
            return Ok(());
        }
        self.mounted.data.record_boot()?;
        assert!(
            self.mounted.data.kernel.passthrough_port.set(port).is_ok(),
            "a mount has one connection to the kernel"
        );
        Ok(())
    }

    /// Whether programs may have objects since before this mount that the kernel gave them: then sizes change that no message tells of.
    pub fn may_be_held(&self) -> bool {
        self.mounted.data.holders.are_possible()
    }

    /// The kernel of this mount collects writes before it sends them (docs/design/0036). Once for each mount, before anything is opened.
    pub fn set_kernel_collects_writes(&self) {
        self.mounted.data.kernel.collects_writes.store(true, std::sync::atomic::Ordering::Release);
    }

    /// The files of all descriptions that may change theirs.
    pub fn files_open_for_changes(&self) -> Vec<Ino> {
        self.mounted.data.handles.files_open_for_changes()
    }

    /// Whether a description may change its file.
    pub fn may_change(&self, handle: HandleId) -> Result<bool> {
        Ok(self.mounted.data.handles.get(handle)?.options.write)
    }

    /// Decides how an open file description does its I/O (DESIGN section 10). Called once for each that the kernel has, before
    /// the kernel is notified. Users of the file system without the kernel do not call it.
    pub fn decide_io_mode(&self, handle: HandleId) -> Result<IoDecision> {
        self.logged("open", self.mounted.decide_io_mode_of(handle))
    }

    /// Programs get leases through this port from now on, while the caller keeps it. Once for each mount.
    pub fn set_lease_port(&self, port: Weak<dyn LeasePort>) {
        assert!(self.mounted.data.kernel.lease_port.set(port).is_ok(), "a mount has one door");
        // Programs may have kept objects that they had to read in an earlier mount, of which there is no record.
        self.mounted.volume.tiers.all().iter().for_each(|tier| tier.note_objects_out());
    }

    /// The pages that the kernel of this mount has are reached through this port. Once for each mount.
    pub fn set_pages_port(&self, port: Arc<dyn PagesPort>) {
        assert!(self.mounted.data.kernel.pages_port.set(port).is_ok(), "a mount has one connection to the kernel");
    }

    /// A ticket for a lease on the file of an open description.
    ///
    /// # Errors
    /// Why there is none.
    pub fn issue_lease_ticket(
        &self,
        handle: HandleId,
        applicant: LeaseApplicant,
    ) -> std::result::Result<LeaseTicket, LeaseRefusal> {
        self.mounted.data.issue_lease_ticket(handle, applicant)
    }

    /// Leases the file of an open description to a program, which uses it by a copy of its map: at most `runs_max` runs from the beginning on. `user` is
    /// recalled before the map changes, once. May wait for the kernel, so that a thread that serves it must not call this.
    ///
    /// # Errors
    /// A tier failed, or the description is gone. A file that cannot be leased is no error.
    pub fn lease_file(
        &self,
        handle: HandleId,
        runs_max: usize,
        wish: LeaseWish,
        user: Arc<dyn OutsideUser>,
    ) -> Result<std::result::Result<LeasedFile, LeaseRefusal>> {
        let data = &self.mounted.data;
        self.logged("lease", data.handles.get(handle).and_then(|handle| data.lease_file(&handle, runs_max, wish, user)))
    }

    /// Counts writes of a leased file, and reads that devices served, as use of one of its range nodes.
    pub fn note_outside_use(&self, leased: &LeasedFile, node: u64, uses: OutsideUse) {
        self.mounted.data.note_outside_use(leased, node, uses);
    }

    /// The kernel of this mount is about to have pages with bytes of a file from an offset on. Before it reads or writes them.
    ///
    /// # Errors
    /// The caller must not wait, and would have to.
    pub fn begin_page_use(&self, caller: &Caller, handle: HandleId, offset: u64, change: PageChange) -> Result<()> {
        self.mounted.data.begin_page_use(handle, offset, change, caller.wait)
    }

    /// Whether the attributes of a file change without notice: the kernel must not cache them.
    #[must_use]
    pub fn is_changed_directly(&self, ino: Ino) -> bool {
        self.mounted.data.is_changed_directly(ino)
    }

    /// Whether a description is open whose I/O was decided ([`FileSystem::decide_io_mode`]) and that may change the file.
    #[must_use]
    pub fn is_open_for_changes(&self, ino: Ino) -> bool {
        self.mounted.data.is_open_for_changes(ino)
    }

    /// Whether no tier holds bytes of an open file: they are in the metadata store, or there are none yet.
    pub fn is_inline(&self, handle: HandleId) -> Result<bool> {
        self.mounted.is_inline(handle)
    }

    /// Reads at an offset; returns the number of bytes, which is less than asked for only at the end of the file.
    pub fn read(&self, caller: &Caller, handle: HandleId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.logged("read", self.mounted.read(caller, handle, offset, buffer))
    }

    /// Writes at an offset, or at the end of a file opened with [`OpenOptions::append`]; returns the number of bytes,
    /// which is less than requested only when space ran out in the middle. Writes up to 1 MiB are atomic among writes.
    /// Data from the page cache of a kernel ([`WriteOrigin::is_from_cache`]) is written whole, or the write fails, and each open file
    /// description receives the error with its next sync or close.
    pub fn write(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<usize> {
        self.logged("write", self.mounted.write(caller, handle, offset, data, origin))
    }

    /// Writes at the end of a file that was opened with [`OpenOptions::append`], and returns at which offset, and the number of bytes.
    pub fn append(&self, caller: &Caller, handle: HandleId, data: &[u8], origin: WriteOrigin) -> Result<(u64, usize)> {
        self.logged("write", self.mounted.append(caller, handle, data, origin))
    }

    /// As [`FileSystem::write`], of all of the data or none: where only a part fits, it fails with `ENOSPC` and does not make the file
    /// longer. The caller ensures that no other writer makes the file longer meanwhile, as the kernel does for direct writes.
    pub fn write_whole(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<usize> {
        self.logged("write", self.mounted.write_whole(caller, handle, offset, data, origin))
    }

    /// One descriptor of the description was closed (`close(2)`); reports errors that this description has not received yet.
    pub fn flush(&self, caller: &Caller, handle: HandleId) -> Result<()> {
        self.logged("flush", self.mounted.flush(caller, handle))
    }

    /// The description is gone.
    pub fn release(&self, handle: HandleId) -> Result<()> {
        self.logged("release", self.mounted.release(handle))
    }

    /// Releases a description whose number never reached the program that opened it.
    pub fn take_back(&self, handle: HandleId) -> Result<()> {
        self.logged("release", self.mounted.take_back(handle))
    }

    /// As [`Self::release`], for a caller that must not wait for a tier.
    ///
    /// # Errors
    /// [`crate::ErrorKind::WouldBlock`]: nothing was done, and a caller that may wait has to release it.
    pub fn release_at_once(&self, handle: HandleId) -> Result<()> {
        self.logged("release", self.mounted.release_at_once(handle))
    }

    /// Makes a file durable on all its tiers (`fsync`, `fdatasync`).
    pub fn sync(&self, caller: &Caller, handle: HandleId, kind: SyncKind) -> Result<()> {
        self.logged("fsync", self.mounted.sync(caller, handle, kind))
    }

    /// Makes everything durable (`syncfs`).
    pub fn sync_volume(&self) -> Result<()> {
        self.logged("syncfs", self.mounted.sync_volume())
    }

    /// Reserves space, punches holes or zeroes ranges (`fallocate`).
    pub fn allocate(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        length: u64,
        kind: AllocateKind,
    ) -> Result<()> {
        self.logged("fallocate", self.mounted.allocate(caller, handle, offset, length, kind))
    }

    /// `SEEK_DATA` and `SEEK_HOLE`: the end of the file is a hole; ENXIO at or beyond it.
    pub fn seek(&self, caller: &Caller, handle: HandleId, offset: u64, target: SeekTarget) -> Result<u64> {
        let _ = caller;
        self.logged("lseek", self.mounted.seek(handle, offset, target))
    }

    /// Copies bytes from one open file to another; may copy less than asked for.
    pub fn copy_range(
        &self,
        caller: &Caller,
        source: HandleId,
        source_offset: u64,
        target: HandleId,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let copied = self.mounted.copy_range(caller, (source, source_offset), (target, target_offset), length);
        self.logged("copy_file_range", copied)
    }

    /// The value of an extended attribute; ENODATA where there is none.
    pub fn xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.logged("getxattr", self.mounted.xattr(caller, ino, name))
    }

    /// Sets an extended attribute; the two ACL attributes act on the permission bits too.
    pub fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.logged("setxattr", self.mounted.set_xattr(caller, ino, name, value, mode))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.logged("removexattr", self.mounted.remove_xattr(caller, ino, name))
    }

    /// The flags of a file or directory; ENOTTY for anything else.
    pub fn attribute_flags(&self, ino: Ino) -> Result<AttributeFlags> {
        self.logged("getflags", self.mounted.attribute_flags(ino))
    }

    /// Sets the flags of a file or directory. EBUSY: the file is to be immutable or append-only, and the kernel changes it without a
    /// word.
    pub fn set_attribute_flags(&self, caller: &Caller, ino: Ino, flags: AttributeFlags) -> Result<()> {
        self.logged("setflags", self.mounted.set_attribute_flags(caller, ino, flags))
    }

    /// Names of extended attributes, in no particular order.
    pub fn list_xattrs(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.logged("listxattr", self.mounted.list_xattrs(caller, ino))
    }

    /// Space on the volume (`statfs`).
    pub fn space(&self) -> Result<VolumeSpace> {
        Ok(self.mounted.volume_space())
    }

    /// State of the volume and its tiers.
    pub fn status(&self) -> Result<VolumeStatus> {
        Ok(self.mounted.status())
    }

    /// The files that depend on a tier: their number, and the first `listed_max` of them. No tier is asked.
    ///
    /// # Errors
    /// ENOENT: there is no such tier.
    pub fn files_of_tier(&self, tier: &str, listed_max: usize) -> Result<TierFiles> {
        self.mounted.files_of_tier(tier, listed_max)
    }

    /// Where the bytes of a file are.
    pub fn locate(&self, ino: Ino) -> Result<FileLocation> {
        self.logged("where", self.mounted.locate(ino))
    }
}
