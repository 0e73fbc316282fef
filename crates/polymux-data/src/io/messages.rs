//! Messages that begin in the metadata store: small files that are synced once they are made, as mail is (docs/design/0042).
//!
//! A sync of such a file costs one record in the metadata log, which all threads flush together, in place of an object, a journal commit of the
//! tier's file system for it, and the record beside.
//!
//! Invariants:
//! * A file counts as a message by the directory that it was made in (`waited_for.rs`). It is inline up to [`MESSAGE_INLINE_MAX`], if it would be
//!   placed on the tier of the metadata store.
//! * A record has the whole content, so a write of less than an eighth of it moves the file to an object: each sync of a log would log all of it.
//! * At most [`BYTES_MAX`] of such files are in the store; further ones begin as objects. One that was not used for `inline_idle_seconds` moves to
//!   an object: the store holds the mail of minutes, not an archive.
//! * They are known in memory alone. Those of an earlier mount are found by one look at all inline files.
//! * Lock order: `known` is a leaf.

use std::collections::{BTreeMap, BTreeSet};

use polymux_policy::Synced;
use polymux_records::error::{Error, Result};
use polymux_records::store::INLINE_SIZE_LIMIT;
use polymux_types::sync::{AtomicU64, Mutex, Ordering};
use polymux_types::{Errno, Ino};
use polymux_volume::inode::{FileState, Inode};

use crate::data_path::DataPath;
use crate::placement::Request;

/// Longest message in the metadata store, in bytes.
const MESSAGE_INLINE_MAX: u64 = 32 << 10;
const _: () = assert!(MESSAGE_INLINE_MAX <= INLINE_SIZE_LIMIT);

/// Bytes of all messages in the store beyond which further ones begin as objects.
const BYTES_MAX: u64 = 64 << 20;

/// Largest part of its content, as a divisor, that a write to a message in the store may leave as it was.
const PART_WRITTEN_MIN: u64 = 8;

/// Files that are looked at in one step.
const FILES_PER_STEP: usize = 64;

/// One message in the store.
#[derive(Clone, Copy, Debug)]
struct Message {
    bytes: u64,
    /// Milliseconds since the mount.
    used_ms: u64,
}

/// Inline files that are larger than any small file may be.
#[derive(Debug)]
pub(crate) struct LoggedMessages {
    known: Mutex<Known>,
    /// Bytes of all of them. Changes with `known` locked.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Known {
    files: BTreeMap<Ino, Message>,
    by_use: BTreeSet<(u64, Ino)>,
    /// The inline file after which the look for those of an earlier mount goes on; `None` once it has ended.
    looked_through: Option<Ino>,
}

impl Default for LoggedMessages {
    fn default() -> Self {
        let known = Known { files: BTreeMap::new(), by_use: BTreeSet::new(), looked_through: Some(Ino(0)) };
        Self { known: Mutex::new(known), bytes: AtomicU64::new(0) }
    }
}

impl Known {
    /// Returns the bytes of a message that was known.
    fn remove(&mut self, ino: Ino) -> u64 {
        let Some(message) = self.files.remove(&ino) else { return 0 };
        self.by_use.remove(&(message.used_ms, ino));
        message.bytes
    }
}

impl LoggedMessages {
    /// A message has so many bytes, and is used now.
    fn note_use(&self, ino: Ino, bytes: u64, now_ms: u64) {
        let mut known = self.known.lock();
        let before = known.remove(ino);
        known.files.insert(ino, Message { bytes, used_ms: now_ms });
        known.by_use.insert((now_ms, ino));
        self.bytes.store(self.bytes.load(Ordering::Relaxed) - before + bytes, Ordering::Relaxed);
    }

    /// A file is deleted, or has an object.
    pub(super) fn forget(&self, ino: Ino) {
        if self.bytes.load(Ordering::Relaxed) > 0 {
            let mut known = self.known.lock();
            let bytes = known.remove(ino);
            self.bytes.store(self.bytes.load(Ordering::Relaxed) - bytes, Ordering::Relaxed);
        }
    }

    fn has_space_for(&self, bytes: u64) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(bytes) <= BYTES_MAX
    }

    /// Messages that were last used before a moment, those of the longest time ago first.
    fn used_before(&self, before_ms: u64) -> Vec<Ino> {
        if self.bytes.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let known = self.known.lock();
        known.by_use.range(..(before_ms, Ino(0))).take(FILES_PER_STEP).map(|(_, ino)| *ino).collect()
    }
}

impl DataPath {
    /// The longest that a file may be to stay in the metadata store, where a write of `length` bytes makes it or leaves it `size` bytes long.
    pub(super) fn inline_size_max_for(&self, inode: &Inode, file: &FileState, length: u64, size: u64) -> u64 {
        let usual = self.inline_size_max();
        if size <= usual || usual == 0 || size > MESSAGE_INLINE_MAX || length.saturating_mul(PART_WRITTEN_MIN) < size {
            return usual;
        }
        // Its bytes count already where it is larger than a small file.
        let counted = Some(file.size()).filter(|present| *present > usual).unwrap_or(0);
        let may_begin = file.usage.expected.get() == Some(Synced::Message)
            && self.upkeep.messages.has_space_for(size.saturating_sub(counted))
            && self.belongs_beside_metadata(inode, size);
        if may_begin { MESSAGE_INLINE_MAX } else { usual }
    }

