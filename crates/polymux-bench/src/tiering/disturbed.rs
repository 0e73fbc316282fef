//! A hot set that is on the SSD, while another program reads every file once (a backup), and while one writes more than the SSD holds.
//!
//! Method:
//! * The readers of the hot set never pause: rounds follow one another, before, beside and after each disturbance.
//! * Migrations caused by a disturbance are counted as bytes written to the SSD from its beginning to the end of the round after
//!   it, beside the bytes that would have been written in the same time at the rate of the rounds before.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::hot_set::{FILES, HOT, ROUND_SECONDS};
use super::sides::{SSD_BYTES, SideKind};
use super::subject::Subject;
use super::{TieringArguments, in_words};
use crate::noise::Noise;
use crate::report::{Cell, Report, Section};
use crate::statistics::{count, mean};

/// Bytes of the stream: larger than the SSD, and removed before the next piece, so that the disk has space for it.
pub(super) const STREAM_PIECES: usize = 2;
pub(super) const STREAM_PIECE_BYTES: u64 = 2 << 30;
const REQUEST_BYTES: usize = 1 << 20;

/// Rounds after a disturbance.
const ROUNDS_AFTER: u16 = 3;
/// Rounds just before the first disturbance that give the undisturbed rate.
const ROUNDS_BEFORE: usize = 2;

/// Share of the rate before that is asked for beside a stream, and so many seconds after a scan.
const SHARE_KEPT: f64 = 0.9;
const SECONDS_AFTER_SCAN: usize = 10;
/// Bytes that may be written to the SSD because of a scan, of its size.
const MOVED_BY_SCAN_SHARE: f64 = 0.02;

/// A disturbance of the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    Scan,
    Stream,
}

/// The rates of the readers before, beside and after one disturbance.
struct Course {
    side: SideKind,
    disturbance: Disturbance,
    before: f64,
    beside: Vec<f64>,
    after: Vec<f64>,
    written_mb: Option<f64>,
    /// As much would have been written in that time at the rate before.
    anyway_mb: Option<f64>,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let mut courses = Vec::new();
    for side in &arguments.sides {
        measure(*side, arguments, &mut courses)?;
    }
    report.add(tabulate(&courses));
    Ok(())
}

fn measure(kind: SideKind, arguments: &TieringArguments, courses: &mut Vec<Course>) -> Result<()> {
    let subject = Subject::make(kind, arguments)?;
    let mut round = 0;
    let mut next = || {
        round += 1;
        let before = subject.traffic()?;
        let rate = subject.read(&HOT[0], arguments.readers, round)?;
        let now = subject.traffic()?;
        let reads = now.iter().zip(&before).map(|(now, before)| now.since(before).reads.to_string());
        let reads = reads.collect::<Vec<_>>().join("+");
        eprintln!("{}: round {round}: {rate:.0} reads/s, {reads} requests of the devices", kind.name());
        Ok(rate)
    };
    for _ in ROUNDS_BEFORE..usize::from(arguments.rounds) {
        next()?;
    }
    let (traffic, began) = (subject.traffic()?, subject.elapsed());
    let undisturbed: Vec<f64> = (0..ROUNDS_BEFORE).map(|_| next()).collect::<Result<_>>()?;
    let before = mean(&undisturbed);
    let mb_per_second =
        subject.written_to_ssd_mb(&traffic)?.map(|written| written / (subject.elapsed() - began).as_secs_f64());
    for disturbance in [Disturbance::Scan, Disturbance::Stream] {
        eprintln!("{}: {disturbance:?} begins", kind.name());
        let (traffic, began) = (subject.traffic()?, subject.elapsed());
        let mut beside = Vec::new();
        subject.disturb(disturbance, || {
            beside.push(next()?);
            Ok(())
        })?;
        let first = next()?;
        let written_mb = subject.written_to_ssd_mb(&traffic)?;
        let anyway_mb = mb_per_second.map(|rate| rate * (subject.elapsed() - began).as_secs_f64());
        let others = (1..ROUNDS_AFTER).map(|_| next());
        let after = std::iter::once(Ok(first)).chain(others).collect::<Result<_>>()?;
        courses.push(Course { side: kind, disturbance, before, beside, after, written_mb, anyway_mb });
    }
    subject.end()
}

/// Reads all files from one end to the other.
pub(super) fn scan(files: &[PathBuf]) -> Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES];
    for path in files {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

/// Writes pieces, each durable at its end and removed then.
pub(super) fn stream(directory: &Path) -> Result<()> {
    let block = Noise::new(0x6c62_272e_07bb_0142).bytes(REQUEST_BYTES);
    for piece in 0..STREAM_PIECES {
        let path = directory.join(format!("stream-{piece}"));
        let file = File::create_new(&path)?;
        for offset in (0..STREAM_PIECE_BYTES).step_by(REQUEST_BYTES) {
            file.write_all_at(&block, offset)?;
        }
        file.sync_all()?;
        drop(file);
        fs::remove_file(&path)?;
    }
    Ok(())
}

fn tabulate(courses: &[Course]) -> Section {
    let columns = [
        "side",
        "disturbed by",
        "before",
        "beside",
        "after",
        "share of before",
        "target",
        "SSD written MB",
        "without it",
        "at most",
        "met",
    ];
    let title = format!("hot set of 512 MiB in {} files, disturbed: reads/s in rounds of {ROUND_SECONDS} s", FILES);
    let mut section = Section::new(title, &columns);
    for course in courses {
        let (name, share, limit_mb) = match course.disturbance {
            Disturbance::Scan => {
                let then = course.after[SECONDS_AFTER_SCAN / ROUND_SECONDS];
                ("a scan of everything", then / course.before, Some(SSD_BYTES as f64 * MOVED_BY_SCAN_SHARE / 1e6))
            }
            Disturbance::Stream => {
                let beside = course.beside.iter().sum::<f64>() / count(course.beside.len());
                ("a stream of 4 GiB", beside / course.before, None)
            }
        };
        let is_met =
            share >= SHARE_KEPT && course.written_mb.zip(limit_mb).is_none_or(|(written, limit)| written <= limit);
        section.row(vec![
            course.side.name().into(),
            name.into(),
            Cell::Number(course.before, 0),
            in_words(&course.beside).into(),
            in_words(&course.after).into(),
            Cell::Number(share, 3),
            Cell::Number(SHARE_KEPT, 1),
            Cell::optional(course.written_mb, 0),
            Cell::optional(course.anyway_mb, 0),
            Cell::optional(limit_mb, 0),
            if is_met { "yes" } else { "no" }.into(),
        ]);
    }
    section.note("The share is that of the second round after a scan, and that of all rounds beside a stream.");
    section.note("Without it: what was written in the last rounds before, for the same time.");
    section
}
