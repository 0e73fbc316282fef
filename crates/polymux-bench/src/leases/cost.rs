//! The cost of a lease: asking for it and giving it back, and its recall when the file is opened for changes.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polymux_client::{File as ClientFile, Way};

use crate::report::{Cell, Section};
use crate::statistics::{Spread, percentile};

const BLOCK: usize = 4096;
/// Reads before the client asks for a lease; the next one asks.
const READS_BEFORE: usize = 16;
/// How long the daemon may take to hear that a description is gone, before the next measurement.
const PAUSE: Duration = Duration::from_millis(10);

fn read(file: &ClientFile, reads: usize) -> Result<()> {
    let mut buffer = [0; BLOCK];
    for _ in 0..reads {
        ensure!(file.read_at(&mut buffer, 0)? == BLOCK, "the file is too short");
    }
    Ok(())
}

fn microseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// Microseconds of open, reads and close.
fn opened_and_read(path: &Path, reads: usize, leases: u64) -> Result<f64> {
    let begun = Instant::now();
    let file = ClientFile::open(path)?;
    read(&file, reads)?;
    let given = file.report();
    drop(file);
    let time = microseconds(begun);
    ensure!(given.leases == leases, "{} leases instead of {leases}; {given}", given.leases);
    Ok(time)
}

/// Microseconds of an open for changes while the file is read: by a lease, or through the mount.
fn opened_for_changes(path: &Path, has_lease: bool) -> Result<f64> {
    let file = ClientFile::open(path)?;
    read(&file, if has_lease { READS_BEFORE + 2 } else { READS_BEFORE - 1 })?;
    let before = file.report();
    ensure!((before.leases == 1 && before.reads(Way::Directly) == 1) == has_lease, "{before}");
    let begun = Instant::now();
    let changing = OpenOptions::new().write(true).open(path)?;
    let time = microseconds(begun);
    read(&file, 1)?;
    let after = file.report();
    ensure!(after.reads(Way::Directly) == before.reads(Way::Directly), "a read was direct after a recall; {after}");
    ensure!((after.reads(Way::Recalled) == 1) == has_lease, "{after}");
    drop(changing);
    Ok(time)
}

fn row(section: &mut Section, name: &str, times: &[f64]) {
    let spread = Spread::of(times);
    section.row(vec![
        name.into(),
        Cell::Number(spread.median, 1),
        Cell::Number(percentile(times, 99), 1),
        Cell::Number(spread.max, 1),
    ]);
}

/// Measures both costs, one kind of operation after the other in each turn.
pub(super) fn measure(path: &Path, turns: usize) -> Result<Section> {
    drop(File::open(path)?);
    let [mut without, mut with, mut more, mut unleased, mut leased] = [(); 5].map(|()| Vec::new());
    for _ in 0..turns {
        std::thread::sleep(PAUSE);
        without.push(opened_and_read(path, READS_BEFORE, 0)?);
        std::thread::sleep(PAUSE);
        with.push(opened_and_read(path, READS_BEFORE + 1, 1)?);
        more.push(with[with.len() - 1] - without[without.len() - 1]);
        std::thread::sleep(PAUSE);
        unleased.push(opened_for_changes(path, false)?);
        std::thread::sleep(PAUSE);
        leased.push(opened_for_changes(path, true)?);
    }
    let mut section = Section::new("The cost of a lease", &["what", "median us", "p99 us", "longest us"]);
    row(&mut section, "open, 16 reads, close", &without);
    row(&mut section, "open, 17 reads with a lease, close", &with);
    row(&mut section, "asking, one read and giving back, as the difference", &more);
    row(&mut section, "open for changes, a reader without a lease", &unleased);
    row(&mut section, "open for changes, a reader with a lease", &leased);
    Ok(section)
}
