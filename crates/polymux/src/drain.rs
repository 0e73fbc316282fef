//! `polymux tier drain`: empties a tier so that it can be removed.
//!
//! Invariants:
//! * The daemon refuses a drain that cannot end before anything is changed: the metadata tier, the last tier, too little space.
//! * A drain is durable: it goes on after a restart, whether a command waits for it or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use polymux_types::ByteSize;
use signal_hook::consts::SIGINT;

use crate::cli::{OutputFormat, TierDrainArguments, output_format};
use crate::output;
use crate::pause;
use crate::progress::{Progress, Reading};
use crate::protocol::{DrainReport, MovesReport, Request};
use polymux_config::registry::Registry;

/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long nothing but parked jobs may be left before waiting ends.
const PARKED_PATIENCE: Duration = Duration::from_secs(15);

/// Begins, watches or takes back the emptying of a tier.
pub fn run(registry: &Registry, arguments: &TierDrainArguments) -> Result<()> {
    let tier = &arguments.tier;
    let format = output_format(arguments.json);
    if arguments.cancel {
        let request = Request::TierDrainCancel { tier: tier.clone() };
        let (name, moves) = pause::ask(registry, &arguments.volume, &request)?;
        return match format {
            OutputFormat::Json => output::json(&moves),
            OutputFormat::Text => output::line(&format!(
                "tier `{tier}` of volume `{name}` is used again as any other; what was moved stays where it is now"
            )),
        };
    }
    let (name, moves) = pause::ask(registry, &arguments.volume, &Request::Moves)?;
    let moves = match drain_of(&moves, tier) {
        // Asked again, it is watched.
        Some(_) => moves,
        None => pause::ask(registry, &name, &Request::TierDrain { tier: tier.clone() })?.1,
    };
    let report = if arguments.wait { wait(registry, &name, tier)? } else { drain_of(&moves, tier).cloned() };
    let Some(report) = report else { bail!("emptying tier `{tier}` was taken back") };
    tell(&name, &report, &moves, format)
}

fn drain_of<'a>(moves: &'a MovesReport, tier: &str) -> Option<&'a DrainReport> {
    moves.drains.iter().find(|drain| drain.tier == tier)
}

fn tell(volume: &str, report: &DrainReport, moves: &MovesReport, format: OutputFormat) -> Result<()> {
    let tier = &report.tier;
    if format == OutputFormat::Json {
        return output::json(report);
    }
    if report.is_empty {
        return output::line(&format!(
            "tier `{tier}` is empty: safe to remove (`polymux tier remove {volume} {tier}`)"
        ));
    }
    let size = report
        .bytes_total
        .map_or_else(String::new, |bytes| format!(", {} of {} moved", ByteSize(report.bytes_done), ByteSize(bytes)));
    output::line(&format!(
        "tier `{tier}` of volume `{volume}` is being emptied{size}; `polymux top {volume}` shows how far it is, and \
         `polymux tier drain {volume} {tier} --wait` waits for the end"
    ))?;
    for hint in hints(volume, moves) {
        output::line(&hint)?;
    }
    Ok(())
}

/// Why nothing moves although it should.
pub fn hints(volume: &str, moves: &MovesReport) -> Vec<String> {
    let mut hints = Vec::new();
    if moves.movers == 0 {
        hints.push(format!("volume `{volume}` moves nothing: its configuration says `movers = 0`"));
    }
    if moves.is_paused {
        hints.push(format!("moving is paused: `polymux resume {volume}` goes on"));
    }
    hints
}

/// Waits until the tier is empty; `None` where the drain was cancelled meanwhile.
fn wait(registry: &Registry, name: &str, tier: &str) -> Result<Option<DrainReport>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted)).context("cannot watch signals")?;
    let mut progress = Progress::start("draining");
    let mut moving_since = Instant::now();
    let mut bytes_before = 0;
    let ended = loop {
        let (_, moves) = pause::ask(registry, name, &Request::Moves)
            .with_context(|| format!("emptying tier `{tier}` goes on when the volume is mounted again"))?;
        let Some(drain) = drain_of(&moves, tier).cloned() else { break Ok(None) };
        if drain.is_empty {
            break Ok(Some(drain));
        }
        if moves.movers == 0 {
            break Err(anyhow::anyhow!(hints(name, &moves).join("; ")));
        }
        progress.show(&reading(&drain, &moves, name));
        let stands_still = drain.parked > 0 && moves.running.is_empty() && moves.queued_count == 0;
        if !stands_still || drain.bytes_done != bytes_before {
            (moving_since, bytes_before) = (Instant::now(), drain.bytes_done);
        }
        if moving_since.elapsed() > PARKED_PATIENCE {
            let why = drain.why.unwrap_or_else(|| "nothing can go on".to_owned());
            break Err(anyhow::anyhow!("tier `{tier}` is not empty, {} waiting: {why}", output::files(drain.parked)));
        }
        if interrupted.load(Ordering::Acquire) {
            break Err(anyhow::anyhow!(
                "no longer waiting; tier `{tier}` is being emptied all the same (`polymux tier drain {name} {tier} \
                 --cancel` takes it back)"
            ));
        }
        thread::sleep(POLL_INTERVAL);
    };
    progress.finish();
    ended
}

fn reading(drain: &DrainReport, moves: &MovesReport, name: &str) -> Reading {
    let waiting = drain.why.as_ref().map(|why| format!("{} waiting: {why}", output::files(drain.parked)));
    let notes: Vec<String> = hints(name, moves).into_iter().chain(waiting).collect();
    Reading {
        bytes_done: drain.bytes_done,
        bytes_total: drain.bytes_total,
        files_done: drain.files_done,
        files_total: drain.files_total,
        note: notes.join(", "),
    }
}
