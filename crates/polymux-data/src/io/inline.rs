//! Inline data: small files live in the metadata store (DESIGN section 5, docs/design/0004).
//!
//! Invariants:
//! * A write changes bytes in memory only. They reach the log with the next record of the inode: at close, fsync, rename
//!   and the periodic flush, so a crash of the machine leaves a state that the file had at one of these moments. Of a file that is longer than a note
//!   each write is logged at once (`messages.rs`).
//! * Before the write is answered, a note of these bytes is in memory that outlives the daemon, where such memory exists
//!   (docs/design/0023). If that memory is full, the record is logged at once.
//! * It leaves the store when it grows beyond the limit or needs an object for another reason (`inline_move.rs`), and comes
//!   back only by being truncated to nothing.

use std::sync::atomic::Ordering;

use polymux_meta::Note;
use polymux_records::caller::Wait;
use polymux_records::counters::Counters;
use polymux_records::error::Result;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::INLINE_SIZE_LIMIT;
use polymux_volume::inode::{FileState, Inode, Layout};

use crate::data_path::DataPath;

/// Whether a change outlives the daemon, as far as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    AsLongAsNeeded,
    /// It has to be logged.
    NoRoom,
}

impl DataPath {
    /// The longest inline file that is no message (`messages.rs`), in bytes.
    pub(super) fn inline_size_max(&self) -> u64 {
        u64::from(self.volume.options.inline_size_max).min(INLINE_SIZE_LIMIT)
    }

    /// Whether the metadata store's file system has spare space for the bytes of files. Half of the space that data leaves free
    /// there is kept for names and records.
    fn metadata_has_room(&self) -> bool {
        let Some(tier) = self.volume.tiers.metadata_tier() else { return true };
        tier.space().is_none_or(|space| space.file_system_free >= tier.reserve_of(&space) / 2)
    }

    /// Runs `change` on the bytes of an inline file. `false`: it is not inline. Called with the append lock held, or the
    /// barrier alone.
    fn change_inline(&self, inode: &Inode, file: &FileState, change: impl FnOnce(&mut Vec<u8>)) -> Result<bool> {
        let layout = file.layout.read();
        if !layout.objects.is_empty() {
            return Ok(false);
        }
        let mut slot = file.inline.bytes.write();
        let bytes = match &mut *slot {
            Some(bytes) => bytes,
            none => none.insert(self.load_inline(inode, &layout)?),
        };
        change(bytes);
        file.sizes.bytes.store(bytes.len() as u64, Ordering::Release);
        file.inline.mark_dirty();
        let kept = self.note_inline(inode, file, bytes);
        drop((slot, layout));
        self.log_unless_kept(inode, file, kept)?;
        Ok(true)
    }

    /// Empties an inline file, whatever its record holds: nothing of it is read. `false`: it is not inline. Called with the
    /// barrier alone.
    fn empty_inline(&self, inode: &Inode, file: &FileState) -> Result<bool> {
        let layout = file.layout.read();
        if !layout.objects.is_empty() {
            return Ok(false);
        }
        let mut bytes = file.inline.bytes.write();
        file.inline.note_emptying();
        *bytes = Some(Vec::new());
        file.sizes.bytes.store(0, Ordering::Release);
        file.inline.mark_dirty();
        let kept = self.note_inline(inode, file, &[]);
        drop((bytes, layout));
        self.log_unless_kept(inode, file, kept)?;
        Ok(true)
    }

    /// Puts down a note of bytes that changed. Called with their lock held.
    fn note_inline(&self, inode: &Inode, file: &FileState, bytes: &[u8]) -> Kept {
        match self.volume.metadata.notes() {
            Some(_) if is_planted(PlantedFault::InlineNoteForgotten) => Kept::AsLongAsNeeded,
            Some(notes) if file.inline.put_note(notes, inode.ino, self.volume.now(), bytes) => Kept::AsLongAsNeeded,
            Some(_) => Kept::NoRoom,
            None => Kept::AsLongAsNeeded,
        }
    }

    /// Logs bytes of which no note could be made. A file without a name is not there after the daemon died.
    fn log_unless_kept(&self, inode: &Inode, file: &FileState, kept: Kept) -> Result<()> {
        if kept == Kept::AsLongAsNeeded || inode.common.read().links == 0 {
            return Ok(());
        }
        Counters::count(&self.volume.counters.notes_without_room);
        self.log_inline_or_move(inode, file)
    }

    pub(super) fn load_inline(&self, inode: &Inode, layout: &Layout) -> Result<Vec<u8>> {
        match layout.size_floor {
            0 => Ok(Vec::new()),
            size => self.volume.metadata.inline_data(inode.ino, size),
        }
    }

