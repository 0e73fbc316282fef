//! Beginning to ship to a copy, when its store is opened and when its tier is back.
//!
//! Invariants:
//! * A copy goes on only where it is certain that it is a copy of this store as it was at its last opening: same store,
//!   the opening before this one, no more than the store knows, and the same last bytes. Everything else is made anew.
//! * A copy that could be started from is given up only after all tables of the store were read: where one is damaged, the
//!   copy may be the only place that has it whole.
//! * A copy that is incomplete keeps its tables where the last opening vouched for them.
//! * A copy that is ahead of the store proves that the store lost durable transactions. This is checked before the store is
//!   opened ([`refuse_copy_ahead`]), which is refused then; and again whenever a copy is reached (`knowledge`), before anything
//!   of it is changed. Then the store goes on without a copy, and that one stays as it is.
//! * A copy that cannot be reached or judged does not stop the store. The labels of the tiers get a new epoch at each mount, which
//!   the copy does not know: no caller waits for it.

use std::path::Path;
use std::time::Instant;

use super::directory::CopyDirectory;
use super::knowledge::{ends_alike, instead_of_making_anew, slot_in, weigh};
use super::ship::now_ns;
use super::slot_format::{Slot, SlotState};
use super::{CopyOptions, Desk, Mode, SecondCopy, Status};
use crate::error::StoreError;
use crate::log::{Log, LogHeader};
use crate::log_store::Inner;
use crate::tables::Tables;
use polymux_types::sync::{AtomicBool, AtomicU64, Condvar, Mutex};

