//! `polymux-bench suite`: the same work on the native file system, on mergerfs and on Polymux, on devices of known speed.
//!
//! Invariants:
//! * All sides stand on the same devices at the same time, and take turns in every repetition.
//! * A claim is the median of the ratios of the repetitions of one run; the targets stand in one table
//!   ([`targets`]), and a missing measurement is reported as such.
//! * Nothing stays behind, after an error, a panic, SIGINT and SIGTERM: servers go before the devices they stand on.
//!
//! Data flows from the command line ([`arguments`], [`routes`]) through [`runner`], which lets each of [`workloads`] work on
//! the [`sides`] of a [`stand`], into one [`outcome`]; from there into JSON, [`table`]s, [`chart`]s and the [`document`].

pub mod arguments;
pub mod chart;
pub mod document;
pub mod durable;
pub mod figure;
pub mod ground;
pub mod outcome;
pub mod programs;
pub mod routes;
pub mod runner;
pub mod server;
pub mod sides;
pub mod stand;
pub mod table;
pub mod targets;
pub mod workload;
pub mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use self::arguments::{Placement, SuiteArguments};
use self::outcome::{Machine, Outcome, Run, SCHEMA, SCHEMA_VERSION, Skipped};
use self::routes::{BuildsCompared, Choice};
use self::runner::{Found, Plan};
use self::sides::{Builds, Settings, Tier, mergerfs};
use self::workload::Workload;
use crate::{machine, throttled};

/// Runs the suite.
///
/// # Errors
/// Where it cannot run at all. A side that fails and a target that is missed are results.
pub fn run(arguments: &SuiteArguments) -> Result<()> {
    let workloads = chosen(arguments)?;
    if arguments.list {
        workloads.iter().for_each(|workload| println!("{:16} {}", workload.name(), workload.about()));
        return Ok(());
    }
    if let Some(reason) = throttled::reason_to_skip() {
        bail!("nothing can be measured here: {reason}");
    }
    let begun = Instant::now();
    let load_before = machine::load();
    let other = arguments.against.as_deref().map(|path| program(Some(path))).transpose()?;
    let builds = Builds { measured: program(arguments.polymux.as_deref())?, other };
    let compared = if builds.other.is_some() { BuildsCompared::Two } else { BuildsCompared::One };
    let (peers, missing) = peers();
    let choice = Choice::new(&arguments.mode, &arguments.transport, peers, compared);
    let skipped: Vec<Skipped> = missing.into_iter().filter(|_| compared == BuildsCompared::One).collect();
    skipped.iter().for_each(|skipped| eprintln!("skipped: {}: {}", skipped.what, skipped.reason));
    let tree = arguments.tree.clone().or_else(runner::usual_tree);
    let repetitions = arguments.repetitions();
    let (scale, file_system) = (arguments.scale(), arguments.file_system);
    let plan = Plan { workloads, choice, scale, repetitions, file_system, builds, tree };
    let machine = facts(&plan.builds.measured);
    let outcome_of = |mut found: Found| -> Result<Outcome> {
        found.skipped.splice(..0, skipped.iter().cloned());
        Ok(Outcome {
            schema: SCHEMA.to_owned(),
            schema_version: SCHEMA_VERSION,
            run: Run {
                ended_unix_s: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
                length_s: begun.elapsed().as_secs_f64(),
                scale: plan.scale.choose("quick", "full").to_owned(),
                repetitions,
                tree: found.tree,
            },
            machine: Machine { load: [load_before, machine::load()], ..machine.clone() },
            devices: found.devices,
            verdicts: if compared == BuildsCompared::One { targets::judge(&found.measurements) } else { Vec::new() },
            measurements: found.measurements,
            skipped: found.skipped,
        })
    };
    let found = plan.run(|so_far| write_json(&outcome_of(so_far.clone())?, arguments))?;
    let outcome = outcome_of(found)?;
    write_json(&outcome, arguments)?;
    report(&outcome, arguments)
}

/// The workloads that were asked for.
fn chosen(arguments: &SuiteArguments) -> Result<Vec<&'static dyn Workload>> {
    let known = |name: &String| workloads::ALL.iter().any(|workload| workload.name() == name);
    if let Some(unknown) = arguments.only.iter().find(|name| !known(name)) {
        bail!("there is no workload `{unknown}`; --list names them");
    }
    let is_asked = |workload: &&&dyn Workload| {
        let placement = if workload.tier() == Tier::Split { Placement::Split } else { Placement::One };
        (arguments.only.is_empty() || arguments.only.iter().any(|name| name == workload.name()))
            && arguments.placement.is_none_or(|asked| asked == placement)
    };
    let chosen: Vec<&'static dyn Workload> = workloads::ALL.iter().filter(is_asked).copied().collect();
    ensure!(!chosen.is_empty(), "no workload is left to run");
    Ok(chosen)
}

