//! Background work, in steps that a test can drive: flush of times and log, carrying out pending frees, moving idle inline
//! files from a metadata tier whose free space is low.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_tier::{Tier, TierError};
use polymux_types::{Ino, TierId};

use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::file_system::Progress;
use crate::inode::FileState;
use crate::space::TierHandle;
use crate::store::InodeBody;

/// Records of heat looked at in a step.
const HEAT_RECORDS_PER_STEP: usize = 256;

/// Files whose size is asked in a step.
const FILES_PER_STEP: usize = 256;

/// How often an unmount looks whether a tier answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Files whose size is asked before an unmount that comes early.
const FILES_AT_UNMOUNT: usize = 16_384;

impl Core {
    /// Whether there is background work at all.
    fn works_in_background(&self) -> bool {
        self.check_writable().is_ok() && !self.unmounted.load(Ordering::Acquire)
    }

    /// The part of a round of background work that needs no tier: nothing that a tier does keeps it from going on.
    pub(crate) fn volume_step(&self) -> Progress {
        if !self.works_in_background() {
            return Progress::Idle;
        }
        let mut progress = Progress::Idle;
        self.logical_clock.advance(self.clock.elapsed());
        match self.keep_heat() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: what is known of the use of files is not saved: {error}", self.name),
        }
        if let Err(error) = self.flush_for_rewritten() {
            log::error!("volume {}: the log is not flushed for files that were rewritten: {error}", self.name);
        }
        let now_ms = self.elapsed_ms();
        if let Err(error) = self.keep_profiles() {
            log::error!("volume {}: what is known of the speed of tiers is not saved: {error}", self.name);
        }
        if now_ms >= self.flush_due_ms.load(Ordering::Relaxed) {
            let interval_ms = u64::from(self.options.flush_interval_ms);
            self.flush_due_ms.store(now_ms.saturating_add(interval_ms), Ordering::Relaxed);
            if let Err(error) = self.flush_all_records() {
                log::error!("volume {}: the periodic flush failed: {error}", self.name);
            }
        }
        progress
    }

    /// The part that goes from file to file, on whatever tiers they are.
    pub(crate) fn upkeep_step(&self) -> Progress {
        if !self.works_in_background() {
            return Progress::Idle;
        }
        let mut progress = Progress::Idle;
        match self.refresh_stamps() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: describing objects failed: {error}", self.name),
        }
        match self.look_at_held_files() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: looking at files that are still open failed: {error}", self.name),
        }
        match self.ask_sizes(FILES_PER_STEP) {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: looking at files after an unclean stop failed: {error}", self.name),
        }
        if let Err(error) = self.settle_spread_files() {
            log::error!("volume {}: the sizes of files that are being written are not on record: {error}", self.name);
        }
        if self.learn_allocations() {
            progress = Progress::Worked;
        }
        match self.move_idle_inline_files() {
            Ok(0) => {}
            Ok(_) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: moving idle inline files failed: {error}", self.name),
        }
        progress
    }

    /// Background work on one tier: its pending frees are carried out, and a failing tier is tried again.
    pub(crate) fn tier_step(&self, tier: TierId) -> Progress {
        let Ok(handle) = self.tiers.by_id(tier) else { return Progress::Idle };
        if !self.works_in_background() || handle.is_silent() {
            return Progress::Idle;
        }
        if handle.try_again() {
            return Progress::Worked;
        }
        let mut progress = Progress::Idle;
        if self.disowned.names(tier) && handle.present().is_some() {
            match self.free_disowned_on(tier) {
                Ok(0) => {}
                Ok(_) => progress = Progress::Worked,
                Err(error) => log::error!("volume {}: freeing disowned bytes failed: {error}", self.name),
            }
        }
        progress
    }

    /// Background work on the rewritten files of one tier, for a thread that does nothing else: a sync may take long.
    pub(crate) fn sync_rewritten_step(&self, tier: TierId) -> Progress {
        let Ok(handle) = self.tiers.by_id(tier) else {
            self.rewritten.forget(tier);
            return Progress::Idle;
        };
        let may_work = !self.unmounted.load(Ordering::Acquire) && handle.present().is_some() && !handle.is_silent();
        if may_work && self.sync_rewritten_on(&handle) { Progress::Worked } else { Progress::Idle }
    }

    /// Looks at the calls that are under way on the tiers, and never waits for one.
    pub(crate) fn watch_step(&self) {
        let now = self.clock.elapsed();
        for handle in self.tiers.all().iter() {
            handle.look(now, u64::from(self.options.hang_after_ms));
        }
        let all_work = |tier: &TierHandle| tier.present().is_some() && !tier.is_failing();
        if self.sizes_guessed.load(Ordering::Acquire) && self.tiers.all().iter().all(|tier| all_work(tier)) {
            // A guess from now on sets it again.
            self.sizes_guessed.store(false, Ordering::Release);
        }
    }

    /// Whether the background has nothing to watch or to free: no file is used past this process, no call to a tier is under way, and all tiers work.
    pub(crate) fn may_rest(&self) -> bool {
        self.tiers.all().iter().all(|tier| self.may_be_left_alone(tier))
            && self.rewritten.is_empty()
            && self.handles.passed_through() == 0
            && !self.holders.are_possible()
            && self.holders.inos().is_empty()
    }

    fn may_be_left_alone(&self, tier: &TierHandle) -> bool {
        tier.watched().is_some_and(|watched| !watched.is_called())
            && !tier.is_failing()
            && !self.disowned.names(tier.id)
    }

    /// After an unclean stop the objects of a file are made to match its record when its size is first asked. That must have
    /// been done for all files before a stop may be called clean: the next mount would believe objects that are longer than
    /// their file, or missing. Returns whether something was done.
    fn ask_sizes(&self, files_max: usize) -> Result<bool> {
        let Some(after) = *self.sizes_asked.lock() else { return Ok(false) };
        if after == Ino(0) {
            self.sizes_failed.store(false, Ordering::Release);
        }
        if self.tiers.all().iter().any(|tier| tier.present().is_none() || tier.is_silent()) {
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
            if let Err(error) = &asked
                && matches!(error.kind(), ErrorKind::Tier { source: TierError::NotAnswering, .. })
            {
                *self.sizes_asked.lock() = Some(Ino(ino.0.saturating_sub(1)));
                return Ok(false);
            }
            if let Err(error) = asked
                && error.errno() != polymux_types::Errno::ENOENT
            {
                // Users of the file get the error; a check of the volume names it.
                self.sizes_failed.store(true, Ordering::Release);
                log::warn!("volume {}: inode {ino} after an unclean stop: {error}", self.name);
            }
        }
        let mut asked = self.sizes_asked.lock();
        *asked = page.last().filter(|_| page.len() == files_max).map(|(ino, _)| *ino);
        if asked.is_none() && !self.sizes_failed.load(Ordering::Acquire) {
            // All objects match their records: from now on no tier is asked when a file is loaded into memory.
            self.after_unclean_stop.store(false, Ordering::Release);
        }
        drop(asked);
        self.release_survivors();
        Ok(true)
    }

    /// Releases the memory that outlived the last daemon; it is no longer needed once the sizes of all files are known.
    pub(crate) fn release_survivors(&self) {
        if self.sizes_asked.lock().is_none() && !self.sizes_failed.load(Ordering::Acquire) {
            self.metadata.survivors_are_taken_up();
        }
    }

    /// Saves a part of the known use of files, and the logical clock. Returns whether there is more at once.
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
        }
        Ok(())
    }

    /// Makes everything durable: data on all tiers, then the records.
    pub(crate) fn sync_volume(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        // From here on nothing that was written before is taken for not promised.
        self.volume_syncs.fetch_add(1, Ordering::SeqCst);
        let mut outcome = self.put_all_records();
        outcome = outcome.and(self.sync_tiers_and_log());
        // Failures, and bytes written meanwhile, are left: file by file, so that a loss is remembered where it belongs.
        for inode in self.inodes.all() {
            let is_due =
                |file: &&FileState| !file.unsynced.lock().is_empty() || file.may_grow_unsettled.load(Ordering::Acquire);
            if let Some(file) = inode.file().filter(is_due) {
                outcome = outcome.and(self.sync_file(&inode, file));
                self.forget_synced(file);
            }
        }
        outcome.and(self.flush_through(self.metadata.committed()))
    }

    /// Drains everything and leaves the volume clean. An error of one tier does not stop the rest; the first error is returned,
    /// and then the stop is not a clean one.
    pub(crate) fn unmount(&self) -> Result<()> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if !self.is_read_only() {
            self.wait_for_answers();
        }
        let passed_through = self.handles.passed_through();
        let mut outcome = Ok(());
        for handle in self.handles.ids() {
            outcome = outcome.and(self.release(handle));
        }
        if self.is_read_only() {
            return outcome;
        }
        for inode in self.inodes.all() {
            inode.lifecycle.lock().pins = 0;
            outcome = outcome.and(self.delete_if_unused(&inode));
        }
        outcome = outcome.and(self.ask_sizes(FILES_AT_UNMOUNT).map(drop));
        outcome = outcome.and(self.heat.save_all(&self.metadata, self.logical_clock.now()).map(drop));
        outcome = outcome.and(self.save_logical_clock());
        outcome = outcome.and(self.save_profiles());
        outcome = outcome.and(self.stamp_before_unmount());
        outcome = outcome.and(self.sync_volume());
        outcome = outcome.and(self.free_all_disowned());
        self.learn_allocations_at_unmount();
        for inode in self.inodes.all() {
            outcome = outcome.and(self.settle_if_known(&inode)).and(self.flush_times(&inode));
        }
        let silent = self.tiers.all().iter().find(|tier| tier.is_silent()).cloned();
        if let Some(tier) = silent {
            // Which of its bytes reached the tier is unknown, whatever the rest said.
            outcome = outcome.and(Err(ErrorKind::Tier { tier: tier.id, source: TierError::NotAnswering }.into()));
            self.note_recovery(format!("tier `{}` did not answer when the volume was stopped", tier.name));
        }
        if let Err(error) = outcome {
            let kept = self.flush_through(self.metadata.committed()).and_then(|()| self.metadata.checkpoint());
            if let Err(error) = kept {
                log::error!("volume {}: {error}", self.name);
            }
            return Err(error);
        }
        self.close_stamp_mark()?;
        self.forget_boot(passed_through)?;
        if self.sizes_asked.lock().is_none() {
            self.stamp_clean()?;
        } else {
            log::info!("volume {}: stopped before it was recovered wholly; the next mount goes on", self.name);
        }
        // Last, so that the next mount replays nothing, whatever was recorded above.
        self.metadata.checkpoint()
    }

    fn free_all_disowned(&self) -> Result<()> {
        while self.free_disowned()? > 0 {}
        Ok(())
    }

    /// Finds out which tiers do not answer, so that no later step waits for one: each is tried on a thread of its own.
    fn wait_for_answers(&self) {
        // The checker of schedules knows no such threads.
        if cfg!(shuttle) {
            return;
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut waited_for = Vec::new();
        for handle in self.tiers.all().iter().filter(|handle| !handle.is_silent()) {
            let Some(tier) = handle.shared() else { continue };
            let (sender, id) = (sender.clone(), handle.id);
            let attempt = std::thread::Builder::new().name("polymux-try".to_owned()).spawn(move || {
                // The result shows when the tier is used; here only the fact that it answered matters.
                let _ = tier.probe();
                let _ = sender.send(id);
            });
            if attempt.is_ok() {
                waited_for.push(handle.clone());
            }
        }
        while waited_for.iter().any(|handle| !handle.is_silent()) {
            match receiver.recv_timeout(LOOK_INTERVAL) {
                Ok(id) => waited_for.retain(|handle| handle.id != id),
                Err(_) => self.watch_step(),
            }
        }
    }

    /// Names of the tiers that do not answer.
    pub(crate) fn tiers_not_answering(&self) -> Vec<String> {
        self.tiers.all().iter().filter(|tier| tier.is_silent()).map(|tier| tier.name.clone()).collect()
    }

    /// Threads that wait for a tier which does not answer.
    pub(crate) fn stuck_threads(&self) -> Vec<usize> {
        let tiers = self.tiers.all();
        tiers.iter().filter_map(|tier| tier.watched()).flat_map(|tier| tier.stuck_threads()).collect()
    }

    /// Whether nothing of a file is lost and the tier that extends it is there.
    fn may_settle(&self, file: &FileState) -> Result<bool> {
        if file.is_changed_directly() {
            return Ok(false);
        }
        let layout = file.layout.read();
        let present = match layout.extender() {
            Some((_, entry)) => self.tiers.by_id(entry.tier)?.present().is_some(),
            None => true,
        };
        // The size of a spread file is known in memory only, damaged or not.
        let is_undamaged = layout.damaged.is_empty();
        drop(layout);
        Ok(present && (is_undamaged || file.has_unsettled_tail()))
    }

    /// After everything was synced: sizes that are known become exact in their records.
    pub(crate) fn settle_if_known(&self, inode: &crate::inode::Inode) -> Result<()> {
        match inode.file() {
            Some(file) if file.size_known.load(Ordering::Acquire) && self.may_settle(file)? => self.settle(inode, file),
            _ => Ok(()),
        }
    }
}
