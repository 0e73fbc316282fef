//! Threads that read places of files in the order of chance.
//!
//! A group of threads reads one row of blocks, which may be a file on each of several devices; each place of the
//! row is read once at most, and verified.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polymux_tier::measure::AlignedBuffer;

use super::load::Way;
use super::stamped::{self, BLOCK_BYTES};
use crate::machine::busy_seconds;
use crate::noise;
use crate::parallel;
use crate::throttled::Devices;

/// A file made by [`stamped::write_file`].
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where it is.
    pub path: PathBuf,
    /// Blocks in it.
    pub blocks: u64,
}

/// Files that threads take for one row of blocks.
#[derive(Clone, Debug)]
pub struct Group(pub Vec<Piece>);

/// Work of each group of threads.
#[derive(Clone, Copy, Debug)]
pub struct RandomReads {
    /// Threads of a group.
    pub threads: u16,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Past the page cache or through it.
    pub way: Way,
    /// How long; it ends sooner where everything was read.
    pub duration: Duration,
}

/// Result of the reads.
#[derive(Clone, Debug)]
pub struct Reads {
    /// Requests per second, of all groups together.
    pub rate: f64,
    /// Requests per second that each device served, as the kernel counts them.
    pub of_each: Vec<f64>,
    /// Processors that were busy, with whatever, on average.
    pub busy_processors: f64,
}

/// Where a request of a group goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    piece: usize,
    block: u64,
}

/// A group at work.
struct Row {
    files: Vec<File>,
    places: Vec<Place>,
    next: AtomicUsize,
}

/// All places of files with so many blocks, each once, in the order of chance.
fn places(blocks: &[u64], blocks_of_request: u64, seed: u64) -> Vec<Place> {
    let requests: Vec<u64> = blocks.iter().map(|blocks| blocks / blocks_of_request).collect();
    let place_of = |mut request: u64| {
        for (piece, requests) in requests.iter().enumerate() {
            if request < *requests {
                return Place { piece, block: request * blocks_of_request };
            }
            request -= requests;
        }
        unreachable!("a request is below the sum of all")
    };
    noise::shuffled(requests.iter().sum(), seed).into_iter().map(place_of).collect()
}

impl RandomReads {
    /// Reads with the threads of each group at the same time.
    ///
    /// # Errors
    /// Whatever the file systems report; other bytes than were written.
    pub fn run(&self, devices: &Devices, groups: &[Group]) -> Result<Reads> {
        let rows: Vec<Row> =
            groups.iter().zip(1..).map(|(group, seed)| self.row(group, seed)).collect::<Result<_>>()?;
        let workers: Vec<&Row> = rows.iter().flat_map(|row| (0..self.threads).map(move |_| row)).collect();
        let (before, busy_before) = (devices.traffic()?, busy_seconds()?);
        let (elapsed, ends) = parallel::run(workers, |_, row| {
            let begun = Instant::now();
            self.work(row, begun)?;
            Ok(begun.elapsed())
        })?;
        let busy_processors = (busy_seconds()? - busy_before) / elapsed.as_secs_f64().max(1e-9);
        let rate_of = |(row, ends): (&Row, &[Duration])| {
            let last = ends.iter().max().map_or(elapsed, |last| *last);
            row.done() as f64 / last.as_secs_f64().max(1e-9)
        };
        let rate = rows.iter().zip(ends.chunks(usize::from(self.threads))).map(rate_of).sum();
        let served = before.iter().zip(devices.traffic()?).map(|(before, after)| after.since(before).reads);
        let of_each = served.map(|reads| reads as f64 / elapsed.as_secs_f64().max(1e-9)).collect();
        Ok(Reads { rate, of_each, busy_processors })
    }

    fn row(&self, group: &Group, seed: u64) -> Result<Row> {
        let open = |piece: &Piece| {
            let opened = OpenOptions::new().read(true).custom_flags(self.way.flags()).open(&piece.path);
            opened.with_context(|| piece.path.display().to_string())
        };
        let files = group.0.iter().map(open).collect::<Result<_>>()?;
        let blocks: Vec<u64> = group.0.iter().map(|piece| piece.blocks).collect();
        let places = places(&blocks, (self.request_bytes / BLOCK_BYTES) as u64, seed);
        ensure!(!places.is_empty(), "there is nothing to read");
        Ok(Row { files, places, next: AtomicUsize::new(0) })
    }

    fn work(&self, row: &Row, begun: Instant) -> Result<()> {
        let mut buffer = AlignedBuffer::new(self.request_bytes);
        while begun.elapsed() < self.duration {
            let Some(place) = row.places.get(row.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let bytes = buffer.as_mut_slice();
            row.files[place.piece].read_exact_at(bytes, place.block * BLOCK_BYTES as u64)?;
            stamped::verify(bytes, place.block, 0)?;
        }
        Ok(())
    }
}

impl Row {
    /// Requests that were served.
    fn done(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.places.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_every_file_comes_once() {
        let mut found = places(&[8, 0, 5], 2, 1);
        assert_eq!(found, places(&[8, 0, 5], 2, 1));
        found.sort_by_key(|place| (place.piece, place.block));
        let expected = [(0, 0), (0, 2), (0, 4), (0, 6), (2, 0), (2, 2)];
        assert!(found.iter().map(|place| (place.piece, place.block)).eq(expected));
    }
}
