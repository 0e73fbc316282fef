//! A file lets go of a tier that is lost for good (docs/design/0027).
//!
//! Invariants:
//! * A lost range is a damaged range: it reads as EIO until it is written, cut off or accepted. Blocks that the lost tier owned
//!   become holes of the map, or, where one object is left, part of that object.
//! * A file whose only object is lost gets a new one of its size without a byte of data, made and durable before the record
//!   names it: a file without objects would be empty or inline.
//! * Where only the lost tier knew the end of a file, the file is one block longer than its last known byte, and that block is
//!   damaged: a reader that reaches the end gets the error.
//! * Where another tier that is away knows the end, that stays so: the file's bytes there are not touched, and the size is determined
//!   when that tier is back, or when the file lets go of it, too.
//! * Each file is one transaction, so a crash leaves it as it was or as it will be.

use std::sync::atomic::Ordering;

use polymux_records::blockmap::{MapChange, Owner};
use polymux_records::error::{ErrorKind, Result};
use polymux_records::report::LostFile;
use polymux_records::store::ObjectEntry;
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Block, Errno, TierId};
use polymux_volume::inode::{FileState, Inode, Layout, reference_of};

use super::layout_change::Company;
use crate::data_path::DataPath;
use crate::placement::Request;

/// Whether the end of a file is known without the lost tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Known,
    Unknown,
    /// Another tier, which is away too, has the end, and will say where it is.
    Elsewhere,
}

/// The bytes that a file loses with a tier.
struct Loss {
    /// Size of the file from then on, in bytes.
    size: u64,
    /// Lost byte ranges, ascending: start and end.
    ranges: Vec<(u64, u64)>,
    /// No object of the file is left.
    is_whole: bool,
}

impl Loss {
    fn of(layout: &Layout, slot: u8, size: u64, end: End) -> Self {
        let runs = layout.map.runs(Block(0), Block::END);
        let size = if end == End::Elsewhere { reached_at_least(layout, size) } else { size };
        let lost = || runs.iter().filter(|run| run.owner == Some(Owner::Slot(slot)));
        let mut ranges = Vec::new();
        let mut size_after = size;
        if end == End::Unknown {
            let tail = lost().filter(|run| run.end == Block::END).map(|run| run.start.first_byte()).next_back();
            let known = size.max(tail.unwrap_or(0)).next_multiple_of(BLOCK_SIZE);
            size_after = known + BLOCK_SIZE;
            ranges.push((size.min(known), size_after));
        }
        ranges.extend(lost().map(|run| (run.start.first_byte(), run.end.first_byte().min(size_after))));
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match merged.last_mut() {
                Some((_, last)) if start <= *last => *last = (*last).max(end),
                _ => merged.push((start, end)),
            }
        }
        Self { size: size_after, ranges: merged, is_whole: layout.objects.len() == 1 }
    }
}

/// The least that a file has whose tail is on a tier that is away: it was given to that tier where the file had reached it.
fn reached_at_least(layout: &Layout, size: u64) -> u64 {
    let runs = layout.map.runs(Block(0), Block::END);
    size.max(runs.last().map_or(0, |run| run.start.first_byte()))
}

impl DataPath {
    /// The bytes that a file loses with a tier, without its path; `None` if it has no object there, or loses no byte.
    pub fn loss_of_file(&self, inode: &Inode, file: &FileState, tier: TierId) -> Result<Option<LostFile>> {
        let end = self.end_without(inode, file, tier)?;
        let loss = {
            let layout = file.layout.read();
            layout.slot_of(tier).map(|slot| Loss::of(&layout, slot, file.size(), end))
        };
        let Some(loss) = loss.filter(|loss| !loss.ranges.is_empty()) else { return Ok(None) };
        Ok(Some(LostFile {
            ino: inode.ino,
            path: None,
            size: loss.size,
            is_end_known: end == End::Known,
            ranges: loss.ranges,
            is_whole: loss.is_whole,
            problem: None,
        }))
    }

    /// Finds out the size as far as that can be done without a tier.
    fn end_without(&self, inode: &Inode, file: &FileState, tier: TierId) -> Result<End> {
        let Err(error) = self.ensure_size(inode, file) else { return Ok(End::Known) };
        if !error.is_about_tier() {
            return Err(error);
        }
        let layout = file.layout.read();
        match layout.extender() {
            _ if file.sizes.is_known.load(Ordering::Acquire) => Ok(End::Known),
            None => Ok(End::Known),
            Some((_, entry)) if entry.tier == tier => Ok(End::Unknown),
            Some((slot, _)) if layout.tail_slot() == Some(slot) => Ok(End::Elsewhere),
            Some(_) => Err(error),
        }
    }

