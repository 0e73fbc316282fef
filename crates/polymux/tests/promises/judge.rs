//! Compares the content of a recovered volume with the promises made before the power failure and the operations attempted until then.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::Path;

use super::history::{
    Change, Event, FileHistory, FileId, Ledger, Names, Position, Promise, SECTOR, describe, number_of, promised, stamp,
};

/// How much a power failure could have broken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    /// Promises that were in force.
    pub promises: u64,
    pub files: u64,
    /// Sectors that were compared with their possible contents.
    pub sectors: u64,
}

impl Checked {
    pub fn add(&mut self, other: Self) {
        self.promises += other.promises;
        self.files += other.files;
        self.sectors += other.sectors;
    }
}

/// Judges the directory of each writer; the error lists all violations.
pub fn judge(root: &Path, ledgers: &[Ledger], position: Position) -> Result<Checked, String> {
    let mut checked = Checked::default();
    let mut wrong = Vec::new();
    for ledger in ledgers {
        if let Err(found) = judge_ledger(&root.join(&ledger.directory), ledger, position, &mut checked) {
            wrong.push(found);
        }
    }
    if wrong.is_empty() { Ok(checked) } else { Err(wrong.join("\n")) }
}

fn judge_ledger(directory: &Path, ledger: &Ledger, position: Position, checked: &mut Checked) -> Result<(), String> {
    let state = judge_names(directory, ledger, position)?;
    checked.promises += ledger.promises.iter().filter(|promise| promise.end <= position).count() as u64;
    let mut done = Vec::new();
    for (name, file) in &ledger.states[state].names {
        if done.contains(file) {
            continue;
        }
        done.push(*file);
        let history = &ledger.files[file.0];
        let with_names = history.with_names.iter().filter(|(since, _)| *since <= state).map(|(_, count)| *count);
        let durable = with_names.max().unwrap_or(0).max(promised(&history.promises, position));
        let possible = history.events.iter().filter(|event| event.begin < position).count().max(durable);
        let path = directory.join(name);
        let wrong = |what: String| {
            format!(
                "{}/{name} (inode {:?}, file {}, changes {durable} to {possible} of {}): {what}",
                ledger.directory,
                history.inode,
                file.0,
                history.events.len()
            )
        };
        let mut bytes = Vec::new();
        let read = fs::File::open(&path).and_then(|mut opened| opened.read_to_end(&mut bytes));
        read.map_err(|error| wrong(format!("cannot be read: {error}")))?;
        judge_size(bytes.len(), &history.events, durable..=possible).map_err(wrong)?;
        judge_bytes(&bytes, (ledger.writer, *file), history, durable..=possible).map_err(wrong)?;
        checked.files += 1;
        checked.sectors += bytes.len().div_ceil(SECTOR) as u64;
        grow(&path, bytes.len() as u64).map_err(wrong)?;
    }
    Ok(())
}

/// The names must be those of one state, and none before the promised one. Returns the first such state.
fn judge_names(directory: &Path, ledger: &Ledger, position: Position) -> Result<usize, String> {
    let found = names_in(directory).map_err(|error| format!("{}: {error}", ledger.directory))?;
    let durable = promised(&ledger.promises, position);
    let possible = ledger.states.iter().filter(|state| state.begin < position).count().max(durable + 1);
    let names_of = |state: usize| -> BTreeMap<String, Option<u64>> {
        let names = &ledger.states[state].names;
        names.iter().map(|(name, file)| (name.clone(), ledger.files[file.0].inode)).collect()
    };
    let is_state = |state: &usize| {
        let names = names_of(*state);
        let same = |(known, there): ((&String, &Option<u64>), (&String, &u64))| {
            known.0 == there.0 && known.1.is_none_or(|inode| inode == *there.1)
        };
        names.len() == found.len() && names.iter().zip(&found).all(same)
    };
    (durable..possible).find(is_state).ok_or_else(|| {
        let older = (0..ledger.states.len()).filter(is_state).collect::<Vec<_>>();
        format!(
            "{}: the names are those of none of the states {durable} to {} (but of {older:?}): {found:?}; promised were {:?}",
            ledger.directory,
            possible - 1,
            names_of(durable)
        )
    })
}

