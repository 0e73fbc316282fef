//! Random reads of a set that lies on the faster of two SSDs of similar speed: whether the other one comes to help.
//!
//! Method:
//! * Only requests that the devices served count, as the kernel counts them, not those that the page cache answered.
//! * One reader comes first and is not counted; then enough readers run to keep both devices busy. Files are opened anew, and caches
//!   dropped, every eight seconds.

use anyhow::{Result, ensure};

use super::TieringArguments;
use super::hot_set::FILE_BYTES;
use super::sides::{SSD, SideKind};
use super::subject::Subject;
use crate::report::{Cell, Report, Section};
use crate::statistics::mean;
use crate::throttled::{Limits, Profile};

const FASTER: Profile = Profile { name: "faster", limits: Limits { reads: Some(8_000), ..SSD.limits }, ..SSD };
const SLOWER: Profile = Profile { name: "slower", limits: Limits { reads: Some(6_000), ..SSD.limits }, ..SSD };
const DEVICE_BYTES: u64 = 3_000_000_000;
/// Files of the set: 1 GiB.
const FILES: usize = (1 << 30) / FILE_BYTES;
const READERS: u16 = 32;
/// Rounds of eight seconds after which both devices have to be in use.
const SETTLED_ROUNDS: usize = 4;
/// Required share of the combined rate of both devices.
const SHARE_OF_SUM: f64 = 0.95;

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let columns = [
        "side",
        "device reads/s in each round of 8 s",
        "written MB",
        "from 32 s on",
        "sum of both",
        "share",
        "target",
        "met",
    ];
    let title = format!("random reads of 1 GiB by {READERS} readers, two SSDs of 8,000 and 6,000 requests/s");
    let mut section = Section::new(title, &columns);
    let sum = [FASTER, SLOWER].iter().filter_map(|profile| profile.limits.reads).sum::<u64>() as f64;
    let is_ours = |side: &&SideKind| {
        matches!(side, SideKind::Polymux | SideKind::PolymuxPassthrough | SideKind::PolymuxHeard | SideKind::Simulated)
    };
    ensure!(usize::from(arguments.rounds) > SETTLED_ROUNDS, "it needs more than {SETTLED_ROUNDS} rounds");
    for kind in arguments.sides.iter().filter(is_ours) {
        let devices = [(FASTER, DEVICE_BYTES), (SLOWER, DEVICE_BYTES)];
        let subject = Subject::over(&devices, FILES, *kind, arguments)?;
        // One reader at first, who waits for no other, as on any volume in use.
        subject.read(&(0..FILES), 1, u64::from(arguments.rounds))?;
        let first = subject.traffic()?;
        let (mut rates, mut words) = (Vec::new(), Vec::new());
        for round in 0..arguments.rounds {
            let (before, begun) = (subject.traffic()?, subject.elapsed());
            let programs = subject.read(&(0..FILES), READERS, u64::from(round))?;
            let seconds = (subject.elapsed() - begun).as_secs_f64();
            let served: Vec<f64> = subject
                .traffic()?
                .iter()
                .zip(&before)
                .map(|(now, before)| now.since(before).reads as f64 / seconds)
                .collect();
            let word = served.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join("+");
            eprintln!("{}: round {round}: {word} of the devices, {programs:.0} of programs", kind.name());
            rates.push(served.iter().sum());
            words.push(word);
        }
        let written: u64 =
            subject.traffic()?.iter().zip(&first).map(|(now, before)| now.since(before).bytes_written).sum();
        subject.end()?;
        let settled = mean(&rates[SETTLED_ROUNDS..]);
        section.row(vec![
            kind.name().into(),
            words.join(" ").into(),
            Cell::Number(written as f64 / 1e6, 0),
            Cell::Number(settled, 0),
            Cell::Number(sum, 0),
            Cell::Number(settled / sum, 3),
            Cell::Number(SHARE_OF_SUM, 2),
            if settled >= sum * SHARE_OF_SUM { "yes" } else { "no" }.into(),
        ]);
    }
    report.add(section);
    Ok(())
}
