//! Output for people and programs: tables, sizes and JSON on standard output, messages on standard error.
//!
//! Invariant: an error is one line, whatever the text of its causes is.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Result;
use polymux_types::ByteSize;
use serde::Serialize;

/// Prints a line to standard output. A reader that has gone away (`polymux status | head`) is no error.
pub fn line(text: &str) -> Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Prints a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Prints a warning to standard error.
pub fn warn(text: &str) {
    eprintln!("polymux: warning: {}", one_line(text));
}

/// Prints an error to standard error.
pub fn error(error: &anyhow::Error) {
    eprintln!("polymux: {}", one_line(&format!("{error:#}")));
}

/// A text without line breaks, control characters and characters that change the direction of writing.
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().map(|character| if may_deceive(character) { '?' } else { character }).collect()
}

/// Whether a terminal acts on a character instead of showing it, or shows others elsewhere because of it: control characters,
/// line and paragraph separators, and marks, embeddings, overrides and isolates of the direction of writing.
fn may_deceive(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The name of a file for people, as it came from a daemon: characters that a terminal would act on are escaped as in Rust and C
/// (`\u{1b}`, `\n`). Names without such characters stay as they are.
pub fn name(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if may_deceive(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A path for people: like [`name`], and bytes that are not UTF-8 are shown as `\xff`.
pub fn path(path: &Path) -> String {
    use std::fmt::Write as _;
    let mut shown = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        shown.push_str(&name(chunk.valid()));
        for byte in chunk.invalid() {
            write!(shown, "\\x{byte:02x}").expect("a string takes everything");
        }
    }
    shown
}

/// A size for people; a dash where it is not known.
pub fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string())
}

/// So many files, for people.
pub fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// Rows under a heading, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column names.
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row. Panics unless it has as many cells as the heading.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "each row has a cell for each column");
        self.rows.push(cells);
    }

    /// Text of the table, each line with the given indentation in front.
    pub fn render(&self, indentation: &str) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let lines: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let cells: Vec<String> =
                    row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
                format!("{indentation}{}", cells.join("  ")).trim_end().to_owned()
            })
            .collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["tier", "free"]);
        table.row(vec!["a-long-name".to_owned(), "1 GiB".to_owned()]);
        assert_eq!(table.render("  "), "  tier         free\n  a-long-name  1 GiB");
    }

    #[test]
    fn names_are_shown_without_anything_that_a_terminal_acts_on() {
        assert_eq!(name("plain \u{e9}\u{4e2d} \\ name"), "plain \u{e9}\u{4e2d} \\ name");
        assert_eq!(name("\u{1b}]0;owned\u{7}a\nb\u{9b}1m"), "\\u{1b}]0;owned\\u{7}a\\nb\\u{9b}1m");
        assert_eq!(name("exe.\u{202e}gpj\u{2066}"), "exe.\\u{202e}gpj\\u{2066}");
        let bytes = std::ffi::OsStr::from_bytes(b"/a\xff\x1b/b");
        assert_eq!(path(Path::new(bytes)), "/a\\xff\\u{1b}/b");
    }

    #[test]
    fn an_error_is_one_line_whatever_its_causes_say() {
        assert_eq!(one_line("a\n  b\n\n\x1b[1mc"), "a; b; ?[1mc");
    }
}
