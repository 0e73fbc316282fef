//! How far a rebuild is, on standard error: one line that changes on a terminal, a plain line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use polymux_fs::RebuildProgress;

use crate::rate;

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two looks of the line on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// The line.
pub struct RebuildLine {
    bar: Option<ProgressBar>,
    phase: &'static str,
    phase_start: Instant,
    due: Instant,
}

impl RebuildLine {
    /// Begins.
    pub fn start() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").expect("the template is well formed"));
            bar
        });
        let now = Instant::now();
        let due = if bar.is_some() { now } else { now + LINE_INTERVAL };
        Self { bar, phase: "", phase_start: now, due }
    }

    /// Shows how far it is.
    pub fn show(&mut self, progress: &RebuildProgress) {
        let now = Instant::now();
        if progress.phase != self.phase {
            (self.phase, self.phase_start) = (progress.phase, now);
        }
        if now < self.due {
            return;
        }
        let text = sentence(progress, now - self.phase_start);
        match &self.bar {
            Some(bar) => {
                self.due = now + DRAW_INTERVAL;
                bar.set_message(text);
                bar.tick();
            }
            None => {
                self.due = now + LINE_INTERVAL;
                eprintln!("rebuild: {text}");
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

fn sentence(progress: &RebuildProgress, elapsed: Duration) -> String {
    let RebuildProgress { phase, done, total } = *progress;
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done.saturating_mul(1000) / milliseconds;
    if total == 0 {
        return format!("{phase}: {done}, {rate}/s");
    }
    let left = total.saturating_sub(done).checked_div(rate).map(Duration::from_secs);
    let left = left.map_or_else(String::new, |time| format!(", {} left", rate::duration(time)));
    format!("{phase}: {done} of {total}, {rate}/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_sentence_with_rate_and_remaining_time_where_the_end_is_known() {
        let mut progress = RebuildProgress { phase: "reading objects", done: 5000, total: 0 };
        assert_eq!(sentence(&progress, Duration::from_secs(2)), "reading objects: 5000, 2500/s");
        progress.total = 30_000;
        assert_eq!(sentence(&progress, Duration::from_secs(2)), "reading objects: 5000 of 30000, 2500/s, 10 s left");
    }
}
