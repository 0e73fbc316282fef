//! How the files on several tiers are read at present: a window that is taken at intervals.
//!
//! Invariants:
//! * Notes cost a lock of a shard ([`Window`](super::window::Window)).
//! * Bounded: of more files than fit into a shard the ones that came later are not seen in this window.

use std::collections::BTreeMap;

use polymux_types::Ino;

use super::Pattern;
use super::window::Window;

/// Files that a shard remembers.
const FILES_MAX: usize = 256;

/// The reads of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadUse {
    /// Bytes of requests that went on where another one ended.
    pub stream_bytes: u64,
    /// Bytes of all others.
    pub random_bytes: u64,
    /// Number of those others.
    pub random_requests: u64,
}

impl ReadUse {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.stream_bytes.saturating_add(self.random_bytes)
    }

    fn add(&mut self, pattern: Pattern, bytes: u64) {
        match pattern {
            Pattern::Sequential => self.stream_bytes = self.stream_bytes.saturating_add(bytes),
            Pattern::Random => {
                self.random_bytes = self.random_bytes.saturating_add(bytes);
                self.random_requests += 1;
            }
        }
    }
}

/// The present window.
#[derive(Debug, Default)]
pub struct ReadUses {
    window: Window<Ino, ReadUse, FILES_MAX>,
}

impl ReadUses {
    /// Notes a read.
    pub fn note(&self, ino: Ino, pattern: Pattern, bytes: u64) {
        self.window.note(super::shard::hash(ino.0, 0), ino, |noted| noted.add(pattern, bytes));
    }

    /// Ends the window, and returns its contents.
    pub fn take(&self) -> BTreeMap<Ino, ReadUse> {
        self.window.take()
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::SHARDS;
    use super::*;

    #[test]
    fn what_was_read_is_told_once_by_file_and_kind() {
        let uses = ReadUses::default();
        uses.note(Ino(7), Pattern::Sequential, 1000);
        uses.note(Ino(7), Pattern::Random, 40);
        uses.note(Ino(7), Pattern::Random, 60);
        uses.note(Ino(9), Pattern::Random, 5);
        let seven = ReadUse { stream_bytes: 1000, random_bytes: 100, random_requests: 2 };
        let nine = ReadUse { stream_bytes: 0, random_bytes: 5, random_requests: 1 };
        assert_eq!(uses.take(), BTreeMap::from([(Ino(7), seven), (Ino(9), nine)]));
        assert_eq!(uses.take(), BTreeMap::new());
    }

    #[test]
    fn memory_is_bounded() {
        let uses = ReadUses::default();
        (0..100_000).for_each(|ino| uses.note(Ino(ino), Pattern::Random, 1));
        let taken = uses.take();
        assert!(taken.len() <= SHARDS * FILES_MAX && taken.len() > SHARDS * FILES_MAX / 2, "{}", taken.len());
    }
}
