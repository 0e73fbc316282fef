//! PostgreSQL under pgbench: small transactions, each of which waits for the log, on more data than the SSD holds.
//!
//! Method:
//! * The cluster is on the file system that is measured, with its log ([`crate::suite::workloads::postgres`]).
//! * Data is loaded without limits, and a checkpoint ends that, before the limits of the devices hold and caches are dropped.
//! * A rate is the one that pgbench reports for each [`STEP_SECONDS`] of its run.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::sides::{Side, SideKind};
use super::{TieringArguments, in_words};
use crate::machine::drop_caches;
use crate::report::{Cell, Report, Section};
use crate::statistics::{count, mean};
use crate::suite::workloads::postgres;

/// Bytes of a row are 100: 1.5 GB.
const SCALE: &str = "100";
const STEP_SECONDS: usize = 5;

/// Second from which on the target shares are required.
const SETTLED_SECONDS: usize = 60;
/// Required share of the SSD-only rate.
const SHARE_OF_SSD: f64 = 0.8;
/// Required share of the disk-only rate.
const SHARE_OF_DISK: f64 = 1.0;

struct Course {
    side: SideKind,
    /// Transactions per second of each step.
    rates: Vec<f64>,
    written: Option<f64>,
    /// MiB of tables and of the log on the SSD and the disk at the end.
    places: String,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let Some(programs) = postgres::newest_package() else {
        eprintln!("skipped: pgbench: PostgreSQL is not installed below {}", postgres::PACKAGES);
        return Ok(());
    };
    let mut courses = Vec::new();
    for side in &arguments.sides {
        courses.push(measure(*side, arguments, &programs).with_context(|| side.name())?);
    }
    report.add(tabulate(arguments, &courses));
    report.add(judge(&courses));
    Ok(())
}

fn measure(kind: SideKind, arguments: &TieringArguments, programs: &Path) -> Result<Course> {
    let side = Side::make(kind, arguments)?;
    let directories = postgres::Directories {
        data: side.path().join("cluster"),
        log: side.ssd_directory().map(Path::to_owned),
        sockets: side.scratch().join("sockets"),
    };
    let cluster = postgres::Cluster::make(side.devices(), programs, directories)?;
    let server = cluster.start(side.devices())?;
    server.run("pgbench", &["--initialize", "--quiet", "--scale", SCALE, "postgres"])?;
    server.run("psql", &["--command", "checkpoint", "postgres"])?;
    rustix::fs::sync();
    side.throttle()?;
    drop_caches()?;
    let before = side.traffic()?;
    let clients = arguments.readers.to_string();
    let seconds = (usize::from(arguments.rounds) * 16).to_string();
    let step = STEP_SECONDS.to_string();
    let told = server
        .run("pgbench", &["--client", &clients, "--jobs", "2", "--time", &seconds, "--progress", &step, "postgres"])?;
    let rates = rates_of(&told)?;
    let written = side.written_to_ssd_mb(&before)?;
    side.unthrottle()?;
    // A server that runs renames and removes files of its log while they are looked at.
    server.stop()?;
    let place = |directory: &str| side.place_below(&side.path().join("cluster").join(directory));
    let places = match (place("base")?, place("pg_wal")?) {
        (tables, log) if tables.is_empty() && log.is_empty() => String::new(),
        (tables, log) => format!("tables {tables}, log {log}"),
    };
    eprintln!("{}: {} {places}", kind.name(), in_words(&rates));
    side.end()?;
    Ok(Course { side: kind, rates, written, places })
}

/// The rates in the progress output of pgbench: `progress: 5.0 s, 1161.2 tps, lat ...`.
fn rates_of(told: &str) -> Result<Vec<f64>> {
    let lines = told.lines().filter(|line| line.starts_with("progress:"));
    let rate = |line: &str| {
        let before = line.split(" tps").next()?;
        before.rsplit(' ').next()?.parse().ok()
    };
    let rates: Option<Vec<f64>> = lines.map(rate).collect();
    match rates {
        Some(rates) if !rates.is_empty() => Ok(rates),
        _ => bail!("pgbench tells no rates: {told}"),
    }
}

fn tabulate(arguments: &TieringArguments, courses: &[Course]) -> Section {
    let columns = ["side", "SSD written MB", "MiB on SSD/disk at the end", "transactions/s in each 5 s"];
    let title = format!("pgbench, scale {SCALE}, {} clients: SSD of 1.2 GB, disk of 5 GB", arguments.readers);
    let mut section = Section::new(title, &columns);
    for course in courses {
        section.row(vec![
            course.side.name().into(),
            Cell::optional(course.written, 0),
            place_of(course),
            in_words(&course.rates).into(),
        ]);
    }
    section
}

fn place_of(course: &Course) -> Cell {
    if course.places.is_empty() { Cell::Empty } else { course.places.clone().into() }
}

fn judge(courses: &[Course]) -> Section {
    let mut section = Section::new("against one device", &["side", "figure", "share", "target", "met"]);
    let of = |side| courses.iter().find(|course| course.side == side).map(|course| course.rates.as_slice());
    let mut add = |side: SideKind, figure: &str, share: f64, target: f64| {
        let is_met = if share >= target { "yes" } else { "no" };
        section.row(vec![
            side.name().into(),
            figure.into(),
            Cell::Number(share, 3),
            Cell::Number(target, 1),
            is_met.into(),
        ]);
    };
    let settled = SETTLED_SECONDS / STEP_SECONDS;
    for course in courses.iter().filter(|course| !matches!(course.side, SideKind::Ssd | SideKind::Disk)) {
        if let Some(ssd) = of(SideKind::Ssd).filter(|ssd| ssd.len() > settled)
            && course.rates.len() > settled
        {
            let share = mean(&course.rates[settled..]) / mean(&ssd[settled..]);
            add(course.side, "mean from the second minute on, of all on an SSD", share, SHARE_OF_SSD);
        }
        if let Some(disk) = of(SideKind::Disk) {
            let least = course.rates.iter().copied().fold(f64::INFINITY, f64::min);
            add(course.side, "least 5 s, of the mean of all on the disk", least / mean(disk), SHARE_OF_DISK);
        }
    }
    section.note(format!("{} steps in each course", count(courses.first().map_or(0, |course| course.rates.len()))));
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_out_of_what_pgbench_prints() {
        let told = "pgbench (15.14)\nstarting vacuum...end.\nprogress: 5.0 s, 1161.2 tps, lat 6.880 ms stddev 3.1, 0 failed\n\
                    progress: 10.0 s, 98.0 tps, lat 80.1 ms stddev 9.0, 0 failed\ntps = 620.1 (without initial connection time)";
        assert_eq!(rates_of(told).unwrap(), [1161.2, 98.0]);
        assert!(rates_of("nothing").is_err());
    }
}
