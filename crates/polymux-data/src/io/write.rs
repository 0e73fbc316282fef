//! Writes: disjoint ones run side by side, overlapping ones one after the other, each goes where its blocks are owned.

use std::sync::atomic::Ordering;

use polymux_records::attributes::WriteOrigin;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::Wait;
use polymux_types::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use polymux_types::{Block, Errno, StreamId};
use polymux_volume::inode::{FileState, Inode, reference_of};
use polymux_volume::sched::Direction;
use polymux_volume::space::LAST_ROOM_BYTES;

use super::spread::Placed;
use crate::data_path::DataPath;
use crate::placement::Request;

/// How often the beginning of a write is tried while no tier has free space.
const ATTEMPTS_MAX: u32 = 4;

/// One write.
#[derive(Clone, Copy)]
pub struct WriteRequest<'a> {
    /// First byte; ignored where the description appends.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// The offset is the end of the file, found under the append lock.
    pub append: bool,
    /// Whether the caller may block.
    pub wait: Wait,
    /// The thread that writes.
    pub stream: StreamId,
    /// Where the bytes come from.
    pub origin: WriteOrigin,
}

/// How a pass over the data ended.
enum Pass {
    Done,
    /// Leave, and enter again.
    Again(Obstacle),
}

/// An obstacle that must be removed before a write can go on. It is waited for outside: no holder of blocks waits for a lock above them,
/// or for a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The tail must change, and the append lock is not held.
    AppendLock,
    /// The only tier with free space is the target of a migration of this file that is under way (docs/design/0010).
    Move,
}

/// The result of writing the beginning of the data.
pub(super) enum Step {
    Wrote(usize),
    Blocked(Obstacle),
}

/// The locks that a pass holds.
struct Held<'a> {
    inode: &'a Inode,
    file: &'a FileState,
    has_append_lock: bool,
    stream: StreamId,
}

impl DataPath {
    /// Writes to a file; returns the number of bytes written, which is short only when free space ran out.
    pub fn write_file(&self, inode: &Inode, file: &FileState, request: WriteRequest<'_>) -> Result<(u64, usize)> {
        self.ensure_size(inode, file)?;
        if request.data.is_empty() {
            return Ok((request.offset, 0));
        }
        let mut written = 0;
        let mut offset = request.offset;
        // Writers of an inline file go one after the other; it becomes inline under the barrier held alone, so not now.
        let grows = offset.saturating_add(request.data.len() as u64) > file.size();
        let mut wants_append_lock = request.append || grows || file.is_inline();
        let mut turn = None;
        loop {
            let wait = patience(request.wait, written);
            if wait == Wait::Allowed {
                let length = request.data.len() - written;
                self.wait_before_growth(inode, file, offset + written as u64, length, request.stream);
            }
            let shared = lock_shared(file, wait)?;
            drop(turn.take());
            wants_append_lock |= file.is_inline();
            let append = wants_append_lock.then(|| lock_append(file, wait)).transpose()?;
            if append.is_some() {
                self.see_direct_changes(inode, file)?;
            }
            if request.append && written == 0 {
                offset = file.size();
            }
            let end = end_of_write(offset, request.data.len())?;
            let data = &request.data[..usize::try_from(end - offset).expect("no longer than the data")];
            let held = Held { inode, file, has_append_lock: append.is_some(), stream: request.stream };
            match self.write_pass(&held, offset, data, &mut written, wait) {
                Ok(Pass::Done) => {
                    if !file.is_inline() {
                        self.note_write(inode, offset, written, request.origin);
                    }
                    return Ok((offset, written));
                }
                Ok(Pass::Again(Obstacle::AppendLock)) => wants_append_lock = true,
                Ok(Pass::Again(Obstacle::Move)) => {
                    drop((append, shared));
                    turn = Some(file.stop_move());
                }
                Err(error) if written == 0 => return Err(error),
                Err(error) => {
                    log::debug!("inode {}: wrote {written} of {} bytes: {error}", inode.ino, data.len());
                    return Ok((offset, written));
                }
            }
        }
    }

