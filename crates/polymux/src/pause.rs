//! `polymux pause` and `polymux resume`: whether blocks of a volume move.
//!
//! Invariant: the pause lasts until it is taken back or the volume is mounted again; a migration that is under
//! way when it begins finishes its batch.

use anyhow::Result;

use crate::cli::OutputFormat;
use crate::client;
use crate::output;
use crate::protocol::{Answer, MovesReport, Request};
use polymux_config::registry::Registry;

/// Lets the movers of a volume rest.
pub fn pause(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let (name, moves) = ask(registry, volume, &Request::Pause)?;
    match format {
        OutputFormat::Json => output::json(&moves),
        OutputFormat::Text => output::line(&format!(
            "moving is paused on volume `{name}`: {} jobs wait; `polymux resume {name}` goes on",
            moves.queued_count + moves.parked_count
        )),
    }
}

/// Lets the movers of a volume work again.
pub fn resume(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let (name, moves) = ask(registry, volume, &Request::Resume)?;
    match format {
        OutputFormat::Json => output::json(&moves),
        OutputFormat::Text => output::line(&format!(
            "moving goes on on volume `{name}`: {} jobs wait for their turn, {} for an event",
            moves.queued_count, moves.parked_count
        )),
    }
}

/// Sends a request that is answered with how moves are, to a volume that a name or a mount point means. Returns its name
/// too.
pub fn ask(registry: &Registry, volume: &str, request: &Request) -> Result<(String, MovesReport)> {
    let name = client::volume_name(registry, volume)?;
    match client::ask_mounted(registry, &name, request)? {
        Answer::Moves(moves) => Ok((name, *moves)),
        _ => Err(client::answered_something_else(&name)),
    }
}