    /// Writes into an inline file. `false`: it needs an object. Called with the append lock held.
    pub(super) fn write_inline(
        &self,
        inode: &Inode,
        file: &FileState,
        (offset, data): (u64, &[u8]),
        wait: Wait,
    ) -> Result<bool> {
        let end = offset + data.len() as u64;
        let present = file.size();
        let size = end.max(present);
        if size > self.inline_size_max_for(inode, file, data.len() as u64, end)
            || (end > present && !self.metadata_has_room())
        {
            return Ok(false);
        }
        if size > self.inline_size_max() && wait == Wait::Never {
            // It is logged at once, and goes to a tier where the store has no space.
            return Err(self.volume.would_block());
        }
        let (start, end) = (in_memory(offset), in_memory(end));
        let changed = self.change_inline(inode, file, |bytes| {
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        });
        self.note_inline_size(inode, file);
        changed
    }

    /// Reads from an inline file, whose layout the caller holds.
    pub(super) fn read_inline(
        &self,
        inode: &Inode,
        file: &FileState,
        layout: &Layout,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        if let Some(bytes) = &*file.inline.bytes.read() {
            return Ok(copy_out(bytes, offset, buffer));
        }
        let mut slot = file.inline.bytes.write();
        let bytes = match &mut *slot {
            Some(bytes) => bytes,
            none => none.insert(self.load_inline(inode, layout)?),
        };
        Ok(copy_out(bytes, offset, buffer))
    }

    /// Sets the size of an inline file. `false`: it needs an object. Called with the barrier alone.
    pub(super) fn truncate_inline(&self, inode: &Inode, file: &FileState, size: u64) -> Result<bool> {
        let present = file.size();
        if size == present {
            return Ok(file.is_inline());
        }
        if size > present && (size > self.inline_size_max() || !self.metadata_has_room()) {
            return Ok(false);
        }
        let done = match size {
            0 => self.empty_inline(inode, file),
            size => self.change_inline(inode, file, |bytes| bytes.resize(in_memory(size), 0)),
        };
        self.note_inline_size(inode, file);
        let done = done?;
        if done && inode.lifecycle.lock().handles == 0 {
            // No close will follow that would log it.
            self.log_inline_or_move(inode, file)?;
            inode.forget_inline_bytes();
        }
        Ok(done)
    }

    /// Makes a range of an inline file zeros, as far as the file reaches. `false`: it is not inline.
    pub(super) fn zero_inline(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Result<bool> {
        self.change_inline(inode, file, |bytes| {
            let end = in_memory(end.min(bytes.len() as u64));
            let start = in_memory(start.min(end as u64));
            bytes[start..end].fill(0);
        })
    }

    /// Applies a note that outlived the last daemon to an inline file, and logs the result. Returns whether it was not logged
    /// before. Called before the file is used.
    pub fn take_up_inline(&self, inode: &Inode, note: Note) -> Result<bool> {
        let Some(file) = inode.file().filter(|file| file.is_inline()) else {
            // An object holds it: that was logged, and the daemon died before it forgot the note.
            return Ok(false);
        };
        if note.content == self.inline_content(inode, file)? {
            return Ok(false);
        }
        let mut slot = file.inline.bytes.write();
        file.sizes.bytes.store(note.content.len() as u64, Ordering::Release);
        *slot = Some(note.content);
        file.inline.mark_dirty();
        drop(slot);
        let mut common = inode.common.write();
        common.modified = note.time;
        common.changed = common.changed.max(note.time);
        drop(common);
        inode.times_dirty.store(true, Ordering::Release);
        self.log_inline(inode, file, Wait::Allowed)?;
        inode.forget_inline_bytes();
        Ok(true)
    }

    /// Puts inline bytes that run ahead of the record into the log. Where the store has no free space for them they go to an
    /// object on a tier; a caller that must not wait is refused before that. Takes the locks of a writer.
    pub fn log_inline(&self, inode: &Inode, file: &FileState, wait: Wait) -> Result<()> {
        match self.put_inline(inode, file) {
            Err(error) if error.is_out_of_room() && wait == Wait::Never => Err(self.volume.would_block()),
            Err(error) if error.is_out_of_room() => {
                let _shared = file.barrier.read();
                let _append = file.append.lock();
                self.log_inline_or_move(inode, file)
            }
            other => other,
        }
    }

    /// As [`Self::log_inline`], for a caller that holds the append lock.
    fn log_inline_or_move(&self, inode: &Inode, file: &FileState) -> Result<()> {
        match self.put_inline(inode, file) {
            // Other records are as small as can be already.
            Err(error) if error.is_out_of_room() && file.is_inline() && file.size() > 0 => {
                self.move_to_object(inode, file, None)
            }
            other => other,
        }
    }

    fn put_inline(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if !file.inline.is_dirty() && !file.durability.uncommitted.load(Ordering::Acquire) {
            // Another thread may be about to commit the bytes that were written here: a sync must know that transaction.
            drop(inode.record_lock.lock());
            return Ok(());
        }
        self.volume.transact(&[inode], |transaction| {
            if !inode.lifecycle.lock().gone {
                transaction.put_inode(inode);
            }
            Ok(())
        })
    }
}

/// A position in an inline file.
fn in_memory(position: u64) -> usize {
    usize::try_from(position).expect("inline files are small")
}

fn copy_out(bytes: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let start = in_memory(offset.min(bytes.len() as u64));
    let count = buffer.len().min(bytes.len() - start);
    buffer[..count].copy_from_slice(&bytes[start..start + count]);
    count
}