    /// Holds the blocks and writes the data from `written` on.
    fn write_pass(&self, held: &Held<'_>, offset: u64, data: &[u8], written: &mut usize, wait: Wait) -> Result<Pass> {
        let Held { inode, file, stream, .. } = *held;
        let end = offset + data.len() as u64;
        let is_inline = held.has_append_lock && file.is_inline();
        if is_inline && self.write_inline(inode, file, (offset, data), wait)? {
            *written = data.len();
            return Ok(Pass::Done);
        }
        let blocks = Block::holding(offset)..Block::at_or_after(end);
        let _range = match wait {
            Wait::Allowed => file.nodes.hold(blocks),
            Wait::Never => file.nodes.try_hold(blocks).ok_or(ErrorKind::WouldBlock)?,
        };
        if is_inline || end > file.size() {
            if !held.has_append_lock {
                return Ok(Pass::Again(Obstacle::AppendLock));
            }
            if wait == Wait::Never && file.layout.read().map.home().is_none() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let length = data.len() as u64;
            self.ensure_home(inode, file, &Request { length, file_end: end, partial: false, except: None })?;
            self.check_growth(file)?;
            file.direct.growth.note_growth();
        } else {
            file.direct.growth.note_overwrite();
        }
        if wait == Wait::Never && file.layout.read().map.run_at(Block::holding(offset)).end < Block::at_or_after(end) {
            // A write over several runs may need space on another tier in the middle.
            return Err(ErrorKind::WouldBlock.into());
        }
        if wait == Wait::Never && self.has_range_to_place(file, offset, data.len()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        while *written < data.len() {
            let position = offset + *written as u64;
            let rest = match self.place_growth(inode, file, position, &data[*written..], stream)? {
                Placed::In(rest) => rest,
                Placed::AfterMove => return Ok(Pass::Again(Obstacle::Move)),
            };
            let wait = patience(wait, *written);
            let rest = self.continue_log(inode, file, position, rest, wait)?;
            let count = match self.write_run(held, position, rest, wait)? {
                Step::Wrote(count) => count,
                Step::Blocked(obstacle) => return Ok(Pass::Again(obstacle)),
            };
            *written += count;
            publish_size(file, position + count as u64);
        }
        Ok(Pass::Done)
    }

    /// Writes up to the end of the run that `position` lies in.
    fn write_run(&self, held: &Held<'_>, position: u64, data: &[u8], wait: Wait) -> Result<Step> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let before = self.volume.tiers.room_generation();
            match self.try_run(held, position, data, wait) {
                // The search for another tier carried out pending frees, on the owner of these blocks too.
                Err(error)
                    if error.is_out_of_room()
                        && !matches!(error.kind(), ErrorKind::Store(_))
                        && attempts < ATTEMPTS_MAX
                        && self.volume.tiers.room_generation() != before
                        && self.owner_has_room(held.file, position) => {}
                outcome => return outcome,
            }
        }
    }

    /// Whether the tier that owns the blocks at a position has free space by now.
    fn owner_has_room(&self, file: &FileState, position: u64) -> bool {
        self.tier_at(file, position).is_some_and(|handle| handle.headroom() >= BLOCK_SIZE)
    }

    fn try_run(&self, held: &Held<'_>, position: u64, data: &[u8], wait: Wait) -> Result<Step> {
        let Held { inode, file, .. } = *held;
        let (run, entry) = {
            let layout = file.layout.read();
            let run = layout.map.run_at(Block::holding(position));
            let entry = layout.owner_of(&run);
            (run, entry)
        };
        let length =
            usize::try_from((run.end.first_byte() - position).min(data.len() as u64)).expect("no longer than data");
        let data = &data[..length];
        if let Some((slot, entry)) = &entry {
            if position + data.len() as u64 > file.size() && !file.grows_unsettled() {
                if wait == Wait::Never && file.layout.read().extenders != 1 << entry.tier.0 {
                    return Err(ErrorKind::WouldBlock.into());
                }
                self.ensure_extender(inode, file, *slot)?;
            }
            if file.spreading.may_grow_unsettled.load(Ordering::Acquire)
                && self.volume.disowned.holds(entry.tier, entry.object)
            {
                // Pending frees of bytes that were cut off there would free these bytes.
                if wait == Wait::Never {
                    return Err(ErrorKind::WouldBlock.into());
                }
                self.reclaim_object(inode, entry)?;
            }
            match self.write_to_owner(file, *slot, entry, position, data, wait) {
                Ok(count) => {
                    self.heal(inode, file, position, count)?;
                    return Ok(Step::Wrote(count));
                }
                Err(error) if error.is_out_of_room() => {}
                Err(error) => return Err(error),
            }
        }
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.spill(inode, file, position, data, held.has_append_lock)
    }

