//! The space that a file takes on its tiers (`st_blocks`), kept in its record (docs/design/0029).
//!
//! Invariants:
//! * A file whose record has the numbers is answered for without a request to any tier.
//! * The tiers are asked once after a change: when a caller needs the numbers, or in the background after the last close. Nothing
//!   is synced for that, and no write, and no close that follows no change, makes a request or a record.

use std::sync::atomic::Ordering;

use polymux_records::store::ObjectEntry;
use polymux_tier::{ObjectStat, Tier};
use polymux_volume::inode::{Answer, FileState, Inode, Quality, reference_of};

use crate::data_path::DataPath;

/// So long after its last close the native file system has given a file its blocks, synced or not.
const WRITTEN_BACK_MS: u64 = 60_000;

/// Files that the background asks for in one step.
const FILES_PER_STEP: usize = 256;

/// Files that are asked for when the volume is stopped.
const FILES_AT_UNMOUNT_MAX: usize = 16_384;

/// Whether a length would outlast a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    Yes,
    No,
}

/// Units of 512 bytes.
pub(super) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(512)
}

impl DataPath {
    /// Units of 512 bytes on all tiers. Inline bytes count too: programs take a file without blocks for one hole.
    pub fn allocated_blocks(&self, inode: &Inode, file: &FileState) -> u64 {
        if file.is_inline() {
            return blocks_of(file.size());
        }
        if let Some(blocks) = known_blocks(file) {
            return blocks;
        }
        if let Some(_one_at_a_time) = file.allocation.asking.try_lock() {
            return known_blocks(file).unwrap_or_else(|| self.ask_allocation(inode, file));
        }
        // No waiting for the request of another thread, which may hang.
        let objects = file.layout.read().objects.clone();
        self.ask_objects(file, &objects).iter().map(|answer| answer.blocks).sum()
    }

