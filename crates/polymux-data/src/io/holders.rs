//! Externally open files: a process got the object from the kernel during an earlier mount, and still has it open (docs/design/0017).
//!
//! Invariants:
//! * A process that has an object passed through goes on using it after the death of the daemon. A record (`K`) names the boot of
//!   the kernel from before the first object is passed through until a stop finds that no process has one open.
//! * While the same boot may still hold objects, each file is looked at before anything else is done with it: it is held, or
//!   proved to be free. No file that could have been passed through is moved, freed or cached before.
//! * A held file is treated as one that is passed through and changed directly. It is looked at again until it is free.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::parts::BootId;
use polymux_records::store::{ObjectEntry, boot_format, keys};
use polymux_tier::{Loan, LoanPurpose, TierError};
use polymux_types::{Errno, Ino};
use polymux_volume::inode::{FileState, Inode, reference_of};

use crate::data_path::DataPath;

/// Time between two looks at a held file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl DataPath {
    /// At the mount: whether a kernel of this boot may still use objects.
    pub fn read_holders(&self) -> Result<()> {
        // A record that cannot be read may have named this boot.
        let recorded = self.volume.metadata.boot_with_objects().unwrap_or(Some(BootId::UNKNOWN));
        let may_be_this = recorded.is_some_and(|boot| boot == self.volume.options.boot || boot == BootId::UNKNOWN);
        self.holders.are_possible.store(may_be_this, Ordering::Release);
        self.kernel.may_have_given_objects_out.store(may_be_this, Ordering::Release);
        if may_be_this {
            self.volume.tiers.all().iter().for_each(|tier| tier.note_objects_out());
        }
        if self.holders.are_possible() {
            // Each file is looked at in the background, too, so that there is an end to it.
            self.volume.size_recovery.asked_up_to.lock().get_or_insert(Ino(0));
        }
        Ok(())
    }

    /// Durable before the first object is passed through.
    pub fn record_boot(&self) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(keys::boot_with_objects(), boot_format::encode(self.volume.options.boot));
        let sequence = self.volume.metadata.commit(batch)?;
        self.volume.flush_through_copy(sequence)
    }

    /// Deletes the record of the boot at a clean stop, if no process has an object open. `open` is the number of open file
    /// descriptions that were passed through and whose release did not arrive.
    pub fn forget_boot(&self, open: usize) -> Result<()> {
        let may_be_held = self.holders.are_possible() || !self.holders.held.lock().is_empty();
        // Of a program that got an object by a lease nothing says that it is gone.
        if open > 0
            || may_be_held
            || self.kernel.gave_objects_out.load(Ordering::Acquire)
            || matches!(self.volume.metadata.boot_with_objects(), Ok(None))
        {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.delete(keys::boot_with_objects());
        self.volume.metadata.commit(batch)?;
        Ok(())
    }

    /// Looks once whether a file is held. Called before anything is done with it.
    pub fn look_for_holder(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if !self.holders.are_possible() || file.direct.holder_looked_for.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = file.sizes.finding.lock();
        if file.direct.holder_looked_for.load(Ordering::Acquire) {
            return Ok(());
        }
        let looked = self.look_at_object(inode, file);
        let outcome = if looked.is_ok() { &file.direct.holder_looked_for } else { &self.holders.look_failed };
        outcome.store(true, Ordering::Release);
        looked
    }

    fn look_at_object(&self, inode: &Inode, file: &FileState) -> Result<()> {
        let Some(entry) = only_object(file) else { return Ok(()) };
        let handle = self.volume.tiers.by_id(entry.tier)?;
        if !handle.run(|tier| tier.may_be_open_elsewhere(reference_of(&entry)))? {
            return self.count_as_unsynced(&entry);
        }
        let Some(shared) = self.volume.inodes.get(inode.ino) else { return Err(Errno::ESTALE.into()) };
        let loan = self.begin_to_be_held(inode, file, &entry)?;
        self.holders.note(shared, Some(loan));
        self.volume.note_recovery(format!("inode {}: still open since before the last stop of the daemon", inode.ino));
        Ok(())
    }

    /// Counts an object as unsynced: a process may have written to it since the mount, and closed it.
    fn count_as_unsynced(&self, entry: &ObjectEntry) -> Result<()> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let Some(tier) = handle.present() else { return Ok(()) };
        match tier.lend(reference_of(entry), LoanPurpose::Change) {
            // A tier without passthrough never gave this object to the kernel, and a missing object is not open anywhere.
            Ok(_) | Err(TierError::Unsupported(_) | TierError::NotFound(_)) => Ok(()),
            Err(error) => Err(handle.note_error(error)),
        }
    }

    fn begin_to_be_held(&self, inode: &Inode, file: &FileState, entry: &ObjectEntry) -> Result<Box<dyn Loan>> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let lend = |purpose| handle.run(|tier| tier.lend(reference_of(entry), purpose));
        // A tier that is read-only now lends to be read.
        let loan = if self.volume.is_read_only() {
            lend(LoanPurpose::Read)?
        } else {
            lend(LoanPurpose::Held).or_else(|_| lend(LoanPurpose::Read))?
        };
        let stat = handle.run(|tier| tier.stat(reference_of(entry)))?;
        *file.direct.object_modified.lock() = stat.modified;
        self.adopt_newer_modification_time(inode, &stat);
        // The object may grow, whatever of that reached the log.
        let bit = 1 << entry.tier.0;
        if file.layout.read().extenders != bit && !self.volume.is_read_only() {
            self.volume.transact(&[inode], |transaction| {
                file.layout.write().extenders = bit;
                transaction.put_inode(inode);
                Ok(())
            })?;
        }
        file.direct.has_direct_changes.store(2, Ordering::Release);
        file.direct.users.hold_since_earlier_mount();
        Ok(loan)
    }

    /// Looks at held files again; whether one is free now.
    pub fn look_at_held_files(&self) -> Result<bool> {
        let held = self.holders.inos();
        if held.is_empty() && !self.holders.are_possible() {
            return Ok(false);
        }
        let now_ms = self.volume.elapsed_ms();
        if now_ms < self.holders.look_due_ms.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let interval_ms = u64::try_from(LOOK_INTERVAL.as_millis()).expect("a second is short");
        self.holders.look_due_ms.store(now_ms + interval_ms, Ordering::Relaxed);
        let (mut any, mut outcome) = (false, Ok(()));
        for ino in held {
            match self.look_at_held(ino) {
                Ok(is_free) => any |= is_free,
                Err(error) => outcome = Err(error),
            }
        }
        let mut asked = self.volume.size_recovery.asked_up_to.lock();
        if self.holders.are_possible() && asked.is_none() {
            if self.holders.look_failed.swap(false, Ordering::AcqRel) {
                *asked = Some(Ino(0));
            } else {
                self.holders.are_possible.store(false, Ordering::Release);
            }
        }
        drop(asked);
        outcome.map(|()| any)
    }

    fn look_at_held(&self, ino: Ino) -> Result<bool> {
        let Some(inode) = self.holders.held.lock().get(&ino).map(|held| held.inode.clone()) else { return Ok(false) };
        if inode.lifecycle.lock().gone {
            self.holders.held.lock().remove(&ino);
            return Ok(true);
        }
        self.look_again(&inode, inode.file().expect("only files are held"))
    }

    /// Checks whether an externally open file is free by now: `true` if it was held and is not any more. Never waits for its users.
    pub fn look_again(&self, inode: &Inode, file: &FileState) -> Result<bool> {
        if file.direct.users.now().held().is_none() {
            return Ok(false);
        }
        let Some(passed) = file.direct.passed.try_lock() else { return Ok(false) };
        if passed.modes.is_passed_through() {
            // This mount has the object open itself.
            return Ok(false);
        }
        let Some(_alone) = file.barrier.try_write() else { return Ok(false) };
        let entry = file.layout.read().object(0);
        let handle = self.volume.tiers.by_id(entry.tier)?;
        if handle.run(|tier| tier.may_be_open_elsewhere(reference_of(&entry)))? {
            return Ok(false);
        }
        let changed = file.is_changed_directly();
        self.see_direct_changes(inode, file)?;
        if changed {
            file.sizes.is_known.store(true, Ordering::Release);
        }
        file.direct.users.end_hold();
        file.direct.pages_stale.fetch_or(changed, Ordering::AcqRel);
        self.holders.held.lock().remove(&inode.ino);
        Ok(true)
    }
}

/// The object of a file that could have been passed through.
fn only_object(file: &FileState) -> Option<ObjectEntry> {
    let layout = file.layout.read();
    let is_whole = layout.objects.len() == 1 && !layout.map.has_exceptions() && layout.map.home() == Some(0);
    is_whole.then(|| layout.object(0))
}
