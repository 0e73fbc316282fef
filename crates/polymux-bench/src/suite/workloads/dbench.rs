//! dbench: the calls of a file server under office programs, recorded and replayed by several clients.

use std::process::Command;

use anyhow::{Context, Result};

use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

const PROGRAM: &str = "dbench";
const CLIENTS: &str = "4";

/// Four clients.
pub struct Dbench;

impl Workload for Dbench {
    fn name(&self) -> &'static str {
        "dbench"
    }

    fn about(&self) -> &'static str {
        "dbench with four clients for ten seconds (quick: three)"
    }

    fn ends_with(&self) -> &'static str {
        "files are synced where the replayed clients did"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::throughput("4 clients")] }
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

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?.join(format!("clients-{}", place.repetition));
        std::fs::create_dir(&directory)?;
        let seconds = place.scale.choose("3", "10");
        let mut dbench = Command::new(PROGRAM);
        dbench.arg("--directory").arg(&directory).args(["--timelimit", seconds, CLIENTS]);
        let throughput = throughput_of(&programs::run(place.devices, &mut dbench)?)?;
        std::fs::remove_dir_all(&directory)?;
        Ok(vec![throughput])
    }
}

/// Megabytes a second, of the line `Throughput 512.3 MB/sec  4 clients  4 procs  max_latency=3.0 ms`.
fn throughput_of(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("Throughput ")).with_context(|| printed.to_owned())?;
    let number = line.split(' ').next().unwrap_or_default();
    number.parse().with_context(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_is_read_out_of_what_dbench_prints() {
        let printed = "Operation      Count\nThroughput 512.25 MB/sec  4 clients  4 procs  max_latency=3.012 ms";
        assert_eq!(throughput_of(printed).unwrap(), 512.25);
        assert!(throughput_of("nothing").is_err());
    }
}
