//! Operations with an fsync each, beside what one flush of a log costs on the same device in the same round.

use anyhow::Result;

use super::Contest;
use super::phase::{self, LogWork, Measured};
use crate::bare_flush::BareFlush;
use crate::report::{Cell, Report, Section};
use crate::side::{Durability, Operation};
use crate::statistics::Spread;

/// The kinds that move data too; they have directories of their own, in which nothing was deleted.
const WITH_DATA: [Operation; 2] = [Operation::CreateWritten, Operation::Append];

/// Bare flushes measured in each round.
const FLUSH_SAMPLES: usize = 300;

pub(super) fn measure(contest: &Contest<'_>, report: &mut Report) -> Result<()> {
    for &threads in &contest.arguments.synced_threads {
        let mut rounds = phase::Rounds::new();
        let mut flushes = Vec::new();
        for round in 0..contest.arguments.rounds {
            // Nothing of the round before may be written back while the device is measured alone.
            contest.native.sync()?;
            flushes.push(BareFlush::measure(contest.scratch.path(), FLUSH_SAMPLES)?);
            for (party, side) in contest.in_turn(round) {
                let operations = contest.arguments.synced_operations;
                for (label, kinds) in [("synced", &Operation::METADATA[..]), ("data", &WITH_DATA)] {
                    let label = format!("{label}-{threads}-{round}");
                    let mut workers = phase::workers(side, &label, threads, operations)?;
                    for &kind in kinds {
                        let device = contest.device.as_ref();
                        let measured = phase::run(side, &mut workers, kind, Durability::Synced, device)?;
                        rounds.push(kind, party, measured);
                    }
                }
            }
        }
        report.add(table(threads, &rounds, &flushes));
    }
    Ok(())
}

fn table(threads: usize, rounds: &phase::Rounds, flushes: &[BareFlush]) -> Section {
    let columns = [
        "operation",
        "native us",
        "polymux us",
        "ratio",
        "spread",
        "native to a flush",
        "polymux to a flush",
        "log flushes",
        "log bytes",
        "log bytes to payload",
        "native, device flushes",
        "polymux, device flushes",
        "native, device bytes",
        "polymux, device bytes",
    ];
    let mut section = Section::new(format!("With fsync, threads: {threads}"), &columns);
    for (operation, both) in rounds.iter() {
        let (native, polymux) = (&both.native, &both.polymux);
        let ratio = phase::ratios(polymux, native, (Measured::rate, Measured::rate));
        let wall_us = |measured: &Measured| 1e6 / measured.rate();
        let to_a_flush = |side: &[Measured]| {
            let ratios: Vec<f64> =
                side.iter().zip(flushes).map(|(measured, flush)| wall_us(measured) / flush.best_us()).collect();
            Spread::of(&ratios).median
        };
        let device_flushes = |side| {
            phase::median_optional(side, |measured| {
                measured.per_operation(measured.device_calls.map(|counters| counters.flushes))
            })
        };
        let device_bytes = |side| {
            phase::median_optional(side, |measured| {
                measured.per_operation(measured.device_calls.map(|counters| counters.bytes_written))
            })
        };
        let log =
            |figure: fn(&LogWork) -> f64| phase::median_optional(polymux, |measured| measured.log.as_ref().map(figure));
        let per_operation = |figure: fn(&LogWork) -> u64| {
            phase::median_optional(polymux, |measured| measured.per_operation(measured.log.as_ref().map(figure)))
        };
        let log_flushes = per_operation(|log| log.flushes);
        let log_bytes = per_operation(|log| log.appended_bytes);
        let to_payload =
            log(|log| log.appended_bytes as f64 / log.payload_bytes as f64).filter(|ratio| ratio.is_finite());
        section.row(vec![
            operation.name().into(),
            Cell::Number(phase::median(native, wall_us), 1),
            Cell::Number(phase::median(polymux, wall_us), 1),
            Cell::Number(ratio.median, 2),
            format!("{:.2}-{:.2}", ratio.min, ratio.max).into(),
            Cell::Number(to_a_flush(native), 2),
            Cell::Number(to_a_flush(polymux), 2),
            Cell::optional(log_flushes, 3),
            Cell::optional(log_bytes, 0),
            Cell::optional(to_payload, 2),
            Cell::optional(device_flushes(native), 3),
            Cell::optional(device_flushes(polymux), 3),
            Cell::optional(device_bytes(native), 0),
            Cell::optional(device_bytes(polymux), 0),
        ]);
    }
    section.note(note_on_flushes(flushes));
    section.note(
        "`us`: wall-clock time over operations of all threads together. `ratio`: rate of Polymux to the native rate. \
         Flushes and bytes are per operation; those of the device hold whatever else wrote to it meanwhile. `create` \
         fsyncs the new file, `append` is write and fdatasync, everything else fsyncs the directory.",
    );
    section
}

fn note_on_flushes(flushes: &[BareFlush]) -> String {
    let best = Spread::of(&flushes.iter().map(BareFlush::best_us).collect::<Vec<_>>());
    let fdatasync = Spread::of(&flushes.iter().map(|flush| flush.fdatasync_us).collect::<Vec<_>>());
    let direct: Option<Vec<f64>> = flushes.iter().map(|flush| flush.direct_us).collect();
    let direct = direct.map_or_else(
        || "not possible here".to_owned(),
        |sample| {
            let spread = Spread::of(&sample);
            format!("{:.1} us ({:.1}-{:.1})", spread.median, spread.min, spread.max)
        },
    );
    format!(
        "One bare flush of 4 KiB into a zero-written file: O_DIRECT with O_DSYNC {direct}; buffered with fdatasync \
         {:.1} us ({:.1}-{:.1}). `to a flush` compares with the better of the two in the same round: {:.1} us.",
        fdatasync.median, fdatasync.min, fdatasync.max, best.median
    )
}
