//! `polymux-bench flush`: which way of writing a log is the cheapest on a device.
//!
//! Every method runs in every round, in an order that turns by one place from round to round, so that
//! a disturbance does not always meet the same method; the samples of all rounds are put together.

use anyhow::Result;
use clap::Args;

use crate::bare_flush::{Means, Method, Preparation, Route};
use crate::machine;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::{mean, percentile};

/// Choices of `polymux-bench flush`.
#[derive(Args, Clone, Debug)]
pub struct FlushArguments {
    /// Where to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// Durable writes for each method in a round.
    #[arg(long, default_value_t = 300)]
    pub samples: usize,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
}

fn methods() -> Vec<Method> {
    let mut methods = Vec::new();
    for write_size in [512, 4096, 16384] {
        for preparation in [Preparation::Growing, Preparation::Preallocated, Preparation::ZeroWritten] {
            for (means, route) in [
                (Means::Fdatasync, Route::Buffered),
                (Means::Dsync, Route::Buffered),
                (Means::Fdatasync, Route::Direct),
                (Means::Dsync, Route::Direct),
            ] {
                methods.push(Method { preparation, means, route, write_size });
            }
        }
    }
    methods
}

fn describe(method: &Method) -> String {
    let preparation = match method.preparation {
        Preparation::Growing => "growing",
        Preparation::Preallocated => "preallocated",
        Preparation::ZeroWritten => "zero-written",
    };
    let means = match method.means {
        Means::Fdatasync => "fdatasync",
        Means::Dsync => "O_DSYNC",
    };
    let route = match method.route {
        Route::Buffered => "buffered",
        Route::Direct => "O_DIRECT",
    };
    format!("{} B, {preparation}, {route}, {means}", method.write_size)
}

/// Measures every method.
///
/// # Errors
/// Whatever the file system reports.
pub fn run(arguments: &FlushArguments) -> Result<()> {
    let scratch = Scratch::new(&arguments.place.directory)?;
    let mut report = Report::new("flush", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let methods = methods();
    let mut times_us: Vec<Option<Vec<f64>>> = vec![Some(Vec::new()); methods.len()];
    for round in 0..arguments.rounds {
        for place in 0..methods.len() {
            let index = (place + round) % methods.len();
            let measured = methods[index].measure(scratch.path(), arguments.samples)?;
            match (measured, &mut times_us[index]) {
                (Some(measured), Some(all)) => all.extend(measured),
                (_, all) => *all = None,
            }
        }
    }
    report.add(table(&methods, &times_us));
    report.finish()
}

fn table(methods: &[Method], times_us: &[Option<Vec<f64>>]) -> Section {
    let columns = ["method", "mean us", "p50 us", "p99 us", "to the best of its size"];
    let mut section = Section::new("One durable write of a log", &columns);
    for (method, times) in methods.iter().zip(times_us) {
        let Some(times) = times else {
            section.row(vec![describe(method).into(), "refused".into(), Cell::Empty, Cell::Empty, Cell::Empty]);
            continue;
        };
        let same_size = methods.iter().zip(times_us).filter(|(other, _)| other.write_size == method.write_size);
        let best = same_size.filter_map(|(_, times)| times.as_deref().map(mean)).fold(f64::INFINITY, f64::min);
        section.row(vec![
            describe(method).into(),
            Cell::Number(mean(times), 1),
            Cell::Number(percentile(times, 50), 1),
            Cell::Number(percentile(times, 99), 1),
            Cell::Number(mean(times) / best, 2),
        ]);
    }
    section
}
