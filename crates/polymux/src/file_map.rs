//! The picture that `where --map` draws: a file over its tiers, one character for each piece of it.
//!
//! Invariants:
//! * All cells stand for the same number of bytes, the last one perhaps for fewer.
//! * A capital letter is a tier that holds all of a cell's data, a small one the tier that holds most of it, a dot is a
//!   hole. Letters alone tell everything; colours only repeat it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, stdout};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use polymux_types::ByteSize;
use ratatui::crossterm::style::{Color, Stylize};
use rustix::fs::SeekFrom;
use serde::Serialize;

use crate::protocol::{ExtentReport, WhereReport};

/// Cells of the largest picture.
const CELLS_MAX: u64 = 1024;

/// Smallest piece of a file that has a place of its own.
const CELL_BYTES_MIN: u64 = 4096;

/// Most runs of data that are looked for in a file; behind them holes are not distinguished from data.
const RUNS_MAX: usize = 65_536;

/// Columns in front of each row, for its offset.
const LABEL_WIDTH: u64 = 11;

/// A cell that is a hole.
const HOLE: char = '.';

const COLOURS: [Color; 6] = [Color::Green, Color::Blue, Color::Magenta, Color::Yellow, Color::Cyan, Color::Red];

/// Whether letters are coloured too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// Only letters.
    Plain,
    /// A colour for each tier.
    PerTier,
}

/// A file over its tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileMap {
    /// Bytes that a character stands for.
    cell_bytes: u64,
    /// Characters in a row.
    columns: u64,
    /// The file from its beginning, a character for each cell.
    cells: String,
    /// Letter of each place.
    legend: BTreeMap<char, String>,
    /// Whether holes could be looked for.
    knows_holes: bool,
}

/// Columns of the terminal; those of an ordinary one elsewhere.
pub fn width() -> u64 {
    let from_environment = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || stdout().is_terminal().then(ratatui::crossterm::terminal::size)?.ok();
    from_environment.or_else(|| of_terminal().map(|(columns, _)| columns)).map_or(80, u64::from).max(20)
}

/// Colours on a terminal, unless `NO_COLOR` is set and not empty.
pub fn colours() -> Colours {
    let wanted = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if wanted { Colours::PerTier } else { Colours::Plain }
}

impl FileMap {
    /// The picture of a file, for so many columns.
    pub fn of(file: &Path, report: &WhereReport, width: u64) -> Self {
        let data = data_runs(file, report.size);
        let columns = width.saturating_sub(LABEL_WIDTH).clamp(8, 128);
        Self::from_parts(report, data.as_deref(), columns, CELLS_MAX)
    }

    /// One row of `columns` characters at most, followed by its legend; holes are drawn like the data around them.
    pub fn row(report: &WhereReport, columns: u64, colours: Colours) -> String {
        let map = Self::from_parts(report, None, columns, columns);
        let cells: String = map.cells.chars().map(|cell| map.coloured(cell, colours)).collect();
        let legend = map.legend.iter().map(|(letter, place)| format!("{} {place}", map.coloured(*letter, colours)));
        format!("{cells}  {}", legend.collect::<Vec<_>>().join("  "))
    }

    fn from_parts(report: &WhereReport, data: Option<&[Range<u64>]>, columns: u64, cells_max: u64) -> Self {
        let cell_bytes = report.size.div_ceil(cells_max).max(CELL_BYTES_MIN).next_multiple_of(CELL_BYTES_MIN);
        let legend = legend(report);
        let letter_of = |place: &str| legend.iter().find(|(_, known)| *known == place).map(|(letter, _)| *letter);
        let knows_holes = data.is_some();
        let whole = 0..report.size;
        let data = data.unwrap_or(std::slice::from_ref(&whole));
        let mut cells = String::new();
        let (mut extents, mut runs) = (&report.extents[..], data);
        for start in (0..report.size).step_by(usize::try_from(cell_bytes).unwrap_or(usize::MAX)) {
            let cell = start..(start + cell_bytes).min(report.size);
            while extents.first().is_some_and(|extent| extent.offset + extent.length <= cell.start) {
                extents = &extents[1..];
            }
            while runs.first().is_some_and(|run| run.end <= cell.start) {
                runs = &runs[1..];
            }
            cells.push(letter_of_cell(&cell, extents, runs, letter_of));
        }
        Self { cell_bytes, columns, cells, legend, knows_holes }
    }

    /// The picture with its legend.
    pub fn render(&self, colours: Colours) -> String {
        let cells: Vec<char> = self.cells.chars().collect();
        let columns = usize::try_from(self.columns).unwrap_or(80);
        let mut lines = vec![format!("  each character is {}", ByteSize(self.cell_bytes))];
        for (row, cells) in cells.chunks(columns).enumerate() {
            let offset = ByteSize(self.cell_bytes * self.columns * row as u64).to_string();
            let text: String = cells.iter().map(|cell| self.coloured(*cell, colours)).collect();
            lines.push(format!("{offset:>10} {text}"));
        }
        let mut legend: Vec<String> =
            self.legend.iter().map(|(letter, place)| format!("{} {place}", self.coloured(*letter, colours))).collect();
        if self.cells.contains(HOLE) {
            legend.push(format!("{HOLE} hole"));
        }
        if !self.knows_holes {
            legend.push("holes are not known".to_owned());
        }
        if self.cells.contains(|cell: char| cell.is_lowercase()) {
            legend.push("small letter: most of it there".to_owned());
        }
        lines.push(format!("  {}", legend.join("   ")));
        lines.join("\n")
    }

    fn coloured(&self, cell: char, colours: Colours) -> String {
        let index = self.legend.keys().position(|letter| *letter == cell.to_ascii_uppercase());
        match (colours, index) {
            (Colours::PerTier, Some(index)) => cell.with(COLOURS[index % COLOURS.len()]).to_string(),
            _ => cell.to_string(),
        }
    }
}

