//! Streams of writes in one file: ranges to write out before a sync asks for them.
//!
//! Invariants:
//! * Pure state: a write goes in, a range to write out comes out, in whole pieces. Each byte comes out once while a stream
//!   continues.
//! * Only a long stream is one. Small or random writes, and bytes written again and again at one place, may be overwritten in memory, or
//!   deleted with their file, before a device ever sees them, and nothing of that comes out.
//! * Only writes that extend a stream count: bytes before its end were there before.
//! * Nothing is kept for a file that is not written beyond its first [`SLACK`] bytes.

use std::ops::Range;

use super::streams::{SLACK, Streams};

/// Consecutive bytes that make a stream: more than programs build up and delete again, and little compared to a file so large
/// that an early start of the device matters.
const STREAM_MIN: u64 = 32 << 20;

/// Ranges begin and end at multiples of this, so that no page goes out twice.
const PIECE_BYTES: u64 = 1 << 20;

/// Streams of one file. `run` of a stream is the bytes that extended it; bytes from its beginning to `done` came out.
#[derive(Debug, Default)]
pub struct WriteStreams(Streams);

impl WriteStreams {
    /// Whether a write that ends here says nothing of a stream, so that it need not be noted.
    pub fn is_before_any(end: u64) -> bool {
        end <= SLACK
    }

    /// Notes a write. Returns the range to write out now.
    pub fn note(&mut self, offset: u64, length: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(length);
        let Some(stream) = self.0.go_on(offset) else {
            self.0.begin(end, length, offset.next_multiple_of(PIECE_BYTES));
            return None;
        };
        stream.run = stream.run.saturating_add(length.min(end.saturating_sub(stream.next)));
        stream.next = stream.next.max(end);
        let reached = stream.next / PIECE_BYTES * PIECE_BYTES;
        if stream.run < STREAM_MIN || reached <= stream.done {
            return None;
        }
        let from = std::mem::replace(&mut stream.done, reached);
        Some(from..reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// The ranges returned for writes of a length at these offsets.
    fn given(streams: &mut WriteStreams, length: u64, offsets: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        offsets.into_iter().filter_map(|offset| streams.note(offset, length)).collect()
    }

    fn steps(range: Range<u64>, length: u64) -> impl Iterator<Item = u64> {
        range.step_by(usize::try_from(length).unwrap())
    }

    #[test]
    fn a_long_stream_comes_out_once_and_whole_from_where_it_began() {
        for length in [4 * KIB, 100 * KIB, MIB, 4 * MIB] {
            let mut writes = WriteStreams::default();
            let first = 5 * MIB;
            let ranges = given(&mut writes, length, steps(first..first + 100 * MIB, length));
            assert_eq!(ranges.first().map(|range| range.start), Some(first), "{length}");
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{length}: {ranges:?}");
            assert!(ranges.last().is_some_and(|range| range.end >= first + 100 * MIB), "{length}: {ranges:?}");
            assert!(ranges.iter().all(|range| range.start % PIECE_BYTES == 0 && range.end % PIECE_BYTES == 0));
        }
    }

    #[test]
    fn what_ends_before_the_least_is_no_stream() {
        let mut writes = WriteStreams::default();
        assert_eq!(given(&mut writes, 128 * KIB, steps(0..STREAM_MIN - 128 * KIB, 128 * KIB)), []);
        assert_eq!(writes.note(STREAM_MIN - 128 * KIB, 128 * KIB), Some(0..STREAM_MIN));
    }

    #[test]
    fn what_is_written_again_and_again_at_one_place_is_no_stream() {
        let mut writes = WriteStreams::default();
        for _ in 0..100 {
            assert_eq!(given(&mut writes, 64 * KIB, steps(2 * MIB..3 * MIB, 64 * KIB)), []);
        }
        // Nor is a file of less than a stream that is written anew.
        for _ in 0..10 {
            assert_eq!(given(&mut writes, MIB, steps(0..STREAM_MIN - MIB, MIB)), []);
        }
    }

    #[test]
    fn a_stream_over_one_that_ended_comes_out_again() {
        let mut writes = WriteStreams::default();
        for _ in 0..2 {
            let ranges = given(&mut writes, MIB, steps(0..64 * MIB, MIB));
            assert_eq!(ranges.iter().map(|range| range.end - range.start).sum::<u64>(), 64 * MIB);
        }
    }

    #[test]
    fn writes_of_a_stream_may_overtake_one_another() {
        let mut writes = WriteStreams::default();
        let ranges = given(&mut writes, 128 * KIB, (0..1024_u64).map(|index| (index ^ 3) * 128 * KIB));
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        // It began with the fourth.
        let ends = ranges.first().zip(ranges.last()).map(|(first, last)| (first.start, last.end));
        assert_eq!(ends, Some((MIB, 128 * MIB)));
    }

    #[test]
    fn many_streams_in_one_file_are_told_apart() {
        let mut writes = WriteStreams::default();
        let offsets = (0..80_u64).flat_map(|index| (0..32).map(move |stream| (stream << 30) + index * MIB));
        let ranges = given(&mut writes, MIB, offsets);
        for stream in 0..32_u64 {
            let of_stream: u64 =
                ranges.iter().filter(|range| range.start >> 30 == stream).map(|range| range.end - range.start).sum();
            assert_eq!(of_stream, 80 * MIB, "stream {stream}");
        }
    }

    #[test]
    fn random_writes_are_no_stream_in_a_small_file_and_in_a_large_one() {
        for area in [8 * MIB, 64 * MIB, 1 << 30, 16 << 30] {
            for length in [4 * KIB, 64 * KIB] {
                let mut writes = WriteStreams::default();
                let mut place = 1_u64;
                let offsets = (0..200_000).map(|_| {
                    place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (place >> 20) % (area / length) * length
                });
                assert_eq!(given(&mut writes, length, offsets), [], "{length} in {area}");
            }
        }
    }
}
