//! The table of passes, for mount, `polymux fsck` and the check of a mounted volume alike. Each has an id that never changes.
//!
//! Invariants:
//! * *Recovery* passes bring back a volume that was not unmounted in order. Each is idempotent, so that a crash in the middle
//!   of recovery is a crash like any other. Mount runs those that are due.
//! * *Check* passes compare records with one another and with the tiers, and repair records. fsck runs them first, then
//!   recovery: ranges that a repair gives up are freed there, by the one mechanism that frees bytes, and pending frees were
//!   compared with the ranges that files own before.
//! * Bytes first, then sizes: a pending free has no owner, so carrying it out again is harmless, and a file's size may be
//!   asked from an object only once no pending free is left in it (DESIGN section 6).

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::parts::KernelConnection;
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::{StampMark, put_number_range_end};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Ino, ObjectId, TierId};
use polymux_volume::space::TierHandle;

use crate::check::{self, Examination, RECORDS_PASS};
use crate::mounted::Mounted;

/// When a pass of recovery runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// At each read-write mount.
    Always,
    /// Only after an unclean stop.
    Unclean,
}

/// The work of a pass.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// Part of recovery. Returns how much there was to do.
    Recover(When, fn(&Mounted) -> Result<usize>),
    /// Part of a check.
    Check(fn(&mut Examination<'_>) -> Result<()>),
}

/// One pass.
pub(super) struct Pass {
    /// Persistent: appears in reports and never changes its meaning.
    pub(super) id: u32,
    pub(super) name: &'static str,
    pub(super) work: Work,
}

const fn recover(id: u32, name: &'static str, when: When, run: fn(&Mounted) -> Result<usize>) -> Pass {
    Pass { id, name, work: Work::Recover(when, run) }
}

const fn check(id: u32, name: &'static str, run: fn(&mut Examination<'_>) -> Result<()>) -> Pass {
    Pass { id, name, work: Work::Check(run) }
}

/// Every pass, in order.
pub(super) const PASSES: [Pass; 13] = [
    check(10, "compare the tier table with the labels", check::check_volume_records),
    check(RECORDS_PASS, "read every record", check::check_records),
    check(12, "compare directories with lists of names", check::check_names),
    check(13, "find directories and files without a name", check::check_tree),
    check(14, "count links and names", check::check_counts),
    check(15, "check extents and content", check::check_files),
    check(16, "check extended attributes", check::check_attributes),
    check(17, "compare files with the objects on the tiers", check::check_objects),
    recover(4, "make durable what the last daemon left behind", When::Unclean, sync_tiers),
    recover(1, "carry out disowned ranges", When::Always, carry_out_disowned),
    recover(2, "delete files without a name", When::Always, delete_orphans),
    recover(3, "remove objects that reached a tier but not the log", When::Unclean, remove_leaked),
    recover(5, "take up small files that were open when the daemon died", When::Always, take_up_notes),
];

impl Mounted {
    /// Runs the passes that are due.
    pub(crate) fn run_passes(&self, unclean: bool) -> Result<()> {
        for pass in &PASSES {
            let Work::Recover(when, run) = pass.work else { continue };
            if !unclean && when == When::Unclean {
                continue;
            }
            let repaired = run(self)?;
            if repaired > 0 {
                self.volume.note_recovery(format!("recovery pass {} ({}): {repaired}", pass.id, pass.name));
            }
        }
        // Objects of a tier that is missing were not looked at: they stay to be looked for.
        if self.volume.tiers.all().iter().all(|tier| tier.present().is_some()) {
            self.put_object_mark()?;
        }
        if unclean {
            self.volume.note_recovery("the last stop was unclean; the volume was recovered".to_owned());
        }
        Ok(())
    }
}

/// The last daemon may have died with bytes and records in the page cache. They can be read, and nothing tells any more
/// that they are not durable: without this an fsync would find nothing to do and promise too much.
fn sync_tiers(mounted: &Mounted) -> Result<usize> {
    for handle in mounted.volume.tiers.all().iter().filter(|handle| handle.present().is_some()) {
        handle.run(|tier| tier.sync_all())?;
    }
    Ok(0)
}

