//! Optimistic reads across tiers. The parts of one read are on their way at the same time.

use std::sync::atomic::Ordering;

use polymux_records::attributes::ATTRIBUTE_NO_ATIME;
use polymux_records::blockmap::Run;
use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::parts::AccessTimes;
use polymux_records::store::ObjectEntry;
use polymux_tier::{Guarantee, TierError, Wait};
use polymux_types::limits::{BLOCK_SIZE, RANGE_NODE_SIZE};
use polymux_types::{Block, Timestamp};
use polymux_volume::inode::Common;
use polymux_volume::inode::{FileState, Inode, Layout, reference_of};
use polymux_volume::sched::{is_from_device, microseconds};
use polymux_volume::space::Piece;

use super::short::is_object_short;
use crate::data_path::DataPath;

/// Optimistic attempts before a read holds the mapping.
const ATTEMPTS_MAX: u32 = 8;

/// Reads up to here are not part of a stream: the kernel reads more ahead of one.
pub(super) const SINGLE_READ_MAX: usize = 8 << 10;

/// Parts of one read that are begun before the first one is waited for.
const PARTS_BEGUN_MAX: usize = 64;

/// Who has the bytes after a read, so that they are in memory once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The file system of the tier.
    Tier,
    /// The reader: the kernel keeps pages of the file.
    Reader,
}

/// How a read goes about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub wait: Wait,
    pub keeper: Keeper,
    pub ahead: Ahead,
}

/// Who brings bytes into memory before they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// The file system of the tier, as it sees fit.
    Tier,
    /// We, from all tiers of the file.
    File,
}

impl How {
    /// A read of our own, that the tier carries out as it sees fit.
    pub fn own() -> Self {
        Self { wait: Wait::Allowed, keeper: Keeper::Tier, ahead: Ahead::Tier }
    }
}

/// Who had the bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    Memory,
    Device,
}

/// The sources of one read attempt.
struct Plan {
    noted: u64,
    end: u64,
    /// Of the file.
    size: u64,
    parts: Vec<(Run, Option<ObjectEntry>)>,
}

fn plan(inode: &Inode, file: &FileState, layout: &Layout, offset: u64, length: usize) -> Result<Option<Plan>> {
    // Size and version are read under the layout lock: a cut changes both under it.
    let noted = file.nodes.version();
    let size = file.size();
    if offset >= size || length == 0 {
        return Ok(None);
    }
    let end = size.min(offset.saturating_add(length as u64));
    if layout.is_damaged(offset, end) {
        return Err(ErrorKind::Damaged(inode.ino).into());
    }
    let parts = layout
        .map
        .runs(Block::holding(offset), Block::at_or_after(end))
        .into_iter()
        .map(|run| (run, layout.owner_of(&run).map(|(_, entry)| entry)))
        .collect();
    Ok(Some(Plan { noted, end, size, parts }))
}

/// Range nodes of which a read saw the last byte, or the last one of the file, and the one before, where reads of a stream that
/// overtook one another left something.
fn read_to_the_end(plan: &Plan, offset: u64) -> Option<(u64, u64)> {
    let first = offset / RANGE_NODE_SIZE;
    let to = if plan.end == plan.size { plan.end } else { plan.end / RANGE_NODE_SIZE * RANGE_NODE_SIZE };
    (first * RANGE_NODE_SIZE < to).then_some((first.saturating_sub(1) * RANGE_NODE_SIZE, to))
}

impl DataPath {
    /// Reads from a file; returns the number of bytes, which is short only at its end.
    pub fn read_file(
        &self,
        inode: &Inode,
        file: &FileState,
        offset: u64,
        buffer: &mut [u8],
        wait: Wait,
        keeper: Keeper,
    ) -> Result<usize> {
        match self.read_parts(inode, file, offset, buffer, wait, keeper) {
            Err(error) if is_object_short(&error) => {
                self.note_short_objects(inode, file)?;
                self.read_parts(inode, file, offset, buffer, wait, keeper)
            }
            outcome => outcome,
        }
    }

