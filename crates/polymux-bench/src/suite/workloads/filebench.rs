//! filebench: threads of a mail, file, web and proxy server, as its personalities describe them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::grounds;
use crate::suite::figure::Figure;
use crate::suite::ground::Ground;
use crate::suite::programs;
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};

const PROGRAM: &str = "filebench";
/// Its processes share memory at one address, which they do not get where the kernel chooses addresses at random.
const WITH_FIXED_ADDRESSES: &str = "setarch";

/// One of its personalities.
struct Personality {
    /// The name of the figure and of the file.
    name: &'static str,
    /// Files in its set; `None` for as many as the personality has.
    files: Option<u32>,
}

/// A file server has 10,000 files of 128 KiB, which are too many for a device in memory. Of 1,000 its 50 threads find none to make at times, and end.
const PERSONALITIES: [Personality; 4] = [
    Personality { name: "varmail", files: None },
    Personality { name: "fileserver", files: Some(4_000) },
    Personality { name: "webserver", files: None },
    Personality { name: "webproxy", files: None },
];

/// All of them, one after the other.
pub struct Filebench;

impl Workload for Filebench {
    fn name(&self) -> &'static str {
        PROGRAM
    }

    fn about(&self) -> &'static str {
        "filebench with its personalities for servers, for ten seconds each (quick: three); the file server with 4,000 files"
    }

    fn ends_with(&self) -> &'static str {
        "files are synced where the personality does (varmail)"
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("varmail"), Figure::us("fileserver"), Figure::us("webserver"), Figure::us("webproxy")] }
    }

    fn grounds(&self, scale: Scale) -> Vec<Ground> {
        grounds::in_memory(Tier::First, scale)
    }

    fn routes(&self) -> Routes {
        Routes::Programs
    }

    fn obstacle(&self) -> Option<String> {
        programs::missing([PROGRAM, WITH_FIXED_ADDRESSES])
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let installed = personalities()?;
        let directory = place.directory(Tier::First)?;
        let measure = |personality: &Personality| {
            let files = directory.join(format!("{}-{}", personality.name, place.repetition));
            std::fs::create_dir(&files)?;
            let text = std::fs::read_to_string(installed.join(format!("{}.f", personality.name)))?;
            let script = directory.join("personality.f");
            let seconds = place.scale.choose(3, 10);
            std::fs::write(&script, script_of(&text, &files, personality.files, seconds)?)?;
            let mut filebench = Command::new(WITH_FIXED_ADDRESSES);
            filebench.args(["--addr-no-randomize", PROGRAM, "-f"]).arg(&script);
            let printed = programs::run(place.devices, &mut filebench)?;
            ensure!(seconds_of(&printed)? + 1 >= seconds, "{} ended early: {printed}", personality.name);
            let rate = rate_of(&printed)?;
            std::fs::remove_dir_all(&files)?;
            std::fs::remove_file(&script)?;
            Ok(1e6 / rate)
        };
        PERSONALITIES.iter().map(measure).collect()
    }
}

/// Where the personalities are, which are installed beside the program.
fn personalities() -> Result<PathBuf> {
    let program = programs::path_of(PROGRAM).context("filebench is not installed")?;
    let prefix = program.parent().and_then(Path::parent).context("the directory above the program's")?;
    let directory = prefix.join("share/filebench/workloads");
    ensure!(directory.is_dir(), "{} is missing: filebench has its personalities there", directory.display());
    Ok(directory)
}

/// A personality that works in a directory, with a number of files of its own, and ends by itself.
fn script_of(personality: &str, directory: &Path, files: Option<u32>, seconds: u32) -> Result<String> {
    let mut has_directory = false;
    let mut script = String::new();
    for line in personality.lines() {
        match (line.trim_start(), files) {
            (line, _) if line.starts_with("set $dir=") => {
                has_directory = true;
                writeln!(script, "set $dir={}", directory.display())?;
            }
            (line, Some(files)) if line.starts_with("set $nfiles=") => writeln!(script, "set $nfiles={files}")?,
            (line, _) if line == "run" || line.starts_with("run ") => {}
            _ => writeln!(script, "{line}")?,
        }
    }
    ensure!(has_directory, "the personality has no line `set $dir=`");
    writeln!(script, "run {seconds}")?;
    Ok(script)
}

/// How long it ran, of a line such as `6.282: Run took 5 seconds...`: a run that finds no file to work on ends early, and reports a rate all the same.
fn seconds_of(printed: &str) -> Result<u32> {
    let took = printed.lines().find_map(|line| line.split_once("Run took ")).with_context(|| printed.to_owned())?;
    took.1.split(' ').next().unwrap_or_default().parse().with_context(|| took.1.to_owned())
}

/// Operations a second, of a line such as `4.005: IO Summary: 53541 ops 5353.612 ops/s 486/486 rd/wr 28.5mb/s 0.186ms/op`.
fn rate_of(printed: &str) -> Result<f64> {
    let summary = printed.lines().find(|line| line.contains("IO Summary:")).with_context(|| printed.to_owned())?;
    let words: Vec<&str> = summary.split_whitespace().collect();
    let unit = words.iter().position(|word| word.starts_with("ops/s")).with_context(|| summary.to_owned())?;
    let number = unit.checked_sub(1).and_then(|number| words.get(number)).with_context(|| summary.to_owned())?;
    let rate: f64 = number.parse().with_context(|| summary.to_owned())?;
    ensure!(rate > 0.0, "filebench did nothing: {summary}");
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_out_of_what_filebench_prints() {
        let printed = "2.1: Run took 3 seconds...\n\
                       4.005: IO Summary: 53541 ops 5353.612 ops/s 486/486 rd/wr  28.5mb/s 0.186ms/op\n4.005: Shutting down processes";
        assert_eq!(rate_of(printed).unwrap(), 5353.612);
        assert_eq!(seconds_of(printed).unwrap(), 3);
        assert!(rate_of("2.1: Run took 3 seconds...").is_err());
        assert!(rate_of("IO Summary: 0 ops 0.000 ops/s").is_err());
    }

    #[test]
    fn a_personality_gets_its_directory_number_of_files_and_end() {
        let text = "set $dir=/tmp\nset $nfiles=10000\nset $runtime=60\ndefine fileset path=$dir\nrun $runtime\n";
        let script = script_of(text, Path::new("/mnt/x"), Some(7), 3).unwrap();
        assert_eq!(script, "set $dir=/mnt/x\nset $nfiles=7\nset $runtime=60\ndefine fileset path=$dir\nrun 3\n");
        assert!(script_of(text, Path::new("/mnt/x"), None, 3).unwrap().contains("$nfiles=10000"));
        assert!(script_of("run 60", Path::new("/mnt/x"), None, 3).is_err());
    }
}
