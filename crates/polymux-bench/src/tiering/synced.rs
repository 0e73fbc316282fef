//! Programs that wait for small writes (mail, SQLite, Redis) on a pool whose SSD is full of files that are used no more.
//!
//! Method:
//! * Cold files are written first, then the program's data. When the devices are at rest and have their limits, more cold files fill the
//!   SSD, and the program begins at once: its synced writes have to take their space from them.
//! * Nothing is made faster by giving up durability: each message, each commit and each command is synced before the next of its client.
//! * Each program has devices of its own. A rate is completed operations over the wall clock of one round.

mod databases;
mod mail;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::databases::{Redis, Sqlite};
use self::mail::{Mailboxes, Queue};
use super::hot_set::{ROUND_SECONDS, write_files, write_files_in};
use super::sides::{Side, SideKind};
use super::{TieringArguments, in_words};
use crate::machine::drop_caches;
use crate::report::{Cell, Report, Section};
use crate::statistics::mean;

/// Files of 32 MiB that are cold: 1.5 GiB,
const COLD_FILES: usize = 48;
/// and those that come just before the program: 512 MiB.
const LATE_COLD_FILES: usize = 16;
/// Devices that did nothing for so long are at rest,
const AT_REST: Duration = Duration::from_secs(2);
/// which they have to be within this time.
const REST_DEADLINE: Duration = Duration::from_secs(120);

/// A program that waits for its writes.
trait Program {
    fn name(&self) -> &'static str;

    /// Share of the SSD-only rate that is required from the middle of the rounds on.
    fn target(&self) -> f64;

    /// Why it cannot run on this machine.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// Makes its data, in a directory of its own, without limits of the devices.
    ///
    /// # Errors
    /// Whatever the file system or the program reports.
    fn prepare(&self, side: &Side, directory: &Path) -> Result<()>;

    /// Runs it for `rounds` rounds; returns the operations per second in each.
    ///
    /// # Errors
    /// Whatever the file system or the program reports.
    fn run(&self, side: &Side, directory: &Path, rounds: u16) -> Result<Vec<f64>>;
}

struct Course {
    side: SideKind,
    program: &'static str,
    target: f64,
    rates: Vec<f64>,
    written: Option<f64>,
    places: String,
}

impl Course {
    fn settled(&self) -> f64 {
        mean(&self.rates[self.rates.len() / 2..])
    }
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let all: [&dyn Program; 4] = [&Queue, &Mailboxes, &Sqlite, &Redis];
    let is_asked_for = |program: &dyn Program| {
        arguments.programs.is_empty() || arguments.programs.iter().any(|asked| is_named(program, asked))
    };
    let unknown = arguments.programs.iter().find(|asked| !all.iter().any(|program| is_named(*program, asked)));
    ensure!(unknown.is_none(), "no program is called {}", unknown.map_or("", String::as_str));
    let mut programs = Vec::new();
    for program in all.into_iter().filter(|program| is_asked_for(*program)) {
        match program.obstacle() {
            Some(obstacle) => eprintln!("skipped: {}: {obstacle}", program.name()),
            None => programs.push(program),
        }
    }
    let mut courses = Vec::new();
    for side in &arguments.sides {
        for program in &programs {
            let course = measure(*side, arguments, *program);
            courses.push(course.with_context(|| format!("{}: {}", side.name(), program.name()))?);
        }
    }
    report.add(tabulate(&courses));
    Ok(())
}

/// Whether the name of a program begins like this.
fn is_named(program: &dyn Program, asked: &str) -> bool {
    program.name().to_lowercase().starts_with(&asked.to_lowercase())
}

fn measure(kind: SideKind, arguments: &TieringArguments, program: &dyn Program) -> Result<Course> {
    let side = Side::make(kind, arguments)?;
    write_files(&side, COLD_FILES)?;
    let directory = side.path().join("program");
    fs::create_dir(&directory)?;
    program.prepare(&side, &directory)?;
    rustix::fs::sync();
    wait_for_rest(&side)?;
    side.throttle()?;
    write_files_in(&side.path().join("late"), LATE_COLD_FILES)?;
    drop_caches()?;
    let before = side.traffic()?;
    let rates = program.run(&side, &directory, arguments.rounds)?;
    let written = side.written_to_ssd_mb(&before)?;
    let places = side.place_below(&directory)?;
    eprintln!("{}: {}: {} {places}", kind.name(), program.name(), in_words(&rates));
    side.end()?;
    Ok(Course { side: kind, program: program.name(), target: program.target(), rates, written, places })
}

fn wait_for_rest(side: &Side) -> Result<()> {
    let begun = Instant::now();
    loop {
        let before = side.traffic()?;
        thread::sleep(AT_REST);
        if side.traffic()? == before {
            return Ok(());
        }
        ensure!(begun.elapsed() < REST_DEADLINE, "the devices are not at rest after {REST_DEADLINE:?}");
    }
}

/// Operations per second in each round; `done` returns the number of operations completed so far.
fn rates_of_rounds(rounds: u16, mut done: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let mut rates = Vec::new();
    let (mut before, mut since) = (done()?, Instant::now());
    for _ in 0..rounds {
        thread::sleep(Duration::from_secs(ROUND_SECONDS as u64).saturating_sub(since.elapsed()));
        let now = done()?;
        rates.push((now - before) / since.elapsed().as_secs_f64());
        (before, since) = (now, Instant::now());
    }
    Ok(rates)
}

fn tabulate(courses: &[Course]) -> Section {
    let columns = [
        "program",
        "side",
        "done/s in each round of 8 s",
        "SSD written MB",
        "MiB of large files on SSD/disk",
        "second half",
        "of SSD",
        "target",
        "met",
    ];
    let mut section =
        Section::new("Small writes that are waited for: SSD of 1.2 GB, full of cold files, disk of 5 GB", &columns);
    for course in courses {
        let best = courses.iter().find(|other| other.program == course.program && other.side == SideKind::Ssd);
        let share = best.map(|best| course.settled() / best.settled());
        let is_met = share.map_or("", |share| if share >= course.target { "yes" } else { "no" });
        section.row(vec![
            course.program.into(),
            course.side.name().into(),
            in_words(&course.rates).into(),
            Cell::optional(course.written, 0),
            course.places.clone().into(),
            Cell::Number(course.settled(), 0),
            Cell::optional(share, 3),
            Cell::Number(course.target, 1),
            is_met.into(),
        ]);
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(side: SideKind, rates: &[f64]) -> Course {
        let (written, places) = (Some(12.0), "1/2".to_owned());
        Course { side, program: "mail", target: 0.9, rates: rates.to_vec(), written, places }
    }

    #[test]
    fn the_second_half_of_each_course_is_compared_with_the_ssd_and_fills_every_column() {
        let courses =
            [course(SideKind::Ssd, &[1.0, 1.0, 100.0, 100.0]), course(SideKind::Polymux, &[1.0, 1.0, 80.0, 100.0])];
        let text = tabulate(&courses).text();
        let line = text.lines().find(|line| line.contains("1 1 80 100")).expect("a row of it");
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells, ["mail", "polymux", "1 1 80 100", "12", "1/2", "90", "0.900", "0.9", "yes"]);
    }
}
