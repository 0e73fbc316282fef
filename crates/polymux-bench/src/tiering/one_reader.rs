//! One reader that makes a hundred random reads a second in the hot set, which lies on the disk at first: how long it waits while that moves, against a
//! volume that moves nothing.
//!
//! Method:
//! * Two volumes, one after the other, and the same reads on both: without movers, and as `polymux create` makes it.
//! * The files stay open, and the page cache is dropped every eight seconds, as beside many readers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::TieringArguments;
use super::hot_set::{FILE_BYTES, FILES, HOT, ROUND, index_below, write_files};
use super::sides::{Side, SideKind};
use crate::machine::drop_caches;
use crate::noise::Noise;
use crate::report::{Cell, Report, Section};
use crate::statistics::percentile;

const READ_BYTES: usize = 4096;
/// Time from the moment when one read is due to that of the next.
const PERIOD: Duration = Duration::from_millis(10);
/// How much longer the slowest hundredth of the reads may take beside moves.
const TIMES_AS_LONG_MAX: f64 = 2.0;

/// Latencies of the reads on one volume in microseconds, and the bytes written to the SSD meanwhile.
struct Waits {
    took_us: Vec<f64>,
    written_mb: f64,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let columns = ["side", "movers", "SSD written MB", "p50 us", "p99 us", "p99 to without", "target", "met"];
    let mut section = Section::new("one reader, 100 random reads a second of a hot set on the disk", &columns);
    let is_ours =
        |side: &&SideKind| matches!(side, SideKind::Polymux | SideKind::PolymuxPassthrough | SideKind::PolymuxHeard);
    ensure!(arguments.sides.iter().any(|side| is_ours(&side)), "it is about Polymux on devices");
    for kind in arguments.sides.iter().filter(is_ours) {
        let mut without = arguments.clone();
        without.options.push("movers = 0".to_owned());
        let [still, moving] = [measure(*kind, &without)?, measure(*kind, arguments)?];
        let ratio = percentile(&moving.took_us, 99) / percentile(&still.took_us, 99);
        for (waits, movers) in [(&still, "none"), (&moving, "as by default")] {
            let is_judged = movers != "none";
            section.row(vec![
                kind.name().into(),
                movers.into(),
                Cell::Number(waits.written_mb, 0),
                Cell::Number(percentile(&waits.took_us, 50), 0),
                Cell::Number(percentile(&waits.took_us, 99), 0),
                Cell::optional(is_judged.then_some(ratio), 2),
                Cell::optional(is_judged.then_some(TIMES_AS_LONG_MAX), 1),
                if !is_judged {
                    ""
                } else if ratio <= TIMES_AS_LONG_MAX {
                    "yes"
                } else {
                    "no"
                }
                .into(),
            ]);
        }
    }
    report.add(section);
    Ok(())
}

fn measure(kind: SideKind, arguments: &TieringArguments) -> Result<Waits> {
    let side = Side::make(kind, arguments)?;
    let files = write_files(&side, FILES)?;
    side.throttle()?;
    let before = side.traffic()?;
    let took_us = read(&files, u32::from(arguments.rounds))?;
    let written_mb = side.written_to_ssd_mb(&before)?.unwrap_or(0.0);
    side.end()?;
    let waits = Waits { took_us, written_mb };
    eprintln!("{}: p99 {:.0} us, {written_mb:.0} MB written to the SSD", kind.name(), percentile(&waits.took_us, 99));
    Ok(waits)
}

/// Microseconds of each read.
fn read(files: &[PathBuf], rounds: u32) -> Result<Vec<f64>> {
    let open: Vec<File> = files[HOT[0].clone()].iter().map(File::open).collect::<std::io::Result<_>>()?;
    let mut noise = Noise::new(0x9e37_79b9_7f4a_7c15);
    let mut buffer = [0; READ_BYTES];
    let mut took_us = Vec::new();
    for _ in 0..rounds {
        drop_caches()?;
        let round = Instant::now();
        let mut next = PERIOD;
        while round.elapsed() < ROUND {
            let block = noise.below((FILE_BYTES / READ_BYTES) as u64);
            let file = &open[index_below(&mut noise, open.len())];
            let began = Instant::now();
            file.read_exact_at(&mut buffer, block * READ_BYTES as u64)?;
            took_us.push(began.elapsed().as_secs_f64() * 1e6);
            thread::sleep(next.saturating_sub(round.elapsed()));
            next += PERIOD;
        }
    }
    Ok(took_us)
}
