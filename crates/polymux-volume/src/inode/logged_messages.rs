//! Inline files that are larger than any small file may be: messages (docs/design/0042).
//!
//! Invariants:
//! * All of them are known, once the look for those of an earlier mount has ended.
//! * `known` is a leaf. Where there are none, a file costs one atomic read.

use std::collections::{BTreeMap, BTreeSet};

use polymux_types::Ino;
use polymux_types::sync::{AtomicU64, Mutex, Ordering};

/// Bytes of all messages in the store beyond which further ones begin as objects.
const BYTES_MAX: u64 = 64 << 20;

/// One message in the store.
#[derive(Clone, Copy, Debug)]
struct Message {
    bytes: u64,
    /// Milliseconds since the mount.
    used_ms: u64,
}

/// Inline files that are larger than any small file may be.
#[derive(Debug)]
pub struct LoggedMessages {
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

impl LoggedMessages {
    /// A message has so many bytes, and is used now.
    pub fn note_use(&self, ino: Ino, bytes: u64, now_ms: u64) {
        let mut known = self.known.lock();
        self.insert(&mut known, ino, Message { bytes, used_ms: now_ms });
    }

    /// A message cannot move now: it counts as used.
    pub fn postpone(&self, ino: Ino, now_ms: u64) {
        let mut known = self.known.lock();
        if let Some(message) = known.files.get(&ino).copied() {
            self.insert(&mut known, ino, Message { used_ms: now_ms, ..message });
        }
    }

    /// A file is deleted, has an object, or is as small as any.
    pub fn forget(&self, ino: Ino) {
        if self.bytes.load(Ordering::Relaxed) > 0 {
            self.remove(&mut self.known.lock(), ino);
        }
    }

    /// Whether so many further bytes of messages may come to the store.
    pub fn has_space_for(&self, bytes: u64) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(bytes) <= BYTES_MAX
    }

    /// Whether there are any, or the look for those of an earlier mount goes on.
    pub fn are_possible(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0 || self.known.lock().looked_through.is_some()
    }

    /// Messages that were last used before a moment, up to so many, those of the longest time ago first.
    pub fn used_before(&self, before_ms: u64, count_max: usize) -> Vec<Ino> {
        if self.bytes.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let known = self.known.lock();
        known.by_use.range(..(before_ms, Ino(0))).take(count_max).map(|(_, ino)| *ino).collect()
    }

    /// Notes a message that an earlier mount left in the store, as one that was used at the mount.
    pub fn note_earlier(&self, ino: Ino, bytes: u64) {
        let mut known = self.known.lock();
        if !known.files.contains_key(&ino) {
            self.insert(&mut known, ino, Message { bytes, used_ms: 0 });
        }
    }

    /// The inline file after which the look for those of an earlier mount goes on; `None` once it has ended.
    pub fn looked_through(&self) -> Option<Ino> {
        self.known.lock().looked_through
    }

    /// The look for them goes on after this file, or has ended.
    pub fn look_on_after(&self, ino: Option<Ino>) {
        self.known.lock().looked_through = ino;
    }

    fn insert(&self, known: &mut Known, ino: Ino, message: Message) {
        self.remove(known, ino);
        known.files.insert(ino, message);
        known.by_use.insert((message.used_ms, ino));
        self.bytes.fetch_add(message.bytes, Ordering::Relaxed);
    }

    fn remove(&self, known: &mut Known, ino: Ino) {
        if let Some(message) = known.files.remove(&ino) {
            known.by_use.remove(&(message.used_ms, ino));
            self.bytes.fetch_sub(message.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE_BYTES: u64 = 32 << 10;

    #[test]
    fn messages_are_found_by_the_time_of_their_last_use_and_counted_by_bytes() {
        let messages = LoggedMessages::default();
        messages.note_use(Ino(1), 10_000, 5);
        messages.note_use(Ino(2), 20_000, 3);
        messages.note_use(Ino(3), 30_000, 9);
        assert_eq!(messages.used_before(9, 8), [Ino(2), Ino(1)]);
        messages.note_use(Ino(2), 25_000, 9);
        assert_eq!(messages.used_before(9, 8), [Ino(1)]);
        assert_eq!(messages.bytes.load(Ordering::Relaxed), 65_000);
        messages.forget(Ino(1));
        messages.forget(Ino(1));
        messages.forget(Ino(3));
        assert_eq!((messages.bytes.load(Ordering::Relaxed), messages.used_before(100, 8)), (25_000, vec![Ino(2)]));
    }

    #[test]
    fn their_bytes_are_bounded() {
        let messages = LoggedMessages::default();
        let count = BYTES_MAX / MESSAGE_BYTES;
        for number in 0..count {
            assert!(messages.has_space_for(MESSAGE_BYTES));
            messages.note_use(Ino(number + 1), MESSAGE_BYTES, number);
        }
        assert!(!messages.has_space_for(1));
        messages.forget(Ino(1));
        assert!(messages.has_space_for(MESSAGE_BYTES));
    }
}