    fn read_parts(
        &self,
        inode: &Inode,
        file: &FileState,
        offset: u64,
        buffer: &mut [u8],
        wait: Wait,
        keeper: Keeper,
    ) -> Result<usize> {
        self.ensure_size(inode, file)?;
        for _ in 0..ATTEMPTS_MAX {
            let (plan, ahead) = {
                let layout = file.layout.read();
                if layout.objects.is_empty() {
                    return self.read_inline(inode, file, &layout, offset, buffer);
                }
                (plan(inode, file, &layout, offset, buffer.len())?, self.who_reads_ahead(&layout))
            };
            let Some(plan) = plan else { return Ok(0) };
            let stream = self.stream_window(ahead, plan.end - offset);
            if let Some(window) = stream.filter(|_| wait == Wait::Never)
                && file.usage.read_streams.lock().would_ask(offset, plan.end - offset, window)
            {
                return Err(ErrorKind::WouldBlock.into());
            }
            if (wait, keeper) == (Wait::Never, Keeper::Reader) && read_to_the_end(&plan, offset).is_some() {
                // Pages that were not written out yet are waited for where they are given up.
                return Err(ErrorKind::WouldBlock.into());
            }
            let outcome = self.carry_out_read(&plan, offset, buffer, How { wait, keeper, ahead });
            if file.nodes.map_unchanged_since(Block::holding(offset)..Block::at_or_after(plan.end), plan.noted) {
                if let Ok((count, from_devices)) = &outcome {
                    // A read that must not wait is noted, and asks for nothing ahead.
                    let window = stream.map(|window| if wait == Wait::Never { 0 } else { window });
                    self.read_ahead_of_stream(inode.ino, file, offset, plan.end - offset, window);
                    self.note_read(inode, offset, *count, *from_devices, ahead);
                }
                return outcome.map(|(count, _)| count);
            }
            Counters::count(&self.volume.counters.read_retries);
            if wait == Wait::Never {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        Counters::count(&self.volume.counters.read_fallbacks);
        let layout = file.layout.read();
        if layout.objects.is_empty() {
            return self.read_inline(inode, file, &layout, offset, buffer);
        }
        match plan(inode, file, &layout, offset, buffer.len())? {
            Some(plan) => {
                let how = How { wait, keeper, ahead: Ahead::Tier };
                self.carry_out_read(&plan, offset, buffer, how).map(|(count, _)| count)
            }
            None => Ok(0),
        }
    }

    /// Returns how many bytes were read, and how many of these devices served.
    fn carry_out_read(&self, plan: &Plan, offset: u64, buffer: &mut [u8], how: How) -> Result<(usize, u64)> {
        if how.wait == Wait::Allowed {
            self.begin_later_parts(plan, offset, how.keeper);
        }
        let (mut filled, mut from_devices) = (0, 0);
        for (run, entry) in &plan.parts {
            let start = offset.max(run.start.first_byte());
            let end = plan.end.min(run.end.first_byte());
            let length = usize::try_from(end - start).expect("a part of a buffer fits into memory");
            let part = &mut buffer[filled..filled + length];
            match entry {
                Some(entry) => {
                    if self.read_part(entry, start, part, how)? == ServedBy::Device {
                        from_devices += length as u64;
                    }
                }
                None => part.fill(0),
            }
            filled += length;
        }
        if how.keeper == Keeper::Reader {
            self.drop_behind(plan, offset);
        }
        Ok((filled, from_devices))
    }

    /// Lets the devices of all parts of a read work at once: the later parts are prefetched before the first one is waited for. This is
    /// a hint to each tier, far cheaper than a thread; an error is reported when the part is read.
    fn begin_later_parts(&self, plan: &Plan, offset: u64, keeper: Keeper) {
        let owned = plan.parts.iter().filter_map(|(run, entry)| Some((run, entry.as_ref()?)));
        let mut later = owned.skip(1).take(PARTS_BEGUN_MAX).peekable();
        if later.peek().is_none() {
            return;
        }
        let mut has_begun = false;
        for (run, entry) in later {
            let (start, end) = (offset.max(run.start.first_byte()), plan.end.min(run.end.first_byte()));
            let Ok(handle) = self.volume.tiers.by_id(entry.tier) else { continue };
            let Some(tier) = handle.present().filter(|_| !handle.is_silent()) else { continue };
            // Memory has no latency, and of short reads for the kernel nothing is to stay behind.
            let is_worth_it = tier.capabilities().guarantee != Guarantee::Volatile
                && (keeper == Keeper::Tier || end - start > SINGLE_READ_MAX as u64);
            if is_worth_it {
                tier.read_ahead(reference_of(entry), start, end - start);
                has_begun = true;
            }
        }
        if has_begun {
            Counters::count(&self.volume.counters.reads_of_parts);
        }
    }

    fn who_reads_ahead(&self, layout: &Layout) -> Ahead {
        let is_ours = self.placement.may_spread.load(Ordering::Acquire) && layout.objects.len() > 1;
        if is_ours { Ahead::File } else { Ahead::Tier }
    }

    /// Drops range nodes that were read to their end from the memory of their tiers: the reader has their bytes.
    fn drop_behind(&self, plan: &Plan, offset: u64) {
        let Some((from, to)) = read_to_the_end(plan, offset) else { return };
        // Of the parts that other objects own, these have nothing cached.
        for entry in plan.parts.iter().filter_map(|(_, entry)| entry.as_ref()) {
            if let Ok(handle) = self.volume.tiers.by_id(entry.tier)
                && let Some(tier) = handle.present()
            {
                tier.drop_behind(reference_of(entry), from, to - from);
            }
        }
    }

    /// Fills a part from one object; bytes beyond the object's end are a hole of the file, unless the object was longer.
    pub(crate) fn read_part(&self, entry: &ObjectEntry, offset: u64, part: &mut [u8], how: How) -> Result<ServedBy> {
        let wait = how.wait;
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let object = reference_of(entry);
        let piece = Piece { object, offset, length: part.len() };
        let (count, took) = handle.timed_read(piece, wait, |tier| match (how.keeper, how.ahead) {
            (Keeper::Reader, _) if part.len() <= SINGLE_READ_MAX => tier.read_for_keeper(object, offset, part, wait),
            (_, Ahead::File) => tier.read_exactly(object, offset, part, wait),
            (_, Ahead::Tier) => tier.read(object, offset, part, wait),
        })?;
        if count < part.len() {
            self.check_object_end(entry, offset + count as u64, wait)?;
            part[count..].fill(0);
        }
        let is_from_device = is_from_device(microseconds(took), count as u64);
        Ok(if is_from_device { ServedBy::Device } else { ServedBy::Memory })
    }

    /// Whether an object has a hole in a range, so that a write there needs free space. Unknown counts as yes.
    pub(crate) fn has_hole(&self, entry: &ObjectEntry, start: u64, end: u64) -> Result<bool> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let found = handle.get()?.seek(reference_of(entry), start, polymux_tier::SeekTarget::Hole);
        match found {
            Ok(Some(hole)) => Ok(hole < end),
            // No hole before the object's end; everything beyond it is one.
            Ok(None) => {
                let stat = handle.run(|tier| tier.stat(reference_of(entry)))?;
                Ok(stat.size.next_multiple_of(BLOCK_SIZE) < end)
            }
            Err(TierError::Unsupported(_)) => Ok(true),
            Err(error) => Err(handle.note_error(error)),
        }
    }

    /// Whether reads set access times at all.
    pub(super) fn has_access_times(&self) -> bool {
        !self.volume.is_read_only() && self.volume.options.access_times != AccessTimes::Never
    }

    /// Notes an access, where relatime asks for it.
    pub fn note_accessed(&self, inode: &Inode) {
        if !self.has_access_times() {
            return;
        }
        let now = self.volume.now();
        if is_access_time_kept(&inode.common.read(), now) {
            return;
        }
        inode.common.write().accessed = now;
        inode.times_dirty.store(true, Ordering::Release);
    }
}

/// Whether a read at a moment leaves the access time of an inode as it is.
pub(super) fn is_access_time_kept(common: &Common, now: Timestamp) -> bool {
    common.attribute_flags & ATTRIBUTE_NO_ATIME != 0 || !common.access_time_is_due(now)
}
