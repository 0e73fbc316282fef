//! RocksDB under its own `db_bench`: a log and sorted tables, written in pieces of a few hundred bytes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// The program, of Debian's package `rocksdb-tools`.
pub const PROGRAM: &str = "db_bench";
/// Benchmarks of one database, in this order, as `db_bench` names them.
const TOGETHER: [&str; 3] = ["fillrandom", "overwrite", "readwhilewriting"];
/// One in which each write is synced, on a database of its own.
const SYNCED: &str = "fillsync";

/// Keys of 16 bytes with values of 100, as `db_bench` comes.
pub struct RocksDb;

impl Workload for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn about(&self) -> &'static str {
        "db_bench of RocksDB as it comes: values of 100 bytes, one writer (and one reader beside it)"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is synced but what RocksDB syncs; fillsync syncs each write"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("fillrandom"), Figure::us("overwrite"), Figure::us("readwhilewriting"), Figure::us("fillsync")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn obstacle(&self) -> Option<String> {
        (!programs::is_installed(PROGRAM)).then(|| format!("{PROGRAM} is not installed (package rocksdb-tools)"))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?.join(format!("database-{}", place.repetition));
        std::fs::create_dir(&directory)?;
        let operations = place.scale.choose("50000", "300000");
        let mut printed = run(place, &directory.join("together"), &TOGETHER.join(","), operations)?;
        printed.push_str(&run(place, &directory.join("synced"), SYNCED, place.scale.choose("500", "3000"))?);
        std::fs::remove_dir_all(&directory)?;
        TOGETHER.iter().chain([&SYNCED]).map(|benchmark| figure_of(benchmark, "micros/op", &printed)).collect()
    }
}

fn run(place: &Place, database: &Path, benchmarks: &str, operations: &str) -> Result<String> {
    let mut command = Command::new(PROGRAM);
    command.arg(format!("--db={}", database.display())).arg(format!("--benchmarks={benchmarks}"));
    command.arg(format!("--num={operations}"));
    Ok(programs::run(place.devices, &mut command)? + "\n")
}

/// A figure of a benchmark, by its unit: `fillrandom   :       4.379 micros/op 228353 ops/sec ...`.
///
/// # Errors
/// Where it is not in the output of `db_bench`.
pub fn figure_of(benchmark: &str, unit: &str, printed: &str) -> Result<f64> {
    let is_of_benchmark = |line: &&str| line.split_whitespace().next() == Some(benchmark) && line.contains(unit);
    let line =
        printed.lines().find(is_of_benchmark).with_context(|| format!("no figure of {benchmark} in: {printed}"))?;
    let before = line.split(unit).next().unwrap_or_default();
    before.split_whitespace().last().unwrap_or_default().parse().with_context(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_each_operation_is_read_from_the_line_of_its_benchmark() {
        let printed = "Keys: 16 bytes each\nfillrandom   :       4.379 micros/op 228353 ops/sec 0.438 seconds\n\
                       overwrite    :       4.250 micros/op 235251 ops/sec\n";
        assert_eq!(figure_of("fillrandom", "micros/op", printed).unwrap(), 4.379);
        assert_eq!(figure_of("overwrite", "micros/op", printed).unwrap(), 4.25);
        assert!(figure_of("fillsync", "micros/op", printed).is_err());
    }
}
