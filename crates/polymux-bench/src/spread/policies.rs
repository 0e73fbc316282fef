//! The policies that spread files, with writers none of which saturates a device: ranges that go where they complete soonest,
//! and threads that are mapped to devices (P7, P11, and the corrected objective).
//!
//! Method:
//! * [`WRITERS`] streams of the same speed want a tenth more than the devices together give. With as many threads on each device, which
//!   is how the static mapping begins, the fastest device has time to spare while the slower ones are overloaded; so it pays
//!   to move threads.
//! * The bytes written to the block devices are measured against their limits.
//! * The written data is read back afterwards, cold, and verified.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::SpreadArguments;
use super::series::{Sample, Series};
use super::stand::{self, Requests, Stand};
use super::streams::Stream;
use super::volume::Settings;
use crate::report::{Cell, Report, Section};
use crate::throttled::traffic::Traffic;

/// Writers at once, each of a file of its own.
const WRITERS: u16 = 8;

/// Combined rate that the writers want, as a share of the combined rate of the devices.
const WANTED: f64 = 1.1;

/// Seconds that are measured at least: a climb makes a step in four epochs of 200 ms.
const SECONDS_MIN: u64 = 12;

const POLICIES: [&str; 4] = ["spread", "poly-static", "poly-dynamic", "poly-climb"];

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    POLICIES.iter().try_for_each(|policy| arguments.program_with(policy).map(drop))?;
    let profiles = stand::profiles(arguments, Requests::Unlimited);
    let sum: u64 = profiles.iter().map(|profile| profile.limits.written_bytes.unwrap_or(0)).sum();
    let seconds = arguments.seconds.max(SECONDS_MIN);
    let stand = Stand::make(arguments, profiles, sum * (seconds + 2))?;
    let columns =
        ["policy", "MB/s, first quarter", "MB/s, last quarter", "of the sum", "of each device at the end, MB/s"];
    let title = format!("{WRITERS} writers that want {WANTED:.1} times the sum: {}", stand.devices_in_words());
    let mut section = Section::new(title, &columns);
    for policy in POLICIES {
        let series = course(&stand, policy, sum as f64 * WANTED, Duration::from_secs(seconds))?;
        let end = series.0.last().map_or(0.0, |sample| sample.second);
        let (first, last) = (series.rates(0.0, end / 4.0), series.rates(end * 3.0 / 4.0, end));
        let all = |rates: &[f64]| rates.iter().sum::<f64>();
        section.row(vec![
            policy.into(),
            Cell::Number(all(&first) / 1e6, 1),
            Cell::Number(all(&last) / 1e6, 1),
            Cell::Number(all(&last) / sum as f64, 3),
            last.iter().map(|rate| format!("{:.0}", rate / 1e6)).collect::<Vec<_>>().join(" + ").into(),
        ]);
    }
    section.note("`of the sum`: of the limits of the devices, in the last quarter. MB are 10^6 bytes.");
    report.add(section);
    Ok(())
}

/// Traffic of the devices while the writers write for `duration`.
fn course(stand: &Stand, policy: &str, wanted: f64, duration: Duration) -> Result<Series> {
    let mut volume = stand.volume_with(&Settings { policy, ..Settings::default() })?;
    volume.start(&stand.devices)?;
    let path = |writer| volume.mount_point().join(format!("stream-{writer}"));
    let speed = wanted / f64::from(WRITERS);
    let streams: Vec<Stream> = (0..WRITERS)
        .map(|writer| Stream { bytes_per_second: Some(speed), ..Stream::at_full_speed(path(writer)) })
        .collect();
    let (series, written) = stand
        .while_written(&streams, |before, begun| watch(stand, before, begun, duration))
        .with_context(|| policy.to_owned())?;
    volume.start_cold(&stand.devices)?;
    streams.iter().zip(written).try_for_each(|(stream, bytes)| stream.verify(bytes))?;
    volume.stop()?;
    Ok(series)
}

fn watch(stand: &Stand, before: &[Traffic], begun: Instant, duration: Duration) -> Result<Series> {
    const SAMPLE: Duration = Duration::from_millis(250);
    let mut samples = vec![Sample { second: 0.0, bytes: vec![0; before.len()] }];
    while begun.elapsed() < duration {
        thread::sleep(SAMPLE);
        samples.push(stand.sample(before, begun)?);
    }
    Ok(Series(samples))
}
