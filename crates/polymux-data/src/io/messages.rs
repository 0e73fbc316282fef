//! Messages that begin in the metadata store: small files that are synced once they are made, as mail is (docs/design/0042).
//!
//! A sync of such a file costs one record in the metadata log, which all threads flush together, in place of an object, a journal commit of the
//! tier's file system for it, and the record beside.
//!
//! Invariants:
//! * A file counts as a message by the directory that it was made in (`waited_for.rs`). It is inline up to [`MESSAGE_INLINE_MAX`], if it would be
//!   placed on the tier of the metadata store.
//! * A record has the whole content, so growth by less than an eighth of it moves the file to an object: each sync of a log would log all of it.
//! * A write to a file that is larger than a note is logged at once (docs/design/0023). So a file that was emptied gets its new content as an object, and its
//!   close waits for that.
//! * At most 64 MiB of such files are in the store ([`LoggedMessages`](polymux_volume::inode::LoggedMessages)); further ones begin as objects. One that
//!   was not used for `inline_idle_seconds` moves to an object: the store holds the mail of minutes, not an archive.
//! * They are known in memory alone. Those of an earlier mount are found by one look at the newest inline files.

use polymux_policy::Synced;
use polymux_records::error::{Error, Result};
use polymux_records::store::INLINE_SIZE_LIMIT;
use polymux_records::store::keys::NumberKind;
use polymux_types::{Errno, Ino};
use polymux_volume::inode::{FileState, Inode};

use crate::data_path::DataPath;
use crate::placement::Request;

/// Longest message in the metadata store, in bytes.
const MESSAGE_INLINE_MAX: u64 = 32 << 10;
const _: () = assert!(MESSAGE_INLINE_MAX <= INLINE_SIZE_LIMIT);

/// Bytes up to which no file in the store counts as a message, whatever the options say.
const SMALL_FILE_MAX: u64 = 4096;

/// A message in the store grows by one in so many of its bytes at least.
const GROWTH_MIN_DIVISOR: u64 = 8;

/// Messages that move in one step of background work; each is a sync of a tier.
const MOVED_PER_STEP: usize = 16;

/// Inline files of an earlier mount that are looked at in one step.
const LOOKED_AT_PER_STEP: usize = 256;

/// Inode numbers before the next one among which messages of an earlier mount are looked for.
const RECENT_NUMBERS: u64 = 1 << 20;

impl DataPath {
    /// The longest that a file may be to stay in the metadata store after a write of `length` bytes up to `end`. Called with the append lock held.
    pub(super) fn inline_size_max_for(&self, inode: &Inode, file: &FileState, length: u64, end: u64) -> u64 {
        let (usual, present) = (self.inline_size_max(), file.size());
        if usual == 0 || end.max(present) <= usual {
            return usual;
        }
        if end <= present {
            // An overwrite takes no space, and may need no tier that has some.
            return INLINE_SIZE_LIMIT;
        }
        let grows_enough = length.saturating_mul(GROWTH_MIN_DIVISOR) >= end;
        if end > MESSAGE_INLINE_MAX || !grows_enough || file.inline.was_emptied() {
            return usual;
        }
        // Its bytes count already where it is larger than a small file.
        let counted = Some(present).filter(|present| *present > usual).unwrap_or(0);
        let may_begin = file.usage.expected.get() == Some(Synced::Message)
            && self.upkeep.messages.has_space_for(end - counted)
            && self.belongs_beside_metadata(inode, end);
        if may_begin { MESSAGE_INLINE_MAX } else { usual }
    }

    /// Whether a message would be placed on the tier of the metadata store.
    fn belongs_beside_metadata(&self, inode: &Inode, size: u64) -> bool {
        let Some(tier) = self.volume.tiers.metadata_tier() else { return false };
        let request = Request { length: size, file_end: size, partial: false, except: None };
        self.placement.first_for_message(inode, &request) == Some(tier.id)
    }

    /// The size of a file without objects may have changed. Called with the append lock held, or the barrier alone.
    pub(super) fn note_inline_size(&self, inode: &Inode, file: &FileState) {
        let bytes = file.size();
        if bytes > self.small_file_max() && file.is_inline() {
            self.upkeep.messages.note_use(inode.ino, bytes, self.volume.elapsed_ms());
        } else {
            self.upkeep.messages.forget(inode.ino);
        }
    }

    fn small_file_max(&self) -> u64 {
        self.inline_size_max().max(SMALL_FILE_MAX)
    }

    /// Whether messages wait in the metadata store until they are idle, or may.
    pub fn has_messages(&self) -> bool {
        !self.volume.is_read_only() && self.upkeep.messages.are_possible()
    }

    /// Moves some of the messages that were not used for a while out of the metadata store. One that cannot move stays for as long again.
    pub(super) fn move_idle_messages(&self) {
        if let Err(error) = self.look_for_earlier_messages() {
            log::warn!("messages of an earlier mount stay in the metadata store: {error}");
            self.upkeep.messages.look_on_after(None);
        }
        let idle_ms = u64::from(self.volume.options.inline_idle_seconds) * 1000;
        let now_ms = self.volume.elapsed_ms();
        let Some(before_ms) = now_ms.checked_sub(idle_ms) else { return };
        for ino in self.upkeep.messages.used_before(before_ms, MOVED_PER_STEP) {
            match self.volume.inode(ino).and_then(|inode| self.move_if_idle(&inode)) {
                Ok(()) => {}
                Err(error) if error.errno() == Errno::ENOENT => self.upkeep.messages.forget(ino),
                Err(error) => {
                    let level = if error.is_out_of_room() { log::Level::Debug } else { log::Level::Warn };
                    log::log!(level, "inode {ino} stays in the metadata store: {error}");
                    self.upkeep.messages.postpone(ino, now_ms);
                }
            }
        }
    }

    /// Moves a message to an object, unless it is used, or smaller now.
    fn move_if_idle(&self, inode: &Inode) -> Result<()> {
        let file = inode.file().ok_or_else(|| {
            Error::corrupted(format!("the inline data of inode {}", inode.ino), "it belongs to no file")
        })?;
        if self.is_idle(inode) && file.size() > self.small_file_max() {
            // It is placed like any other file.
            file.usage.expected.set(None);
            self.move_closed_to_object(inode, file, None)?;
        }
        if file.is_inline() && file.size() > self.small_file_max() {
            self.upkeep.messages.postpone(inode.ino, self.volume.elapsed_ms());
        } else {
            self.upkeep.messages.forget(inode.ino);
        }
        Ok(())
    }

    /// Takes some of the messages that an earlier mount left in the store for used at the mount.
    fn look_for_earlier_messages(&self) -> Result<()> {
        let Some(after) = self.upkeep.messages.looked_through() else { return Ok(()) };
        let after = match after {
            Ino(0) => Ino(self.volume.metadata.number_range_end(NumberKind::Ino)?.saturating_sub(RECENT_NUMBERS)),
            after => after,
        };
        let files = self.volume.metadata.inline_files(after, LOOKED_AT_PER_STEP)?;
        let messages = files.iter().filter(|(_, bytes)| *bytes > self.small_file_max());
        messages.for_each(|(ino, bytes)| self.upkeep.messages.note_earlier(*ino, *bytes));
        self.upkeep.messages.look_on_after(files.last().map(|(ino, _)| *ino));
        Ok(())
    }
}
