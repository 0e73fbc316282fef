//! Many small files: what the policy costs that is made for large ones.
//!
//! What is true here:
//! * One volume on devices without limits, mounted with the policy `hot-cold` as it is, and with the policy and the options that are
//!   measured, in turn; which of them begins changes.
//! * Unpacking ends durably, as in the suite. Walking is what `git status` does, after everything was unmounted: all directories are
//!   read, and each file is asked for its attributes. Then each is read.
//! * What is claimed is the upper end of the 95 % confidence interval of the ratio: a loss of 5 % is excluded. What is read is compared
//!   with the archive by its bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::SpreadArguments;
use super::stand::{self, Requests, Stand};
use super::volume::{Settings, Volume};
use crate::report::{Cell, Report, Section};
use crate::statistics::{Interval, Spread};
use crate::suite::{durable, programs, runner, workloads};

/// Interleaved pairs.
const PAIRS: usize = 20;

/// The ratio that the confidence interval has to exclude.
const RATIO_EXCLUDED: f64 = 1.05;

/// What is compared.
const OTHER: &str = "hot-cold";

const FIGURES: [&str; 3] = ["untar, durable", "walk with stat, cold", "read all files, cold"];

/// Room of each device.
const DEVICE_BYTES: u64 = 1 << 30;

/// Milliseconds of each figure.
type Figures = [f64; FIGURES.len()];

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; where there is no tree of 2,000 files, or no `tar`.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    ensure!(programs::is_installed("tar"), "tar is not installed");
    let Some(tree) = runner::usual_tree() else { bail!("no tree of 2,000 files was found") };
    let stand = Stand::make(arguments, stand::profiles(arguments, Requests::Unlimited), DEVICE_BYTES)?;
    let archive = stand.devices.directory().join("tree.tar");
    let (files, bytes) = workloads::pack(&tree, &archive)?;
    let policies = [OTHER, arguments.policy.as_str()];
    let options = [String::new(), arguments.options.join("\n")];
    let mut volume = stand.volume_with(&Settings { policy: OTHER, ..Settings::default() })?;
    let mut found: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
    // The first time is not measured: programs and the archive come into memory.
    for pair in 0..=PAIRS {
        for turn in 0..policies.len() {
            let side = (pair + turn) % policies.len();
            volume.set_policy(policies[side])?;
            volume.set_options(&options[side])?;
            let figures = once(&stand, &mut volume, &archive, (files, bytes)).context(policies[side].to_owned())?;
            if pair > 0 {
                found[side].push(figures);
            }
        }
    }
    let names = [OTHER.to_owned(), name_of(arguments)];
    report.add(table(&stand, &names, &found, files, bytes));
    Ok(())
}

/// What is measured, in words.
fn name_of(arguments: &SpreadArguments) -> String {
    let options = arguments.options.iter().map(|option| format!(", {option}"));
    arguments.policy.clone() + &options.collect::<String>()
}

fn table(stand: &Stand, names: &[String; 2], found: &[Vec<Figures>; 2], files: usize, bytes: u64) -> Section {
    let title = format!("{files} small files, {} MB, devices without limits, {PAIRS} pairs", bytes / 1_000_000);
    let columns = ["figure", "policy", "ms, median", "ms, min to max", "ratio", "95 % from", "to", "to exclude", "met"];
    let mut section = Section::new(stand.title(&title), &columns);
    for (at, figure) in FIGURES.iter().enumerate() {
        let values = |side: usize| found[side].iter().map(|figures| figures[at]).collect::<Vec<f64>>();
        let ratio = Interval::of_ratios(&values(1), &values(0));
        for (side, name) in names.iter().enumerate() {
            let times = Spread::of(&values(side));
            let of_ours = |number: f64| Cell::optional((side == 1).then_some(number), 3);
            section.row(vec![
                (*figure).into(),
                name.clone().into(),
                Cell::Number(times.median, 1),
                times.range(1).into(),
                of_ours(ratio.middle),
                of_ours(ratio.low),
                of_ours(ratio.high),
                of_ours(RATIO_EXCLUDED),
                if side == 0 { Cell::Empty } else { if ratio.high < RATIO_EXCLUDED { "yes" } else { "no" }.into() },
            ]);
        }
    }
    section.note(
        "The geometric mean of the ratios of pairs, in which one policy comes right after the other, and its interval.",
    );
    section
}

/// Unpacks, walks and reads the tree, and removes it.
fn once(stand: &Stand, volume: &mut Volume, archive: &Path, expected: (usize, u64)) -> Result<Figures> {
    volume.start_cold(&stand.devices)?;
    let directory = volume.mount_point().to_owned();
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    let devices: Vec<PathBuf> = stand.devices.all().into_iter().map(|device| device.mount_point).collect();
    let begun = Instant::now();
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&tree);
    programs::run(&stand.devices, &mut tar)?;
    durable::end(&directory, &devices)?;
    let unpacked = milliseconds(begun);
    durable::forget_end(&directory)?;
    volume.start_cold(&stand.devices)?;
    let begun = Instant::now();
    let mut files = Vec::new();
    let bytes = walk(&tree, &mut files)?;
    let walked = milliseconds(begun);
    ensure!((files.len(), bytes) == expected, "{} files of {bytes} bytes are there, not {expected:?}", files.len());
    let begun = Instant::now();
    let mut read = 0;
    for path in &files {
        read += fs::read(path).with_context(|| path.display().to_string())?.len() as u64;
    }
    let read_all = milliseconds(begun);
    ensure!(read == bytes, "{read} bytes were read, not {bytes}");
    compare(stand, archive, &tree)?;
    fs::remove_dir_all(&tree)?;
    volume.stop()?;
    Ok([unpacked, walked, read_all])
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// All files below a directory; returns how many bytes they have.
fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            bytes += walk(&entry.path(), files)?;
        } else {
            bytes += metadata.len();
            files.push(entry.path());
        }
    }
    Ok(bytes)
}

/// Every byte of the tree against the archive, outside the clock.
fn compare(stand: &Stand, archive: &Path, tree: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--compare").arg("--file").arg(archive).arg("--directory").arg(tree);
    programs::run(&stand.devices, &mut tar).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_finds_every_file_and_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        fs::write(directory.path().join("a/b/one"), b"12345").unwrap();
        fs::write(directory.path().join("two"), b"123").unwrap();
        let mut files = Vec::new();
        assert_eq!(walk(directory.path(), &mut files).unwrap(), 8);
        assert_eq!(files.len(), 2);
    }
}