/// A letter for each place that holds bytes of the file: the first of its name that no other place has.
fn legend(report: &WhereReport) -> BTreeMap<char, String> {
    let mut legend = BTreeMap::new();
    let shares = report.tiers.iter().map(|share| &share.tier);
    let places = shares.chain(report.extents.iter().filter_map(|extent| extent.tier.as_ref()));
    for place in places {
        if legend.values().any(|known| known == place) {
            continue;
        }
        let own = place.chars().filter(char::is_ascii_alphabetic).map(|letter| letter.to_ascii_uppercase());
        let letter = own.chain('A'..='Z').find(|letter| !legend.contains_key(letter));
        // There are more letters than tiers in any volume of sense; those after them share one.
        legend.insert(letter.unwrap_or('?'), place.clone());
    }
    legend
}

fn letter_of_cell(
    cell: &Range<u64>,
    extents: &[ExtentReport],
    data: &[Range<u64>],
    letter_of: impl Fn(&str) -> Option<char>,
) -> char {
    let mut bytes: BTreeMap<char, u64> = BTreeMap::new();
    for extent in extents.iter().take_while(|extent| extent.offset < cell.end) {
        let Some(letter) = extent.tier.as_deref().and_then(&letter_of) else { continue };
        let start = extent.offset.max(cell.start);
        let end = (extent.offset + extent.length).min(cell.end);
        let inside = data.iter().take_while(|run| run.start < end);
        let held: u64 = inside.map(|run| run.end.min(end).saturating_sub(run.start.max(start))).sum();
        if held > 0 {
            *bytes.entry(letter).or_default() += held;
        }
    }
    let most = bytes.iter().max_by_key(|(_, held)| **held);
    match (most, bytes.len()) {
        (None, _) => HOLE,
        (Some((letter, _)), 1) => *letter,
        (Some((letter, _)), _) => letter.to_ascii_lowercase(),
    }
}

/// The parts of a file that hold data; `None` where they are unknown.
fn data_runs(path: &Path, size: u64) -> Option<Vec<Range<u64>>> {
    // Opening a pipe would block until its other end is opened.
    if !path.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file.as_fd(), SeekFrom::Data(at)) {
            Ok(start) => start,
            // From here to the end is a hole.
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => return None,
        };
        let end = rustix::fs::seek(file.as_fd(), SeekFrom::Hole(start)).ok()?;
        if runs.len() == RUNS_MAX {
            runs.push(start..size);
            break;
        }
        runs.push(start..end);
        at = end;
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(size: u64, extents: &[(u64, u64, &str)]) -> WhereReport {
        let extents = extents.iter().map(|(offset, length, tier)| ExtentReport {
            offset: *offset,
            length: *length,
            tier: Some((*tier).to_owned()),
        });
        WhereReport {
            ino: 7,
            path: None,
            size,
            home: None,
            bytes_inline: 0,
            tiers: Vec::new(),
            extents: extents.collect(),
            extent_records: 0,
            damaged: Vec::new(),
            open_handles: 0,
            io: String::new(),
        }
    }

    const KIB: u64 = 1024;

    #[test]
    fn each_block_of_a_small_file_has_a_character() {
        let report = report(32 * KIB, &[(0, 16 * KIB, "fast"), (16 * KIB, 16 * KIB, "slow")]);
        let data = [0..8 * KIB, 12 * KIB..28 * KIB];
        let map = FileMap::from_parts(&report, Some(&data), 69, CELLS_MAX);
        assert_eq!(map.cells, "FF.FSSS.");
        assert_eq!(map.render(Colours::Plain).lines().last().unwrap(), "  F fast   S slow   . hole");
        assert!(map.render(Colours::PerTier).contains('\x1b') && map.render(Colours::Plain).is_ascii());
    }

    #[test]
    fn a_cell_of_several_tiers_has_a_small_letter() {
        let size = CELLS_MAX * 8 * KIB;
        let report = report(size, &[(0, 2 * KIB, "fast"), (2 * KIB, size - 2 * KIB, "fat")]);
        let map = FileMap::from_parts(&report, None, 69, CELLS_MAX);
        assert_eq!(map.cell_bytes, 8 * KIB);
        assert_eq!(map.cells.len() as u64, CELLS_MAX);
        assert!(map.cells.starts_with("aAAA"), "{}", &map.cells[..8]);
        assert_eq!(map.legend, BTreeMap::from([('F', "fast".to_owned()), ('A', "fat".to_owned())]));
    }

    #[test]
    fn rows_fit_the_width() {
        let report = report(4 << 20, &[(0, 4 << 20, "fast")]);
        for width in [20, 40, 80, 200] {
            let map = FileMap::from_parts(&report, None, width - LABEL_WIDTH, CELLS_MAX);
            let longest = map.render(Colours::Plain).lines().filter(|line| line.contains("FFF")).map(str::len).max();
            assert!(longest.is_some_and(|longest| longest as u64 <= width), "{width}: {longest:?}");
        }
    }

    #[test]
    fn a_row_is_a_picture_in_one_line() {
        let report = report(48 << 20, &[(0, 32 << 20, "fast"), (32 << 20, 16 << 20, "slow")]);
        assert_eq!(FileMap::row(&report, 12, Colours::Plain), "FFFFFFFFSSSS  F fast  S slow");
    }

    #[test]
    fn an_empty_file_is_no_picture_but_no_failure() {
        let map = FileMap::from_parts(&report(0, &[]), Some(&[]), 69, CELLS_MAX);
        assert_eq!(map.cells, "");
        assert!(!map.render(Colours::Plain).is_empty());
    }
}
