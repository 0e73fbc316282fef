//! A medium in memory that can lose, tear and reorder unflushed writes, and fail on command.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::medium::LogMedium;

/// Bytes that a device writes whole or not at all.
const SECTOR: usize = 512;

/// A write since the last flush.
struct Write {
    offset: usize,
    bytes: Vec<u8>,
    durable: bool,
}

struct State {
    /// The bytes that survive any crash.
    base: Vec<u8>,
    /// The bytes that a reader sees.
    present: Vec<u8>,
    since: Vec<Write>,
}

pub(crate) struct CrashMedium {
    state: Mutex<State>,
    /// Writes and flushes that still succeed.
    fuel: AtomicU64,
    pub(crate) flushes: AtomicU64,
}

impl CrashMedium {
    pub(crate) fn new(length: usize) -> Self {
        Self::of(vec![0; length])
    }

    pub(crate) fn of(image: Vec<u8>) -> Self {
        let state = State { base: image.clone(), present: image, since: Vec::new() };
        Self { state: Mutex::new(state), fuel: AtomicU64::new(u64::MAX), flushes: AtomicU64::new(0) }
    }

    /// From now on, so many writes and flushes succeed; then all fail.
    pub(crate) fn fail_after(&self, operations: u64) {
        self.fuel.store(operations, Ordering::SeqCst);
    }

    fn burn(&self) -> io::Result<()> {
        let left = self.fuel.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |fuel| fuel.checked_sub(1));
        left.map(|_| ()).map_err(|_| io::Error::other("the medium fails"))
    }

    /// The image after a power failure: durable writes, and of the others those sectors that `keep` wants, in order.
    pub(crate) fn crash(&self, mut keep: impl FnMut() -> bool) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut image = state.base.clone();
        for write in &state.since {
            for (index, sector) in write.bytes.chunks(SECTOR).enumerate() {
                if write.durable || keep() {
                    let at = write.offset + index * SECTOR;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }

    fn put(&self, offset: u64, blocks: &[u8], durable: bool) -> io::Result<()> {
        assert!(offset.is_multiple_of(4096) && blocks.len().is_multiple_of(4096), "whole blocks are written");
        let mut state = self.state.lock().unwrap();
        let offset = usize::try_from(offset).unwrap();
        // A write that fails has reached the device in part.
        let outcome = self.burn();
        let durable = durable && outcome.is_ok();
        state.present[offset..offset + blocks.len()].copy_from_slice(blocks);
        state.since.push(Write { offset, bytes: blocks.to_vec(), durable });
        outcome
    }
}

impl LogMedium for CrashMedium {
    fn length(&self) -> u64 {
        self.state.lock().unwrap().base.len() as u64
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        bytes.copy_from_slice(&self.state.lock().unwrap().present[offset..offset + bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.put(offset, blocks, false)
    }

    fn write_durable(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.put(offset, blocks, true)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.burn()?;
        let mut state = self.state.lock().unwrap();
        state.base = state.present.clone();
        state.since.clear();
        Ok(())
    }

    fn description(&self) -> String {
        "memory that loses what was not flushed".to_owned()
    }
}
