//! Background work, in steps that a test can drive: flush of times and log, freeing of disowned bytes, moving of idle
//! inline files from a metadata tier that is short of room.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::Result;
use crate::file_system::Progress;
use crate::store::InodeBody;

/// Records of heat looked at in a step.
const HEAT_RECORDS_PER_STEP: usize = 256;

/// Files whose size is asked in a step.
const FILES_PER_STEP: usize = 256;

/// Files whose size is asked before an unmount that comes early.
const FILES_AT_UNMOUNT: usize = 16_384;

impl Core {
    /// One round of background work.
    pub(crate) fn step(&self) -> Progress {
        if self.is_read_only() || self.unmounted.load(Ordering::Acquire) {
            return Progress::Idle;
        }
        let mut progress = Progress::Idle;
        self.logical_clock.advance(self.clock.elapsed());
        match self.keep_heat() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: what is known of the use of files is not saved: {error}", self.name),
        }
        let now_ms = self.elapsed_ms();
        if now_ms >= self.flush_due_ms.load(Ordering::Relaxed) {
            let interval_ms = u64::from(self.options.flush_interval_ms);
            self.flush_due_ms.store(now_ms.saturating_add(interval_ms), Ordering::Relaxed);
            if let Err(error) = self.flush_all_records() {
                log::error!("volume {}: the periodic flush failed: {error}", self.name);
            }
        }
        match self.ask_sizes(FILES_PER_STEP) {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: looking at files after an unclean stop failed: {error}", self.name),
        }
        match self.move_idle_inline_files() {
            Ok(0) => {}
            Ok(_) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: moving idle inline files failed: {error}", self.name),
        }
        if !self.disowned.is_empty() {
            match self.free_disowned() {
                Ok(0) => {}
                Ok(_) => progress = Progress::Worked,
                Err(error) => log::error!("volume {}: freeing disowned bytes failed: {error}", self.name),
            }
        }
        progress
    }

    /// After an unclean stop the objects of a file are made what its record says when its size is first asked. That must have
    /// been done for all files before a stop may be called clean: the next mount would believe objects that are longer than
    /// their file, or not there. Returns whether something was done.
    fn ask_sizes(&self, files_max: usize) -> Result<bool> {
        let Some(after) = *self.sizes_asked.lock() else { return Ok(false) };
        if self.tiers.all().iter().any(|tier| tier.present().is_none()) {
            // Its objects will have to be looked at, too.
            return Ok(false);
        }
        let page = self.metadata.inodes_after(after, files_max)?;
        for (ino, record) in &page {
            if !matches!(&record.body, InodeBody::Regular(file) if !file.objects.is_empty()) {
                continue;
            }
            let asked = self.inode(*ino).and_then(|inode| match inode.file() {
                Some(file) => self.ensure_size(&inode, file),
                None => Ok(()),
            });
            if let Err(error) = asked
                && error.errno() != polymux_types::Errno::ENOENT
            {
                // Whoever uses it is told; a check of the volume names it.
                log::warn!("volume {}: inode {ino} after an unclean stop: {error}", self.name);
            }
        }
        *self.sizes_asked.lock() = page.last().filter(|_| page.len() == files_max).map(|(ino, _)| *ino);
        Ok(true)
    }

    /// Saves a piece of what is known of the use of files, and the logical clock. Returns whether there is more at once.
    fn keep_heat(&self) -> Result<bool> {
        if self.logical_clock.is_save_due() {
            self.save_logical_clock()?;
        }
        Ok(self.heat.step(&self.metadata, &self.logical_clock, HEAT_RECORDS_PER_STEP)?.has_more)
    }

    fn save_logical_clock(&self) -> Result<()> {
        let promoted = self.write_budget.spent(self.logical_clock.now());
        self.logical_clock.save(&self.metadata, &promoted)
    }

    /// Puts everything that runs ahead of its record into the log and makes every transaction so far durable.
    pub(crate) fn flush_all_records(&self) -> Result<()> {
        self.put_all_records()?;
        self.flush_through(self.metadata.committed())
    }

    fn put_all_records(&self) -> Result<()> {
        for inode in self.inodes.all() {
            self.flush_times(&inode)?;
            self.stamp_if_due(&inode)?;
        }
        Ok(())
    }

    /// Makes everything durable: data on all tiers, then the records.
    pub(crate) fn sync_volume(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let mut outcome = self.put_all_records();
        outcome = outcome.and(self.sync_tiers_and_log());
        // What is left are failures, and bytes written meanwhile: file by file, so that a loss is remembered where it
        // belongs.
        for inode in self.inodes.all() {
            if let Some(file) = inode.file().filter(|file| !file.unsynced.lock().is_empty()) {
                outcome = outcome.and(self.sync_file(&inode, file));
                self.forget_synced(file);
            }
        }
        outcome.and(self.flush_through(self.metadata.committed()))
    }

    /// Drains everything and leaves the volume clean.
    pub(crate) fn unmount(&self) -> Result<()> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        for handle in self.handles.ids() {
            self.release(handle)?;
        }
        if self.is_read_only() {
            return Ok(());
        }
        for inode in self.inodes.all() {
            inode.lifecycle.lock().pins = 0;
            self.delete_if_unused(&inode)?;
        }
        self.ask_sizes(FILES_AT_UNMOUNT)?;
        self.heat.save_all(&self.metadata, self.logical_clock.now())?;
        self.save_logical_clock()?;
        self.sync_volume()?;
        while self.free_disowned()? > 0 {}
        for inode in self.inodes.all() {
            self.settle_if_known(&inode)?;
        }
        if self.sizes_asked.lock().is_none() {
            self.stamp_clean()?;
        } else {
            log::info!("volume {}: stopped before it was recovered wholly; the next mount goes on", self.name);
        }
        // Last, so that the next mount replays nothing, whatever was recorded above.
        self.metadata.checkpoint()
    }

    /// Whether nothing of a file is lost and the tier that extends it is there.
    fn may_settle(&self, file: &crate::inode::FileState) -> Result<bool> {
        let layout = file.layout.read();
        let present = match layout.extender() {
            Some((_, entry)) => self.tiers.by_id(entry.tier)?.present().is_some(),
            None => true,
        };
        Ok(present && layout.damaged.is_empty())
    }

    /// After everything was synced: sizes that are known become exact in their records.
    fn settle_if_known(&self, inode: &crate::inode::Inode) -> Result<()> {
        match inode.file() {
            Some(file) if file.size_known.load(Ordering::Acquire) && self.may_settle(file)? => self.settle(inode, file),
            _ => Ok(()),
        }
    }
}
