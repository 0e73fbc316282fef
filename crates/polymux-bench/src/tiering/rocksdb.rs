//! RocksDB under its own `db_bench`: key ranges of different heat, read and written, of a database that is twice as large as the SSD.
//!
//! Method:
//! * The database is loaded without limits, and synced, before the limits of the devices hold.
//! * Before each round caches are dropped and the database is opened anew: hot data is read from devices again and again.
//! * The skew of ranges and keys is that found by the authors of the benchmark `mixgraph` in databases of Facebook (Cao et al., FAST '20):
//!   85 % gets, 14 % puts, 1 % short scans, thirty ranges of keys. Values that are put have 1,000 bytes and some, as those that were loaded,
//!   so that the database does not shrink where it is used.

use std::process::Command;

use anyhow::{Context, Result};

use super::sides::{Side, SideKind};
use super::{TieringArguments, in_words};
use crate::machine::drop_caches;
use crate::report::{Cell, Report, Section};
use crate::statistics::mean;
use crate::suite::programs;
use crate::suite::workloads::rocksdb::{PROGRAM, figure_of};

/// 2.5 GB with keys of 16 bytes and values of 1,000.
const KEYS: &str = "2500000";
/// Arguments of `mixgraph`, as the wiki of RocksDB has it for ranges of keys that differ (`Prefix_dist`).
const MIX: [&str; 15] = [
    "--benchmarks=mixgraph",
    "--use_existing_db=1",
    "--keyrange_num=30",
    "--keyrange_dist_a=14.18",
    "--keyrange_dist_b=-2.917",
    "--keyrange_dist_c=0.0164",
    "--keyrange_dist_d=-0.08082",
    "--key_dist_a=0.002312",
    "--key_dist_b=0.3467",
    "--value_k=0.2615",
    "--value_sigma=25.45",
    "--value_theta=1000",
    "--mix_get_ratio=0.85",
    "--mix_put_ratio=0.14",
    "--mix_seek_ratio=0.01",
];
/// Length of a round.
const ROUND_SECONDS: usize = 16;
/// Rounds that are not counted: the first minute.
const ROUNDS_BEFORE: usize = 4;
/// Share of the SSD-only rate that is required from then on.
const SHARE_OF_SSD: f64 = 0.8;

struct Course {
    side: SideKind,
    /// Operations per second in each round.
    rates: Vec<f64>,
    written: Option<f64>,
    places: String,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    if !programs::is_installed(PROGRAM) {
        eprintln!("skipped: rocksdb: {PROGRAM} is not installed (package rocksdb-tools)");
        return Ok(());
    }
    let mut courses = Vec::new();
    for side in &arguments.sides {
        courses.push(measure(*side, arguments).with_context(|| side.name())?);
    }
    report.add(tabulate(arguments, &courses));
    Ok(())
}

fn measure(kind: SideKind, arguments: &TieringArguments) -> Result<Course> {
    let side = Side::make(kind, arguments)?;
    bench(&side, &["--benchmarks=fillseq", "--use_existing_db=0"])?;
    rustix::fs::sync();
    side.throttle()?;
    let before = side.traffic()?;
    let seconds = format!("--duration={ROUND_SECONDS}");
    let readers = format!("--threads={}", arguments.readers);
    let mut rates = Vec::new();
    for round in 0..arguments.rounds {
        drop_caches()?;
        let seed = format!("--seed={}", round + 1);
        let printed = bench(&side, &[&MIX[..], &[&seconds, &readers, &seed]].concat())?;
        let rate = operations_per_second(&printed)?;
        eprintln!("{}: round {round}: {rate:.0} operations/s", kind.name());
        rates.push(rate);
    }
    let written = side.written_to_ssd_mb(&before)?;
    let places = side.place_below(&side.path().join("database"))?;
    side.end()?;
    Ok(Course { side: kind, rates, written, places })
}

fn bench(side: &Side, options: &[&str]) -> Result<String> {
    let mut command = Command::new(PROGRAM);
    command.arg(format!("--db={}", side.path().join("database").display()));
    command.arg(format!("--num={KEYS}")).args(["--value_size=1000", "--compression_type=none"]).args(options);
    programs::run(side.devices(), &mut command)
}

/// From `mixgraph     :     193.110 micros/op 41420 ops/sec ...`: of all threads together.
fn operations_per_second(printed: &str) -> Result<f64> {
    figure_of("mixgraph", "ops/sec", printed)
}

fn tabulate(arguments: &TieringArguments, courses: &[Course]) -> Section {
    let columns = [
        "side",
        "SSD written MB",
        "MiB on SSD/disk at the end",
        "operations/s in each round of 16 s",
        "from 64 s on",
        "of all on an SSD",
        "target",
        "met",
    ];
    let title = format!("RocksDB (mixgraph), 2.5 GB, {} threads: SSD of 1.2 GB, disk of 5 GB", arguments.readers);
    let mut section = Section::new(title, &columns);
    let settled = |course: &Course| {
        mean(course.rates.get(ROUNDS_BEFORE..).filter(|rates| !rates.is_empty()).unwrap_or(&course.rates))
    };
    let best = courses.iter().find(|course| course.side == SideKind::Ssd).map(settled);
    for course in courses {
        let share = best.map(|best| settled(course) / best);
        let is_met = share.map_or("", |share| if share >= SHARE_OF_SSD { "yes" } else { "no" });
        section.row(vec![
            course.side.name().into(),
            Cell::optional(course.written, 0),
            course.places.clone().into(),
            in_words(&course.rates).into(),
            Cell::Number(settled(course), 0),
            Cell::optional(share, 3),
            Cell::Number(SHARE_OF_SSD, 1),
            is_met.into(),
        ]);
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_all_threads_is_read_from_the_line_of_the_benchmark() {
        let printed = "Keys: 16 bytes each\nmixgraph     :     193.110 micros/op 41420 ops/sec 16.003 seconds 662848 operations;   41.2 MB/s\n";
        assert_eq!(operations_per_second(printed).unwrap(), 41420.0);
        assert!(operations_per_second("").is_err());
    }
}
