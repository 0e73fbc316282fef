//! False sharing: the throughput that threads without syncs lose when one more thread syncs after each of its operations.
//!
//! Method:
//! * Both halves run the same number of threads in private directories for the same time; only thread 0 differs. Its
//!   own operations are not counted.
//! * Halves take turns, and which comes first changes from round to round.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Both, Contest, Party};
use crate::parallel;
use crate::report::{Cell, Report, Section};
use crate::side::{Durability, PrivateDirectory, Side};
use crate::statistics::{Spread, count};

const THREADS: usize = 8;

/// How often the clock is looked at, in operations.
const BETWEEN_LOOKS: usize = 16;

/// Rates of one half, in operations per second.
#[derive(Clone, Copy, Debug)]
struct Half {
    others: f64,
    first: f64,
}

pub(super) fn measure(contest: &Contest<'_>, report: &mut Report) -> Result<()> {
    let columns = [
        "side",
        "others alone, per second",
        "others beside a syncing thread",
        "loss %",
        "spread",
        "syncing thread, per second",
    ];
    let mut section = Section::new(format!("False sharing, {THREADS} threads create"), &columns);
    let mut rounds: Both<Vec<(Half, Half)>> = Both::default();
    for round in 0..contest.arguments.rounds {
        for (party, side) in contest.in_turn(round) {
            let time = Duration::from_secs_f64(contest.arguments.sharing_seconds);
            let mut halves = [None, None];
            for turn in [round % 2, (round + 1) % 2] {
                let durability = if turn == 0 { Durability::Later } else { Durability::Synced };
                halves[turn] = Some(half(side, &format!("sharing-{round}-{turn}"), durability, time)?);
            }
            if let [Some(alone), Some(beside)] = halves {
                match party {
                    Party::Native => rounds.native.push((alone, beside)),
                    Party::Polymux => rounds.polymux.push((alone, beside)),
                }
            }
        }
    }
    for (side, rounds) in [(contest.native, &rounds.native), (contest.polymux, &rounds.polymux)] {
        let median = |figure: fn(&(Half, Half)) -> f64| Spread::of(&rounds.iter().map(figure).collect::<Vec<_>>());
        let loss = median(|(alone, beside)| (1.0 - beside.others / alone.others) * 100.0);
        section.row(vec![
            side.name().into(),
            Cell::Number(median(|(alone, _)| alone.others).median, 0),
            Cell::Number(median(|(_, beside)| beside.others).median, 0),
            Cell::Number(loss.median, 1),
            loss.range(1).into(),
            Cell::Number(median(|(_, beside)| beside.first).median, 0),
        ]);
    }
    section.note(
        "Creation without fsync by seven threads, while an eighth creates without fsync too, and while it calls fsync \
         after each creation. A negative loss is a gain: the eighth waits and leaves its share of the processor.",
    );
    report.add(section);
    Ok(())
}

fn half(side: &dyn Side, label: &str, first: Durability, time: Duration) -> Result<Half> {
    let directories: Vec<Box<dyn PrivateDirectory>> = (0..THREADS)
        .map(|thread| side.private_directory(&format!("{label}-{thread}"), thread as u64 + 1))
        .collect::<Result<_>>()?;
    side.drain()?;
    side.sync()?;
    let (_, rates) = parallel::run(directories, |thread, directory| {
        let durability = if thread == 0 { first } else { Durability::Later };
        create_for(directory.as_ref(), durability, time)
    })?;
    Ok(Half { first: rates[0], others: rates[1..].iter().sum() })
}

/// Creates files until the time is over. Returns the rate.
fn create_for(directory: &dyn PrivateDirectory, durability: Durability, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < time {
        for _ in 0..BETWEEN_LOOKS {
            directory.create(&format!("file{done:08}"), durability)?;
            done += 1;
        }
    }
    Ok(count(done) / start.elapsed().as_secs_f64())
}
