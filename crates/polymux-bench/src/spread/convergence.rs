//! How soon writers reach the full rate of the devices: at first, when the fastest device is cut to a tenth, and when it is restored.
//!
//! Method:
//! * The bytes written to the block devices are measured, as the kernel counts them, every 100 ms ([`super::series`]).
//! * The sum is that of the rates that the devices had in the same course natively, with as many direct writers on each, in the last
//!   second and a half before the next change.
//! * The written data is read back afterwards, cold, and verified.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::load::Way;
use super::series::{Sample, Series};
use super::stand::{self, Requests, Stand};
use super::streams::Stream;
use super::{SpreadArguments, chart};
use crate::report::{Cell, Report, Section};
use crate::throttled::Limits;
use crate::throttled::traffic::Traffic;

const SAMPLE: Duration = Duration::from_millis(100);

/// Writers at once.
const WRITERS: [u16; 2] = [1, 8];

/// Part of the sum that has to be reached.
const PART: f64 = 0.9;

/// The event at the start of each phase, and the seconds in which it should be as fast as the devices.
const PHASES: [(&str, f64); 3] = [("begin", 2.0), ("fastest device cut to a tenth", 2.0), ("restored", 3.0)];

/// Largest delay of a sample.
const TOLERANCE_SECONDS: f64 = 0.05;

/// Seconds of the end of a phase in which natively the rate is steady.
const STEADY_SECONDS: f64 = 1.5;

/// One course through all phases.
pub struct Course {
    /// Traffic of the devices.
    pub series: Series,
    /// Begin of each phase, and the end of the last.
    pub borders: Vec<f64>,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let profiles = stand::profiles(arguments, Requests::Unlimited);
    let phase = Duration::from_secs(arguments.seconds.clamp(3, 6));
    let bytes: u64 = profiles.iter().map(|profile| profile.limits.written_bytes.unwrap_or(0)).sum();
    let stand = Stand::make(arguments, profiles, bytes * phase.as_secs() * 4)?;
    let columns = [
        "writers",
        "phase",
        "sum, MB/s",
        "seconds to 0.9",
        "for good",
        "target",
        "in time",
        "for good in time",
        "least second after, of the sum",
        "of each device at the end, MB/s",
    ];
    let mut section = Section::new(stand.title("time until writers have what the devices give"), &columns);
    let mut courses = Vec::new();
    for writers in WRITERS {
        let native = native(&stand, writers, phase).context("natively")?;
        let mounted = mounted(&stand, writers, phase).context("through the mount")?;
        for phase in 0..PHASES.len() {
            section.row(row(writers, phase, &native, &mounted));
        }
        if let Some(directory) = &arguments.svg {
            let title = format!("{writers} writers, {}: what each device takes", stand.devices_in_words());
            let path = directory.join(format!("spread-convergence-{writers}.svg"));
            chart::draw(&path, &title, &stand.profiles, &mounted)?;
        }
        courses.push(course_table(&stand, writers, &mounted));
    }
    section.note(
        "`for good`: from then on every second until the next change had as much. What was on its way to the other devices when \
         one was cut keeps them busy for a while, so that the first second after a change alone says little.",
    );
    section.note("The least time is one second, because a rate is that of a whole second after the change.");
    report.add(section);
    if arguments.json {
        courses.into_iter().for_each(|course| report.add(course));
    }
    Ok(())
}

fn row(writers: u16, phase: usize, native: &Course, mounted: &Course) -> Vec<Cell> {
    let (name, target) = PHASES[phase];
    let end = native.borders[phase + 1];
    let sum: f64 = native.series.rates(end - STEADY_SECONDS, end).iter().sum();
    let (since, until) = (mounted.borders[phase], mounted.borders[phase + 1]);
    let reached = mounted.series.reached(since, until, PART * sum);
    let settled = mounted.series.settled(since, until, PART * sum);
    let least = reached.and_then(|seconds| mounted.series.least(since + seconds, until));
    let of_each = mounted.series.rates(until - STEADY_SECONDS, until);
    vec![
        usize::from(writers).into(),
        name.into(),
        Cell::Number(sum / 1e6, 1),
        Cell::optional(reached, 2),
        Cell::optional(settled, 2),
        Cell::Number(target, 0),
        in_time(reached, target),
        in_time(settled, target),
        Cell::optional(least.map(|least| least / sum), 3),
        of_each.iter().map(|rate| format!("{:.0}", rate / 1e6)).collect::<Vec<_>>().join(" + ").into(),
    ]
}

