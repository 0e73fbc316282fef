//! Streams of reads in one file: ranges to read ahead.
//!
//! Invariants:
//! * Pure state: a read goes in, a range to begin reading comes out. Each byte is asked for once while a stream continues.
//! * Reads of a stream may overtake one another (`streams`): the kernel reads ahead with several requests at once.
//! * A stream asks for nothing from where another one began: that one has read it, and several readers who each read a part of a
//!   file do not go on into the next part.
//! * A few reads that follow one another are no stream yet, so that random reads bring nothing else into memory. A stream that begins is read
//!   ahead by as much as it has shown to be, so that many that begin together do not ask for the whole window each.

use std::ops::Range;

use polymux_types::limits::RANGE_NODE_SIZE;

use super::streams::{Stream, Streams};

/// Bytes in a row that make a stream.
const STREAM_MIN: u64 = 512 << 10;

/// A stream is read ahead by so much at once,
const AHEAD_MIN: u64 = 4 << 20;

/// and by so many times the bytes that were read of it.
const AHEAD_OF_RUN: u64 = 2;

/// A stream of which so much was read is expected to go on for long.
const LONG_MIN: u64 = 2 << 20;

/// The stream that a read was part of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Where its stream began, if it was part of one.
    pub stream_start: Option<u64>,
    /// The range to begin reading now.
    pub asked: Option<Asked>,
}

/// A range to begin reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// How far the stream was read: from there to `range` is on its way.
    pub read_to: u64,
    /// How far the stream may look behind `range` for later reads: nowhere while it may end soon.
    pub outlook_end: u64,
}

/// How far a long stream looks behind the ranges that it asks for.
const OUTLOOK_BYTES: u64 = 64 << 20;

/// Streams of one file. Bytes of a stream before `done` were asked for.
#[derive(Debug, Default)]
pub struct ReadStreams(Streams);

impl ReadStreams {
    /// Notes a read. The ranges to begin reading are whole ranges where possible, so that `window_bytes` ahead of the stream
    /// are on their way.
    pub fn note(&mut self, offset: u64, length: u64, window_bytes: u64) -> Noted {
        let end = offset.saturating_add(length);
        let limit = self.0.next_start(end, STREAM_MIN);
        let Some(stream) = self.0.go_on(offset) else {
            self.0.begin(end, length, end);
            return Noted::default();
        };
        stream.run = stream.run.saturating_add(length);
        stream.next = stream.next.max(end);
        let stream_start = (stream.run >= STREAM_MIN).then_some(stream.start);
        let Some(range) = due(stream, window_bytes, limit) else { return Noted { stream_start, asked: None } };
        let read_to = stream.next;
        stream.done = range.end;
        let outlook = if shown(stream) < LONG_MIN { 0 } else { OUTLOOK_BYTES };
        let outlook_end = range.end.saturating_add(outlook).min(limit.unwrap_or(u64::MAX));
        Noted { stream_start, asked: Some(Asked { range, read_to, outlook_end }) }
    }

    /// Whether [`ReadStreams::note`] would ask for something.
    pub fn would_ask(&self, offset: u64, length: u64, window_bytes: u64) -> bool {
        self.0.near(offset).is_some_and(|stream| {
            let mut further = *stream;
            further.next = stream.next.max(offset.saturating_add(length));
            further.run = stream.run.saturating_add(length);
            let limit = self.0.next_start(offset.saturating_add(length), STREAM_MIN);
            due(&further, window_bytes, limit).is_some()
        })
    }
}

/// How long a stream has shown to be. Repeated reads of one place do not make it longer.
fn shown(stream: &Stream) -> u64 {
    stream.run.min(stream.next.saturating_sub(stream.start))
}

/// The part of a stream to begin reading, before `limit`.
fn due(stream: &Stream, window_bytes: u64, limit: Option<u64>) -> Option<Range<u64>> {
    let ahead = window_bytes.min(shown(stream).saturating_mul(AHEAD_OF_RUN).max(AHEAD_MIN));
    let wanted = stream.next.saturating_add(ahead) / RANGE_NODE_SIZE * RANGE_NODE_SIZE;
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

    /// Ranges that reads at these offsets ask for.
    fn asked(streams: &mut ReadStreams, offsets: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let asked = offsets.into_iter().filter_map(|offset| streams.note(offset, 128 * KIB, WINDOW).asked);
        asked.map(|asked| asked.range).collect()
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
            if offset > WINDOW / AHEAD_OF_RUN {
                assert!(reached >= offset + WINDOW - RANGE_NODE_SIZE, "{reached} at {offset}");
            }
        }
    }

    #[test]
    fn a_stream_that_begins_is_read_ahead_by_as_much_as_it_has_shown_to_be() {
        let mut reads = ReadStreams::default();
        let reached = |ranges: Vec<Range<u64>>| ranges.last().map(|range| range.end);
        assert_eq!(reached(asked(&mut reads, (0..MIB).step_by(128 << 10))), Some(4 * MIB));
        assert_eq!(reached(asked(&mut reads, (MIB..4 * MIB).step_by(128 << 10))), Some(12 * MIB));
    }

    #[test]
    fn what_is_read_again_and_again_in_one_place_is_read_ahead_by_no_more() {
        let mut reads = ReadStreams::default();
        let place = (0..MIB).step_by(128 << 10);
        for _ in 0..100 {
            asked(&mut reads, place.clone());
        }
        let noted = reads.note(MIB, 128 * KIB, WINDOW);
        assert_eq!((noted.stream_start, noted.asked), (Some(0), None), "4 MiB were asked for, and no more");
    }

    #[test]
    fn a_long_stream_looks_out_but_not_beyond_where_another_one_began() {
        let outlooks = |reads: &mut ReadStreams, from: u64| {
            let asked =
                (from..from + 4 * MIB).step_by(128 << 10).filter_map(|at| reads.note(at, 128 * KIB, WINDOW).asked);
            asked.map(|asked| (asked.range.end, asked.outlook_end)).collect::<Vec<_>>()
        };
        let mut reads = ReadStreams::default();
        let first = outlooks(&mut reads, 200 * MIB);
        assert_eq!(first[0], (204 * MIB, 204 * MIB));
        assert_eq!(first.last(), Some(&(212 * MIB, 276 * MIB)));
        assert_eq!(outlooks(&mut reads, 160 * MIB).last(), Some(&(172 * MIB, 200 * MIB)));
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
        // The last one reads beyond its part, because no other one begins there.
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
        let found = offsets.iter().filter_map(|offset| reads.note(*offset, 64 * KIB, WINDOW).asked).count();
        assert!(found < 20, "{found} of 5000");
    }
}
