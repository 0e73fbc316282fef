//! Streams of reads in one file: what to bring into memory before it is asked for.
//!
//! What is true here:
//! * Pure state: a read goes in, a range to begin reading comes out. Each byte is asked for once as long as a stream goes on.
//! * Reads of a stream may overtake one another (`streams`): the kernel reads ahead with several requests at once.
//! * A few reads that follow one another are no stream yet, so that random reads bring nothing else into memory.

use std::ops::Range;

use polymux_types::limits::RANGE_NODE_SIZE;

use super::streams::{Stream, Streams};

/// Bytes in a row that make a stream.
const STREAM_MIN: u64 = 512 << 10;

/// Streams of one file. Bytes of a stream before `done` were asked for.
#[derive(Debug, Default)]
pub(crate) struct ReadStreams(Streams);

impl ReadStreams {
    /// Notes a read. Returns what should be begun to be read now, in whole ranges as far as they reach, so that `window_bytes` before
    /// the stream are on their way.
    pub(crate) fn note(&mut self, offset: u64, length: u64, window_bytes: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(length);
        let Some(stream) = self.0.go_on(offset) else {
            self.0.begin(end, length, end);
            return None;
        };
        stream.run = stream.run.saturating_add(length);
        stream.next = stream.next.max(end);
        let asked = due(stream, window_bytes)?;
        stream.done = asked.end;
        Some(asked)
    }

    /// Whether [`ReadStreams::note`] would ask for something.
    pub(crate) fn would_ask(&self, offset: u64, length: u64, window_bytes: u64) -> bool {
        self.0.near(offset).is_some_and(|stream| {
            let mut further = *stream;
            further.next = stream.next.max(offset.saturating_add(length));
            further.run = stream.run.saturating_add(length);
            due(&further, window_bytes).is_some()
        })
    }
}

/// What of a stream should be begun to be read.
fn due(stream: &Stream, window_bytes: u64) -> Option<Range<u64>> {
    let wanted = stream.next.saturating_add(window_bytes) / RANGE_NODE_SIZE * RANGE_NODE_SIZE;
    let from = stream.done.max(stream.next);
    (stream.run >= STREAM_MIN && wanted > from).then_some(from..wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const WINDOW: u64 = 16 * MIB;

    /// What is asked for by reads at these offsets.
    fn asked(streams: &mut ReadStreams, offsets: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        offsets.into_iter().filter_map(|offset| streams.note(offset, 128 * KIB, WINDOW)).collect()
    }

    #[test]
    fn a_stream_asks_for_each_byte_before_it_once_and_stays_a_window_ahead() {
        let mut reads = ReadStreams::default();
        let mut reached = 0;
        for offset in (0..64 * MIB).step_by(128 << 10) {
            for range in asked(&mut reads, [offset]) {
                assert!(range.start >= offset && (reached == 0 || range.start == reached), "{range:?} after {reached}");
                reached = range.end;
            }
            if offset > MIB {
                assert!(reached >= offset + WINDOW - RANGE_NODE_SIZE, "{reached} at {offset}");
            }
        }
    }

    #[test]
    fn reads_of_a_stream_may_overtake_one_another() {
        let mut reads = ReadStreams::default();
        let swapped = (0..256_u64).map(|index| (index ^ 3) * 128 * KIB);
        let ranges = asked(&mut reads, swapped);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        assert!(ranges.last().is_some_and(|range| range.end >= 40 * MIB));
    }

    #[test]
    fn many_streams_in_one_file_are_told_apart() {
        let mut reads = ReadStreams::default();
        let offsets = (0..64_u64).flat_map(|index| (0..32).map(move |stream| (stream << 30) + index * 128 * KIB));
        let ranges = asked(&mut reads, offsets);
        for stream in 0..32_u64 {
            let of_stream: u64 =
                ranges.iter().filter(|range| range.start >> 30 == stream).map(|range| range.end - range.start).sum();
            assert!(of_stream >= WINDOW, "stream {stream} asked for {of_stream}");
        }
    }

    #[test]
    fn random_reads_ask_for_nothing() {
        let mut reads = ReadStreams::default();
        let mut place = 1_u64;
        let offsets: Vec<u64> = (0..5000)
            .map(|_| {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (place >> 33) % (1 << 14) * (64 << 10) * 16
            })
            .collect();
        let found = offsets.iter().filter_map(|offset| reads.note(*offset, 64 * KIB, WINDOW)).count();
        assert!(found < 20, "{found} of 5000");
    }
}