/// The program to measure: the named one, or the one that was built beside this one.
///
/// # Errors
/// Where it is not there.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("polymux"),
    };
    ensure!(
        path.is_file(),
        "{} is not there; build it (`cargo build --release -p polymux`) or name it with --polymux",
        path.display()
    );
    Ok(std::path::absolute(path)?)
}

/// The program to measure a policy with: `polymux`, or for a policy that exists for comparison the lab, which is named or lies beside it.
///
/// # Errors
/// Where the lab is needed and not there.
pub fn program_with(policy: &str, polymux: &Path, lab: Option<&Path>) -> Result<PathBuf> {
    if !polymux_lab::ALL.iter().any(|kind| kind.name() == policy) {
        return Ok(polymux.to_owned());
    }
    let path = lab.map_or_else(|| polymux.with_file_name("polymux-lab"), Path::to_owned);
    ensure!(
        path.is_file(),
        "only the program polymux-lab has the policy {policy}, and {} is not there; build it (`cargo build --release -p polymux-lab`) \
         or name it with --lab",
        path.display()
    );
    Ok(std::path::absolute(path)?)
}

fn peers() -> (&'static [Settings], Option<Skipped>) {
    match mergerfs::obstacle() {
        None => (&[Settings::Default, Settings::Fast, Settings::WriteBack], None),
        Some(reason) => (&[], Some(Skipped { what: "mergerfs".to_owned(), reason: reason.to_owned() })),
    }
}

/// Facts that do not change while the suite runs.
fn facts(polymux: &Path) -> Machine {
    let mut versions = BTreeMap::new();
    let programs = [
        ("polymux", polymux, "--version"),
        ("mergerfs", Path::new("mergerfs"), "--version"),
        ("e2fsprogs", Path::new("mkfs.ext4"), "-V"),
        ("xfsprogs", Path::new("mkfs.xfs"), "-V"),
        ("tar", Path::new("tar"), "--version"),
        ("git", Path::new("git"), "--version"),
        ("python", Path::new("python3"), "--version"),
    ];
    for (name, program, argument) in programs {
        if let Some(version) = programs::version(program, argument) {
            versions.insert(name.to_owned(), version);
        }
    }
    Machine {
        processor: machine::processor(),
        processors: machine::processors(),
        memory_mib: machine::memory_mib().unwrap_or_default(),
        kernel: machine::kernel(),
        load: [0.0; 2],
        controller: throttled::controller::version().unwrap_or_default(),
        build: machine::build().to_owned(),
        versions,
    }
}

fn write_json(outcome: &Outcome, arguments: &SuiteArguments) -> Result<()> {
    let Some(path) = &arguments.json else { return Ok(()) };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, serde_json::to_string_pretty(outcome)? + "\n").with_context(|| path.display().to_string())
}

fn report(outcome: &Outcome, arguments: &SuiteArguments) -> Result<()> {
    println!("{}", table::machine(outcome).text());
    for (_, section) in table::workloads(outcome) {
        println!("{}", section.text());
    }
    if let Some(section) = table::skipped(outcome) {
        println!("{}", section.text());
    }
    if !outcome.verdicts.is_empty() {
        println!("{}", table::targets(outcome).text());
    }
    if let Some(section) = table::builds(outcome) {
        println!("{}", section.text());
    }
    if let Some(directory) = &arguments.svg {
        chart::draw_all(outcome, directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_exist_for_comparison_are_measured_with_the_lab_and_need_it() {
        let directory = tempfile::tempdir().unwrap();
        let polymux = directory.path().join("polymux");
        assert_eq!(program_with("spread", &polymux, None).unwrap(), polymux);
        assert_eq!(program_with("", &polymux, None).unwrap(), polymux);
        let error = program_with("poly-climb", &polymux, None).unwrap_err().to_string();
        assert!(error.contains("polymux-lab") && error.contains("--lab") && error.contains("poly-climb"), "{error}");
        let (beside, named) = (directory.path().join("polymux-lab"), directory.path().join("named"));
        for lab in [&beside, &named] {
            std::fs::write(lab, "").unwrap();
        }
        assert_eq!(program_with("poly-climb", &polymux, None).unwrap(), beside);
        assert_eq!(program_with("promote-always", &polymux, Some(&named)).unwrap(), named);
    }
}
