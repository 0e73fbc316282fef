//! A tier that fails: since when, why, and when it is tried again (docs/design/0014).
//!
//! Invariants:
//! * One error that concerns the tier as a whole takes it out of placement; its data is still read and written.
//! * It comes back after a quiet time and an attempt that succeeds, never by time alone. A tier that fails again soon after
//!   it came back has to be quiet for longer.
//! * The log says once that it fails and once that it works again, however many calls fail in between.

use std::time::Duration;

use polymux_tier::TierError;
use polymux_types::Errno;

/// How long no call may fail before the tier is tried,
const QUIET: Duration = Duration::from_secs(30);
/// at most so many times as long where it fails again and again.
const QUIET_FACTOR_MAX: u32 = 16;
/// A tier that worked for so long begins anew.
const RELAPSE: Duration = Duration::from_secs(600);

/// Whether an error is about the tier as a whole and not about the call.
pub(super) fn means_failure(error: &TierError) -> bool {
    match error {
        TierError::ReadOnly => true,
        TierError::Io { errno, .. } => matches!(
            *errno,
            Errno::EIO | Errno::ENODEV | Errno::ENXIO | Errno::ESTALE | Errno::ENOTCONN | Errno::ETIMEDOUT
        ),
        _ => false,
    }
}

/// Failures of one tier. Times are on the volume's clock.
#[derive(Debug, Default)]
pub(super) struct Failures {
    present: Option<Failure>,
    /// Times that it was taken out of placement.
    pub(super) taken_out: u64,
    /// When it last came back, and the quiet time that it took.
    came_back: Option<(Duration, u32)>,
}

#[derive(Debug)]
struct Failure {
    text: String,
    last: Duration,
    /// Errors so far.
    count: u64,
    /// Quiet times to wait for.
    factor: u32,
}

impl Failures {
    /// Returns whether the tier did not fail before.
    pub(super) fn note(&mut self, error: &TierError, now: Duration) -> bool {
        if let Some(failure) = &mut self.present {
            failure.last = now;
            failure.count += 1;
            failure.text = error.to_string();
            return false;
        }
        let factor = match self.came_back {
            Some((when, factor)) if now.saturating_sub(when) < RELAPSE => (factor * 2).min(QUIET_FACTOR_MAX),
            _ => 1,
        };
        self.taken_out += 1;
        self.present = Some(Failure { text: error.to_string(), last: now, count: 1, factor });
        true
    }

    pub(super) fn is_failing(&self) -> bool {
        self.present.is_some()
    }

    /// Whether the tier was quiet for long enough to be tried.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.present.as_ref().is_some_and(|failure| now.saturating_sub(failure.last) >= QUIET * failure.factor)
    }

    /// An attempt succeeded. Returns whether the tier failed until now.
    pub(super) fn end(&mut self, now: Duration) -> bool {
        let Some(failure) = self.present.take() else { return false };
        self.came_back = Some((now, failure.factor));
        true
    }

    /// In words, for people; `None` while the tier does not fail.
    pub(super) fn words(&self) -> Option<String> {
        let failure = self.present.as_ref()?;
        let what = match failure.count {
            1 => failure.text.clone(),
            count => format!("{} ({count} errors)", failure.text),
        };
        Some(format!("{what}; new data goes to other tiers until it works again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: TierError = TierError::Io { operation: "writing", errno: Errno::EIO };

    #[test]
    fn a_tier_that_fails_again_soon_is_quiet_for_longer() {
        let mut failures = Failures::default();
        let mut now = Duration::from_secs(1000);
        let mut waited = Vec::new();
        for _ in 0..6 {
            assert!(failures.note(&ERROR, now));
            let since = now;
            while !failures.is_due(now) {
                now += Duration::from_secs(1);
            }
            waited.push((now - since).as_secs() / 30);
            assert!(failures.end(now));
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 16]);
        now += RELAPSE;
        assert!(failures.note(&ERROR, now));
        assert!(failures.is_due(now + QUIET));
    }

    #[test]
    fn each_error_makes_the_quiet_time_begin_anew_and_only_the_first_one_is_news() {
        let mut failures = Failures::default();
        assert!(failures.note(&ERROR, Duration::ZERO));
        assert!(!failures.note(&ERROR, QUIET / 2));
        assert!(!failures.is_due(QUIET));
        assert!(failures.is_due(QUIET / 2 + QUIET));
        assert_eq!(failures.taken_out, 1);
    }
}
