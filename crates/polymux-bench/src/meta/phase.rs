//! One kind of operation, on one side, by some threads: the unit that everything else is put together from.
//!
//! Method:
//! * A phase begins with everything durable, so that nothing of the phase before is inside its clock.
//! * The clock of a phase is read three times: when the last call has returned (`calls_s`), when the work that calls put
//!   off to the background is done (`drained_s`), and when everything is durable (`synced_s`). Reading counters is
//!   outside the clock.

use std::time::{Duration, Instant};

use anyhow::Result;
use polymux_meta::LogCounters;

use super::{Both, Party};
use crate::device::{self, Device, DeviceCounters};
use crate::parallel::{self, processor_time};
use crate::side::{Appender, Durability, Operation, PrivateDirectory, Side, WRITE_SIZE};
use crate::statistics::{Spread, count, percentile};

/// Size of a file before anything is appended: large enough not to be stored with the metadata.
const APPEND_START: usize = 1024 * 1024;

/// Result of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) operations: f64,
    pub(super) calls_s: f64,
    pub(super) drained_s: f64,
    pub(super) synced_s: f64,
    /// Median latency of an operation with fsync.
    pub(super) latency_p50_us: Option<f64>,
    /// Processor time of this process from the first call to the end of the final sync.
    pub(super) processor_s: f64,
    /// Work of the metadata log until the last call returned.
    pub(super) log: Option<LogWork>,
    /// Requests to the device until the last call returned.
    pub(super) device_calls: Option<DeviceCounters>,
    /// Requests to the device until everything was durable.
    pub(super) device_synced: Option<DeviceCounters>,
}

/// Flushes and bytes of the metadata log in a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogWork {
    pub(super) flushes: u64,
    /// Bytes of keys, values and their lengths.
    pub(super) payload_bytes: u64,
    /// Bytes that the log grew by: payload, headers and padding.
    pub(super) appended_bytes: u64,
}

impl LogWork {
    /// Growth of the log divided by its payload; `None` without payload.
    pub(super) fn growth_to_payload(&self) -> Option<f64> {
        (self.payload_bytes > 0).then(|| self.appended_bytes as f64 / self.payload_bytes as f64)
    }

    fn between(before: &LogCounters, after: &LogCounters) -> Self {
        Self {
            flushes: after.flushes - before.flushes,
            payload_bytes: after.payload_bytes - before.payload_bytes,
            appended_bytes: after.appended_bytes - before.appended_bytes,
        }
    }
}

impl Measured {
    /// Operations per second until the last call returned.
    pub(super) fn rate(&self) -> f64 {
        self.operations / self.calls_s
    }

    /// Operations per second until background work was done.
    pub(super) fn rate_drained(&self) -> f64 {
        self.operations / self.drained_s
    }

    /// Operations per second until everything was durable.
    pub(super) fn rate_synced(&self) -> f64 {
        self.operations / self.synced_s
    }

    /// A counter per operation.
    pub(super) fn per_operation(&self, counter: Option<u64>) -> Option<f64> {
        counter.map(|counter| counter as f64 / self.operations)
    }
}

/// Median of a figure over rounds.
pub(super) fn median(rounds: &[Measured], figure: impl Fn(&Measured) -> f64) -> f64 {
    Spread::of(&rounds.iter().map(figure).collect::<Vec<_>>()).median
}

/// Median of a figure that may not have been measured.
pub(super) fn median_optional(rounds: &[Measured], figure: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    let sample = rounds.iter().map(figure).collect::<Option<Vec<_>>>()?;
    Some(Spread::of(&sample).median)
}

/// Ratios of two figures, round by round.
pub(super) fn ratios(
    over: &[Measured],
    under: &[Measured],
    figures: (impl Fn(&Measured) -> f64, impl Fn(&Measured) -> f64),
) -> Spread {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| figures.0(over) / figures.1(under)).collect();
    Spread::of(&ratios)
}

/// All rounds of each kind of operation, on both sides, in the order in which the kinds were first measured.
pub(super) struct Rounds {
    kinds: Vec<(Operation, Both<Vec<Measured>>)>,
}

impl Rounds {
    pub(super) fn new() -> Self {
        Self { kinds: Vec::new() }
    }

