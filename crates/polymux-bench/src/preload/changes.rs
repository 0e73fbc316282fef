//! Programs that overwrite files on two tiers: `fio`, SQLite and PostgreSQL.
//!
//! Each side has files of its own: a lease empties the page cache of its file, which the plain mount would be measured without then.

mod cluster;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    NATIVE, PreloadArguments, SIDES, UNDER_LIBRARY, in_turns, is_installed, output_of, preload, side_columns, side_row,
};
use crate::leases::volume::MountedVolume;
use crate::noise::Noise;
use crate::report::Section;
use crate::scratch::Scratch;
use crate::suite::workloads::postgres::newest_package;
use cluster::{Cluster, Transactions};

/// Bytes of the file that `fio` writes.
const FILE_BYTES: u64 = 256 << 20;
const PIECE: usize = 1 << 20;
/// Seconds of a turn of `fio`, and of `pgbench`.
const FIO_SECONDS: &str = "2";
const PGBENCH_SECONDS: &str = "8";
const COMMITS: &str = "1000";
const ROWS: &str = "150000";

/// Times itself. The database has rows of 400 bytes, of which some are changed, each in a transaction of its own that is synced.
const SQLITE: &str = "
import os, random, sqlite3, sys, time
path, journal, commits, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
is_new = not os.path.exists(path)
database = sqlite3.connect(path, isolation_level=None)
database.execute(f'PRAGMA journal_mode = {journal}')
database.execute('PRAGMA synchronous = FULL')
if is_new:
    database.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB)')
    database.execute('BEGIN')
    database.executemany('INSERT INTO t VALUES (?, ?)', ((row, os.urandom(400)) for row in range(rows)))
    database.execute('COMMIT')
    database.execute('PRAGMA wal_checkpoint(TRUNCATE)')
chance = random.Random(1)
begun = time.perf_counter()
for _ in range(commits):
    database.execute('UPDATE t SET value = ? WHERE id = ?', (os.urandom(400), chance.randrange(rows)))
print((time.perf_counter() - begun) * 1e6 / max(commits, 1))
";

/// Where the sides have their files.
struct Sides<'a> {
    volume: &'a MountedVolume,
    directories: [PathBuf; SIDES],
    library: &'a Path,
}

impl Sides<'_> {
    fn directory(&self, side: usize) -> &Path {
        &self.directories[side]
    }

    /// A program as a side runs it.
    fn command(&self, side: usize, program: &str) -> Command {
        let mut command = Command::new(program);
        if side == UNDER_LIBRARY {
            preload(&mut command, self.library);
        }
        command
    }

    /// Has a large file of a side on both tiers.
    fn split(&self, side: usize, path: &Path) -> Result<()> {
        if side != NATIVE {
            self.volume.split(path, fs::metadata(path)?.len())?;
        }
        Ok(())
    }
}

/// Microseconds of a call of `fio`, over all jobs.
fn fio(sides: &Sides<'_>, side: usize, pattern: &str, jobs: usize) -> Result<f64> {
    let mut command = sides.command(side, "fio");
    command.args(["--name=turn", "--ioengine=psync", "--bs=4k", "--thread", "--time_based", "--group_reporting"]);
    command.args(["--overwrite=1", "--fallocate=none", "--invalidate=0", "--randrepeat=0", "--norandommap"]);
    command.arg(format!("--runtime={FIO_SECONDS}")).arg(format!("--rw={pattern}")).arg(format!("--numjobs={jobs}"));
    command.arg(format!("--filename={}", sides.directory(side).join("file").display()));
    command.arg(format!("--size={FILE_BYTES}")).arg("--output-format=json");
    let printed: Value = serde_json::from_str(&output_of(&mut command)?)?;
    let rate = |kind: &str| printed["jobs"][0][kind]["iops"].as_f64().context("fio tells no rate");
    Ok(1e6 / (rate("read")? + rate("write")?))
}