    /// Makes the object that a file gets whose only one lies on a lost tier; `None` where it needs none. It has to be durable
    /// before [`DataPath::let_go_of_tier`] names it.
    pub fn make_heir(&self, inode: &Inode, file: &FileState, tier: TierId) -> Result<Option<ObjectEntry>> {
        let end = self.end_without(inode, file, tier)?;
        let size = {
            let layout = file.layout.read();
            let Some(slot) = layout.slot_of(tier).filter(|_| layout.objects.len() == 1) else { return Ok(None) };
            Loss::of(&layout, slot, file.size(), end).size
        };
        if size == 0 {
            return Ok(None);
        }
        let request = Request { length: 1, file_end: size, partial: false, except: Some(tier) };
        let mut refusal = ErrorKind::NoSpace.into();
        for candidate in self.place_or_reclaim(inode, &request)? {
            let made = self.make_object(inode, candidate).and_then(|entry| {
                self.volume.tiers.by_id(candidate)?.run(|tier| tier.truncate(reference_of(&entry), size))?;
                Ok(entry)
            });
            match made {
                Ok(entry) => return Ok(Some(entry)),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Removes an object that [`DataPath::make_heir`] made and no record names.
    pub fn remove_heir(&self, entry: &ObjectEntry) -> Result<()> {
        self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.remove(reference_of(entry)))
    }

    /// Removes the object on a lost tier from a file. `heir` is the object that [`DataPath::make_heir`] made for it. Returns whether the
    /// heir belongs to the file now.
    pub fn let_go_of_tier(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: TierId,
        heir: Option<&ObjectEntry>,
    ) -> Result<bool> {
        let end = self.end_without(inode, file, tier)?;
        let _alone = file.lock_alone();
        let _append = file.append.lock();
        let Some(lost) = file.layout.read().slot_of(tier) else { return Ok(false) };
        if file.is_passed_through() || inode.lifecycle.lock().gone {
            return Err(Errno::EBUSY.into());
        }
        let kept: Vec<(u8, ObjectEntry)> = {
            let layout = file.layout.read();
            (0_u8..).zip(layout.objects.iter().copied()).filter(|(slot, _)| *slot != lost).collect()
        };
        if file.has_unsettled_tail() {
            // The bytes before the new floor are durable before it says that they are there.
            for (_, entry) in &kept {
                self.sync_object(inode, file, entry)?;
            }
        }
        if let [(_, only)] = kept.as_slice() {
            // Pending frees on it would be carried out later, when the bytes are the file's again.
            self.reclaim_object(inode, only)?;
        }
        self.volume.damaged_files.lock().files.insert(inode.ino);
        let _no_sync = file.durability.sync_gate.write();
        let _changing = file.allocation.changing();
        let takes_heir = self.change_layout(inode, file, Company::Nobody, |transaction, layout| {
            let loss = Loss::of(layout, lost, file.size(), end);
            let takes_heir = kept.is_empty() && loss.size > 0;
            if takes_heir && heir.is_none() {
                return Err(Errno::EAGAIN.into());
            }
            file.nodes.mark_map_changed(Block(0)..Block::END);
            if end != End::Elsewhere {
                file.sizes.bytes.store(loss.size, Ordering::Release);
            }
            let heir = heir.filter(|_| takes_heir);
            let change = drop_lost_object(file, layout, lost, &kept, heir, loss.size);
            transaction.put_map_change(inode.ino, layout, &change);
            loss.ranges.iter().for_each(|(start, end)| layout.damage(*start, *end));
            Ok(takes_heir)
        })?;
        file.durability.entries_unsynced.lock().retain(|object| file.layout.read().slot_of_object(*object).is_some());
        file.spreading.cut_off.lock().retain(|(of, _)| *of != tier);
        if end != End::Elsewhere {
            file.sizes.is_known.store(true, Ordering::Release);
        }
        file.direct.pages_stale.store(true, Ordering::Release);
        Ok(takes_heir)
    }
}

/// Takes a lost object out of the layout. `size` is that of the file from now on. Returns the change of the map, which is to be logged.
fn drop_lost_object(
    file: &FileState,
    layout: &mut Layout,
    lost: u8,
    kept: &[(u8, ObjectEntry)],
    heir: Option<&ObjectEntry>,
    size: u64,
) -> MapChange {
    let was_extender = layout.extender().is_none_or(|(slot, _)| slot == lost);
    let change = if kept.is_empty() {
        let change = layout.map.clear();
        layout.objects = heir.into_iter().copied().collect();
        if heir.is_some() {
            layout.map.set_home(0);
        }
        file.durability.unsynced.lock().clear();
        change
    } else {
        give_away_lost_blocks(file, layout, lost, kept, size)
    };
    if was_extender {
        layout.size_floor = size;
        layout.extenders = 0;
    }
    change
}

fn give_away_lost_blocks(
    file: &FileState,
    layout: &mut Layout,
    lost: u8,
    kept: &[(u8, ObjectEntry)],
    size: u64,
) -> MapChange {
    let is_kept = |slot: &u8| kept.iter().any(|(of, _)| of == slot);
    let home = layout.map.home().filter(is_kept);
    let taker = layout.tail_slot().filter(is_kept).or(home).unwrap_or(kept[0].0);
    let reached = Block::at_or_after(size);
    let mut change = MapChange::default();
    for run in layout.map.runs(Block(0), Block::END) {
        let is_hole = run.owner == Some(Owner::Hole);
        if run.owner != Some(Owner::Slot(lost)) && !(is_hole && kept.len() == 1) {
            continue;
        }
        // One object that is left has no extents: holes are its own.
        let within = if kept.len() == 1 { Owner::Slot(taker) } else { Owner::Hole };
        let border = run.end.min(reached.max(run.start));
        for (start, end, owner) in [(run.start, border, within), (border, run.end, Owner::Slot(taker))] {
            if start < end {
                change.then(layout.map.assign(start, end, owner));
            }
        }
    }
    let number = |slot: u8| if slot > lost { slot - 1 } else { slot };
    change.then(layout.map.renumber(home.unwrap_or(taker), number));
    layout.objects.remove(usize::from(lost));
    let mut unsynced = file.durability.unsynced.lock();
    unsynced.retain(|(slot, ..)| *slot != lost);
    unsynced.iter_mut().for_each(|(slot, ..)| *slot = number(*slot));
    change
}
