//! Each object carries a stamp that describes its file, for rebuilding a volume whose metadata is lost (docs/design/0013).
//!
//! Invariants:
//! * Nothing reads a stamp while the metadata exists, so stamps are written lazily, in the background, in steps of bounded work,
//!   and best effort: a tier that cannot hold one costs no more than a worse guess later.
//! * Which stamps are late is known in memory ([`crate::inode::LateStamps`]). After a crash, and for late stamps that memory
//!   forgot, the durable mark says from which change on inode records have to be looked at; renamed directories have their own records.
//! * The mark never passes a change whose stamp is not written yet, and stays behind the present by [`MARK_LAG_SECONDS`], so
//!   that the stamps it passed have reached the devices.
//! * The contents of a stamp are durable in the log before it is written.
//! * The place in the order of transactions is taken before a path is read: of two stamps that contradict one another the one
//!   with the later place is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polymux_meta::Batch;
use polymux_records::attributes::FileKind;
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::store::{InodeBody, ObjectEntry, StampMark, keys};
use polymux_tier::{ObjectStamp, StampDirectory, StampOrder, StampRefresh, TierError};
use polymux_types::sync::Mutex;
use polymux_types::{Errno, Ino, Timestamp};

use crate::inode::{FileState, Inode, LateFile, LateStamps, StampWalks, WalkBelow, reference_of};
use crate::volume::Volume;

/// Files described, or looked at, in a step,
const FILES_PER_STEP: usize = 128;
/// and the time after which a step ends anyway.
const STEP_TIME_MAX: Duration = Duration::from_millis(10);
/// Records looked at in a step of a walk.
const RECORDS_PER_STEP: usize = 1024;
/// Files described before an unmount that comes early.
const FILES_AT_UNMOUNT: usize = 16_384;
/// How far the mark stays behind: longer than the file systems below keep an attribute in memory, and longer than an operation
/// takes from its time to its note here.
const MARK_LAG_SECONDS: i64 = 120;
/// A mark is written when it would move by so much.
const MARK_STEP_SECONDS: i64 = 60;
/// How long a step waits for objects that programs have open.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time after which objects that could not be described are tried again.
const RETRY_MS: u64 = 600_000;

/// Deepest path that is described.
const PATH_DEPTH_MAX: usize = 4096;

/// The remaining budget of a step, and the stamps it is about to write.
struct Step {
    files: usize,
    end: Duration,
    ready: Vec<(ObjectEntry, Arc<ObjectStamp>)>,
    /// The stamp of some file could not be determined.
    has_failed: bool,
}

/// The result of stamping a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamped {
    /// It is described, or there is nothing to describe.
    Done,
    /// A tier did not take it.
    Late,
}

/// The back-references of objects.
pub struct Stamps {
    volume: Arc<Volume>,
    /// Objects whose description does not follow yet.
    pub late_stamps: LateStamps,
    /// Held to write back-references; taken before every other lock.
    walks: Mutex<StampWalks>,
    /// The last unmount left no description to be written.
    pub were_complete: AtomicBool,
}

impl Stamps {
    /// Nothing is late yet.
    pub fn new(volume: Arc<Volume>) -> Self {
        Self {
            volume,
            late_stamps: LateStamps::default(),
            walks: Mutex::default(),
            were_complete: AtomicBool::new(false),
        }
    }

    /// Notes that the objects of a file are to be described anew, because its names or attributes changed just now.
    pub fn stamp_later(&self, inode: &Inode) {
        if inode.file().is_some_and(|file| !file.layout.read().objects.is_empty()) {
            self.note_late(inode);
        }
    }

    /// As [`Self::stamp_later`], for a file that has an object now, or is about to get one.
    pub fn note_late(&self, inode: &Inode) {
        let Some(file) = inode.file() else { return };
        if !file.stamp_due.swap(true, Ordering::AcqRel) {
            self.late_stamps.add(LateFile {
                ino: inode.ino,
                since_ms: self.volume.elapsed_ms(),
                since: self.volume.now(),
            });
        }
    }

