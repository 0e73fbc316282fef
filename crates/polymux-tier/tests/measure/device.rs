//! A device with known service times, in a time of its own.
//!
//! Invariants: time passes only while every thread that may make requests waits for one; then the earliest of these ends.
//! So the result does not depend on the machine that the test runs on.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use polymux_tier::TierError;
use polymux_tier::measure::{Ground, Way};
use polymux_types::{Clock, Timestamp};

/// Performance of a device.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Requests that it works on at once.
    pub channels: usize,
    /// Time in microseconds before the bytes of a read anywhere,
    pub read_us: u64,
    /// of a write anywhere,
    pub write_us: u64,
    /// and of a request that goes on where another one ended.
    pub sequential_us: u64,
    /// Bandwidth of one channel.
    pub bytes_per_second: u64,
    /// Bandwidth of all channels together.
    pub all: u64,
}

#[derive(Default)]
struct State {
    now: Duration,
    lanes: usize,
    /// When each channel is free, and the way that all share.
    channels: Vec<Duration>,
    shared: Duration,
    /// Ends of the requests that a thread waits for, and their numbers.
    waiting: Vec<(Duration, u64)>,
    number: u64,
    /// Where requests ended lately.
    ends: Vec<u64>,
    written: HashSet<u64>,
    blocks: Option<(u64, HashSet<Vec<u8>>)>,
    reads_of_holes: u64,
    highest: u64,
    requests_left: Option<u64>,
    keeps: bool,
    compresses: bool,
}

pub struct SimulatedDevice {
    model: Model,
    state: Mutex<State>,
    turn: Condvar,
}

const BLOCK: u64 = 4096;

impl SimulatedDevice {
    pub fn new(model: Model) -> Self {
        let channels = vec![Duration::ZERO; model.channels];
        Self { model, state: Mutex::new(State { channels, ..State::default() }), turn: Condvar::new() }
    }

    pub fn keep_in_memory(&self) {
        self.state.lock().keeps = true;
    }

    pub fn compress(&self) {
        self.state.lock().compresses = true;
    }

    pub fn remember_blocks(&self) {
        self.state.lock().blocks = Some((0, HashSet::new()));
    }

    /// Blocks that were written, and how many different ones there are among them.
    pub fn blocks_written(&self) -> (u64, u64) {
        let state = self.state.lock();
        let (count, seen) = state.blocks.as_ref().expect("they were remembered");
        (*count, seen.len() as u64)
    }

    pub fn fail_after(&self, requests: u64) {
        self.state.lock().requests_left = Some(requests);
    }

    pub fn highest_byte(&self) -> u64 {
        self.state.lock().highest
    }

    pub fn reads_of_holes(&self) -> u64 {
        self.state.lock().reads_of_holes
    }

    fn serve(&self, offset: u64, length: u64, otherwise_us: u64) -> Result<(), TierError> {
        let mut state = self.state.lock();
        if let Some(left) = &mut state.requests_left {
            if *left == 0 {
                return Err(TierError::NoSpace);
            }
            *left -= 1;
        }
        // Somewhat before or behind the last ends is where several threads are that take turns.
        let goes_on = state.ends.iter().any(|end| end.abs_diff(offset) <= 8 * length && length > BLOCK);
        let before_us = if goes_on { self.model.sequential_us } else { otherwise_us };
        state.ends.push(offset + length);
        if state.ends.len() > 16 {
            state.ends.remove(0);
        }
        let time = |rate: u64| Duration::from_nanos(length * 1_000_000_000 / rate);
        let free = (0..state.channels.len()).min_by_key(|channel| state.channels[*channel]).expect("it has channels");
        let begin = state.channels[free].max(state.now) + Duration::from_micros(before_us);
        state.shared = state.shared.max(state.now) + time(self.model.all);
        let end = (begin + time(self.model.bytes_per_second)).max(state.shared);
        state.channels[free] = end;
        state.number += 1;
        let ticket = (end, state.number);
        state.waiting.push(ticket);
        self.turn.notify_all();
        loop {
            let all_wait = state.waiting.len() >= state.lanes.max(1);
            if all_wait && state.waiting.iter().min() == Some(&ticket) {
                break;
            }
            self.turn.wait(&mut state);
        }
        state.waiting.retain(|waiting| *waiting != ticket);
        state.now = state.now.max(end);
        Ok(())
    }
}

impl Ground for SimulatedDevice {
    fn way(&self) -> Way {
        Way::Direct
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), TierError> {
        self.serve(offset, data.len() as u64, self.model.write_us)?;
        let mut state = self.state.lock();
        state.highest = state.highest.max(offset + data.len() as u64);
        state.written.extend((offset / BLOCK..).take(data.len() / 4096));
        if let Some((count, seen)) = &mut state.blocks {
            for block in data.chunks(4096) {
                *count += 1;
                // A hash would do, and the beginning of a block of noise is one.
                seen.insert(block[..32].to_vec());
            }
        }
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        self.serve(offset, buffer.len() as u64, self.model.read_us)?;
        let mut state = self.state.lock();
        let holes = (offset / BLOCK..).take(buffer.len() / 4096).filter(|block| !state.written.contains(block)).count();
        state.reads_of_holes += holes as u64;
        Ok(())
    }

    fn flush(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn forget(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn is_in_memory(&self, _offset: u64) -> bool {
        self.state.lock().keeps
    }

    fn allocated_bytes(&self) -> Option<u64> {
        let state = self.state.lock();
        let bytes = state.written.len() as u64 * BLOCK;
        Some(if state.compresses { bytes / 2 } else { bytes })
    }

    fn lanes_begin(&self, lanes: u16) {
        self.state.lock().lanes = usize::from(lanes);
    }

    fn lane_ends(&self) {
        let mut state = self.state.lock();
        state.lanes -= 1;
        self.turn.notify_all();
    }
}

impl Clock for SimulatedDevice {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn elapsed(&self) -> Duration {
        self.state.lock().now
    }

    fn sleep(&self, duration: Duration) {
        self.state.lock().now += duration;
    }
}
