//! Polymux through a plain mount: the real program, with a volume of a tier on each device.
//!
//! Invariants:
//! * Everything is as `polymux create` makes it, but for the path that is to be measured, which is written into the
//!   configuration, and rules that say which directory belongs to which tier where there are two.
//! * A measurement named after a path has used that path: requests ([`check`]) and bytes ([`check_way`]).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::suite::ground::{FIRST, SECOND};
use crate::suite::programs;
use crate::throttled::Devices;

/// Name of the volume.
const VOLUME: &str = "bench";

/// Which way the bytes of an open file go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// As Polymux chooses.
    Auto,
    /// Through the daemon, with the page cache.
    Cached,
    /// From the kernel to the object, wherever Polymux grants it.
    Passthrough,
    /// Through the daemon, and the kernel keeps no pages.
    Direct,
    /// Through the daemon, and the kernel collects writes.
    WriteBack,
}

/// Which way requests of the kernel reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// As Polymux chooses.
    Auto,
    /// `/dev/fuse`.
    Classic,
    /// FUSE over `io_uring`.
    IoUring,
}

/// Whether files have extended attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtendedAttributes {
    /// As Polymux comes.
    #[default]
    On,
    /// As mergerfs with its settings for speed.
    Off,
}

/// One path through Polymux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Of bytes.
    pub mode: Mode,
    /// Of requests.
    pub transport: Transport,
    /// Whether there are such at all.
    #[serde(default)]
    pub extended_attributes: ExtendedAttributes,
}

/// A choice as the command line spells it.
pub(crate) fn word<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Route {
    /// With extended attributes.
    #[must_use]
    pub const fn new(mode: Mode, transport: Transport) -> Self {
        Self { mode, transport, extended_attributes: ExtendedAttributes::On }
    }

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> String {
        let mut name = "polymux".to_owned();
        if self.mode != Mode::Auto {
            let _ = write!(name, " {}", word(self.mode));
        }
        if self.transport != Transport::Auto {
            let _ = write!(name, " {}", word(self.transport));
        }
        if self.extended_attributes == ExtendedAttributes::Off {
            name.push_str(" no-xattr");
        }
        name
    }

    /// Lines of `[options]` that force it.
    fn options(self) -> String {
        let mut lines = match self.mode {
            Mode::Auto => String::new(),
            Mode::Passthrough => "io = \"passthrough\"\n".to_owned(),
            Mode::Cached => "passthrough = \"off\"\n".to_owned(),
            Mode::Direct => "passthrough = \"off\"\npage_cache = \"off\"\n".to_owned(),
            Mode::WriteBack => "io = \"write-back\"\n".to_owned(),
        };
        if self.transport != Transport::Auto {
            let _ = writeln!(lines, "transport = \"{}\"", word(self.transport));
        }
        if self.extended_attributes == ExtendedAttributes::Off {
            lines.push_str("extended_attributes = \"off\"\n");
        }
        lines
    }
}

fn command(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("POLYMUX_CONFIG_DIR", home.join("config")).env("POLYMUX_RUNTIME_DIR", home.join("run"));
    command
}

/// Rules by which a directory belongs to a tier.
fn rules() -> String {
    let rule = |name| format!("\n[[rule]]\npath = \"{name}/**\"\ntiers = [\"{name}\"]\n");
    rule(FIRST) + &rule(SECOND)
}

/// Makes a volume whose configuration forces a path.
///
/// # Errors
/// Where it cannot be made.
pub fn create(program: &Path, home: &Path, branches: &[PathBuf], route: Route) -> Result<()> {
    let options = route.options();
    let mut command = command(program, home);
    command.args(["create", VOLUME]);
    for (name, branch) in [FIRST, SECOND].iter().zip(branches) {
        command.arg("--tier").arg(format!("{name}={}", branch.display()));
    }
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(output.status.success(), "polymux create: {}", String::from_utf8_lossy(&output.stderr).trim());
    let path = home.join("config").join(format!("{VOLUME}.toml"));
    let mut text = fs::read_to_string(&path)?;
    if branches.len() > 1 {
        text.push_str(&rules());
    }
    if !options.is_empty() {
        let _ = write!(text, "\n[options]\n{options}\n");
    }
    Ok(fs::write(path, text)?)
}

/// The command that serves it in the foreground.
#[must_use]
pub fn mount(program: &Path, home: &Path, mount_point: &Path) -> Command {
    let mut command = command(program, home);
    command.args(["mount", "--foreground", VOLUME]).arg(mount_point);
    command
}

/// The command that unmounts it.
#[must_use]
pub fn unmount(program: &Path, home: &Path, mount_point: &Path) -> Command {
    let mut command = command(program, home);
    command.arg("umount").arg(mount_point);
    command
}

/// Asks the mounted volume whether requests arrive in the way that was asked for.
///
/// # Errors
/// Where they do not: the figures would have the wrong name.
pub fn check(devices: &Devices, program: &Path, home: &Path, route: Route) -> Result<()> {
    let told = programs::run(devices, command(program, home).args(["status", "--json", VOLUME]))?;
    let told: Value = serde_json::from_str(&told)?;
    let used = transport_in(&told);
    ensure!(
        is_as_asked(route.transport, used),
        "{} was asked for, and requests arrive over {used}",
        word(route.transport)
    );
    Ok(())
}