    /// Adds a round of one side.
    pub(super) fn push(&mut self, operation: Operation, party: Party, measured: Measured) {
        let place = self.kinds.iter().position(|(kind, _)| *kind == operation).unwrap_or_else(|| {
            self.kinds.push((operation, Both::default()));
            self.kinds.len() - 1
        });
        let both = &mut self.kinds[place].1;
        match party {
            Party::Native => both.native.push(measured),
            Party::Polymux => both.polymux.push(measured),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Operation, &Both<Vec<Measured>>)> {
        self.kinds.iter().map(|(operation, both)| (*operation, both))
    }

    /// The rounds of a kind that was measured.
    pub(super) fn of(&self, operation: Operation) -> &Both<Vec<Measured>> {
        let found = self.kinds.iter().find(|(kind, _)| *kind == operation);
        &found.expect("every number of threads measures the same kinds").1
    }
}

/// A thread's directory and the names it uses, made before the clock starts.
pub(super) struct Worker {
    directory: Box<dyn PrivateDirectory>,
    names: Vec<String>,
    new_names: Vec<String>,
}

/// Makes the directories and names of `threads` threads that share `operations`.
pub(super) fn workers(side: &dyn Side, label: &str, threads: usize, operations: usize) -> Result<Vec<Worker>> {
    let each = (operations / threads).max(1);
    (0..threads)
        .map(|thread| {
            Ok(Worker {
                directory: side.private_directory(&format!("{label}-{thread}"), thread as u64 + 1)?,
                names: (0..each).map(|index| format!("file{index:08}")).collect(),
                new_names: (0..each).map(|index| format!("renamed{index:08}")).collect(),
            })
        })
        .collect()
}

/// Runs one kind of operation once for each name.
pub(super) fn run(
    side: &dyn Side,
    workers: &mut [Worker],
    operation: Operation,
    durability: Durability,
    device: Option<&Device>,
) -> Result<Measured> {
    let operations = workers.iter().map(|worker| worker.names.len()).sum();
    if operation == Operation::Append {
        let mut appenders = Vec::new();
        for worker in workers.iter() {
            appenders.push((worker.directory.appender("appended", APPEND_START)?, worker.names.len()));
        }
        return timed(side, device, operations, || parallel::run(appenders, append));
    }
    timed(side, device, operations, || {
        parallel::run(workers.iter_mut().collect(), |_, worker: &mut Worker| work(worker, operation, durability))
    })
}

/// Times of single operations in microseconds; none where operations are too short to be timed one by one.
type Latencies = Vec<f64>;

fn append(_thread: usize, (mut appender, appends): (Box<dyn Appender>, usize)) -> Result<Latencies> {
    let data = [2; WRITE_SIZE];
    let mut latencies = Vec::with_capacity(appends);
    for _ in 0..appends {
        let start = Instant::now();
        appender.append(&data)?;
        latencies.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(latencies)
}

fn work(worker: &mut Worker, operation: Operation, durability: Durability) -> Result<Latencies> {
    let directory = worker.directory.as_ref();
    let data = [2; WRITE_SIZE];
    let mut latencies = Vec::with_capacity(if durability == Durability::Synced { worker.names.len() } else { 0 });
    for (name, new_name) in worker.names.iter().zip(&worker.new_names) {
        let start = (durability == Durability::Synced).then(Instant::now);
        match operation {
            Operation::Create => directory.create(name, durability)?,
            Operation::Rename => directory.rename(name, new_name, durability)?,
            Operation::Unlink => directory.unlink(new_name, durability)?,
            Operation::MakeDirectory => directory.make_directory(name, durability)?,
            Operation::RemoveDirectory => directory.remove_directory(name, durability)?,
            Operation::CreateWritten => directory.create_written(name, &data, durability)?,
            Operation::UnlinkWritten => directory.unlink(name, durability)?,
            Operation::Append => unreachable!("appending goes through open files"),
        }
        latencies.extend(start.map(|start| start.elapsed().as_secs_f64() * 1e6));
    }
    Ok(latencies)
}

fn timed(
    side: &dyn Side,
    device: Option<&Device>,
    operations: usize,
    calls: impl FnOnce() -> Result<(Duration, Vec<Latencies>)>,
) -> Result<Measured> {
    side.drain()?;
    side.sync()?;
    let log_before = side.log_counters();
    let before = device::counters_of(device)?;
    let processor = processor_time();
    let (time, latencies) = calls()?;
    let calls_s = time.as_secs_f64();
    let processor_calls = processor_time().saturating_sub(processor);
    let called = device::counters_of(device)?;
    let log = side.log_counters().zip(log_before).map(|(after, before)| LogWork::between(&before, &after));
    let processor = processor_time();
    let start = Instant::now();
    side.drain()?;
    let drained_s = calls_s + start.elapsed().as_secs_f64();
    side.sync()?;
    let synced_s = calls_s + start.elapsed().as_secs_f64();
    let processor_rest = processor_time().saturating_sub(processor);
    let after = device::counters_of(device)?;
    let latencies = latencies.concat();
    let latency_p50_us = (!latencies.is_empty()).then(|| percentile(&latencies, 50));
    let since = |counters: Option<DeviceCounters>| counters.zip(before).map(|(after, before)| after.since(&before));
    Ok(Measured {
        operations: count(operations),
        calls_s,
        drained_s,
        synced_s,
        latency_p50_us,
        processor_s: (processor_calls + processor_rest).as_secs_f64(),
        log,
        device_calls: since(called),
        device_synced: since(after),
    })
}
