//! `polymux migrate`: moves files, or a range of one, to a tier.
//!
//! Invariants:
//! * Invalid requests are refused before the first job is submitted: a path that does not exist, that lies on no volume,
//!   that is no file or directory. The tier is looked at with the first page of files.
//! * Files are named to the daemon by inode number, [`FILES_PER_REQUEST_MAX`] at a time, so that a tree of any size is
//!   no large request and a daemon never opens anything under its own mount.
//! * Jobs belong to the daemon: a command that waits for them only polls, and may end before them.

mod walk;
mod watch;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use polymux_types::ByteSize;
use serde::Serialize;

use crate::cli::{MigrateArguments, OutputFormat, output_format};
use crate::client;
use crate::mount_table::{MountTable, is_polymux};
use crate::output;
use crate::protocol::{Answer, ByteRange, FILES_PER_REQUEST_MAX, JobReport, MigrateReport, Request};
use polymux_config::registry::Registry;
use walk::{Found, Walk};
use watch::{Ended, Watched};

/// Most files that a message names.
const NAMED_MAX: usize = 5;

/// The output of `migrate --json`.
#[derive(Debug, Serialize)]
struct Summary {
    /// Name of the volume.
    volume: String,
    /// Name of the tier.
    tier: String,
    /// Files that were taken in.
    files: u64,
    /// Bytes of these, including holes and bytes that are on the tier already.
    bytes_total: u64,
    /// Numbers of the jobs, in the order of submission.
    jobs: Vec<u64>,
    /// Files that were not taken in, and why.
    refused: Vec<FileAndReason>,
    /// With `--wait`: how the jobs ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

/// How jobs ended that were waited for.
#[derive(Debug, Serialize)]
struct Outcome {
    /// Files on the tier now.
    done: u64,
    /// Bytes that were copied.
    bytes_copied: u64,
    /// Files that were not moved.
    failed: Vec<FileAndReason>,
    /// Files that wait for an event.
    parked: Vec<FileAndReason>,
}

/// A file and the reason why it was refused, failed or parked.
#[derive(Clone, Debug, Serialize)]
struct FileAndReason {
    path: String,
    why: String,
}

/// A range of bytes on the command line: `1GiB-2GiB`, or `1GiB-` for all from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeArgument(pub ByteRange);

impl FromStr for RangeArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (start, end) = text.split_once('-').ok_or_else(|| format!("`{text}` has no `-`; write 1GiB-2GiB"))?;
        let parse = |size: &str| size.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string());
        let start = parse(start)?;
        let end = if end.trim().is_empty() { None } else { Some(parse(end)?) };
        if end.is_some_and(|end| end <= start) {
            return Err(format!("`{text}` ends where it begins, or before"));
        }
        Ok(Self(ByteRange { start, end }))
    }
}

/// Submits the jobs, and waits for them where that is asked for.
pub fn run(registry: &Registry, arguments: &MigrateArguments) -> Result<()> {
    let places = Places::of(&arguments.paths)?;
    if arguments.range.is_some() && (places.paths.len() > 1 || places.paths[0].is_dir()) {
        bail!("--range is for one file; {} is a directory", places.paths[0].display());
    }
    let mut submission = Submission::new(registry, &places.volume, arguments);
    for path in &places.paths {
        submission.add_below(path)?;
    }
    submission.send()?;
    let outcome = match (arguments.wait, submission.watched.is_empty()) {
        (true, false) => {
            submission.check_movers()?;
            let watched = std::mem::take(&mut submission.watched);
            Some(watch::until_ended(registry, &places.volume, &arguments.to, watched)?)
        }
        _ => None,
    };
    submission.tell(outcome, output_format(arguments.json))
}

/// The paths that were named, checked, and their volume.
pub struct Places {
    /// Name of the volume.
    pub volume: String,
    /// True paths, in the order in which they were named.
    pub paths: Vec<PathBuf>,
}

