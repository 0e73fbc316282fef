//! Which of the streams of a file a request belongs to, for those that are read and those that are written.
//!
//! Invariants:
//! * Pure state. A request belongs to the stream whose end is nearest to where it begins, if that is within [`SLACK`]: requests of one
//!   stream may overtake one another.
//! * A request that is near no stream begins one, in the place of the one that went on longest ago where there are too many.

/// Most streams that are kept of a file.
const STREAMS_MAX: usize = 64;

/// How far a request may be from where its stream is.
pub(super) const SLACK: u64 = 1 << 20;

/// Requests of a file within which a stream went on lately.
const LATELY: u64 = 16_384;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Where it began.
    pub(super) start: u64,
    /// The furthest end of a request.
    pub(super) next: u64,
    /// Bytes that count for how long it is.
    pub(super) run: u64,
    /// Bytes before this one were seen to.
    pub(super) done: u64,
    turn: u64,
}

/// Streams of one kind of one file.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    turn: u64,
}

impl Streams {
    fn place_near(&self, offset: u64) -> Option<usize> {
        let distances = self.streams.iter().map(|stream| stream.next.abs_diff(offset)).enumerate();
        let near = distances.filter(|(_, distance)| *distance <= SLACK);
        near.min_by_key(|(_, distance)| *distance).map(|(place, _)| place)
    }

    /// The stream that goes on with a request that begins here.
    pub(super) fn near(&self, offset: u64) -> Option<&Stream> {
        self.place_near(offset).map(|place| &self.streams[place])
    }

    /// As [`Self::near`], and marks the stream as the one that was used last.
    pub(super) fn go_on(&mut self, offset: u64) -> Option<&mut Stream> {
        self.turn += 1;
        let place = self.place_near(offset)?;
        let stream = &mut self.streams[place];
        stream.turn = self.turn;
        Some(stream)
    }

    /// Where the first stream at or behind an offset began, of those that are at least so long and went on lately.
    pub(super) fn next_start(&self, offset: u64, run_min: u64) -> Option<u64> {
        let is_alive = |stream: &&Stream| stream.run >= run_min && self.turn.saturating_sub(stream.turn) < LATELY;
        let starts = self.streams.iter().filter(is_alive).map(|stream| stream.start);
        starts.filter(|start| *start >= offset).min()
    }

    /// A stream begins with a request of so many bytes that ends at `next`; bytes before `done` are seen to.
    pub(super) fn begin(&mut self, next: u64, run: u64, done: u64) {
        let stream = Stream { start: next.saturating_sub(run), next, run, done, turn: self.turn };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.turn) {
            *oldest = stream;
        }
    }
}
