//! Operations with an fsync each, beside the cost of one log flush on the same device at the same time.
//!
//! Method: bare flushes are measured right before and right after each kind of operation, because a shared
//! disk may be ten times as slow a moment later; an operation is compared with the flushes around it. With several threads
//! the same is done with flushes that so many threads share and that have nothing around them: no log can be faster than
//! they are, so the native time over theirs is the most that any ratio can reach here.

use anyhow::Result;

use super::phase::{self, LogWork, Measured, Rounds};
use super::{Both, Contest};
use crate::bare_flush::BareFlush;
use crate::report::{Cell, Report, Section};
use crate::shared_flush;
use crate::side::{Durability, Operation};
use crate::statistics::Spread;

/// The kinds that move data too; they have directories of their own, in which nothing was deleted.
const WITH_DATA: [Operation; 2] = [Operation::CreateWritten, Operation::Append];

/// Bare flushes of each method, measured before and after each kind of operation.
const FLUSH_SAMPLES: usize = 50;

/// Syncs of each thread in a measurement of shared flushes.
const SHARED_ROUNDS: usize = 100;

/// All rounds of one number of threads, and the bare flushes around each kind in each round.
struct Series {
    rounds: Rounds,
    flushes: Vec<(Operation, BareFlush)>,
    /// Time in microseconds of an operation that is nothing but its share of a flush.
    shared_us: Vec<(Operation, Option<f64>)>,
}

pub(super) fn measure(contest: &Contest<'_>, report: &mut Report) -> Result<()> {
    for &threads in &contest.arguments.synced_threads {
        let mut series = Series { rounds: Rounds::new(), flushes: Vec::new(), shared_us: Vec::new() };
        for round in 0..contest.arguments.synced_rounds {
            for (label, kinds) in [("synced", &Operation::METADATA[..]), ("synced-data", &WITH_DATA)] {
                let label = format!("{label}-{threads}-{round}");
                let mut workers = contest.workers(&label, threads, contest.arguments.synced_operations * threads)?;
                // Nothing of the preparations may be written back while the device is measured alone.
                contest.native.sync()?;
                let mut before = BareFlush::measure(contest.scratch.path(), FLUSH_SAMPLES)?;
                for &kind in kinds {
                    let shared = || shared_flush::measure(contest.scratch.path(), threads, SHARED_ROUNDS);
                    let shared_before = shared()?;
                    contest.round_of(kind, Durability::Synced, round, &mut workers, &mut series.rounds)?;
                    let shared_us = shared_before.zip(shared()?).map(|(before, after)| f64::midpoint(before, after));
                    series.shared_us.push((kind, shared_us));
                    let after = BareFlush::measure(contest.scratch.path(), FLUSH_SAMPLES)?;
                    series.flushes.push((kind, before.and(&after)));
                    before = after;
                }
            }
        }
        report.add(times(threads, &series));
        report.add(counts(threads, &series.rounds));
    }
    Ok(())
}

impl Series {
    /// A figure of each round to the same figure of the bare flushes around it.
    fn to_a_flush(
        &self,
        operation: Operation,
        side: &[Measured],
        figures: (impl Fn(&Measured) -> Option<f64>, impl Fn(&BareFlush) -> f64),
    ) -> Option<Spread> {
        let flushes = self.flushes.iter().filter(|(kind, _)| *kind == operation);
        let ratios =
            side.iter().zip(flushes).map(|(measured, (_, flush))| Some(figures.0(measured)? / figures.1(flush)));
        ratios.collect::<Option<Vec<f64>>>().map(|ratios| Spread::of(&ratios))
    }
}

/// Median over rounds of the time of an operation that is nothing but its share of a flush, and the ratio that native
/// would have to it.
fn bound(series: &Series, operation: Operation, native: &[Measured]) -> Option<(f64, f64)> {
    let of_kind = series.shared_us.iter().filter(|(kind, _)| *kind == operation);
    let shared: Vec<f64> = of_kind.map(|(_, shared_us)| *shared_us).collect::<Option<_>>()?;
    let ratios: Vec<f64> = native.iter().zip(&shared).map(|(native, shared)| wall_us(native) / shared).collect();
    Some((Spread::of(&shared).median, Spread::of(&ratios).median))
}

fn processor_us(measured: &Measured) -> f64 {
    measured.processor_s * 1e6 / measured.operations
}

fn wall_us(measured: &Measured) -> f64 {
    1e6 / measured.rate()
}