impl Places {
    /// Checks that each path is a file or a directory, and that all are on one volume.
    pub fn of(named: &[PathBuf]) -> Result<Self> {
        let table = MountTable::read()?;
        let mut volume: Option<String> = None;
        let mut paths = Vec::new();
        for path in named {
            let metadata = path.symlink_metadata().with_context(|| format!("cannot look at {}", path.display()))?;
            if metadata.is_symlink() {
                bail!("{} is a symbolic link: name the file that it leads to", path.display());
            }
            if !metadata.is_file() && !metadata.is_dir() {
                bail!("{} is neither a file nor a directory: it has no data on a tier", path.display());
            }
            let path = path.canonicalize()?;
            let mount = table.containing(&path).filter(|mount| is_polymux(mount));
            let Some(mount) = mount else { bail!("{} does not lie on a Polymux volume", path.display()) };
            match &volume {
                Some(volume) if *volume != mount.source => bail!(
                    "{} lies on volume `{}` and the path before it on `{volume}`: name those of each volume by themselves",
                    path.display(),
                    mount.source
                ),
                _ => volume = Some(mount.source.clone()),
            }
            paths.push(path);
        }
        let volume = volume.ok_or_else(|| anyhow!("no file was named"))?;
        Ok(Self { volume, paths })
    }
}

/// Jobs on their way to the daemon, and the messages about them.
struct Submission<'a> {
    registry: &'a Registry,
    volume: &'a str,
    tier: &'a str,
    range: Option<ByteRange>,
    page: Vec<Found>,
    seen: walk::Seen,
    watched: Vec<Watched>,
    bytes_total: u64,
    jobs: Vec<u64>,
    refused: Vec<FileAndReason>,
    is_paused: bool,
    movers: u16,
}

impl<'a> Submission<'a> {
    fn new(registry: &'a Registry, volume: &'a str, arguments: &'a MigrateArguments) -> Self {
        Self {
            registry,
            volume,
            tier: &arguments.to,
            range: arguments.range.map(|RangeArgument(range)| range),
            page: Vec::new(),
            seen: walk::Seen::default(),
            watched: Vec::new(),
            bytes_total: 0,
            jobs: Vec::new(),
            refused: Vec::new(),
            is_paused: false,
            movers: 0,
        }
    }

    fn add_below(&mut self, path: &Path) -> Result<()> {
        let mut count = 0_u64;
        for found in Walk::below(path)? {
            match found {
                Ok(found) => {
                    count += 1;
                    if self.seen.is_new(found.ino) {
                        self.page.push(found);
                    }
                }
                Err(error) => self.refused.push(FileAndReason { path: error.path, why: error.why }),
            }
            if self.page.len() >= FILES_PER_REQUEST_MAX {
                self.send()?;
            }
        }
        if count == 0 && self.refused.is_empty() {
            let why = "there is no regular file below it: nothing to move".to_owned();
            self.refused.push(FileAndReason { path: path.display().to_string(), why });
        }
        Ok(())
    }

    /// Submits the files of this page.
    fn send(&mut self) -> Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        let page = std::mem::take(&mut self.page);
        let files: Vec<u64> = page.iter().map(|found| found.ino).collect();
        let report = submit(self.registry, self.volume, self.tier, files, self.range)?;
        let path_of = |ino: u64| {
            let found = page.iter().find(|found| found.ino == ino);
            found.map(|found| found.path.display().to_string()).unwrap_or_default()
        };
        for job in &report.jobs {
            self.bytes_total += job.bytes_total;
            self.jobs.push(job.job);
            let range = self.range;
            self.watched.push(Watched::new(*job, path_of(job.ino), range));
        }
        self.refused
            .extend(report.refused.iter().map(|file| FileAndReason { path: path_of(file.ino), why: file.why.clone() }));
        (self.is_paused, self.movers) = (report.is_paused, report.movers);
        Ok(())
    }

    fn check_movers(&self) -> Result<()> {
        if self.movers == 0 {
            bail!("volume `{}` moves nothing: its configuration says `movers = 0`", self.volume);
        }
        Ok(())
    }

    /// Prints the outcome; an error where something was not moved.
    fn tell(self, ended: Option<Ended>, format: OutputFormat) -> Result<()> {
        let outcome = ended.map(|ended| Outcome {
            done: ended.done,
            bytes_copied: ended.bytes_copied,
            failed: ended.failed.into_iter().map(|(path, why)| FileAndReason { path, why }).collect(),
            parked: ended.parked.into_iter().map(|(path, why)| FileAndReason { path, why }).collect(),
        });
        let failed = outcome.as_ref().map_or(&[][..], |outcome| &outcome.failed);
        let parked = outcome.as_ref().map_or(&[][..], |outcome| &outcome.parked);
        let problem = problem(&self.refused, failed, parked, self.tier);
        let files = self.jobs.len() as u64;
        if format == OutputFormat::Text && files > 0 {
            output::line(&self.sentence(outcome.as_ref(), files))?;
            if self.is_paused && outcome.is_none() {
                output::line(&format!("moving is paused: `polymux resume {}` goes on", self.volume))?;
            }
        }
        if format == OutputFormat::Json {
            output::json(&Summary {
                volume: self.volume.to_owned(),
                tier: self.tier.to_owned(),
                files,
                bytes_total: self.bytes_total,
                jobs: self.jobs,
                refused: self.refused,
                outcome,
            })?;
        }
        problem.map_or(Ok(()), |problem| Err(anyhow!(problem)))
    }

    fn sentence(&self, outcome: Option<&Outcome>, files: u64) -> String {
        let tier = self.tier;
        match outcome {
            Some(outcome) => {
                let copied = ByteSize(outcome.bytes_copied);
                format!("{} of {} moved to tier `{tier}`, {copied} copied", outcome.done, output::files(files))
            }
            None => format!(
                "moving {}, {}, to tier `{tier}` in the background; `polymux top {}` shows how far it is. An unmount \
                 gives up what has not been moved by then",
                output::files(files),
                ByteSize(self.bytes_total),
                self.volume
            ),
        }
    }
}

