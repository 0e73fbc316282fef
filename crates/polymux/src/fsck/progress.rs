//! How far a check is, on standard error: one line that changes on a terminal, a plain line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::protocol::CheckProgressReport;

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two looks of the line on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// The line.
pub struct CheckLine {
    bar: Option<ProgressBar>,
    pass: u32,
    pass_start: Instant,
    due: Instant,
}

impl CheckLine {
    /// Begins.
    pub fn start() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").expect("the template is well formed"));
            bar
        });
        let now = Instant::now();
        let first = if bar.is_some() { now } else { now + LINE_INTERVAL };
        Self { bar, pass: 0, pass_start: now, due: first }
    }

    /// Shows how far the check is.
    pub fn show(&mut self, progress: &CheckProgressReport) {
        let now = Instant::now();
        if progress.pass != self.pass {
            (self.pass, self.pass_start) = (progress.pass, now);
        }
        if now < self.due {
            return;
        }
        let text = sentence(progress, now - self.pass_start);
        match &self.bar {
            Some(bar) => {
                self.due = now + DRAW_INTERVAL;
                bar.set_message(text);
                bar.tick();
            }
            None => {
                self.due = now + LINE_INTERVAL;
                eprintln!("fsck: {text}");
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

fn sentence(progress: &CheckProgressReport, elapsed: Duration) -> String {
    let CheckProgressReport { pass, name, done } = progress;
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done.saturating_mul(1000) / milliseconds;
    format!("pass {pass} ({name}): {done} read, {rate}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_sentence_with_a_rate() {
        let progress = CheckProgressReport { pass: 12, name: "compare names".to_owned(), done: 5000 };
        assert_eq!(sentence(&progress, Duration::from_secs(2)), "pass 12 (compare names): 5000 read, 2500/s");
    }
}