    /// Whether a message would be placed on the tier of the metadata store.
    fn belongs_beside_metadata(&self, inode: &Inode, size: u64) -> bool {
        let Some(tier) = self.volume.tiers.metadata_tier() else { return false };
        let request = Request { length: size, file_end: size, partial: false, except: None };
        self.placement.first_for_message(inode, &request) == Some(tier.id)
    }

    /// An inline file has so many bytes now.
    pub(super) fn note_inline_size(&self, inode: &Inode, bytes: u64) {
        if bytes > self.inline_size_max() {
            self.upkeep.messages.note_use(inode.ino, bytes, self.volume.elapsed_ms());
        }
    }

    /// Moves messages that were not used for a while out of the metadata store. Returns how many moved.
    pub(super) fn move_idle_messages(&self) -> Result<usize> {
        self.look_for_earlier_messages()?;
        let idle_ms = u64::from(self.volume.options.inline_idle_seconds) * 1000;
        let Some(before_ms) = self.volume.elapsed_ms().checked_sub(idle_ms) else { return Ok(0) };
        let mut moved = 0;
        for ino in self.upkeep.messages.used_before(before_ms) {
            let inode = match self.volume.inode(ino) {
                Ok(inode) => inode,
                Err(error) if error.errno() == Errno::ENOENT => {
                    self.upkeep.messages.forget(ino);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.move_if_idle(&inode) {
                Ok(true) => moved += 1,
                Ok(false) => {}
                Err(error) if error.is_out_of_room() => {
                    // No tier has space: it stays for as long as it may be idle.
                    self.note_use_of(&inode);
                    return Ok(moved);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Moves a message to an object, unless it is used, or smaller now.
    fn move_if_idle(&self, inode: &Inode) -> Result<bool> {
        let file = inode.file().ok_or_else(|| {
            Error::corrupted(format!("the inline data of inode {}", inode.ino), "it belongs to no file")
        })?;
        if !self.is_idle(inode) {
            self.note_use_of(inode);
            return Ok(false);
        }
        let _alone = file.lock_alone();
        let _append = file.append.lock();
        let is_message = file.is_inline() && file.size() > self.inline_size_max();
        if is_message {
            self.move_to_object(inode, file, None)?;
        }
        self.upkeep.messages.forget(inode.ino);
        Ok(is_message)
    }

    fn note_use_of(&self, inode: &Inode) {
        match inode.file().filter(|file| file.is_inline()) {
            Some(file) => self.upkeep.messages.note_use(inode.ino, file.size(), self.volume.elapsed_ms()),
            None => self.upkeep.messages.forget(inode.ino),
        }
    }

    /// Takes some of the messages that an earlier mount left in the store for used at the mount.
    fn look_for_earlier_messages(&self) -> Result<()> {
        let Some(after) = self.upkeep.messages.known.lock().looked_through else { return Ok(()) };
        let files = self.volume.metadata.inline_files(after, FILES_PER_STEP)?;
        let messages = &self.upkeep.messages;
        for (ino, bytes) in files.iter().filter(|(_, bytes)| *bytes > self.inline_size_max()) {
            if !messages.known.lock().files.contains_key(ino) {
                messages.note_use(*ino, *bytes, 0);
            }
        }
        messages.known.lock().looked_through = files.last().map(|(ino, _)| *ino);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_by_the_time_of_their_last_use_and_counted_by_bytes() {
        let messages = LoggedMessages::default();
        messages.note_use(Ino(1), 10_000, 5);
        messages.note_use(Ino(2), 20_000, 3);
        messages.note_use(Ino(3), 30_000, 9);
        assert_eq!(messages.used_before(9), [Ino(2), Ino(1)]);
        messages.note_use(Ino(2), 25_000, 9);
        assert_eq!(messages.used_before(9), [Ino(1)]);
        assert_eq!(messages.bytes.load(Ordering::Relaxed), 65_000);
        messages.forget(Ino(1));
        messages.forget(Ino(1));
        messages.forget(Ino(3));
        assert_eq!((messages.bytes.load(Ordering::Relaxed), messages.used_before(100)), (25_000, vec![Ino(2)]));
    }

    #[test]
    fn their_bytes_are_bounded() {
        let messages = LoggedMessages::default();
        let count = BYTES_MAX / MESSAGE_INLINE_MAX;
        for number in 0..count {
            assert!(messages.has_space_for(MESSAGE_INLINE_MAX));
            messages.note_use(Ino(number + 1), MESSAGE_INLINE_MAX, number);
        }
        assert!(!messages.has_space_for(1));
        messages.forget(Ino(1));
        assert!(messages.has_space_for(MESSAGE_INLINE_MAX));
    }
}
