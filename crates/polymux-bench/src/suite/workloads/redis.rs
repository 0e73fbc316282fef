//! Redis with its append-only file, which is synced after each command or once a second.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs::{self, Started};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};
use crate::throttled::Devices;

const SERVER: &str = "redis-server";
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Clients at the same time.
pub const CLIENTS: &str = "20";

/// `SET` of keys of some bytes.
pub struct Redis;

impl Workload for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn about(&self) -> &'static str {
        "SET of 20 clients of Redis with an append-only file, over a Unix socket"
    }

    fn ends_with(&self) -> &'static str {
        "the append-only file is synced after each round of commands, or once a second"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("appendfsync always"), Figure::us("appendfsync everysec")] }
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
        let directory = place.directory(Tier::First)?.join(format!("data-{}", place.repetition));
        std::fs::create_dir(&directory)?;
        // A path in the mount may be too long for a socket.
        let socket = place.devices.directory().join("redis.socket");
        let server = serve(place.devices, &directory, &socket)?;
        let mut figures = Vec::new();
        for (synced, commands) in [("always", place.scale.choose("5000", "60000")), ("everysec", "100000")] {
            ask(place.devices, &socket, &["config", "set", "appendfsync", synced])?;
            figures.push(us_each(&benchmark(place, &socket, commands)?)?);
        }
        ask(place.devices, &socket, &["shutdown", "nosave"])?;
        server.wait()?;
        std::fs::remove_dir_all(&directory)?;
        Ok(figures)
    }
}

/// Why it cannot run on this machine.
#[must_use]
pub fn obstacle() -> Option<String> {
    let all = [SERVER, "redis-cli", "redis-benchmark"];
    (!all.into_iter().all(programs::is_installed)).then(|| format!("{SERVER} is not installed (package redis-server)"))
}

/// Starts a server with its append-only file in a directory, and waits until it answers.
///
/// # Errors
/// Where it cannot be started, or does not answer.
pub fn serve(devices: &Devices, directory: &Path, socket: &Path) -> Result<Started> {
    let mut command = Command::new(SERVER);
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--unixsocket"]).arg(socket);
    command.arg("--dir").arg(directory);
    let server = Started::new(devices, &mut command)?;
    let begun = Instant::now();
    while ask(devices, socket, &["ping"]).is_err() {
        ensure!(begun.elapsed() < START_DEADLINE, "{SERVER} does not answer within {START_DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

/// Sends a command to a server with `redis-cli` and returns the output.
///
/// # Errors
/// Where the server is not reached.
pub fn ask(devices: &Devices, socket: &Path, command: &[&str]) -> Result<String> {
    programs::run(devices, Command::new("redis-cli").arg("-s").arg(socket).args(command))
}

fn benchmark(place: &Place, socket: &Path, commands: &str) -> Result<String> {
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(socket).args(["-t", "set", "-c", CLIENTS, "-n", commands, "--csv"]);
    programs::run(place.devices, &mut command)
}

/// Microseconds for each command, of the lines `"test","rps",...` and `"SET","39656.31",...`.
fn us_each(printed: &str) -> Result<f64> {
    let line = printed.lines().find(|line| line.starts_with("\"SET\"")).with_context(|| printed.to_owned())?;
    let rate: f64 =
        line.split(',').nth(1).unwrap_or_default().trim_matches('"').parse().with_context(|| line.to_owned())?;
    ensure!(rate > 0.0, "{line}");
    Ok(1e6 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_set_becomes_the_time_of_each_command() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"40000.00\",\"0.4\"\n";
        assert_eq!(us_each(printed).unwrap(), 25.0);
        assert!(us_each("\"GET\",\"1\"").is_err() && us_each("\"SET\",\"0\"").is_err());
    }
}