fn in_time(seconds: Option<f64>, target: f64) -> Cell {
    if seconds.is_some_and(|seconds| seconds <= target + TOLERANCE_SECONDS) { "yes" } else { "no" }.into()
}

/// The bandwidth of each device in each 100 ms.
fn course_table(stand: &Stand, writers: u16, course: &Course) -> Section {
    let columns: Vec<&str> = ["second"].into_iter().chain(stand::NAMES).take(stand.profiles.len() + 1).collect();
    let mut section = Section::new(format!("MB/s of each device, {writers} writers"), &columns);
    for (before, after) in course.series.0.iter().zip(course.series.0.iter().skip(1)) {
        let rates = course.series.rates(before.second, after.second);
        let cells = rates.into_iter().map(|rate| Cell::Number(rate / 1e6, 1));
        section.row(std::iter::once(Cell::Number(after.second, 2)).chain(cells).collect());
    }
    let borders: Vec<String> = course.borders.iter().map(|second| format!("{second:.2}")).collect();
    section.note(format!("The phases begin at, and the last one ends at: {} s.", borders.join(", ")));
    section
}

fn native(stand: &Stand, writers: u16, phase: Duration) -> Result<Course> {
    stand.devices.format_again()?;
    let mut streams = Vec::new();
    for profile in &stand.profiles {
        let directory = stand.devices.mount_point(profile.name)?;
        let of_device =
            files(&directory, writers).map(|path| Stream { way: Way::Direct, ..Stream::at_full_speed(path) });
        streams.extend(of_device);
    }
    // Three seconds are enough here: there is no placement that has to converge.
    let (course, _) = course(stand, &streams, phase.min(Duration::from_secs(3)))?;
    Ok(course)
}

fn mounted(stand: &Stand, writers: u16, phase: Duration) -> Result<Course> {
    let mut volume = stand.volume()?;
    volume.start(&stand.devices)?;
    let streams: Vec<Stream> = files(volume.mount_point(), writers).map(Stream::at_full_speed).collect();
    let (course, written) = course(stand, &streams, phase)?;
    volume.start_cold(&stand.devices)?;
    streams.iter().zip(written).try_for_each(|(stream, bytes)| stream.verify(bytes))?;
    volume.stop()?;
    Ok(course)
}

fn files(directory: &std::path::Path, writers: u16) -> impl Iterator<Item = PathBuf> {
    let directory = directory.to_owned();
    (0..writers).map(move |writer| directory.join(format!("stream-{writer}")))
}

/// Lets streams be written through all phases; returns the traffic of the devices, and the bytes of each stream. The devices have
/// no limits afterwards.
fn course(stand: &Stand, streams: &[Stream], phase: Duration) -> Result<(Course, Vec<u64>)> {
    stand.while_written(streams, |before, begun| watch(stand, before, begun, phase))
}

fn watch(stand: &Stand, before: &[Traffic], begun: Instant, phase: Duration) -> Result<Course> {
    let mut samples = vec![Sample { second: 0.0, bytes: vec![0; before.len()] }];
    let mut borders = vec![0.0];
    let fastest = &stand.profiles[0];
    let mut next = SAMPLE;
    let end = phase * 3;
    while next <= end {
        thread::sleep((begun + next).saturating_duration_since(Instant::now()));
        samples.push(stand.sample(before, begun)?);
        if next == phase {
            stand.devices.limit(fastest.name, &cut(&fastest.limits))?;
        } else if next == phase * 2 {
            stand.devices.limit(fastest.name, &fastest.limits)?;
        }
        if next == phase || next == phase * 2 {
            borders.push(begun.elapsed().as_secs_f64());
        }
        next += SAMPLE;
    }
    borders.push(begun.elapsed().as_secs_f64());
    Ok(Course { series: Series(samples), borders })
}

/// The limits, with a tenth of the write rate.
fn cut(limits: &Limits) -> Limits {
    Limits { written_bytes: limits.written_bytes.map(|bytes| bytes / 10), ..*limits }
}
