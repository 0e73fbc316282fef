//! Background work, in steps that a test can drive: flush of times and log, carrying out pending frees, moving idle inline
//! files from a metadata tier whose free space is low.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_records::error::{ErrorKind, Result};
use polymux_records::parts::Progress;
use polymux_records::store::InodeBody;
use polymux_tier::{Tier, TierError};
use polymux_types::{Ino, TierId};
use polymux_volume::inode::FileState;
use polymux_volume::space::TierHandle;

use crate::mounted::Mounted;

/// Records of heat looked at in a step.
const HEAT_RECORDS_PER_STEP: usize = 256;

/// Files whose size is asked in a step.
const FILES_PER_STEP: usize = 256;

/// How often an unmount looks whether a tier answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long an unmount waits, in the end, for changes of objects that programs may hold.
const LAST_CHANGES_WITHIN: Duration = Duration::from_secs(5);

/// Files whose size is asked before an unmount that comes early.
const FILES_AT_UNMOUNT: usize = 16_384;

impl Mounted {
    /// Whether there is background work at all.
    fn works_in_background(&self) -> bool {
        self.volume.check_writable().is_ok() && !self.volume.unmounted.load(Ordering::Acquire)
    }

    /// The part of a round of background work that needs no tier: nothing that a tier does keeps it from going on.
    pub(crate) fn volume_step(&self) -> Progress {
        if !self.works_in_background() {
            return Progress::Idle;
        }
        let mut progress = Progress::Idle;
        self.placement.logical_clock.advance(self.volume.clock.elapsed());
        match self.keep_heat() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => {
                log::error!("volume {}: what is known of the use of files is not saved: {error}", self.volume.name)
            }
        }
        if let Err(error) = self.data.flush_for_rewritten() {
            log::error!("volume {}: the log is not flushed for files that were rewritten: {error}", self.volume.name);
        }
        let now_ms = self.volume.elapsed_ms();
        if let Err(error) = self.keep_profiles() {
            log::error!("volume {}: what is known of the speed of tiers is not saved: {error}", self.volume.name);
        }
        if now_ms >= self.flush_due_ms.load(Ordering::Relaxed) {
            let interval_ms = u64::from(self.volume.options.flush_interval_ms);
            self.flush_due_ms.store(now_ms.saturating_add(interval_ms), Ordering::Relaxed);
            if let Err(error) = self.data.flush_all_records() {
                log::error!("volume {}: the periodic flush failed: {error}", self.volume.name);
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
        match self.stamps.refresh_stamps() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: describing objects failed: {error}", self.volume.name),
        }
        self.data.see_outside_changes_in_time();
        match self.data.look_at_held_files() {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => {
                log::error!("volume {}: looking at files that are still open failed: {error}", self.volume.name)
            }
        }
        match self.ask_sizes(FILES_PER_STEP) {
            Ok(false) => {}
            Ok(true) => progress = Progress::Worked,
            Err(error) => {
                log::error!("volume {}: looking at files after an unclean stop failed: {error}", self.volume.name)
            }
        }
        if let Err(error) = self.data.settle_spread_files() {
            log::error!(
                "volume {}: the sizes of files that are being written are not on record: {error}",
                self.volume.name
            );
        }
        if self.data.learn_allocations() {
            progress = Progress::Worked;
        }
        match self.data.move_idle_inline_files() {
            Ok(0) => {}
            Ok(_) => progress = Progress::Worked,
            Err(error) => log::error!("volume {}: moving idle inline files failed: {error}", self.volume.name),
        }
        progress
    }

    /// Background work on one tier: its pending frees are carried out, and a failing tier is tried again.
    pub(crate) fn tier_step(&self, tier: TierId) -> Progress {
        let Ok(handle) = self.volume.tiers.by_id(tier) else { return Progress::Idle };
        if !self.works_in_background() || handle.is_silent() {
            return Progress::Idle;
        }
        if handle.try_again() {
            return Progress::Worked;
        }
        let mut progress = Progress::Idle;
        if self.volume.disowned.names(tier) && handle.present().is_some() {
            match self.volume.free_disowned_on(tier) {
                Ok(0) => {}
                Ok(_) => progress = Progress::Worked,
                Err(error) => log::error!("volume {}: freeing disowned bytes failed: {error}", self.volume.name),
            }
        }
        progress
    }

    /// Background work on the rewritten files of one tier, for a thread that does nothing else: a sync may take long.
    pub(crate) fn sync_rewritten_step(&self, tier: TierId) -> Progress {
        let Ok(handle) = self.volume.tiers.by_id(tier) else {
            self.data.rewritten.forget(tier);
            return Progress::Idle;
        };
        let may_work =
            !self.volume.unmounted.load(Ordering::Acquire) && handle.present().is_some() && !handle.is_silent();
        if may_work && self.data.sync_rewritten_on(&handle) { Progress::Worked } else { Progress::Idle }
    }

