//! Whether an access goes on where a recent one of the same file ended: bounded, without a lock.
//!
//! Invariants:
//! * Each file has a cache line that it may share with others; it holds marks of the ends of its last few streams. A
//!   sequential access replaces its own mark, any other one the oldest.
//! * Threads that meet on a line may lose a mark. Then one request of a stream counts as random, which costs a little
//!   precision of heat and nothing else.

use polymux_types::Ino;
use polymux_types::sync::{AtomicU64, Ordering};

use super::Pattern;

/// Streams that are distinguished in one file, when no other shares its line.
const STREAMS: usize = 7;

#[repr(align(64))]
#[derive(Default)]
struct Line {
    ends: [AtomicU64; STREAMS],
    /// Where the next mark goes; only its remainder counts.
    turn: AtomicU64,
}

/// The ends of recent streams.
pub struct StreamTable {
    lines: Box<[Line]>,
}

impl StreamTable {
    /// `memory_bytes` is rounded up to a power of two of cache lines.
    pub fn new(memory_bytes: usize) -> Self {
        let lines = (memory_bytes / size_of::<Line>()).max(1).next_power_of_two();
        Self { lines: (0..lines).map(|_| Line::default()).collect() }
    }

    /// Notes an access of `length` bytes at `offset`, and tells how it relates to those before it.
    pub fn pattern(&self, ino: Ino, offset: u64, length: u64) -> Pattern {
        let place = super::shard::hash(ino.0, 0) & (self.lines.len() as u64 - 1);
        let line = &self.lines[usize::try_from(place).expect("a place in memory fits")];
        let (expected, end) = (mark(ino, offset), mark(ino, offset.wrapping_add(length)));
        for slot in &line.ends {
            if slot.load(Ordering::Relaxed) == expected {
                slot.store(end, Ordering::Relaxed);
                return Pattern::Sequential;
            }
        }
        let turn = line.turn.load(Ordering::Relaxed);
        line.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        let slot = usize::try_from(turn % STREAMS as u64).expect("a remainder below eight fits");
        line.ends[slot].store(end, Ordering::Relaxed);
        Pattern::Random
    }
}

impl Default for StreamTable {
    /// A quarter of a megabyte: 4,096 files that are used at the same time.
    fn default() -> Self {
        Self::new(256 << 10)
    }
}

/// A number for a place in a file that no other place is likely to have. Never 0, which marks an empty slot.
fn mark(ino: Ino, offset: u64) -> u64 {
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset.rotate_left(1)).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_streams_in_one_file_are_each_sequential() {
        let streams = StreamTable::default();
        for round in 0..10_u64 {
            for stream in 0..STREAMS as u64 {
                let found = streams.pattern(Ino(7), (stream << 30) + round * 4096, 4096);
                assert_eq!(found == Pattern::Sequential, round > 0, "stream {stream}, round {round}");
            }
        }
    }

    #[test]
    fn random_reads_of_a_small_hot_range_are_rarely_taken_for_a_stream() {
        let streams = StreamTable::default();
        let mut place = 1_u64;
        let sequential = (0..20_000).filter(|_| {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            streams.pattern(Ino(7), (place >> 40) % 2560 * 4096, 4096) == Pattern::Sequential
        });
        assert!(sequential.count() < 200);
    }

    #[test]
    fn one_file_does_not_go_on_where_another_ended() {
        let streams = StreamTable::new(64);
        assert_eq!(streams.pattern(Ino(1), 0, 4096), Pattern::Random);
        assert_eq!(streams.pattern(Ino(2), 4096, 4096), Pattern::Random);
        assert_eq!(streams.pattern(Ino(1), 4096, 4096), Pattern::Sequential);
    }
}