    /// Writes into the object that owns the blocks, unless that would eat into the reserve of its tier.
    fn write_to_owner(
        &self,
        file: &FileState,
        slot: u8,
        entry: &ObjectEntry,
        position: u64,
        data: &[u8],
        wait: Wait,
    ) -> Result<usize> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let tier = handle.get()?;
        let end = position + data.len() as u64;
        if end > tier.capabilities().file_size_max {
            return Err(ErrorKind::NoSpace.into());
        }
        let takes_room = || -> Result<bool> {
            let is_new = Block::holding(position) >= Block::at_or_after(file.size());
            Ok(is_new || self.has_hole(entry, position, end)?)
        };
        // A write that takes no space needs none, and is in no other writer's way.
        let is_scarce = handle.headroom() < LAST_ROOM_BYTES.max(data.len() as u64) && takes_room()?;
        let taken = is_scarce.then(|| handle.take_room(data.len()));
        let data = match &taken {
            Some(taken) => self.what_has_room(entry, position, data, taken.left)?,
            None => data,
        };
        let written_end = position + data.len() as u64;
        self.wait_for_switch(file, entry.tier, written_end, wait)?;
        file.note_unsynced(slot, position, written_end);
        let _changing = file.allocation.changing();
        self.make_room_for_growth(file, &handle, entry, position, written_end, wait)?;
        let count = handle.transfer(
            Direction::Write,
            |count| *count,
            |tier| tier.write(reference_of(entry), position, data, wait),
        )?;
        handle.note_written(count);
        drop(taken);
        if file.spreading.is_spread.load(Ordering::Relaxed) {
            self.write_behind.wrote(&handle, reference_of(entry), position, count);
        } else if self.collects_writes() {
            self.write_collected_behind(file, &handle, entry, position, count);
        } else {
            self.write_stream_behind(file, position, count);
        }
        Ok(count)
    }

    /// The prefix of `data`, possibly all of it, that can be written into an object with `headroom` bytes free; `NoSpace` if none.
    fn what_has_room<'a>(&self, entry: &ObjectEntry, position: u64, data: &'a [u8], headroom: u64) -> Result<&'a [u8]> {
        if headroom >= data.len() as u64 {
            return Ok(data);
        }
        // Up to a block boundary the space may be allocated already, for example by a reservation; whole blocks follow as far as
        // they fit, and the rest belongs to the next tier.
        let end = position + data.len() as u64;
        let own = self.allocated_in(entry, position..end)?.filter(|blocks| blocks.start <= position);
        let has_room_until = own.map_or(0, |blocks| blocks.end).max(Block::at_or_after(position).first_byte());
        let boundary = has_room_until.saturating_add(Block::bytes_of(Block::whole_in(headroom)));
        let fits = usize::try_from(boundary - position).unwrap_or(usize::MAX);
        match &data[..fits.min(data.len())] {
            [] => Err(ErrorKind::NoSpace.into()),
            fitting => Ok(fitting),
        }
    }

    /// An overwritten block is no longer damaged.
    pub fn heal(&self, inode: &Inode, file: &FileState, position: u64, count: usize) -> Result<()> {
        if file.layout.read().damaged.is_empty() {
            return Ok(());
        }
        let end = position + count as u64;
        // The last block of the file counts as overwritten where the write reaches the file's end.
        let end = if end >= file.size() { end.next_multiple_of(BLOCK_SIZE) } else { end };
        self.volume.transact(&[inode], |transaction| {
            if file.layout.write().heal(position, end) {
                transaction.put_inode(inode);
            }
            Ok(())
        })
    }
}

/// Once a part of a write is done, the rest may wait: half of a write is never reported as one that would wait.
pub fn patience(wait: Wait, written: usize) -> Wait {
    if written > 0 { Wait::Allowed } else { wait }
}

/// The size becomes visible after the bytes are there.
pub(crate) fn publish_size(file: &FileState, end: u64) {
    file.sizes.bytes.fetch_max(end, Ordering::AcqRel);
}

fn end_of_write(offset: u64, length: usize) -> Result<u64> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(end),
        _ if offset < FILE_SIZE_MAX => Ok(FILE_SIZE_MAX),
        _ => Err(Errno::EFBIG.into()),
    }
}

fn lock_shared(file: &FileState, wait: Wait) -> Result<polymux_types::sync::RwLockReadGuard<'_, ()>> {
    match wait {
        Wait::Allowed => Ok(file.barrier.read()),
        Wait::Never => file.barrier.try_read().ok_or_else(would_block),
    }
}

fn lock_append(file: &FileState, wait: Wait) -> Result<polymux_types::sync::MutexGuard<'_, ()>> {
    match wait {
        Wait::Allowed => Ok(file.append.lock()),
        Wait::Never => file.append.try_lock().ok_or_else(would_block),
    }
}

fn would_block() -> Error {
    ErrorKind::WouldBlock.into()
}
