//! Tables for people and the same figures as JSON.
//!
//! Invariant: a figure enters a report once; the text and the JSON are two views of the same cells, so that they cannot
//! disagree.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Map, Value, json};

/// One cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A figure, printed with this many decimals; JSON has all of them.
    Number(f64, usize),
    /// Not measured, or it has no meaning in this row.
    Empty,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Number(crate::statistics::count(number), 0)
    }
}

impl Cell {
    /// A figure, or nothing.
    #[must_use]
    pub fn optional(number: Option<f64>, decimals: usize) -> Self {
        number.map_or(Self::Empty, |number| Self::Number(number, decimals))
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number, decimals) => format!("{number:.decimals$}"),
            Self::Empty => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(number, _) => json!(number),
            Self::Empty => Value::Null,
        }
    }
}

/// One table.
#[derive(Clone, Debug)]
pub struct Section {
    title: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

impl Section {
    /// An empty table. The first column names the rows.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self { title: title.into(), columns: columns.to_vec(), rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Where it has not as many cells as the table has columns.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row of `{}` fills every column", self.title);
        self.rows.push(cells);
    }

    /// Adds a sentence below the table.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The table as Markdown that also reads well on a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(self.columns[column].chars().count()).max(2)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: Vec<&str>| {
            let mut line = String::from("|");
            for (column, cell) in cells.into_iter().enumerate() {
                let width = widths[column];
                // Names to the left, figures to the right.
                let _ = if column == 0 { write!(line, " {cell:<width$} |") } else { write!(line, " {cell:>width$} |") };
            }
            line
        };
        let mut text = format!("\n### {}\n\n{}\n|", self.title, line(self.columns.clone()));
        for (column, width) in widths.iter().enumerate() {
            let dashes = "-".repeat(width - 1);
            text.push_str(&if column == 0 { format!(" {dashes}- |") } else { format!(" {dashes}: |") });
        }
        text.push('\n');
        for row in &rows {
            text.push_str(&line(row.iter().map(String::as_str).collect()));
            text.push('\n');
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let named = self.columns.iter().zip(row).map(|(name, cell)| ((*name).to_owned(), cell.json()));
                Value::Object(named.collect::<Map<String, Value>>())
            })
            .collect();
        json!({ "title": self.title, "rows": rows, "notes": self.notes })
    }
}

/// In which form a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables, each as soon as it is complete.
    Tables,
    /// One JSON value at the end.
    Json,
}

/// The tables of one command.
#[derive(Debug)]
pub struct Report {
    command: &'static str,
    form: Form,
    sections: Vec<Section>,
}

impl Report {
    /// An empty report of a command.
    #[must_use]
    pub fn new(command: &'static str, form: Form) -> Self {
        Self { command, form, sections: Vec::new() }
    }

    /// Adds a complete table.
    pub fn add(&mut self, section: Section) {
        if self.form == Form::Tables {
            println!("{}", section.text().trim_start_matches('\n'));
        }
        self.sections.push(section);
    }

    /// The whole report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "command": self.command, "sections": self.sections.iter().map(Section::json).collect::<Vec<_>>() })
    }

    /// Prints whatever was not printed before.
    ///
    /// # Errors
    /// Where a figure is not a number JSON knows.
    pub fn finish(self) -> Result<()> {
        if self.form == Form::Json {
            println!("{}", serde_json::to_string_pretty(&self.json())?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_show_the_same_cells() {
        let mut section = Section::new("rates", &["operation", "ratio", "flushes"]);
        section.row(vec!["create".into(), Cell::Number(4.123, 2), Cell::Empty]);
        section.note("One note.");
        let text = section.text();
        assert!(text.contains("| create    |  4.12 |       - |"), "{text}");
        assert!(text.contains("| --------- | ----: | ------: |"), "{text}");
        let mut report = Report::new("meta", Form::Json);
        report.add(section);
        let row = &report.json()["sections"][0]["rows"][0];
        assert_eq!((row["operation"].as_str(), row["ratio"].as_f64()), (Some("create"), Some(4.123)));
        assert!(row["flushes"].is_null());
    }

    #[test]
    #[should_panic(expected = "fills every column")]
    fn a_row_that_is_too_short_is_refused() {
        Section::new("rates", &["operation", "ratio"]).row(vec!["create".into()]);
    }
}