fn names_in(directory: &Path) -> io::Result<BTreeMap<String, u64>> {
    let named = |entry: fs::DirEntry| (entry.file_name().to_string_lossy().into_owned(), entry.ino());
    fs::read_dir(directory)?.map(|entry| entry.map(named)).collect()
}

type Changes = std::ops::RangeInclusive<usize>;

/// The size is one that the file had since, or one in between.
fn judge_size(length: usize, events: &[Event], changes: Changes) -> Result<(), String> {
    let sizes = changes.clone().map(|count| count.checked_sub(1).map_or(0, |last| events[last].size));
    let sizes: Vec<u64> = sizes.map(|sectors| sectors * SECTOR as u64).collect();
    let (least, most) = (sizes.iter().min().expect("one size"), sizes.iter().max().expect("one size"));
    if (*least..=*most).contains(&(length as u64)) {
        return Ok(());
    }
    Err(format!("{length} bytes long, and not {least} to {most}; the sizes since the last promise: {sizes:?}"))
}

/// Each piece of a sector is as it was after the last promised change, or after one that was made later.
fn judge_bytes(bytes: &[u8], id: (u32, FileId), history: &FileHistory, changes: Changes) -> Result<(), String> {
    let values = values_after(history, *changes.start());
    let later: Vec<(u32, &Event)> = history.numbered().take(*changes.end()).skip(*changes.start()).collect();
    let mut wrong = Vec::new();
    for (sector, found) in (0_u64..).zip(bytes.chunks(SECTOR)) {
        let index = usize::try_from(sector).expect("an index fits");
        let durable = values.get(index).copied().unwrap_or(0);
        let mut allowed = vec![durable];
        allowed.extend(later.iter().filter_map(|(number, event)| value_of(event, *number, sector)));
        for piece in found.chunks(32) {
            let is_right = allowed.iter().any(|number| match number {
                0 => piece.iter().all(|byte| *byte == 0),
                number => stamp(id.0, id.1, sector, *number).starts_with(piece),
            });
            if !is_right {
                wrong.push(format!("sector {sector} holds {} instead of one of {allowed:?}", describe(piece)));
                break;
            }
        }
    }
    match wrong.len() {
        0 => Ok(()),
        count => Err(format!("{count} sectors are wrong: {}", wrong[..count.min(6)].join("; "))),
    }
}

/// The bytes that a change puts into a sector, if it touches it.
fn value_of(event: &Event, number: u32, sector: u64) -> Option<u32> {
    match &event.change {
        Change::Write(sectors) => sectors.contains(&sector).then_some(number),
        Change::Punch(sectors) => sectors.contains(&sector).then_some(0),
        Change::Resize(size) => (sector >= *size).then_some(0),
        Change::Found(_) => unreachable!("what was found after a crash is synced before anything else"),
    }
}

/// Number of the change that each sector shows after the first ones.
fn values_after(history: &FileHistory, count: usize) -> Vec<u32> {
    let mut values: Vec<u32> = Vec::new();
    let index = |sector: u64| usize::try_from(sector).expect("an index fits");
    for (number, event) in history.numbered().take(count) {
        let size = index(event.size);
        values.resize(size, 0);
        match &event.change {
            Change::Write(sectors) => values[index(sectors.start)..index(sectors.end)].fill(number),
            Change::Punch(sectors) => values[index(sectors.start)..index(sectors.end)].fill(0),
            Change::Resize(_) => {}
            Change::Found(numbers) => values.clone_from(numbers),
        }
    }
    values
}

/// Bytes behind the end of a file read as zeros when it grows: no earlier byte comes back.
fn grow(path: &Path, length: u64) -> Result<(), String> {
    const MORE: usize = 64 << 10;
    let mut bytes = vec![1; MORE];
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| error.to_string())?;
    let grown = file.set_len(length + MORE as u64).and_then(|()| file.read_exact_at(&mut bytes, length));
    let grown = grown.and_then(|()| file.set_len(length));
    grown.map_err(|error| format!("cannot grow: {error}"))?;
    match bytes.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => {
            let piece = &bytes[at / 32 * 32..at / 32 * 32 + 32];
            Err(format!("grows and shows, {at} bytes behind its end of {length}, {}", describe(piece)))
        }
    }
}

