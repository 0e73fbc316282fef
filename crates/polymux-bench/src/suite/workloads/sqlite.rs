//! Inserts into an SQLite database, by the module that comes with Python, with both kinds of journal.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

/// Times itself, so that starting the interpreter is not measured. SQLite's own defaults, a rollback journal and every commit synced; then
/// the same with a write-ahead log.
const SCRIPT: &str = "
import sqlite3, sys, time
path, commits, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
database = sqlite3.connect(path, isolation_level=None)
database.execute('PRAGMA synchronous = FULL')
database.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value REAL)')
row = ('a name of some length', 3.25)
begun = time.perf_counter()
for _ in range(commits):
    database.execute('INSERT INTO t (name, value) VALUES (?, ?)', row)
single = time.perf_counter() - begun
begun = time.perf_counter()
database.execute('BEGIN')
database.executemany('INSERT INTO t (name, value) VALUES (?, ?)', [row] * rows)
database.execute('COMMIT')
bulk = time.perf_counter() - begun
assert database.execute('PRAGMA journal_mode = WAL').fetchone()[0] == 'wal'
database.execute('INSERT INTO t (name, value) VALUES (?, ?)', row)
begun = time.perf_counter()
for _ in range(commits):
    database.execute('INSERT INTO t (name, value) VALUES (?, ?)', row)
ahead = time.perf_counter() - begun
count = database.execute('SELECT count(*) FROM t').fetchone()[0]
assert count == 2 * commits + rows + 1, count
print(single * 1e6 / commits, bulk * 1e6 / rows, ahead * 1e6 / commits)
";

/// Inserts, each in a transaction of its own, and many in one.
pub struct Sqlite;

/// The three figures that the script prints.
fn parse(printed: &str) -> Result<Vec<f64>> {
    let figures: Vec<f64> =
        printed.split_whitespace().map(str::parse).collect::<Result<_, _>>().context(printed.to_owned())?;
    ensure!(figures.len() == 3, "the script printed {printed:?}");
    Ok(figures)
}

/// Why SQLite cannot be measured on this machine.
#[must_use]
pub fn obstacle() -> Option<String> {
    let imported = Command::new("python3").args(["-c", "import sqlite3"]).output();
    (!imported.is_ok_and(|output| output.status.success()))
        .then(|| "python3 with its module sqlite3 is not installed".to_owned())
}

impl Workload for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn about(&self) -> &'static str {
        "inserts into a new SQLite database (synchronous = FULL; rollback journal, then write-ahead log), per row"
    }

    fn ends_with(&self) -> &'static str {
        "every commit is synced by SQLite"
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::us("insert + commit"),
                Figure::us("insert, 20,000 in one transaction"),
                Figure::us("insert + commit, write-ahead log"),
            ]
        }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn obstacle(&self) -> Option<String> {
        obstacle()
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?.join(format!("database-{}", place.repetition));
        std::fs::create_dir(&directory)?;
        let mut python = Command::new("python3");
        python.args(["-c", SCRIPT]).arg(directory.join("rows.db"));
        python.args([place.scale.choose("100", "300"), "20000"]);
        let printed = programs::run(place.devices, &mut python)?;
        std::fs::remove_dir_all(&directory)?;
        parse(&printed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_prints_three_figures() {
        assert_eq!(parse("250.5 1.25 90\n").unwrap(), [250.5, 1.25, 90.0]);
        assert!(parse("250.5 1.25").is_err() && parse("a b").is_err());
    }
}
