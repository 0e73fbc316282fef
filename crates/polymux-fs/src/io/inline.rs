//! Inline data: small files live in the metadata store (DESIGN section 5, docs/design/0004).
//!
//! What is true here:
//! * A write changes bytes in memory only. They reach the log with the next record of the inode: at close, fsync, rename
//!   and the periodic flush, so a crash leaves a state that the file had at one of these moments.
//! * A file leaves the store when it grows beyond the limit or needs an object for another reason. The object is written
//!   and, where the store has a `b` record, synced; then one transaction names the object and takes that record away.
//!   Without one nothing durable is replaced, and the object is synced by the next fsync like any other.
//! * It comes back only by being truncated to nothing.

use std::sync::atomic::Ordering;

use polymux_tier::Wait;
use polymux_types::Ino;

use crate::blockmap::END;
use crate::core::Core;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{FileState, Inode, Layout, reference_of};
use crate::placement::Request;
use crate::space::disown_object;
use crate::store::{INLINE_SIZE_LIMIT, ObjectEntry, keys};

/// Files looked at in one step of moving idle ones.
const IDLE_FILES_PER_STEP: usize = 64;
/// How often all inline files are looked at within the time after which one is idle.
const PASSES_PER_IDLE_TIME: u64 = 10;

/// Whether what was written to an object is durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    Yes,
    NotYet,
}

/// What became of an attempt to give a file its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Given,
    /// The object would replace a record that may be durable: nothing was changed.
    NeedsSync,
}

impl Core {
    /// The longest inline file, in bytes.
    fn inline_size_max(&self) -> u64 {
        u64::from(self.options.inline_size_max).min(INLINE_SIZE_LIMIT)
    }

    /// Whether the metadata store's file system has room to spare for the bytes of files. Half of what data leaves free
    /// there belongs to names and records alone.
    fn metadata_has_room(&self) -> bool {
        let Some(tier) = self.tiers.iter().find(|tier| tier.holds_metadata()) else { return true };
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
        file.size.store(bytes.len() as u64, Ordering::Release);
        file.inline.mark_dirty();
        Ok(true)
    }

    /// Empties an inline file, whatever its record holds: nothing of it is read. `false`: it is not inline.
    fn empty_inline(&self, file: &FileState) -> bool {
        let layout = file.layout.read();
        if !layout.objects.is_empty() {
            return false;
        }
        let mut bytes = file.inline.bytes.write();
        *bytes = Some(Vec::new());
        file.size.store(0, Ordering::Release);
        file.inline.mark_dirty();
        true
    }

    fn load_inline(&self, inode: &Inode, layout: &Layout) -> Result<Vec<u8>> {
        match layout.size_floor {
            0 => Ok(Vec::new()),
            size => self.metadata.inline_data(inode.ino, size),
        }
    }

    /// Writes into an inline file. `false`: it needs an object.
    pub(super) fn write_inline(&self, inode: &Inode, file: &FileState, offset: u64, data: &[u8]) -> Result<bool> {
        let end = offset + data.len() as u64;
        let present = file.size();
        if end.max(present) > self.inline_size_max() || (end > present && !self.metadata_has_room()) {
            return Ok(false);
        }
        let (start, end) = (in_memory(offset), in_memory(end));
        self.change_inline(inode, file, |bytes| {
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        })
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
            0 => self.empty_inline(file),
            size => self.change_inline(inode, file, |bytes| bytes.resize(in_memory(size), 0))?,
        };
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

    /// Puts inline bytes that run ahead of the record into the log. Where the store has no room for them they go to an
    /// object on a tier. Takes the locks of a writer.
    pub(crate) fn log_inline(&self, inode: &Inode, file: &FileState) -> Result<()> {
        match self.put_inline(inode, file) {
            Err(error) if error.is_out_of_room() => {
                let _shared = file.barrier.read();
                let _append = file.append.lock();
                self.move_to_object(inode, file, None)
            }
            other => other,
        }
    }

