//! An application that issues requests at moments of its own, whether or not its earlier requests are done.
//!
//! Method: a latency counts from the moment at which the request was due, so that a device that falls behind
//! shows; no offset is used twice, so that no read finds its bytes in memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use polymux_fs::{Caller, FileSystem, HandleId};

use crate::statistics::{count, percentile};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 64 << 10;

/// Requests that can be under way.
const THREADS: usize = 16;

/// The kind of request the application issues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Reads,
    /// Overwrites, each made durable.
    Writes,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The kind of request.
    pub kind: Kind,
    /// The file.
    pub handle: HandleId,
    /// Requests in each second.
    pub per_second: f64,
    /// How long.
    pub duration: Duration,
    /// Requests that fit into the file.
    pub requests_in_file: usize,
}

/// Result of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Bytes in each second that were served within the duration.
    pub bytes_per_second: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// The place of the request of this index: all are different, and neighbours are far from each other.
fn place_of(index: usize, requests_in_file: usize) -> usize {
    // An odd step of about the golden part of the file is prime to a power of two.
    let places =
        if requests_in_file.is_power_of_two() { requests_in_file } else { requests_in_file.next_power_of_two() / 2 };
    index.wrapping_mul((places * 5 / 8) | 1) % places
}

/// Runs a load to its end; requests that are not due before `is_stopped` are not begun.
///
/// # Errors
/// Whatever a request reports.
pub fn run(file_system: &FileSystem, load: &Load, is_stopped: &AtomicBool) -> Result<Served> {
    let next = AtomicUsize::new(0);
    let latencies = Mutex::new(Vec::new());
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| serve(file_system, load, (&next, is_stopped), begun, &latencies)))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no request panics"))
    })?;
    let elapsed = load.duration.as_secs_f64();
    let done = latencies.into_inner().unwrap_or_else(PoisonError::into_inner);
    let in_time = done.iter().filter(|(end, _)| *end <= elapsed).count();
    let latencies: Vec<f64> = done.iter().map(|(_, latency)| latency * 1e3).collect();
    Ok(Served {
        bytes_per_second: count(in_time * REQUEST_BYTES) / elapsed,
        p50_ms: percentile(&latencies, 50),
        p99_ms: percentile(&latencies, 99),
    })
}

fn serve(
    file_system: &FileSystem,
    load: &Load,
    (next, is_stopped): (&AtomicUsize, &AtomicBool),
    begun: Instant,
    latencies: &Mutex<Vec<(f64, f64)>>,
) -> Result<()> {
    let caller = Caller::root();
    let mut buffer = vec![3; REQUEST_BYTES];
    let mut own = Vec::new();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let due = count(index) / load.per_second;
        if due >= load.duration.as_secs_f64() || is_stopped.load(Ordering::Relaxed) {
            break;
        }
        if let Some(wait) = Duration::from_secs_f64(due).checked_sub(begun.elapsed()) {
            thread::sleep(wait);
        }
        let offset = (place_of(index, load.requests_in_file) * REQUEST_BYTES) as u64;
        match load.kind {
            Kind::Reads => {
                file_system.read(&caller, load.handle, offset, &mut buffer)?;
            }
            Kind::Writes => {
                super::tiered::write(file_system, load.handle, offset, &buffer)?;
                file_system.sync(&caller, load.handle, polymux_fs::SyncKind::Data)?;
            }
        }
        let end = begun.elapsed().as_secs_f64();
        own.push((end, end - due));
    }
    latencies.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_comes_twice() {
        for places in [1, 2, 64, 1024, 1 << 15] {
            let found: std::collections::HashSet<usize> = (0..places).map(|index| place_of(index, places)).collect();
            assert_eq!(found.len(), places);
        }
    }
}