    /// Looks at the calls that are under way on the tiers, and never waits for one.
    pub(crate) fn watch_step(&self) {
        let now = self.volume.clock.elapsed();
        let mut is_one_silent = false;
        for handle in self.volume.tiers.all().iter() {
            handle.look(now, u64::from(self.volume.options.hang_after_ms));
            is_one_silent |= handle.is_silent();
        }
        self.data.upkeep.has_silent_tier.store(is_one_silent, Ordering::Release);
        self.data.upkeep.looked_at_seconds.store(self.volume.now().seconds, Ordering::Relaxed);
        let all_work = |tier: &TierHandle| tier.present().is_some() && !tier.is_failing();
        if self.volume.size_recovery.has_guessed.load(Ordering::Acquire)
            && self.volume.tiers.all().iter().all(|tier| all_work(tier))
        {
            // A guess from now on sets it again.
            self.volume.size_recovery.has_guessed.store(false, Ordering::Release);
        }
    }

    /// Whether the background has nothing to watch, to move or to free: no file is used past this process, no call to a tier is under way, no message
    /// waits to become idle, and all tiers work.
    pub(crate) fn may_rest(&self) -> bool {
        self.volume.tiers.all().iter().all(|tier| self.may_be_left_alone(tier))
            && self.data.rewritten.is_empty()
            && !self.data.has_messages()
            && self.data.handles.passed_through() == 0
            && !self.data.holders.are_possible()
            && self.data.holders.inos().is_empty()
            && self.data.holders.leased.lock().is_empty()
    }

    fn may_be_left_alone(&self, tier: &TierHandle) -> bool {
        tier.watched().is_some_and(|watched| !watched.is_called())
            && !tier.is_failing()
            && !self.volume.disowned.names(tier.id)
    }

    /// After an unclean stop the objects of a file are made to match its record when its size is first asked. That must have
    /// been done for all files before a stop may be called clean: the next mount would believe objects that are longer than
    /// their file, or missing. Returns whether something was done.
    fn ask_sizes(&self, files_max: usize) -> Result<bool> {
        let Some(after) = *self.volume.size_recovery.asked_up_to.lock() else { return Ok(false) };
        if after == Ino(0) {
            self.volume.size_recovery.has_failed.store(false, Ordering::Release);
        }
        if self.volume.tiers.all().iter().any(|tier| tier.present().is_none() || tier.is_silent()) {
            // Its objects will have to be looked at, too.
            return Ok(false);
        }
        let page = self.volume.metadata.inodes_after(after, files_max)?;
        for (ino, record) in &page {
            if !matches!(&record.body, InodeBody::Regular(file) if !file.objects.is_empty()) {
                continue;
            }
            let asked = self.volume.inode(*ino).and_then(|inode| match inode.file() {
                Some(file) => self.data.ensure_size(&inode, file),
                None => Ok(()),
            });
            if let Err(error) = &asked
                && matches!(error.kind(), ErrorKind::Tier { source: TierError::NotAnswering, .. })
            {
                *self.volume.size_recovery.asked_up_to.lock() = Some(Ino(ino.0.saturating_sub(1)));
                return Ok(false);
            }
            if let Err(error) = asked
                && error.errno() != polymux_types::Errno::ENOENT
            {
                // Users of the file get the error; a check of the volume names it.
                self.volume.size_recovery.has_failed.store(true, Ordering::Release);
                log::warn!("volume {}: inode {ino} after an unclean stop: {error}", self.volume.name);
            }
        }
        let mut asked = self.volume.size_recovery.asked_up_to.lock();
        *asked = page.last().filter(|_| page.len() == files_max).map(|(ino, _)| *ino);
        if asked.is_none() && !self.volume.size_recovery.has_failed.load(Ordering::Acquire) {
            // All objects match their records: from now on no tier is asked when a file is loaded into memory.
            self.volume.size_recovery.after_unclean_stop.store(false, Ordering::Release);
        }
        drop(asked);
        self.release_survivors();
        Ok(true)
    }

    /// Releases the memory that outlived the last daemon; it is no longer needed once the sizes of all files are known.
    pub(crate) fn release_survivors(&self) {
        if self.volume.size_recovery.is_complete() {
            self.volume.metadata.survivors_are_taken_up();
        }
    }

    /// Saves a part of the known use of files, and the logical clock. Returns whether there is more at once.
    fn keep_heat(&self) -> Result<bool> {
        if self.placement.logical_clock.is_save_due() {
            self.save_logical_clock()?;
        }
        Ok(self
            .placement
            .heat
            .step(&self.volume.metadata, &self.placement.logical_clock, HEAT_RECORDS_PER_STEP)?
            .has_more)
    }

    fn save_logical_clock(&self) -> Result<()> {
        let promoted = self.placement.write_budget.spent(self.placement.logical_clock.now());
        self.placement.logical_clock.save(&self.volume.metadata, &promoted)
    }