    /// The answers of objects; those that do not answer are left out.
    fn ask_objects(&self, file: &FileState, objects: &[ObjectEntry]) -> Vec<Answer> {
        let ask = |entry: &ObjectEntry| {
            let is_durable = self.has_durable_length(file, entry);
            let stat = self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(entry)))?;
            // Asked again: a write that is under way makes the object longer after the first answer, and unsynced before that.
            let stays_durable = is_durable == Durable::Yes && self.has_durable_length(file, entry) == Durable::Yes;
            let is_durable = if stays_durable { Durable::Yes } else { Durable::No };
            polymux_records::error::Result::Ok(answer_of(file, entry, &stat, is_durable))
        };
        objects.iter().filter_map(|entry| ask(entry).ok()).collect()
    }

    /// Whether the length that an object has now would outlast a crash, as far as the record may make use of it: the size floor
    /// does not follow the only object of a file before that is synced.
    pub(super) fn has_durable_length(&self, file: &FileState, entry: &ObjectEntry) -> Durable {
        let is_only_extender = {
            let layout = file.layout.read();
            layout.objects.len() == 1 && layout.extenders & (1 << entry.tier.0) != 0
        };
        if is_only_extender || self.is_synced(entry) { Durable::Yes } else { Durable::No }
    }

    /// Whether the tiers have to be asked for the space that a file takes.
    pub fn asks_for_allocation(&self, file: &FileState) -> bool {
        !file.is_inline() && known_blocks(file).is_none()
    }

    /// Asks every object. Called with `asking` held.
    fn ask_allocation(&self, inode: &Inode, file: &FileState) -> u64 {
        file.allocation.begin_asking();
        let objects = file.layout.read().objects.clone();
        // Before the objects are asked: their answers do not cover bytes that are synced or freed meanwhile.
        let quality = self.quality_of_answers(inode, file, &objects);
        let answers = self.ask_objects(file, &objects);
        self.take_answers(inode, file, &answers, objects.len(), quality);
        answers.iter().map(|answer| answer.blocks).sum()
    }

    /// Takes over the answers of objects since `begin_asking`; `asked_count` objects were asked.
    pub(super) fn take_answers(
        &self,
        inode: &Inode,
        file: &FileState,
        answers: &[Answer],
        asked_count: usize,
        quality: Quality,
    ) {
        if answers.len() < asked_count {
            return file.allocation.give_up_asking();
        }
        let differs = {
            let mut layout = file.layout.write();
            let size = file.size();
            file.allocation.end_asking(&mut layout, answers, size, quality)
        };
        if differs && !self.volume.is_read_only() {
            // It follows with the next record, which the flush interval brings.
            inode.times_dirty.store(true, Ordering::Release);
        }
    }

    /// Whether the objects' present answers are final.
    pub(super) fn quality_of_answers(&self, inode: &Inode, file: &FileState, objects: &[ObjectEntry]) -> Quality {
        let is_freed = |entry: &ObjectEntry| !self.volume.disowned.holds(entry.tier, entry.object);
        let is_settled = !file.is_changed_directly()
            && objects.iter().all(is_freed)
            && (self.is_written_back(inode, file) || objects.iter().all(|entry| self.is_synced(entry)));
        if is_settled { Quality::Settled } else { Quality::Passing }
    }

    fn is_synced(&self, entry: &ObjectEntry) -> bool {
        let tier = self.volume.tiers.by_id(entry.tier).ok().and_then(|handle| handle.shared());
        tier.is_some_and(|tier| !tier.is_unsynced(reference_of(entry)))
    }

    /// Whether its last close is long ago.
    fn is_written_back(&self, inode: &Inode, file: &FileState) -> bool {
        let closed_ms = file.usage.closed_ms.load(Ordering::Relaxed);
        inode.lifecycle.lock().handles == 0 && self.volume.elapsed_ms() >= closed_ms.saturating_add(WRITTEN_BACK_MS)
    }

    /// At the last close of a file that was synced before: the record that its close writes can have the numbers.
    pub fn learn_allocation_at_close(&self, inode: &Inode, file: &FileState) {
        if !inode.times_dirty.load(Ordering::Acquire) || !file.allocation.is_to_be_learned() {
            return;
        }
        let objects = file.layout.read().objects.clone();
        if self.quality_of_answers(inode, file, &objects) == Quality::Settled && self.may_be_asked(&objects) {
            self.allocated_blocks(inode, file);
        }
    }

    /// Asks the tiers about files that were changed and are not open. Returns whether there is more to do at once.
    pub fn learn_allocations(&self) -> bool {
        let now_ms = self.volume.elapsed_ms();
        if now_ms < self.upkeep.allocations_due_ms.load(Ordering::Relaxed) {
            return false;
        }
        let interval_ms = u64::from(self.volume.options.flush_interval_ms);
        self.upkeep.allocations_due_ms.store(now_ms.saturating_add(interval_ms), Ordering::Relaxed);
        let mut learned = 0;
        for inode in self.volume.inodes.all_where(is_to_be_learned) {
            if learned == FILES_PER_STEP {
                self.upkeep.allocations_due_ms.store(now_ms, Ordering::Relaxed);
                return true;
            }
            learned += usize::from(self.learn_allocation(&inode));
        }
        false
    }

    /// Asks for one file, where the answer would stay true. Returns whether something is on its way to the record now.
    fn learn_allocation(&self, inode: &Inode) -> bool {
        let Some(file) = inode.file() else { return false };
        let is_in_use = {
            let lifecycle = inode.lifecycle.lock();
            lifecycle.handles > 0 || lifecycle.gone
        };
        let objects = file.layout.read().objects.clone();
        if is_in_use || objects.is_empty() || !self.may_be_asked(&objects) {
            return false;
        }
        let is_due =
            file.allocation.is_to_be_learned() && self.quality_of_answers(inode, file, &objects) == Quality::Settled;
        if is_due {
            let Some(_one_at_a_time) = file.allocation.asking.try_lock() else { return false };
            self.ask_allocation(inode, file);
        }
        if file.allocation.looks_short()
            && let Err(error) = self.note_short_objects(inode, file)
        {
            log::warn!("inode {}: what its objects lost is not on record yet: {error}", inode.ino);
        }
        let is_learned = is_due && file.allocation.is_settled();
        self.settle_if_synced(inode, file, &objects) || is_learned
    }

    /// Logs the size of a file that was closed long ago and is synced entirely, so that no tier has to be asked when the file is
    /// loaded again. Returns whether that was done.
    fn settle_if_synced(&self, inode: &Inode, file: &FileState, objects: &[ObjectEntry]) -> bool {
        let is_due = || file.layout.read().extenders != 0 && self.is_written_back(inode, file);
        if !is_due() || !objects.iter().all(|entry| self.is_synced(entry)) {
            return false;
        }
        let (Some(_shared), Some(_append)) = (file.barrier.try_read(), file.append.try_lock()) else { return false };
        let settled = self.settle_if_known(inode).inspect_err(|error| log::debug!("inode {}: {error}", inode.ino));
        settled.is_ok() && file.layout.read().extenders == 0
    }

    /// The answer of a synced object, if it has no pending frees.
    pub fn settled_answer_of(&self, file: &FileState, entry: &ObjectEntry) -> Option<Answer> {
        if self.volume.disowned.holds(entry.tier, entry.object) {
            return None;
        }
        let handle = self.volume.tiers.by_id(entry.tier).ok()?;
        let stat = handle.run(|tier| tier.stat(reference_of(entry))).ok()?;
        Some(answer_of(file, entry, &stat, Durable::Yes))
    }

    fn may_be_asked(&self, objects: &[ObjectEntry]) -> bool {
        let answers = |entry: &ObjectEntry| {
            self.volume
                .tiers
                .by_id(entry.tier)
                .is_ok_and(|tier| tier.present().is_some() && !tier.is_failing() && !tier.is_slow())
        };
        objects.iter().all(answers)
    }

    /// Called before the volume is stopped, when everything is synced and freed: puts the missing numbers into the last records.
    pub fn learn_allocations_at_unmount(&self) {
        let inodes = self.volume.inodes.all_where(is_to_be_learned);
        for inode in inodes.iter().take(FILES_AT_UNMOUNT_MAX) {
            self.learn_allocation(inode);
        }
        for inode in &inodes {
            if inode.file().is_some_and(|file| file.allocation.contradicts_record()) {
                inode.times_dirty.store(true, Ordering::Release);
            }
        }
    }
}