/// How requests arrive, in the answer of `status --json`; a program that does not say so has `/dev/fuse` only.
fn transport_in(told: &Value) -> &str {
    let status = told.get(0).unwrap_or(told);
    status["transport"].as_str().unwrap_or("/dev/fuse")
}

fn is_as_asked(asked: Transport, used: &str) -> bool {
    match asked {
        Transport::Auto => true,
        Transport::Classic => !used.contains("uring"),
        Transport::IoUring => used.contains("uring"),
    }
}

/// Moves the second half of a file to the second tier, and lets nothing move after that.
///
/// # Errors
/// Where it is not on both tiers afterwards.
pub fn split(devices: &Devices, program: &Path, home: &Path, file: &Path, bytes: u64) -> Result<()> {
    let range = format!("{}MiB-{}MiB", bytes >> 21, bytes >> 20);
    // Another workload may have stopped the moves.
    programs::run(devices, command(program, home).args(["resume", VOLUME]))?;
    let mut moving = command(program, home);
    moving.args(["migrate", "--wait", "--to", SECOND, "--range", &range]).arg(file);
    programs::run(devices, &mut moving)?;
    programs::run(devices, command(program, home).args(["pause", VOLUME]))?;
    let told = programs::run(devices, command(program, home).args(["where", "--json"]).arg(file))?;
    let told: Value = serde_json::from_str(&told)?;
    ensure!(tiers_in(&told) == 2, "the file is on {} of two tiers: {told}", tiers_in(&told));
    Ok(())
}

/// Asks which way the bytes of a closed file will go.
///
/// # Errors
/// Where that is not the way that was asked for: the figures would have the wrong name.
pub fn check_way(devices: &Devices, program: &Path, home: &Path, file: &Path, route: Route) -> Result<()> {
    let told = programs::run(devices, command(program, home).args(["where", "--json"]).arg(file))?;
    let told: Value = serde_json::from_str(&told)?;
    let way = told["io"].as_str().unwrap_or("nothing is said");
    ensure!(is_way(route.mode, way), "{}: {way}", route.name());
    Ok(())
}

fn is_way(mode: Mode, told: &str) -> bool {
    let is_passed_through = told.starts_with("passed through");
    match mode {
        Mode::Passthrough => is_passed_through,
        Mode::Cached | Mode::Direct => !is_passed_through,
        Mode::Auto | Mode::WriteBack => told.contains("collects writes"),
    }
}

/// Tiers that hold bytes of a file, in the answer of `where --json`.
fn tiers_in(told: &Value) -> usize {
    let tiers = told["tiers"].as_array().map_or(&[][..], Vec::as_slice);
    tiers.iter().filter(|tier| tier["bytes_allocated"].as_u64().is_some_and(|bytes| bytes > 0)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_forced_by_the_configuration_and_told_by_its_name() {
        let route = Route::new(Mode::Cached, Transport::IoUring);
        assert_eq!(route.options(), "passthrough = \"off\"\ntransport = \"io-uring\"\n");
        assert_eq!(Route::new(Mode::Auto, Transport::Auto).options(), "");
        assert_eq!(route.name(), "polymux cached io-uring");
        let route = Route { extended_attributes: ExtendedAttributes::Off, ..route };
        assert!(route.options().ends_with("extended_attributes = \"off\"\n"));
        assert_eq!(route.name(), "polymux cached io-uring no-xattr");
    }

    #[test]
    fn bytes_that_go_another_way_are_noticed() {
        assert!(is_way(Mode::Auto, "through the daemon when it is opened: the kernel collects writes"));
        assert!(is_way(Mode::Passthrough, "passed through to its object when it is opened"));
        assert!(!is_way(Mode::Passthrough, "through the daemon when it is opened: its tier has too little room"));
        assert!(!is_way(Mode::Cached, "passed through to its object, for reading"));
        assert!(is_way(Mode::Direct, "through the daemon when it is opened: passthrough is off for it"));
    }

    #[test]
    fn requests_that_arrive_in_another_way_are_noticed() {
        let told = |name: &str| serde_json::json!([{ "transport": name }]);
        assert!(is_as_asked(Transport::IoUring, transport_in(&told("io_uring, 2 queues"))));
        assert!(!is_as_asked(Transport::IoUring, transport_in(&told("classic /dev/fuse"))));
        assert!(!is_as_asked(Transport::IoUring, transport_in(&serde_json::json!({ "name": "bench" }))));
        assert!(is_as_asked(Transport::Classic, transport_in(&told("classic /dev/fuse"))));
    }

    #[test]
    fn a_file_is_split_when_two_tiers_hold_bytes_of_it() {
        let told =
            |second: u64| serde_json::json!({ "tiers": [{ "bytes_allocated": 5 }, { "bytes_allocated": second }] });
        assert_eq!((tiers_in(&told(7)), tiers_in(&told(0)), tiers_in(&Value::Null)), (2, 1, 0));
    }
}
