//! The same workload for every [`MetadataStore`], without a file system above it.
//!
//! Method:
//! * A transaction has the form of a create: five puts, keys of 20 to 40 bytes, values of 40 to 130; one of the keys
//!   (the record of the directory) is written again by every transaction of its thread.
//! * Candidates take turns in every round, in an order that turns too; the ratio of a row compares the rounds of two
//!   candidates one by one. Transactions with sync are divided into many short turns, because a shared disk changes its
//!   pace often.
//! * Threads use keys of their own: the measured waits are those that the store causes.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use polymux_meta::{Batch, MetadataStore};

use crate::device::{self, Device, DeviceCounters};
use crate::parallel;
use crate::report::{Cell, Section};
use crate::scratch::Scratch;
use crate::statistics::{Spread, count};
use crate::store::OpenStore;

/// Makes a new store in a directory that does not exist.
pub type Maker<'a> = &'a dyn Fn(&Path) -> Result<OpenStore>;

/// A store under measurement.
pub struct Candidate<'a> {
    /// Name in tables.
    pub name: &'static str,
    /// How it is made.
    pub make: Maker<'a>,
}

/// Choices of the workload.
#[derive(Args, Clone, Debug)]
pub struct WorkloadOptions {
    /// Transactions without sync in a row, all threads together.
    #[arg(long, default_value_t = 100_000)]
    pub transactions: usize,
    /// Transactions with sync in a row, all threads together.
    #[arg(long, default_value_t = 4_000)]
    pub synced_transactions: usize,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    pub threads: Vec<usize>,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
}

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Commit,
    Get,
    GetAbsent,
    Range,
    Remove,
    CommitSynced,
}

impl Step {
    /// In an order in which each finds the records it needs.
    const PLAIN: [Self; 5] = [Self::Commit, Self::Get, Self::GetAbsent, Self::Range, Self::Remove];

    /// All of them, in the order of rows.
    const ALL: [Self; 6] = [Self::Commit, Self::Get, Self::GetAbsent, Self::Range, Self::Remove, Self::CommitSynced];

    const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Get => "get",
            Self::GetAbsent => "get of what is not there",
            Self::Range => "range of 100",
            Self::Remove => "commit of a removal",
            Self::CommitSynced => "commit + sync",
        }
    }

    fn operations(self, options: &WorkloadOptions) -> usize {
        match self {
            Self::CommitSynced => options.synced_transactions / SYNCED_TURNS,
            // A range of a hundred entries is about that many times the work.
            Self::Range => (options.transactions / 50).max(1),
            Self::Commit | Self::Get | Self::GetAbsent | Self::Remove => options.transactions,
        }
    }
}

/// Turns that the transactions with sync of a round are divided into.
const SYNCED_TURNS: usize = 20;

/// The first directory of transactions with sync: beyond all others, so that everything they put is new.
const SYNCED_FIRST: usize = 1_000;

/// Entries of one range read.
const RANGE_ENTRIES: usize = 100;

