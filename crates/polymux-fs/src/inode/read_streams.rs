//! Streams of reads in one file: what to bring into memory before it is asked for.
//!
//! What is true here:
//! * Pure state: a read goes in, a range to begin reading comes out. Each byte is asked for once as long as a stream goes on.
//! * Reads of a stream may overtake one another (`streams`): the kernel reads ahead with several requests at once.
//! * A stream asks for nothing from where another one began: that one has read it, and several readers who each read a part of a
//!   file do not go on into the next part.
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
        let limit = self.0.next_start(end, STREAM_MIN);
        let Some(stream) = self.0.go_on(offset) else {
            self.0.begin(end, length, end);
            return None;
        };
        stream.run = stream.run.saturating_add(length);
        stream.next = stream.next.max(end);
        let asked = due(stream, window_bytes, limit)?;
        stream.done = asked.end;
        Some(asked)
    }

    /// Whether [`ReadStreams::note`] would ask for something.
    pub(crate) fn would_ask(&self, offset: u64, length: u64, window_bytes: u64) -> bool {
        self.0.near(offset).is_some_and(|stream| {
            let mut further = *stream;
            further.next = stream.next.max(offset.saturating_add(length));
            further.run = stream.run.saturating_add(length);
            let limit = self.0.next_start(offset.saturating_add(length), STREAM_MIN);
            due(&further, window_bytes, limit).is_some()
        })
    }
}

/// What of a stream should be begun to be read, before `limit`.
fn due(stream: &Stream, window_bytes: u64, limit: Option<u64>) -> Option<Range<u64>> {
    let wanted = stream.next.saturating_add(window_bytes) / RANGE_NODE_SIZE * RANGE_NODE_SIZE;
    let wanted = wanted.min(limit.unwrap_or(u64::MAX));
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
    fn readers_of_parts_of_a_file_do_not_read_ahead_into_the_next_part() {
        const PART: u64 = 44 * MIB + 512 * KIB;
        let mut reads = ReadStreams::default();
        let offsets = (0..PART / (128 * KIB)).flat_map(|index| (0..8).map(move |part| part * PART + index * 128 * KIB));
        let ranges = asked(&mut reads, offsets);
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        // The last one reads beyond its part, because nobody else begins there.
        assert!(bytes <= 8 * PART + WINDOW, "{bytes} of {} were asked for", 8 * PART);
        assert!(bytes >= 7 * PART, "{bytes}");
    }

    #[test]
    fn a_stream_goes_on_where_another_one_began() {
        let mut reads = ReadStreams::default();
        asked(&mut reads, (32 * MIB..40 * MIB).step_by(128 << 10));
        let ranges = asked(&mut reads, (0..64 * MIB).step_by(128 << 10));
        assert!(ranges.last().is_some_and(|range| range.end >= 64 * MIB), "{:?}", ranges.last());
        assert!(ranges.iter().all(|range| range.start >= 32 * MIB || range.end <= 32 * MIB), "{ranges:?}");
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
