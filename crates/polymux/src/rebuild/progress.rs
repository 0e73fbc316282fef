//! How far a rebuild is, in words.

use std::time::Duration;

use polymux_fs::RebuildProgress;

use crate::progress::StepLine;
use crate::rate;

/// Shows it.
pub fn show(line: &mut StepLine<&'static str>, progress: &RebuildProgress) {
    line.show(progress.phase, |elapsed| sentence(progress, elapsed));
}

fn sentence(progress: &RebuildProgress, elapsed: Duration) -> String {
    let RebuildProgress { phase, done, total } = *progress;
    let rate = rate::per_second(done, elapsed).unwrap_or(0);
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