/// After a crash, the content found is synced and becomes the content required after the next one. The names must have been judged.
pub fn take_up(root: &Path, ledger: &mut Ledger) -> io::Result<()> {
    let directory = root.join(&ledger.directory);
    let mut names = BTreeMap::new();
    for (name, inode) in names_in(&directory)? {
        let of = |wanted: Option<u64>| ledger.files.iter().rposition(|file| file.inode == wanted);
        // Only the last file of a round may have an inode that was never reported.
        let index = of(Some(inode)).or_else(|| of(None)).expect("the names were judged");
        ledger.files[index].inode = Some(inode);
        let found = found_and_synced(&directory.join(&name))?;
        let file = &mut ledger.files[index];
        file.earlier = file.next_number() - 1;
        file.events = vec![found];
        file.promises = vec![Promise { end: Position(0), count: 1 }];
        file.with_names.clear();
        file.named = 0;
        names.insert(name, FileId(index));
    }
    fs::File::open(&directory)?.sync_all()?;
    for file in ledger.files.iter_mut().filter(|file| file.inode.is_none()) {
        // It never came to be; no inode has this number.
        file.inode = Some(0);
    }
    ledger.states = vec![Names { begin: Position(0), names }];
    ledger.promises.clear();
    Ok(())
}

/// Content of a file, cut to whole sectors (an append may have been cut short) and synced.
fn found_and_synced(path: &Path) -> io::Result<Event> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    bytes.truncate(bytes.len() / SECTOR * SECTOR);
    file.set_len(bytes.len() as u64)?;
    file.sync_all()?;
    let numbers: Vec<u32> = bytes.chunks(SECTOR).map(number_of).collect();
    Ok(Event { begin: Position(0), size: numbers.len() as u64, change: Change::Found(numbers) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises::history::stamped;

    const ID: (u32, FileId) = (1, FileId(2));

    fn history(changes: &[Change]) -> FileHistory {
        let mut ledger = Ledger::new(ID.0);
        ledger.files = vec![FileHistory::new(0); 3];
        for change in changes {
            ledger.note_change(ID.1, Position(0), change.clone());
        }
        ledger.files.pop().expect("the last one")
    }

    fn is_right(bytes: &[u8], history: &FileHistory, durable: usize, possible: usize) -> bool {
        judge_size(bytes.len(), &history.events, durable..=possible).is_ok()
            && judge_bytes(bytes, ID, history, durable..=possible).is_ok()
    }

    #[test]
    fn the_judge_takes_what_was_promised_or_came_later_and_nothing_else() {
        let history = history(&[Change::Write(0..8), Change::Write(2..4), Change::Resize(3), Change::Write(3..6)]);
        let first = stamped(1, FileId(2), 0..8, 1);
        let mut second = first.clone();
        second[2 * SECTOR..4 * SECTOR].copy_from_slice(&stamped(1, FileId(2), 2..4, 2));
        assert!(is_right(&first, &history, 1, 4));
        assert!(is_right(&second, &history, 1, 4));
        assert!(!is_right(&first, &history, 2, 4), "the second write was promised");
        assert!(!is_right(&second, &history, 1, 1), "the second write was not made yet");
        assert!(!is_right(&second, &history, 3, 3), "the cut was promised");
        assert!(is_right(&second[..3 * SECTOR], &history, 3, 4));
        assert!(!is_right(&second[..4 * SECTOR], &history, 3, 4), "a byte that was cut off");
        assert!(
            is_right(&[&second[..3 * SECTOR], &[0; SECTOR]].concat(), &history, 3, 4),
            "an append without its bytes"
        );
        assert!(!is_right(&stamped(1, FileId(1), 0..8, 1), &history, 1, 4), "bytes of another file");
        assert!(!is_right(&stamped(1, FileId(2), 1..9, 1), &history, 1, 4), "bytes of another place");
    }
}
