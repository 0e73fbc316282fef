//! How many streams are read ahead at present, of all files together.
//!
//! Invariants: each stream has a slot, by chance, with the moment at which it was read last. Two streams may
//! share one, so that the count may be lower than the number of streams, never higher. Nothing is locked.

use std::hash::{DefaultHasher, Hash, Hasher};

use polymux_types::Ino;
use polymux_types::sync::{AtomicU64, Ordering};

/// More streams count as so many.
const SLOTS: usize = 256;

/// A stream of which nothing was read for so many milliseconds has ended, or is so slow that it needs nothing.
const LATELY_MS: u64 = 500;

/// Streams that are read ahead.
#[derive(Debug)]
pub struct ActiveStreams {
    /// Milliseconds since mounting, and one; 0: never.
    read_ms: [AtomicU64; SLOTS],
}

impl Default for ActiveStreams {
    fn default() -> Self {
        Self { read_ms: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl ActiveStreams {
    /// Notes that the stream of a file that began at an offset was read.
    pub fn note(&self, ino: Ino, start: u64, now_ms: u64) {
        let mut hasher = DefaultHasher::new();
        (ino, start).hash(&mut hasher);
        let slot = usize::try_from(hasher.finish() % SLOTS as u64).expect("a place in the table");
        self.read_ms[slot].store(now_ms.saturating_add(1), Ordering::Relaxed);
    }

    /// How many there are.
    pub fn count(&self, now_ms: u64) -> u64 {
        let is_active = |read: &&AtomicU64| {
            let read_ms = read.load(Ordering::Relaxed);
            read_ms > 0 && now_ms.saturating_sub(read_ms - 1) < LATELY_MS
        };
        self.read_ms.iter().filter(is_active).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_count_while_they_are_read() {
        let streams = ActiveStreams::default();
        assert_eq!(streams.count(0), 0);
        for now_ms in 0..5 {
            streams.note(Ino(7), 0, now_ms);
        }
        assert_eq!(streams.count(4), 1);
        (0..32).for_each(|part| streams.note(Ino(7), part * 127_000_000, 10));
        let of_one_file = streams.count(10);
        assert!((29..=33).contains(&of_one_file), "{of_one_file}");
        assert_eq!(streams.count(509), of_one_file);
        assert_eq!(streams.count(510), 0);
        (100..400).for_each(|ino| streams.note(Ino(ino), 0, 1000));
        let of_many = streams.count(1000);
        assert!((160..=256).contains(&of_many), "{of_many}");
    }
}