/// Microseconds of a commit of SQLite.
fn sqlite(sides: &Sides<'_>, side: usize, journal: &str, commits: &str) -> Result<f64> {
    let path = sides.directory(side).join(format!("{journal}.sqlite"));
    let mut command = sides.command(side, "python3");
    command.args(["-c", SQLITE]).arg(path).args([journal, commits, ROWS]);
    let printed = output_of(&mut command)?;
    printed.trim().parse().with_context(|| format!("SQLite printed {printed:?}"))
}

fn measure_fio(sides: &Sides<'_>, arguments: &PreloadArguments, section: &mut Section) -> Result<()> {
    if !is_installed("fio", section) {
        return Ok(());
    }
    for side in 0..SIDES {
        let path = sides.directory(side).join("file");
        let mut file = File::create(&path)?;
        for piece in 0..FILE_BYTES / PIECE as u64 {
            std::io::Write::write_all(&mut file, &Noise::new(piece).bytes(PIECE))?;
        }
        file.sync_all()?;
        drop(file);
        sides.split(side, &path)?;
    }
    for (name, pattern, jobs) in [
        ("fio, writes at random, 1 thread", "randwrite", 1),
        ("fio, writes at random, 4 threads", "randwrite", 4),
        ("fio, reads and writes at random, 4 threads", "randrw", 4),
    ] {
        section.row(side_row(name, &in_turns::<SIDES>(arguments.pairs, |side| fio(sides, side, pattern, jobs))?));
    }
    Ok(())
}

fn measure_sqlite(sides: &Sides<'_>, arguments: &PreloadArguments, section: &mut Section) -> Result<()> {
    if !is_installed("python3", section) {
        return Ok(());
    }
    for journal in ["delete", "wal"] {
        for side in 0..SIDES {
            sqlite(sides, side, journal, "0")?;
            sides.split(side, &sides.directory(side).join(format!("{journal}.sqlite")))?;
        }
        let times = in_turns::<SIDES>(arguments.pairs, |side| sqlite(sides, side, journal, COMMITS))?;
        section.row(side_row(&format!("SQLite, one change a commit, journal {journal}"), &times));
    }
    Ok(())
}

fn measure_postgresql(sides: &Sides<'_>, arguments: &PreloadArguments, section: &mut Section) -> Result<()> {
    let Some(programs) = newest_package() else {
        section.note("skipped: PostgreSQL is not installed here");
        return Ok(());
    };
    let clusters: [Cluster; SIDES] = std::array::from_fn(|side| Cluster {
        programs: programs.clone(),
        directory: sides.directory(side).to_owned(),
        library: (side == UNDER_LIBRARY).then(|| sides.library.to_owned()),
    });
    for (side, cluster) in clusters.iter().enumerate() {
        cluster.make()?;
        cluster.large_files()?.iter().try_for_each(|path| sides.split(side, path))?;
    }
    for (name, transactions) in [
        ("pgbench, selects", Transactions::Selects),
        ("pgbench, changes, commits that wait for no sync", Transactions::ChangesWithoutSync),
        ("pgbench, changes", Transactions::Changes),
    ] {
        let measure = |side: usize| clusters[side].measure(transactions, PGBENCH_SECONDS);
        section.row(side_row(name, &in_turns::<SIDES>(arguments.pairs, measure)?));
    }
    Ok(())
}

/// Measures all of it, on a mount that does not collect writes.
pub(super) fn measure(
    scratch: &Scratch,
    volume: &MountedVolume,
    library: &Path,
    arguments: &PreloadArguments,
) -> Result<Section> {
    let mut section = Section::new("Programs that overwrite files on two tiers", &side_columns("what"));
    let [mount, under_library] = ["mount", "library"].map(|name| volume.mount_point().join(name));
    fs::create_dir(&mount)?;
    fs::create_dir(&under_library)?;
    let directories = [scratch.directory("native-changes")?, mount, under_library];
    let sides = Sides { volume, directories, library };
    measure_fio(&sides, arguments, &mut section)?;
    measure_sqlite(&sides, arguments, &mut section)?;
    measure_postgresql(&sides, arguments, &mut section)?;
    Ok(section)
}