    /// One round. Returns whether there is more to do at once.
    pub fn refresh_stamps(&self) -> Result<bool> {
        let mut walks = self.walks.lock();
        if walks.mark.is_none() {
            self.begin_stamping(&mut walks)?;
        }
        let mut step = Step {
            files: FILES_PER_STEP,
            end: self.volume.clock.elapsed() + STEP_TIME_MAX,
            ready: Vec::new(),
            has_failed: false,
        };
        let delay_ms = u64::from(self.volume.options.stamp_delay_ms);
        let before_ms = self.volume.elapsed_ms().checked_sub(delay_ms);
        let mut has_more = match before_ms {
            Some(before_ms) => self.stamp_noted(before_ms, &mut step),
            None => false,
        };
        has_more |= self.walk_below_directory(&mut walks, &mut step)?;
        has_more |= self.walk_records(&mut walks, &mut step)?;
        self.write_stamps(&mut walks, &mut step)?;
        self.move_stamp_mark(&mut walks)?;
        Ok(has_more)
    }

    /// Takes up the work that the last mount left.
    fn begin_stamping(&self, walks: &mut StampWalks) -> Result<()> {
        let mark = self.volume.metadata.stamp_mark()?.unwrap_or(StampMark::UNKNOWN);
        walks.mark = Some(mark);
        if self.were_complete.load(Ordering::Acquire) {
            walks.mark = Some(StampMark { is_complete: false, ..mark });
        } else {
            self.late_stamps.begin_walk();
            walks.after = Some(Ino(0));
        }
        for directory in self.volume.metadata.renamed_directories()? {
            self.late_stamps.add_directory(directory);
        }
        Ok(())
    }

    fn may_go_on(&self, step: &Step) -> bool {
        step.files > 0 && self.volume.clock.elapsed() <= step.end
    }

    fn stamp_noted(&self, before_ms: u64, step: &mut Step) -> bool {
        while self.may_go_on(step) {
            let Some(late) = self.late_stamps.take(before_ms) else { return false };
            self.stamp_file(late.ino, step);
        }
        true
    }

