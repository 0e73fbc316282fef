//! SQLite with a database as large as the SSD, and Redis with an append-only file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Program, rates_of_rounds};
use crate::suite::programs::{self, Started};
use crate::suite::workloads::{redis, sqlite};
use crate::tiering::hot_set::ROUND_SECONDS;
use crate::tiering::sides::Side;

/// Required share of the SSD-only rate.
const TARGET: f64 = 0.8;
/// Rows of 1,000 bytes and their index: 1.2 GB.
const ROWS: &str = "1100000";

/// Makes the rows.
const FILL: &str = "
import random, sqlite3, sys
path, rows = sys.argv[1], int(sys.argv[2])
database = sqlite3.connect(path, isolation_level=None)
assert database.execute('PRAGMA journal_mode = WAL').fetchone()[0] == 'wal'
database.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB)')
source = random.Random(1)
database.execute('BEGIN')
database.executemany('INSERT INTO t VALUES (?, ?)', ((number, source.randbytes(1000)) for number in range(rows)))
database.execute('COMMIT')
database.execute('PRAGMA wal_checkpoint(TRUNCATE)')
";

/// Changes rows, nineteen in twenty of them in one sixth, each in a transaction that is synced; prints the commits of each round.
const CHANGE: &str = "
import random, sqlite3, sys, time
path, rows, rounds, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
database = sqlite3.connect(path, isolation_level=None)
assert database.execute('PRAGMA journal_mode').fetchone()[0] == 'wal'
database.execute('PRAGMA synchronous = FULL')
source = random.Random(2)
for _ in range(rounds):
    begun, commits = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        number = source.randrange(rows // 6) + rows // 2 if source.random() < 0.95 else source.randrange(rows)
        database.execute('BEGIN IMMEDIATE')
        (value,) = database.execute('SELECT value FROM t WHERE id = ?', (number,)).fetchone()
        assert len(value) == 1000
        database.execute('UPDATE t SET value = ? WHERE id = ?', (value[1:] + value[:1], number))
        database.execute('COMMIT')
        commits += 1
    print(commits / (time.perf_counter() - begun), flush=True)
";

/// One client that changes rows, with a write-ahead log.
pub(super) struct Sqlite;

impl Program for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite, write-ahead log, 1.2 GB"
    }

    fn target(&self) -> f64 {
        TARGET
    }

    fn obstacle(&self) -> Option<String> {
        sqlite::obstacle()
    }

    fn prepare(&self, side: &Side, directory: &Path) -> Result<()> {
        let mut python = Command::new("python3");
        programs::run(side.devices(), python.args(["-c", FILL]).arg(directory.join("rows.db")).arg(ROWS)).map(drop)
    }

    fn run(&self, side: &Side, directory: &Path, rounds: u16) -> Result<Vec<f64>> {
        let mut python = Command::new("python3");
        python.args(["-c", CHANGE]).arg(directory.join("rows.db")).arg(ROWS);
        python.arg(rounds.to_string()).arg(ROUND_SECONDS.to_string());
        let printed = programs::run(side.devices(), &mut python)?;
        printed.split_whitespace().map(|rate| rate.parse().with_context(|| printed.clone())).collect()
    }
}

/// Twenty clients that set keys, with an append-only file that is synced for each.
pub(super) struct Redis;

impl Program for Redis {
    fn name(&self) -> &'static str {
        "Redis, appendfsync always"
    }

    fn target(&self) -> f64 {
        TARGET
    }

    fn obstacle(&self) -> Option<String> {
        redis::obstacle()
    }

    fn prepare(&self, _side: &Side, directory: &Path) -> Result<()> {
        Ok(fs::create_dir(directory.join("redis"))?)
    }

    fn run(&self, side: &Side, directory: &Path, rounds: u16) -> Result<Vec<f64>> {
        let devices = side.devices();
        let socket = side.scratch().join("redis.socket");
        let server = redis::serve(devices, &directory.join("redis"), &socket)?;
        redis::ask(devices, &socket, &["config", "set", "appendfsync", "always"])?;
        let mut clients = Command::new("redis-benchmark");
        clients.arg("-s").arg(&socket).args(["-t", "set", "-c", redis::CLIENTS, "-n", "1000000000"]);
        clients.args(["-r", "100000", "-d", "1000", "-q"]);
        let clients = Started::new(devices, &mut clients)?;
        let answered = || -> Result<f64> {
            let told = redis::ask(devices, &socket, &["info", "stats"])?;
            let line = told.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            Ok(line.with_context(|| told.clone())?.trim().parse()?)
        };
        let rates = rates_of_rounds(rounds, answered)?;
        drop(clients);
        redis::ask(devices, &socket, &["shutdown", "nosave"])?;
        server.wait()?;
        ensure!(rates.iter().all(|rate| *rate > 0.0), "Redis stood still in a round: {rates:?}");
        Ok(rates)
    }
}