impl Mounted {
    /// Everything below this number is accounted for: a later recovery need not look at it, and never removes it.
    fn put_object_mark(&self) -> Result<()> {
        let next = self.volume.metadata.number_range_end(NumberKind::Object)?;
        let mut batch = Batch::new();
        put_number_range_end(&mut batch, NumberKind::ObjectMark, next);
        // Changes from now on are stamped later.
        if let Some(mark) = self.volume.metadata.stamp_mark()? {
            self.stamps.were_complete.store(mark.is_complete, Ordering::Release);
            batch.put(keys::stamp_mark(), StampMark { is_complete: false, ..mark }.encode());
        }
        let sequence = self.volume.metadata.commit(batch)?;
        self.volume.metadata.sync(sequence)
    }
}

fn carry_out_disowned(mounted: &Mounted) -> Result<usize> {
    let records = mounted.volume.metadata.disowned()?;
    mounted.volume.disowned.add(&records, mounted.volume.metadata.committed());
    let mut done = 0;
    loop {
        let round = mounted.volume.free_disowned()?;
        done += round;
        if round == 0 {
            return Ok(done);
        }
    }
}

fn delete_orphans(mounted: &Mounted) -> Result<usize> {
    if mounted.volume.options.connection == KernelConnection::TakenOver {
        // Each is deleted once the kernel says that it does not have it, or forgets it.
        return Ok(0);
    }
    let orphans = mounted.volume.metadata.orphans()?;
    for ino in &orphans {
        match mounted.volume.inode(*ino) {
            Ok(inode) => mounted.data.delete_if_unused(&inode)?,
            Err(error) if error.errno() == polymux_types::Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
    }
    carry_out_disowned(mounted)?;
    Ok(orphans.len())
}

/// The last daemon kept acknowledged, unlogged changes of small files in memory that outlived it. They are written to records here, before
/// the volume is in use, and the memory is free for the notes of this mount.
fn take_up_notes(mounted: &Mounted) -> Result<usize> {
    let Some(notes) = mounted.volume.metadata.notes() else { return Ok(0) };
    let mut taken = 0;
    for note in notes.left() {
        match mounted.volume.inode(Ino(note.number)) {
            Ok(inode) => taken += usize::from(mounted.data.take_up_inline(&inode, note)?),
            Err(error) if error.errno() == polymux_types::Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
    }
    notes.forget_left();
    Ok(taken)
}

/// An object is made before the record that names it is durable. After a crash in between it is unreferenced. Only numbers
/// that the crashed mount could have handed out are looked at: older objects are accounted for, and those of this mount
/// have higher numbers, because an unclean stop skips the rest of a range.
fn remove_leaked(mounted: &Mounted) -> Result<usize> {
    let known = mounted.known_objects()?;
    let tiers = mounted.volume.tiers.all();
    tiers.iter().map(|handle| mounted.remove_leaked_from(handle, &known)).sum()
}

/// Objects that records name.
pub(super) type KnownObjects = HashSet<(TierId, ObjectId)>;

impl Mounted {
    pub(super) fn known_objects(&self) -> Result<KnownObjects> {
        let mut known = HashSet::new();
        if self.made_before_mount.is_empty() {
            return Ok(known);
        }
        self.volume.metadata.for_each_inode(|_, record| {
            if let polymux_records::store::InodeBody::Regular(file) = record.body {
                known.extend(file.objects.iter().map(|entry| (entry.tier, entry.object)));
            }
            Ok(())
        })?;
        known.extend(self.volume.metadata.disowned()?.iter().map(|record| (record.tier, record.object)));
        Ok(known)
    }

    /// Removes the unreferenced objects of one tier; returns how many.
    pub(super) fn remove_leaked_from(&self, handle: &TierHandle, known: &KnownObjects) -> Result<usize> {
        let Some(tier) = handle.present() else { return Ok(0) };
        if self.made_before_mount.is_empty() {
            return Ok(0);
        }
        let mut removed = 0;
        for bucket in (0..BUCKETS).map(Bucket) {
            let objects: Vec<ObjectId> = tier.list(bucket).map_err(|error| handle.note_error(error))?;
            for object in objects.into_iter().filter(|object| self.made_before_mount.contains(&object.0)) {
                if !known.contains(&(handle.id, object)) {
                    let reference = polymux_tier::ObjectRef::new(object, bucket);
                    handle.run(|tier| tier.remove(reference))?;
                    removed += 1;
                }
            }
        }
        if removed > 0 {
            // Durable before the mark says that they are accounted for: they are not looked for again after that.
            handle.run(|tier| tier.sync_all())?;
        }
        Ok(removed)
    }
}