/// One line about all files that were not moved; `None` where there are none.
fn problem(
    refused: &[FileAndReason],
    failed: &[FileAndReason],
    parked: &[FileAndReason],
    tier: &str,
) -> Option<String> {
    let parts: Vec<String> = [("not moved", refused), ("failed", failed), ("waiting", parked)]
        .into_iter()
        .filter(|(_, files)| !files.is_empty())
        .map(|(what, files)| {
            let named: Vec<String> = files
                .iter()
                .take(NAMED_MAX)
                .map(|file| format!("{}: {}", output::name(&file.path), output::name(&file.why)))
                .collect();
            let more = files.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            if files.len() == 1 && what == "not moved" {
                return named[0].clone();
            }
            format!("{} {what} (to tier `{tier}`): {}{more}", output::files(files.len() as u64), named.join("; "))
        })
        .collect();
    if parts.is_empty() { None } else { Some(parts.join("; ")) }
}

fn submit(
    registry: &Registry,
    volume: &str,
    tier: &str,
    files: Vec<u64>,
    range: Option<ByteRange>,
) -> Result<MigrateReport> {
    match client::ask(registry, volume, &Request::Migrate { files, tier: tier.to_owned(), range })? {
        Some(Answer::Migrate(report)) => Ok(report),
        Some(_) => bail!("the daemon of volume `{volume}` answered something else"),
        None => bail!("volume `{volume}` is not mounted any more: mount it and ask again"),
    }
}

/// How far some jobs are; those that ended long ago are left out.
fn jobs(registry: &Registry, volume: &str, jobs: Vec<u64>) -> Result<(Vec<JobReport>, bool)> {
    match client::ask(registry, volume, &Request::Jobs { jobs })? {
        Some(Answer::Jobs(report)) => Ok((report.jobs, report.is_paused)),
        Some(_) => bail!("the daemon of volume `{volume}` answered something else"),
        None => bail!("volume `{volume}` is not mounted any more: what was not moved yet has to be asked for again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_with_units_and_an_open_end() {
        let range = |text: &str| RangeArgument::from_str(text).unwrap().0;
        assert_eq!(range("1GiB-2GiB"), ByteRange { start: 1 << 30, end: Some(2 << 30) });
        assert_eq!(range("4096-"), ByteRange { start: 4096, end: None });
        assert_eq!(range("0 - 5 MiB"), ByteRange { start: 0, end: Some(5 << 20) });
        for text in ["", "5", "-", "-5", "5-5", "6-5", "a-b", "1XB-2XB"] {
            assert!(RangeArgument::from_str(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_problem_is_one_line_that_names_files_and_reasons() {
        let file = |path: &str| FileAndReason { path: path.to_owned(), why: "no room".to_owned() };
        assert_eq!(problem(&[], &[], &[], "fast"), None);
        assert_eq!(problem(&[file("/m/a")], &[], &[], "fast").unwrap(), "/m/a: no room");
        let many: Vec<_> = (0..7).map(|index| file(&format!("/m/{index}"))).collect();
        let text = problem(&[], &many, &[file("/m/p")], "fast").unwrap();
        assert!(
            text.starts_with("7 files failed (to tier `fast`): /m/0: no room; ")
                && text.contains("; and 2 more; 1 file waiting"),
            "{text}"
        );
    }
}
