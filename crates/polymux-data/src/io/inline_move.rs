//! Moves files from the metadata store to an object: files that outgrow it, messages that are not used any more, and other idle files when its free
//! space is low.
//!
//! Invariants:
//! * The object is written and, where the store may have a `b` record, synced; then one transaction names the object and
//!   takes that record away. Without one nothing durable is replaced, and the object is synced by the next fsync like any
//!   other.
//! * The bytes do not change meanwhile: the thread that moves them holds the append lock.

use std::sync::atomic::Ordering;

use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::{DisownedRecord, ObjectEntry, keys};
use polymux_tier::Wait;
use polymux_types::{Block, Errno, Ino, TierId};
use polymux_volume::inode::{FileState, Inode, reference_of};

use crate::data_path::DataPath;
use crate::placement::Request;

/// Files looked at in one step of moving idle ones.
const IDLE_FILES_PER_STEP: usize = 64;
/// How often all inline files are looked at within the time after which one is idle.
const PASSES_PER_IDLE_TIME: u64 = 10;

/// Whether the data written to an object is durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    Yes,
    NotYet,
}

/// The result of an attempt to give a file its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Given,
    /// The object would replace a record that may be durable: nothing was changed.
    NeedsSync,
}

impl DataPath {
    /// Moves an inline file to an object as it is. Called with the append lock held.
    pub(super) fn move_to_object(&self, inode: &Inode, file: &FileState, except: Option<TierId>) -> Result<()> {
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
                let synced = self.volume.tiers.by_id(entry.tier)?.run(|tier| {
                    match is_planted(PlantedFault::ObjectNotSyncedBeforeRecord) {
                        true => Ok(()),
                        false => tier.sync(reference_of(entry)),
                    }
                });
                synced.inspect_err(|_| self.discard_object(inode, entry))?;
                let given = self.commit_home(inode, file, entry, content, Durable::Yes)?;
                assert_eq!(given, Home::Given, "a synced object may replace any record");
                Ok(())
            }
        }
    }

    fn write_content(&self, entry: &ObjectEntry, content: &[u8]) -> Result<()> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let mut written = 0;
        while written < content.len() {
            let rest = &content[written..];
            let count = handle.run(|tier| tier.write(reference_of(entry), written as u64, rest, Wait::Allowed))?;
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
        let home = self.volume.transact(&[inode], |transaction| {
            if durable == Durable::NotYet && size > 0 && file.inline.is_stored() {
                return Ok(Home::NeedsSync);
            }
            let mut layout = file.layout.write();
            assert!(layout.objects.is_empty(), "a file without home has no objects");
            file.nodes.mark_map_changed(Block(0)..Block::END);
            let replaces_record = file.inline.give_up();
            layout.objects.push(*entry);
            layout.map.set_home(0);
            layout.size_floor = if durable == Durable::Yes { size } else { 0 };
            layout.extenders = 1 << entry.tier.0;
            drop(layout);
            file.spreading.unpromised.store(self.volume_syncs.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
            if replaces_record {
                transaction.batch.delete(keys::inline(inode.ino));
            }
            // Emptied while it was inline: with the record its old bytes go, and the close waits for the new ones.
            if file.inline.was_emptied() || replaces_record && size == 0 {
                file.durability.emptyings.note();
            }
            if durable == Durable::NotYet && size > 0 {
                file.note_unsynced(0, 0, size);
            }
            file.allocation.note_change();
            transaction.put_inode(inode);
            Ok(Home::Given)
        })?;
        if home == Home::Given {
            self.upkeep.messages.forget(inode.ino);
        }
        if home == Home::Given && size > 0 {
            Counters::count(&self.volume.counters.inline_moves);
        }
        Ok(home)
    }

    /// Gives up an object that was made and is not used after all.
    pub fn discard_object(&self, inode: &Inode, entry: &ObjectEntry) {
        let record = DisownedRecord::of_object(entry);
        let put = self.volume.transact(&[inode], |transaction| {
            transaction.put_disowned(&record);
            Ok(())
        });
        match put {
            Ok(()) => self.volume.disowned.add(&[record], inode.last_sequence()),
            Err(error) => log::warn!("object {:016x} stays until recovery: {error}", entry.object),
        }
    }

    /// Moves an inline file that is not open to an object.
    pub(super) fn move_closed_to_object(&self, inode: &Inode, file: &FileState, except: Option<TierId>) -> Result<()> {
        {
            // Pinned in the same moment as it is seen to be there: an unlink beside this leaves the file to this thread.
            let mut lifecycle = inode.lifecycle.lock();
            if lifecycle.gone {
                return Ok(());
            }
            lifecycle.pins += 1;
        }
        let moved = {
            let _alone = file.lock_alone();
            let _append = file.append.lock();
            self.move_to_object(inode, file, except)
        };
        self.unpin(inode.ino, 1)?;
        moved
    }

    /// Moves inline files that were not used for a while: some messages to objects, and where the metadata tier is down to its reserve, other files to
    /// other tiers. Elsewhere leaving small files is right: they cost no object, and reading them no tier. Returns how many of those others moved.
    pub fn move_idle_inline_files(&self) -> Result<usize> {
        self.move_idle_messages();
        let Some(tier) = self.volume.tiers.metadata_tier() else { return Ok(0) };
        if self.volume.elapsed_ms() < self.upkeep.inline_due_ms.load(Ordering::Relaxed) || tier.headroom() > 0 {
            return Ok(0);
        }
        let after = Ino(self.upkeep.inline_cursor.load(Ordering::Relaxed));
        let files = self.volume.metadata.inline_files(after, IDLE_FILES_PER_STEP)?;
        if files.is_empty() {
            // Not from the beginning at once: those that are left were used a moment ago.
            let pause_ms = u64::from(self.volume.options.inline_idle_seconds) * 1000 / PASSES_PER_IDLE_TIME;
            self.upkeep.inline_due_ms.store(self.volume.elapsed_ms() + pause_ms, Ordering::Relaxed);
        }
        self.upkeep.inline_cursor.store(files.last().map_or(0, |(ino, _)| ino.0), Ordering::Relaxed);
        let mut moved = 0;
        for (ino, _) in files {
            let inode = match self.volume.inode(ino) {
                Ok(inode) => inode,
                Err(error) if error.errno() == Errno::ENOENT => continue,
                Err(error) => return Err(error),
            };
            let Some(file) = inode.file() else {
                return Err(Error::corrupted(format!("the inline data of inode {ino}"), "it belongs to no file"));
            };
            if !self.is_idle(&inode) {
                continue;
            }
            match self.move_closed_to_object(&inode, file, Some(tier.id)) {
                Ok(()) => moved += 1,
                Err(error) if error.is_out_of_room() => return Ok(moved),
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Whether a file is not open, and its last close, or last use on record, is long enough ago.
    pub(super) fn is_idle(&self, inode: &Inode) -> bool {
        if inode.lifecycle.lock().handles > 0 {
            return false;
        }
        let idle_seconds = u64::from(self.volume.options.inline_idle_seconds);
        let closed_ms = inode.file().map_or(0, |file| file.usage.closed_ms.load(Ordering::Relaxed));
        if closed_ms > 0 && self.volume.elapsed_ms() < closed_ms.saturating_add(idle_seconds * 1000) {
            return false;
        }
        let common = inode.common.read();
        let used = common.accessed.max(common.modified).max(common.changed);
        let idle_seconds = i64::from(self.volume.options.inline_idle_seconds);
        self.volume.now().seconds >= used.seconds.saturating_add(idle_seconds)
    }
}
