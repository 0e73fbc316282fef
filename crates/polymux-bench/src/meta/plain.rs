//! Operations without syncs, in private directories.
//!
//! Method: the ratio that counts is `deferred inside`: native, until its last call returned, against
//! Polymux, until the background work of its calls was done too. That is the stricter of the two ways: whatever the
//! native file system puts off is not charged to it. `both synced` charges both.

use anyhow::Result;

use super::phase::{self, Measured, Rounds};
use super::{Both, Contest};
use crate::report::{Cell, Report, Section};
use crate::side::{Durability, Operation};
use crate::statistics::geometric_mean;

/// The kinds that move data too, and are not part of the mean; they have directories of their own, in which nothing was
/// deleted.
const WITH_DATA: [Operation; 2] = [Operation::CreateWritten, Operation::UnlinkWritten];

pub(super) fn measure(contest: &Contest<'_>, report: &mut Report) -> Result<()> {
    let mut by_threads: Vec<(usize, Rounds)> = Vec::new();
    for &threads in &contest.arguments.threads {
        let mut rounds = Rounds::new();
        for round in 0..contest.arguments.rounds {
            for (label, kinds) in [("plain", &Operation::METADATA[..]), ("plain-data", &WITH_DATA)] {
                let label = format!("{label}-{threads}-{round}");
                let mut workers = contest.workers(&label, threads, contest.arguments.operations)?;
                for &kind in kinds {
                    contest.round_of(kind, Durability::Later, round, &mut workers, &mut rounds)?;
                }
            }
        }
        report.add(table(threads, &rounds));
        by_threads.push((threads, rounds));
    }
    if by_threads.len() > 1 {
        report.add(scaling(&by_threads));
    }
    Ok(())
}

fn table(threads: usize, rounds: &Rounds) -> Section {
    let columns = [
        "operation",
        "native, per second",
        "polymux, per second",
        "ratio of calls",
        "deferred inside",
        "spread",
        "both synced",
        "native, processor us",
        "polymux, processor us",
        "processor ratio",
        "native, device bytes",
        "polymux, device bytes",
    ];
    let mut section = Section::new(format!("Without fsync, threads: {threads}"), &columns);
    let mut means = [const { Vec::new() }; 4];
    for (operation, both) in rounds.iter() {
        let (native, polymux) = (&both.native, &both.polymux);
        let calls = phase::ratios(polymux, native, (Measured::rate, Measured::rate));
        let drained = phase::ratios(polymux, native, (Measured::rate_drained, Measured::rate));
        let synced = phase::ratios(polymux, native, (Measured::rate_synced, Measured::rate_synced));
        let per_second_of_processor = |measured: &Measured| measured.operations / measured.processor_s;
        let processor = phase::ratios(polymux, native, (per_second_of_processor, per_second_of_processor));
        if operation.is_metadata() {
            for (mean, ratio) in means.iter_mut().zip([calls, drained, synced, processor]) {
                mean.push(ratio.median);
            }
        }
        let processor_us = |side| phase::median(side, |measured| measured.processor_s / measured.operations * 1e6);
        let device_bytes = |side| {
            phase::median_optional(side, |measured| {
                measured.per_operation(measured.device_synced.map(|counters| counters.bytes_written))
            })
        };
        section.row(vec![
            operation.name().into(),
            Cell::Number(phase::median(native, Measured::rate), 0),
            Cell::Number(phase::median(polymux, Measured::rate), 0),
            Cell::Number(calls.median, 2),
            Cell::Number(drained.median, 2),
            drained.range(2).into(),
            Cell::Number(synced.median, 2),
            Cell::Number(processor_us(native), 1),
            Cell::Number(processor_us(polymux), 1),
            Cell::Number(processor.median, 2),
            Cell::optional(device_bytes(native), 0),
            Cell::optional(device_bytes(polymux), 0),
        ]);
    }
    let [calls, drained, synced, processor] = means.map(|ratios| Cell::Number(geometric_mean(&ratios), 2));
    let empty = Cell::Empty;
    let mut row = vec!["geometric mean of the first five".into(), empty.clone(), empty.clone(), calls, drained];
    row.extend([empty.clone(), synced, empty.clone(), empty.clone(), processor, empty.clone(), empty]);
    section.row(row);
    section.note(
        "Ratios are rates of Polymux to rates of the native file system. `ratio of calls`: until the last call returned, \
         on both sides. `deferred inside`: Polymux until its background work on the tiers was done, native until its \
         last call returned; this is the figure of the acceptance. `both synced`: each until everything was durable \
         (`syncfs`). Processor time and device bytes are per operation, until everything was durable. \
         `processor ratio` compares operations for a second of processor time; it leaves out waiting, and other programs.",
    );
    section
}

/// Aggregate rates with deferred work inside, for every number of threads.
fn scaling(by_threads: &[(usize, Rounds)]) -> Section {
    let columns = [
        "operation, threads",
        "native, per second",
        "native, to one thread",
        "polymux, per second",
        "polymux, to one thread",
    ];
    let mut section = Section::new("Aggregate without fsync, deferred work inside the clock", &columns);
    let (_, base) = &by_threads[0];
    for (operation, first) in base.iter() {
        for (threads, rounds) in by_threads {
            let own = rounds.of(operation);
            let rates = |both: &Both<Vec<Measured>>| {
                let native = phase::median(&both.native, Measured::rate);
                (native, phase::median(&both.polymux, Measured::rate_drained))
            };
            let (native, polymux) = rates(own);
            let (native_first, polymux_first) = rates(first);
            section.row(vec![
                format!("{}, {threads}", operation.name()).into(),
                Cell::Number(native, 0),
                Cell::Number(native / native_first, 2),
                Cell::Number(polymux, 0),
                Cell::Number(polymux / polymux_first, 2),
            ]);
        }
    }
    section.note(format!("`to one thread` compares with the first number of threads ({}).", by_threads[0].0));
    section
}