    /// Goes on below a directory that was renamed: whatever lies there has another path now.
    fn walk_below_directory(&self, walks: &mut StampWalks, step: &mut Step) -> Result<bool> {
        if walks.below.is_none() {
            let Some((top, renames)) = self.late_stamps.any_directory() else { return Ok(false) };
            if self.volume.elapsed_ms() < walks.retry_ms {
                return Ok(false);
            }
            walks.below = Some(WalkBelow { top, renames, path: vec![(top, 0)], is_whole: true });
        }
        while self.may_go_on(step) {
            let Some(walk) = &mut walks.below else { return Ok(true) };
            let Some((directory, after)) = walk.path.last().copied() else {
                self.write_stamps(walks, step)?;
                let walk = walks.below.take().expect("it was looked at just now");
                if walk.is_whole {
                    self.end_walk_below(&walk)?;
                } else {
                    walks.retry_ms = self.volume.elapsed_ms().saturating_add(RETRY_MS);
                    return Ok(false);
                }
                continue;
            };
            step.files -= 1;
            let Some(entry) = self.volume.metadata.directory_entries(directory, after, 1)?.pop() else {
                walk.path.pop();
                continue;
            };
            walk.path.last_mut().expect("it was looked at just now").1 = entry.cookie;
            match entry.kind {
                FileKind::Directory if walk.path.len() < PATH_DEPTH_MAX => walk.path.push((entry.ino, 0)),
                FileKind::Regular => self.stamp_file(entry.ino, step),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Deletes the record of a renamed directory, unless it was renamed again meanwhile.
    fn end_walk_below(&self, walk: &WalkBelow) -> Result<()> {
        match self.volume.inode(walk.top) {
            // Under the record lock it is not renamed.
            Ok(inode) => self.volume.transact(&[&inode], |transaction| {
                if self.late_stamps.is_unchanged(walk.top, walk.renames) {
                    transaction.batch.delete(keys::renamed_directory(walk.top));
                    self.late_stamps.remove_directory(walk.top);
                }
                Ok(())
            }),
            Err(error) if error.errno() == Errno::ENOENT => {
                let mut batch = Batch::new();
                batch.delete(keys::renamed_directory(walk.top));
                self.late_stamps.remove_directory(walk.top);
                self.volume.metadata.commit(batch).map(|_| ())
            }
            Err(error) => Err(error),
        }
    }

    /// Goes on with the walk over all inode records for files that changed since the mark, or begins one where that may help.
    fn walk_records(&self, walks: &mut StampWalks, step: &mut Step) -> Result<bool> {
        let now_ms = self.volume.elapsed_ms();
        if walks.after.is_none() && self.late_stamps.has_forgotten() && now_ms >= walks.retry_ms {
            self.late_stamps.begin_walk();
            walks.after = Some(Ino(0));
        }
        let Some(mut after) = walks.after else { return Ok(false) };
        let through = walks.mark.map_or(StampMark::UNKNOWN.through, |mark| mark.through);
        let page = self.volume.metadata.inodes_after(after, RECORDS_PER_STEP)?;
        for (ino, record) in &page {
            let has_objects = matches!(&record.body, InodeBody::Regular(file) if !file.objects.is_empty());
            if has_objects && record.changed >= through {
                if !self.may_go_on(step) {
                    walks.after = Some(after);
                    return Ok(true);
                }
                self.stamp_file(*ino, step);
            }
            after = *ino;
        }
        let is_last = page.len() < RECORDS_PER_STEP;
        if is_last {
            self.write_stamps(walks, step)?;
            self.late_stamps.end_walk();
        }
        walks.after = (!is_last).then_some(after);
        Ok(!is_last)
    }

    /// Puts on record how far stamps follow, where that moved enough.
    fn move_stamp_mark(&self, walks: &mut StampWalks) -> Result<()> {
        let Some(mark) = walks.mark else { return Ok(()) };
        let now = self.volume.now();
        let through = lagging(self.late_stamps.oldest().map_or(now, |oldest| oldest.min(now)));
        let is_behind = walks.after.is_some() || self.late_stamps.has_forgotten();
        let moved = through.seconds.saturating_sub(mark.through.seconds);
        // A clock that was set back gives changes times before the mark.
        let must_move_back = now < mark.through;
        if must_move_back || !is_behind && moved >= MARK_STEP_SECONDS {
            self.put_stamp_mark(walks, StampMark { through, is_complete: false })?;
        }
        Ok(())
    }

    fn put_stamp_mark(&self, walks: &mut StampWalks, mark: StampMark) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(keys::stamp_mark(), mark.encode());
        self.volume.metadata.commit(batch)?;
        walks.mark = Some(mark);
        Ok(())
    }

    /// Before an unmount, as far as that does not take long.
    pub fn stamp_before_unmount(&self) -> Result<()> {
        let mut walks = self.walks.lock();
        if walks.mark.is_none() {
            self.begin_stamping(&mut walks)?;
        }
        let mut step = Step { files: FILES_AT_UNMOUNT, end: Duration::MAX, ready: Vec::new(), has_failed: false };
        self.stamp_noted(u64::MAX, &mut step);
        self.write_stamps(&mut walks, &mut step)
    }

    /// After the tiers were synced for an unmount: whether anything is left to do.
    pub fn close_stamp_mark(&self) -> Result<()> {
        let mut walks = self.walks.lock();
        let is_behind = walks.after.is_some() || self.late_stamps.has_forgotten();
        match self.late_stamps.oldest() {
            None if !is_behind => {
                let through = lagging(self.volume.now());
                self.put_stamp_mark(&mut walks, StampMark { through, is_complete: true })
            }
            _ => Ok(()),
        }
    }

    /// Determines the stamps of a file's objects.
    fn stamp_file(&self, ino: Ino, step: &mut Step) {
        step.files = step.files.saturating_sub(1);
        match self.stamps_of_file(ino) {
            Ok(ready) => step.ready.extend(ready),
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => {
                log::debug!("volume {}: inode {ino} cannot be described: {error}", self.volume.name);
                step.has_failed = true;
            }
        }
    }

    fn stamps_of_file(&self, ino: Ino) -> Result<Vec<(ObjectEntry, Arc<ObjectStamp>)>> {
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(Vec::new()) };
        file.stamp_due.store(false, Ordering::Release);
        let objects = file.layout.read().objects.clone();
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let stamp = self.stamp_of(&inode, file)?.map(Arc::new);
        Ok(stamp.map_or_else(Vec::new, |stamp| objects.into_iter().map(|entry| (entry, Arc::clone(&stamp))).collect()))
    }

    /// Writes the stamps that a step has ready. No stamp may contain a name that a crash may still undo: it would remain the newest
    /// statement about that file for ever.
    fn write_stamps(&self, walks: &mut StampWalks, step: &mut Step) -> Result<()> {
        let mut has_failed = std::mem::take(&mut step.has_failed);
        if !step.ready.is_empty() {
            self.volume.flush_through(self.volume.metadata.committed())?;
        }
        let mut patience = PATIENCE;
        for (entry, stamp) in step.ready.drain(..) {
            has_failed |= self.stamp_object(&entry, stamp, &mut patience)? == Stamped::Late;
        }
        if has_failed {
            self.late_stamps.forget_some();
            walks.retry_ms = self.volume.elapsed_ms().saturating_add(RETRY_MS);
            if let Some(walk) = &mut walks.below {
                walk.is_whole = false;
            }
        }
        Ok(())
    }

    fn stamp_object(&self, entry: &ObjectEntry, stamp: Arc<ObjectStamp>, patience: &mut Duration) -> Result<Stamped> {
        // The tier may have left meanwhile, and its objects with it.
        let Ok(handle) = self.volume.tiers.by_id(entry.tier) else { return Ok(Stamped::Done) };
        if handle.present().is_none() {
            return Ok(Stamped::Late);
        }
        let object = reference_of(entry);
        match handle.change_object(object, patience, move |tier, _| tier.stamp(object, &stamp)) {
            Ok(()) => {
                Counters::count(&self.volume.counters.stamps_written);
                Ok(Stamped::Done)
            }
            // The object goes with its file, or a reader reports that it is missing.
            Err(TierError::NotFound(_)) => Ok(Stamped::Done),
            Err(error) => {
                log::debug!("object {:016x} stays without a stamp: {error}", entry.object);
                Counters::count(&self.volume.counters.stamps_failed);
                Ok(Stamped::Late)
            }
        }
    }

    /// Describes an object that a mover just made, so that its first sync makes that durable, too: no record of the file
    /// tells later that it moved.
    pub fn stamp_new_object(&self, inode: &Inode, entry: &ObjectEntry) -> Result<()> {
        let Some(file) = inode.file() else { return Ok(()) };
        if let Some(stamp) = self.stamp_of(inode, file)? {
            self.stamp_object(entry, Arc::new(stamp), &mut PATIENCE.clone())?;
        }
        Ok(())
    }

    /// The back-reference of a file; `None` where it has no name.
    fn stamp_of(&self, inode: &Inode, file: &FileState) -> Result<Option<ObjectStamp>> {
        let order = StampOrder { epoch: self.volume.epochs.present(), sequence: self.volume.metadata.committed() };
        let at = self.volume.now();
        let Some((path, directories)) = self.path_with_directories(inode.ino)? else { return Ok(None) };
        let known = file.sizes.is_known.load(Ordering::Acquire);
        let size = if known { file.size() } else { file.layout.read().size_floor };
        let common = inode.common.read();
        let may_have_xattrs = !inode.lacks_xattrs.load(Ordering::Acquire);
        let refresh = StampRefresh { order, at, size, links: common.links, may_have_xattrs, directories };
        Ok(Some(ObjectStamp {
            volume: self.volume.id,
            ino: inode.ino,
            generation: inode.generation,
            mode: inode.kind.type_bits() | common.permissions,
            uid: common.uid,
            gid: common.gid,
            modified: common.modified,
            path,
            refresh: Some(refresh),
        }))
    }

    /// One path of an inode, with the directories on it from the top; `None` where it has no name.
    fn path_with_directories(&self, ino: Ino) -> Result<Option<(Vec<u8>, Vec<StampDirectory>)>> {
        let (mut names, mut directories) = (Vec::new(), Vec::new());
        let mut present = ino;
        while present != Ino::ROOT {
            let Some((parent, name)) = self.volume.metadata.any_name(present)? else { return Ok(None) };
            let directory = match self.volume.inode(parent) {
                Ok(directory) => directory,
                // A concurrent deletion took the directory away.
                Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
                Err(error) => return Err(error),
            };
            let common = directory.common.read();
            directories.push(StampDirectory {
                ino: parent,
                permissions: u16::try_from(common.permissions & 0o7777).expect("twelve bits fit"),
                uid: common.uid,
                gid: common.gid,
            });
            names.push(name);
            present = parent;
            if names.len() > PATH_DEPTH_MAX {
                return Ok(None);
            }
        }
        names.reverse();
        directories.reverse();
        Ok(Some((names.join(&b'/'), directories)))
    }
}

fn lagging(moment: Timestamp) -> Timestamp {
    Timestamp { seconds: moment.seconds.saturating_sub(MARK_LAG_SECONDS), ..moment }
}