fn times(threads: usize, series: &Series) -> Section {
    let columns = [
        "operation",
        "native us",
        "polymux us",
        "ratio",
        "spread",
        "native to a flush",
        "polymux to a flush",
        "spread of that",
        "polymux to a flush, p50",
        "shared flush us",
        "ratio of that",
        "native, processor us",
        "polymux, processor us",
    ];
    let mut section = Section::new(format!("With fsync, threads: {threads}"), &columns);
    for (operation, Both { native, polymux }) in series.rounds.iter() {
        let ratio = phase::ratios(polymux, native, (Measured::rate, Measured::rate));
        let mean = (|measured: &Measured| Some(wall_us(measured)), BareFlush::best_us);
        let p50 = (|measured: &Measured| measured.latency_p50_us, BareFlush::best_p50_us);
        let native_flushes = series.to_a_flush(operation, native, mean);
        let flushes = series.to_a_flush(operation, polymux, mean);
        let flushes_p50 = series.to_a_flush(operation, polymux, p50).filter(|_| threads == 1);
        let bound = bound(series, operation, native).filter(|_| threads > 1);
        section.row(vec![
            operation.name().into(),
            Cell::Number(phase::median(native, wall_us), 1),
            Cell::Number(phase::median(polymux, wall_us), 1),
            Cell::Number(ratio.median, 2),
            ratio.range(2).into(),
            Cell::optional(native_flushes.map(|spread| spread.median), 2),
            Cell::optional(flushes.map(|spread| spread.median), 2),
            flushes.map_or(Cell::Empty, |spread| spread.range(2).into()),
            Cell::optional(flushes_p50.map(|spread| spread.median), 2),
            Cell::optional(bound.map(|(shared_us, _)| shared_us), 1),
            Cell::optional(bound.map(|(_, ratio)| ratio), 2),
            Cell::Number(phase::median(native, processor_us), 1),
            Cell::Number(phase::median(polymux, processor_us), 1),
        ]);
    }
    section.note(note_on_flushes(&series.flushes));
    section.note(
        "`us`: wall-clock time over operations of all threads together. `ratio`: rate of Polymux to the native rate. \
         `create` fsyncs the new file, `append` is write and fdatasync, everything else fsyncs the directory. `p50` \
         compares the median latency of an operation with that of a flush: what the mean would be on a quiet machine. \
         `shared flush us`: the same threads do nothing but share flushes, each time all of them; `ratio of that`: the \
         most that `ratio` could be.",
    );
    section
}

fn note_on_flushes(flushes: &[(Operation, BareFlush)]) -> String {
    let spread =
        |figure: fn(&BareFlush) -> f64| Spread::of(&flushes.iter().map(|(_, flush)| figure(flush)).collect::<Vec<_>>());
    let best = spread(BareFlush::best_us);
    let fdatasync = spread(|flush| flush.fdatasync.mean_us);
    let direct: Option<Vec<f64>> = flushes.iter().map(|(_, flush)| Some(flush.direct?.mean_us)).collect();
    let direct = direct.map_or_else(
        || "not possible here".to_owned(),
        |sample| format!("{:.1} us ({})", Spread::of(&sample).median, Spread::of(&sample).range(1)),
    );
    format!(
        "One bare flush of 4 KiB into a zero-written file: O_DIRECT with O_DSYNC {direct}; buffered with fdatasync \
         {:.1} us ({}). `to a flush` compares with the better of the two around the same operations: {:.1} us.",
        fdatasync.median,
        fdatasync.range(1),
        best.median
    )
}

fn counts(threads: usize, rounds: &Rounds) -> Section {
    let columns = [
        "operation",
        "log flushes",
        "log bytes",
        "log bytes to payload",
        "native, device flushes",
        "polymux, device flushes",
        "native, device bytes",
        "polymux, device bytes",
    ];
    let mut section =
        Section::new(format!("Flushes and bytes of an operation with fsync, threads: {threads}"), &columns);
    for (operation, Both { native, polymux }) in rounds.iter() {
        let log = |figure: fn(&LogWork) -> u64| {
            phase::median_optional(polymux, |measured| measured.per_operation(measured.log.as_ref().map(figure)))
        };
        let to_payload =
            phase::median_optional(polymux, |measured| measured.log.and_then(|log| log.growth_to_payload()));
        let flushes = |side: &[Measured]| {
            phase::median_optional(side, |measured| {
                measured.per_operation(measured.device_calls.map(|counters| counters.flushes))
            })
        };
        let bytes = |side: &[Measured]| {
            phase::median_optional(side, |measured| {
                measured.per_operation(measured.device_calls.map(|counters| counters.bytes_written))
            })
        };
        section.row(vec![
            operation.name().into(),
            Cell::optional(log(|log| log.flushes), 3),
            Cell::optional(log(|log| log.appended_bytes), 0),
            Cell::optional(to_payload, 2),
            Cell::optional(flushes(native), 3),
            Cell::optional(flushes(polymux), 3),
            Cell::optional(bytes(native), 0),
            Cell::optional(bytes(polymux), 0),
        ]);
    }
    section.note(
        "One operation is one sync call. The counts of the device hold whatever else wrote to it meanwhile. Payload: keys, \
         values and their lengths; the log adds headers and padding.",
    );
    section
}