    /// The same for whoever holds the append lock.
    fn log_inline_or_move(&self, inode: &Inode, file: &FileState) -> Result<()> {
        match self.put_inline(inode, file) {
            Err(error) if error.is_out_of_room() => self.move_to_object(inode, file, None),
            other => other,
        }
    }

    fn put_inline(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if !file.inline.is_dirty() && !file.uncommitted.load(Ordering::Acquire) {
            // Somebody else may be about to commit what was written here: a sync must know that transaction.
            let _ = inode;
            return Ok(());
        }
        self.transact(&[inode], |transaction| {
            if !inode.lifecycle.lock().gone {
                transaction.put_inode(inode);
            }
            Ok(())
        })
    }

    /// Moves an inline file to an object as it is. Called with the append lock held.
    fn move_to_object(&self, inode: &Inode, file: &FileState, except: Option<polymux_types::TierId>) -> Result<()> {
        let size = file.size();
        if size == 0 || !file.is_inline() {
            return Ok(());
        }
        self.ensure_home(inode, file, &Request { length: size, file_end: size, partial: false, except })
    }

    /// The whole content of a file without objects. Called with the append lock held, or the barrier alone.
    pub(super) fn inline_content(&self, inode: &Inode, file: &FileState) -> Result<Vec<u8>> {
        let layout = file.layout.read();
        assert!(layout.objects.is_empty(), "only a file without objects is inline");
        if let Some(bytes) = &*file.inline.bytes.read() {
            return Ok(bytes.clone());
        }
        self.load_inline(inode, &layout)
    }

    /// Makes an object that was just made the home of a file, with the inline bytes of the file in it. The object is given
    /// up where its tier fails; a transaction that fails has changed the file in memory, and it stays.
    pub(super) fn fill_home(&self, inode: &Inode, file: &FileState, entry: &ObjectEntry, content: &[u8]) -> Result<()> {
        self.write_content(entry, content).inspect_err(|_| self.discard_object(inode, entry))?;
        match self.commit_home(inode, file, entry, content, Durable::NotYet)? {
            Home::Given => Ok(()),
            Home::NeedsSync => {
                let synced = self.tiers.by_id(entry.tier)?.run(|tier| tier.sync(reference_of(entry)));
                synced.inspect_err(|_| self.discard_object(inode, entry))?;
                let given = self.commit_home(inode, file, entry, content, Durable::Yes)?;
                assert_eq!(given, Home::Given, "a synced object may replace any record");
                Ok(())
            }
        }
    }

    fn write_content(&self, entry: &ObjectEntry, content: &[u8]) -> Result<()> {
        let handle = self.tiers.by_id(entry.tier)?;
        let mut written = 0;
        while written < content.len() {
            let rest = &content[written..];
            let count =
                handle.run(|tier| tier.write(reference_of(entry), written as u64, rest, Wait::Allowed))?;
            if count == 0 {
                return Err(ErrorKind::NoSpace.into());
            }
            handle.note_written(count);
            written += count;
        }
        Ok(())
    }

    /// Makes an object the home of a file. It holds all of `content`; where that replaces a `b` record, durably. Whether
    /// there is one is decided here, under the record lock: a sync of the file beside this may just have logged it.
    fn commit_home(
        &self,
        inode: &Inode,
        file: &FileState,
        entry: &ObjectEntry,
        content: &[u8],
        durable: Durable,
    ) -> Result<Home> {
        let size = content.len() as u64;
        let home = self.transact(&[inode], |transaction| {
            if durable == Durable::NotYet && size > 0 && file.inline.is_stored() {
                return Ok(Home::NeedsSync);
            }
            let mut layout = file.layout.write();
            assert!(layout.objects.is_empty(), "a file without home has no objects");
            file.nodes.mark_map_changed(0..END);
            let replaces_record = file.inline.give_up();
            layout.objects.push(*entry);
            layout.map.set_home(0);
            layout.size_floor = if durable == Durable::Yes { size } else { 0 };
            layout.extenders = 1 << entry.tier.0;
            drop(layout);
            if replaces_record {
                transaction.batch.delete(keys::inline(inode.ino));
            }
            if durable == Durable::NotYet && size > 0 {
                file.note_unsynced(0, 0, size);
            }
            file.blocks_stale.store(true, Ordering::Release);
            transaction.put_inode(inode);
            Ok(Home::Given)
        })?;
        if home == Home::Given && size > 0 {
            Counters::count(&self.counters.inline_moves);
        }
        Ok(home)
    }