fn key(tag: u8, first: u64, rest: &[u8]) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, tag];
    key.extend_from_slice(&first.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// The name of a file: 12 bytes.
fn name(index: usize) -> Vec<u8> {
    format!("file{index:08}").into_bytes()
}

fn dirent_key(directory: u64, index: usize) -> Vec<u8> {
    key(b'd', directory, &name(index))
}

/// Number of the inode that a transaction makes; no two threads share one.
fn inode_of(directory: u64, index: usize) -> u64 {
    directory * 1_000_000_000 + index as u64
}

/// Entries that a creation puts; the last key is the record of the directory.
fn entries(directory: u64, index: usize) -> [(Vec<u8>, Vec<u8>); 5] {
    let inode = inode_of(directory, index);
    let mut path = directory.to_be_bytes().to_vec();
    path.extend_from_slice(&name(index));
    [
        (dirent_key(directory, index), vec![1; 40]),
        (key(b'c', directory, &(index as u64).to_be_bytes()), vec![2; 40]),
        (key(b'p', inode, &path), vec![3; 40]),
        (key(b'i', inode, &[0; 7]), vec![4; 130]),
        (key(b'i', directory, &[0; 7]), vec![5; 110]),
    ]
}

fn creation(directory: u64, index: usize) -> Batch {
    let mut batch = Batch::new();
    entries(directory, index).into_iter().for_each(|(key, value)| batch.put(key, value));
    batch
}

fn removal(directory: u64, index: usize) -> Batch {
    let mut batch = Batch::new();
    let [dirent, cookie, path, inode, own] = entries(directory, index);
    [dirent, cookie, path, inode].into_iter().for_each(|(key, _)| batch.delete(key));
    batch.put(own.0, own.1);
    batch
}

/// Bytes of keys and values that one transaction of the form of a create carries.
#[must_use]
pub fn transaction_bytes() -> usize {
    entries(1, 0).iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Visits all of `0..count` once, not in order: neighbours in the store are not neighbours in time.
fn scattered(place: usize, count: usize) -> usize {
    // A prime that no sensible count is a multiple of.
    (place * 7_919) % count
}

fn work(store: &dyn MetadataStore, step: Step, directory: u64, count: usize) -> Result<()> {
    for place in 0..count {
        match step {
            Step::Commit => {
                store.commit(creation(directory, place))?;
            }
            Step::CommitSynced => {
                let sequence = store.commit(creation(directory, place))?;
                store.sync(sequence)?;
            }
            Step::Remove => {
                store.commit(removal(directory, place))?;
            }
            Step::Get => {
                let found = store.get(&dirent_key(directory, scattered(place, count)))?;
                found.context("a committed key is found")?;
            }
            Step::GetAbsent => {
                let key = key(b'd', directory, format!("none{place:08}").as_bytes());
                anyhow::ensure!(store.get(&key)?.is_none(), "a key that was never put is found");
            }
            Step::Range => {
                let from = dirent_key(directory, scattered(place, count));
                store.range(&from, &key(b'd', directory + 1, &[]), RANGE_ENTRIES)?;
            }
        }
    }
    Ok(())
}

/// Result of one row of one round.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Operations per second until the last call returned.
    rate: f64,
    /// Operations per second until the end of a final sync of everything.
    rate_synced: f64,
    operations: f64,
    device: Option<DeviceCounters>,
    /// Growth of the log in bytes, where the log counts.
    log_bytes: Option<u64>,
    /// Flushes of the log, where it counts.
    log_flushes: Option<u64>,
}

fn measure_step(
    open: &OpenStore,
    (step, first): (Step, usize),
    threads: usize,
    options: &WorkloadOptions,
    device: Option<&Device>,
) -> Result<Measured> {
    let store = open.store.as_ref();
    store.sync(store.committed())?;
    let each = (step.operations(options) / threads).max(1);
    let (before, log_before) = (device::counters_of(device)?, open.log_counters());
    let start = std::time::Instant::now();
    let (time, _) =
        parallel::run((0..threads).collect(), |index, _: usize| work(store, step, (first + index) as u64, each))?;
    store.sync(store.committed())?;
    let time_synced = start.elapsed();
    let (after, log_after) = (device::counters_of(device)?, open.log_counters());
    let log = log_after.zip(log_before);
    let operations = count(each * threads);
    Ok(Measured {
        rate: operations / time.as_secs_f64(),
        rate_synced: operations / time_synced.as_secs_f64(),
        operations,
        device: after.zip(before).map(|(after, before)| after.since(&before)),
        log_bytes: log.map(|(after, before)| after.appended_bytes - before.appended_bytes),
        log_flushes: log.map(|(after, before)| after.flushes - before.flushes),
    })
}

/// Measures every candidate. The ratios of a row are those of the first candidate to each of the others.
///
/// # Errors
/// Whatever a store reports.
pub fn measure(
    candidates: &[Candidate<'_>],
    scratch: &Scratch,
    device: Option<&Device>,
    options: &WorkloadOptions,
) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    for &threads in &options.threads {
        // By candidate, step and round.
        let mut measured: Vec<Vec<Vec<Measured>>> = vec![vec![Vec::new(); Step::ALL.len()]; candidates.len()];
        for round in 0..options.rounds {
            let paths: Vec<_> = candidates
                .iter()
                .map(|candidate| scratch.path().join(format!("{}-{threads}-{round}", candidate.name)))
                .collect();
            let stores: Vec<OpenStore> =
                candidates.iter().zip(&paths).map(|(candidate, path)| (candidate.make)(path)).collect::<Result<_>>()?;
            let in_turn = |first: usize| (0..stores.len()).map(move |place| (place + first) % candidates.len());
            for turn in in_turn(round) {
                for (row, step) in Step::PLAIN.into_iter().enumerate() {
                    measured[turn][row].push(measure_step(&stores[turn], (step, 1), threads, options, device)?);
                }
            }
            for short in 0..SYNCED_TURNS {
                let step = (Step::CommitSynced, SYNCED_FIRST + short * threads);
                for turn in in_turn(round + short) {
                    let figures = measure_step(&stores[turn], step, threads, options, device)?;
                    measured[turn][Step::PLAIN.len()].push(figures);
                }
            }
            drop(stores);
            for path in &paths {
                std::fs::remove_dir_all(path)?;
            }
        }
        sections.push(table(candidates, threads, &measured));
    }
    Ok(sections)
}

fn table(candidates: &[Candidate<'_>], threads: usize, measured: &[Vec<Vec<Measured>>]) -> Section {
    let columns = [
        "operation, store",
        "per second",
        "synced, per second",
        "ratio",
        "spread",
        "ratio synced",
        "log bytes",
        "log flushes",
        "device bytes",
        "device flushes",
    ];
    let mut section = Section::new(format!("Metadata store alone, threads: {threads}"), &columns);
    for (row, step) in Step::ALL.into_iter().enumerate() {
        for (place, candidate) in candidates.iter().enumerate() {
            section.row(cells(step, candidate.name, &measured[0][row], &measured[place][row], place == 0));
        }
    }
    section.note(format!(
        "A transaction carries {} bytes of keys and values. `ratio`: rate of `{}` to that of the row's store, median of \
         the rounds, with the smallest and the largest. `synced`: with a sync of everything inside the clock. Bytes and \
         flushes are per operation; those of the device hold whatever else wrote to it meanwhile.",
        transaction_bytes(),
        candidates[0].name
    ));
    section
}

fn cells(step: Step, name: &str, first: &[Measured], own: &[Measured], is_first: bool) -> Vec<Cell> {
    let median = |figure: fn(&Measured) -> f64| Spread::of(&own.iter().map(figure).collect::<Vec<_>>()).median;
    let ratios = |figure: fn(&Measured) -> f64| {
        let ratios: Vec<f64> = first.iter().zip(own).map(|(first, own)| figure(first) / figure(own)).collect();
        Spread::of(&ratios)
    };
    let per_operation = |figure: fn(&Measured) -> Option<u64>| {
        let each = own.iter().map(|measured| Some(figure(measured)? as f64 / measured.operations));
        each.collect::<Option<Vec<f64>>>().map(|sample| Spread::of(&sample).median)
    };
    let ratio = ratios(|measured| measured.rate);
    let mut cells = vec![
        format!("{}, {name}", step.name()).into(),
        Cell::Number(median(|measured| measured.rate), 0),
        Cell::Number(median(|measured| measured.rate_synced), 0),
    ];
    if is_first {
        cells.extend([Cell::Empty, Cell::Empty, Cell::Empty]);
    } else {
        cells.push(Cell::Number(ratio.median, 2));
        cells.push(ratio.range(2).into());
        cells.push(Cell::Number(ratios(|measured| measured.rate_synced).median, 2));
    }
    cells.push(Cell::optional(per_operation(|measured| measured.log_bytes), 0));
    cells.push(Cell::optional(per_operation(|measured| measured.log_flushes), 3));
    cells.push(Cell::optional(per_operation(|measured| Some(measured.device?.bytes_written)), 0));
    cells.push(Cell::optional(per_operation(|measured| Some(measured.device?.flushes)), 3));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_the_sizes_that_the_workload_promises() {
        for (key, value) in entries(3, 12) {
            assert!((20..=40).contains(&key.len()) && (40..=130).contains(&value.len()), "{key:?} {value:?}");
        }
    }

    #[test]
    fn a_scattered_walk_visits_everything_once() {
        let mut seen: Vec<usize> = (0..1_000).map(|place| scattered(place, 1_000)).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1_000));
    }
}
