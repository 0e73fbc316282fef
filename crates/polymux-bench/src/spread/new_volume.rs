//! One large stream on a volume with default settings: the policy is the one that `polymux create` chooses.
//!
//! Method:
//! * The devices say of themselves whether they rotate; that is all that differs between the rows.
//! * A stream at full speed is bytes over wall-clock time, durable at the end, against one writer on each device natively at the same time.
//! * Of streams at a given speed only the place of their bytes counts: they end when the time is over.

use std::path::Path;

use anyhow::{Context, Result};
use polymux_tier::Rotation;

use super::SpreadArguments;
use super::load::{Load, Measured, Sharing, Way};
use super::stand::{self, NAMES, Requests, Stand};
use super::streams::Stream;
use super::volume::{Settings, Volume};
use crate::report::{Cell, Report, Section};

/// Least rate of the stream, as a share of the combined rate of the devices.
const TARGET: f64 = 0.9;
/// Bytes per second that the faster device carries by itself.
const CARRIED: f64 = 80e6;
const ONE_WRITER: Load = Load { threads: 1, sharing: Sharing::Private };

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let profiles = stand::profiles(arguments, Requests::Unlimited);
    let shares: Vec<u64> =
        profiles.iter().map(|profile| profile.limits.written_bytes.unwrap_or(0) * arguments.seconds).collect();
    let stand = Stand::make(arguments, profiles, shares.iter().sum())?;
    let columns = ["stream", "MB/s", "of the sum", "bytes on tiers", "target", "met"];
    let title = format!("one stream to a new volume, no option set: {}", stand.devices_in_words());
    let mut section = Section::new(title, &columns);
    let native = native(&stand, &shares).context("the native side")?;
    let natively = vec!["native, all at once".into(), Cell::Number(native.rate, 1), Cell::Number(1.0, 3)];
    section.row([natively, vec![Cell::Empty, Cell::Empty, Cell::Empty]].into_iter().flatten().collect());
    set_rotation(&stand, Rotation::NonRotational)?;
    let (measured, on_tiers) = at_full_speed(&stand, shares.iter().sum()).context("at full speed")?;
    let share = measured.rate / native.rate;
    section.row(vec![
        "as fast as it goes".into(),
        Cell::Number(measured.rate, 1),
        Cell::Number(share, 3),
        stand.shares_in_words(&on_tiers).into(),
        format!("{TARGET} of the sum").into(),
        verdict(share >= TARGET),
    ]);
    section.row(placed(&stand, "80 MB/s", Some(CARRIED))?);
    set_rotation(&stand, Rotation::Rotational)?;
    section.row(placed(&stand, "as fast as it goes, slower device rotates", None)?);
    section.note("Rates are durable at the end. MB are 10^6 bytes.");
    report.add(section);
    Ok(())
}

fn verdict(is_met: bool) -> Cell {
    if is_met { "yes" } else { "no" }.into()
}

/// The faster devices do not rotate; the slowest does, or does not.
fn set_rotation(stand: &Stand, of_slowest: Rotation) -> Result<()> {
    let count = stand.profiles.len();
    NAMES.iter().take(count - 1).try_for_each(|name| stand.devices.set_rotation(name, Rotation::NonRotational))?;
    stand.devices.set_rotation(NAMES[count - 1], of_slowest)
}

fn native(stand: &Stand, shares: &[u64]) -> Result<Measured> {
    stand.devices.format_again()?;
    let places: Result<Vec<_>> = (stand.profiles.iter().zip(shares))
        .map(|(profile, share)| Ok((stand.devices.mount_point(profile.name)?, *share)))
        .collect();
    stand.throttle()?;
    let measured = ONE_WRITER.write_each(&places?, Way::Cached)?;
    stand.devices.unthrottle()?;
    Ok(measured)
}

fn new_volume(stand: &Stand) -> Result<Volume> {
    let mut volume = stand.volume_with(&Settings::default())?;
    volume.start(&stand.devices)?;
    Ok(volume)
}

fn at_full_speed(stand: &Stand, bytes: u64) -> Result<(Measured, Vec<u64>)> {
    let mut volume = new_volume(stand)?;
    stand.throttle()?;
    let measured = ONE_WRITER.write_one(volume.mount_point(), bytes)?;
    stand.devices.unthrottle()?;
    let on_tiers = volume.bytes_of_file(&volume.mount_point().join("file-0"))?;
    volume.stop()?;
    Ok((measured, on_tiers))
}

/// A stream that is to stay on the fastest tier.
fn placed(stand: &Stand, name: &str, bytes_per_second: Option<f64>) -> Result<Vec<Cell>> {
    let mut volume = new_volume(stand)?;
    let path = volume.mount_point().join("stream");
    let stream = Stream { bytes_per_second, ..Stream::at_full_speed(path.clone()) };
    let on_tiers = stand.while_written(&[stream], |_, _| wait_and_look(stand, &volume, &path));
    let (on_tiers, written) = on_tiers.with_context(|| name.to_owned())?;
    volume.stop()?;
    let elsewhere: u64 = on_tiers.iter().skip(1).sum();
    Ok(vec![
        name.into(),
        Cell::Number(written.iter().sum::<u64>() as f64 / 1e6 / stand.duration().as_secs_f64(), 1),
        Cell::Empty,
        stand.shares_in_words(&on_tiers).into(),
        "all on one tier".into(),
        verdict(elsewhere == 0),
    ])
}

fn wait_and_look(stand: &Stand, volume: &Volume, path: &Path) -> Result<Vec<u64>> {
    std::thread::sleep(stand.duration());
    volume.bytes_of_file(path)
}
