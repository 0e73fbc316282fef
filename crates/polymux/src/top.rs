//! `polymux top`: a volume at work: tiers, moves, waiting jobs and the reasons.
//!
//! Invariants:
//! * Rates are differences of the daemon's counters between two looks; nothing is measured here.
//! * The terminal is given back as it was, whatever ends the picture, a panic included.

mod sample;
mod screen;
mod text;

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::client;
use crate::mount_table::{MountTable, volumes};
use crate::output;
use crate::pause;
use crate::protocol::Request;
use crate::status;
use polymux_config::registry::Registry;
use sample::{Look, Sampler};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The view of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopForm {
    /// A picture that changes, on a terminal; one report elsewhere.
    Live,
    /// One report.
    Text,
    /// One report as JSON.
    Json,
}

/// Shows a volume at work.
pub fn run(registry: &Registry, volume: Option<&str>, form: TopForm) -> Result<()> {
    let name = match volume {
        Some(text) => client::volume_name(registry, text)?,
        None => the_only_volume()?,
    };
    let mut sampler = Sampler::default();
    sampler.take(look(registry, &name)?);
    if form == TopForm::Live && stdout().is_terminal() {
        return live(registry, &name, sampler);
    }
    thread::sleep(INTERVAL);
    let report = sampler.take(look(registry, &name)?);
    match form {
        TopForm::Json => output::json(&report),
        TopForm::Live | TopForm::Text => output::line(&text::render(&report)),
    }
}

fn the_only_volume() -> Result<String> {
    let table = MountTable::read()?;
    let mut names: Vec<&str> = volumes(&table).map(|mount| mount.source.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [] => bail!("no volume is mounted"),
        [name] => Ok(name.to_owned()),
        _ => bail!("several volumes are mounted; name one of {}", names.join(", ")),
    }
}

fn look(registry: &Registry, name: &str) -> Result<Look> {
    let (_, moves) = pause::ask(registry, name, &Request::Moves)?;
    let Some(status) = status::status_of(registry, name)? else { bail!("volume `{name}` is not mounted any more") };
    Ok(Look { at: Instant::now(), status, moves })
}

fn live(registry: &Registry, name: &str, mut sampler: Sampler) -> Result<()> {
    // Gives the terminal back in a panic, too.
    let mut terminal = ratatui::try_init().context("the terminal cannot be used; `--once` prints one report")?;
    let ended = (|| -> Result<()> {
        let mut report = sampler.take(look(registry, name)?);
        let mut due = Instant::now() + INTERVAL;
        loop {
            terminal.draw(|frame| screen::draw(frame, &report))?;
            if event::poll(due.saturating_duration_since(Instant::now()))? && ends(&event::read()?) {
                return Ok(());
            }
            if Instant::now() >= due {
                report = sampler.take(look(registry, name)?);
                due = Instant::now() + INTERVAL;
            }
        }
    })();
    ratatui::try_restore().context("the terminal cannot be given back")?;
    ended
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