    /// Makes everything durable: data on all tiers, then the records.
    pub(crate) fn sync_volume(&self) -> Result<()> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        // From here on nothing that was written before is taken for not promised.
        self.data.volume_syncs.fetch_add(1, Ordering::SeqCst);
        self.data.see_all_outside_changes();
        let mut outcome = self.data.put_all_records();
        outcome = outcome.and(self.data.sync_tiers_and_log());
        // Failures, and bytes written meanwhile, are left: file by file, so that a loss is remembered where it belongs.
        for inode in self.volume.inodes.all() {
            let is_due = |file: &&FileState| {
                !file.durability.unsynced.lock().is_empty() || file.spreading.may_grow_unsettled.load(Ordering::Acquire)
            };
            if let Some(file) = inode.file().filter(is_due) {
                outcome = outcome.and(self.data.sync_file(&inode, file));
                self.data.forget_synced(file);
            }
        }
        outcome.and(self.volume.flush_through(self.volume.metadata.committed()))
    }

    /// Drains everything and leaves the volume clean. An error of one tier does not stop the rest; the first error is returned,
    /// and then the stop is not a clean one.
    pub(crate) fn unmount(&self) -> Result<()> {
        if self.volume.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if !self.volume.is_read_only() {
            self.wait_for_answers();
        }
        let passed_through = self.data.handles.passed_through();
        let mut outcome = Ok(());
        for handle in self.data.handles.ids() {
            outcome = outcome.and(self.release(handle));
        }
        if self.volume.is_read_only() {
            return outcome;
        }
        for inode in self.volume.inodes.all() {
            inode.lifecycle.lock().pins = 0;
            outcome = outcome.and(self.data.delete_if_unused(&inode));
        }
        outcome = outcome.and(self.ask_sizes(FILES_AT_UNMOUNT).map(drop));
        outcome = outcome
            .and(self.placement.heat.save_all(&self.volume.metadata, self.placement.logical_clock.now()).map(drop));
        outcome = outcome.and(self.save_logical_clock());
        outcome = outcome.and(self.save_profiles());
        outcome = outcome.and(self.stamps.stamp_before_unmount());
        outcome = outcome.and(self.sync_volume());
        outcome = outcome.and(self.free_all_disowned());
        self.data.learn_allocations_at_unmount();
        for inode in self.volume.inodes.all() {
            outcome = outcome.and(self.data.settle_if_known(&inode)).and(self.data.flush_times(&inode));
        }
        let silent = self.volume.tiers.all().iter().find(|tier| tier.is_silent()).cloned();
        if let Some(tier) = silent {
            // Which of its bytes reached the tier is unknown, whatever the rest said.
            outcome = outcome.and(Err(ErrorKind::Tier { tier: tier.id, source: TierError::NotAnswering }.into()));
            self.volume.note_recovery(format!("tier `{}` did not answer when the volume was stopped", tier.name));
        }
        let tier_in_change = || self.volume.tiers.all().iter().find(|tier| tier.is_being_changed()).cloned();
        let began = self.volume.clock.elapsed();
        while tier_in_change().is_some() && self.volume.clock.elapsed().saturating_sub(began) < LAST_CHANGES_WITHIN {
            self.volume.clock.sleep(LOOK_INTERVAL);
        }
        if let Some(tier) = tier_in_change() {
            outcome = outcome.and(Err(polymux_types::Errno::EBUSY.into()));
            self.volume.note_recovery(format!(
                "tier `{}`: changes of objects that programs hold were under way when the volume was stopped",
                tier.name
            ));
        }
        if let Err(error) = outcome {
            let kept = self
                .volume
                .flush_through(self.volume.metadata.committed())
                .and_then(|()| self.volume.metadata.checkpoint());
            if let Err(error) = kept {
                log::error!("volume {}: {error}", self.volume.name);
            }
            return Err(error);
        }
        self.stamps.close_stamp_mark()?;
        self.data.forget_boot(passed_through)?;
        if self.volume.size_recovery.asked_up_to.lock().is_none() {
            self.volume.stamp_clean()?;
        } else {
            log::info!("volume {}: stopped before it was recovered wholly; the next mount goes on", self.volume.name);
        }
        // Last, so that the next mount replays nothing, whatever was recorded above.
        self.volume.metadata.checkpoint()
    }

    fn free_all_disowned(&self) -> Result<()> {
        while self.volume.free_disowned()? > 0 {}
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
        for handle in self.volume.tiers.all().iter().filter(|handle| !handle.is_silent()) {
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
        self.volume.tiers.all().iter().filter(|tier| tier.is_silent()).map(|tier| tier.name.clone()).collect()
    }

    /// Threads whose call to a tier takes too long, for which the reason may be that a program holds the object.
    pub(crate) fn held_up_threads(&self) -> Vec<usize> {
        let tiers = self.volume.tiers.all();
        tiers.iter().flat_map(|tier| tier.held_up_threads()).collect()
    }

    /// Lets other movers go on in place of these.
    pub(crate) fn replace_movers(&self, stuck: &[usize]) {
        self.mover.moves.free_tiers_of(stuck);
    }

    /// Threads that wait for a tier which does not answer.
    pub(crate) fn stuck_threads(&self) -> Vec<usize> {
        let tiers = self.volume.tiers.all();
        tiers.iter().filter_map(|tier| tier.watched()).flat_map(|tier| tier.stuck_threads()).collect()
    }
}
