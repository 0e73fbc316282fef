//! Transactions of PostgreSQL, each of which waits for the log: with a fresh cluster, and after a restart of the server.

use anyhow::{Context, Result};

use super::{grounds, postgres};
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

const CLIENTS: &str = "4";

/// Four clients of `pgbench`.
pub struct Pgbench;

impl Workload for Pgbench {
    fn name(&self) -> &'static str {
        "pgbench"
    }

    fn about(&self) -> &'static str {
        "pgbench with four clients on 300 MB (quick: 75 MB), on a fresh cluster and after a restart of the server; per transaction"
    }

    fn ends_with(&self) -> &'static str {
        "each transaction waits for the log"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("fresh"), Figure::us("after a restart")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn obstacle(&self) -> Option<String> {
        let is_missing = postgres::newest_package().is_none();
        is_missing.then(|| format!("PostgreSQL is not installed below {} (package postgresql)", postgres::PACKAGES))
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let programs = postgres::newest_package().context("PostgreSQL is not installed")?;
        let data = place.directory(Tier::First)?.join(format!("cluster-{}", place.repetition));
        // A path in the mount may be too long for a socket.
        let sockets = place.devices.directory().join("postgres");
        if sockets.exists() {
            // A run on another side failed.
            std::fs::remove_dir_all(&sockets)?;
        }
        let directories = postgres::Directories { data: data.clone(), log: None, sockets: sockets.clone() };
        let cluster = postgres::Cluster::make(place.devices, &programs, directories)?;
        let server = cluster.start(place.devices)?;
        let scale = place.scale.choose("5", "20");
        server.run("pgbench", &["--initialize", "--quiet", "--scale", scale, "postgres"])?;
        server.run("psql", &["--command", "checkpoint", "postgres"])?;
        let seconds = place.scale.choose("3", "10");
        let arguments = ["--client", CLIENTS, "--jobs", "2", "--time", seconds, "postgres"];
        let fresh = us_each(&server.run("pgbench", &arguments)?)?;
        server.stop()?;
        let server = cluster.start(place.devices)?;
        let restarted = us_each(&server.run("pgbench", &arguments)?)?;
        server.stop()?;
        std::fs::remove_dir_all(&data)?;
        std::fs::remove_dir_all(&sockets)?;
        Ok(vec![fresh, restarted])
    }
}

/// Microseconds for each transaction, of the line `tps = 620.1 (without initial connection time)`.
///
/// # Errors
/// Where there is no such line.
pub fn us_each(printed: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("tps = ")).with_context(|| printed.to_owned())?;
    let rate: f64 = line.split(' ').next().unwrap_or_default().parse().with_context(|| line.to_owned())?;
    anyhow::ensure!(rate > 0.0, "{line}");
    Ok(1e6 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transaction_is_read_out_of_what_pgbench_prints() {
        let printed = "pgbench (15.14)\nlatency average = 1.0 ms\ntps = 4000.0 (without initial connection time)";
        assert_eq!(us_each(printed).unwrap(), 250.0);
        assert!(us_each("nothing").is_err() && us_each("tps = 0 (without)").is_err());
    }
}