/// How useful a copy is to a store that was just opened.
enum Verdict {
    /// It holds everything up to there.
    GoesOn { arrived: u64 },
    /// Its tables are those of the store, and the rest is made anew.
    KeepTables(&'static str),
    /// Nothing.
    Nothing(&'static str),
}

impl SecondCopy {
    /// Begins to ship.
    pub(crate) fn attach(options: CopyOptions, log: &Log, tables: &Tables) -> Self {
        let mut desk = Desk { directory: None, trusted: false, damage: None };
        let begun = if CopyDirectory::is_there(&options.path) {
            begin_at(&options.path, &mut desk, log, tables)
        } else {
            // Making its log takes a while. That is the first thing its thread does.
            Ok((Mode::Unreachable, 0, String::new()))
        };
        Self::new(options, desk, begun)
    }

    /// As [`SecondCopy::attach`], to a directory that is open.
    #[cfg(test)]
    pub(crate) fn attach_to(options: CopyOptions, directory: CopyDirectory, log: &Log, tables: &Tables) -> Self {
        let mut desk = Desk { directory: None, trusted: false, damage: None };
        let begun = begin(&options.path, &mut desk, directory, log, tables);
        Self::new(options, desk, begun)
    }

    fn new(options: CopyOptions, desk: Desk, begun: Result<(Mode, u64, String), StoreError>) -> Self {
        let (mode, arrived, reason) = begun.unwrap_or_else(|error| (Mode::Unreachable, 0, error.to_string()));
        match mode {
            Mode::Refused => log::error!("the second copy in {} is refused: {reason}", options.path.display()),
            _ if reason.is_empty() => {}
            _ => log::warn!("the second copy in {}: {reason}", options.path.display()),
        }
        let status = Status {
            mode,
            arrived,
            shipping_to: arrived,
            wanted: 0,
            failing: false,
            reason,
            confirmed: Instant::now(),
            kicked: false,
            stopping: None,
            finished: false,
            table_bytes: desk.directory.as_ref().map_or(0, CopyDirectory::table_bytes),
        };
        Self {
            options,
            desk: Mutex::new(desk),
            status: Mutex::new(status),
            changed: Condvar::new(),
            wake: Condvar::new(),
            sleeps_long: AtomicBool::new(false),
            shipped_bytes: AtomicU64::new(0),
            rebuilds: AtomicU64::new(u64::from(mode == Mode::Rebuilding)),
        }
    }
}

/// Weighs and judges the copy in a directory, and makes it one of this opening.
fn begin_at(path: &Path, desk: &mut Desk, log: &Log, tables: &Tables) -> Result<(Mode, u64, String), StoreError> {
    if let Some(reason) = weigh(path, log)?.refusal(path) {
        return Ok((Mode::Refused, 0, reason));
    }
    let directory = CopyDirectory::open(path, tables.partition_count(), log.ring_length())?;
    begin(path, desk, directory, log, tables)
}

/// Judges a copy that knows nothing which the store does not know, and makes it one of this opening. The desk has it afterwards, also where that failed.
fn begin(
    path: &Path,
    desk: &mut Desk,
    directory: CopyDirectory,
    log: &Log,
    tables: &Tables,
) -> Result<(Mode, u64, String), StoreError> {
    let directory = desk.directory.insert(directory);
    let header = log.header();
    let slot = Slot {
        state: SlotState::Incomplete,
        store: header.store,
        turn: 0,
        generation: header.generation,
        arrived: 0,
        time_ns: 0,
    };
    let verdict = judge(directory, header, log, tables)?;
    let is_given_up = !matches!(verdict, Verdict::GoesOn { .. });
    if is_given_up && let Some(reason) = reason_to_spare(directory.slot(), path, tables) {
        *desk = Desk { directory: None, trusted: false, damage: Some(reason.clone()) };
        return Ok((Mode::Refused, 0, reason));
    }
    match verdict {
        Verdict::GoesOn { arrived } => {
            let (here, shipped_ns) = directory
                .header()
                .zip(directory.slot())
                .map(|(here, slot)| (*here, slot.time_ns))
                .expect("a copy that goes on has a header and a slot");
            let time_ns = if arrived == log.first() { now_ns() } else { shipped_ns };
            // Its own checkpoint, and the generation that set it.
            directory.write_header(LogHeader { generation: header.generation, openings: header.openings, ..here })?;
            directory.write_slot(Slot { state: SlotState::Complete, arrived, time_ns, ..slot })?;
            desk.trusted = true;
            Ok((Mode::Current, arrived, String::new()))
        }
        Verdict::KeepTables(reason) => {
            directory.write_slot(slot)?;
            desk.trusted = true;
            Ok((Mode::Rebuilding, 0, reason.to_owned()))
        }
        Verdict::Nothing(reason) => {
            // Generation 0 vouches for nothing, should this opening end before the old content was removed.
            directory.write_slot(Slot { generation: 0, ..slot })?;
            desk.trusted = false;
            Ok((Mode::Rebuilding, 0, reason.to_owned()))
        }
    }
}

/// Why a copy is not made anew although its store knows more: a table of the store is damaged.
fn reason_to_spare(slot: Option<&Slot>, path: &Path, tables: &Tables) -> Option<String> {
    if slot.is_none_or(|slot| slot.state == SlotState::Incomplete) {
        return None;
    }
    let error = tables.verify().err()?;
    Some(instead_of_making_anew(&format!("the store is damaged ({error}), and the copy may have that whole"), path))
}

fn judge(directory: &CopyDirectory, header: LogHeader, log: &Log, tables: &Tables) -> Result<Verdict, StoreError> {
    let Some(slot) = directory.slot() else { return Ok(Verdict::Nothing("")) };
    if slot.store != header.store {
        return Ok(Verdict::Nothing("it was the copy of another store and is made anew"));
    }
    if slot.generation.checked_add(1) != Some(header.generation) {
        return Ok(Verdict::Nothing("it was not there at the last mount and is made anew"));
    }
    // A table that is not in the store could get its number again, unless later ones have greater ones already.
    let foreign =
        tables.identities().into_iter().enumerate().any(|(index, (live, highest))| {
            directory.tables(index).any(|table| table > highest && !live.contains(&table))
        });
    let ahead =
        directory.versions().iter().zip(tables.versions()).any(|(here, there)| here.is_some_and(|it| it > there));
    if foreign || ahead {
        return Ok(Verdict::Nothing("it has tables that the store does not have, and is made anew"));
    }
    if slot.state == SlotState::Incomplete {
        return Ok(Verdict::KeepTables("it was not complete yet"));
    }
    let fits = |here: &&LogHeader| {
        (here.store, here.salt, here.ring_length) == (header.store, header.salt, header.ring_length)
            && here.generation == slot.generation
            && here.checkpoint <= slot.arrived
    };
    let Some(here) = directory.header().filter(fits) else {
        return Ok(Verdict::KeepTables("its log is not that of the store, and it is made anew"));
    };
    let ends_here = here.checkpoint == slot.arrived;
    if !ends_here && ends_alike(directory.ring(), here.checkpoint, slot.arrived, log)? != Some(true) {
        return Ok(Verdict::Nothing("the store went on without it, and it is made anew"));
    }
    Ok(Verdict::GoesOn { arrived: slot.arrived })
}

/// Fails where a copy of this store holds transactions beyond `end`, the end of its log. They were durable in the store before
/// they were shipped, so the store has lost them. Nothing is changed. A copy that cannot be read proves nothing here.
pub(crate) fn refuse_copy_ahead(path: &Path, store: u64, end: u64) -> Result<(), StoreError> {
    let slot = slot_in(path).ok().flatten();
    match slot {
        Some(slot) if slot.store == store && slot.state != SlotState::Incomplete && slot.arrived > end => {
            Err(StoreError::Corrupted(format!(
                "the log ends at {end}, and its second copy in {} goes on to {}: durable transactions are lost. `polymux mount \
                 --from-copy` starts from the copy. Where that is refused because the tiers are newer, remove the copy to go on \
                 with what the store has",
                path.display(),
                slot.arrived
            )))
        }
        _ => Ok(()),
    }
}

impl Inner {
    /// Tries to come by a copy again that was given up or refused. It says that it is incomplete then, or is refused and stays
    /// as it is.
    pub(super) fn reach_copy(&self, copy: &SecondCopy, desk: &mut Desk) -> Result<(), StoreError> {
        // Closed first: descriptors of a tier that went away lead nowhere, and hold the lock.
        desk.directory = None;
        if let Some(reason) = weigh(&copy.options.path, &self.log)?.refusal(&copy.options.path) {
            copy.refuse(reason);
            return Ok(());
        }
        // A damaged copy stays damaged, and reading all tables takes a while.
        let slot = slot_in(&copy.options.path)?.filter(|slot| slot.state != SlotState::Incomplete);
        let spared = slot.and_then(|slot| {
            desk.damage.clone().or_else(|| reason_to_spare(Some(&slot), &copy.options.path, &self.tables))
        });
        if let Some(reason) = spared {
            desk.damage = Some(reason.clone());
            copy.refuse(reason);
            return Ok(());
        }
        let directory = CopyDirectory::open(&copy.options.path, self.tables.partition_count(), self.log.ring_length())?;
        let directory = desk.directory.insert(directory);
        let header = self.log.header();
        desk.trusted =
            directory.slot().is_some_and(|slot| slot.store == header.store && slot.generation == header.generation);
        if desk.trusted {
            self.mark_incomplete(directory)?;
        } else {
            directory.write_slot(Slot {
                state: SlotState::Incomplete,
                store: header.store,
                turn: 0,
                generation: 0,
                arrived: 0,
                time_ns: 0,
            })?;
        }
        let mut status = copy.status.lock();
        status.mode = Mode::Rebuilding;
        copy.rebuilds.fetch_add(1, polymux_types::sync::Ordering::Relaxed);
        Ok(())
    }
}

impl SecondCopy {
    /// Leaves the copy as it is from now on, until there is another one.
    fn refuse(&self, reason: String) {
        let mut status = self.status.lock();
        if status.mode != Mode::Refused || status.reason != reason {
            log::error!("the second copy in {} is refused: {reason}", self.options.path.display());
        }
        status.mode = Mode::Refused;
        status.reason = reason;
    }
}
