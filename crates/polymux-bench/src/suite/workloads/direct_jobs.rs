//! Reads and writes of 4 KiB past the page cache by `fio`: one job and four, with system calls and with `io_uring`, as databases that keep pages themselves.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{access, grounds};
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

const PROGRAM: &str = "fio";

/// Requests that each job with `io_uring` has under way.
const REQUESTS_UNDER_WAY: &str = "8";

/// Random direct reads and writes of a file that is there.
pub struct DirectJobs;

/// One run of `fio`.
struct Run {
    figure: Figure,
    direction: Direction,
    engine: &'static str,
    jobs: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    /// As `fio` is asked for it.
    const fn pattern(self) -> &'static str {
        match self {
            Self::Read => "randread",
            Self::Write => "randwrite",
        }
    }

    /// As it stands in the output of `fio`.
    const fn key(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

const fn run(name: &'static str, direction: Direction, engine: &'static str, jobs: &'static str) -> Run {
    Run { figure: Figure::us(name), direction, engine, jobs }
}

const RUNS: [Run; 8] = [
    run("read, 1 job", Direction::Read, "psync", "1"),
    run("read, 4 jobs", Direction::Read, "psync", "4"),
    run("read, 1 job, io_uring", Direction::Read, "io_uring", "1"),
    run("read, 4 jobs, io_uring", Direction::Read, "io_uring", "4"),
    run("write, 1 job", Direction::Write, "psync", "1"),
    run("write, 4 jobs", Direction::Write, "psync", "4"),
    run("write, 1 job, io_uring", Direction::Write, "io_uring", "1"),
    run("write, 4 jobs, io_uring", Direction::Write, "io_uring", "4"),
];

static FIGURES: [Figure; RUNS.len()] = {
    let mut figures = [RUNS[0].figure; RUNS.len()];
    let mut at = 1;
    while at < RUNS.len() {
        figures[at] = RUNS[at].figure;
        at += 1;
    }
    figures
};

fn bytes(scale: Scale) -> u64 {
    scale.choose(64 << 20, 256 << 20)
}

impl Workload for DirectJobs {
    fn name(&self) -> &'static str {
        "direct-jobs"
    }

    fn about(&self) -> &'static str {
        "random reads and writes of 4 KiB with O_DIRECT by fio, one job and four, psync and io_uring (eight requests a job); per request"
    }

    fn ends_with(&self) -> &'static str {
        "nothing is synced"
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn obstacle(&self) -> Option<String> {
        programs::missing([PROGRAM])
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        access::prepare_file(place, Tier::First, bytes(place.scale))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let path = place.directory(Tier::First)?.join("file");
        let us_of = |run: &Run| us_each(&programs::run(place.devices, &mut fio(&path, run, place))?, run.direction);
        RUNS.iter().map(us_of).collect()
    }
}

fn fio(file: &Path, run: &Run, place: &Place) -> Command {
    let mut command = Command::new(PROGRAM);
    let seed = place.repetition + 1;
    command.arg("--name=direct").arg(format!("--filename={}", file.display()));
    command.args(["--bs=4k", "--direct=1", "--group_reporting", "--time_based", "--output-format=json"]);
    command.args([format!("--rw={}", run.direction.pattern()), format!("--ioengine={}", run.engine)]);
    command.args([format!("--numjobs={}", run.jobs), format!("--randseed={seed}")]);
    command.arg(format!("--size={}", bytes(place.scale)));
    command.arg(format!("--runtime={}", place.scale.choose("500ms", "2s")));
    if run.engine == "io_uring" {
        command.arg(format!("--iodepth={REQUESTS_UNDER_WAY}"));
    }
    command
}

/// Microseconds for each request of all jobs together.
fn us_each(printed: &str, direction: Direction) -> Result<f64> {
    // Warnings may come before the object.
    let start = printed.find('{').with_context(|| printed.to_owned())?;
    let told: Value = serde_json::from_str(&printed[start..])?;
    let rate =
        told["jobs"][0][direction.key()]["iops"].as_f64().context("fio does not say how many requests it made")?;
    ensure!(rate > 0.0, "fio made no request");
    Ok(1e6 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_all_jobs_becomes_the_time_of_each_request() {
        let printed = "note: both\n{\"jobs\": [{\"read\": {\"iops\": 50000.0}, \"write\": {\"iops\": 0.0}}]}";
        assert_eq!(us_each(printed, Direction::Read).unwrap(), 20.0);
        assert!(us_each(printed, Direction::Write).is_err() && us_each("fio: no", Direction::Read).is_err());
    }

    #[test]
    fn figures_stand_in_the_order_of_the_runs() {
        assert!(RUNS.iter().zip(&FIGURES).all(|(run, figure)| run.figure == *figure));
    }
}
