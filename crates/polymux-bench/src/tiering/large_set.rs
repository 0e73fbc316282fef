//! Random reads of a set that is larger than the SSD: the rate of a file system against the best static choice.
//!
//! Method: every block of the set is read as often as any other, so the best choice has as much of it on the SSD as fits, and its
//! rate is the one at which the first device is at its limit of requests. The SSD holds data up to the high mark, natively too: the space
//! above it belongs to new data. That assumes enough readers, and no space for anything else.

use anyhow::Result;

use super::hot_set::{FILE_BYTES, FILES};
use super::sides::{DISK, SSD, SSD_BYTES_TO_MARK};
use super::subject::Subject;
use super::{TieringArguments, in_words};
use crate::report::{Cell, Report, Section};
use crate::statistics::mean;

/// Files of the set: two thirds of all, 2 GiB.
const SET: std::ops::Range<usize> = 32..96;
/// Share of the reads that go there beside those that its share of all files has: `hot_set::HOT_PERCENT`.
const SET_SHARE: f64 = 0.95;
/// Share of the best choice that is asked for.
const SHARE_OF_BEST: f64 = 0.9;

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let best = best_static();
    let columns = [
        "side",
        "reads/s in each round of 8 s",
        "SSD written MB",
        "second half",
        "best static",
        "share",
        "target",
        "met",
    ];
    let mut section = Section::new("random reads of 2 GiB, SSD of 1.2 GB, disk of 5 GB", &columns);
    for kind in &arguments.sides {
        let subject = Subject::make(*kind, arguments)?;
        let before = subject.traffic()?;
        let mut rates = Vec::new();
        for round in 0..arguments.rounds {
            let rate = subject.read(&SET, arguments.readers, u64::from(round))?;
            eprintln!("{}: round {round}: {rate:.0} reads/s", kind.name());
            rates.push(rate);
        }
        let written = subject.written_to_ssd_mb(&before)?;
        subject.end()?;
        let settled = mean(&rates[rates.len() / 2..]);
        section.row(vec![
            kind.name().into(),
            in_words(&rates).into(),
            Cell::optional(written, 0),
            Cell::Number(settled, 0),
            Cell::Number(best, 0),
            Cell::Number(settled / best, 3),
            Cell::Number(SHARE_OF_BEST, 1),
            if settled >= best * SHARE_OF_BEST { "yes" } else { "no" }.into(),
        ]);
    }
    report.add(section);
    Ok(())
}

/// Reads per second of the best static choice.
fn best_static() -> f64 {
    let limit = |profile: crate::throttled::Profile| profile.limits.reads.map_or(f64::INFINITY, |reads| reads as f64);
    let (set_bytes, all_bytes) = ((SET.len() * FILE_BYTES) as f64, (FILES * FILE_BYTES) as f64);
    // Reads of all files that are meant for none hit the set by its share.
    let of_set = SET_SHARE + (1.0 - SET_SHARE) * set_bytes / all_bytes;
    let on_ssd = of_set * (SSD_BYTES_TO_MARK as f64 / set_bytes).min(1.0);
    (limit(SSD) / on_ssd).min(limit(DISK) / (1.0 - on_ssd))
}