    /// Gives up an object that was made and is not used after all.
    fn discard_object(&self, inode: &Inode, entry: &ObjectEntry) {
        let record = disown_object(entry);
        let put = self.transact(&[inode], |transaction| {
            transaction.put_disowned(&record);
            Ok(())
        });
        match put {
            Ok(()) => self.disowned.add(&[record], inode.last_sequence()),
            Err(error) => log::warn!("object {:016x} stays until recovery: {error}", entry.object),
        }
    }

    /// Moves inline files that nobody used for a while to other tiers, where the metadata tier is down to its reserve.
    /// Elsewhere leaving them is right: they cost no object, and reading them no tier. Returns how many moved.
    pub(crate) fn move_idle_inline_files(&self) -> Result<usize> {
        let Some(tier) = self.tiers.iter().find(|tier| tier.holds_metadata()) else { return Ok(0) };
        if self.elapsed_ms() < self.inline_pass_due_ms.load(Ordering::Relaxed) || tier.headroom() > 0 {
            return Ok(0);
        }
        let after = Ino(self.inline_cursor.load(Ordering::Relaxed));
        let files = self.metadata.inline_inodes(after, IDLE_FILES_PER_STEP)?;
        if files.is_empty() {
            // Not from the beginning at once: those that are left were used a moment ago.
            let pause_ms = u64::from(self.options.inline_idle_seconds) * 1000 / PASSES_PER_IDLE_TIME;
            self.inline_pass_due_ms.store(self.elapsed_ms() + pause_ms, Ordering::Relaxed);
        }
        self.inline_cursor.store(files.last().map_or(0, |ino| ino.0), Ordering::Relaxed);
        let mut moved = 0;
        for ino in files {
            let inode = match self.inode(ino) {
                Ok(inode) => inode,
                Err(error) if error.errno() == polymux_types::Errno::ENOENT => continue,
                Err(error) => return Err(error),
            };
            let Some(file) = inode.file() else {
                return Err(Error::corrupted(format!("the inline data of inode {ino}"), "it belongs to no file"));
            };
            if !self.is_idle(&inode) {
                continue;
            }
            let _alone = file.barrier.write();
            let _append = file.append.lock();
            match self.move_to_object(&inode, file, Some(tier.id)) {
                Ok(()) => moved += 1,
                Err(error) if error.is_out_of_room() => return Ok(moved),
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Nobody has it open, and its last close, or last use on record, is long enough ago.
    fn is_idle(&self, inode: &Inode) -> bool {
        if inode.lifecycle.lock().handles > 0 {
            return false;
        }
        let idle_seconds = u64::from(self.options.inline_idle_seconds);
        let closed_ms = inode.file().map_or(0, |file| file.closed_ms.load(Ordering::Relaxed));
        if closed_ms > 0 && self.elapsed_ms() < closed_ms.saturating_add(idle_seconds * 1000) {
            return false;
        }
        let common = inode.common.read();
        let used = common.accessed.max(common.modified).max(common.changed);
        let idle_seconds = i64::from(self.options.inline_idle_seconds);
        self.now().seconds >= used.seconds.saturating_add(idle_seconds)
    }

    /// Milliseconds on the volume's clock.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
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