fn is_to_be_learned(inode: &Inode) -> bool {
    let extends =
        |file: &FileState| file.usage.closed_ms.load(Ordering::Relaxed) > 0 && file.layout.read().extenders != 0;
    inode
        .file()
        .is_some_and(|file| file.allocation.is_to_be_learned() || file.allocation.looks_short() || extends(file))
}

/// The answer for an object's state. An object that became shorter by itself is noted.
pub(super) fn answer_of(file: &FileState, entry: &ObjectEntry, stat: &ObjectStat, durable: Durable) -> Answer {
    // Read after the object was asked: a truncation forgets the known length before it cuts.
    let known = {
        let layout = file.layout.read();
        layout.slot_of(entry.tier).map(|slot| layout.object(slot))
    };
    if known.is_some_and(|known| known.object == entry.object && stat.size < known.known_length) {
        file.allocation.note_short();
    }
    let length = if durable == Durable::Yes { stat.size } else { 0 };
    Answer { entry: *entry, blocks: blocks_of(stat.allocated), length }
}

/// The sum of the numbers, where they are believed.
fn known_blocks(file: &FileState) -> Option<u64> {
    let layout = file.layout.read();
    if !file.allocation.is_known() {
        return None;
    }
    layout.objects.iter().map(|entry| entry.allocated_blocks).sum()
}
