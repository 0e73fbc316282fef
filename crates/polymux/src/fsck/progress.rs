//! How far a check is, in words.

use std::time::Duration;

use crate::progress::StepLine;
use crate::protocol::CheckProgressReport;
use crate::rate;

/// Shows it.
pub fn show(line: &mut StepLine<u32>, progress: &CheckProgressReport) {
    line.show(progress.pass, |elapsed| sentence(progress, elapsed));
}

fn sentence(progress: &CheckProgressReport, elapsed: Duration) -> String {
    let CheckProgressReport { pass, name, done } = progress;
    let rate = rate::per_second(*done, elapsed).unwrap_or(0);
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
