//! Progress of long work on standard error: a bar on a terminal, a plain line now and then elsewhere (DESIGN section 13).
//!
//! Invariant: standard output stays free for the result.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use polymux_types::ByteSize;

use crate::output;
use crate::rate::{self, Rate};

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two looks of a line on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// How far something is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes that are done with.
    pub bytes_done: u64,
    /// All bytes; `None` while they are not known.
    pub bytes_total: Option<u64>,
    /// Files that are done with.
    pub files_done: u64,
    /// All files; `None` while they are not known.
    pub files_total: Option<u64>,
    /// An additional remark.
    pub note: String,
}

/// Shows how far something is.
pub struct Progress {
    what: &'static str,
    start: Instant,
    rate: Rate,
    bar: Option<ProgressBar>,
    line_due: Duration,
    note: String,
}

impl Progress {
    /// Begins. `what` names the activity in one word.
    pub fn start(what: &'static str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style =
                ProgressStyle::with_template("{prefix} {bar:24} {wide_msg}").expect("the template is well formed");
            bar.set_style(style);
            bar.set_prefix(what);
            bar
        });
        Self { what, start: Instant::now(), rate: Rate::default(), bar, line_due: LINE_INTERVAL, note: String::new() }
    }

    /// Shows a reading.
    pub fn show(&mut self, reading: &Reading) {
        let now = self.start.elapsed();
        self.rate.note(now, reading.bytes_done);
        let text = sentence(reading, &self.rate);
        let is_news = self.note != reading.note && !reading.note.is_empty();
        self.note.clone_from(&reading.note);
        match &self.bar {
            Some(bar) => {
                bar.set_length(reading.bytes_total.unwrap_or(0).max(1));
                bar.set_position(reading.bytes_done);
                bar.set_message(text);
                // There is seldom space for it beside the bar.
                if is_news {
                    bar.println(output::one_line(&reading.note));
                }
            }
            None if now >= self.line_due => {
                self.line_due = now + LINE_INTERVAL;
                let note = if reading.note.is_empty() { String::new() } else { format!(", {}", reading.note) };
                eprintln!("{}: {}", self.what, output::one_line(&format!("{text}{note}")));
            }
            None => {}
        }
    }

    /// Takes the bar off the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows how far something is that goes step by step and has no bytes to count. `Step` tells its steps apart.
pub struct StepLine<Step> {
    what: &'static str,
    bar: Option<ProgressBar>,
    step: Option<Step>,
    step_start: Instant,
    due: Instant,
}

impl<Step: PartialEq> StepLine<Step> {
    /// Begins. `what` names the activity in one word.
    pub fn start(what: &'static str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").expect("the template is well formed"));
            bar
        });
        let now = Instant::now();
        let due = if bar.is_some() { now } else { now + LINE_INTERVAL };
        Self { what, bar, step: None, step_start: now, due }
    }

    /// Shows a sentence about a step. `sentence` is called where it is time to show one, with the time that the step has taken.
    pub fn show(&mut self, step: Step, sentence: impl FnOnce(Duration) -> String) {
        let now = Instant::now();
        if self.step.as_ref() != Some(&step) {
            (self.step, self.step_start) = (Some(step), now);
        }
        if now < self.due {
            return;
        }
        let text = sentence(now - self.step_start);
        match &self.bar {
            Some(bar) => {
                self.due = now + DRAW_INTERVAL;
                bar.set_message(text);
                bar.tick();
            }
            None => {
                self.due = now + LINE_INTERVAL;
                eprintln!("{}: {text}", self.what);
            }
        }
    }

    /// Takes the line off the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn sentence(reading: &Reading, rate: &Rate) -> String {
    let mut parts = Vec::new();
    match (reading.bytes_total, reading.files_total) {
        (Some(bytes), Some(files)) => {
            parts.push(format!("{} of {}", ByteSize(reading.bytes_done), ByteSize(bytes)));
            parts.push(format!("{} of {}", reading.files_done, output::files(files)));
        }
        _ => parts.push("counting".to_owned()),
    }
    if let Some(rate) = rate.per_second().filter(|rate| *rate > 0) {
        parts.push(format!("{}/s", ByteSize(rate)));
    }
    let left = reading.bytes_total.map_or(0, |total| total.saturating_sub(reading.bytes_done));
    if let Some(time) = rate.time_for(left).filter(|_| left > 0) {
        parts.push(format!("{} left", rate::duration(time)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_becomes_a_sentence_with_rate_and_remaining_time() {
        let mut rate = Rate::default();
        rate.note(Duration::ZERO, 0);
        rate.note(Duration::from_secs(2), 20 << 20);
        let reading = Reading {
            bytes_done: 20 << 20,
            bytes_total: Some(120 << 20),
            files_done: 1,
            files_total: Some(6),
            note: "moving is paused".to_owned(),
        };
        assert_eq!(sentence(&reading, &rate), "20 MiB of 120 MiB, 1 of 6 files, 10 MiB/s, 10 s left");
        assert_eq!(sentence(&Reading::default(), &Rate::default()), "counting");
    }
}
